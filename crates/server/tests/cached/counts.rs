//! `count(*)` of slices of one partition: answered from its unit, as the database answers it.

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams, ValuesBuilder};

use crate::node::{Client, House};
use crate::slices::{five, put};

const RANGES: [(&str, i64); 6] = [
    ("", 6),
    ("AND c > 3", 3),
    ("AND c >= 3", 4),
    ("AND c < 3", 2),
    ("AND c > 9", 0),
    ("AND c > 1 AND c <= 3", 2),
];

fn counted(client: &mut Client, rest: &str) -> i64 {
    let rows = client.run(&format!("SELECT count(*) FROM ks.wide WHERE k = 'a' {rest}"));
    assert_eq!((rows.len(), rows[0].len()), (1, 1));
    i64::from_be_bytes(rows[0][0].clone().unwrap().try_into().unwrap())
}

#[test]
fn a_count_from_the_cache_is_byte_for_byte_what_the_database_answers() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        five(&mut client);
        client.run("UPDATE ks.wide SET v = 'alone' WHERE k = 'a' AND c = 6");
        for (rest, expected) in RANGES {
            let text = format!("SELECT count(*) FROM ks.wide WHERE k = 'a' {rest}");
            for skip_metadata in [false, true] {
                // More rows than a page has make no other page.
                for page_size in [None, Some(2), Some(5_000)] {
                    let params = QueryParams {
                        skip_metadata,
                        page_size,
                        ..QueryParams::new(Consistency::LocalQuorum)
                    };
                    let mut ask = |params| client.query_with(Flags::NONE, &text, params, &[]).body;
                    // ALL is never served from the cache.
                    let database = ask(QueryParams { consistency: Consistency::All, ..params });
                    let _fill = ask(params);
                    let hits = house.node.hits();
                    let (reads, cached) = house.reads(|| ask(params));
                    assert_eq!((reads, &cached), (0, &database), "{text}, {version:?}");
                    assert_eq!(house.node.hits() - hits, 1);
                }
            }
            assert_eq!(counted(&mut client, rest), expected);
        }
    }
}

#[test]
fn a_count_that_is_prepared_binds_its_range() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        five(&mut client);
        let prepared = client.prepare("SELECT count(*) FROM ks.wide WHERE k = ? AND c >= ?");
        let mut ask = |low: i32, consistency| {
            let mut bound = ValuesBuilder::positional();
            bound.push(Value::Bytes(b"a"));
            bound.push(Value::Bytes(&low.to_be_bytes()));
            let params = QueryParams { values: bound.view(), ..QueryParams::new(consistency) };
            client.raw().execute(&prepared, &params).unwrap()
        };
        ask(1, Consistency::LocalQuorum);
        for low in [1, 3, 9] {
            let database = ask(low, Consistency::All);
            let (reads, cached) = house.reads(|| ask(low, Consistency::LocalQuorum));
            assert_eq!((reads, cached), (0, database));
        }
    }
}

#[test]
fn writes_are_counted_by_the_next_read_and_what_is_no_slice_passes_through() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    five(&mut client);
    assert_eq!(counted(&mut client, ""), 5);
    for (text, expected) in [
        ("DELETE FROM ks.wide WHERE k = 'a' AND c = 2", 4),
        ("INSERT INTO ks.wide (k, c, v) VALUES ('a', 9, 'new')", 5),
        ("UPDATE ks.wide SET v = 'other' WHERE k = 'a' AND c = 9", 5),
        ("DELETE FROM ks.wide WHERE k = 'a'", 0),
    ] {
        client.run(text);
        assert_eq!(counted(&mut client, ""), expected, "{text}");
        assert_eq!(counted(&mut client, ""), expected, "{text}");
    }
    put(&mut client, 1, "x");
    for rest in
        ["LIMIT 1", "PER PARTITION LIMIT 1", "ORDER BY c DESC", "AND c IN (1, 2)", "AND c = 1"]
    {
        counted(&mut client, rest);
        let (reads, count) = house.reads(|| counted(&mut client, rest));
        assert_eq!((reads, count), (1, 1), "{rest}");
    }
    let (_, answer) = house.reads(|| {
        let params = QueryParams::new(Consistency::LocalQuorum);
        client.query_with(Flags::NONE, "SELECT count(*) FROM ks.wide WHERE k = null", params, &[])
    });
    assert_eq!(answer.header.opcode, Opcode::Error);
}
