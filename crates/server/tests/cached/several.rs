//! Reads of several rows by `IN`: each row is served and filled as if it were read alone.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Version};
use afterglow_cql::message::{Consistency, QueryParams, ValuesBuilder};
use afterglow_testkit::fake_backend::{Faults, StatementKind};

use crate::node::{Client, House, wait_until};
use crate::updates::run_at;

/// Keys and values of `ks.t` that a SELECT gives.
fn rows(client: &mut Client, rest: &str) -> Vec<(String, String)> {
    let text = |cell: &Option<Vec<u8>>| String::from_utf8(cell.clone().unwrap()).unwrap();
    let rows = client.run(&format!("SELECT k, v FROM ks.t WHERE k IN {rest}"));
    rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect()
}

fn keys(client: &mut Client, rest: &str) -> String {
    rows(client, rest).into_iter().map(|(key, _)| key).collect()
}

fn three(client: &mut Client) {
    ["a", "b", "c"].iter().for_each(|key| client.put(key, key));
}

#[test]
fn rows_are_hits_in_the_order_of_their_keys_once_each_has_been_read() {
    for policy in ["ks.*=exclusive", "ks.*=max-staleness=60s"] {
        let house = House::new(policy);
        for &version in Version::ALL {
            let mut client = house.node.client(version);
            three(&mut client);
            client.run("DELETE FROM ks.t WHERE k = 'none'");
            client.value("a");
            let misses = || house.node.count(&["afterglow_misses_total"]);
            let before = misses();
            let (reads, found) = house.reads(|| keys(&mut client, "('c', 'none', 'a', 'c')"));
            assert_eq!((reads, &*found), (2, "ac"), "two of them are not cached");
            assert_eq!(misses() - before, 1, "one miss");
            for (rest, expected) in [
                ("('c', 'none', 'a', 'c')", "ac"),
                ("('none')", ""),
                ("('c', 'a') LIMIT 1", "a"),
                ("('c', 'none', 'a') PER PARTITION LIMIT 1", "ac"),
            ] {
                let hits = house.node.hits();
                let (reads, found) = house.reads(|| keys(&mut client, rest));
                assert_eq!((reads, &*found), (0, expected), "{rest}, {version:?}");
                assert_eq!(house.node.hits() - hits, 1, "one hit");
            }
            // What a read of several has filled is there for one, and what was written is seen.
            assert_eq!(house.reads(|| client.value("c")).0, 0);
            client.put("c", "new");
            let expected = [("a", "a"), ("c", "new")].map(|(k, v)| (k.into(), v.into()));
            let (reads, found) = house.reads(|| rows(&mut client, "('a', 'c')"));
            assert_eq!((reads, found), (1, expected.to_vec()));
        }
    }
}

#[test]
fn rows_from_the_cache_are_byte_for_byte_what_the_database_answers() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        three(&mut client);
        for c in 1..4 {
            client.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('b', {c}, 'x')"));
            client.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('a', {c}, 'y')"));
        }
        for text in [
            "SELECT * FROM ks.t WHERE k IN ('b', 'a', 'none')",
            "SELECT v FROM ks.t WHERE k IN ('none', 'nothing')",
            "SELECT v, k, v FROM ks.t WHERE k IN ('c', 'a') LIMIT 1",
            "SELECT * FROM ks.wide WHERE k IN ('b', 'a') AND c = 2",
            "SELECT * FROM ks.wide WHERE k = 'a' AND c IN (3, 1, 9)",
            "SELECT v, c FROM ks.wide WHERE k = 'a' AND c IN (3, 1) ORDER BY c DESC",
            "SELECT c FROM ks.wide WHERE k = 'a' AND c IN (3, 2, 1) LIMIT 2",
        ] {
            for skip_metadata in [false, true] {
                let params =
                    QueryParams { skip_metadata, ..QueryParams::new(Consistency::LocalQuorum) };
                let mut ask = |params| client.query_with(Flags::NONE, text, params, &[]).body;
                // ALL is never served from the cache.
                let database = ask(QueryParams { consistency: Consistency::All, ..params });
                let _fill = ask(params);
                let (reads, cached) = house.reads(|| ask(params));
                assert_eq!((reads, &cached), (0, &database), "{text}, {version:?}");
            }
        }
    }
}

#[test]
fn rows_without_values_are_read_together_where_none_is_kept() {
    for (policy, expected) in [("ks.*=exclusive", [1, 1]), ("ks.*=max-staleness=60s", [2, 0])] {
        let house = House::new(policy);
        let mut client = house.node.client(Version::V5);
        for key in ["a", "b"] {
            client.run(&format!("INSERT INTO ks.marks (k, c) VALUES ('{key}', 1)"));
        }
        let text = "SELECT k FROM ks.marks WHERE k IN ('b', 'a') AND c = 1";
        for reads in expected {
            let (found, rows) = house.reads(|| client.run(text));
            assert_eq!((found, rows.len()), (reads, 2), "{policy}");
        }
    }
}

fn list(elements: &[&str]) -> Vec<u8> {
    let mut bytes = (elements.len() as i32).to_be_bytes().to_vec();
    for element in elements {
        bytes.extend((element.len() as i32).to_be_bytes());
        bytes.extend(element.as_bytes());
    }
    bytes
}

#[test]
fn keys_may_be_bound_one_by_one_or_as_a_list() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    three(&mut client);
    let listed = client.prepare("SELECT v FROM ks.t WHERE k IN ?");
    let single = client.prepare("SELECT v FROM ks.t WHERE k IN (?, ?)");
    let whole = list(&["c", "a"]);
    let mut ask = |prepared, values: &[&[u8]]| {
        let mut bound = ValuesBuilder::positional();
        for value in values {
            bound.push(Value::Bytes(value));
        }
        let params =
            QueryParams { values: bound.view(), ..QueryParams::new(Consistency::LocalQuorum) };
        house.reads(|| client.raw().execute(prepared, &params).map(|rows| rows.len()))
    };
    assert!(matches!(ask(&listed, &[&whole]), (2, Ok(2))));
    assert!(matches!(ask(&listed, &[&whole]), (0, Ok(2))));
    assert!(matches!(ask(&single, &[b"a", b"c"]), (0, Ok(2))));
    assert!(matches!(ask(&listed, &[&list(&[])]), (1, Ok(0))), "the database answers it");
    let (reads, refused) = ask(&listed, &[&whole[..whole.len() - 1]]);
    assert!(reads == 1 && refused.is_err(), "the database refuses it");
}

#[test]
fn an_answer_of_several_pages_comes_from_the_database() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    three(&mut client);
    keys(&mut client, "('a', 'b', 'c')");
    for (rest, page, cached) in [
        ("('a', 'b', 'c')", 4, true),
        ("('a', 'b', 'c')", 3, false),
        ("('a', 'b', 'c') LIMIT 3", 3, true),
        ("('a', 'b', 'c') LIMIT 2", 2, true),
        ("('a', 'b', 'c') LIMIT 3", 2, false),
    ] {
        let text = format!("SELECT k, v FROM ks.t WHERE k IN {rest}");
        let params =
            QueryParams { page_size: Some(page), ..QueryParams::new(Consistency::LocalQuorum) };
        let (reads, _) = house.reads(|| client.query_with(Flags::NONE, &text, params, &[]));
        assert_eq!(reads, u64::from(!cached), "{rest} {page}");
    }
}

#[test]
fn a_read_that_misses_many_rows_is_sent_as_it_is() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    three(&mut client);
    let all: Vec<String> = (0..17).map(|n| format!("'{n}'")).collect();
    let names = format!("({}, 'a')", all[..16].join(", "));
    for _ in 0..2 {
        let (reads, found) = house.reads(|| keys(&mut client, &names));
        assert_eq!((reads, &*found), (1, "a"), "seventeen are missing");
    }
    assert_eq!(house.node.count(&["fills_total"]), 0);
    client.value("a");
    assert_eq!(house.reads(|| keys(&mut client, &names)).0, 16);
    assert_eq!(house.reads(|| keys(&mut client, &names)).0, 0);
}

#[test]
fn while_a_write_to_one_of_the_rows_is_in_flight_the_database_is_asked() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    three(&mut writer);
    keys(&mut reader, "('a', 'b')");
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        let write = scope.spawn(|| writer.put("a", "new"));
        held.wait_for(1);
        for _ in 0..2 {
            assert_eq!(house.reads(|| keys(&mut reader, "('a', 'b')")), (1, "ab".into()));
        }
        assert_eq!(house.reads(|| keys(&mut reader, "('b', 'b')")), (0, "b".into()));
        drop(held);
        write.join().unwrap();
    });
    assert_eq!(rows(&mut reader, "('a', 'b')")[0].1, "new");
}

#[test]
fn a_row_of_unknown_outcome_keeps_the_others_cached() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    three(&mut client);
    keys(&mut client, "('a', 'b')");
    house.database.set_faults(Faults { write_timeouts: 1.0, ..Faults::default() });
    assert!(client.try_run("DELETE FROM ks.t WHERE k = 'a' IF EXISTS").is_err());
    house.database.set_faults(Faults::default());
    let (reads, _) = house.reads(|| keys(&mut client, "('a', 'b')"));
    assert!(reads >= 1, "the database answers for the row in doubt");
    assert_eq!(house.reads(|| keys(&mut client, "('b')")).0, 0);
}

/// Rows of tables `ks.t` and `ks.wide` that many write and read, each written by one client only.
const RACED: usize = 6;

#[derive(Default)]
struct Raced {
    begun: [AtomicI64; RACED],
    acknowledged: [AtomicI64; RACED],
    clock: AtomicI64,
}

impl Raced {
    fn write(&self, client: &mut Client, row: usize, kind: usize) {
        let now = 1_000 + self.clock.fetch_add(1, Ordering::SeqCst);
        let number = self.begun[row].fetch_add(1, Ordering::SeqCst) + 1;
        let set = format!("SET v = '{number}' WHERE k =");
        let text = match kind % 3 {
            0 => format!("UPDATE ks.t {set} '{row}'"),
            1 => format!("BEGIN BATCH UPDATE ks.t {set} '{row}'; APPLY BATCH"),
            _ => format!("INSERT INTO ks.t (k, v) VALUES ('{row}', '{number}')"),
        };
        run_at(client, &text, now);
        let wide = format!("UPDATE ks.wide {set} 'a' AND c = {row}");
        run_at(client, &wide, now);
        self.acknowledged[row].store(number, Ordering::SeqCst);
    }

    /// No row is older than a write that was acknowledged before, in either table.
    fn read(&self, client: &mut Client, wide: bool, few: bool) {
        let before = self.acknowledged.each_ref().map(|number| number.load(Ordering::SeqCst));
        let wanted: Vec<usize> = (0..RACED).filter(|row| !few || row % 2 == 0).collect();
        let names = |quote: &str| {
            let names: Vec<String> =
                wanted.iter().rev().map(|row| format!("{quote}{row}{quote}")).collect();
            names.join(", ")
        };
        let text = match wide {
            true => format!("SELECT v FROM ks.wide WHERE k = 'a' AND c IN ({})", names("")),
            false => format!("SELECT v FROM ks.t WHERE k IN ({})", names("'")),
        };
        let found = client.run(&text);
        let after = self.begun.each_ref().map(|number| number.load(Ordering::SeqCst));
        assert_eq!(found.len(), wanted.len(), "{text}");
        for (row, cells) in wanted.into_iter().zip(found) {
            let number = String::from_utf8(cells[0].clone().unwrap()).unwrap();
            let possible = before[row]..=after[row];
            assert!(possible.contains(&number.parse().unwrap()), "{text}: {row} is {number}");
        }
    }
}

#[test]
fn whatever_writes_and_reads_race_no_row_of_several_is_older_than_an_acknowledged_write() {
    let house = House::new("ks.*=exclusive");
    let raced = Raced::default();
    let mut first = house.node.client(Version::V4);
    (0..RACED).for_each(|row| raced.write(&mut first, row, 2));
    for round in 0..20_usize {
        thread::scope(|scope| {
            for (number, &version) in Version::ALL.iter().enumerate() {
                let (mut client, raced) = (house.node.client(version), &raced);
                scope.spawn(move || {
                    for step in 0..12 {
                        let own = number + 3 * (step % 2);
                        if own < RACED && (step + round) % 3 == 0 {
                            raced.write(&mut client, own, round + step);
                        }
                        raced.read(&mut client, step % 2 == 0, (step + round) % 4 < 2);
                    }
                });
            }
        });
        let hits = house.node.hits();
        wait_until("reads are hits", || {
            raced.read(&mut first, false, false);
            raced.read(&mut first, true, false);
            house.node.hits() > hits + 1
        });
    }
}
