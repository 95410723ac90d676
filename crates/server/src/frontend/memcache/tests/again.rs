//! What comes again: heads of values in parts that flash does not take at this moment.

use afterglow_engine::Durability;

use super::super::parts::REFUSED_TRIES;
use super::large::{Large, lines};
use super::*;

const FAILED: &str = "SERVER_ERROR out of memory storing object";

/// A front end whose flash does not take so many heads.
fn refusing(heads: u64) -> Large {
    let mut large = Large::unopened(Durability::WriteBack);
    large.start();
    let front_end = &large.open.as_ref().unwrap().1.front_end;
    front_end.store.refusing.store(heads, Ordering::Relaxed);
    large
}

#[test]
fn a_head_that_flash_does_not_take_comes_again_as_parts_do() {
    let (large, value) = (refusing(3), lines(25_000));
    let mut client = large.connect();
    assert_eq!(client.set("set k 0 0 400000", &value), "STORED");
    assert_eq!(client.get("k"), Some(value));
}

#[test]
fn a_head_that_flash_does_not_take_for_long_is_refused() {
    let (large, value) = (refusing(u64::from(REFUSED_TRIES) + 1), lines(25_000));
    let mut client = large.connect();
    assert_eq!(client.set("set k 0 0 400000", &value), FAILED);
    assert_eq!(client.get("k"), None);
    assert_eq!(client.set("set k 0 0 400000", &value), "STORED");
}
