//! Reads with limits, and writes whose keys are bound lists, JSON documents or made by the
//! database: what they drop, that no read is stale after them, and that other rows stay hits.

use std::thread;
use std::time::Duration;

use afterglow::frontend::cql::cached::Times;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, QueryParams, StatementRef, Values, ValuesBuilder,
    encode_batch,
};
use afterglow_loadgen::cql::CqlError;
use afterglow_testkit::fake_backend::StatementKind;

use crate::node::{Client, House, one_text, wait_until};

/// Rows that are cached before each write.
const ROWS: [(&str, i32); 4] = [("a", 1), ("a", 2), ("b", 1), ("c", 1)];
const ALL: &str = "a1 a2 b1 c1";

fn read(k: &str, c: i32) -> String {
    format!("SELECT v FROM ks.wide WHERE k = '{k}' AND c = {c}")
}

/// The rows of [`ROWS`] that are read from the database after `write`; each as it is there.
fn dropped(house: &House, client: &mut Client, write: impl FnOnce(&mut Client)) -> String {
    for (k, c) in ROWS {
        client.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('{k}', {c}, 'old')"));
        client.wide(k, c);
    }
    let (reads, ()) = house.reads(|| ROWS.iter().for_each(|(k, c)| drop(client.wide(k, *c))));
    assert_eq!(reads, 0, "all rows are cached to begin with");
    write(client);
    let mut names = Vec::new();
    for (k, c) in ROWS {
        let (reads, value) = house.reads(|| client.wide(k, c));
        // ALL is never answered from the cache.
        let now = client.raw().query(&read(k, c), Consistency::All).unwrap();
        assert_eq!(value, one_text(now), "a read of {k}{c} is stale");
        names.extend((reads > 0).then(|| format!("{k}{c}")));
    }
    names.join(" ")
}

/// As [`dropped`], for a write that the database may refuse, and that says whether it has: then
/// what it would drop otherwise. That a table is touched as a whole is counted also then.
fn touched(
    house: &House,
    client: &mut Client,
    write: impl FnOnce(&mut Client) -> Result<(), CqlError>,
) -> String {
    let tables = || house.node.count(&["afterglow_invalidations_total", "scope=\"table\""]);
    let (before, mut refused) = (tables(), false);
    let dropped = dropped(house, client, |client| refused = write(client).is_err());
    match tables() - before {
        1.. if refused => ALL.to_owned(),
        _ => dropped,
    }
}

/// Values by position.
fn bound(values: &[Value<'_>]) -> ValuesBuilder {
    let mut builder = ValuesBuilder::positional();
    values.iter().for_each(|value| _ = builder.push(*value));
    builder
}

fn execute(client: &mut Client, text: &str, values: &[Value<'_>]) -> Result<(), CqlError> {
    let (prepared, values) = (client.prepare(text), bound(values));
    let params = QueryParams { values: values.view(), ..QueryParams::new(Consistency::Quorum) };
    client.raw().execute(&prepared, &params).map(drop)
}

/// A list as drivers encode it.
fn list(elements: &[&[u8]]) -> Vec<u8> {
    let mut bytes = (elements.len() as i32).to_be_bytes().to_vec();
    for element in elements {
        bytes.extend((element.len() as i32).to_be_bytes());
        bytes.extend(*element);
    }
    bytes
}

const ONE: &[u8] = &[0, 0, 0, 1];
const TWO: &[u8] = &[0, 0, 0, 2];

#[test]
fn a_write_drops_the_rows_that_its_bound_lists_name() {
    let house = House::new("ks.*=exclusive");
    let (partitions, rows) =
        ("DELETE FROM ks.wide WHERE k IN ?", "DELETE FROM ks.wide WHERE k = ? AND c IN ?");
    let update = "UPDATE ks.wide SET v = 'new' WHERE k IN ? AND c IN ?";
    let (ab, ones) = (list(&[b"a", b"b"]), list(&[ONE]));
    let many: Vec<[u8; 4]> = (1..514_i32).map(i32::to_be_bytes).collect();
    let many = list(&many.iter().map(|c| &c[..]).collect::<Vec<_>>());
    let (a, b, new) = (b"a".to_vec(), b"b".to_vec(), b"new".to_vec());
    let mixed = "UPDATE ks.wide SET v = ? WHERE c IN ? AND k IN (?, 'c')";
    let timed = "DELETE v FROM ks.wide USING TIMESTAMP ? WHERE k IN ? AND c = 1";
    let time = i64::MAX.to_be_bytes().to_vec();
    let cases: Vec<(&str, Vec<Vec<u8>>, &str)> = vec![
        (partitions, vec![ab.clone()], "a1 a2 b1"),
        (partitions, vec![list(&[b"b", b"b", b"none"])], "b1"),
        (partitions, vec![list(&[])], ""),
        (rows, vec![a.clone(), list(&[TWO, TWO])], "a2"),
        (rows, vec![a.clone(), list(&[])], ""),
        (rows, vec![a, many], "a1 a2"),
        (update, vec![ab.clone(), ones.clone()], "a1 b1"),
        (update, vec![ab, list(&[ONE, TWO])], "a1 a2 b1"),
        (mixed, vec![new, ones, b], "b1 c1"),
        (timed, vec![time, list(&[b"none"])], ""),
    ];
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        for (text, values, expected) in &cases {
            let bound: Vec<_> = values.iter().map(|value| Value::Bytes(value)).collect();
            let write = |client: &mut Client| execute(client, text, &bound).unwrap();
            assert_eq!(dropped(&house, &mut client, write), *expected, "{text} {values:?}");
        }
        let text = "DELETE FROM ks.wide WHERE k IN ('a', 'c')";
        let write = |client: &mut Client| drop(client.run(text));
        assert_eq!(dropped(&house, &mut client, write), "a1 a2 c1");
    }
}

#[test]
fn a_list_that_cannot_be_read_drops_all_that_it_may_name() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let whole = list(&[b"a"]);
    let short = &whole[..whole.len() - 1];
    let (longer, count) = ([&whole[..], &[0]].concat(), [0x7f; 4]);
    let null_element = [[0, 0, 0, 1], [0xff; 4]].concat();
    for value in [
        Value::Null,
        Value::Unset,
        Value::Bytes(b""),
        Value::Bytes(short),
        Value::Bytes(&longer),
        Value::Bytes(&count),
        Value::Bytes(&null_element),
        Value::Bytes(&[0xff; 4]),
    ] {
        // What the database makes of it is its own affair.
        let text = "DELETE FROM ks.wide WHERE k IN ?";
        let write = |client: &mut Client| execute(client, text, &[value]);
        assert_eq!(touched(&house, &mut client, write), ALL, "{value:?}");
        let text = "DELETE FROM ks.wide WHERE k = ? AND c IN ?";
        let write = |client: &mut Client| _ = execute(client, text, &[Value::Bytes(b"a"), value]);
        assert_eq!(dropped(&house, &mut client, write), "a1 a2", "{value:?}");
    }
}

#[test]
fn a_batch_drops_what_the_lists_of_its_statements_name() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let delete = client.prepare("DELETE FROM ks.wide WHERE k IN ?");
    let json = client.prepare("INSERT INTO ks.wide JSON ?");
    for kind in [BatchKind::Logged, BatchKind::Unlogged] {
        let write = |client: &mut Client| {
            let (names, document) = (list(&[b"b"]), br#"{"k": "a", "c": 2, "v": "new"}"#);
            let (names, document) =
                (bound(&[Value::Bytes(&names)]), bound(&[Value::Bytes(document)]));
            let prepared =
                |id, values| BatchStatement { statement: StatementRef::Prepared(id), values };
            let statements = [
                prepared(&delete.id, names.view()),
                prepared(&json.id, document.view()),
                BatchStatement {
                    statement: StatementRef::Text(
                        "UPDATE ks.wide SET v = 'x' WHERE k IN ('c') AND c = 5",
                    ),
                    values: Values::NONE,
                },
            ];
            let params = QueryParams::new(Consistency::LocalQuorum);
            let encode =
                |out: &mut Vec<u8>| encode_batch(Version::V5, kind, &statements, &params, out);
            let answer = client.raw().call(Flags::NONE, Opcode::Batch, encode).unwrap();
            assert_eq!(answer.header.opcode, Opcode::Result);
        };
        assert_eq!(dropped(&house, &mut client, write), "a1 a2 b1", "{kind:?}");
    }
    let lists = list(&[b"c", b"none"]);
    let write = |client: &mut Client| {
        let text = "BEGIN BATCH UPDATE ks.wide SET v = 'x' WHERE k IN ? AND c = 1; DELETE FROM ks.wide WHERE k = 'b'; APPLY BATCH";
        let values = bound(&[Value::Bytes(&lists)]);
        let params = QueryParams { values: values.view(), ..QueryParams::new(Consistency::One) };
        let answer = client.query_with(Flags::NONE, text, params, &[]);
        assert_eq!(answer.header.opcode, Opcode::Result);
    };
    assert_eq!(dropped(&house, &mut client, write), "b1 c1");
}

#[test]
fn insert_json_drops_the_partition_that_its_document_names() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    for (document, expected) in [
        (r#"{"k": "a", "c": 1, "v": "new"}"#, "a1 a2"),
        (r#"{"C": 2, "\"k\"": "a"}"#, "a1 a2"),
        (r#"{"k": "none", "c": 9, "v": "new"}"#, ""),
        // What follows may be read by other servers, or with another key.
        (r#"{"k": "a", "k": "b", "c": 1}"#, ALL),
        (r#"{"k": "b"}"#, "b1"),
        (r#"{"k": null, "c": 1}"#, ALL),
        (r#"{"c": 1}"#, ALL),
        ("{}", ALL),
        ("not JSON", ALL),
    ] {
        let literal = format!("INSERT INTO ks.wide JSON '{document}'");
        let write = |client: &mut Client| client.try_run(&literal).map(drop);
        assert_eq!(touched(&house, &mut client, write), expected, "{literal}");
        let write = |client: &mut Client| {
            let value = Value::Bytes(document.as_bytes());
            execute(client, "INSERT INTO ks.wide JSON ?", &[value])
        };
        assert_eq!(touched(&house, &mut client, write), expected, "bound {document}");
    }
    let write = |client: &mut Client| execute(client, "INSERT INTO ks.wide JSON ?", &[Value::Null]);
    assert_eq!(touched(&house, &mut client, write), ALL);
}

/// The rows of `ks.ids` and of the partition `a` of `ks.feed`, as reads of each.
fn made(house: &House) -> Vec<String> {
    let mut past = house.past();
    let mut of = |table: &str, key: &str| {
        let rows = past.query(&format!("SELECT {key} FROM ks.{table}"), Consistency::All).unwrap();
        let read = |row: &Vec<Option<Vec<u8>>>| {
            let id = u128::from_be_bytes(row[0].clone().unwrap().try_into().unwrap());
            let id = format!("{id:032x}");
            let id = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-");
            let first = if table == "feed" { "k = 'a' AND " } else { "" };
            format!("SELECT v FROM ks.{table} WHERE {first}{key} = {id}")
        };
        rows.iter().map(read).collect::<Vec<_>>()
    };
    [of("ids", "k"), of("feed", "c")].concat()
}

#[test]
fn a_key_that_the_database_makes_drops_nothing() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let inserts = [
        "INSERT INTO ks.ids (k, v) VALUES (uuid(), 'x')",
        "INSERT INTO ks.feed (k, c, v) VALUES ('a', now(), 'x')",
    ];
    for round in 0..3 {
        for insert in inserts {
            client.run(insert);
        }
        let reads = made(&house);
        assert_eq!(reads.len(), 2 * (round + 1));
        let (asked, ()) = house.reads(|| {
            for read in &reads {
                assert_eq!(one_text(client.run(read)).as_deref(), Some("x"), "{read}");
            }
        });
        assert_eq!(asked, 2, "rows that were cached before stay hits");
    }
    assert_eq!(house.node.count(&["afterglow_writes_total", "\"nothing\""]), 6);
}

/// Another client may find a new row before it is acknowledged.
#[test]
fn while_a_key_is_made_nothing_is_filled_that_may_miss_it() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    for (insert, other) in [
        ("INSERT INTO ks.ids (k, v) VALUES (uuid(), 'x')", "b"),
        ("INSERT INTO ks.feed (k, c, v) VALUES ('a', now(), 'x')", "c"),
    ] {
        let nobody = "00000000-0000-1000-8000-000000000000";
        let other = format!("SELECT v FROM ks.feed WHERE k = '{other}' AND c = {nobody}");
        let known = made(&house);
        let held = house.database.hold(StatementKind::Write);
        let mut new = String::new();
        thread::scope(|scope| {
            let write = scope.spawn(|| writer.run(insert));
            held.wait_for(1);
            new = made(&house).into_iter().find(|read| !known.contains(read)).expect("a new row");
            let (reads, ()) = house.reads(|| (0..3).for_each(|_| drop(reader.run(&new))));
            assert_eq!(reads, 3, "not cached yet: {insert}");
            let (reads, ()) = house.reads(|| (0..3).for_each(|_| drop(reader.run(&other))));
            assert_eq!(reads, 1, "other partitions are filled: {insert}");
            drop(held);
            write.join().unwrap();
        });
        let (reads, ()) = house.reads(|| (0..3).for_each(|_| drop(reader.run(&new))));
        assert_eq!(reads, 1, "cached afterwards: {insert}");
    }
}

#[test]
fn a_new_row_that_a_fill_may_miss_is_absent_for_a_short_time_at_most() {
    const TIMES: Times = Times {
        lease: Duration::from_secs(2),
        margin: Duration::from_millis(500),
        weak_max_age: Duration::from_secs(2),
        fill: Duration::from_secs(6),
    };
    let house = House::with("ks.*=exclusive", |setup| setup.times = TIMES);
    let mut client = house.node.client(Version::V5);
    for (text, insert) in [
        (
            "ALTER KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
            "",
        ),
        ("", "INSERT INTO ks.ids (k, v) VALUES (uuid(), 'x')"),
        ("", "INSERT INTO ks.feed (k, c, v) VALUES ('a', now(), 'x')"),
    ] {
        if insert.is_empty() {
            client.run(text);
            house.database.replicate();
            continue;
        }
        let known = made(&house);
        house.database.set_copies([true, false, false]);
        client.raw().query(insert, Consistency::One).unwrap();
        let read = made(&house).into_iter().find(|read| !known.contains(read)).expect("a new row");
        house.database.set_copies([false, true, true]);
        client.run(&read);
        house.database.set_copies([true; 3]);
        house.database.deliver_hints();
        wait_until("the row is seen", || one_text(client.run(&read)).as_deref() == Some("x"));
    }
}

#[test]
fn a_bound_limit_that_is_positive_is_a_hit_and_others_are_the_databases() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        client.put("a", "1");
        client.value("a");
        let limit = "SELECT v FROM ks.t WHERE k = ? LIMIT ?";
        let per_partition = "SELECT v FROM ks.t WHERE k = ? PER PARTITION LIMIT ?";
        for text in [limit, per_partition] {
            let prepared = client.prepare(text);
            let mut ask = |value, text: Option<&str>| {
                let values = bound(&[Value::Bytes(b"a"), value]);
                let params =
                    QueryParams { values: values.view(), ..QueryParams::new(Consistency::One) };
                house.reads(|| match text {
                    Some(text) => {
                        client.query_with(Flags::NONE, text, params, &[]).header.opcode
                            == Opcode::Result
                    }
                    None => match client.raw().execute(&prepared, &params) {
                        Ok(rows) => one_text(rows).as_deref() == Some("1"),
                        Err(_) => false,
                    },
                })
            };
            for value in [ONE, TWO, &[0x7f, 0xff, 0xff, 0xff]] {
                for text in [None, Some(text)] {
                    assert_eq!(ask(Value::Bytes(value), text), (0, true), "{text:?} {value:?}");
                }
            }
            for value in [
                Value::Bytes(&[0; 4]),
                Value::Bytes(&[0xff; 4]),
                Value::Bytes(&[]),
                Value::Bytes(&[0; 8]),
                Value::Null,
            ] {
                for text in [None, Some(text)] {
                    assert_eq!(ask(value, text), (1, false), "{text:?} {value:?}");
                }
            }
            // Taken for no limit; in v3 it is a null.
            assert_eq!(ask(Value::Unset, None), (1, version > Version::V3));
        }
        for (text, cached) in [
            ("SELECT v FROM ks.t WHERE k = 'a' LIMIT 1", true),
            ("SELECT v FROM ks.t WHERE k = 'a' PER PARTITION LIMIT 3", true),
            ("SELECT v FROM ks.t WHERE k = 'a' PER PARTITION LIMIT 1 LIMIT 7", true),
            ("SELECT v FROM ks.t WHERE k = 'a' LIMIT 0", false),
            ("SELECT v FROM ks.t WHERE k = 'a' PER PARTITION LIMIT -1", false),
        ] {
            let (reads, answer) = house.reads(|| client.try_run(text).is_ok());
            assert_eq!((reads == 0, answer), (cached, cached), "{text}");
        }
    }
}
