//! A unit that got one row is as the database would fill it then, as far as it reaches.

use std::collections::BTreeMap;

use afterglow_cql::plan::{Plan, ReadPlan, analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use proptest::prelude::*;

use super::*;
use crate::row::{Cell, encode, encode_absent};
use crate::unit::{UnitAsked, read_unit};

/// The rows of a partition: `v` by `c`.
type Partition = BTreeMap<i32, Option<i32>>;

fn plan(descending: bool) -> ReadPlan {
    let order = if descending { "DESC" } else { "ASC" };
    let script = format!(
        "CREATE TABLE s.t (k int, c int, v int, PRIMARY KEY (k, c)) WITH CLUSTERING ORDER BY (c {order});"
    );
    let schema = Schema::of_tables(defined_tables(&script, None).unwrap());
    let plan = analyse(&parse("SELECT v FROM s.t WHERE k = 1 AND c = ?"), &schema, None);
    let Plan::CachedRead(read) = plan else { panic!("it is cached") };
    read
}

fn key(plan: &ReadPlan, c: i32) -> RowKey {
    let (mut key, bytes) = (RowKey::new(), c.to_be_bytes());
    plan.key.bind(|_| Some(&bytes[..]), &mut key).unwrap();
    key
}

/// The unit as a fill makes it, and its rows.
fn filled(
    plan: &ReadPlan,
    rows: &Partition,
    (descends, reversed): (bool, bool),
    most: usize,
) -> Vec<u8> {
    let int = |n: i32| n.to_be_bytes();
    let time = 1_i64.to_be_bytes();
    let mut cells: Vec<_> = rows.iter().map(|(c, v)| (int(1), int(*c), v.map(int))).collect();
    if descends != reversed {
        cells.reverse();
    }
    cells.truncate(most);
    let row = |(k, c, v): &([u8; 4], [u8; 4], Option<[u8; 4]>)| -> Vec<Option<Vec<u8>>> {
        let time = v.map(|_| time.to_vec());
        vec![Some(k.to_vec()), Some(c.to_vec()), v.map(|v| v.to_vec()), time, None]
    };
    let cells: Vec<_> = cells.iter().map(row).collect();
    let cells: Vec<Vec<Option<&[u8]>>> =
        cells.iter().map(|row| row.iter().map(Option::as_deref).collect()).collect();
    let key = key(plan, 0);
    let unit = RowKey::from_engine_key(key.unit_key(), 1, 0).unwrap();
    let asked = UnitAsked { reversed, rows: most as u32, bytes: 1 << 16 };
    read_unit(&plan.table, plan.fingerprint, &unit, &cells, asked, 1).unwrap().bytes
}

fn row_of(plan: &ReadPlan, value: Option<Option<i32>>) -> Vec<u8> {
    let mut row = Vec::new();
    match value {
        None => encode_absent(plan.fingerprint, &mut row),
        Some(value) => {
            let value = value.map(i32::to_be_bytes);
            let value = value.as_ref().map(|value| &value[..]);
            assert!(encode(plan.fingerprint, &[Cell { value, ..Cell::NULL }], &mut row));
        }
    }
    row
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_unit_with_a_row_is_what_a_fill_would_find(
        rows in prop::collection::btree_map(0..24_i32, prop::option::of(0..9_i32), 0..12),
        (c, value) in (-1..25_i32, prop::option::of(prop::option::of(10..19_i32))),
        (descends, reversed, most) in (any::<bool>(), any::<bool>(), 1..14_usize),
        most_bytes in prop_oneof![Just(1 << 16), 16..300_usize],
    ) {
        let plan = plan(descends);
        let before = filled(&plan, &rows, (descends, reversed), most);
        let unit = StoredUnit::decode(&before).unwrap();
        let mut after = rows.clone();
        match value {
            Some(value) => drop(after.insert(c, value)),
            None => drop(after.remove(&c)),
        }
        let (key, row) = (key(&plan, c), row_of(&plan, value));
        let row = StoredRow::decode(&row).unwrap();
        let amended = unit.amended(&plan.table, &key, &row, most_bytes);
        match unit.coverage(&plan.table, &key).unwrap() {
            Coverage::Beyond => {
                prop_assert!(!unit.is_whole() && amended.is_none());
                let now = filled(&plan, &after, (descends, reversed), unit.rows());
                let now = StoredUnit::decode(&now).unwrap();
                prop_assert_eq!(unit.rows, now.rows);
            }
            Coverage::Within => match amended {
                Some(amended) => {
                    prop_assert!(amended.len() <= most_bytes);
                    let amended = StoredUnit::decode(&amended).unwrap();
                    let now = filled(&plan, &after, (descends, reversed), amended.rows().max(1));
                    let now = StoredUnit::decode(&now).unwrap();
                    prop_assert_eq!(amended.rows, now.rows);
                    prop_assert_eq!(amended.rows() == 0, after.is_empty());
                    prop_assert!(!amended.is_whole() || amended.rows() == after.len());
                    // It loses no row that fits.
                    if most_bytes > 1_000 && unit.is_whole() {
                        prop_assert!(amended.is_whole());
                    }
                }
                // Nothing fits, or its only row is gone.
                None => prop_assert!(most_bytes < 100 || unit.rows() == 1),
            },
        }
    }
}

#[test]
fn a_unit_that_ends_within_the_partition_does_not_grow_past_its_limit() {
    let plan = plan(true);
    let rows: Partition = (0..500).map(|c| (c, Some(c))).collect();
    let mut bytes = filled(&plan, &rows, (true, false), 64);
    for c in 500..600 {
        let unit = StoredUnit::decode(&bytes).unwrap();
        let row = row_of(&plan, Some(Some(c)));
        let row = StoredRow::decode(&row).unwrap();
        bytes = unit.amended(&plan.table, &key(&plan, c), &row, 1 << 16).unwrap();
    }
    let unit = StoredUnit::decode(&bytes).unwrap();
    assert_eq!((unit.rows(), unit.is_whole()), (64, false));
    // It has room again for what comes after a removal.
    let gone = row_of(&plan, None);
    let gone = StoredRow::decode(&gone).unwrap();
    let fewer = unit.amended(&plan.table, &key(&plan, 599), &gone, 1 << 16).unwrap();
    let unit = StoredUnit::decode(&fewer).unwrap();
    let row = row_of(&plan, Some(Some(1)));
    let row = StoredRow::decode(&row).unwrap();
    let again = unit.amended(&plan.table, &key(&plan, 600), &row, 1 << 16).unwrap();
    assert_eq!(StoredUnit::decode(&again).unwrap().rows(), 64);
}

#[test]
fn a_row_of_another_shape_of_the_table_makes_no_unit() {
    let plan = plan(false);
    let bytes = filled(&plan, &[(1, Some(1))].into(), (false, false), 9);
    let unit = StoredUnit::decode(&bytes).unwrap();
    let mut other = Vec::new();
    encode_absent(plan.fingerprint + 1, &mut other);
    let other = StoredRow::decode(&other).unwrap();
    assert_eq!(unit.amended(&plan.table, &key(&plan, 1), &other, 1 << 16), None);
    let mut wide = Vec::new();
    assert!(encode(plan.fingerprint, &[Cell::NULL, Cell::NULL], &mut wide));
    let wide = StoredRow::decode(&wide).unwrap();
    assert_eq!(unit.amended(&plan.table, &key(&plan, 1), &wide, 1 << 16), None);
}
