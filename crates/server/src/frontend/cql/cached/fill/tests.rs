//! Tests of what a fill makes of the types that nodes say.

use afterglow_cql::frame::Header;
use afterglow_cql::schema::Schema;

use super::*;
use crate::frontend::cql::cached::testing::{keyed, read_of};

const INT: &[u8] = &[0, 9];
const TEXT: &[u8] = &[0, 13];

/// A table with a value of a user type, of which the plan has but the name.
fn plan() -> ReadPlan {
    let mut table = keyed("t", 7);
    table.regulars[0].cql_type = "frozen<address>".to_owned();
    read_of(&Schema::of_tables([table]), "t").0
}

fn of(plan: &ReadPlan, id: u8, value: &[u8]) -> FillStatement {
    FillStatement {
        id: vec![id],
        metadata_id: None,
        types: vec![INT.to_vec(), value.to_vec()],
        keys: 1,
        table: plan.table.clone(),
        fingerprint: plan.fingerprint,
    }
}

fn specs<'s>(names: &[&'s str], types: &[&'s [u8]]) -> Vec<ColumnSpec<'s>> {
    let spec = |(name, type_bytes): (&&'s str, &&'s [u8])| ColumnSpec {
        keyspace: "ks",
        table: "t",
        name,
        type_bytes,
    };
    names.iter().zip(types).map(spec).collect()
}

const NAMES: [&str; 4] = ["k", "v", "writetime(v)", "ttl(v)"];

/// A RESULT with columns of these types.
fn result(types: [&[u8]; 4], encode: impl FnOnce(&MetadataOut<'_>, &mut Vec<u8>)) -> Envelope {
    let (columns, mut body) = (specs(&NAMES, &types), Vec::new());
    encode(&MetadataOut::of_table(&columns), &mut body);
    let header = Header::new(Version::V5, 0, Opcode::Result);
    Envelope { header, body: body.into() }
}

/// It was dropped and made again with another type, or a user type altered. A client decodes by
/// the type that it knows.
#[test]
fn a_table_whose_columns_have_other_types_is_prepared_anew() {
    let plan = plan();
    let statements = FillStatements::default();
    let key = |kind| (plan.table.id, Version::V5, kind);
    let unit = StatementKind::Unit { reversed: true };
    let remember = |generation, kind, id, value| {
        let known = statements.remember(key(kind), generation, of(&plan, id, value));
        known.map(|_| ()).err()
    };
    let ready = |generation| {
        let of_kind = |kind| statements.ready_of(kind, &plan, Version::V5, generation);
        [StatementKind::Row, unit].map(|kind| of_kind(kind).map(|known| known.id[0]))
    };
    let other = Some(FillFailure::OtherTypes);
    assert_eq!(remember(1, StatementKind::Row, 1, TEXT), None);
    assert_eq!(remember(1, unit, 2, TEXT), None);
    assert_eq!(remember(1, StatementKind::Row, 3, TEXT), None, "the same types");
    assert_eq!((ready(1), statements.is_disputed(1)), ([Some(3), Some(2)], false));
    assert_eq!(remember(1, unit, 4, INT), other, "units are compared with rows");
    assert_eq!((ready(1), statements.is_disputed(1)), ([None, None], true));
    assert_eq!(remember(1, unit, 5, INT), None);
    // Fills under way that began with the one of before need not do so again.
    let of_before = of(&plan, 1, TEXT);
    assert_eq!(statements.refute(&of_before, Version::V5, 1), FillFailure::Failed);
    assert_eq!(ready(1), [None, Some(5)]);
    // A type of its own may have changed from one schema to the next, and rows of before be
    // there.
    assert_eq!(remember(2, StatementKind::Row, 6, TEXT), other);
    assert_eq!(remember(2, StatementKind::Row, 7, TEXT), None);
    assert_eq!(ready(2), [Some(7), None]);
    assert_eq!(Some(statements.refute(&of_before, Version::V5, 2)), other);
    assert_eq!((ready(2), statements.is_disputed(2)), ([None, None], true));
}

#[test]
fn an_answer_counts_only_with_the_types_that_its_statement_has() {
    let plan = plan();
    let statement = of(&plan, 1, TEXT);
    let counts = |types: [&[u8]; 4]| {
        let answer = result(types, |metadata, out| {
            response::encode_rows_start(Version::V5, metadata, 0, out);
        });
        let key = read_of(&Schema::of_tables([keyed("t", 7)]), "t").1;
        let (shape, consistency) = (FillShape::Row, Consistency::LocalQuorum);
        let ask = Ask { plan: &plan, key: &key, shape, consistency };
        read(&answer, &statement, &ask, 0).map(|_| ())
    };
    assert_eq!(counts([INT, TEXT, BIGINT, INT]), Ok(()));
    let other = Err(FillFailure::OtherTypes);
    assert_eq!(counts([INT, INT, BIGINT, INT]), other, "a user type was altered");
    // What is cached is of the plan.
    assert_eq!(counts([TEXT, TEXT, BIGINT, INT]), Err(FillFailure::Failed));
}

#[test]
fn a_node_that_says_another_native_type_than_the_plan_is_not_believed() {
    let plan = plan();
    let is_understood = |types| {
        let answer = result(types, |metadata, out| {
            let bound = specs(&["k"], &[INT]);
            let id = Some(&b"m"[..]);
            response::encode_prepared(Version::V5, b"id", id, &[0], &bound, metadata, out);
        });
        understand(&answer, &plan).is_some()
    };
    assert!(is_understood([INT, TEXT, BIGINT, INT]));
    assert!(is_understood([INT, INT, BIGINT, INT]), "the plan has its name alone");
    assert!(!is_understood([TEXT, TEXT, BIGINT, INT]));
}

/// Version 3 has no numbers for them.
#[test]
fn the_youngest_native_types_may_be_said_by_their_classes() {
    fn named(type_bytes: &[u8]) -> ColumnSpec<'_> {
        ColumnSpec { type_bytes, ..specs(&["v"], &[INT])[0] }
    }
    let class = [&[0, 0, 0, 5][..], b"class"].concat();
    for (column, code) in [("date", 0x11), ("time", 0x12), ("smallint", 0x13), ("tinyint", 0x14)] {
        let column = Column::new("v", column);
        let number = [0, code];
        assert!([&class[..], &number].iter().all(|said| has_its_type(&named(said), &column)));
        assert!(!has_its_type(&named(INT), &column));
    }
    assert!(!has_its_type(&named(&class), &Column::new("v", "inet")));
}
