//! Removals of what is not found: nothing that was on flash comes back.

use super::large::Large;
use super::*;

const OBJECTS: usize = 12_000;
const BYTES: usize = 8_000;
/// So many are sent before an answer is waited for.
const TOGETHER: usize = 100;
/// Of those that were evicted so many are looked at: some are not overwritten yet.
const LAST: usize = 600;

/// A word of the protocol that takes an object away, and its answer where there is none.
const WORDS: [(&str, &str); 7] = [
    ("delete KEY", "NOT_FOUND"),
    ("delete KEY noreply\r\nmn", "MN"),
    ("md KEY", "NF"),
    ("md KEY I T30", "NF"),
    ("md KEY C1", "NF"),
    ("touch KEY -1", "NOT_FOUND"),
    ("mg KEY T-1", "EN"),
];

/// Evicts some of so many objects, removes half of those that were evicted last and ends. How many
/// of the others come back; none of those that were removed may.
///
/// A checkpoint knows which segments are free, and nothing comes back from them. So this is quick.
fn remove_what_was_evicted(objects: usize) -> usize {
    let mut large = Large::new(Durability::WriteThrough);
    let mut client = large.connect();
    for first in (0..objects).step_by(TOGETHER) {
        let value = "a".repeat(BYTES);
        let set = |n: usize| format!("set k{n} 0 0 {BYTES} noreply\r\n{value}\r\n");
        let sets: String = (first..objects.min(first + TOGETHER)).map(set).collect();
        assert_eq!(client.ask(&format!("{sets}mn")), "MN");
    }
    let is_there = |client: &mut Client, n: usize| client.get(&format!("k{n}")).is_some();
    // The oldest go first.
    let (mut gone, mut there) = (0, objects);
    while there - gone > 1 {
        let middle = usize::midpoint(gone, there);
        *if is_there(&mut client, middle) { &mut there } else { &mut gone } = middle;
    }
    let word = |n: usize| WORDS.get(n % (2 * WORDS.len()));
    let (mut removed, mut alone) = (Vec::new(), Vec::new());
    for n in gone.saturating_sub(LAST)..=gone {
        match word(n) {
            _ if is_there(&mut client, n) => {}
            Some((word, answer)) => {
                assert_eq!(client.ask(&word.replace("KEY", &format!("k{n}"))), *answer);
                removed.push(n);
            }
            None => alone.push(n),
        }
    }
    drop(client);
    large.stop(false);
    large.start();
    let mut client = large.connect();
    alone.retain(|n| is_there(&mut client, *n));
    removed.retain(|n| is_there(&mut client, *n));
    let removed: Vec<_> = removed.iter().map(|n| (word(*n), n)).collect();
    assert_eq!(removed, [], "{} that nobody removed came back too", alone.len());
    alone.len()
}

/// An eviction leaves the bytes on flash until their segment is written anew, and writes nothing to
/// the journal. So a lookup that finds nothing does not show that nothing can come back.
#[test]
fn what_was_not_found_when_it_was_removed_does_not_come_back_after_a_crash() {
    // A checkpoint may come just before the end, and nothing comes back. So each try ends elsewhere
    // between two of them.
    let mut tries = (0..30).map(|n| remove_what_was_evicted(OBJECTS + 431 * n));
    let back = tries.find(|back| *back > 0);
    assert!(back.is_some(), "no test: nothing that was evicted came back");
}
