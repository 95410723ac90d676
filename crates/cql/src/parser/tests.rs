//! Tests of what the parser keeps of a text; classification has its own table with planning.

use crate::lexer::MOST_TOKENS;
use crate::statement::*;

fn select(text: &str) -> Select {
    match parse(text).statement {
        Statement::Select(select) => *select,
        other => panic!("{text}: {other:?}"),
    }
}

fn modification(text: &str) -> Modification {
    match parse(text).statement {
        Statement::Modification(modification) => *modification,
        other => panic!("{text}: {other:?}"),
    }
}

/// Names of the markers in order, `?` for those without.
fn markers(text: &str) -> String {
    let markers = parse(text).markers;
    markers.iter().map(|name| name.as_deref().unwrap_or("?")).collect::<Vec<_>>().join(",")
}

#[test]
fn markers_are_numbered_as_they_are_written() {
    let table = [
        (
            "SELECT f(?, :a) FROM t WHERE k = :b AND c IN :C GROUP BY x PER PARTITION LIMIT :p LIMIT ?",
            "?,a,b,c,p,?",
        ),
        (
            "INSERT INTO t (a, b, c) VALUES (:x, {:y: ?}, (int) ?) USING TTL :t AND TIMESTAMP ?",
            "x,y,?,?,t,?",
        ),
        (
            "UPDATE t USING TTL :t SET a = ? + a, b[:i] = :v, c.d = -:n WHERE k IN (:k1, :k2) IF e[?] IN (?, :z)",
            "t,?,i,v,n,k1,k2,?,?,z",
        ),
        ("DELETE m[:i] FROM t USING TIMESTAMP :ts WHERE (a, b) = (:a, :b)", "i,ts,a,b"),
        (
            "BEGIN BATCH USING TIMESTAMP :b DELETE FROM t WHERE k = :k1; DELETE FROM t WHERE k = ? APPLY BATCH",
            "b,k1,?",
        ),
        ("INSERT INTO t JSON :doc IF NOT EXISTS USING TTL :ttl", "doc,ttl"),
    ];
    for (text, expected) in table {
        assert_eq!(markers(text), expected, "{text}");
    }
}

#[test]
fn a_production_that_was_given_up_leaves_no_markers_behind() {
    assert_eq!(markers("SELECT json, ? FROM t WHERE (k) = (?)"), "?,?");
    assert_eq!(markers("UPDATE t SET l = [?] + l, n = n + ? WHERE (k = ?)"), "?,?,?");
}

#[test]
fn clauses_of_a_select_are_kept() {
    let select =
        select("SELECT JSON DISTINCT a, b.c AS \"X\", count(*) AS n FROM ks.\"T\" WHERE k = 1");
    assert!(select.json && select.distinct && select.order.is_empty() && !select.allow_filtering);
    assert_eq!(select.table, TableName { keyspace: Some("ks".into()), name: "T".into() });
    let selectors: Vec<_> = select.selectors.into_iter().map(|s| (s.what, s.alias)).collect();
    assert_eq!(
        selectors,
        [
            (Selected::Column("a".into()), None),
            (Selected::Expression, Some("X".into())),
            (Selected::CountRows, Some("n".into())),
        ]
    );
}

#[test]
fn clauses_of_an_update_are_kept() {
    let update = modification(
        "UPDATE t USING TTL 5 AND TIMESTAMP ? SET \"A\" = 1, b['x'] = 2, c.d = 3 WHERE k = 1 IF A = 1",
    );
    assert_eq!(update.columns, ["A", "b", "c"]);
    assert_eq!(update.ttl, Some(Term::Literal(Literal::Integer("5".into()))));
    assert_eq!(update.timestamp, Some(Term::Marker(Marker { index: 0, name: None })));
    assert!(update.conditional);
}

#[test]
fn strings_and_names_are_unescaped() {
    let insert = modification("INSERT INTO t (\"a\"\"b\", C) VALUES ('it''s', $$a'$b$$)");
    assert_eq!(insert.columns, ["a\"b", "c"]);
    let value = |at: usize| match &insert.relations[at] {
        Relation::Column { values, .. } => values[0].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(value(0), Term::Literal(Literal::String("it's".into())));
    assert_eq!(value(1), Term::Literal(Literal::String("a'$b".into())));
}

#[test]
fn reserved_words_are_names_in_quotes_only() {
    assert!(super::RESERVED.is_sorted());
    for word in super::RESERVED {
        let upper = word.to_ascii_uppercase();
        assert!(
            matches!(parse(&format!("TRUNCATE {upper}")).statement, Statement::Unknown(_)),
            "{word}"
        );
        let name = TableName { keyspace: None, name: upper.clone() };
        assert_eq!(parse(&format!("TRUNCATE \"{upper}\"")).statement, Statement::Truncate(name));
    }
    for word in ["key", "values", "timestamp", "exists", "json", "ttl", "counter", "partition"] {
        let name = TableName { keyspace: None, name: word.into() };
        assert_eq!(parse(&format!("TRUNCATE {word}")).statement, Statement::Truncate(name));
    }
}

#[test]
fn a_text_that_begins_with_use_and_is_no_plain_use_is_told_apart() {
    let ends = ";".repeat(MOST_TOKENS);
    for text in [
        format!("USE ks2{ends}"),
        format!("/* ; */ uSe \"Ks\" {ends}"),
        "-- a comment\rUSE table".into(),
        "use ks; select * from t".into(),
        "USE ks.t".into(),
        "USE".into(),
        "use ks2 \u{a0}".into(),
        format!("USE {}", "k".repeat(70_000)),
    ] {
        let start: String = text.chars().take(40).collect();
        assert_eq!(parse(&text).statement, Statement::OddUse, "{start}");
    }
    for text in ["USE ks2;;;", "use \"ks2\"", "USE/**/ks2 -- ends here\n"] {
        assert_eq!(parse(text).statement, Statement::Use("ks2".into()), "{text}");
    }
    for text in [format!("TRUNCATE use {ends}"), "user ks2".into(), "\"use\" ks2".into()] {
        assert!(matches!(parse(&text).statement, Statement::Unknown(_)));
    }
}
