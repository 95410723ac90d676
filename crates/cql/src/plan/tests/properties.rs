//! What must hold of any text and any values.

use proptest::prelude::*;

use super::*;
use crate::plan::key::Part;
use crate::plan::types::KeyClass;
use crate::statement::{Marker, Statement, parse_bytes};

/// Pieces of CQL, to be strung together.
const PIECES: [&str; 68] = [
    "SELECT",
    "INSERT",
    "INTO",
    "UPDATE",
    "DELETE",
    "FROM",
    "WHERE",
    "SET",
    "VALUES",
    "USING",
    "TTL",
    "TIMESTAMP",
    "AND",
    "IF",
    "NOT",
    "EXISTS",
    "IN",
    "BEGIN",
    "BATCH",
    "APPLY",
    "UNLOGGED",
    "TRUNCATE",
    "TABLE",
    "DROP",
    "CREATE",
    "ALTER",
    "USE",
    "GRANT",
    "LIST",
    "DESCRIBE",
    "JSON",
    "DISTINCT",
    "LIMIT",
    "1",
    "-1",
    "'x'",
    "?",
    ":a",
    "=",
    ">",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ";",
    ".",
    "..",
    "*",
    "+",
    "-",
    "t",
    "ks",
    "k",
    "c",
    "v",
    "one",
    "token",
    "CAST",
    "AS",
    "int",
    "null",
    "-- x\n",
    "/* x */",
    "count",
    "\u{e9}",
];

fn strung() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24)
        .prop_map(|pieces| pieces.join(" "))
}

/// The first word that is not in a comment, in lower case.
fn first_word(text: &str) -> String {
    let mut rest = text.trim_start();
    loop {
        rest = match (rest.strip_prefix("-- x\n"), rest.strip_prefix("/* x */")) {
            (Some(after), _) | (_, Some(after)) => after.trim_start(),
            _ => {
                return rest
                    .split(' ')
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches('\n')
                    .to_lowercase();
            }
        };
    }
}

fn reads(plan: &Plan) -> bool {
    matches!(plan, Plan::CachedRead(_) | Plan::SystemRead(_) | Plan::Read(..))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn only_what_begins_as_a_read_is_one(text in strung()) {
        let plan = planned(&text);
        let word = first_word(&text);
        let is_use = matches!(plan, Plan::Use(_) | Plan::OddUse);
        prop_assert_eq!(is_use, word == "use", "{}: {:?}", text, plan);
        if reads(&plan) {
            prop_assert!(["select", "list", "describe"].contains(&word.as_str()), "{text}: {plan:?}");
        } else if let Plan::Write(write) = &plan {
            // What is created has no rows yet.
            let creates = write.kind == WriteKind::Schema && word == "create";
            let harmless = creates || write.kind == WriteKind::Access || text.to_lowercase().contains("apply");
            prop_assert!(harmless || !write.targets.is_empty(), "{text}: {plan:?}");
        }
    }

    /// A second statement hidden behind a read makes the whole a write.
    #[test]
    fn nothing_hides_behind_a_read(head in strung(), tail in strung()) {
        let text = format!("SELECT {head} ; DELETE {tail}");
        prop_assert!(!reads(&planned(&text)), "{text}");
    }

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let parsed = parse_bytes(&bytes);
        let _ = analyse(&parsed, &Fixture, Some("ks"));
    }

    #[test]
    fn characters_never_panic(text in "[-a-zA-Z0-9'\"$?:;,.()<>=*/ \n\\[\\]{}\u{b5}]{0,60}") {
        let _ = planned(&text);
        let _ = planned(&format!("SELECT {text}"));
        let _ = planned(&format!("UPDATE t SET v = {text}"));
        let _ = planned(&format!("INSERT INTO t (k, c) VALUES ({text})"));
    }
}

#[test]
fn depth_is_bounded() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{", "}"), ("f(", ")"), ("-(", ")"), ("(int)", ""), ("(a)", "")]
    {
        for count in [10, 100, 10_000] {
            let deep = format!("{}1{}", open.repeat(count), close.repeat(count));
            for text in [
                format!("SELECT {deep} FROM t"),
                format!("UPDATE t SET v = {deep} WHERE k = {deep} AND c = 'x'"),
                format!("DELETE FROM t WHERE {}k = 1{}", open.repeat(count), close.repeat(count)),
                format!("CREATE TABLE x (k {})", "frozen<".repeat(count)),
            ] {
                let _ = planned(&text);
            }
        }
    }
}

#[test]
fn bytes_that_are_no_text_may_write() {
    let parsed = parse_bytes(b"SELECT v FROM t WHERE c = '\xff'");
    assert!(matches!(parsed.statement, Statement::Unknown(unknown) if !unknown.provably_read));
}

fn template(partition: usize, clustering: usize) -> KeyTemplate {
    let part = |index: usize| Part {
        slot: ValueSource::Bind(Marker { index: index as u16, name: None }),
        class: KeyClass::Bytes,
    };
    KeyTemplate {
        partition: PartitionTemplate {
            table: Uuid::from_u128(1),
            parts: (0..partition).map(part).collect(),
        },
        clustering: (partition..partition + clustering).map(part).collect(),
    }
}

fn bind(template: &KeyTemplate, values: &[Vec<u8>]) -> Result<RowKey, KeyError> {
    let mut key = RowKey::new();
    template.bind(|marker| values.get(usize::from(marker.index)).map(Vec::as_slice), &mut key)?;
    Ok(key)
}

/// Short values over few bytes, so that near collisions are common.
fn values(count: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(
        prop::collection::vec(prop::sample::select(&[0_u8, 1, 2, 3][..]), 0..4),
        count,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn keys_of_different_rows_differ(
        ((partition, clustering), one, other) in (1_usize..4, 0_usize..3).prop_flat_map(|shape| {
            let count = shape.0 + shape.1;
            (Just(shape), values(count), values(count))
        })
    ) {
        let template = template(partition, clustering);
        if let (Ok(first), Ok(second)) = (bind(&template, &one), bind(&template, &other)) {
            prop_assert_eq!(first.engine_key() == second.engine_key(), one == other);
            prop_assert!(first.columns().eq(one.iter().map(Vec::as_slice)));
            let mut partition_key = Vec::new();
            let value = |marker: &Marker| one.get(usize::from(marker.index)).map(Vec::as_slice);
            template.partition().partition_key(value, &mut partition_key).unwrap();
            prop_assert_eq!(first.partition_key(), partition_key);
        }
    }
}

#[test]
fn engine_keys_have_their_documented_form() {
    let key = bind(&template(2, 1), &[b"ab".to_vec(), vec![], b"c".to_vec()]).unwrap();
    let mut expected = Uuid::from_u128(1).as_bytes().to_vec();
    expected.extend(b"\0\x08\0\x02ab\0\0\0\0\0\x01c");
    assert_eq!(key.engine_key(), expected);
    assert_eq!(key.partition_key(), b"\0\x02ab\0\0\0\0");
    let single = bind(&template(1, 0), &[b"ab".to_vec()]).unwrap();
    assert_eq!(single.partition_key(), b"ab");
}

#[test]
fn values_that_name_no_row_are_told_apart() {
    let key = |values: &[Vec<u8>]| bind(&template(1, 1), values).map(drop);
    assert_eq!(key(&[vec![1], vec![]]), Ok(()));
    assert_eq!(key(&[vec![], vec![1]]), Err(KeyError::NoPartition));
    assert_eq!(key(&[vec![1]]), Err(KeyError::NoRow));
    assert_eq!(key(&[vec![0; 70_000], vec![1]]), Err(KeyError::NoPartition));
    assert_eq!(key(&[vec![0; MAX_KEY - 20 - 1], vec![1]]), Ok(()));
    assert_eq!(key(&[vec![0; MAX_KEY - 20], vec![1]]), Err(KeyError::TooLong));
    assert_eq!(key(&[vec![1], vec![0; 70_000]]), Err(KeyError::TooLong));
}

#[test]
fn clustering_values_must_have_their_one_form() {
    let canonical =
        |kind: &str, value: &[u8]| types::is_canonical(KeyClass::of_clustering(kind), value);
    for (kind, value) in [
        ("varint", &[0x00, 0x80][..]),
        ("varint", &[0xff, 0x7f]),
        ("varint", &[0]),
        ("boolean", &[1]),
    ] {
        assert!(canonical(kind, value), "{kind} {value:?}");
    }
    let nan = f32::NAN.to_be_bytes();
    for (kind, value) in [
        ("varint", &[0x00, 0x01][..]),
        ("varint", &[0xff, 0xff]),
        ("boolean", &[2]),
        ("float", &nan),
        ("double", &[0x7f, 0xf8, 0, 0, 0, 0, 0, 1]),
        ("decimal", &[0, 0, 0, 0, 1]),
        ("frozen<list<int>>", &[0]),
    ] {
        assert!(!canonical(kind, value), "{kind} {value:?}");
    }
}

#[test]
fn a_failed_bind_leaves_no_key_behind() {
    let template = template(1, 1);
    let mut key = RowKey::new();
    template.bind(|_| Some(b"x"), &mut key).unwrap();
    assert!(template.bind(|marker| (marker.index == 0).then_some(&b"x"[..]), &mut key).is_err());
    assert!(key.engine_key().is_empty() && key.partition_key().is_empty());
    assert_eq!(key.columns().count(), 0);
}
