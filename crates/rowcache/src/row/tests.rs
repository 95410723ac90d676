//! Tests of the stored row.

use std::sync::Arc;

use afterglow_cql::plan::{Column, Plan, SchemaView, TableSchema, analyse};
use afterglow_cql::statement::parse;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn table() -> TableSchema {
    TableSchema {
        partition_key: vec![Column::new("k", "int"), Column::new("K2", "text")],
        clustering: vec![Column::new("c", "text")],
        regulars: vec![Column::new("from", "int"), Column::new("w", "text")],
        ..TableSchema::new("Ks".into(), "t\"x".into(), Uuid::from_u128(7))
    }
}

struct One(Arc<TableSchema>);

impl SchemaView for One {
    fn table(&self, keyspace: &str, name: &str) -> Option<Arc<TableSchema>> {
        (keyspace == self.0.keyspace && name == self.0.name).then(|| self.0.clone())
    }
}

/// The key and plan of a read of the row (1, 'p', 'c').
fn read(selection: &str) -> (RowKey, afterglow_cql::plan::ReadPlan) {
    let text =
        format!("SELECT {selection} FROM \"Ks\".\"t\"\"x\" WHERE k = 1 AND \"K2\" = ? AND c = 'c'");
    let Plan::CachedRead(plan) = analyse(&parse(&text), &One(Arc::new(table())), None) else {
        panic!("not cached")
    };
    let mut key = RowKey::new();
    plan.key.bind(|_| Some(b"p"), &mut key).unwrap();
    (key, plan)
}

const ONE: [u8; 4] = 1_i32.to_be_bytes();
const TIME: [u8; 8] = 1_700_000_000_000_000_i64.to_be_bytes();
const LEFT: [u8; 4] = 60_i32.to_be_bytes();

#[test]
fn the_fill_quotes_every_name_and_asks_for_times() {
    assert_eq!(
        fill_query(&table()),
        "SELECT \"k\", \"K2\", \"c\", \"from\", WRITETIME(\"from\"), TTL(\"from\"), \"w\", WRITETIME(\"w\"), TTL(\"w\") \
         FROM \"Ks\".\"t\"\"x\" WHERE \"k\" = ? AND \"K2\" = ? AND \"c\" = ?"
    );
}

#[test]
fn a_filled_row_answers_any_projection() {
    let (key, plan) = read("w, k, \"from\", c, \"K2\", w");
    let names: Vec<_> =
        plan.projection.iter().map(|column| plan.table.name_of(*column).unwrap()).collect();
    assert_eq!(names, ["w", "k", "from", "c", "K2", "w"]);
    let row = vec![
        Some(&ONE[..]),
        Some(b"p"),
        Some(b"c"),
        Some(b"\0\0\0\x09"),
        Some(&TIME),
        Some(&LEFT),
        None,
        None,
        None,
    ];
    let filled = read_fill(&plan.table, plan.fingerprint, &key, &[row], 1000).unwrap();
    assert_eq!((filled.max_age, filled.marker_only), (Some(59), false));
    let stored = StoredRow::decode(&filled.bytes).unwrap();
    assert_eq!(stored.fingerprint(), plan.fingerprint);
    assert_eq!(
        stored.cell(0),
        Cell { value: Some(b"\0\0\0\x09"), write_time: 1_700_000_000_000_000, expiry: 1060 }
    );
    assert_eq!(stored.cell(1), Cell::NULL);
    let mut out = Vec::new();
    stored.write_rows(&key, &plan.projection, &mut out);
    let mut expected = 1_i32.to_be_bytes().to_vec();
    for cell in [None, Some(&ONE[..]), Some(b"\0\0\0\x09"), Some(b"c"), Some(b"p"), None] {
        expected.put_value(cell.map_or(Value::Null, Value::Bytes));
    }
    assert_eq!(out, expected);
}

#[test]
fn a_row_is_never_longer_in_an_answer_than_it_says() {
    let row = [Some(&ONE[..]), Some(b"p"), Some(b"c"), Some(b"\0\0\0\x09"), Some(&TIME), None];
    let row = [&row[..], &[Some(&b"long"[..]), Some(&TIME), None]].concat();
    for selection in ["*", "w", "w, w, w", "k, c", "w, k, w, \"from\", w, c, \"K2\", \"K2\""] {
        let (key, plan) = read(selection);
        let most = |rows: &[Vec<Option<&[u8]>>]| {
            let filled = read_fill(&plan.table, plan.fingerprint, &key, rows, 1000).unwrap();
            let (stored, mut out) = (StoredRow::decode(&filled.bytes).unwrap(), Vec::new());
            stored.write_cells(&key, &plan.projection, &mut out);
            let most = stored.most_bytes(&key, &plan);
            assert!(out.len() <= most, "{selection}: {} of {most}", out.len());
            most
        };
        assert_eq!(most(&[]), 0);
        let once = row.iter().flatten().map(|cell| cell.len()).sum::<usize>() + 64;
        assert!(
            most(std::slice::from_ref(&row)) <= plan.repeats * once,
            "{selection}: it is no wild guess"
        );
    }
}

#[test]
fn a_row_that_does_not_exist_answers_no_rows() {
    let (key, plan) = read("*");
    let filled = read_fill(&plan.table, plan.fingerprint, &key, &[], 1000).unwrap();
    let stored = StoredRow::decode(&filled.bytes).unwrap();
    assert!(stored.is_absent());
    let mut out = Vec::new();
    stored.write_rows(&key, &plan.projection, &mut out);
    assert_eq!(out, 0_i32.to_be_bytes());
}

#[test]
fn a_bare_row_is_marked_as_hanging_on_its_marker() {
    let (key, plan) = read("*");
    let mut row = vec![Some(&ONE[..]), Some(b"p"), Some(b"c")];
    row.resize(9, None);
    let filled = read_fill(&plan.table, plan.fingerprint, &key, &[row], 1000).unwrap();
    assert!(filled.marker_only);
    assert!(!StoredRow::decode(&filled.bytes).unwrap().is_absent());
}

/// A value of type `list<bigint>` or `list<int>`.
fn list(elements: &[Option<&[u8]>]) -> Vec<u8> {
    let mut out = (elements.len() as i32).to_be_bytes().to_vec();
    elements.iter().for_each(|element| out.put_value(element.map_or(Value::Null, Value::Bytes)));
    out
}

#[test]
fn a_collection_is_as_new_as_its_newest_element_and_ends_with_its_first() {
    let table = TableSchema { regulars: vec![Column::new("m", "map<int, text>")], ..table() };
    let (key, _) = read("w");
    let [older, newer] = [5_i64, 9].map(i64::to_be_bytes);
    let [long, short] = [90_i32, 30].map(i32::to_be_bytes);
    let times = list(&[Some(&older), Some(&newer), Some(&older)]);
    for (ttls, expiry) in [
        (list(&[None, Some(&long), Some(&short)]), 1030),
        (list(&[None, None, None]), 0),
        (list(&[]), 0),
    ] {
        let row =
            vec![Some(&ONE[..]), Some(b"p"), Some(b"c"), Some(b"map"), Some(&times), Some(&ttls)];
        let filled = read_fill(&table, 1, &key, &[row], 1000).unwrap();
        let cell = Cell { value: Some(b"map"), write_time: 9, expiry };
        let max_age = (expiry != 0).then_some(29);
        assert_eq!(
            (StoredRow::decode(&filled.bytes).unwrap().cell(0), filled.max_age),
            (cell, max_age)
        );
    }
    for (times, ttls) in
        [(&b"\0\0\0\x02"[..], &list(&[None])[..]), (&list(&[])[..], &list(&[])[..]), (&TIME, &LEFT)]
    {
        let row =
            vec![Some(&ONE[..]), Some(b"p"), Some(b"c"), Some(b"map"), Some(times), Some(ttls)];
        assert_eq!(read_fill(&table, 1, &key, &[row], 1000), Err(FillError::Shape));
    }
}

#[test]
fn static_values_are_kept_with_each_row_and_make_none() {
    let table = TableSchema { statics: vec![Column::new("s", "text")], ..table() };
    assert!(fill_query(&table).contains("\"c\", \"s\", WRITETIME(\"s\"), TTL(\"s\"), \"from\""));
    let (key, _) = read("w");
    let mut row =
        vec![Some(&ONE[..]), Some(b"p"), Some(b"c"), Some(b"shared"), Some(&TIME), Some(&LEFT)];
    row.resize(12, None);
    let filled = read_fill(&table, 1, &key, &[row.clone()], 1000).unwrap();
    assert!(filled.marker_only && filled.max_age == Some(59), "{filled:?}");
    (row[6], row[7]) = (Some(&ONE[..]), Some(&TIME[..]));
    let filled = read_fill(&table, 1, &key, &[row], 1000).unwrap();
    assert!(!filled.marker_only);
    assert_eq!(StoredRow::decode(&filled.bytes).unwrap().cell(0).value, Some(&b"shared"[..]));
}

#[test]
fn answers_that_do_not_fit_are_not_stored() {
    let (key, plan) = read("*");
    let fill = |rows: &[Vec<Option<&[u8]>>]| read_fill(&plan.table, 1, &key, rows, 1000);
    let good = || {
        vec![
            Some(&ONE[..]),
            Some(b"p"),
            Some(b"c"),
            Some(&ONE),
            Some(&TIME),
            None,
            None,
            None,
            None,
        ]
    };
    assert!(fill(&[good()]).is_ok());
    assert_eq!(fill(&[good(), good()]), Err(FillError::Shape));
    assert_eq!(fill(&[good()[..8].to_vec()]), Err(FillError::Shape));
    let mut other_key = good();
    other_key[2] = Some(b"C");
    assert_eq!(fill(&[other_key]), Err(FillError::KeyForm));
    let mut no_time = good();
    no_time[4] = None;
    assert_eq!(fill(&[no_time]), Err(FillError::Shape));
}

#[test]
fn another_schema_has_another_fingerprint() {
    let base = table().fingerprint();
    let change = |edit: fn(&mut TableSchema)| {
        let mut table = table();
        edit(&mut table);
        table.fingerprint()
    };
    assert_eq!(change(|t| t.default_ttl = 9), base);
    let changed = [
        change(|t| t.id = Uuid::from_u128(8)),
        change(|t| t.regulars[0].cql_type = "bigint".into()),
        change(|t| t.regulars[0].name = "fro".into()),
        change(|t| t.regulars[0].dropped_at = 1),
        change(|t| t.regulars.swap(0, 1)),
        change(|t| t.regulars.truncate(1)),
        change(|t| t.statics = t.regulars.split_off(1)),
    ];
    assert!(changed.iter().all(|fingerprint| *fingerprint != base));
}

type OwnedCell = Option<(Vec<u8>, i64, u32)>;

fn cells() -> impl Strategy<Value = Vec<OwnedCell>> {
    prop::collection::vec(
        prop::option::of((prop::collection::vec(any::<u8>(), 0..20), any::<i64>(), any::<u32>())),
        0..12,
    )
}

fn borrowed(cell: &OwnedCell) -> Cell<'_> {
    match cell {
        Some((value, write_time, expiry)) => {
            Cell { value: Some(value), write_time: *write_time, expiry: *expiry }
        }
        None => Cell::NULL,
    }
}

proptest! {
    #[test]
    fn rows_read_back_as_written(fingerprint: u64, cells in cells()) {
        let cells: Vec<Cell> = cells.iter().map(borrowed).collect();
        let mut bytes = Vec::new();
        prop_assert!(encode(fingerprint, &cells, &mut bytes));
        let stored = StoredRow::decode(&bytes).unwrap();
        prop_assert_eq!(stored.fingerprint(), fingerprint);
        prop_assert!(!stored.is_absent());
        prop_assert_eq!(usize::from(stored.columns()), cells.len());
        for (index, cell) in cells.iter().enumerate() {
            prop_assert_eq!(stored.cell(index as u16), *cell);
        }
        prop_assert_eq!(stored.cell(cells.len() as u16), Cell::NULL);
    }

    /// Damaged rows are refused or read within their bounds, and a row cut short or grown is
    /// refused.
    #[test]
    fn damage_never_panics(
        cells in cells(),
        at: prop::sample::Index,
        byte: u8,
        cut: prop::sample::Index,
    ) {
        let cells: Vec<Cell> = cells.iter().map(borrowed).collect();
        let mut bytes = Vec::new();
        encode(1, &cells, &mut bytes);
        prop_assert!(StoredRow::decode(&bytes[..cut.index(bytes.len())]).is_none());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Some(stored) = StoredRow::decode(&bytes) {
            for index in 0..=stored.columns() {
                let _ = stored.cell(index);
            }
        }
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = StoredRow::decode(&bytes);
    }
}
