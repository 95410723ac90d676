//! Rows that are read again after a write: the unit of their partition stays, and what is written
//! newly is a hit where such rows are read soon.

use std::thread;

use afterglow_cql::frame::Version;
use afterglow_cql::message::Consistency;
use afterglow_testkit::fake_backend::StatementKind;

use crate::node::{Client, House, wait_until};
use crate::slices::{five, put, values};
use crate::updates::run_at;

fn refreshed(house: &House) -> u64 {
    house.node.count(&["write_outcomes_total", "refreshed"])
}

fn installed(house: &House) -> u64 {
    house.node.count(&["fills_total", "installed"])
}

/// The newest rows of a partition of 100, of which the unit has 16.
fn newest(client: &mut Client) -> Vec<String> {
    values(client, "ORDER BY c DESC LIMIT 10")
}

#[test]
fn a_slice_after_a_new_row_has_it_and_costs_one_row() {
    let house = House::new("ks.*=exclusive");
    for (number, &version) in Version::ALL.iter().enumerate() {
        let mut client = house.node.client(version);
        client.run("TRUNCATE ks.wide");
        (0..100).for_each(|c| put(&mut client, c, &c.to_string()));
        newest(&mut client);
        for c in 100..120 {
            let before = (installed(&house), refreshed(&house));
            let (reads, found) = house.reads_at_once(|| {
                put(&mut client, c, &c.to_string());
                newest(&mut client)
            });
            let expected: Vec<_> = (0..10).map(|back| (c - back).to_string()).collect();
            assert_eq!(found, expected, "{number}");
            if let Some(reads) = reads {
                assert_eq!(reads, 1, "{number}");
                assert_eq!(house.reads(|| newest(&mut client)).0, 0);
                assert_eq!((installed(&house), refreshed(&house)), (before.0 + 1, before.1 + 1));
            }
            wait_until("it is cached", || house.reads(|| newest(&mut client)).0 == 0);
        }
        // The other rows are still those of the fill.
        let all = house.past().query(
            "SELECT v FROM ks.wide WHERE k = 'a' ORDER BY c DESC LIMIT 16",
            Consistency::One,
        );
        let (reads, found) = house.reads(|| values(&mut client, "ORDER BY c DESC LIMIT 16"));
        let text = |row: Vec<Option<Vec<u8>>>| String::from_utf8(row[0].clone().unwrap()).unwrap();
        let all: Vec<String> = all.unwrap().into_iter().map(text).collect();
        assert_eq!((reads, found), (0, all));
    }
}

#[test]
fn a_write_behind_the_unit_leaves_it_and_costs_no_read() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    (0..100).for_each(|c| put(&mut client, c, &c.to_string()));
    newest(&mut client);
    let (reads, ()) = house.reads(|| {
        for text in [
            "INSERT INTO ks.wide (k, c, v) VALUES ('a', -5, 'x')",
            "UPDATE ks.wide SET v = 'x' WHERE k = 'a' AND c = 20",
            "DELETE FROM ks.wide WHERE k = 'a' AND c = 21",
        ] {
            client.run(text);
            assert_eq!(newest(&mut client).len(), 10, "{text}");
        }
    });
    assert_eq!((reads, refreshed(&house)), (0, 0));
    assert_eq!(values(&mut client, "AND c >= 20 AND c <= 22"), ["x", "22"]);
}

#[test]
fn what_the_database_says_counts_not_what_was_written() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    // A clock that was ahead: the tombstone outlasts what comes with an older timestamp.
    let ahead = 1_i64 << 61;
    run_at(&mut client, "DELETE FROM ks.wide WHERE k = 'a' AND c = 9", ahead);
    values(&mut client, "");
    for (text, at) in [
        ("INSERT INTO ks.wide (k, c, v) VALUES ('a', 9, 'hidden')", ahead - 1),
        ("INSERT INTO ks.wide (k, c, v) VALUES ('a', 9, 'seen')", ahead + 1),
        ("UPDATE ks.wide SET v = 'past' WHERE k = 'a' AND c = 3", 1),
        ("DELETE FROM ks.wide WHERE k = 'a' AND c = 9", ahead),
        ("UPDATE ks.wide USING TTL 1000 SET v = 'ends' WHERE k = 'a' AND c = 2", ahead),
        ("INSERT INTO ks.wide (k, c, v) VALUES ('a', 8, 'ends') USING TTL 1000", ahead),
    ] {
        let before = refreshed(&house);
        run_at(&mut client, text, at);
        assert_eq!(refreshed(&house), before + 1, "{text}");
        let slice = "SELECT c, v FROM ks.wide WHERE k = 'a'";
        let (found, database) = (client.run(slice), house.past().query(slice, Consistency::One));
        assert_eq!(found, database.unwrap(), "{text}");
    }
}

#[test]
fn reads_wait_for_the_row_that_is_read_again() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    five(&mut writer);
    values(&mut reader, "");
    // The statement that reads a row is prepared.
    put(&mut writer, 6, "6");
    assert_eq!(values(&mut reader, "LIMIT 9").len(), 6);
    let held = house.database.hold(StatementKind::Read);
    let coalesced = || house.node.count(&["afterglow_misses_total", "coalesced"]);
    let before = coalesced();
    let (reads, found) = house.reads(|| {
        // Its client does not wait.
        put(&mut writer, 7, "7");
        held.wait_for(1);
        thread::scope(|scope| {
            let read = scope.spawn(|| values(&mut reader, "LIMIT 9"));
            wait_until("it waits", || coalesced() == before + 1);
            drop(held);
            read.join().unwrap()
        })
    });
    // Two if this took so long that the refresh was given up.
    assert!((1..=2).contains(&reads), "{reads}");
    assert_eq!(found.len(), 7);
}

#[test]
fn a_write_while_the_row_is_read_again_leaves_no_unit_of_before() {
    for later in [
        "UPDATE ks.wide SET v = 'later' WHERE k = 'a' AND c = 3",
        "INSERT INTO ks.wide (k, c, v) VALUES ('a', 7, 'later')",
        "DELETE FROM ks.wide WHERE k = 'a' AND c = 6",
        "DELETE FROM ks.wide WHERE k = 'a'",
        "BEGIN BATCH UPDATE ks.wide SET v = 'later' WHERE k = 'a' AND c = 3; \
         UPDATE ks.wide SET v = 'later' WHERE k = 'a' AND c = 4; APPLY BATCH",
        "TRUNCATE ks.wide",
    ] {
        let house = House::new("ks.*=exclusive");
        let mut writer = house.node.client(Version::V4);
        let mut reader = house.node.client(Version::V5);
        five(&mut writer);
        values(&mut reader, "LIMIT 20");
        // The statement that reads a row is prepared.
        put(&mut writer, 5, "5");
        values(&mut reader, "LIMIT 20");
        // The fill of the unit, and the refresh.
        let fills = || house.node.count(&["fills_total"]);
        wait_until("the refresh has ended", || fills() == 2);
        let held = house.database.hold(StatementKind::Read);
        put(&mut writer, 6, "6");
        held.wait_for(1);
        // On another connection to the database, where nothing is held up.
        reader.run(later);
        drop(held);
        // A later write of one row has a refresh of its own.
        wait_until("it has ended", || fills() >= 3);
        let slice = "SELECT c, v FROM ks.wide WHERE k = 'a'";
        for _ in 0..2 {
            let database = house.past().query(slice, Consistency::One).unwrap();
            assert_eq!(reader.run(slice), database, "{later}");
        }
    }
}

#[test]
fn where_new_rows_are_read_soon_they_are_cached_before_that() {
    for policy in ["ks.*=exclusive", "ks.*=max-staleness=60s"] {
        let house = House::new(policy);
        let mut client = house.node.client(Version::V5);
        let mut both = |n: u32| {
            house.reads(|| {
                client.put(&n.to_string(), "v");
                assert_eq!(client.value(&n.to_string()).as_deref(), Some("v"));
            })
        };
        // Either the write's read of it or the read's own.
        (0..100).for_each(|n| assert_eq!(both(n).0, 1, "{n}, {policy}"));
        let read_at_once = refreshed(&house);
        assert!((60..95).contains(&read_at_once), "{read_at_once} of 100, {policy}");
        // A row that is there is read anew.
        client.put("7", "new");
        assert_eq!(client.value("7").as_deref(), Some("new"));
    }
}

#[test]
fn where_new_rows_are_not_read_nothing_is_read_for_them() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let (reads, ()) = house.reads(|| {
        (0..100).for_each(|n| client.put(&n.to_string(), "v"));
    });
    assert_eq!((reads, refreshed(&house)), (0, 0));
}

#[test]
fn a_row_that_is_read_at_once_and_written_meanwhile_is_not_cached_as_it_was() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    for n in 0..40 {
        client.put(&n.to_string(), "v");
        client.value(&n.to_string());
    }
    let mut other = house.node.client(Version::V4);
    for round in 0..40 {
        let before = refreshed(&house);
        let held = house.database.hold(StatementKind::Read);
        client.put("raced", &round.to_string());
        if refreshed(&house) > before {
            held.wait_for(1);
        }
        other.put("raced", "later");
        drop(held);
        assert_eq!(client.value("raced").as_deref(), Some("later"));
        assert_eq!(client.value("raced").as_deref(), Some("later"));
    }
}
