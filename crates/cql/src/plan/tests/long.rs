//! Long texts: planning them takes time and memory in proportion to their length, and no more than
//! so much. Where each part was compared with all before it, these tests take minutes.

use std::collections::HashSet;
use std::sync::Arc;

use super::{planned, written};
use crate::lexer::{MOST_TOKENS, Tokens};
use crate::plan::touched::MOST_TARGETS;
use crate::plan::{Plan, Target, ValueSource};
use crate::statement::{Statement, parse, parse_bytes};

/// `part(0) between part(1) between ...`
fn joined(count: usize, between: &str, part: impl Fn(usize) -> String) -> String {
    (0..count).map(part).collect::<Vec<_>>().join(between)
}

/// What a batch of these statements touches.
fn batch(count: usize, part: impl Fn(usize) -> String) -> Vec<Target> {
    let text = format!("BEGIN BATCH {} APPLY BATCH", joined(count, ";", part));
    match planned(&text) {
        Plan::Write(write) => write.targets,
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_markers_are_counted() {
    let text = format!(
        "SELECT v FROM one WHERE k IN ({}, :m1, ?, ?)",
        joined(65_000, ",", |n| format!(":m{n}"))
    );
    let parsed = parse(&text);
    assert_eq!((parsed.markers.len(), parsed.distinct_markers()), (65_003, 65_002));
}

#[test]
fn many_relations_are_no_row_and_no_slice() {
    let relations = joined(45_000, " AND ", |n| format!("a{n}=1"));
    for from in ["one", "t", "stat"] {
        let text = format!("SELECT v FROM {from} WHERE {relations}");
        assert_eq!(written(&planned(&text)), "pass not-one-row", "{from}");
    }
}

#[test]
fn many_selected_columns_are_all_planned_and_counted() {
    let selected = joined(90_000, ",", |n| ["w", "v"][n % 2].to_owned());
    let Plan::CachedRead(read) =
        planned(&format!("SELECT {selected} FROM t WHERE k = 1 AND c = 'x'"))
    else {
        panic!("it is one row")
    };
    assert_eq!((read.projection.len(), read.names.len()), (90_000, 90_000));
    assert_eq!(read.repeats, 45_000, "each is in a row so often");
}

#[test]
fn a_batch_of_many_rows_counts_as_their_partitions_or_tables() {
    let row = |n| format!("DELETE FROM t WHERE k = 7 AND c = '{n}'");
    let rows = batch(MOST_TARGETS, row);
    assert_eq!(rows.len(), MOST_TARGETS);
    assert!(rows.iter().all(|target| matches!(target, Target::Row(_))));
    let partition = super::target(&batch(MOST_TARGETS + 1, row)[0]);
    assert_eq!(partition, "partition 1:00000007");
    assert_eq!(batch(MOST_TARGETS + 1, row).len(), 1);
    // Rows of as many partitions; a table that is named behind them; one that is not in the schema.
    let other = |n| match n {
        0 => "DELETE FROM t WHERE k = 1 AND c = 'x'".to_owned(),
        12_000 => "DELETE FROM blobs WHERE k = 0x01".to_owned(),
        12_001 => "DELETE FROM nope WHERE k = 1".to_owned(),
        _ => format!("DELETE FROM one WHERE k = '{n}'"),
    };
    let mut tables: Vec<_> = batch(12_002, other).iter().map(super::target).collect();
    tables.sort_unstable();
    assert_eq!(tables, ["partition 11:01", "table ks.nope", "table ks.one", "table ks.t"]);
}

#[test]
fn what_is_named_again_and_again_is_there_once() {
    let targets = batch(12_000, |n| format!("UPDATE one SET v = 0x{:02x} WHERE k = 'a'", n % 256));
    assert_eq!(targets.iter().map(super::target).collect::<Vec<_>>(), ["row 2:61/"]);
}

#[test]
fn of_a_text_no_more_than_so_many_tokens_are_kept() {
    // As many markers as there may be, each with its comma, are still understood.
    let markers = joined(65_535, ",", |_| "?".to_owned());
    let text = format!("SELECT v FROM one WHERE k IN ({markers})");
    assert_eq!(written(&planned(&text)), "rows 2:k -> r0");
    let filled = |count: usize| {
        let head = "SELECT v FROM one WHERE k = 'a'";
        let semicolons = count - Tokens::of(head).count();
        format!("{head}{}", ";".repeat(semicolons))
    };
    assert!(matches!(parse(&filled(MOST_TOKENS)).statement, Statement::Select(_)));
    assert!(matches!(parse(&filled(MOST_TOKENS + 1)).statement, Statement::Unknown(_)));
}

#[test]
fn of_a_text_with_too_many_tokens_no_write_is_missed() {
    let numbers = joined(MOST_TOKENS, ",", |_| "1".to_owned());
    let long = |table: &str, end: &str| {
        let statement = |n| match n % 3 {
            0 if n > 0 => "DELETE FROM one WHERE k = 'a'".to_owned(),
            0 => format!("DELETE FROM {table} WHERE k = 'a'"),
            1 => "UPDATE t SET v = 1 WHERE k = 1 AND c = 'x'".to_owned(),
            _ => "INSERT INTO nope (k) VALUES (1)".to_owned(),
        };
        format!("BEGIN UNLOGGED BATCH {}; {end}", joined(MOST_TOKENS / 9, ";", statement))
    };
    let table = [
        (format!("SELECT v FROM one WHERE k IN ({numbers})"), "pass not-understood"),
        (format!("SELECT v FROM one WHERE k IN ({numbers});;"), "pass not-understood"),
        (format!("SELECT v FROM one WHERE k IN ({numbers}); SELECT 1"), "everything"),
        (format!("SELECT v FROM one WHERE k IN ({numbers}) drop"), "everything"),
        (format!("SELECT v FROM one WHERE k IN ({numbers}) # Drop"), "everything"),
        (format!("SELECT v FROM one WHERE k IN ({numbers}) # ;"), "everything"),
        (format!("INSERT INTO one (k, v) VALUES ('a', [{numbers}])"), "table ks.one"),
        (format!("INSERT INTO one (k, v) VALUES ('a', [{numbers}]); SELECT 1"), "everything"),
        (format!("BEGIN BATCH INSERT INTO one (k) VALUES ([{numbers}]) APPLY BATCH"), "everything"),
        // Statements of which each is short.
        (long("one", "APPLY BATCH;"), "table ks.one + table ks.t + table ks.nope"),
        (long("ks.one", "APPLY BATCH"), "table ks.one + table ks.t + table ks.nope"),
        (long("a.one", "APPLY BATCH"), "table a.one + table ks.t + table ks.nope + table ks.one"),
        (long("one", ""), "everything"),
        (long("one", "TRUNCATE stat; APPLY BATCH"), "everything"),
        (long("one", "APPLY BATCH; TRUNCATE stat"), "everything"),
        (long("one", "APPLY BATCH \u{e9}"), "everything"),
        // So long that nobody looks for its end.
        (
            format!("SELECT v FROM one WHERE k IN ({numbers},{numbers},{numbers},{numbers})"),
            "everything",
        ),
        (";".repeat(4 << 20), "everything"),
    ];
    for (text, expected) in table {
        assert_eq!(written(&planned(&text)), expected, "{}...", &text[..30]);
    }
}

#[test]
fn a_literal_and_a_name_are_there_once_in_a_plan_of_many_keys() {
    let ids = joined(64, ",", |n| format!("123e4567-e89b-12d3-a456-4266554400{n:02x}"));
    let long = "x".repeat(60_000);
    for key in [format!("0x{}", "ab".repeat(30_000)), format!(":{long}")] {
        let Plan::Write(write) =
            planned(&format!("DELETE FROM blobs WHERE k = {key} AND c IN ({ids})"))
        else {
            panic!("it writes")
        };
        let shared = |target: &Target| match target {
            Target::Row(row) => match &row.partition.parts[0].slot {
                ValueSource::Literal(bytes) => Arc::as_ptr(bytes).cast::<u8>(),
                ValueSource::Bind(marker) => Arc::as_ptr(marker.name.as_ref().unwrap()).cast(),
            },
            other => panic!("{other:?}"),
        };
        let places: HashSet<*const u8> = write.targets.iter().map(shared).collect();
        assert_eq!((write.targets.len(), places.len()), (64, 1));
        assert!(Plan::Write(write).weight() < 64 * 1024, "it has the key once");
    }
}

#[test]
fn a_plan_weighs_what_it_holds_and_not_what_its_text_is_long() {
    let numbers = |count| joined(count, ",", |_| "1".to_owned());
    let texts = |count| {
        let numbers = numbers(count);
        let markers = joined(count, ",", |_| ":a".to_owned());
        let statements =
            joined(count / 8, ";", |n| format!("DELETE FROM t WHERE k={n} AND c='{n}'"));
        let quoted = numbers.replace('1', "'a'");
        [
            format!("SELECT v FROM t WHERE k = 1 AND c IN ({quoted})"),
            format!("SELECT v FROM one WHERE k IN ({markers})"),
            format!("SELECT {} FROM t WHERE k = 1 AND c = 'a'", numbers.replace('1', "v")),
            format!("SELECT * FROM system.local WHERE key IN ({quoted})"),
            format!("SELECT {} FROM system.peers", numbers.replace('1', "a")),
            format!("BEGIN BATCH {statements} APPLY BATCH"),
        ]
    };
    for (few, many) in texts(100).iter().zip(texts(10_000)) {
        let (few, many) = (planned(few).weight(), planned(&many).weight());
        // What an item takes at least is its place in a list.
        assert!(many > 10_000 * 24 && many > 20 * few, "{few} and {many} bytes");
    }
    assert!(
        planned(&format!("SELECT v FROM nope WHERE k IN ({})", numbers(10_000))).weight() < 1024
    );
}

/// Whatever of its text is understood: a later transaction may complete it long after it was sent.
#[test]
fn a_text_that_may_be_a_transaction_is_conditional_also_where_it_is_not_understood() {
    let one = |n: usize| format!("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x{n}'");
    let many = joined(MOST_TOKENS / 12, ";", one);
    let numbers = joined(MOST_TOKENS, ",", |_| "1".to_owned());
    for (text, touched, conditional) in [
        (format!("BEGIN BATCH {many} IF v = 3 APPLY BATCH"), "table ks.t", true),
        (format!("BEGIN BATCH {} IF EXISTS; {many} APPLY BATCH", one(0)), "table ks.t", true),
        (format!("BEGIN BATCH {many} APPLY BATCH"), "table ks.t", false),
        (format!("BEGIN BATCH {many} IF v = 3 APPLY"), "everything", true),
        (format!("BEGIN BATCH {many} \u{e9} iF"), "everything", true),
        (format!("INSERT INTO t (k, v) VALUES (1, [{numbers}]) IF NOT EXISTS"), "table ks.t", true),
        (format!("INSERT INTO t (k, v) VALUES (1, [{numbers}])"), "table ks.t", false),
        (format!("BEGIN BATCH {}", ";".repeat(4 << 20)), "everything", true),
        ("UPDATE t SET v SO 1 WHERE k = 1 If v = 3".into(), "table ks.t", true),
        ("UPDATE t SET v SO 'if' WHERE k = 1".into(), "table ks.t", false),
        // No server takes these for one.
        ("ALTER SOMETHING IF EXISTS t".into(), "everything", false),
        ("TRUNCATE t IF EXISTS".into(), "table ks.t", false),
    ] {
        let plan = planned(&text);
        let Plan::Write(write) = &plan else { panic!("it writes") };
        let begin: String = text.chars().take(30).collect();
        assert_eq!(written(&plan).trim_end_matches(" + if"), touched, "{begin}...");
        assert_eq!(write.conditional, conditional, "{begin}...");
    }
    let Statement::Unknown(bytes) =
        parse_bytes(b"UPDATE t SET v = '\xff' WHERE k = 1 IF v = 3").statement
    else {
        panic!("it is no text")
    };
    assert!(bytes.conditional);
}
