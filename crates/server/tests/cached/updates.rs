//! Rows that follow a write: after it is acknowledged, the next read is a hit with the new value.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams, ValuesBuilder};
use afterglow_loadgen::cql::Prepared;
use afterglow_testkit::fake_backend::{Faults, StatementKind};
use tempfile::TempDir;

use crate::node::{Client, House, Setup, database, one_text, wait_until};

const INSERT: &str = "INSERT INTO ks.wide (k, c, v) VALUES (?, ?, ?)";
const UPDATE: &str = "UPDATE ks.wide SET v = ? WHERE k = 'a' AND c = 1";

fn outcomes(house: &House, outcome: &str) -> u64 {
    house.node.count(&["write_outcomes_total", &format!("\"{outcome}\"")])
}

/// Runs a text with a default timestamp, which must succeed.
pub fn run_at(client: &mut Client, text: &str, timestamp: i64) {
    let params =
        QueryParams { timestamp: Some(timestamp), ..QueryParams::new(Consistency::LocalQuorum) };
    let answer = client.query_with(Flags::NONE, text, params, &[]);
    assert_eq!(answer.header.opcode, Opcode::Result, "{text}");
}

fn set_at(client: &mut Client, c: i32, value: &str, timestamp: i64) {
    let text = format!("UPDATE ks.wide SET v = '{value}' WHERE k = 'a' AND c = {c}");
    run_at(client, &text, timestamp);
}

fn execute_at(client: &mut Client, prepared: &Prepared, values: &[Value<'_>], timestamp: i64) {
    let mut bound = ValuesBuilder::positional();
    for value in values {
        bound.push(*value);
    }
    let params = QueryParams {
        values: bound.view(),
        timestamp: Some(timestamp),
        ..QueryParams::new(Consistency::LocalQuorum)
    };
    client.raw().execute(prepared, &params).unwrap();
}

#[test]
fn the_next_read_after_a_write_is_a_hit_with_its_value_in_every_version() {
    for version in [Version::V3, Version::V4, Version::V5] {
        let house = House::new("ks.*=exclusive");
        let mut client = house.node.client(version);
        let (insert, update) = (client.prepare(INSERT), client.prepare(UPDATE));
        set_at(&mut client, 1, "first", 10);
        assert_eq!(client.wide("a", 1).as_deref(), Some("first"));
        let (reads, ()) = house.reads(|| {
            set_at(&mut client, 1, "text", 11);
            assert_eq!(client.wide("a", 1).as_deref(), Some("text"));
            execute_at(&mut client, &update, &[Value::Bytes(b"prepared")], 12);
            assert_eq!(client.wide("a", 1).as_deref(), Some("prepared"));
            let row = [Value::Bytes(b"a"), Value::Bytes(&[0, 0, 0, 1]), Value::Bytes(b"inserted")];
            execute_at(&mut client, &insert, &row, 13);
            assert_eq!(client.wide("a", 1).as_deref(), Some("inserted"));
            let using = "UPDATE ks.wide USING TIMESTAMP 14 SET v = 'using' WHERE k = 'a' AND c = 1";
            run_at(&mut client, using, 1);
            assert_eq!(client.wide("a", 1).as_deref(), Some("using"));
        });
        assert_eq!((reads, outcomes(&house, "updated")), (0, 4), "{version:?}");
        // Equal and older times, and null: the database decides.
        let dropped = outcomes(&house, "dropped");
        let (reads, ()) = house.reads(|| {
            for (value, time) in [("equal", 14), ("older", 13)] {
                set_at(&mut client, 1, value, time);
                let truth = if value > "using" { value } else { "using" };
                assert_eq!(client.wide("a", 1).as_deref(), Some(truth));
            }
            execute_at(&mut client, &update, &[Value::Null], 20);
            assert_eq!(client.wide("a", 1), None);
        });
        assert_eq!((reads, outcomes(&house, "dropped") - dropped), (3, 3), "{version:?}");
    }
}

#[test]
fn an_unset_value_leaves_its_row_to_the_database() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V4);
    let update = client.prepare(UPDATE);
    set_at(&mut client, 1, "first", 10);
    for _ in 0..2 {
        assert_eq!(client.wide("a", 1).as_deref(), Some("first"));
        execute_at(&mut client, &update, &[Value::Unset], 11);
    }
    assert_eq!((outcomes(&house, "updated"), outcomes(&house, "dropped")), (0, 3));
}

#[test]
fn reads_while_the_write_is_on_its_way_ask_the_database_and_then_hit() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    set_at(&mut writer, 1, "old", 10);
    assert_eq!(reader.wide("a", 1).as_deref(), Some("old"));
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        let write = scope.spawn(|| set_at(&mut writer, 1, "new", 11));
        held.wait_for(1);
        let (reads, _) = house.reads(|| {
            (0..3).for_each(|_| assert_eq!(reader.wide("a", 1).as_deref(), Some("new")));
        });
        assert_eq!(reads, 3, "each asks the database itself");
        drop(held);
        write.join().unwrap();
    });
    let (reads, value) = house.reads(|| reader.wide("a", 1));
    assert_eq!((reads, value.as_deref()), (0, Some("new")));
}

#[test]
fn of_two_writes_on_their_way_neither_puts_the_row_back() {
    let house = House::new("ks.*=exclusive");
    let clients = [Version::V4, Version::V5].map(|version| house.node.client(version));
    let mut reader = house.node.client(Version::V3);
    set_at(&mut reader, 1, "old", 10);
    assert_eq!(reader.wide("a", 1).as_deref(), Some("old"));
    let before = outcomes(&house, "dropped");
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        for (at, mut client) in clients.into_iter().enumerate() {
            // One writes the row, and one another row of its partition.
            scope.spawn(move || set_at(&mut client, at as i32 + 1, "new", 11));
            held.wait_for(at + 1);
        }
        drop(held);
    });
    assert_eq!((outcomes(&house, "updated"), outcomes(&house, "dropped") - before), (0, 2));
    let (reads, value) = house.reads(|| reader.wide("a", 1));
    assert_eq!((reads, value.as_deref()), (1, Some("new")));
}

#[test]
fn a_write_of_unknown_outcome_is_counted_as_quarantined_and_puts_nothing_back() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    set_at(&mut client, 1, "old", 10);
    assert_eq!(client.wide("a", 1).as_deref(), Some("old"));
    house.database.set_faults(Faults { write_timeouts: 1.0, ..Faults::default() });
    // With a TTL it is not sent again.
    let text =
        "UPDATE ks.wide USING TIMESTAMP 11 AND TTL 900 SET v = 'new' WHERE k = 'a' AND c = 1";
    assert!(client.try_run(text).is_err());
    house.database.set_faults(Faults::default());
    assert_eq!((outcomes(&house, "quarantined"), outcomes(&house, "updated")), (1, 0));
    let (reads, _) = house.reads(|| (0..3).for_each(|_| drop(client.wide("a", 1))));
    assert_eq!(reads, 3, "not cached");
    // Nor does a later write, whatever of the first is still to come.
    set_at(&mut client, 1, "later", 12);
    let (reads, _) = house.reads(|| (0..3).for_each(|_| drop(client.wide("a", 1))));
    assert_eq!((reads, outcomes(&house, "updated")), (3, 0));
}

#[test]
fn while_a_changed_schema_is_being_read_no_row_follows_a_write() {
    let house = House::new("ks.*=exclusive");
    let (mut reader, mut writer) = (house.node.client(Version::V4), house.node.client(Version::V5));
    run_at(&mut writer, "INSERT INTO ks.t (k, v) VALUES ('a', '1')", 10);
    let schema = house.database.hold(StatementKind::Schema);
    house.past().query("ALTER TABLE ks.t ADD more text", Consistency::One).unwrap();
    schema.wait_for(1);
    // The cache has heard of it. Plans are still made for the old schema, and so are fills.
    for (value, timestamp) in [("2", 11), ("3", 12)] {
        reader.value("a");
        let text = format!("INSERT INTO ks.t (k, v) VALUES ('a', '{value}')");
        run_at(&mut writer, &text, timestamp);
        assert_eq!(reader.value("a").as_deref(), Some(value));
    }
    assert_eq!(outcomes(&house, "updated"), 0);
    drop(schema);
    let mut timestamp = 20;
    wait_until("the new schema is known", || {
        timestamp += 1;
        reader.value("a");
        run_at(&mut writer, "INSERT INTO ks.t (k, v) VALUES ('a', '4')", timestamp);
        outcomes(&house, "updated") > 0
    });
    let (reads, value) = house.reads(|| reader.value("a"));
    assert_eq!((reads, value.as_deref()), (0, Some("4")));
}

#[test]
fn under_a_bound_of_staleness_rows_follow_writes_as_well() {
    let house = House::new("ks.*=max-staleness=60s");
    let mut client = house.node.client(Version::V5);
    set_at(&mut client, 1, "old", 10);
    assert_eq!(client.wide("a", 1).as_deref(), Some("old"));
    set_at(&mut client, 1, "new", 11);
    let (reads, value) = house.reads(|| client.wide("a", 1));
    assert_eq!((reads, value.as_deref()), (0, Some("new")));
}

/// Values say their timestamp, so that the newest of a row is known.
#[test]
fn whatever_writes_and_reads_race_the_cache_has_what_the_database_has() {
    let house = House::new("ks.*=exclusive");
    let clock = AtomicI64::new(1_000);
    for round in 0..40 {
        thread::scope(|scope| {
            for (number, version) in [Version::V3, Version::V4, Version::V5].into_iter().enumerate()
            {
                let (mut client, clock) = (house.node.client(version), &clock);
                scope.spawn(move || {
                    for step in 0..12 {
                        let c = (round + step) % 2 + 1;
                        let now = clock.fetch_add(1, Ordering::Relaxed);
                        match (number + step as usize) % 4 {
                            0 => set_at(&mut client, c, &now.to_string(), now - 40),
                            1 if step == 5 => {
                                let text = format!("DELETE FROM ks.wide WHERE k = 'a' AND c = {c}");
                                run_at(&mut client, &text, now);
                            }
                            1 => drop(client.wide("a", c)),
                            _ => set_at(&mut client, c, &now.to_string(), now),
                        }
                        client.wide("a", c);
                    }
                });
            }
        });
        let (mut client, mut past) = (house.node.client(Version::V4), house.past());
        for c in [1, 2] {
            let text = format!("SELECT v FROM ks.wide WHERE k = 'a' AND c = {c}");
            let truth = one_text(past.query(&text, Consistency::LocalQuorum).unwrap());
            for _ in 0..2 {
                assert_eq!(client.wide("a", c), truth, "row {c} in round {round}");
            }
        }
    }
    assert!(outcomes(&house, "updated") > 0, "nothing was put to the test");
}

#[test]
fn a_row_that_only_flash_has_is_read_while_its_write_is_on_its_way_and_follows_it() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    setup.planned_restart_grace = Duration::from_secs(3_600);
    let node = setup.start();
    let mut client = node.client(Version::V4);
    set_at(&mut client, 1, "old", 10);
    assert_eq!(client.wide("a", 1).as_deref(), Some("old"));
    drop(client);
    node.stop();
    // With nothing in DRAM.
    let node = setup.start();
    let mut client = node.client(Version::V5);
    let before = (database.reads(), node.device_reads());
    let held = database.hold(StatementKind::Write);
    thread::scope(|scope| {
        let write = scope.spawn(|| set_at(&mut client, 1, "new", 11));
        held.wait_for(1);
        wait_until("the row is read", || node.device_reads() > before.1);
        drop(held);
        write.join().unwrap();
    });
    assert_eq!(client.wide("a", 1).as_deref(), Some("new"));
    assert_eq!(database.reads(), before.0, "the read is a hit");
    assert_eq!(node.count(&["write_outcomes_total", "\"updated\""]), 1);
    drop(client);
    node.stop();
}
