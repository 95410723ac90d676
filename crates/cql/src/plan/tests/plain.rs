//! Which writes are the same write whenever they are sent.

use super::super::{Plan, ValueSource};
use super::planned;
use crate::frame::notation::Value;
use crate::statement::Marker;

fn write(text: &str) -> super::super::WritePlan {
    match planned(text) {
        Plan::Write(plan) => plan,
        _ => panic!("{text} is no write"),
    }
}

fn nothing<'v>(_: &Marker) -> Option<Value<'v>> {
    None
}

/// How many statements are plain, and whether all of them may be sent again when the request has
/// no timestamp and when it has one.
fn repeatable(text: &str) -> (usize, bool, bool) {
    let plain = write(text).plain;
    let with = |at: Option<i64>| {
        !plain.is_empty() && plain.iter().all(|one| one.repeatable_at(&nothing, at).is_some())
    };
    (plain.len(), with(None), with(Some(5)))
}

#[test]
fn a_write_that_says_all_it_does_is_plain() {
    for text in [
        "INSERT INTO t (k, c, v) VALUES (1, 'a', 7)",
        "INSERT INTO t (k, c) VALUES (1, 'a')",
        "INSERT INTO t (k, c, v, w) VALUES (?, ?, null, ?)",
        "UPDATE t SET v = null, w = ? WHERE k = 1 AND c = 'a'",
        "UPDATE t SET v = 1 WHERE k = 1 AND c IN ('a', 'b')",
        "UPDATE stat SET s = 'x' WHERE k = 1",
        "INSERT INTO stat (k, c, s, v) VALUES (1, 2, 'x', 3)",
        "DELETE FROM t WHERE k = 1 AND c = 'a'",
        "DELETE v, w FROM t WHERE k = ? AND c = ?",
        "DELETE s FROM stat WHERE k = 1",
        "DELETE FROM t WHERE k = 1 AND c > 'a' AND c <= ?",
        "DELETE FROM multi WHERE a = 1 AND b = 'x' AND (c, d) > (1, ?)",
        "DELETE FROM t WHERE k = 1 AND c IN ?",
        "DELETE FROM t WHERE k = 1",
        "BEGIN BATCH DELETE FROM t WHERE k = 1 APPLY BATCH",
    ] {
        assert_eq!(repeatable(text), (1, false, true), "{text}");
    }
    for text in [
        "INSERT INTO t (k, c, v) VALUES (1, 'a', 7) USING TIMESTAMP 9 AND TTL 0",
        "DELETE FROM t USING TIMESTAMP 9 WHERE k = 1",
        "BEGIN BATCH USING TIMESTAMP 9 DELETE FROM t WHERE k = 1 APPLY BATCH",
        "BEGIN UNLOGGED BATCH DELETE FROM t USING TIMESTAMP 9 WHERE k = 1 APPLY BATCH",
    ] {
        assert_eq!(repeatable(text), (1, true, true), "{text}");
    }
    let two = "BEGIN BATCH USING TIMESTAMP 9 DELETE FROM t WHERE k = 1 \
               INSERT INTO t (k, c, v) VALUES (1, 'a', null) APPLY BATCH";
    assert_eq!(repeatable(two), (2, true, true));
}

#[test]
fn what_the_server_or_the_table_decides_is_not_plain() {
    for text in [
        "INSERT INTO t (k, c, v) VALUES (1, 'a', 7) IF NOT EXISTS",
        "DELETE FROM t WHERE k = 1 AND c = 'a' IF EXISTS",
        "INSERT INTO t (k, c, v) VALUES (1, 'a', blobAsInt(0x00))",
        "INSERT INTO ids (a, b, c, d, v) VALUES (1, uuid(), now(), 1, 1)",
        "DELETE FROM ids WHERE a = 1 AND b = uuid()",
        "DELETE FROM feed WHERE k = 1 AND c < now()",
        "DELETE FROM feed WHERE k = 1 AND c < maxTimeuuid(toTimestamp(now()))",
        "INSERT INTO t JSON '{\"k\": 1, \"c\": \"a\", \"v\": 7}'",
        "UPDATE t SET v = v + 1 WHERE k = 1 AND c = 'a'",
        "UPDATE t SET nothing = 1 WHERE k = 1 AND c = 'a'",
        "UPDATE coll SET l = [1] WHERE k = 1",
        "UPDATE coll SET l = null WHERE k = 1",
        "UPDATE coll SET l = l + ? WHERE k = 1",
        "UPDATE coll SET l = ? + l WHERE k = 1",
        "DELETE l[0] FROM coll WHERE k = 1",
        "UPDATE cnt SET n = n + 1 WHERE k = 1",
        "UPDATE triggered SET v = 1 WHERE k = 1",
        "DELETE FROM triggered WHERE k = 1",
        "DELETE FROM mv WHERE v = 1",
        "DELETE FROM unknown WHERE k = 1",
        "DELETE FROM t WHERE token(k) > 1",
        "TRUNCATE t",
        "BEGIN COUNTER BATCH UPDATE cnt SET n = n + 1 WHERE k = 1 APPLY BATCH",
        "BEGIN BATCH DELETE FROM t WHERE k = 1 UPDATE coll SET l = [1] WHERE k = 1 APPLY BATCH",
        "BEGIN BATCH DELETE FROM t WHERE k = 1 DELETE FROM t WHERE k = 1 IF EXISTS APPLY BATCH",
        "BEGIN BATCH APPLY BATCH",
    ] {
        assert_eq!(repeatable(text).0, 0, "{text}");
    }
}

#[test]
fn a_time_to_live_or_no_timestamp_is_another_write_each_time() {
    let ttl = "INSERT INTO t (k, c, v) VALUES (1, 'a', 7) USING TTL 10";
    assert_eq!(repeatable(ttl), (1, false, false));
    let least = &write("DELETE FROM t WHERE k = 1").plain[0];
    assert_eq!(least.repeatable_at(&nothing, Some(i64::MIN)), None, "the server takes it for none");
    assert_eq!(least.repeatable_at(&nothing, Some(-5)), Some(-5));
    let bound = &write("UPDATE t USING TIMESTAMP ? AND TTL ? SET v = 1 WHERE k = 1 AND c = 'a'");
    let with = |timestamp: Value<'_>, ttl: Value<'_>| {
        let value = |marker: &Marker| Some(if marker.index == 0 { timestamp } else { ttl });
        bound.plain[0].repeatable_at(&value, Some(5))
    };
    let (at, zero, ten) = (9_i64.to_be_bytes(), 0_i32.to_be_bytes(), 10_i32.to_be_bytes());
    let (at, zero, ten) = (Value::Bytes(&at), Value::Bytes(&zero), Value::Bytes(&ten));
    assert_eq!(with(at, zero), Some(9), "and not that of the request");
    for (at, ttl) in [
        (at, ten),
        (at, Value::Null),
        (at, Value::Unset),
        (Value::Null, zero),
        (Value::Unset, zero),
    ] {
        assert_eq!(with(at, ttl), None);
    }
}

#[test]
fn the_tables_time_to_live_is_that_of_what_is_set_and_not_of_what_is_deleted() {
    let with_ttl = |text: &str, default_ttl: u32| {
        let mut plain = write(text).plain.remove(0);
        std::sync::Arc::make_mut(&mut plain.table).default_ttl = default_ttl;
        plain.repeatable_at(&nothing, Some(5)).is_some()
    };
    let insert = "INSERT INTO t (k, c, v) VALUES (1, 'a', 7)";
    assert!(with_ttl(insert, 0) && !with_ttl(insert, 10));
    assert!(with_ttl("INSERT INTO t (k, c, v) VALUES (1, 'a', 7) USING TTL 0", 10));
    assert!(with_ttl("DELETE FROM t WHERE k = 1", 10));
}

#[test]
fn a_number_has_its_width() {
    let literal = ValueSource::Literal([0; 4].into());
    assert_eq!(literal.number::<4>(&nothing), Some([0; 4]));
    assert_eq!(literal.number::<8>(&nothing), None);
}
