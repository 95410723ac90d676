//! Which SELECTs are of several rows, and in which order these come.

use std::sync::Arc;

use super::*;
use crate::plan::{Plan, SchemaView, analyse, defined_tables};
use crate::statement::parse;

struct Defined(Vec<TableSchema>);

impl SchemaView for Defined {
    fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>> {
        let found = self.0.iter().find(|of| of.keyspace == keyspace && of.name == table);
        found.cloned().map(Arc::new)
    }
}

fn planned(text: &str) -> Plan {
    let script = "CREATE TABLE s.t (k int PRIMARY KEY, v int);
        CREATE TABLE s.two (a int, b text, v int, PRIMARY KEY ((a, b)));
        CREATE TABLE s.w (k int, c int, v int, x int STATIC, PRIMARY KEY (k, c));
        CREATE TABLE s.n (k varint PRIMARY KEY, v int);
        CREATE TABLE s.dec (k decimal PRIMARY KEY, v int);";
    analyse(&parse(text), &Defined(defined_tables(script, None).unwrap()), Some("s"))
}

fn plan(text: &str) -> RowsPlan {
    match planned(text) {
        Plan::CachedRows(plan) => plan,
        other => panic!("{text}: {other:?}"),
    }
}

/// The key columns of the rows where the markers are bound to these.
fn keys(text: &str, values: &[&[u8]]) -> Option<Vec<Vec<Vec<u8>>>> {
    let rows = plan(text).bind(&|marker| values.get(usize::from(marker.index)).copied())?;
    let columns = |key: &RowKey| key.columns().map(<[u8]>::to_vec).collect();
    Some(rows.keys.iter().map(columns).collect())
}

/// As [`keys`], for keys of one `int`.
fn ints(text: &str, values: &[&[u8]]) -> Option<Vec<i32>> {
    let int = |row: Vec<Vec<u8>>| i32::from_be_bytes(row[0].clone().try_into().unwrap());
    Some(keys(text, values)?.into_iter().map(int).collect())
}

fn list(elements: &[&[u8]]) -> Vec<u8> {
    let mut bytes = (elements.len() as i32).to_be_bytes().to_vec();
    for element in elements {
        bytes.extend((element.len() as i32).to_be_bytes());
        bytes.extend(*element);
    }
    bytes
}

#[test]
fn rows_come_in_the_order_of_their_keys_and_each_once() {
    let from = "SELECT v FROM t WHERE k";
    let (one, two, minus) = (1_i32.to_be_bytes(), 2_i32.to_be_bytes(), (-1_i32).to_be_bytes());
    assert_eq!(ints(&format!("{from} IN (3, -5, 1, 3)"), &[]), Some(vec![-5, 1, 3]));
    let bound = ints(&format!("{from} IN (?, 0, ?)"), &[&two, &minus]);
    assert_eq!(bound, Some(vec![-1, 0, 2]));
    let elements = list(&[&two, &one, &two]);
    assert_eq!(ints(&format!("{from} IN ?"), &[&elements]), Some(vec![1, 2]));
    let text = |text: &str| text.as_bytes().to_vec();
    let expected = [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
        .map(|(a, b): (i32, _)| vec![a.to_be_bytes().to_vec(), text(b)])
        .to_vec();
    let found = keys("SELECT * FROM two WHERE b IN ('b', 'a') AND a IN (2, 1)", &[]);
    assert_eq!(found, Some(expected));
    let found = keys("SELECT v FROM w WHERE k IN (2, 1) AND c = 7", &[]);
    assert_eq!(found.map(|keys| keys.len()), Some(2));
}

#[test]
fn what_the_database_may_refuse_or_read_otherwise_is_left_to_it() {
    let one = 1_i32.to_be_bytes();
    let many: Vec<[u8; 4]> = (0..65_i32).map(i32::to_be_bytes).collect();
    let many: Vec<&[u8]> = many.iter().map(|value| &value[..]).collect();
    for refused in [
        list(&[]),
        list(&[&one, b""]),
        list(&[&one[1..]]),
        list(&[&one])[..7].to_vec(),
        list(&many),
    ] {
        assert_eq!(ints("SELECT v FROM t WHERE k IN ?", &[&refused]), None, "{refused:?}");
    }
    assert_eq!(ints("SELECT v FROM t WHERE k IN (?, ?)", &[&one]), None);
    // Lists of any length are not sorted for a few rows.
    let alike = |count| format!("SELECT v FROM t WHERE k IN ({})", vec!["1"; count].join(", "));
    assert_eq!(ints(&alike(64), &[]), Some(vec![1]));
    assert_eq!(ints(&alike(65), &[]), None);
    assert_eq!(ints("SELECT v FROM t WHERE k IN (1, 2) LIMIT ?", &[&[0; 4]]), None);
    assert_eq!(keys("SELECT v FROM n WHERE k IN (?, ?)", &[b"\x05", b"\0\x05"]), None);
    assert!(keys("SELECT v FROM n WHERE k IN (?, ?)", &[b"\x05", b"\x05"]).is_some());
}

#[test]
fn a_limit_of_each_partition_is_none_of_all() {
    let limit = |text: &str| plan(text).bind(&|_| Some(&[0, 0, 0, 3])).unwrap().limit;
    let from = "SELECT v FROM t WHERE k IN (1, 2)";
    assert_eq!(limit(from), usize::MAX);
    assert_eq!(limit(&format!("{from} LIMIT 1")), 1);
    assert_eq!(limit(&format!("{from} LIMIT ?")), 3);
    assert_eq!(limit(&format!("{from} PER PARTITION LIMIT 1")), usize::MAX);
    assert_eq!(limit(&format!("{from} PER PARTITION LIMIT ? LIMIT 5")), 5);
}

#[test]
fn what_is_of_no_such_rows_is_passed_and_it_is_said_why() {
    for (text, reason) in [
        ("SELECT v FROM t WHERE k IN ()", PassReason::NotOneRow),
        ("SELECT v FROM t WHERE k NOT IN (1)", PassReason::NotOneRow),
        ("SELECT v FROM t WHERE k IN (1) AND k = 1", PassReason::NotOneRow),
        ("SELECT v FROM t WHERE k IN (1) AND v = 1", PassReason::NotOneRow),
        ("SELECT v FROM t WHERE k IN (1, null)", PassReason::UncertainLiteral),
        ("SELECT v FROM t WHERE k IN (1, f())", PassReason::Expression),
        ("SELECT v FROM t WHERE (k) IN ((1), (2))", PassReason::NotOneRow),
        ("SELECT v FROM t WHERE token(k) = 1", PassReason::NotOneRow),
        ("SELECT v FROM two WHERE a IN (1)", PassReason::NotOneRow),
        ("SELECT v FROM w WHERE k IN (1, 2)", PassReason::NotOneRow),
        ("SELECT v FROM w WHERE k IN (1, 2) AND c > 1", PassReason::NotOneRow),
        ("SELECT v FROM w WHERE k IN (1, 2) AND c IN (1, 2)", PassReason::NotOneRow),
        ("SELECT x FROM w WHERE k IN (1, 2) AND c = 1", PassReason::NotOneRow),
        ("SELECT v FROM w WHERE k IN (1, 2) AND c = 1 ORDER BY c", PassReason::Clause),
        ("SELECT v FROM t WHERE k IN (1, 2) LIMIT 0", PassReason::Clause),
        ("SELECT v FROM t WHERE k IN (1, 2) ALLOW FILTERING", PassReason::Clause),
        ("SELECT JSON v FROM t WHERE k IN (1, 2)", PassReason::Json),
        ("SELECT DISTINCT k FROM t WHERE k IN (1, 2)", PassReason::Distinct),
        ("SELECT count(*) FROM t WHERE k IN (1, 2)", PassReason::Expression),
        ("SELECT ttl(v) FROM t WHERE k IN (1, 2)", PassReason::Expression),
        ("SELECT v FROM dec WHERE k IN (1.0, 2.0)", PassReason::UnknownOrder),
    ] {
        let plan = planned(text);
        assert!(matches!(plan, Plan::Read(why, Some(_)) if why == reason), "{text}: {plan:?}");
    }
}
