//! Which writes a cached row can follow.

use super::super::{Plan, RowUpdate, ValueSource};
use super::{marker_name, planned};

fn source(source: &ValueSource) -> String {
    match source {
        ValueSource::Bind(marker) => marker_name(marker),
        ValueSource::Literal(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// `column=value`s, then timestamp and TTL where there are any.
fn written(update: &RowUpdate) -> String {
    let cells = update.cells.iter().map(|cell| format!("{}={}", cell.column, source(&cell.value)));
    let mut parts: Vec<String> = cells.collect();
    parts.extend(update.timestamp.iter().map(|at| format!("at {}", source(at))));
    parts.extend(update.ttl.iter().map(|ttl| format!("for {}", source(ttl))));
    parts.join(" ")
}

fn update_of(text: &str) -> Option<String> {
    match planned(text) {
        Plan::Write(plan) => plan.update.as_ref().map(written),
        _ => panic!("{text} is no write"),
    }
}

#[test]
fn a_plain_write_of_one_row_says_what_it_sets() {
    for (text, expected) in [
        ("INSERT INTO t (k, c, v, w) VALUES (1, 'a', 7, ?)", "0=00000007 1=?0"),
        ("INSERT INTO t (w, k, c) VALUES (:w, :k, :c)", "1=:w"),
        ("UPDATE t SET w = 'x', v = ? WHERE c = 'a' AND k = ?", "1=78 0=?0"),
        (
            "UPDATE t USING TTL 5 AND TIMESTAMP ? SET v = -1 WHERE k = 1 AND c = 'a'",
            "0=ffffffff at ?0 for 00000005",
        ),
        (
            "INSERT INTO t (k, c, v) VALUES (1, 'a', 7) USING TIMESTAMP 258",
            "0=00000007 at 0000000000000102",
        ),
        ("UPDATE stat SET v = 1 WHERE k = 1 AND c = 2", "1=00000001"),
        ("UPDATE old SET s = {} WHERE k = 1", "none"),
    ] {
        assert_eq!(update_of(text).unwrap_or("none".into()), expected, "{text}");
    }
}

#[test]
fn other_writes_are_not_followed() {
    for text in [
        "INSERT INTO t (k, c) VALUES (1, 'a')",
        "INSERT INTO t (k, c, v) VALUES (1, 'a', null)",
        "INSERT INTO t (k, c, v) VALUES (1, 'a', 7) IF NOT EXISTS",
        "INSERT INTO t (k, c, v) VALUES (1, 'a', blobAsInt(0x00))",
        "INSERT INTO t (k, c, v) VALUES (1, 'a', 1 + 1)",
        "INSERT INTO t (k, c, v, v) VALUES (1, 'a', 7, 8)",
        "INSERT INTO t (k, c, v) VALUES (1, 'a', 99999999999)",
        "INSERT INTO t JSON '{\"k\": 1, \"c\": \"a\", \"v\": 7}'",
        "INSERT INTO ids (a, b, c, d, v) VALUES (1, uuid(), now(), 1, 1)",
        "UPDATE t SET v = 1 WHERE k = 1",
        "UPDATE t SET v = 1 WHERE k = 1 AND c IN ('a', 'b')",
        "UPDATE t SET v = 1 WHERE k = 1 AND c IN ?",
        "UPDATE t SET v = 1 WHERE k = 1 AND c = 'a' AND w = 'x'",
        "UPDATE t SET v = 1 WHERE k = 1 AND c = 'a' IF v = 2",
        "UPDATE t SET v += 1 WHERE k = 1 AND c = 'a'",
        "UPDATE t SET v = v + 1 WHERE k = 1 AND c = 'a'",
        "UPDATE t SET v = ? + v WHERE k = 1 AND c = 'a'",
        "UPDATE t SET nothing = 1 WHERE k = 1 AND c = 'a'",
        "UPDATE coll SET l = [1] WHERE k = 1",
        "UPDATE coll SET l = ? WHERE k = 1",
        "UPDATE coll SET m['a'] = 1 WHERE k = 1",
        "UPDATE frozen SET f = ? WHERE k = 1",
        "UPDATE cnt SET n = n + 1 WHERE k = 1",
        "UPDATE stat SET s = 'x' WHERE k = 1",
        "INSERT INTO stat (k, c, s, v) VALUES (1, 2, 'x', 3)",
        "UPDATE custom SET v = ? WHERE k = 1",
        "UPDATE masked SET v = 1 WHERE k = 1",
        "UPDATE triggered SET v = 1 WHERE k = 1",
        "DELETE v FROM t WHERE k = 1 AND c = 'a'",
        "BEGIN BATCH INSERT INTO t (k, c, v) VALUES (1, 'a', 7); APPLY BATCH",
        "TRUNCATE t",
    ] {
        assert_eq!(update_of(text), None, "{text}");
    }
}

#[test]
fn bytes_that_a_server_may_write_in_another_form_are_not_taken_for_its_own() {
    let Plan::Write(plan) = planned("UPDATE t SET v = ?, w = ? WHERE k = 1 AND c = 'a'") else {
        panic!("a write")
    };
    let update = plan.update.unwrap();
    let [v, w] = update.cells.as_slice() else { panic!("two cells") };
    assert!(v.is_stored_as(&[0, 0, 0, 1]) && w.is_stored_as(b"") && w.is_stored_as(b"x"));
    assert!(!v.is_stored_as(b"") && !v.is_stored_as(&[1]) && !w.is_stored_as(&[0xff]));
}
