//! Writes whose keys are bound lists, JSON documents, or made by the server.

use super::super::{
    Binds, BoundKeys, KeyTemplate, MAX_BOUND_KEYS, MAX_KEY, NamedKeys, PartitionTemplate, RowKey,
};
use super::statements::check;
use super::{Fixture, Plan, Target, analyse, parse, planned};
use crate::frame::notation::Value;
use crate::message::ValuesBuilder;
use crate::statement::Marker;

#[test]
fn lists_bound_to_in_name_their_elements() {
    check(&[
        ("DELETE FROM one WHERE k IN ?", "rows 2:each of ?0/"),
        ("DELETE FROM t WHERE k IN ?", "partitions 1:each of ?0"),
        ("DELETE FROM t WHERE k IN ? AND c IN ?", "rows 1:each of ?0/each of ?1"),
        ("DELETE FROM t WHERE c IN :cs AND k IN :ks", "rows 1:each of ?1/each of ?0"),
        ("DELETE FROM t WHERE k IN (1, ?) AND c IN ?", "rows 1:00000001|?0/each of ?1"),
        ("DELETE FROM t USING TIMESTAMP ? WHERE k IN ?", "partitions 1:each of ?1"),
        ("DELETE v FROM t WHERE k = ? AND c IN ? IF EXISTS", "rows 1:?0/each of ?1 + if"),
        ("UPDATE stat SET s = 'x' WHERE k IN ?", "partitions 4:each of ?0"),
        ("UPDATE stat SET s = 'x' WHERE k = 1 AND c IN ?", "partition 4:00000001"),
        (
            "DELETE FROM multi WHERE a IN ? AND b = 'x' AND c = ? AND d = ?",
            "rows 3:each of ?0,78/?1,?2",
        ),
        ("DELETE FROM multi WHERE a = 1 AND b IN ? AND c IN ?", "partitions 3:00000001,each of ?0"),
        ("DELETE FROM multi WHERE a = 1 AND b = 'x' AND c IN ?", "partition 3:00000001,78"),
        ("DELETE FROM multi WHERE a IN ? AND c = 1", "table ks.multi"),
        ("DELETE FROM multi WHERE a = 1 AND b = 'x' AND (c, d) IN ?", "partition 3:00000001,78"),
        ("DELETE FROM t WHERE k IN ? AND k = 1", "table ks.t"),
        ("DELETE FROM t WHERE k NOT IN ?", "table ks.t"),
        ("DELETE FROM sets WHERE k IN ?", "table ks.sets"),
        (
            "BEGIN BATCH DELETE FROM one WHERE k IN ?; DELETE FROM t WHERE k = ?; APPLY BATCH",
            "rows 2:each of ?0/ + partition 1:?1",
        ),
    ]);
}

#[test]
fn keys_that_the_server_makes_are_new() {
    check(&[
        ("INSERT INTO ids (a, b, c, d) VALUES (?, uuid(), ?, 1)", "new partition of 18"),
        ("INSERT INTO ids (a, b, c, d) VALUES (?, now(), now(), 1)", "new partition of 18"),
        ("INSERT INTO ids (a, b, c, d) VALUES (f(), UUID(), ?, 1)", "new partition of 18"),
        (
            "UPDATE ids SET v = 1 WHERE a = 1 AND b = uuid() AND c = ? AND d = 1",
            "new partition of 18",
        ),
        (
            "INSERT INTO ids (a, b, c, d) VALUES (?, system.current_timeuuid(), ?, 1)",
            "new partition of 18",
        ),
        ("INSERT INTO ids (a, b, c, d) VALUES (?, currentTimeUUID(), ?, 1)", "table ks.ids"),
        ("INSERT INTO ids (a, b, c, d) VALUES (?, ks.uuid(), ?, 1)", "table ks.ids"),
        // The server's own makes no timeuuid: it takes one of the keyspace.
        ("INSERT INTO feed (k, c, v) VALUES (1, uuid(), 2)", "partition 19:00000001"),
        ("INSERT INTO feed (k, c, v) VALUES (1, system.uuid(), 2)", "partition 19:00000001"),
        ("INSERT INTO ids (a, b, c, d) VALUES (?, uuid(1), ?, 1)", "table ks.ids"),
        ("INSERT INTO ids (a, b, c, d) VALUES (?, (uuid) uuid(), ?, 1)", "table ks.ids"),
        ("INSERT INTO ids (a, b, b, c, d) VALUES (?, uuid(), uuid(), ?, 1)", "table ks.ids"),
        ("DELETE FROM ids WHERE a = 1 AND b IN (uuid(), ?)", "table ks.ids"),
        ("DELETE FROM ids WHERE a = 1 AND b > now()", "table ks.ids"),
        ("INSERT INTO one (k, v) VALUES (uuid(), 0x)", "table ks.one"),
        (
            "INSERT INTO ids (a, b, c, d) VALUES (?, ?, now(), 1) IF NOT EXISTS",
            "new row of 18:?0,?1 + if",
        ),
        ("INSERT INTO feed (k, c, v) VALUES (1, now(), 2)", "new row of 19:00000001"),
        ("INSERT INTO feed (k, c, v) VALUES (1, currentTimestamp(), 2)", "partition 19:00000001"),
        ("INSERT INTO feed (k, c, v) VALUES (1, maxTimeuuid('x'), 2)", "partition 19:00000001"),
        ("INSERT INTO feed (k, c, s) VALUES (1, now(), 'x')", "partition 19:00000001"),
        ("INSERT INTO feed (k, c, nope) VALUES (1, now(), 'x')", "partition 19:00000001"),
        (
            "UPDATE feed SET v = 1 WHERE k IN (1, ?) AND c = now()",
            "new row of 19:00000001 + new row of 19:?0",
        ),
        ("UPDATE feed SET v = 1 WHERE k IN ? AND c = now()", "partitions 19:each of ?0"),
        ("INSERT INTO feed (c, v) VALUES (now(), 2)", "table ks.feed"),
        ("INSERT INTO t (k, c, v) VALUES (1, 'x', now())", "row 1:00000001/78"),
        ("SELECT v FROM feed WHERE k = 1 AND c = now()", "pass expression"),
    ]);
    let mut doubted = parse("INSERT INTO ids (a, b, c, d) VALUES (?, uuid(), ?, 1)");
    doubted.expect_binds(1);
    assert_eq!(super::written(&analyse(&doubted, &Fixture, Some("ks"))), "table ks.ids");
}

#[test]
fn json_documents_name_their_rows_where_their_bytes_are_certain() {
    let json = |table: &str, document: &str| {
        super::written(&planned(&format!("INSERT INTO {table} JSON '{document}'")))
    };
    for (document, expected) in [
        (r#"{"k": -1, "c": "x"}"#, "partition 1:ffffffff"),
        (r#"{"c": "\u00e9\"", "k": "7", "v": {"k": 2}, "w": [1, "]"]}"#, "partition 1:00000007"),
        (r#"{"K": 1, "\"c\"": "it''s"}"#, "partition 1:00000001"),
        (r#"{"k": 1, "c": ""}"#, "partition 1:00000001"),
        (r#"{"k": 1}"#, "partition 1:00000001"),
        (r#"{"k": 1, "c": null}"#, "partition 1:00000001"),
        (r#"{"k": 1, "c": 5}"#, "partition 1:00000001"),
        (r#"{"k": 1, "\"C\"": "x"}"#, "partition 1:00000001"),
        (r#"{"k": 1, "k": 1, "c": "x"}"#, "table ks.t"),
        (r#"{"k": 1, "K": 2, "c": "x"}"#, "table ks.t"),
        (r#"{"k": 1, "\"k\"": 2, "c": "x"}"#, "table ks.t"),
        // A server folds one after the other, over what is not folded yet.
        (r#"{"\"K\"": 2, "K": 1}"#, "table ks.t"),
        (r#"{"\"\"k\"\"": 2, "\"k\"": 1}"#, "table ks.t"),
        (r#"{"K": 1, "\"K\"": 2}"#, "table ks.t"),
        // The Kelvin sign, which Java folds to k.
        ("{\"k\": 1, \"\u{212a}\": 2, \"c\": \"x\"}", "table ks.t"),
        (r#"{"\"K\"": 1, "c": "x"}"#, "table ks.t"),
        (r#"{"k": 1.0, "c": "x"}"#, "table ks.t"),
        (r#"{"k": 1e0, "c": "x"}"#, "table ks.t"),
        (r#"{"k": "+1", "c": "x"}"#, "table ks.t"),
        (r#"{"k": " 1", "c": "x"}"#, "table ks.t"),
        (r#"{"k": "", "c": "x"}"#, "table ks.t"),
        (r#"{"k": "-", "c": "x"}"#, "table ks.t"),
        (r#"{"k": 2147483648, "c": "x"}"#, "table ks.t"),
        (r#"{"k": null, "c": "x"}"#, "table ks.t"),
        (r#"{"k": true, "c": "x"}"#, "table ks.t"),
        (r#"{"c": "x"}"#, "table ks.t"),
        (r#"{"k": 1, "c": "x"} {"k": 2}"#, "table ks.t"),
        (r#"{"k": 1, "c": "\ud800"}"#, "table ks.t"),
        ("null", "table ks.t"),
        ("", "table ks.t"),
    ] {
        assert_eq!(json("t", document), expected, "{document}");
    }
    assert_eq!(json("stat", r#"{"k": 1, "c": 2}"#), "partition 4:00000001");
    assert_eq!(json("\"Quoted\"", r#"{"\"K\"": 1}"#), "row 10:00000001/");
    assert_eq!(json("\"Quoted\"", r#"{"K": 1}"#), "table ks.Quoted");
    assert_eq!(json("sets", r#"{"k": [1]}"#), "table ks.sets");
    let ids = r#"{"a": 1, "b": "123e4567-E89B-42d3-a456-426655440000", "c": "123e4567-e89b-12d3-a456-426655440000", "d": 1}"#;
    assert_eq!(json("ids", ids), "partition 18:00000001,123e4567e89b42d3a456426655440000");
    for odd in [
        "{123e4567-e89b-42d3-a456-426655440000}",
        "123e4567e89b42d3a456426655440000",
        "urn:uuid:123e4567-e89b-42d3-a456-426655440000",
        "123e4567-e89b-42d3-a456-42665544000g",
    ] {
        assert_eq!(json("ids", &format!(r#"{{"a": 1, "b": "{odd}"}}"#)), "table ks.ids");
    }
    assert_eq!(json("blobs", r#"{"k": "0xCAfe", "c": null}"#), "partition 11:cafe");
    for odd in ["cafe", "0Xcafe", "0xcaf", "0xzz"] {
        assert_eq!(json("blobs", &format!(r#"{{"k": "{odd}"}}"#)), "table ks.blobs", "{odd}");
    }
}

/// The keys of a statement with one target that its values name.
fn keys_of(text: &str) -> BoundKeys {
    match planned(text) {
        Plan::Write(write) => match &write.targets[..] {
            [Target::Bound(keys)] => keys.clone(),
            other => panic!("{text}: {other:?}"),
        },
        other => panic!("{text}: {other:?}"),
    }
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

/// The keys for these values, by position: engine keys of rows without the table's id, partition
/// keys, or that nothing is certain.
fn named(keys: &BoundKeys, values: &[Option<&[u8]>]) -> Option<Vec<Vec<u8>>> {
    let value = |marker: &Marker| values.get(usize::from(marker.index)).copied().flatten();
    let row = |template: &KeyTemplate| {
        let mut key = RowKey::new();
        template.bind(value, &mut key).unwrap();
        key.engine_key()[16..].to_vec()
    };
    let partition = |template: &PartitionTemplate| {
        let mut key = Vec::new();
        template.partition_key(value, &mut key).unwrap();
        key
    };
    match keys.resolve(&value) {
        NamedKeys::Rows(rows) => Some(rows.iter().map(row).collect()),
        NamedKeys::Partitions(partitions) => Some(partitions.iter().map(partition).collect()),
        NamedKeys::Table => None,
    }
}

const ONE: &[u8] = &[0, 0, 0, 1];
const TWO: &[u8] = &[0, 0, 0, 2];

#[test]
fn each_element_of_a_bound_list_is_a_key() {
    let keys = keys_of("DELETE FROM t WHERE k IN ?");
    let of = |bytes: &[u8]| named(&keys, &[Some(bytes)]);
    assert_eq!(of(&list(&[ONE, TWO, ONE])), Some(vec![ONE.into(), TWO.into(), ONE.into()]));
    assert_eq!(of(&list(&[])), Some(vec![]));
    let keys = keys_of("UPDATE t SET v = 1 WHERE c IN ? AND k IN ?");
    let of = |c: &[u8], k: &[u8]| named(&keys, &[Some(c), Some(k)]);
    let row = |k: &[u8], c: &[u8]| [&[0, 4], k, &[0, c.len() as u8], c].concat();
    assert_eq!(
        of(&list(&[b"x", b""]), &list(&[ONE, TWO])),
        Some(vec![row(ONE, b"x"), row(ONE, b""), row(TWO, b"x"), row(TWO, b"")])
    );
    assert_eq!(of(&list(&[]), &list(&[ONE])), Some(vec![]));
    // A clustering list that cannot be read widens to the partitions.
    assert_eq!(of(b"", &list(&[ONE, TWO])), Some(vec![ONE.into(), TWO.into()]));
    assert_eq!(of(&list(&[b"x"]), b""), None);
    let keys = keys_of("DELETE FROM multi WHERE a = ? AND b IN ?");
    assert_eq!(
        named(&keys, &[Some(ONE), Some(&list(&[b"x"]))]),
        Some(vec![[&[0, 4][..], ONE, &[0, 0, 1, b'x', 0]].concat()])
    );
}

#[test]
fn a_list_that_is_not_whole_names_nothing_for_certain() {
    let keys = keys_of("DELETE FROM t WHERE k IN ?");
    let whole = list(&[ONE, TWO]);
    for end in 0..whole.len() {
        assert_eq!(named(&keys, &[Some(&whole[..end])]), None, "cut at {end}");
    }
    let int = |number: i32| number.to_be_bytes();
    for (what, bytes) in [
        ("trailing bytes", [&whole[..], &[0]].concat()),
        ("a negative count", int(-1).to_vec()),
        ("the least count", int(i32::MIN).to_vec()),
        ("a count that is larger than the body", int(1 << 30).to_vec()),
        ("one element too few", [&int(3)[..], &whole[4..]].concat()),
        ("one element too many", [&int(1)[..], &whole[4..]].concat()),
        ("a null element", [int(1), int(-1)].concat()),
        ("an unset element", [int(1), int(-2)].concat()),
        ("an endless element", [int(1), int(i32::MAX)].concat()),
        ("an empty int", list(&[b""])),
        ("a short int", list(&[&ONE[1..]])),
        ("a long int", list(&[&[0; 8]])),
    ] {
        assert_eq!(named(&keys, &[Some(&bytes)]), None, "{what}");
    }
    assert_eq!(named(&keys, &[None]), None);
    assert_eq!(named(&keys, &[]), None);
}

#[test]
fn elements_that_a_server_would_write_in_another_way_are_not_certain() {
    use crate::plan::types::Form;
    let mapped = "::ffff:1.2.3.4".parse::<std::net::Ipv6Addr>().unwrap().octets();
    for (kind, value) in [
        ("boolean", &[1][..]),
        ("varint", &[0, 0x80]),
        ("decimal", &[0, 0, 0, 1, 5]),
        ("float", &1.5_f32.to_be_bytes()),
        ("inet", &[1, 2, 3, 4]),
        ("inet", &[1; 16]),
        ("text", "\u{e9}\0".as_bytes()),
        ("ascii", b"a"),
        ("blob", &[0xff]),
        ("uuid", &[7; 16]),
        ("timestamp", &[0; 8]),
        ("tinyint", &[0]),
    ] {
        assert!(Form::of(kind).is_kept(value), "{kind} {value:?}");
    }
    for (kind, value) in [
        ("boolean", &[2][..]),
        ("boolean", &[]),
        ("varint", &[0, 1]),
        ("varint", &[]),
        ("decimal", &[0, 0, 0, 1]),
        ("decimal", &[0, 0, 0, 1, 0, 5]),
        ("float", &f32::NAN.to_be_bytes()),
        ("double", &[]),
        ("inet", &mapped),
        ("inet", &[1; 5]),
        ("text", &[0xc0, 0x80]),
        ("ascii", &[0x80]),
        ("uuid", &[7; 15]),
        ("duration", &[0, 0, 0]),
        ("frozen<list<int>>", &[0; 4]),
    ] {
        assert!(!Form::of(kind).is_kept(value), "{kind} {value:?}");
    }
}

#[test]
fn more_keys_than_the_bound_widen() {
    let ints = |count: usize| -> Vec<u8> {
        let all: Vec<[u8; 4]> = (0..count as i32).map(i32::to_be_bytes).collect();
        list(&all.iter().map(|bytes| &bytes[..]).collect::<Vec<_>>())
    };
    let keys = keys_of("DELETE FROM t WHERE k IN ?");
    let count = |values: &[Option<&[u8]>]| named(&keys, values).map(|all| all.len());
    assert_eq!(count(&[Some(&ints(MAX_BOUND_KEYS))]), Some(MAX_BOUND_KEYS));
    assert_eq!(count(&[Some(&ints(MAX_BOUND_KEYS + 1))]), None);
    let keys = keys_of("UPDATE t SET v = 1 WHERE k IN ? AND c IN ?");
    let texts = |count: usize| list(&vec![&b"x"[..]; count]);
    let resolved = |ks: usize, cs: usize| {
        let (ks, cs) = (ints(ks), texts(cs));
        match keys.resolve(&|marker: &Marker| Some([&ks[..], &cs[..]][usize::from(marker.index)])) {
            NamedKeys::Rows(rows) => format!("{} rows", rows.len()),
            NamedKeys::Partitions(partitions) => format!("{} partitions", partitions.len()),
            NamedKeys::Table => "table".into(),
        }
    };
    assert_eq!(resolved(16, 32), "512 rows");
    assert_eq!(resolved(16, 33), "16 partitions");
    assert_eq!(resolved(1, 513), "1 partitions");
    assert_eq!(resolved(513, 1), "table");
    assert_eq!(resolved(0, 513), "0 partitions");
}

#[test]
fn long_values_are_not_copied_into_every_key() {
    let keys = keys_of("DELETE FROM one WHERE k IN ?");
    let long = vec![b'x'; MAX_KEY + 1];
    let of = |element: &[u8]| {
        let list = list(&[element]);
        !matches!(keys.resolve(&|_| Some(&list[..])), NamedKeys::Table)
    };
    assert!(of(&long[1..]) && !of(&long));
    let long = "x".repeat(MAX_KEY + 1);
    check(&[
        (&format!("DELETE FROM multi WHERE a IN ? AND b = '{long}'"), "table ks.multi"),
        (&format!("DELETE FROM t WHERE k IN ? AND c = '{long}'"), "partitions 1:each of ?0"),
    ]);
}

#[test]
fn a_bound_document_is_read_as_a_literal_one() {
    let keys = keys_of("INSERT INTO t JSON ?");
    let of = |text: &str| named(&keys, &[Some(text.as_bytes())]);
    assert_eq!(of(r#"{"k": 1, "c": "x"}"#), Some(vec![ONE.to_vec()]));
    assert_eq!(of(r#"{"k": 1}"#), Some(vec![ONE.to_vec()]));
    assert_eq!(of("{}"), None);
    assert_eq!(named(&keys, &[Some(b"{\"k\": 1, \"c\": \"\xff\"}")]), None);
    assert_eq!(named(&keys, &[None]), None);
}

#[test]
fn a_name_that_is_there_twice_is_certain_by_name_or_by_the_number_of_values() {
    let binds = |text: &str| match planned(text) {
        Plan::CachedRead(read) => read.binds,
        Plan::Write(write) => write.binds,
        other => panic!("{text}: {other:?}"),
    };
    let certain = |binds: Binds, count: usize| {
        let mut positional = ValuesBuilder::positional();
        let mut named = ValuesBuilder::named();
        for _ in 0..count {
            positional.push(Value::Null);
            named.push_named("a", Value::Null);
        }
        (binds.are_certain(&positional.view()), binds.are_certain(&named.view()))
    };
    let twice = binds("INSERT INTO t (k, c, v) VALUES (:a, :b, :a)");
    assert_eq!([1, 2, 3, 4].map(|count| certain(twice, count).0), [false, false, true, false]);
    assert!([1, 2, 3].iter().all(|count| certain(twice, *count).1));
    let once = binds("INSERT INTO t (k, c, v) VALUES (:a, ?, ?)");
    assert!([1, 2, 3].iter().all(|count| certain(once, *count).0));
    let read = binds("SELECT v FROM t WHERE k = :a AND c = :a LIMIT :l");
    let mut values = ValuesBuilder::named();
    values.push_named("a", Value::Null).push_named("l", Value::Null);
    assert!(read.fit(&values.view()));
    assert!(!read.fit(&ValuesBuilder::positional().push(Value::Null).push(Value::Null).view()));
}

#[test]
fn bound_limits_must_be_positive_numbers_of_four_bytes() {
    let Plan::CachedRead(read) =
        planned("SELECT v FROM one WHERE k = ? PER PARTITION LIMIT ? LIMIT ?")
    else {
        panic!("cached")
    };
    let allow = |per_partition: Option<&[u8]>, limit: Option<&[u8]>| {
        read.limits_allow(|marker| [None, per_partition, limit][usize::from(marker.index)])
    };
    let most = i32::MAX.to_be_bytes();
    assert!(allow(Some(ONE), Some(&most)) && allow(Some(TWO), Some(ONE)));
    for refused in [None, Some(&[0; 4][..]), Some(&[0xff; 4]), Some(&[]), Some(&[0; 8]), Some(&[1])]
    {
        assert!(!allow(refused, Some(ONE)) && !allow(Some(ONE), refused), "{refused:?}");
    }
}
