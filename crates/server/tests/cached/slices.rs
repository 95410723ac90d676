//! Reads of slices of one partition: what is served from its unit, and that no write leaves it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{self, Consistency, QueryParams, ValuesBuilder};
use afterglow_cql::response::{ColumnSpec, MetadataOut, encode_rows_start};
use afterglow_testkit::fake_backend::{Ask, FakeBackend, StatementKind, TEXT};
use tempfile::TempDir;

use crate::node::{Client, House, Setup, furnished, wait_until};
use crate::updates::run_at;

/// The values of `v` that a SELECT of `ks.wide` gives.
pub fn values(client: &mut Client, rest: &str) -> Vec<String> {
    let rows = client.run(&format!("SELECT v FROM ks.wide WHERE k = 'a' {rest}"));
    let text = |row: Vec<Option<Vec<u8>>>| String::from_utf8(row[0].clone().unwrap()).unwrap();
    rows.into_iter().map(text).collect()
}

pub fn put(client: &mut Client, c: i32, v: &str) {
    client.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('a', {c}, '{v}')"));
}

/// Rows 1 to 5, whose values are their keys.
pub fn five(client: &mut Client) {
    (1..=5).for_each(|c| put(client, c, &c.to_string()));
}

const SLICES: [(&str, &[&str]); 10] = [
    ("", &["1", "2", "3", "4", "5"]),
    ("LIMIT 2", &["1", "2"]),
    ("ORDER BY c DESC LIMIT 2", &["5", "4"]),
    ("ORDER BY c ASC", &["1", "2", "3", "4", "5"]),
    ("AND c > 3", &["4", "5"]),
    ("AND c >= 3 LIMIT 1", &["3"]),
    ("AND c < 3", &["1", "2"]),
    ("AND c > 1 AND c <= 3 ORDER BY c DESC", &["3", "2"]),
    ("AND c > 9", &[]),
    ("AND c <= 3 PER PARTITION LIMIT 2", &["1", "2"]),
];

#[test]
fn one_fill_serves_every_slice_of_a_small_partition() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    let (reads, _) = house.reads(|| values(&mut client, "LIMIT 3"));
    assert_eq!(reads, 1);
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        // The metadata of a text's answer is asked for once.
        values(&mut client, "LIMIT 3");
        for (rest, expected) in SLICES {
            let hits = house.node.hits();
            let (reads, found) = house.reads(|| values(&mut client, rest));
            assert_eq!(found, expected, "{rest}");
            assert_eq!((reads, house.node.hits() - hits), (0, 1), "{rest}, {version:?}");
        }
    }
}

#[test]
fn a_slice_from_the_cache_is_byte_for_byte_what_the_database_answers() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        five(&mut client);
        client.run("UPDATE ks.wide SET v = 'alone' WHERE k = 'a' AND c = 6");
        for (rest, _) in SLICES {
            for columns in ["*", "v", "c, k, v, v"] {
                let text = format!("SELECT {columns} FROM ks.wide WHERE k = 'a' {rest}");
                for skip_metadata in [false, true] {
                    let params =
                        QueryParams { skip_metadata, ..QueryParams::new(Consistency::LocalQuorum) };
                    let mut ask = |params| client.query_with(Flags::NONE, &text, params, &[]).body;
                    // ALL is never served from the cache.
                    let database = ask(QueryParams { consistency: Consistency::All, ..params });
                    let _fill = ask(params);
                    let (reads, cached) = house.reads(|| ask(params));
                    assert_eq!((reads, &cached), (0, &database), "{text}, {version:?}");
                }
            }
        }
    }
}

#[test]
fn bounds_and_limits_may_be_bound() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    let text = "SELECT v FROM ks.wide WHERE k = ? AND c >= ? AND c < ? ORDER BY c DESC LIMIT ?";
    let prepared = client.prepare(text);
    let mut ask = |low: i32, high: i32, limit: i32| {
        let mut bound = ValuesBuilder::positional();
        bound.push(Value::Bytes(b"a"));
        for number in [low, high, limit] {
            bound.push(Value::Bytes(&number.to_be_bytes()));
        }
        let params =
            QueryParams { values: bound.view(), ..QueryParams::new(Consistency::LocalQuorum) };
        client.raw().execute(&prepared, &params).map(|rows| rows.len())
    };
    assert_eq!(ask(2, 5, 9).unwrap(), 3);
    for (low, high, limit, expected) in [(2, 5, 9, 3), (2, 5, 2, 2), (0, 9, 9, 5), (9, 0, 9, 0)] {
        let (reads, found) = house.reads(|| ask(low, high, limit));
        assert_eq!((reads, found.unwrap()), (0, expected));
    }
    let (reads, refused) = house.reads(|| ask(2, 5, 0));
    assert!(reads == 1 && refused.is_err(), "the database refuses it");
}

#[test]
fn an_answer_of_several_pages_comes_from_the_database() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    values(&mut client, "");
    for (rest, page, cached) in [
        ("", 6, true),
        ("", 5, false),
        ("", 2, false),
        ("LIMIT 5", 5, true),
        ("LIMIT 3", 3, true),
        ("LIMIT 4", 3, false),
    ] {
        let text = format!("SELECT v FROM ks.wide WHERE k = 'a' {rest}");
        let params =
            QueryParams { page_size: Some(page), ..QueryParams::new(Consistency::LocalQuorum) };
        let (reads, _) = house.reads(|| client.query_with(Flags::NONE, &text, params, &[]));
        assert_eq!(reads, u64::from(!cached), "{rest} {page}");
    }
    let params =
        QueryParams { paging_state: Some(b"state"), ..QueryParams::new(Consistency::LocalQuorum) };
    let text = "SELECT v FROM ks.wide WHERE k = 'a'";
    assert_eq!(house.reads(|| client.query_with(Flags::NONE, text, params, &[])).0, 1);
}

/// Answers with the first page of the rows of partition `a` of `ks.wide`.
fn first_page(ask: &Ask) {
    let columns = [ColumnSpec { keyspace: "ks", table: "wide", name: "v", type_bytes: TEXT }];
    let metadata = MetadataOut { paging_state: Some(b"next"), ..MetadataOut::of_table(&columns) };
    let mut body = Vec::new();
    encode_rows_start(ask.version(), &metadata, 1, &mut body);
    body.extend(b"\0\0\0\x011");
    ask.reply(Opcode::Result, &body);
}

#[test]
fn an_answer_of_several_pages_shows_that_the_statement_is_as_it_was_prepared() {
    const READ: &str = "SELECT v FROM ks.wide WHERE k = ?";
    let (prepares, paged) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(None)));
    let (counted, pages) = (prepares.clone(), paged.clone());
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let message = message::parse(&ask.envelope.header, &ask.envelope.body);
        match message.map(|(_, message)| message) {
            Ok(message::Request::Prepare(prepare)) if prepare.text == READ => {
                counted.fetch_add(1, Ordering::SeqCst);
                false
            }
            Ok(message::Request::Execute(execute)) => {
                let is_paged = pages.lock().unwrap().as_deref() == Some(execute.id);
                if is_paged {
                    first_page(ask);
                }
                is_paged
            }
            _ => false,
        }
    });
    let (database, directory) = (furnished(database.unwrap()), TempDir::new().unwrap());
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    for (n, version) in [Version::V4, Version::V5].into_iter().enumerate() {
        let mut client = node.client(version);
        five(&mut client);
        let read = client.prepare(READ);
        // Now the database may have to prepare it again.
        client.run(&format!("CREATE TABLE ks.more{n} (k text PRIMARY KEY, v text)"));
        let passes = || node.count(&["afterglow_passes_total", "schema_unknown"]);
        let before = (prepares.load(Ordering::SeqCst), passes());
        *paged.lock().unwrap() = Some(read.id.clone());
        assert_eq!(client.execute(&read, &["a"]).len(), 1, "{version:?}");
        *paged.lock().unwrap() = None;
        assert_eq!(passes(), before.1 + 1, "{version:?}: it went past the cache");
        assert_eq!(client.execute(&read, &["a"]).len(), 5, "{version:?}");
        assert_eq!(passes(), before.1 + 1, "{version:?}: it is confirmed");
        assert_eq!(prepares.load(Ordering::SeqCst), before.0, "{version:?}: without a PREPARE");
    }
}

/// Writes to the partition `a`, each of another kind.
const WRITES: [&str; 12] = [
    "INSERT INTO ks.wide (k, c, v) VALUES ('a', 9, 'x')",
    "INSERT INTO ks.wide (k, c, v) VALUES ('a', 9, 'x') IF NOT EXISTS",
    "INSERT INTO ks.wide JSON '{\"k\": \"a\", \"c\": 9, \"v\": \"x\"}'",
    "UPDATE ks.wide SET v = 'x' WHERE k = 'a' AND c = 3",
    "UPDATE ks.wide SET v = 'x' WHERE k = 'a' AND c = 3 IF v = '3'",
    "UPDATE ks.wide SET v = 'x' WHERE k IN ('b', 'a') AND c IN (3, 4)",
    "UPDATE ks.wide USING TTL 1000 SET v = 'x' WHERE k = 'a' AND c = 3",
    "DELETE FROM ks.wide WHERE k = 'a' AND c = 3",
    "DELETE FROM ks.wide WHERE k IN ('a')",
    "BEGIN BATCH UPDATE ks.wide SET v = 'x' WHERE k = 'b' AND c = 1; \
     UPDATE ks.wide SET v = 'x' WHERE k = 'a' AND c = 1; APPLY BATCH",
    "TRUNCATE ks.wide",
    // It leaves a row of a marker alone, so that the partition is not cached for a while.
    "DELETE v FROM ks.wide WHERE k = 'a' AND c = 3",
];

#[test]
fn after_any_write_to_the_partition_its_slices_are_as_the_database_has_them() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    for write in WRITES {
        client.run("TRUNCATE ks.wide");
        five(&mut client);
        values(&mut client, "");
        assert_eq!(house.reads(|| values(&mut client, "")).0, 0, "{write}");
        let text = "SELECT c, v FROM ks.wide WHERE k = 'a'";
        // One read of the row, which the slice waits for, or one of the unit.
        let (reads, found) = house.reads_at_once(|| {
            client.run(write);
            client.run(text)
        });
        let database = house.past().query(text, Consistency::One).unwrap();
        assert_eq!(found, database, "{write}");
        // A row of a marker alone is not kept under `exclusive`.
        let kept = !write.starts_with("DELETE v");
        if let Some(reads) = reads {
            assert_eq!(reads, 1 + u64::from(!kept), "{write}");
            let (reads, _) = house.reads(|| client.run(text));
            assert_eq!(reads, u64::from(!kept), "{write}");
        }
    }
}

#[test]
fn a_row_whose_key_the_database_makes_is_in_the_next_slice() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let feed = "SELECT v FROM ks.feed WHERE k = 'a' ORDER BY c DESC LIMIT 50";
    for rows in 0..3 {
        assert_eq!(client.run(feed).len(), rows);
        let (reads, found) = house.reads(|| client.run(feed).len());
        assert_eq!((reads, found), (0, rows));
        client.run("INSERT INTO ks.feed (k, c, v) VALUES ('a', now(), 'x')");
    }
}

#[test]
fn a_fill_of_a_unit_that_a_write_to_a_row_overtakes_is_not_installed() {
    for write in WRITES {
        let house = House::new("ks.*=exclusive");
        let mut writer = house.node.client(Version::V4);
        let mut reader = house.node.client(Version::V5);
        five(&mut writer);
        let held = house.database.hold(StatementKind::Read);
        thread::scope(|scope| {
            let read = scope.spawn(|| values(&mut reader, "LIMIT 3"));
            held.wait_for(1);
            writer.run(write);
            drop(held);
            // It began before the write, so the old values are right.
            assert_eq!(read.join().unwrap(), ["1", "2", "3"], "{write}");
        });
        assert_eq!(house.node.count(&["fills_total", "overtaken"]), 1, "{write}");
        let text = "SELECT c, v FROM ks.wide WHERE k = 'a' LIMIT 3";
        let database = house.past().query(text, Consistency::One).unwrap();
        assert_eq!(reader.run(text), database, "{write}");
    }
}

#[test]
fn while_a_write_to_a_row_is_in_flight_its_partition_is_neither_served_nor_filled() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    five(&mut writer);
    values(&mut reader, "");
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        let write = scope.spawn(|| put(&mut writer, 3, "new"));
        held.wait_for(1);
        for _ in 0..2 {
            assert_eq!(house.reads(|| values(&mut reader, "LIMIT 2")).0, 1);
        }
        drop(held);
        write.join().unwrap();
    });
    // The first has waited for the unit for a while, unless the write took as long already.
    let count = |reason| house.node.count(&["afterglow_misses_total", reason]);
    let waited = count("coalesced");
    assert_eq!((waited + count("write_in_flight"), waited < 2), (2, true));
    assert_eq!(values(&mut reader, "AND c >= 3 AND c < 4"), ["new"]);
}

#[test]
fn many_misses_of_a_partition_make_one_fill() {
    let house = House::new("ks.*=exclusive");
    five(&mut house.node.client(Version::V4));
    let held = house.database.hold(StatementKind::Read);
    let (reads, ()) = house.reads(|| {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = house.node.client(Version::V5);
                    assert_eq!(values(&mut client, "LIMIT 2"), ["1", "2"]);
                });
            }
            held.wait_for(1);
            wait_until("all have joined", || {
                house.node.count(&["afterglow_misses_total", "coalesced"]) == 7
            });
            drop(held);
        });
    });
    assert_eq!(reads, 1);
}

#[test]
fn many_misses_that_want_more_than_the_first_make_one_fill_more() {
    let house = House::new("ks.*=exclusive");
    let mut writer = house.node.client(Version::V4);
    (0..100).for_each(|c| put(&mut writer, c, &c.to_string()));
    let held = house.database.hold(StatementKind::Read);
    let ask = |rest: &str, rows: usize| {
        assert_eq!(values(&mut house.node.client(Version::V5), rest).len(), rows);
    };
    let (reads, ()) = house.reads(|| {
        thread::scope(|scope| {
            scope.spawn(|| ask("LIMIT 10", 10));
            held.wait_for(1);
            (0..8).for_each(|_| drop(scope.spawn(|| ask("LIMIT 60", 60))));
            wait_until("all have joined", || {
                house.node.count(&["afterglow_misses_total", "coalesced"]) == 8
            });
            drop(held);
        });
    });
    assert_eq!(reads, 2);
    assert_eq!(house.node.count(&["afterglow_misses_total"]) + house.node.hits(), 9);
}

#[test]
fn a_limit_beyond_the_unit_makes_it_larger_and_what_does_not_fit_passes_through() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let mut writer = house.node.client(Version::V4);
    (0..100).for_each(|c| put(&mut writer, c, &c.to_string()));
    let mut read = |rest: &str| {
        let (reads, found) = house.reads(|| values(&mut client, rest));
        (reads, found.len())
    };
    // Of rows that have not been seen yet few are read.
    assert_eq!([read("LIMIT 10"), read("LIMIT 16")], [(1, 10), (0, 16)]);
    assert_eq!([read("LIMIT 20"), read("LIMIT 60")], [(1, 20), (0, 60)]);
    assert_eq!(
        [read("LIMIT 90"), read("LIMIT 99"), read("AND c > 10")],
        [(1, 90), (0, 99), (0, 89)]
    );
    assert_eq!(read("ORDER BY c DESC LIMIT 3"), (0, 3), "the whole partition is there");
    // Three rows fit into what this engine can store.
    let long = "x".repeat(9_000);
    // In one statement, so that the unit goes: after one at a time it would have these rows.
    let one = |c: i32| format!("INSERT INTO ks.wide (k, c, v) VALUES ('a', {c}, '{long}'); ");
    let all: String = (0..9).map(one).collect();
    writer.run(&format!("BEGIN BATCH {all} APPLY BATCH"));
    assert_eq!(read("LIMIT 2"), (1, 2));
    assert_eq!(read("LIMIT 3"), (0, 3));
    // The fill cannot answer it, and then there is none for a while.
    assert_eq!([read("AND c > 50"), read("AND c > 60")], [(2, 49), (1, 39)]);
    assert_eq!(read("LIMIT 2"), (0, 2));
}

#[test]
fn a_range_that_the_first_fill_of_a_table_does_not_reach_is_within_the_next_one() {
    let house = House::new("ks.*=exclusive");
    let (mut client, mut writer) = (house.node.client(Version::V5), house.node.client(Version::V4));
    (0..100).for_each(|c| put(&mut writer, c, &c.to_string()));
    let mut read = || house.reads(|| values(&mut client, "AND c > 50").len());
    assert_eq!([read(), read(), read()], [(2, 49), (1, 49), (0, 49)]);
}

#[test]
fn a_row_that_is_larger_than_a_unit_is_passed_through_and_teaches_how_large_rows_are() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    put(&mut client, 1, &"x".repeat(70_000));
    let mut read = || house.reads(|| values(&mut client, "LIMIT 1").len());
    assert_eq!([read(), read()], [(2, 1), (1, 1)]);
    assert_eq!(house.node.count(&["fills_total", "too_large"]), 1);
    assert_eq!(house.node.count(&["afterglow_misses_total", "too_large"]), 1);
}

#[test]
fn a_unit_ends_before_the_first_cell_of_it_expires() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    client.run("UPDATE ks.wide USING TTL 1 SET v = 'short' WHERE k = 'a' AND c = 3");
    // It would have to end within its first second.
    for _ in 0..2 {
        assert_eq!(house.reads(|| values(&mut client, "LIMIT 2")).0, 1);
    }
    client.run("INSERT INTO ks.wide (k, c) VALUES ('a', 8)");
    client.run("DELETE FROM ks.wide WHERE k = 'a' AND c = 3");
    let rows = house.reads(|| client.run("SELECT c FROM ks.wide WHERE k = 'a'")).0;
    assert_eq!(rows, 1, "it is read");
    let again = house.reads(|| client.run("SELECT c FROM ks.wide WHERE k = 'a'")).0;
    assert_eq!(again, 1, "a row of a marker alone is not kept under exclusive");
}

#[test]
fn without_units_slices_pass_through() {
    let house = House::with("ks.*=exclusive", |setup| setup.partition_unit_size = 0);
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    for _ in 0..2 {
        let (reads, found) = house.reads(|| values(&mut client, "LIMIT 2"));
        assert_eq!((reads, found.len()), (1, 2));
    }
}

/// Rows of the partition that many write and read, each written by one client only.
const RACED: i32 = 8;

/// The last write of each row that was begun, and that was acknowledged. Writes count up; every
/// fourth of a row is a delete.
#[derive(Default)]
struct Raced {
    begun: [AtomicI64; RACED as usize],
    acknowledged: [AtomicI64; RACED as usize],
    clock: AtomicI64,
}

fn is_delete(number: i64) -> bool {
    number % 4 == 0
}

impl Raced {
    /// The next write of row `c`.
    fn write(&self, client: &mut Client, c: i32, kind: usize) {
        let (row, now) = (c as usize, 1_000 + self.clock.fetch_add(1, Ordering::SeqCst));
        let number = self.begun[row].fetch_add(1, Ordering::SeqCst) + 1;
        let update = format!("UPDATE ks.wide SET v = '{number}' WHERE k = 'a' AND c = {c}");
        let text = match kind % 4 {
            _ if is_delete(number) => format!("DELETE FROM ks.wide WHERE k = 'a' AND c = {c}"),
            0 => format!("INSERT INTO ks.wide (k, c, v) VALUES ('a', {c}, '{number}')"),
            1 => format!("BEGIN BATCH {update}; APPLY BATCH"),
            _ => update,
        };
        run_at(client, &text, now);
        self.acknowledged[row].store(number, Ordering::SeqCst);
    }

    /// Reads a slice and looks at each row that is in it, or should be.
    fn read(&self, client: &mut Client, (low, high): (i32, i32), falling: bool, limit: usize) {
        let before = self.acknowledged.each_ref().map(|number| number.load(Ordering::SeqCst));
        let order = if falling { "ORDER BY c DESC" } else { "" };
        let text = format!(
            "SELECT c, v FROM ks.wide WHERE k = 'a' AND c >= {low} AND c < {high} {order} \
             LIMIT {limit}"
        );
        let found = client.run(&text);
        let after = self.begun.each_ref().map(|number| number.load(Ordering::SeqCst));
        let mut rows = found.iter().map(|row| {
            let c = i32::from_be_bytes(row[0].clone().unwrap().try_into().unwrap());
            let number = String::from_utf8(row[1].clone().unwrap()).unwrap();
            (c, number.parse::<i64>().unwrap())
        });
        let mut wanted: Vec<i32> = (low..high).collect();
        if falling {
            wanted.reverse();
        }
        let mut row = rows.next();
        for (seen, c) in wanted.into_iter().enumerate() {
            let possible = before[c as usize]..=after[c as usize];
            match row {
                Some((at, number)) if at == c => {
                    assert!(
                        possible.contains(&number),
                        "{text}: {c} is {number}, not {possible:?}"
                    );
                    row = rows.next();
                }
                // Behind the limit.
                None if found.len() == limit => break,
                _ => assert!(
                    possible.clone().any(is_delete),
                    "{text}: {c} is not there, of {possible:?}; {seen} before it"
                ),
            }
        }
        assert_eq!(row, None, "{text}: the rows are in their order");
    }
}

#[test]
fn whatever_writes_and_slices_race_no_row_of_a_slice_is_older_than_an_acknowledged_write() {
    let house = House::new("ks.*=exclusive");
    let raced = Raced::default();
    for round in 0..30_usize {
        thread::scope(|scope| {
            for (number, &version) in Version::ALL.iter().enumerate() {
                let (mut client, raced) = (house.node.client(version), &raced);
                scope.spawn(move || {
                    for step in 0..12 {
                        let own = (number + 3 * (step % 3)) as i32;
                        if own < RACED && (step + round) % 3 != 0 {
                            raced.write(&mut client, own, round + step);
                        }
                        let low = ((step + number) % 4) as i32 * i32::from(step % 2 == 0);
                        let limit = 1 + (round + step) % 9;
                        raced.read(&mut client, (low, RACED), step % 4 == 1, limit);
                    }
                });
            }
        });
        // What is cached now is what the database has.
        let mut client = house.node.client(Version::V4);
        let hits = house.node.hits();
        wait_until("slices are hits", || {
            for (falling, limit) in [(false, 99), (false, 3), (true, 3)] {
                raced.read(&mut client, (0, RACED), falling, limit);
            }
            house.node.hits() > hits + 1
        });
    }
}

#[test]
fn a_large_partition_that_is_written_as_often_as_it_is_read_is_seldom_filled() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    (0..50).for_each(|c| put(&mut client, c, "old"));
    for round in 0..100 {
        // After a batch of several rows nothing is read again.
        client.run(&format!(
            "BEGIN BATCH UPDATE ks.wide SET v = '{round}' WHERE k = 'a' AND c = 3; \
             UPDATE ks.wide SET v = '{round}' WHERE k = 'a' AND c = 4; APPLY BATCH"
        ));
        let (reads, found) = house.reads(|| values(&mut client, "AND c >= 3 LIMIT 1"));
        assert_eq!((reads, found), (1, vec![round.to_string()]));
    }
    let fills = house.node.count(&["fills_total", "installed\""]);
    assert!((5..20).contains(&fills), "{fills} fills");
    assert_eq!(house.node.count(&["afterglow_misses_total", "churn"]), 100 - fills);
    // When it is only read, it is soon a hit.
    wait_until("it is a hit", || house.reads(|| values(&mut client, "LIMIT 1")).0 == 0);
}

#[test]
fn a_small_partition_is_filled_however_often_it_is_written() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    let mut slow = 0;
    for round in 0..30 {
        let (reads, _) = house.reads_at_once(|| {
            put(&mut client, 3, &round.to_string());
            values(&mut client, "LIMIT 1")
        });
        match reads {
            Some(reads) => assert_eq!(reads, 1),
            None => slow += 1,
        }
    }
    let installed = house.node.count(&["fills_total", "installed\""]);
    assert!(installed == 30 || slow > 0, "{installed} of 30 rounds");
}
