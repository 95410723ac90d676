//! The table of statements.

use super::{planned, written};

/// Checks one `statement => expectation` a line.
pub(super) fn check(table: &[(&str, &str)]) {
    let wrong: Vec<String> = table
        .iter()
        .filter_map(|(text, expected)| {
            let got = written(&planned(text));
            (got != *expected).then(|| format!("{text}\n  expected {expected}\n  got      {got}"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn reads_of_one_row_are_cached() {
    check(&[
        ("SELECT * FROM ks.t WHERE k = 1 AND c = 'x'", "cached 1:00000001/78 -> k0,k1,r0,r1"),
        ("select * from t where k=1 and c='x'", "cached 1:00000001/78 -> k0,k1,r0,r1"),
        ("SELECT w, v FROM t WHERE c = ? AND k = ?", "cached 1:?1/?0 -> r1,r0"),
        ("SELECT v FROM t WHERE k = ? AND c = ?;", "cached 1:?0/?1 -> r0"),
        ("SELECT v FROM t WHERE k = ? AND c = ?;;", "cached 1:?0/?1 -> r0"),
        ("SELECT v FROM t WHERE k = :key AND c = :c", "cached 1::key/:c -> r0"),
        ("SELECT v FROM t WHERE k = :KEY AND c = :\"C\"", "cached 1::key/:C -> r0"),
        ("SELECT v AS w, w AS \"V\" FROM t WHERE k=? AND c=?", "cached 1:?0/?1 -> r0,r1"),
        ("SELECT v, v, k FROM t WHERE k=? AND c=?", "cached 1:?0/?1 -> r0,r0,k0"),
        ("SELECT V FROM KS.T WHERE K=? AND C=?", "cached 1:?0/?1 -> r0"),
        ("SELECT \"v\" FROM \"ks\".\"t\" WHERE \"k\"=? AND c=?", "cached 1:?0/?1 -> r0"),
        (
            "/* a */ SELECT /* b ; */ v -- c\n FROM t // d\n WHERE k=? AND c=?",
            "cached 1:?0/?1 -> r0",
        ),
        ("SELECT v FROM t WHERE (k = 1) AND (c = 'x')", "cached 1:00000001/78 -> r0"),
        ("SELECT v FROM t WHERE k = 1 AND (c) = ('x')", "cached 1:00000001/78 -> r0"),
        ("SELECT v FROM t WHERE k = 1 AND c = $$it's$$", "cached 1:00000001/69742773 -> r0"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'it''s'", "cached 1:00000001/69742773 -> r0"),
        ("SELECT v FROM t WHERE k = 1 AND c = ''", "cached 1:00000001/ -> r0"),
        ("SELECT v FROM t WHERE k = -1 AND c = '?'", "cached 1:ffffffff/3f -> r0"),
        ("SELECT v FROM t WHERE k = ? AND c = ? LIMIT 1", "cached 1:?0/?1 -> r0"),
        ("SELECT v FROM t WHERE k = ? AND c = ? LIMIT ?", "cached 1:?0/?1 -> r0 limit ?2"),
        ("SELECT v FROM one WHERE k = :k LIMIT :l", "cached 2::k/ -> r0 limit :l"),
        ("SELECT v FROM one WHERE k = ? PER PARTITION LIMIT 2", "cached 2:?0/ -> r0"),
        (
            "SELECT v FROM one WHERE k = ? PER PARTITION LIMIT ? LIMIT ?",
            "cached 2:?0/ -> r0 limit ?2 limit ?1",
        ),
        ("SELECT v FROM t WHERE k = :a AND c = :a", "cached 1::a/:a -> r0"),
        ("SELECT v FROM one WHERE k = 'a'", "cached 2:61/ -> r0"),
        (
            "SELECT v FROM multi WHERE a=1 AND b='x' AND (c, d) = (2, ?)",
            "cached 3:00000001,78/00000002,?0 -> r0",
        ),
        ("SELECT v FROM multi WHERE d=? AND c=? AND b=? AND a=?", "cached 3:?3,?2/?1,?0 -> r0"),
        ("SELECT * FROM frozen WHERE k = ?", "cached 6:?0/ -> k0,r0,r1"),
        ("SELECT \"from\" FROM \"Quoted\" WHERE \"K\" = 1", "cached 10:00000001/ -> r0"),
        ("SELECT \"a\"\"b\" FROM \"Quoted\" WHERE \"K\" = 1", "cached 10:00000001/ -> r1"),
        ("SELECT v FROM blobs WHERE k = 0xCAFE AND c = ?", "cached 11:cafe/?0 -> r0"),
        ("SELECT json FROM words WHERE key = 1", "cached 13:00000001/ -> r0"),
        ("SELECT distinct, json FROM words WHERE key = 1", "cached 13:00000001/ -> r1,r0"),
        ("SELECT count, ttl FROM words WHERE key = 1", "cached 13:00000001/ -> r2,r3"),
        ("SELECT \"token\" FROM words WHERE key = 1", "cached 13:00000001/ -> r4"),
    ]);
}

#[test]
fn names_that_no_answer_could_tell_are_not_understood() {
    let name = "x".repeat(70_000);
    check(&[
        (&format!("SELECT v AS {name} FROM t WHERE k = 1 AND c = 'x'"), "pass not-understood"),
        (&format!("SELECT key AS \"{name}\" FROM system.local"), "pass not-understood"),
    ]);
}

#[test]
fn reads_of_rows_of_several_partitions_are_cached() {
    check(&[
        ("SELECT v FROM t WHERE k IN (1, 2) AND c = 'x'", "rows 1:k -> r0"),
        ("SELECT v FROM t WHERE k IN ? AND c = ?", "rows 1:k -> r0"),
        ("SELECT v FROM t WHERE c = :c AND k IN :ks LIMIT :l", "rows 1:k -> r0"),
    ]);
}

#[test]
fn reads_of_other_than_one_row_pass_through() {
    check(&[
        ("SELECT * FROM t", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c != 'x'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND k = 2 AND c = 'x'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' AND v = 3 ALLOW FILTERING", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' AND v = 3", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND v = 3", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c LIKE 'x%'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c CONTAINS 'x'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c CONTAINS KEY 'x'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c NOT CONTAINS 'x'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c BETWEEN 'a' AND 'b'", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c NOT IN ('a')", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND c IS NOT NULL", "pass not-one-row"),
        ("SELECT v FROM t WHERE token(k) = 1", "pass not-one-row"),
        ("SELECT v FROM t WHERE token(k) > ? AND token(k) <= token(5)", "pass not-one-row"),
        ("SELECT v FROM t WHERE k = 1 AND v[3] = 4", "pass not-one-row"),
        ("SELECT v FROM t WHERE expr(idx, 'q')", "pass not-one-row"),
        ("SELECT v FROM multi WHERE a=1 AND b='x' AND (c, d) = ?", "pass not-one-row"),
        ("SELECT v FROM multi WHERE a=1 AND b='x' AND (c, d) > (1, ?)", "pass not-one-row"),
        (
            "SELECT v FROM multi WHERE a=1 AND b='x' AND (c, d) IN ((1, ?), (2, ?))",
            "pass not-one-row",
        ),
        ("SELECT v FROM multi WHERE a=1 AND b='x' AND (c, d) IN ?", "pass not-one-row"),
    ]);
}

#[test]
fn reads_with_other_clauses_and_of_expressions_pass_through() {
    check(&[
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' LIMIT 0", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' LIMIT -1", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' LIMIT 2147483648", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' PER PARTITION LIMIT 0", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' PER PARTITION LIMIT 0 LIMIT ?", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' ORDER BY c DESC", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 ORDER BY v ANN OF [0.1, 0.2] LIMIT 3", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' GROUP BY k, c", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' ALLOW FILTERING", "pass clause"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' BYPASS CACHE", "pass bypass"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' USING TIMEOUT 50ms", "pass bypass"),
        ("SELECT v FROM t WHERE k = 1 AND c = 'x' BYPASS CACHE USING TIMEOUT ?", "pass bypass"),
        ("SELECT JSON v FROM t WHERE k = 1 AND c = 'x'", "pass json"),
        ("SELECT JSON * FROM t WHERE k = 1 AND c = 'x'", "pass json"),
        ("SELECT JSON DISTINCT k FROM t", "pass json"),
        ("SELECT DISTINCT k FROM t WHERE k = 1", "pass distinct"),
        ("SELECT count(*) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT COUNT(1) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT writetime(v), ttl(v) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT max(v) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT ks.f(v, 3) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT token(k) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT cast(v AS text) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT CAST(f(v) AS double) AS d FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT (int) 5, v FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT v + 1 FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT -v FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT [v, 1], {v}, {v: 1}, (v, 2) FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT w['a'], w[1..2], w[..2], w.x FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT 'lit', 1, null, ? FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT now() FROM t WHERE k = 1 AND c = 'x'", "pass expression"),
        ("SELECT v FROM t WHERE k = 1 + 1 AND c = 'x'", "pass expression"),
        ("SELECT v FROM t WHERE k = f(1) AND c = 'x'", "pass expression"),
        ("SELECT v FROM t WHERE k = (int) 1 AND c = 'x'", "pass expression"),
        ("SELECT v FROM t WHERE k = cast(1.0 AS int) AND c = 'x'", "pass expression"),
    ]);
}

#[test]
fn reads_of_uncertain_keys_and_of_tables_that_are_not_cached_pass_through() {
    check(&[
        ("SELECT v FROM t WHERE k = null AND c = 'x'", "pass uncertain-literal"),
        ("SELECT v FROM t WHERE k = 1.5 AND c = 'x'", "pass uncertain-literal"),
        ("SELECT v FROM t WHERE k = '1' AND c = 'x'", "pass uncertain-literal"),
        ("SELECT v FROM t WHERE k = 99999999999 AND c = 'x'", "pass uncertain-literal"),
        ("SELECT nope FROM t WHERE k = 1 AND c = 'x'", "pass unknown-column"),
        ("SELECT \"V\" FROM t WHERE k = 1 AND c = 'x'", "pass unknown-column"),
        ("SELECT v FROM t WHERE k = 1 AND nope = 'x'", "pass not-one-row"),
        ("SELECT v FROM nope WHERE k = 1", "pass unknown-table"),
        ("SELECT v FROM other.t WHERE k = 1", "pass unknown-table"),
        ("SELECT v FROM \"T\" WHERE k = 1 AND c = 'x'", "pass unknown-table"),
        ("SELECT v, s FROM stat WHERE k = 1 AND c = 1", "cached 4:00000001/00000001 -> r1,r0"),
        ("SELECT * FROM stat WHERE k = 1 AND c = 1", "cached 4:00000001/00000001 -> k0,k1,r0,r1"),
        ("SELECT s FROM stat WHERE k = 1", "pass static-columns"),
        ("SELECT s FROM stat WHERE k = 1 AND c = 1", "pass not-one-row"),
        ("SELECT k, s FROM stat WHERE k = 1 AND c = 1", "pass not-one-row"),
        ("SELECT * FROM coll WHERE k = 1", "cached 5:00000001/ -> k0,r0,r1,r2"),
        ("SELECT m['a'] FROM coll WHERE k = 1", "pass expression"),
        ("SELECT * FROM old WHERE k = 1", "pass multi-cell-column"),
        ("SELECT * FROM custom WHERE k = 1", "pass custom-type"),
        ("SELECT * FROM cnt WHERE k = 1", "pass counter"),
        ("SELECT * FROM mv WHERE v = 1 AND k = 1", "pass view"),
        ("SELECT * FROM dec WHERE k = 1 AND c = 1.0", "pass key-type"),
        ("SELECT * FROM masked WHERE k = 1", "pass masked-column"),
        ("SELECT * FROM sets WHERE k = ?", "pass key-type"),
        ("SELECT * FROM nested WHERE k = ? AND c = ?", "pass key-type"),
        ("LIST ROLES", "pass list"),
        ("LIST ALL PERMISSIONS OF alice", "pass list"),
        ("DESCRIBE KEYSPACE ks", "pass describe"),
        ("DESC TABLES", "pass describe"),
    ]);
}

#[test]
fn text_that_only_can_read_is_a_read() {
    check(&[
        ("SELECT", "pass not-understood"),
        ("SELECT v FROM t WHERE k = 1 -- no line end", "pass not-understood"),
        ("SELECT v FROM t WHERE k = 1 AND", "pass not-understood"),
        ("SELECT v FRM t", "pass not-understood"),
        ("SELECT 'open FROM t", "pass not-understood"),
        ("SELECT v FROM t WHERE k = ? SOME NEW CLAUSE", "pass not-understood"),
        ("SELECT v FROM t; SELECT v FROM t", "everything"),
        ("SELECT v FROM t; DELETE FROM t WHERE k = 1", "everything"),
        ("SELECT v FROM t DELETE FROM t WHERE k = 1", "everything"),
        ("SELECT v -- \r DELETE FROM t WHERE k = 1", "everything"),
        ("SELECT v FROM t \u{e9}; DROP TABLE t", "everything"),
        ("", "everything"),
        (";", "everything"),
        ("-- SELECT", "everything"),
        ("hello", "everything"),
        ("EXPLAIN SELECT * FROM t", "everything"),
        ("(SELECT * FROM t)", "everything"),
    ]);
}

#[test]
fn system_tables_are_ours() {
    check(&[
        ("SELECT * FROM system.local", "system local"),
        ("SELECT * FROM system.local WHERE key='local'", "system local"),
        ("SELECT host_id FROM \"system\".\"peers\"", "system peers"),
        (
            "SELECT * FROM system.peers_v2 WHERE peer = :address AND peer_port = :port",
            "system peers_v2",
        ),
        ("SELECT count(*) FROM System.Peers", "system peers"),
        ("SELECT * FROM system.size_estimates", "pass unknown-table"),
        ("SELECT * FROM local", "pass unknown-table"),
        ("SELECT * FROM system_schema.tables", "pass unknown-table"),
        ("SELECT * FROM system_schema.keyspaces", "pass keyspaces"),
        (
            "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name IN ?",
            "pass keyspaces",
        ),
        ("SELECT * FROM keyspaces", "pass unknown-table"),
        ("INSERT INTO system.local (key) VALUES ('x')", "table system.local"),
    ]);
    let used =
        super::analyse(&super::parse("SELECT * FROM local"), &super::Fixture, Some("system"));
    assert_eq!(written(&used), "system local");
}

#[test]
fn inserts_name_their_rows() {
    check(&[
        ("INSERT INTO t (k, c, v) VALUES (1, 'x', 2)", "row 1:00000001/78"),
        ("INSERT INTO ks.t (c, v, k) VALUES (?, ?, ?)", "row 1:?2/?0"),
        ("INSERT INTO t (k, c, v) VALUES (:k, :c, :v) USING TTL ? AND TIMESTAMP ?", "row 1::k/:c"),
        ("INSERT INTO t (k, c) VALUES (1, 'x') IF NOT EXISTS", "row 1:00000001/78 + if"),
        (
            "INSERT INTO t (k, c, v) VALUES (1, 'x', 2) IF NOT EXISTS USING TTL 5",
            "row 1:00000001/78 + if",
        ),
        ("INSERT INTO t (k, v) VALUES (1, 2)", "partition 1:00000001"),
        ("INSERT INTO t (c, v) VALUES ('x', 2)", "table ks.t"),
        ("INSERT INTO t (k, c, v) VALUES (f(1), 'x', 2)", "table ks.t"),
        ("INSERT INTO t (k, c, v) VALUES (1, now(), 2)", "partition 1:00000001"),
        ("INSERT INTO t (k, c, v) VALUES (1, null, 2)", "partition 1:00000001"),
        ("INSERT INTO t (k, c, v) VALUES (null, 'x', 2)", "table ks.t"),
        ("INSERT INTO t (k, k, c) VALUES (1, 2, 'x')", "table ks.t"),
        ("INSERT INTO t (k, c, nope) VALUES (1, 'x', 2)", "partition 1:00000001"),
        ("INSERT INTO t (k, c) VALUES (1)", "table ks.t"),
        ("INSERT INTO t (k, c, v) VALUES (:a, :b, :a)", "row 1::a/:b"),
        ("INSERT INTO stat (k, c, v) VALUES (1, 2, 3)", "row 4:00000001/00000002"),
        ("INSERT INTO stat (k, c, s) VALUES (1, 2, 'x')", "partition 4:00000001"),
        ("INSERT INTO stat (k, s) VALUES (1, 'x')", "partition 4:00000001"),
        ("INSERT INTO coll (k, m, l) VALUES (1, {'a': 1}, [1, 2])", "row 5:00000001/"),
        ("INSERT INTO coll (k, u) VALUES (1, {street: 'x', no: 3})", "row 5:00000001/"),
        ("INSERT INTO coll (k, u) VALUES (1, (1, 'a'))", "row 5:00000001/"),
        ("INSERT INTO t JSON '{\"k\": 1, \"c\": \"x\"}'", "partition 1:00000001"),
        ("INSERT INTO t JSON ? DEFAULT UNSET IF NOT EXISTS USING TTL 3", "json 1:?0 + if"),
        ("INSERT INTO nope (k) VALUES (1)", "table ks.nope"),
        ("INSERT INTO other.t (k) VALUES (1)", "table other.t"),
        ("INSERT INTO dec (k, c, v) VALUES (1, 1.00, 2)", "row 9:00000001/0000000264"),
        ("INSERT INTO one (k, v) VALUES ('it''s', 0x00ff)", "row 2:69742773/"),
        ("insert into T(K,C,V)values(-7,'',-8)", "row 1:fffffff9/"),
        ("INSERT INTO t (k, c, v) VALUES (1, 'x', 2) USING TIMEOUT 5s", "row 1:00000001/78"),
    ]);
}

#[test]
fn updates_name_their_rows() {
    check(&[
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x'", "row 1:00000001/78"),
        ("UPDATE t USING TTL ? AND TIMESTAMP ? SET v = ? WHERE k = ? AND c = ?", "row 1:?3/?4"),
        ("UPDATE t USING TIMESTAMP 5 SET v = null, w = '' WHERE c = ? AND k = ?", "row 1:?1/?0"),
        (
            "UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' IF v = 2 AND w != 'y'",
            "row 1:00000001/78 + if",
        ),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' IF EXISTS", "row 1:00000001/78 + if"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' IF v IN (1, 2)", "row 1:00000001/78 + if"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' IF v IN ?", "row 1:00000001/78 + if"),
        (
            "UPDATE t SET v = 1 WHERE k IN (1, 2) AND c = 'x'",
            "row 1:00000001/78 + row 1:00000002/78",
        ),
        (
            "UPDATE t SET v = 1 WHERE k IN (1, ?) AND c IN ('x', ?)",
            "row 1:00000001/78 + row 1:00000001/?1 + row 1:?0/78 + row 1:?0/?1",
        ),
        ("UPDATE t SET v = 1 WHERE k IN ? AND c = 'x'", "rows 1:each of ?0/78"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c IN ?", "rows 1:00000001/each of ?0"),
        ("UPDATE t SET v = 1 WHERE k IN () AND c = 'x'", "table ks.t"),
        ("UPDATE t SET v = 1 WHERE k = 1", "partition 1:00000001"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c > 'x'", "partition 1:00000001"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND k = 2 AND c = 'x'", "table ks.t"),
        ("UPDATE t SET v = 1 WHERE c = 'x'", "table ks.t"),
        ("UPDATE t SET v = 1 WHERE token(k) = 5 AND c = 'x'", "table ks.t"),
        ("UPDATE t SET v = 1 WHERE (k) = (1) AND (c) = ('x')", "row 1:00000001/78"),
        (
            "UPDATE multi SET v = 1 WHERE a = 1 AND b = ? AND (c, d) = (2, ?)",
            "row 3:00000001,?0/00000002,?1",
        ),
        ("UPDATE multi SET v = 1 WHERE a = 1 AND b = ? AND (c, d) = ?", "partition 3:00000001,?0"),
        (
            "UPDATE multi SET v = 1 WHERE a = 1 AND b = ? AND (c, d) IN ((1, ?))",
            "partition 3:00000001,?0",
        ),
        ("UPDATE multi SET v = 1 WHERE a = 1 AND c = 2 AND d = ?", "table ks.multi"),
    ]);
}

#[test]
fn updates_of_statics_collections_and_counters_name_their_rows() {
    check(&[
        ("UPDATE stat SET s = 'x' WHERE k = 1", "partition 4:00000001"),
        ("UPDATE stat SET s = 'x', v = 1 WHERE k = 1 AND c = 2", "partition 4:00000001"),
        ("UPDATE stat SET v = 1 WHERE k = 1 AND c = 2 IF s = 'x'", "row 4:00000001/00000002 + if"),
        ("UPDATE coll SET m['k'] = 1 WHERE k = 1", "row 5:00000001/"),
        ("UPDATE coll SET m[?] = ?, l[0] = 5 WHERE k = ?", "row 5:?2/"),
        (
            "UPDATE coll SET m['a'] = ?, u.street = 'x' WHERE k = 1 IF m['a'] = 3 AND u.no > 5",
            "row 5:00000001/ + if",
        ),
        ("UPDATE coll SET m = m + {'a': 1}, l = [1] + l WHERE k = 1", "row 5:00000001/"),
        ("UPDATE coll SET l = l - [1], m += {'a': 1} WHERE k = 1", "row 5:00000001/"),
        ("UPDATE coll SET l = ? + l WHERE k = ?", "row 5:?1/"),
        ("UPDATE cnt SET n = n + 1 WHERE k = 1", "row 7:00000001/ + counter"),
        ("UPDATE cnt SET n = n - 1 WHERE k = 1", "row 7:00000001/ + counter"),
        ("UPDATE cnt SET n=n-1 WHERE k=1", "row 7:00000001/ + counter"),
        ("UPDATE cnt SET n -= ? WHERE k = ?", "row 7:?1/ + counter"),
        ("UPDATE cnt SET n = other + 1 WHERE k = 1", "table ks.cnt"),
        (
            "UPDATE t SET v = (int) 5, w = cast(3 AS text) WHERE k = 1 AND c = 'x'",
            "row 1:00000001/78",
        ),
        ("UPDATE t SET v = -(int) ? + 3 * 2 WHERE k = 1 AND c = ?", "row 1:00000001/?1"),
        ("UPDATE t SET v = 1", "table ks.t"),
        ("UPDATE sets SET v = 1 WHERE k = ?", "table ks.sets"),
        ("UPDATE nested SET v = 1 WHERE k = 1 AND c = {1, 2}", "partition 15:00000001"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' WITH SPICE", "table ks.t"),
        ("UPDATE \"Quoted\" SET \"from\" = 1 WHERE \"K\" = 1", "row 10:00000001/"),
        ("UPDATE \"Quoted\" SET \"from\" = 1 WHERE K = 1", "table ks.Quoted"),
        ("UPDATE mv SET w = 'x' WHERE v = 1 AND k = 2", "row 8:00000001/00000002"),
        ("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' -- no line end", "table ks.t"),
        ("UPDATE ks.\u{e9} SET v = 1", "everything"),
    ]);
}

#[test]
fn deletes_name_rows_or_partitions() {
    check(&[
        ("DELETE FROM t WHERE k = 1 AND c = 'x'", "row 1:00000001/78"),
        ("DELETE v, w FROM t WHERE k = 1 AND c = 'x'", "row 1:00000001/78"),
        ("DELETE FROM t USING TIMESTAMP ? WHERE k = ? AND c = ?", "row 1:?1/?2"),
        ("DELETE FROM t WHERE k = 1", "partition 1:00000001"),
        ("DELETE FROM t WHERE k IN (1, 2)", "partition 1:00000001 + partition 1:00000002"),
        ("DELETE FROM t WHERE k = 1 AND c > 'a' AND c < 'b'", "partition 1:00000001"),
        ("DELETE FROM t WHERE k = 1 AND c IN ('a', 'b')", "row 1:00000001/61 + row 1:00000001/62"),
        ("DELETE FROM multi WHERE a = 1 AND b = 'x' AND c = 2", "partition 3:00000001,78"),
        ("DELETE FROM multi WHERE a = 1", "table ks.multi"),
        ("DELETE FROM t WHERE c = 'x'", "table ks.t"),
        ("DELETE FROM t WHERE k = 1 AND c = 'x' IF EXISTS", "row 1:00000001/78 + if"),
        ("DELETE FROM t WHERE k = 1 AND c = 'x' IF v = 3", "row 1:00000001/78 + if"),
        ("DELETE s FROM stat WHERE k = 1", "partition 4:00000001"),
        ("DELETE s FROM stat WHERE k = 1 AND c = 2", "partition 4:00000001"),
        ("DELETE v FROM stat WHERE k = 1 AND c = 2", "row 4:00000001/00000002"),
        ("DELETE m['k'] FROM coll WHERE k = 1", "row 5:00000001/"),
        ("DELETE m[?], l[0], u.street FROM coll WHERE k = ?", "row 5:?1/"),
        ("DELETE FROM one WHERE k = ?", "row 2:?0/"),
        ("DELETE FROM nope WHERE x = 1", "table ks.nope"),
        ("DELETE FROM t", "everything"),
        ("DELETE FROM t WHERE", "table ks.t"),
        ("DELETE * FROM t WHERE k = 1", "table ks.t"),
        ("DELETE FROM t WHERE k = 1; DELETE FROM one WHERE k = 'x'", "everything"),
        ("TRUNCATE t", "table ks.t"),
        ("TRUNCATE TABLE ks.t;", "table ks.t"),
        ("TRUNCATE other.x", "table other.x"),
        ("TRUNCATE", "everything"),
    ]);
}

#[test]
fn batches_touch_what_their_parts_touch() {
    check(&[
        (
            "BEGIN BATCH INSERT INTO t (k, c) VALUES (1, 'x'); DELETE FROM one WHERE k = 'y'; APPLY BATCH",
            "row 1:00000001/78 + row 2:79/",
        ),
        (
            "BEGIN UNLOGGED BATCH USING TIMESTAMP ? UPDATE t SET v = ? WHERE k = ? AND c = ? APPLY BATCH;",
            "row 1:?2/?3",
        ),
        (
            "BEGIN COUNTER BATCH UPDATE cnt SET n = n + 1 WHERE k = 1; APPLY BATCH",
            "row 7:00000001/ + counter",
        ),
        (
            "BEGIN BATCH UPDATE t SET v = 1 WHERE k = 1 AND c = 'x' IF v = 2; INSERT INTO t (k, c) VALUES (1, 'x') APPLY BATCH",
            "row 1:00000001/78 + if",
        ),
        (
            "BEGIN BATCH DELETE FROM t WHERE k = ? UPDATE one SET v = ? WHERE k = ? APPLY BATCH",
            "partition 1:?0 + row 2:?2/",
        ),
        (
            "BEGIN BATCH DELETE FROM t WHERE c = 'x'; UPDATE nope SET a = 1 WHERE b = 2; APPLY BATCH",
            "table ks.t + table ks.nope",
        ),
        ("BEGIN BATCH APPLY BATCH", "nothing"),
        ("BEGIN BATCH SELECT * FROM t; APPLY BATCH", "everything"),
        ("BEGIN BATCH INSERT INTO t (k, c) VALUES (1, 'x');", "everything"),
        (
            "BEGIN BATCH INSERT INTO t (k, c) VALUES (:a, 'x'); INSERT INTO t (k, c) VALUES (:a, 'y'); APPLY BATCH",
            "row 1::a/78 + row 1::a/79",
        ),
        (
            "BEGIN TRANSACTION UPDATE t SET v = 1 WHERE k = 1 AND c = 'x'; COMMIT TRANSACTION",
            "everything",
        ),
    ]);
}

#[test]
fn schema_and_access_statements() {
    check(&[
        ("CREATE TABLE ks.new (k int PRIMARY KEY, v text) WITH comment = 'x;y'", "nothing"),
        ("CREATE TABLE IF NOT EXISTS new (k int, c int, PRIMARY KEY ((k), c))", "nothing"),
        ("CREATE COLUMNFAMILY new (k int PRIMARY KEY)", "nothing"),
        ("ALTER TABLE t ADD x int", "table ks.t"),
        ("ALTER TABLE t WITH default_time_to_live = 5", "table ks.t"),
        ("ALTER TABLE IF EXISTS other.t DROP v", "table other.t"),
        ("DROP TABLE IF EXISTS t", "table ks.t"),
        (
            "CREATE KEYSPACE k2 WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
            "nothing",
        ),
        ("CREATE SCHEMA IF NOT EXISTS \"K2\" WITH replication = {}", "nothing"),
        ("ALTER KEYSPACE k2 WITH durable_writes = false", "keyspace k2"),
        ("DROP KEYSPACE IF EXISTS k2", "keyspace k2"),
        ("CREATE TYPE address (street text)", "nothing"),
        ("ALTER TYPE k2.address ADD no int", "keyspace k2"),
        ("DROP TYPE address", "keyspace ks"),
        (
            "CREATE OR REPLACE FUNCTION k2.f (a int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS $$ return a; $$",
            "nothing",
        ),
        ("DROP FUNCTION IF EXISTS f(int)", "keyspace ks"),
        ("CREATE AGGREGATE a(int) SFUNC f STYPE int", "nothing"),
        ("DROP AGGREGATE a", "keyspace ks"),
        ("CREATE INDEX ON t (v)", "nothing"),
        ("CREATE CUSTOM INDEX IF NOT EXISTS idx ON k2.t (keys(m)) USING 'sai'", "nothing"),
        ("DROP INDEX k2.idx", "keyspace k2"),
        (
            "CREATE MATERIALIZED VIEW view2 AS SELECT * FROM t WHERE k IS NOT NULL PRIMARY KEY (k)",
            "nothing",
        ),
        ("ALTER MATERIALIZED VIEW k2.view2 WITH comment = ''", "table k2.view2"),
        ("DROP MATERIALIZED VIEW view2", "table ks.view2"),
        ("CREATE TRIGGER trig ON t USING 'x'", "table ks.t"),
        ("DROP TRIGGER IF EXISTS trig ON k2.t", "table k2.t"),
        ("CREATE ROLE alice WITH PASSWORD = 'x' AND LOGIN = true", "nothing"),
        ("ALTER USER alice WITH PASSWORD 'x'", "nothing"),
        ("DROP ROLE IF EXISTS alice", "nothing"),
        ("GRANT SELECT ON KEYSPACE ks TO alice", "nothing"),
        ("REVOKE ALL ON ks.t FROM alice", "nothing"),
        ("ADD IDENTITY 'spiffe://x' TO ROLE 'r'", "nothing"),
        ("CREATE SERVICE LEVEL sl WITH timeout = 5ms", "nothing"),
        ("GRANT SELECT ON t TO alice; DROP TABLE t", "everything"),
        ("DROP TABLE t; DROP TABLE one", "everything"),
        ("CREATE SOMETHING new", "everything"),
        ("PRUNE MATERIALIZED VIEW mv WHERE v = 1", "everything"),
        ("USE ks", "use ks"),
        ("USE \"Ks\";", "use Ks"),
        ("USE", "odd use"),
    ]);
}

#[test]
fn without_a_keyspace_nothing_is_certain() {
    let plan = |text: &str| written(&super::analyse(&super::parse(text), &super::Fixture, None));
    assert_eq!(plan("UPDATE t SET v = 1 WHERE k = 1 AND c = 'x'"), "everything");
    assert_eq!(plan("UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 'x'"), "row 1:00000001/78");
    assert_eq!(plan("SELECT v FROM t WHERE k = 1 AND c = 'x'"), "pass unknown-table");
    assert_eq!(plan("DROP TYPE address"), "everything");
}

#[test]
fn many_keys_widen_instead_of_growing() {
    let list: Vec<String> = (0..65).map(|i| i.to_string()).collect();
    let text = format!("DELETE FROM t WHERE k = 1 AND c IN ('{}')", list.join("','"));
    assert_eq!(written(&planned(&text)), "partition 1:00000001");
    let text = format!("DELETE FROM t WHERE k IN ({})", list.join(","));
    assert_eq!(written(&planned(&text)), "table ks.t");
}

#[test]
fn a_server_that_counts_other_binds_is_not_second_guessed() {
    let plan = |text: &str, count: usize| {
        let mut parsed = super::parse(text);
        parsed.expect_binds(count);
        written(&super::analyse(&parsed, &super::Fixture, Some("ks")))
    };
    assert_eq!(plan("UPDATE t SET v = ? WHERE k = ? AND c = ?", 3), "row 1:?1/?2");
    assert_eq!(plan("UPDATE t SET v = ? WHERE k = ? AND c = ?", 2), "table ks.t");
    assert_eq!(plan("SELECT v FROM t WHERE k = ? AND c = ?", 3), "pass uncertain-binds");
}

#[test]
fn tuples_pin_down_clustering_columns_in_their_order_only() {
    use super::super::*;
    use super::{Fixture, parse};
    let cached = |text: &str| {
        let parsed = parse(&format!("SELECT v FROM ks.multi WHERE {text}"));
        matches!(analyse(&parsed, &Fixture, None), Plan::CachedRead(_))
    };
    assert!(
        cached("a = ? AND b = ? AND (c, d) = (?, ?)")
            && cached("a = ? AND b = ? AND (c) = (?) AND d = ?")
    );
    for refused in [
        "(a) = (?) AND b = ? AND c = ? AND d = ?",
        "(a, b) = (?, ?) AND c = ? AND d = ?",
        "a = ? AND b = ? AND (d, c) = (?, ?)",
        "a = ? AND (b, c, d) = (?, ?, ?)",
    ] {
        assert!(!cached(refused), "the database refuses {refused}");
    }
}
