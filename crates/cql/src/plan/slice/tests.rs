//! Which SELECTs are slices, and which rows are in them.

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
    let script = "CREATE TABLE s.f (k int, c int, v int, PRIMARY KEY (k, c));
        CREATE TABLE s.d (k int, c int, d int, v int, PRIMARY KEY (k, c, d))
            WITH CLUSTERING ORDER BY (c DESC, d ASC);
        CREATE TABLE s.x (k int, c int, v int, x int STATIC, PRIMARY KEY (k, c));
        CREATE TABLE s.one (k int PRIMARY KEY, v int);";
    analyse(&parse(text), &Defined(defined_tables(script, None).unwrap()), Some("s"))
}

fn plan(text: &str) -> SlicePlan {
    match planned(text) {
        Plan::CachedSlice(plan) => plan,
        other => panic!("{text}: {other:?}"),
    }
}

/// The slice where each marker is bound to this.
fn bind(text: &str, value: Option<i32>) -> Option<Slice> {
    let bytes = value.map(i32::to_be_bytes);
    plan(text).bind(&|_| bytes.as_ref().map(|bytes| &bytes[..]))
}

/// The places of rows with these clustering values.
fn places<const N: usize>(text: &str, rows: &[[i32; N]]) -> String {
    let slice = bind(text, Some(3)).unwrap();
    let letter = |row: &[i32; N]| {
        let values = row.map(i32::to_be_bytes);
        match slice.place(values.iter().map(|value| &value[..])).unwrap() {
            RowPlace::Before => 'b',
            RowPlace::In => 'i',
            RowPlace::After => 'a',
            RowPlace::Between => '-',
        }
    };
    rows.iter().map(letter).collect()
}

#[test]
fn a_row_is_before_in_or_behind_the_range_in_the_order_asked_for() {
    let up = [[1], [2], [3], [4], [5]];
    let down = [[5], [4], [3], [2], [1]];
    for (range, order, expected) in [
        ("", "", "iiiii"),
        (" AND c > 3", "", "bbbii"),
        (" AND c >= 3", "", "bbiii"),
        (" AND c < ?", "", "iiaaa"),
        (" AND c <= ?", "", "iiiaa"),
        (" AND c > 1 AND c <= 4", "", "biiia"),
        (" AND c > 4 AND c < 2", "", "bbbba"),
        (" AND c > 3", " ORDER BY c DESC", "iiaaa"),
        (" AND c <= 3", " ORDER BY c DESC", "bbiii"),
        (" AND c >= 2 AND c < 5", " ORDER BY c DESC", "biiia"),
    ] {
        let text = format!("SELECT v FROM f WHERE k = 1{range}{order}");
        let rows = if order.is_empty() { &up } else { &down };
        assert_eq!(places(&text, rows), expected, "{text}");
    }
}

#[test]
fn columns_of_other_orders_and_an_equal_prefix_are_ranges_as_well() {
    // In the order of the table: c falls, d rises.
    let rows = [[3, 1], [2, 1], [2, 2], [2, 3], [1, 1]];
    let back = [[1, 1], [2, 3], [2, 2], [2, 1], [3, 1]];
    for (range, expected) in [
        ("c = 2", "biiia"),
        ("c = 2 AND d >= 2", "bbiia"),
        ("c = 2 AND d < ?", "biiaa"),
        ("c < 3", "biiii"),
        ("c > 1", "iiiia"),
    ] {
        let text = format!("SELECT v FROM d WHERE k = 1 AND {range}");
        assert_eq!(places(&text, &rows), expected, "{text}");
        let text = format!("{text} ORDER BY c ASC, d DESC");
        let mirrored: String = expected
            .chars()
            .rev()
            .map(|place| match place {
                'a' => 'b',
                'b' => 'a',
                same => same,
            })
            .collect();
        assert_eq!(places(&text, &back), mirrored, "{text}");
    }
}

#[test]
fn an_order_is_the_tables_or_its_exact_reverse() {
    for (order, reversed) in [
        ("", Some(false)),
        ("ORDER BY c DESC", Some(false)),
        ("ORDER BY c ASC", Some(true)),
        ("ORDER BY c", Some(true)),
        ("ORDER BY c DESC, d ASC", Some(false)),
        ("ORDER BY c ASC, d DESC", Some(true)),
        ("ORDER BY c ASC, d ASC", None),
        ("ORDER BY d ASC", None),
        ("ORDER BY c ASC, d DESC, v ASC", None),
        ("ORDER BY v ASC", None),
        ("ORDER BY c ANN OF [1]", None),
    ] {
        let found = match planned(&format!("SELECT v FROM d WHERE k = 1 {order}")) {
            Plan::CachedSlice(plan) => Some(plan.reversed),
            _ => None,
        };
        assert_eq!(found, reversed, "{order}");
    }
}

#[test]
fn what_is_no_slice_is_passed_and_it_is_said_why() {
    for (text, reason) in [
        ("SELECT v FROM f", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k > 1", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c > 1 AND c > 2", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c > 1 AND c = 2", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c > 1 AND v = 2", PassReason::NotOneRow),
        ("SELECT v FROM d WHERE k = 1 AND d > 1", PassReason::NotOneRow),
        ("SELECT v FROM d WHERE k = 1 AND c > 1 AND d > 1", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k IN (1, 2)", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c IN ()", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c IN (1, null)", PassReason::UncertainLiteral),
        ("SELECT v FROM f WHERE k = 1 AND c IN (1, f())", PassReason::Expression),
        ("SELECT v FROM f WHERE k = 1 AND c NOT IN (1, 2)", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c IN (1, 2) AND c > 1", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c IN (1, 2) AND v IN (1)", PassReason::NotOneRow),
        ("SELECT v FROM d WHERE k = 1 AND c IN (1, 2) AND d > 1", PassReason::NotOneRow),
        ("SELECT v FROM d WHERE k = 1 AND d IN (1, 2)", PassReason::NotOneRow),
        ("SELECT v FROM d WHERE k = 1 AND (c, d) IN ((1, 2))", PassReason::NotOneRow),
        ("SELECT v FROM x WHERE k = 1 AND c IN (1, 2)", PassReason::StaticColumns),
        ("SELECT v FROM f WHERE k = 1 AND token(k) > 1", PassReason::NotOneRow),
        ("SELECT v FROM d WHERE k = 1 AND (c, d) > (1, 2)", PassReason::NotOneRow),
        ("SELECT v FROM f WHERE k = 1 AND c > f()", PassReason::Expression),
        ("SELECT v FROM f WHERE k = 1 AND c > 1.5", PassReason::UncertainLiteral),
        ("SELECT v FROM f WHERE k = 1 AND c > null", PassReason::UncertainLiteral),
        ("SELECT DISTINCT k FROM f WHERE k = 1", PassReason::Distinct),
        ("SELECT JSON v FROM f WHERE k = 1", PassReason::Json),
        ("SELECT v FROM f WHERE k = 1 GROUP BY c", PassReason::Clause),
        ("SELECT v FROM f WHERE k = 1 ALLOW FILTERING", PassReason::Clause),
        ("SELECT v FROM f WHERE k = 1 LIMIT 0", PassReason::Clause),
        ("SELECT v FROM f WHERE k = 1 ORDER BY v", PassReason::Clause),
        ("SELECT v FROM x WHERE k = 1", PassReason::StaticColumns),
        ("SELECT v FROM one WHERE v = 1", PassReason::NotOneRow),
        ("SELECT nope FROM f WHERE k = 1", PassReason::UnknownColumn),
    ] {
        let plan = planned(text);
        assert!(matches!(plan, Plan::Read(why, Some(_)) if why == reason), "{text}: {plan:?}");
    }
}

#[test]
fn limits_and_bounds_are_bound_or_the_database_decides() {
    let limit = |text: &str, value| bind(text, value).map(|slice| slice.limit);
    let from = "SELECT v FROM f WHERE k = 1";
    assert_eq!(limit(from, None), Some(None));
    assert_eq!(limit(&format!("{from} LIMIT 7"), None), Some(Some(7)));
    assert_eq!(limit(&format!("{from} PER PARTITION LIMIT 5 LIMIT ?"), Some(7)), Some(Some(5)));
    assert_eq!(limit(&format!("{from} PER PARTITION LIMIT 9 LIMIT ?"), Some(7)), Some(Some(7)));
    for refused in [None, Some(0), Some(-1)] {
        assert_eq!(limit(&format!("{from} LIMIT ?"), refused), None);
    }
    assert!(bind(&format!("{from} AND c > ?"), None).is_none());
    let plan = plan(&format!("{from} AND c > ?"));
    for wrong in [&b""[..], b"\0\0\0", b"\0\0\0\0\x01"] {
        assert!(plan.bind(&|_| Some(wrong)).is_none(), "{wrong:?}");
    }
}

#[test]
fn rows_that_a_list_names_have_others_between_them() {
    // In the order of the table: c falls, d rises.
    let rows = [[4, 1], [3, 1], [3, 2], [3, 3], [2, 2], [1, 1], [1, 2], [1, 3], [0, 9]];
    let mut back = rows;
    back.reverse();
    for (range, expected) in [
        ("c IN (3, 1)", "biii-iiia"),
        ("c IN (1, 3, 3, 1)", "biii-iiia"),
        ("c IN (3)", "biiiaaaaa"),
        ("c IN (?, 1)", "biii-iiia"),
        ("c = 3 AND d IN (3, 1)", "bi-iaaaaa"),
        ("c IN (3, 1) AND d = 2", "bbi---iaa"),
        ("c IN (1, 3) AND d IN (1, 3)", "bi-i-i-ia"),
        ("c IN (9, 7)", "aaaaaaaaa"),
    ] {
        let text = format!("SELECT v FROM d WHERE k = 1 AND {range}");
        assert_eq!(places(&text, &rows), expected, "{text}");
        let text = format!("{text} ORDER BY c ASC");
        let mirrored: String = expected
            .chars()
            .rev()
            .map(|place| match place {
                'a' => 'b',
                'b' => 'a',
                same => same,
            })
            .collect();
        assert_eq!(places(&text, &back), mirrored, "{text}");
    }
}

#[test]
fn a_bound_list_names_rows_if_every_server_reads_the_same_from_it() {
    let text = "SELECT v FROM d WHERE k = 1 AND c IN ? AND d IN (1, 2)";
    let list = |elements: &[&[u8]]| {
        let mut bytes = (elements.len() as i32).to_be_bytes().to_vec();
        for element in elements {
            bytes.extend((element.len() as i32).to_be_bytes());
            bytes.extend(*element);
        }
        bytes
    };
    let bound = |bytes: &[u8]| plan(text).bind(&|_| Some(bytes));
    let (one, two) = (1_i32.to_be_bytes(), 2_i32.to_be_bytes());
    let slice = bound(&list(&[&two, &one, &two])).unwrap();
    assert!(slice.names_rows());
    assert_eq!((slice.most_rows(2), slice.most_rows(3)), (Some(4), None));
    for refused in [list(&[]), list(&[&one, b""]), list(&[&one[1..]]), list(&[&one])[..7].to_vec()]
    {
        assert!(bound(&refused).is_none(), "{refused:?}");
    }
    assert!(plan(text).bind(&|_| None).is_none());
    // Lists of any length are not sorted.
    let alike =
        |count| format!("SELECT v FROM f WHERE k = 1 AND c IN ({})", vec!["1"; count].join(", "));
    assert!(bind(&alike(512), None).is_some());
    assert!(bind(&alike(513), None).is_none());
}

#[test]
fn a_count_of_rows_is_a_slice_unless_databases_differ_in_what_it_counts() {
    for (text, name) in [
        ("SELECT count(*) FROM f WHERE k = 1", "count"),
        ("SELECT COUNT(*) AS n FROM f WHERE k = ?", "n"),
        ("SELECT count(*) AS \"N\" FROM f WHERE k = 1 AND c > 1 AND c <= ?", "N"),
        ("SELECT count(*) FROM d WHERE k = 1 AND c = 1", "count"),
    ] {
        let plan = plan(text);
        assert!(plan.counts() && plan.read.names == [name], "{text}");
        assert_eq!(plan.read.projection, [Projected::Count]);
    }
    assert!(!plan("SELECT v FROM f WHERE k = 1").counts());
    for (text, reason) in [
        ("SELECT count(*) FROM f WHERE k = 1 LIMIT 2", PassReason::Clause),
        ("SELECT count(*) FROM f WHERE k = 1 LIMIT ?", PassReason::Clause),
        ("SELECT count(*) FROM f WHERE k = 1 PER PARTITION LIMIT 2", PassReason::Clause),
        ("SELECT count(*) FROM f WHERE k = 1 ORDER BY c DESC", PassReason::Clause),
        ("SELECT count(*) FROM f WHERE k = 1 GROUP BY c", PassReason::Clause),
        ("SELECT count(*) FROM f WHERE k = 1 ALLOW FILTERING", PassReason::Clause),
        ("SELECT JSON count(*) FROM f WHERE k = 1", PassReason::Json),
        ("SELECT DISTINCT count(*) FROM f WHERE k = 1", PassReason::Distinct),
        ("SELECT count(*) FROM f WHERE k = 1 AND c IN (1, 2)", PassReason::Expression),
        ("SELECT count(*) FROM f WHERE k IN (1, 2)", PassReason::Expression),
        ("SELECT count(*) FROM f WHERE k = 1 AND c = 1", PassReason::Expression),
        ("SELECT count(*) FROM f", PassReason::Expression),
        ("SELECT count(*) FROM one WHERE k = 1", PassReason::Expression),
        ("SELECT count(*) FROM x WHERE k = 1", PassReason::StaticColumns),
        ("SELECT count(*), v FROM f WHERE k = 1", PassReason::Expression),
        ("SELECT count(1) FROM f WHERE k = 1", PassReason::Expression),
        ("SELECT count(v) FROM f WHERE k = 1", PassReason::Expression),
        ("SELECT count(*) + 1 FROM f WHERE k = 1", PassReason::Expression),
    ] {
        let Plan::Read(found, _) = planned(text) else { panic!("{text} is cached") };
        assert_eq!(found, reason, "{text}");
    }
}
