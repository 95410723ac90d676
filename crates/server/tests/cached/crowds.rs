//! Many readers of one row that is not cached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afterglow_cql::frame::{Opcode, Version};
use afterglow_testkit::fake_backend::{FakeBackend, Faults, StatementKind};
use tempfile::TempDir;

use crate::node::{House, Setup, direct, furnished, wait_until};
use crate::pipelined::Pipelined;

const READERS: usize = 10;
/// Requests that each has under way at once.
const EACH: i16 = 1000;
/// Requests of a small crowd.
const FEW: i16 = 100;

/// Whether so many reads of the database are made since `began` where all join fills. One is
/// joined for a second, and no other begins before, however slow the machine is.
fn is_joined(reads: u64, began: Instant) -> bool {
    (1..=1 + began.elapsed().as_secs()).contains(&reads)
}

#[test]
fn ten_thousand_readers_of_a_cold_row_make_one_read_of_the_database() {
    let faults = Faults { delay: Duration::from_millis(50), ..Faults::default() };
    let database = furnished(FakeBackend::start("127.0.0.1:0".parse().unwrap(), faults).unwrap());
    direct(&database, "INSERT INTO ks.t (k, v) VALUES ('a', 'the value')");
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let mut crowds: Vec<_> = (0..READERS).map(|_| Pipelined::open(node.address)).collect();
    let (before, began) = (database.reads(), Instant::now());
    let text = "SELECT v FROM ks.t WHERE k = 'a'";
    crowds.iter_mut().for_each(|crowd| crowd.ask_all(0..EACH, text));
    for crowd in &mut crowds {
        let mut answered = vec![0; EACH as usize];
        for _ in 0..EACH {
            let answer = crowd.receive();
            assert_eq!(answer.header.opcode, Opcode::Result);
            assert!(answer.body.ends_with(b"the value"));
            answered[answer.header.stream as usize] += 1;
        }
        assert!(answered.iter().all(|&times| times == 1), "each request has one answer");
    }
    let reads = database.reads() - before;
    assert!(is_joined(reads, began), "{reads} reads");
    // Each read is one hit or one miss: that is what a hit ratio is made of.
    let all = READERS as u64 * EACH as u64;
    assert_eq!(node.hits() + node.count(&["afterglow_misses_total"]), all);
    let of_table = node.count(&["afterglow_table_misses_total", "table=\"t\""]);
    assert_eq!(node.hits() + of_table, all);
}

#[test]
fn a_crowd_in_another_version_prepares_what_it_needs_once() {
    let prepares = Arc::new(AtomicU64::new(0));
    let counted = prepares.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        counted.fetch_add(u64::from(ask.opcode() == Opcode::Prepare), Ordering::SeqCst);
        false
    });
    let (database, directory) = (furnished(database.unwrap()), TempDir::new().unwrap());
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let (mut first, mut crowd) = (node.client(Version::V5), Pipelined::open(node.address));
    first.put("a", "1");
    let (held, began) = (database.hold(StatementKind::Read), Instant::now());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| first.value("a"));
        held.wait_for(1);
        crowd.ask_all(0..FEW, "SELECT v FROM ks.t WHERE k = 'a'");
        wait_until("many wait", || node.count(&["afterglow_misses_total", "coalesced"]) > 50);
        drop(held);
        assert_eq!(first.join().unwrap().as_deref(), Some("1"));
    });
    (0..FEW).for_each(|_| assert!(crowd.receive().body.ends_with(b"1")));
    assert_eq!(prepares.load(Ordering::SeqCst), 2, "one for each version");
    assert!(is_joined(database.reads(), began), "{} reads", database.reads());
}

#[test]
fn readers_that_wait_for_a_fill_get_it_although_its_client_has_left() {
    let house = House::new("ks.*=exclusive");
    house.node.client(Version::V5).put("a", "1");
    let (held, began) = (house.database.hold(StatementKind::Read), Instant::now());
    let text = "SELECT v FROM ks.t WHERE k = 'a'";
    let [mut first, mut crowd] = [(); 2].map(|()| Pipelined::open(house.node.address));
    first.ask(0, text);
    held.wait_for(1);
    crowd.ask_all(0..FEW, text);
    wait_until("all wait", || house.node.count(&["afterglow_misses_total"]) == 1 + FEW as u64);
    drop(first);
    drop(held);
    (0..FEW).for_each(|_| assert!(crowd.receive().body.ends_with(b"1")));
    let reads = house.database.reads();
    assert!(is_joined(reads, began), "{reads} reads");
}
