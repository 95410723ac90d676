//! What a write touches.

use std::cell::Cell;

use afterglow_cql::plan::{Column, Plan, TableSchema, analyse};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;

use super::*;

/// A table `ks.t` that is gone.
const FORMER: Uuid = Uuid::from_u128(6);

/// Nothing, one table `ks.t`, or an unknown schema.
enum Known {
    Unknown,
    Nothing,
    Table(Uuid),
}

impl Tables for Known {
    fn gate(&self, id: Uuid) -> Option<u32> {
        matches!(self, Known::Table(known) if *known == id).then(|| gate_of("ks", "t"))
    }

    fn with_gate(&self, gate: u32) -> Vec<Uuid> {
        match self {
            Known::Table(id) if gate == gate_of("ks", "t") => vec![*id],
            _ => Vec::new(),
        }
    }

    fn id(&self, keyspace: &str, table: &str) -> Option<Uuid> {
        match self {
            Known::Table(id) if (keyspace, table) == ("ks", "t") => Some(*id),
            _ => None,
        }
    }

    fn former_gate(&self, id: Uuid) -> Option<u32> {
        (id == FORMER).then(|| gate_of("ks", "t"))
    }

    fn tables_in(&self, keyspace: &str) -> Vec<(u32, Uuid)> {
        let id = self.id(keyspace, "t");
        id.map(|id| (gate_of("ks", "t"), id)).into_iter().collect()
    }

    fn is_unknown(&self) -> bool {
        matches!(self, Known::Unknown)
    }
}

fn scope_of(target: &Target, known: &Known) -> WriteScope {
    let mut scope = WriteScope::default();
    scope.add_target(target, &|_| None, known);
    scope
}

#[test]
fn what_names_a_keyspace_may_be_in_vain_also_if_that_has_no_tables() {
    let schema = Schema::default();
    for (text, known, may_be) in [
        ("DROP KEYSPACE ks", Known::Nothing, true),
        ("DROP INDEX IF EXISTS ks.none", Known::Nothing, true),
        ("DROP KEYSPACE ks", Known::Table(Uuid::from_u128(7)), true),
        ("TRUNCATE ks.t", Known::Table(Uuid::from_u128(7)), true),
        (
            "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy'}",
            Known::Nothing,
            false,
        ),
        // It closes the gate of a table that is not there.
        ("DROP TABLE ks.none", Known::Nothing, false),
    ] {
        let Plan::Write(plan) = analyse(&parse(text), &schema, None) else { panic!("{text}") };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &known);
        assert_eq!(scope.may_be_in_vain(), may_be, "{text}");
    }
    // Nobody asks for what we drop ourselves.
    let target = Target::Keyspace("ks".into());
    assert!(!scope_of(&target, &Known::Nothing).may_be_in_vain());
}

#[test]
fn while_the_schema_is_unknown_every_write_drops_everything() {
    let table = Target::Table { keyspace: "ks".into(), table: "t".into(), id: None };
    for target in [table, Target::Keyspace("ks".into())] {
        let scope = scope_of(&target, &Known::Unknown);
        assert_eq!(
            (scope.gates(), scope.invalidations()),
            (vec![GateScope::Everything], &[Invalidation::Everything][..])
        );
    }
}

#[test]
fn a_table_that_comes_between_plan_and_gate_makes_the_plan_stale() {
    let target = Target::Table { keyspace: "ks".into(), table: "t".into(), id: None };
    let table = Known::Table(Uuid::from_u128(7));
    let planned = scope_of(&target, &Known::Nothing);
    assert_eq!(planned.gates(), [GateScope::Table(gate_of("ks", "t"))]);
    let gates = [GateScope::Table(gate_of("ks", "t"))];
    let all = [Invalidation::Table(group_of(Uuid::from_u128(7)))];
    assert!(planned.of_newer(&Known::Nothing).is_empty());
    // It may also come between gate and answer.
    for appeared in [planned.of_newer(&table), planned.replaced(&table)] {
        assert_eq!((&appeared.gates()[..], appeared.invalidations()), (&gates[..], &all[..]));
    }
    let known = scope_of(&target, &table);
    assert!(known.of_newer(&table).is_empty());
    let gone = known.of_newer(&Known::Nothing);
    assert_eq!((&gone.gates()[..], gone.invalidations()), (&gates[..], &all[..]));
    let again = known.of_newer(&Known::Table(Uuid::from_u128(8)));
    let both = [8, 7].map(|id| Invalidation::Table(group_of(Uuid::from_u128(id))));
    assert_eq!((&again.gates()[..], again.invalidations()), (&gates[..], &both[..]));
}

/// A member of a ring hears of writes of others before it has a snapshot of its own.
#[test]
fn a_write_that_another_planned_without_its_table_touches_everything_where_no_schema_is_known() {
    let target = Target::Table { keyspace: "ks".into(), table: "t".into(), id: None };
    let planned = scope_of(&target, &Known::Nothing);
    let heard = WriteScope::decode(&planned.encode()).unwrap();
    assert_eq!(heard.of_newer(&Known::Unknown), WriteScope::everything());
    let of_known = scope_of(&Target::NewPartition(FORMER), &Known::Table(FORMER));
    let heard = WriteScope::decode(&of_known.encode()).unwrap();
    assert_eq!(heard.of_newer(&Known::Unknown), WriteScope::everything());
    assert!(WriteScope::default().of_newer(&Known::Unknown).is_empty());
}

#[test]
fn a_write_of_a_table_that_went_a_moment_ago_touches_what_has_its_name() {
    let gates = [GateScope::Table(gate_of("ks", "t"))];
    let of = |id: Uuid| Invalidation::Table(group_of(id));
    let made = Uuid::from_u128(7);
    for (known, dropped) in
        [(Known::Nothing, vec![of(FORMER)]), (Known::Table(made), vec![of(made), of(FORMER)])]
    {
        let scope = scope_of(&Target::NewPartition(FORMER), &known);
        assert_eq!((&scope.gates()[..], scope.invalidations()), (&gates[..], &dropped[..]));
    }
    let unheard_of = scope_of(&Target::NewPartition(Uuid::from_u128(5)), &Known::Nothing);
    assert_eq!(unheard_of.gates(), [GateScope::Everything]);
}

#[test]
fn a_table_made_again_is_touched_as_a_whole_and_one_that_stays_no_further() {
    let (old, new) = (Uuid::from_u128(7), Uuid::from_u128(8));
    let target = Target::Table { keyspace: "ks".into(), table: "t".into(), id: Some(old) };
    let planned = scope_of(&target, &Known::Table(old));
    for same in [Known::Table(old), Known::Nothing] {
        assert!(planned.replaced(&same).is_empty());
    }
    let replaced = planned.replaced(&Known::Table(new));
    assert_eq!(replaced.gates(), [GateScope::Table(gate_of("ks", "t"))]);
    assert_eq!(replaced.invalidations(), [Invalidation::Table(group_of(new))]);
}

fn column(name: &str) -> Column {
    Column::new(name, "int")
}

/// What a text touches, of a schema with one table `ks.t (k int, c int, v int)`.
fn scope_of_text(text: &str) -> WriteScope {
    let table = TableSchema {
        partition_key: vec![column("k")],
        clustering: vec![column("c")],
        regulars: vec![column("v")],
        statics: vec![column("s")],
        ..TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))
    };
    let id = table.id;
    let schema = Schema::of_tables([table]);
    let Plan::Write(plan) = analyse(&parse(text), &schema, None) else {
        panic!("{text} is a write")
    };
    let mut scope = WriteScope::default();
    scope.add(&plan, &|_| None, &Known::Table(id));
    scope
}

#[test]
fn a_write_to_one_partition_happens_as_a_whole_and_to_several_perhaps_in_part() {
    let batch = |kind, second| {
        format!(
            "BEGIN {kind} BATCH UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 1; UPDATE ks.t SET v = 1 WHERE k = {second} AND c = 2; APPLY BATCH"
        )
    };
    for (text, in_part) in [
        ("INSERT INTO ks.t (k, c, v) VALUES (1, 1, 1)", false),
        ("INSERT INTO ks.t JSON '{}'", false),
        ("UPDATE ks.t SET v = 1 WHERE k = 1 AND c IN (1, 2)", false),
        ("DELETE FROM ks.t WHERE k IN (1, 2)", true),
        ("DELETE FROM ks.t WHERE k IN ?", true),
        ("UPDATE ks.t SET v = 1 WHERE k = 1 AND c IN ?", false),
        ("TRUNCATE ks.t", false),
        ("FROBNICATE ks.t", true),
        (&batch("", 2), false),
        (&batch("UNLOGGED", 1), false),
        (&batch("UNLOGGED", 2), true),
        (&batch("COUNTER", 2), true),
    ] {
        assert_eq!(scope_of_text(text).may_happen_in_part(), in_part, "{text}");
    }
}

#[test]
fn a_transaction_drops_its_partition_because_it_may_complete_another_of_it() {
    let key = &[5; 16][..];
    for text in [
        "UPDATE ks.t SET v = 1 WHERE k = ? AND c = ? IF v = 2",
        "INSERT INTO ks.t (k, c, v) VALUES (?, ?, 1) IF NOT EXISTS",
        "DELETE FROM ks.t WHERE k = ? AND c = ? IF EXISTS",
        "INSERT INTO ks.t (k, c, v) VALUES (?, now(), 1) IF NOT EXISTS",
        "BEGIN BATCH UPDATE ks.t SET v = 1 WHERE k = ? AND c = ?; \
         INSERT INTO ks.t (k, c, v) VALUES (?, now(), 1) IF NOT EXISTS; APPLY BATCH",
    ] {
        let scope = bound_scope(&[text], key);
        let token = token_of(gate_of("ks", "t"), key);
        assert_eq!(kinds(&scope).0, [GateScope::Slots(vec![slot_of(token)])], "{text}");
        let partitions: Vec<_> = scope
            .invalidations()
            .iter()
            .filter(|one| matches!(one, Invalidation::Partition(_)))
            .collect();
        assert_eq!(partitions, [&Invalidation::Partition(token)], "{text}");
    }
    let plain = bound_scope(&["UPDATE ks.t SET v = 1 WHERE k = ? AND c = ?"], key);
    assert_eq!(kinds(&plain).1, ["row", "unit"]);
    // Once, however many rows.
    let batch = "BEGIN BATCH UPDATE ks.t SET v = 1 WHERE k = ? AND c = ? IF v = 2; \
                 UPDATE ks.t SET v = 1 WHERE k = ? AND c = 11111111-0000-1000-8000-000000000000; \
                 APPLY BATCH";
    let dropped = kinds(&bound_scope(&[batch], key)).1;
    assert_eq!(dropped.iter().filter(|kind| **kind == "partition").count(), 1, "{dropped:?}");
}

#[test]
fn one_partition_of_one_table_is_told_from_more() {
    let id = Uuid::from_u128(7);
    let one = |texts: &[&str]| bound_scope(texts, &id.into_bytes()).partition_of() == Some(id);
    let other = "11111111-0000-4000-8000-000000000000";
    let delete = "DELETE FROM ks.t WHERE k = ?";
    assert!(one(&[delete]));
    assert!(one(&["DELETE FROM ks.t WHERE k = ? AND c > ?"]));
    assert!(one(&["INSERT INTO ks.t (k, c, v) VALUES (?, ?, 1)", delete]));
    assert!(!one(&[delete, &format!("DELETE FROM ks.t WHERE k = {other}")]));
    assert!(!one(&["INSERT INTO ks.t (k, c, v) VALUES (?, now(), 1)"]));
    assert!(!one(&["INSERT INTO ks.t (k, c, v) VALUES (uuid(), ?, 1)"]));
    assert!(!one(&[delete, "TRUNCATE ks.t"]));
    assert!(!one(&[]));
    assert_eq!(WriteScope::everything().partition_of(), None);
}

/// A schema with one table `ks.t (k uuid, c timeuuid, v int)`.
fn uuids() -> (Schema, Known) {
    let table = TableSchema {
        partition_key: vec![Column::new("k", "uuid")],
        clustering: vec![Column::new("c", "timeuuid")],
        regulars: vec![column("v")],
        ..TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))
    };
    let known = Known::Table(table.id);
    (Schema::of_tables([table]), known)
}

/// What texts touch together when this is bound to each of their markers.
fn bound_scope(texts: &[&str], value: &[u8]) -> WriteScope {
    let (schema, known) = uuids();
    let mut scope = WriteScope::default();
    for text in texts {
        let Plan::Write(plan) = analyse(&parse(text), &schema, None) else {
            panic!("{text} is a write")
        };
        scope.add(&plan, &|_| Some(value), &known);
    }
    scope
}

/// The gates of a scope, and the kinds of what it drops.
fn kinds(scope: &WriteScope) -> (Vec<GateScope>, Vec<&'static str>) {
    let kind = |one: &Invalidation| match one {
        Invalidation::Row(_) => "row",
        Invalidation::Unit(_) => "unit",
        Invalidation::Partition(_) => "partition",
        Invalidation::Table(_) => "table",
        Invalidation::Everything => "everything",
    };
    (scope.gates(), scope.invalidations().iter().map(kind).collect())
}

fn bound(text: &str, value: &[u8]) -> (Vec<GateScope>, Vec<&'static str>) {
    kinds(&bound_scope(&[text], value))
}

#[test]
fn a_key_that_is_made_closes_gates_and_drops_no_row() {
    let gate = gate_of("ks", "t");
    let slot = |key: &[u8]| GateScope::Slots(vec![slot_of(token_of(gate, key))]);
    let key = &[5; 16][..];
    for (text, gates, drops) in [
        ("INSERT INTO ks.t (k, c) VALUES (uuid(), now())", GateScope::Table(gate), &[][..]),
        ("INSERT INTO ks.t (k, c) VALUES (?, now())", slot(key), &["unit"]),
        ("INSERT INTO ks.t (k, c) VALUES (?, ?)", slot(key), &["row", "unit"]),
        ("INSERT INTO ks.t (k, c) VALUES (?, f())", slot(key), &["partition"]),
        ("INSERT INTO ks.t (k, c) VALUES (f(), now())", GateScope::Table(gate), &["table"]),
    ] {
        assert_eq!(bound(text, key), (vec![gates], drops.to_vec()), "{text}");
    }
    let no_key = bound("INSERT INTO ks.t (k, c) VALUES (?, now())", b"");
    assert_eq!(no_key, (vec![GateScope::Table(gate)], vec!["table"]));
}

#[test]
fn only_what_makes_partitions_and_nothing_else_touches_no_row_that_is_there() {
    let (made, key) = ("INSERT INTO ks.t (k, c) VALUES (uuid(), now())", &[5; 16][..]);
    for (texts, only_makes, alone) in [
        (&[made, made][..], true, true),
        (&[made, "INSERT INTO ks.t (k, c) VALUES (?, ?)"], true, false),
        (&[made, "INSERT INTO ks.t (k, c) VALUES (?, now())"], true, false),
        (&[made, "DELETE FROM ks.t WHERE k = ?"], true, false),
        (&[made, "INSERT INTO ks.t (k, c) VALUES (f(), now())"], false, false),
    ] {
        let scope = bound_scope(texts, key);
        assert_eq!(scope.only_makes_partitions(), only_makes, "{texts:?}");
        let gates = [gate_of("ks", "t")];
        assert_eq!(scope.only_made_in(), alone.then_some(&gates[..]), "{texts:?}");
    }
    assert_eq!(WriteScope::default().only_made_in(), None);
    assert_eq!(WriteScope::everything().only_made_in(), None);
}

#[test]
fn all_behind_the_gates_of_a_made_key_can_be_dropped_after_all() {
    let (gate, key) = (gate_of("ks", "t"), &[5; 16][..]);
    let row = bound_scope(&["INSERT INTO ks.t (k, c) VALUES (?, now())"], key);
    let row = row.with_all_behind_gates();
    let [Invalidation::Unit(_), Invalidation::Partition(token)] = row.invalidations() else {
        panic!("{:?}", row.invalidations())
    };
    assert_eq!(slot_of(*token), slot_of(token_of(gate, key)));
    let partition = bound_scope(&["INSERT INTO ks.t (k, c) VALUES (uuid(), now())"], key);
    let partition = partition.with_all_behind_gates();
    let all = [Invalidation::Table(group_of(Uuid::from_u128(7)))];
    assert_eq!(partition.invalidations(), all);
}

/// An owner that is not told of a write counts as one that hangs.
#[test]
fn owners_can_be_told_of_every_batch_in_one_message_that_is_not_too_long() {
    const MOST: usize = 2 << 20;
    let long = "x".repeat(10_000);
    let tables = |n, name: &str| -> Vec<String> {
        (0..n).map(|n| format!("INSERT INTO ks.{name}{n} (k) VALUES (1)")).collect()
    };
    for (texts, is_all) in [
        (tables(500, "t"), false),
        (tables(513, "u"), true),
        (tables(60_000, "u"), true),
        (tables(1_000, &long), true),
    ] {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let scope = bound_scope(&texts, b"");
        assert_eq!(scope.is_everything(), is_all, "{}", texts[0]);
        assert_eq!(scope.doubtful, is_all, "who asks for it may be refused");
        assert!(scope.encode().len() < MOST && scope.invalidations().len() < MAX_DROPS);
    }
    let (mut rows, table) = (WriteScope::default(), Uuid::from_u128(7));
    (0..400).for_each(|n| rows.drops(1, table, Invalidation::Row(vec![n as u8; 60_000])));
    assert_eq!(rows.invalidations()[0], Invalidation::Table(group_of(table)));
    assert!(rows.encode().len() < MOST && !rows.is_everything());
    let twice = bound_scope(&["INSERT INTO ks.u (k) VALUES (1)"; 1_000], b"");
    assert_eq!((twice.unknown.len(), twice.is_everything()), (1, false));
}

#[test]
fn many_keys_of_one_write_cost_no_more_than_their_table() {
    let texts: Vec<String> =
        (0..20_000).map(|n| format!("DELETE FROM ks.t WHERE k = {}", Uuid::from_u128(n))).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let scope = bound_scope(&texts, b"");
    assert_eq!(scope.tokens(), None);
    assert_eq!(scope.invalidations()[0], Invalidation::Table(group_of(Uuid::from_u128(7))));
    assert!(scope.slots.len() <= MAX_SLOTS && scope.tokens.len() <= MAX_SLOTS);
    assert!(scope.invalidations.len() <= MAX_SLOTS + 1, "{}", scope.invalidations.len());
    // Rows of few partitions are bounded as well.
    let one = Uuid::from_u128(1);
    let row = |n: u128| {
        format!("DELETE FROM ks.t WHERE k = {one} AND c = {}", Uuid::from_u128(n | 1 << 76))
    };
    let texts: Vec<String> = (0..10_000).map(row).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let scope = bound_scope(&texts, b"");
    assert_eq!(scope.invalidations[0], Invalidation::Table(group_of(Uuid::from_u128(7))));
    assert_eq!(scope.invalidations.len(), MAX_DROPS + 1);
}

/// A bound list of such ids.
fn list(ids: impl ExactSizeIterator<Item = Uuid>) -> Vec<u8> {
    let mut bytes = (ids.len() as i32).to_be_bytes().to_vec();
    ids.for_each(|id| bytes.extend([&[0, 0, 0, 16], &id.as_bytes()[..]].concat()));
    bytes
}

/// Each has hundreds of keys, and a batch may have tens of thousands of them.
#[test]
fn of_a_table_that_is_touched_as_a_whole_no_further_key_is_looked_at() {
    let (key, keys) =
        (Uuid::from_u128(1 << 76), list((0..506_u16).map(|n| Uuid::from_u128(n.into()))));
    let (schema, known) = uuids();
    let mut scope = WriteScope::default();
    let mut looks = |text: &str, value: &[u8]| {
        let Plan::Write(plan) = analyse(&parse(text), &schema, None) else { panic!("{text}") };
        let looks = Cell::new(0);
        let bound = |_: &Marker| {
            looks.set(looks.get() + 1);
            Some(value)
        };
        scope.add(&plan, &bound, &known);
        looks.get()
    };
    assert_eq!(looks("DELETE FROM ks.t WHERE k IN ?", &keys), 1);
    let more = (0..100).map(|_| looks("DELETE FROM ks.t WHERE k IN ?", &keys));
    assert!(more.sum::<usize>() < 10, "its table is touched as a whole soon");
    assert_eq!(looks("DELETE FROM ks.t WHERE k = ?", key.as_bytes()), 0);
    assert_eq!(looks("DELETE FROM ks.t WHERE k = ? AND c = ?", key.as_bytes()), 0);
    assert_eq!(looks("UPDATE ks.t SET v = 1 WHERE k IN ? AND c IN ?", &keys), 0);
    let gate = gate_of("ks", "t");
    assert!(scope.gates().contains(&GateScope::Table(gate)));
    assert_eq!(scope.invalidations()[0], Invalidation::Table(group_of(Uuid::from_u128(7))));
    assert!(scope.invalidations().len() <= MAX_DROPS + 1);
    assert_eq!(
        (scope.planned(), &scope.planned_gates[..]),
        (&[Uuid::from_u128(7)][..], &[gate][..])
    );
    assert_eq!((scope.tokens(), scope.partition_of(), scope.transaction()), (None, None, None));
}

#[test]
fn bound_lists_close_the_gate_of_each_partition_once() {
    let list = |ids: &[u8]| list(ids.iter().map(|id| Uuid::from_bytes([*id; 16])));
    let text = "DELETE FROM ks.t WHERE k IN ?";
    let (gates, drops) = bound(text, &list(&[1, 2, 2, 1]));
    assert!(matches!(&gates[..], [GateScope::Slots(slots)] if slots.len() == 2), "{gates:?}");
    assert_eq!(drops, ["partition"; 4]);
    assert_eq!(bound(text, &list(&[])), (vec![], vec![]));
    let table = (vec![GateScope::Table(gate_of("ks", "t"))], vec!["table"]);
    assert_eq!(bound(text, b"\0\0\0\x01"), table);
    let (gates, drops) = bound("DELETE FROM ks.t WHERE k IN ? AND c IN ?", &list(&[1, 2]));
    assert!(matches!(&gates[..], [GateScope::Slots(slots)] if slots.len() == 2), "{gates:?}");
    assert_eq!(drops, ["row", "row", "unit", "row", "row", "unit"]);
}

#[test]
fn the_partition_of_a_lightweight_transaction_is_known_whatever_it_touches_of_it() {
    let batch = |second| {
        format!(
            "BEGIN BATCH UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 1; UPDATE ks.t SET s = 1 WHERE k = {second} IF s = 2; APPLY BATCH"
        )
    };
    for (text, known) in [
        ("INSERT INTO ks.t (k, c, v) VALUES (1, 1, 1) IF NOT EXISTS", true),
        ("UPDATE ks.t SET s = 1 WHERE k = 1 IF s = 2", true),
        ("DELETE FROM ks.t WHERE k = 1 AND c = 1 IF v = 1", true),
        (&batch(1), true),
        (&batch(2), false),
        ("INSERT INTO ks.t (k, c, v) VALUES (1, 1, 1)", false),
        ("INSERT INTO ks.t JSON '{}' IF NOT EXISTS", false),
    ] {
        let scope = scope_of_text(text);
        let partition = known.then_some((Uuid::from_u128(7), &[0, 0, 0, 1][..]));
        assert_eq!(scope.transaction(), partition, "{text}");
    }
}

/// Whether a scope drops the unit of the partition `k = 1` of `ks.t`.
fn drops_unit(scope: &WriteScope) -> bool {
    let (key, table) = (&1_i32.to_be_bytes()[..], Uuid::from_u128(7));
    let (unit, slot) = (unit_key(table, key), slot_of(token_of(gate_of("ks", "t"), key)));
    scope.invalidations().iter().any(|one| match one {
        Invalidation::Row(_) => false,
        Invalidation::Unit(of) => *of == unit,
        Invalidation::Partition(token) => slot_of(*token) == slot,
        Invalidation::Table(group) => *group == group_of(table),
        Invalidation::Everything => true,
    })
}

#[test]
fn whatever_a_write_touches_of_a_partition_it_drops_the_partitions_unit() {
    for text in [
        "INSERT INTO ks.t (k, c, v) VALUES (1, 1, 1)",
        "INSERT INTO ks.t (k, c, v) VALUES (1, 1, 1) IF NOT EXISTS",
        "INSERT INTO ks.t (k, c, v) VALUES (1, f(), 1)",
        "INSERT INTO ks.t (k, c, v) VALUES (f(), 1, 1)",
        "INSERT INTO ks.t JSON '{\"k\": 1, \"c\": 1}'",
        "INSERT INTO ks.t JSON '{}'",
        "UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 1",
        "UPDATE ks.t SET s = 1 WHERE k = 1",
        "UPDATE ks.t SET v = 1 WHERE k IN (2, 1) AND c IN (1, 2, 3)",
        "UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 1 IF v = 2",
        "DELETE FROM ks.t WHERE k = 1 AND c = 1",
        "DELETE v FROM ks.t WHERE k = 1 AND c = 1",
        "DELETE FROM ks.t WHERE k = 1 AND c > 1",
        "DELETE FROM ks.t WHERE k = 1",
        "TRUNCATE ks.t",
        "ALTER TABLE ks.t ADD w int",
        "DROP KEYSPACE ks",
        "FROBNICATE ks.t",
        "BEGIN BATCH UPDATE ks.t SET v = 1 WHERE k = 2 AND c = 1; \
         UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 1; APPLY BATCH",
    ] {
        assert!(drops_unit(&scope_of_text(text)), "{text}");
    }
    for text in [
        "INSERT INTO ks.t (k, c, v) VALUES (2, 1, 1)",
        "DELETE FROM ks.t WHERE k = 2",
        "CREATE TABLE ks.u (k int PRIMARY KEY)",
    ] {
        assert!(!drops_unit(&scope_of_text(text)), "{text}");
    }
}

#[test]
fn a_row_with_a_key_that_is_made_drops_the_unit_of_its_partition() {
    let key = &[5; 16][..];
    let scope = bound_scope(&["INSERT INTO ks.t (k, c) VALUES (?, now())"], key);
    let unit = Invalidation::Unit(unit_key(Uuid::from_u128(7), key));
    assert_eq!(scope.invalidations(), [unit]);
    let batch = ["INSERT INTO ks.t (k, c) VALUES (?, now())"; 3];
    assert_eq!(bound_scope(&batch, key).invalidations().len(), 1);
}

#[test]
fn a_row_with_clustering_columns_is_the_only_one_that_its_write_drops() {
    let one = scope_of_text("INSERT INTO ks.t (k, c, v) VALUES (1, 1, 1)");
    let [Invalidation::Row(row), Invalidation::Unit(_)] = one.invalidations() else {
        panic!("{:?}", one.invalidations())
    };
    assert_eq!(one.only_row().map(|(_, key)| key), Some(&row[..]));
    for text in [
        "UPDATE ks.t SET v = 1 WHERE k = 1 AND c IN (1, 2)",
        "DELETE FROM ks.t WHERE k = 1",
        "TRUNCATE ks.t",
        "BEGIN BATCH UPDATE ks.t SET v = 1 WHERE k = 2 AND c = 1; \
         UPDATE ks.t SET v = 1 WHERE k = 1 AND c = 1; APPLY BATCH",
    ] {
        assert!(scope_of_text(text).only_row().is_none(), "{text}");
    }
}

#[test]
fn a_write_planned_before_its_table_was_made_again_touches_both_and_no_more() {
    let (old, new) = (Uuid::from_u128(7), Uuid::from_u128(8));
    let target = Target::Table { keyspace: "ks".into(), table: "t".into(), id: Some(old) };
    let held = scope_of(&target, &Known::Table(new));
    let newer = held.of_newer(&Known::Table(new));
    assert_eq!(newer.gates(), [GateScope::Table(gate_of("ks", "t"))]);
    let both = [new, old].map(|id| Invalidation::Table(group_of(id)));
    assert_eq!(newer.invalidations(), both);
}
