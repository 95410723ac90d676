//! Reads of a partition while rows of it are written: they wait for its unit, for a short time.

use std::thread;

use afterglow_cql::frame::Version;
use afterglow_cql::message::Consistency;
use afterglow_testkit::fake_backend::{Faults, StatementKind};

use crate::node::{House, wait_until};
use crate::pipelined::Pipelined;
use crate::slices::{five, put, values};

/// How often a read that has waited is asked for at most: it waits for a tenth of a second, and the
/// machine may be busy for longer.
const TRIES: i32 = 30;
const READERS: i16 = 50;
const SLICE: &str = "SELECT v FROM ks.wide WHERE k = 'a' ORDER BY c DESC LIMIT 9";

fn coalesced(house: &House) -> u64 {
    house.node.count(&["afterglow_misses_total", "coalesced"])
}

/// A house with five rows, their unit, and all that is prepared once.
fn filled() -> House {
    let house = House::new("ks.*=exclusive");
    let (mut first, mut second) = (house.node.client(Version::V4), house.node.client(Version::V5));
    five(&mut first);
    for client in [&mut first, &mut second] {
        values(client, "LIMIT 9");
        put(client, 5, "5");
        values(client, "LIMIT 9");
        client.wide("a", 5);
    }
    house
}

#[test]
fn many_readers_during_a_write_cost_the_one_read_of_the_new_row_and_see_it() {
    let house = filled();
    let mut writer = house.node.client(Version::V5);
    let mut readers = Pipelined::open(house.node.address);
    let costs_one = |c: i32| {
        let (before, held) = (coalesced(&house), house.database.hold(StatementKind::Write));
        let (reads, ()) = house.reads(|| {
            thread::scope(|scope| {
                scope.spawn(|| put(&mut writer, c, &format!("row {c}")));
                held.wait_for(1);
                readers.ask_all(0..READERS, SLICE);
                let all = before + READERS as u64;
                wait_until("all wait", || coalesced(&house) >= all);
                drop(held);
                for _ in 0..READERS {
                    let body = readers.receive().body;
                    let row = format!("row {c}");
                    let has =
                        |row: &str| body.windows(row.len()).any(|part| part == row.as_bytes());
                    assert!(has(&row), "{c}");
                }
            });
        });
        reads == 1
    };
    assert!((10..10 + TRIES).any(costs_one), "none waited for the unit");
}

#[test]
fn a_reader_of_one_row_waits_for_the_unit_that_has_it() {
    let house = filled();
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    let costs_one = |round: i32| {
        let (before, held) = (coalesced(&house), house.database.hold(StatementKind::Write));
        let (reads, ()) = house.reads(|| {
            thread::scope(|scope| {
                scope.spawn(|| put(&mut writer, 3, &round.to_string()));
                held.wait_for(1);
                let read = scope.spawn(|| (reader.wide("a", 3), reader.wide("a", 4)));
                wait_until("it waits", || coalesced(&house) > before);
                drop(held);
                assert_eq!(read.join().unwrap(), (Some(round.to_string()), Some("4".into())));
            });
        });
        reads == 1
    };
    assert!((0..TRIES).any(costs_one), "none waited for the unit");
}

#[test]
fn writes_of_several_rows_that_overlap_leave_the_unit_with_all() {
    let house = filled();
    let mut reader = house.node.client(Version::V5);
    let mut writers = Pipelined::open(house.node.address);
    let mut ends = 0;
    for round in 1..=TRIES {
        let held = house.database.hold(StatementKind::Write);
        for n in 0..4 {
            let c = round * 10 + i32::from(n);
            let text = format!("INSERT INTO ks.wide (k, c, v) VALUES ('a', {c}, '{c}')");
            writers.ask(n, &text);
        }
        held.wait_for(1);
        drop(held);
        (0..4).for_each(|_| drop(writers.receive()));
        let slice = "SELECT c, v FROM ks.wide WHERE k = 'a' ORDER BY c DESC LIMIT 20";
        let (reads, found) = house.reads(|| reader.run(slice));
        assert_eq!(found, house.past().query(slice, Consistency::One).unwrap(), "{round}");
        ends += u64::from(reads == 0 || house.reads(|| reader.run(slice)).0 == 0);
    }
    assert!(ends > 0, "no unit was left");
}

#[test]
fn a_write_of_unknown_outcome_leaves_no_reader_waiting() {
    for is_answered in [true, false] {
        let house = filled();
        let (mut writer, mut reader) =
            (house.node.client(Version::V4), house.node.client(Version::V5));
        let (before, held) = (coalesced(&house), house.database.hold(StatementKind::Write));
        let write_timeouts = if is_answered { 1.0 } else { 0.0 };
        house.database.set_faults(Faults { write_timeouts, ..Faults::default() });
        thread::scope(|scope| {
            let text = "DELETE FROM ks.wide WHERE k = 'a' AND c = 5";
            let write = scope.spawn(|| writer.try_run(text));
            held.wait_for(1);
            let read = scope.spawn(|| values(&mut reader, "LIMIT 9"));
            wait_until("it waits", || coalesced(&house) > before);
            house.database.set_faults(Faults::default());
            if !is_answered {
                house.database.hang_up();
            }
            drop(held);
            drop(write.join().unwrap());
            let found = read.join().unwrap();
            assert!((4..=5).contains(&found.len()), "{found:?}");
        });
    }
}

#[test]
fn a_reader_waits_for_no_write_that_is_never_answered() {
    let house = filled();
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        let write = scope.spawn(|| put(&mut writer, 6, "6"));
        held.wait_for(1);
        // The database answers: it has the row, or not yet.
        for _ in 0..3 {
            assert!((5..=6).contains(&values(&mut reader, "LIMIT 9").len()));
            assert_eq!(reader.wide("a", 4).as_deref(), Some("4"));
        }
        drop(held);
        write.join().unwrap();
        assert_eq!(values(&mut reader, "LIMIT 9").len(), 6);
    });
}
