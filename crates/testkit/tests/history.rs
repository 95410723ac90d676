//! The history clients against the fake backend: an honest one is never accused, whatever fails,
//! and a lying one always is.

use std::time::{Duration, Instant};

use afterglow_testkit::{
    fake_backend::{FakeBackend, Faults},
    history::{Event, Fault, History, HistoryOptions, check, residue},
};

/// Three clients of each kind on 20 keys, in several parts. Each part ends at `operations` reads
/// and as many writes. Returns the events of each part.
fn record(faults: &Faults, parts: usize, operations: u64) -> Vec<Vec<Event>> {
    let backend = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let options = HistoryOptions {
        hosts: vec![backend.address().to_string()],
        keys: 20,
        readers: 3,
        writers: 3,
        deletes: 0.1,
        value_bytes: (8, 200),
        ..HistoryOptions::default()
    };
    options.create_table().unwrap();
    backend.set_faults(faults.clone());
    let (origin, mut carried) = (Instant::now(), Vec::new());
    let mut recorded = Vec::new();
    for _ in 0..parts {
        let history = History::resume(options.clone(), origin, carried);
        let give_up = Instant::now() + Duration::from_secs(60);
        while history.reads().min(history.writes()) < operations {
            assert!(Instant::now() < give_up, "the clients are stuck at {}", history.answered());
            std::thread::yield_now();
        }
        let events = history.finish().unwrap();
        carried = residue(&events, origin.elapsed().as_nanos() as u64).unwrap();
        recorded.push(events);
    }
    recorded
}

#[test]
fn an_honest_database_is_not_accused_even_when_much_fails() {
    let faults = Faults { write_timeouts: 0.1, drops: 0.02, seed: 4, ..Faults::default() };
    for events in record(&faults, 3, 500) {
        let verdict = check(&events).unwrap();
        assert!(verdict.violations.is_empty(), "{:?}", &verdict.violations[0]);
        assert!(
            verdict.unknown > 20 && verdict.acknowledged >= 500 && verdict.reads >= 500,
            "{verdict:?}"
        );
    }
}

#[test]
fn a_database_that_lies_now_and_then_is_caught() {
    let faults = Faults { stale_reads: 0.02, seed: 4, ..Faults::default() };
    let verdict = check(&record(&faults, 1, 1000)[0]).unwrap();
    assert!(verdict.violations.iter().any(|v| v.fault == Fault::Stale), "{verdict:?}");
}
