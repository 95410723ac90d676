//! Tests of the stored unit: what it answers, and what it leaves to the database.

use std::sync::Arc;

use afterglow_cql::plan::{Plan, SchemaView, SlicePlan, analyse, defined_tables};
use afterglow_cql::statement::parse;
use proptest::prelude::*;

use super::*;
use crate::row::FillError;

struct Defined(Vec<TableSchema>);

impl SchemaView for Defined {
    fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>> {
        let found = self.0.iter().find(|of| of.keyspace == keyspace && of.name == table);
        found.cloned().map(Arc::new)
    }
}

/// A slice of partition 7 of a table of two clustering columns, of which the second falls.
fn slice(rest: &str) -> (SlicePlan, RowKey, Slice) {
    slice_of("d, v, k", rest)
}

fn slice_of(columns: &str, rest: &str) -> (SlicePlan, RowKey, Slice) {
    let script = "CREATE TABLE s.t (k int, c int, d int, v int, w text, PRIMARY KEY (k, c, d))
        WITH CLUSTERING ORDER BY (c ASC, d DESC);";
    let schema = Defined(defined_tables(script, None).unwrap());
    let text = format!("SELECT {columns} FROM s.t WHERE k = 7 {rest}");
    let Plan::CachedSlice(plan) = analyse(&parse(&text), &schema, None) else {
        panic!("{text} is a slice")
    };
    let mut key = RowKey::new();
    plan.read.key.bind(|_| None, &mut key).unwrap();
    let slice = plan.bind(&|_| None).unwrap();
    (plan, key, slice)
}

/// A row as [`unit_query`] gives it: `v` is 10 c + d and lives for `left` seconds.
fn row(c: i32, d: i32, left: Option<i32>) -> Vec<Option<Vec<u8>>> {
    let int = |n: i32| Some(n.to_be_bytes().to_vec());
    let time = Some(1_i64.to_be_bytes().to_vec());
    let left = left.map(|left| left.to_be_bytes().to_vec());
    vec![int(7), int(c), int(d), int(10 * c + d), time, left, None, None, None]
}

const ASKED: UnitAsked = UnitAsked { reversed: false, rows: 64, bytes: 1 << 20 };

fn filled(
    rows: &[Vec<Option<Vec<u8>>>],
    asked: UnitAsked,
) -> Result<crate::row::Filled, FillError> {
    let (plan, key, _) = slice("");
    let rows: Vec<Vec<Option<&[u8]>>> =
        rows.iter().map(|row| row.iter().map(Option::as_deref).collect()).collect();
    read_unit(&plan.read.table, plan.read.fingerprint, &key, &rows, asked, 1_000)
}

/// The values of `v` that a unit answers.
fn values(unit: &[u8], rest: &str, page_size: Option<i32>) -> Result<Vec<i32>, Unanswered> {
    let (plan, key, slice) = slice(rest);
    let unit = StoredUnit::decode(unit).unwrap();
    let answer = unit.answer(&plan.read.table, &slice, page_size)?;
    let mut out = Vec::new();
    answer.write_rows(&key, &plan.read.projection, &mut out);
    // A count, then for each row three values of four bytes, each with its length.
    let ints: Vec<i32> =
        out.chunks_exact(4).map(|n| i32::from_be_bytes(n.try_into().unwrap())).collect();
    assert_eq!(usize::try_from(ints[0]), Ok(answer.len()));
    Ok(ints[1..]
        .chunks_exact(6)
        .map(|row| {
            assert_eq!([row[0], row[2], row[4], row[5]], [4, 4, 4, 7]);
            assert_eq!(row[1], row[3] % 10);
            row[3]
        })
        .collect())
}

/// What a unit answers to a count of a slice.
fn counted(unit: &[u8], rest: &str) -> Result<i64, Unanswered> {
    let (plan, key, slice) = slice_of("count(*)", rest);
    let answer = StoredUnit::decode(unit).unwrap().answer(&plan.read.table, &slice, None)?;
    let mut out = Vec::new();
    answer.write_rows(&key, &plan.read.projection, &mut out);
    // One row of one value of eight bytes.
    assert_eq!((out.len(), &out[..8]), (16, &[0, 0, 0, 1, 0, 0, 0, 8][..]));
    Ok(i64::from_be_bytes(out[8..].try_into().unwrap()))
}

/// `c` rises, `d` falls.
fn five() -> Vec<Vec<Option<Vec<u8>>>> {
    [(1, 3), (1, 2), (2, 1), (3, 9), (3, 8)].map(|(c, d)| row(c, d, None)).to_vec()
}

#[test]
fn the_query_asks_for_the_order_and_binds_the_limit() {
    let (plan, ..) = slice("");
    let table = &plan.read.table;
    let ascending = unit_query(table, false);
    assert_eq!(
        ascending,
        "SELECT \"k\", \"c\", \"d\", \"v\", WRITETIME(\"v\"), TTL(\"v\"), \
         \"w\", WRITETIME(\"w\"), TTL(\"w\") FROM \"s\".\"t\" WHERE \"k\" = ? LIMIT ?"
    );
    let reversed = unit_query(table, true);
    assert!(reversed.ends_with("\"k\" = ? ORDER BY \"c\" DESC, \"d\" ASC LIMIT ?"), "{reversed}");
}

#[test]
fn rows_are_never_longer_in_an_answer_than_they_say() {
    let unit = filled(&five(), ASKED).unwrap().bytes;
    let unit = StoredUnit::decode(&unit).unwrap();
    for columns in ["*", "v", "v, v, v", "k, k, k, k", "count(*)", "w, w, d, k, v, v"] {
        for rest in ["", "LIMIT 2", "AND c > 9"] {
            if columns == "count(*)" && rest == "LIMIT 2" {
                continue;
            }
            let (plan, key, slice) = slice_of(columns, rest);
            let answer = unit.answer(&plan.read.table, &slice, None).unwrap();
            let mut out = Vec::new();
            answer.write_rows(&key, &plan.read.projection, &mut out);
            let most = answer.most_bytes(&key, &plan.read);
            assert!(out.len() - 4 <= most, "{columns} {rest}: {} of {most}", out.len());
        }
    }
    let (plan, key, slice) = slice_of(&vec!["v"; 1000].join(","), "");
    let answer = unit.answer(&plan.read.table, &slice, None).unwrap();
    assert!(answer.most_bytes(&key, &plan.read) >= 5 * 1000 * 8);
}

#[test]
fn a_whole_unit_answers_every_slice_in_both_orders() {
    let unit = filled(&five(), ASKED).unwrap().bytes;
    assert!(StoredUnit::decode(&unit).unwrap().is_whole());
    for (rest, expected) in [
        ("", &[13, 12, 21, 39, 38][..]),
        ("ORDER BY c DESC, d ASC", &[38, 39, 21, 12, 13]),
        ("LIMIT 2", &[13, 12]),
        ("ORDER BY c DESC LIMIT 2", &[38, 39]),
        ("AND c >= 2", &[21, 39, 38]),
        ("AND c > 1 ORDER BY c DESC PER PARTITION LIMIT 1", &[38]),
        ("AND c = 3 AND d < 9", &[38]),
        ("AND c = 1 AND d > 2", &[13]),
        ("AND c = 2", &[21]),
        ("AND c > 5", &[]),
        ("AND c IN (3, 1, 3)", &[13, 12, 39, 38]),
        ("AND c IN (1, 3) ORDER BY c DESC", &[38, 39, 12, 13]),
        ("AND c IN (1, 3) LIMIT 3", &[13, 12, 39]),
        ("AND c = 1 AND d IN (3, 2, 7)", &[13, 12]),
        ("AND c IN (1, 3) AND d IN (2, 8)", &[12, 38]),
        ("AND c IN (0, 4)", &[]),
    ] {
        assert_eq!(values(&unit, rest, Some(5000)).as_deref(), Ok(expected), "{rest}");
    }
    assert_eq!(values(&filled(&[], ASKED).unwrap().bytes, "", None), Ok(vec![]));
}

#[test]
fn a_unit_of_one_end_answers_what_lies_within_it() {
    let unit = filled(&five(), UnitAsked { rows: 5, ..ASKED }).unwrap().bytes;
    assert!(!StoredUnit::decode(&unit).unwrap().is_whole());
    for (rest, expected) in [
        ("", None),
        ("LIMIT 5", Some(5)),
        ("LIMIT 6", None),
        ("AND c < 3", Some(3)),
        ("AND c <= 3", None),
        ("AND c <= 3 LIMIT 5", Some(5)),
        ("AND c = 3", None),
        ("AND c = 3 AND d > 8", Some(1)),
        ("AND c > 3 LIMIT 1", None),
        ("ORDER BY c DESC LIMIT 1", None),
        ("AND c IN (1, 2)", Some(3)),
        ("AND c IN (0, 3)", None),
        ("AND c IN (1, 3) LIMIT 3", Some(3)),
        ("AND c = 3 AND d IN (8, 9)", Some(2)),
        ("AND c = 3 AND d IN (8, 7)", None),
        ("AND c = 3 AND d IN (10, 9)", Some(1)),
    ] {
        let found = values(&unit, rest, None).map(|rows| rows.len());
        assert_eq!(found, expected.ok_or(Unanswered::Beyond), "{rest}");
    }
}

#[test]
fn an_answer_that_may_have_another_page_is_left_to_the_database() {
    let unit = filled(&five(), ASKED).unwrap().bytes;
    for (rest, page, expected) in [
        ("", 6, Ok(5)),
        ("", 5, Err(Unanswered::Paged)),
        ("", 2, Err(Unanswered::Paged)),
        ("LIMIT 5", 5, Ok(5)),
        ("LIMIT 4", 4, Ok(4)),
        ("LIMIT 9", 5, Err(Unanswered::Paged)),
        ("LIMIT 5", 4, Err(Unanswered::Paged)),
        ("AND c < 3", 3, Err(Unanswered::Paged)),
    ] {
        let found = values(&unit, rest, Some(page)).map(|rows| rows.len());
        assert_eq!(found, expected, "{rest} {page}");
    }
}

#[test]
fn a_unit_ends_with_the_first_of_its_cells() {
    let mut rows = five();
    assert_eq!(filled(&rows, ASKED).unwrap().max_age, None);
    rows[3] = row(3, 9, Some(60));
    rows[4] = row(3, 8, Some(90));
    let with_ttl = filled(&rows, ASKED).unwrap();
    assert_eq!((with_ttl.max_age, with_ttl.marker_only), (Some(59), false));
    rows[1][3..6].fill(None);
    assert!(filled(&rows, ASKED).unwrap().marker_only, "a row without values");
}

#[test]
fn what_does_not_fit_is_left_out_and_the_unit_is_not_whole() {
    let whole = filled(&five(), ASKED).unwrap().bytes;
    let asked = UnitAsked { bytes: whole.len() - 1, ..ASKED };
    let most = filled(&five(), asked).unwrap().bytes;
    let unit = StoredUnit::decode(&most).unwrap();
    assert_eq!((unit.rows(), unit.is_whole()), (4, false));
    assert_eq!(values(&most, "LIMIT 4", None), Ok(vec![13, 12, 21, 39]));
    let none = filled(&five(), UnitAsked { bytes: 20, ..ASKED });
    assert_eq!(none, Err(FillError::TooLarge));
}

#[test]
fn an_answer_of_another_shape_or_key_is_not_stored() {
    let mut rows = five();
    rows[0][0] = Some(8_i32.to_be_bytes().to_vec());
    assert_eq!(filled(&rows, ASKED), Err(FillError::KeyForm));
    let mut rows = five();
    rows[2][1] = None;
    assert_eq!(filled(&rows, ASKED), Err(FillError::Shape));
    let mut rows = five();
    rows[4].pop();
    assert_eq!(filled(&rows, ASKED), Err(FillError::Shape));
}

#[test]
fn fills_read_a_few_sizes_and_none_in_vain() {
    let units = Units::new(6_400);
    let (table, unit) = (uuid::Uuid::from_u128(7), b"unit");
    let read = |rest: &str, now| {
        let rows = units.rows_to_read(table, unit, &slice(rest).2, now);
        assert_ne!(rows, Err(NoFill::Churn), "no fill was wasteful");
        rows.ok()
    };
    assert_eq!(read("LIMIT 5", 0), Some(16));
    assert_eq!(read("LIMIT 65", 0), Some(65), "as many as it asks for, of rows not seen yet");
    assert_eq!(read("AND c > 1 LIMIT 200", 0), Some(16));
    units.learn(table, 10, 500);
    assert_eq!(read("LIMIT 50", 0), Some(64));
    let more = |rows, rest: &str| units.may_read_more(table, rows, &slice(rest).2);
    assert!(more(64, "") && !more(65, ""));
    assert!(more(63, "AND c IN (1, 2)") && !more(64, "AND c IN (1, 2)"));
    assert_eq!(read("LIMIT 65", 0), Some(128), "a unit has no more");
    assert_eq!(read("LIMIT 129", 0), None);
    assert_eq!(read("LIMIT 5000", 0), None);
    for rest in ["", "AND c = 1", "AND c > 1 LIMIT 2"] {
        assert_eq!(read(rest, 0), Some(128), "{rest}");
    }
    units.note_in_vain(unit, &slice("AND c > 9").2, 0);
    assert_eq!([read("AND c < 5", 59_999), read("AND c < 5", 60_000)], [None, Some(128)]);
    assert_eq!(read("LIMIT 50", 1), Some(64));
    assert_eq!(read("ORDER BY c DESC", 1), Some(128));
}

/// A partition of a few large rows must not keep all others of its table out for good.
#[test]
fn a_limit_that_seems_not_to_fit_is_tried_now_and_then() {
    let units = Units::new(64_000);
    let table = uuid::Uuid::from_u128(7);
    units.learn(table, 2, 60_000);
    let mut tried = 0;
    let reads = (0_u32..10_000).find(|read| {
        let rows = units.rows_to_read(table, &read.to_be_bytes(), &slice("LIMIT 50").2, 0).ok();
        tried += u32::from(rows.is_some());
        // All other partitions have rows of 100 bytes.
        rows.inspect(|rows| units.learn(table, *rows as usize, *rows as usize * 100)) == Some(64)
    });
    let reads = reads.expect("small rows are seen for what they are");
    assert!(tried * 20 < reads, "{tried} of {reads} reads of rows that may be large");
}

#[test]
fn fills_that_read_much_for_nothing_become_seldom() {
    let (table, unit) = (uuid::Uuid::from_u128(7), b"unit");
    let fills = |rows: usize, wanted: usize| {
        let units = Units::new(64_000);
        let read = |_: &u32| {
            let may = units.rows_to_read(table, unit, &slice("LIMIT 1").2, 0).is_ok();
            if may {
                units.note_fill(unit, rows, wanted);
            }
            may
        };
        (0..100_u32).filter(read).count()
    };
    // What a read wants, or little more, is always filled: the read itself costs as much.
    assert_eq!([fills(16, 0), fills(56, 10), fills(1_000, 1_000)], [100; 3]);
    assert!(fills(17, 0) < 15 && fills(57, 10) < 15);
}

/// Rows that are larger than a unit, or that the database does not give in time, cost no more than
/// the reads of clients do, in whatever partition they are.
#[test]
fn of_large_rows_no_more_are_read_than_clients_ask_for() {
    for fails in [true, false] {
        let units = Units::new(64_000);
        let table = uuid::Uuid::from_u128(7);
        let read = |rest: &str, at: u32| {
            let rows = units.rows_to_read(table, &at.to_be_bytes(), &slice(rest).2, 0).ok();
            match fails {
                true => units.note_failed(table),
                false => units.learn_too_large(table),
            }
            rows
        };
        assert_eq!(read("LIMIT 1", 0), Some(16));
        for at in 1..200 {
            for (rest, most) in [("LIMIT 1", 1), ("LIMIT 3", 3), ("AND c > 4 LIMIT 2", 1)] {
                let rows = read(rest, at);
                assert!(rows.is_none_or(|rows| rows <= most), "{fails} {rest}: {rows:?}");
            }
        }
        // What has been seen counts, however often fills have failed.
        (0..100).for_each(|_| units.learn(table, 10, 500));
        assert_eq!(read("LIMIT 1", 0), Some(64));
    }
}

proptest! {
    #[test]
    fn bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in 0..200_usize,
    ) {
        let mut unit = filled(&five(), ASKED).unwrap().bytes;
        let at = at.min(unit.len());
        unit.truncate(at);
        unit.extend(&bytes);
        if let Some(unit) = StoredUnit::decode(&unit) {
            for rest in ["", "AND c = 1 AND d < 2", "ORDER BY c DESC LIMIT 2"] {
                let (plan, key, slice) = slice(rest);
                if let Ok(answer) = unit.answer(&plan.read.table, &slice, None) {
                    answer.write_rows(&key, &plan.read.projection, &mut Vec::new());
                }
            }
        }
    }

    /// Any slice of any unit is what the partition itself gives, or is left to the database.
    #[test]
    fn a_unit_never_answers_otherwise_than_its_partition(
        keys in proptest::collection::btree_set((0..6_i32, 0..6_i32), 0..12),
        reversed: bool,
        limit in 1..14_u32,
        (low, high, equal) in (0..6_i32, 0..6_i32, 0..6_i32),
        (asks_reversed, wanted) in (any::<bool>(), 1..14_usize),
    ) {
        // `c` rises, `d` falls.
        let mut all: Vec<(i32, i32)> = keys.into_iter().map(|(c, d)| (c, 9 - d)).collect();
        all.sort_by_key(|(c, d)| (*c, -d));
        let turn = |mut rows: Vec<(i32, i32)>, reversed: bool| {
            if reversed { rows.reverse() }
            rows
        };
        let stored: Vec<_> = turn(all.clone(), reversed)
            .into_iter()
            .take(limit as usize)
            .map(|(c, d)| row(c, d, None))
            .collect();
        let unit = filled(&stored, UnitAsked { reversed, rows: limit, ..ASKED }).unwrap().bytes;
        let bounds = match equal {
            0 => String::new(),
            1 => format!("AND c >= {low} AND c < {high}"),
            2 => format!("AND c = {low} AND d > {high}"),
            3 => format!("AND c IN ({low}, {high})"),
            4 => format!("AND c = {low} AND d IN ({high}, {}, 9)", high + 2),
            _ => format!("AND c IN ({low}, {high}) AND d IN (9, {})", high + 2),
        };
        let within = |(c, d): &(i32, i32)| match equal {
            0 => true,
            1 => *c >= low && *c < high,
            2 => *c == low && *d > high,
            3 => [low, high].contains(c),
            4 => *c == low && [high, high + 2, 9].contains(d),
            _ => [low, high].contains(c) && [high + 2, 9].contains(d),
        };
        let order = if asks_reversed { "ORDER BY c DESC" } else { "" };
        let expected: Vec<i32> = turn(all.clone(), asks_reversed)
            .into_iter()
            .filter(within)
            .take(wanted)
            .map(|(c, d)| 10 * c + d)
            .collect();
        let found = values(&unit, &format!("{bounds} {order} LIMIT {wanted}"), None);
        if !bounds.contains("IN") {
            match counted(&unit, &bounds) {
                Ok(counted) => {
                    prop_assert_eq!(counted, all.iter().filter(|row| within(row)).count() as i64);
                }
                Err(reason) => {
                    prop_assert_eq!(reason, Unanswered::Beyond);
                    prop_assert!(stored.len() < all.len() || stored.len() == limit as usize);
                }
            }
        }
        match found {
            Ok(found) => prop_assert_eq!(found, expected),
            Err(reason) => {
                prop_assert_eq!(reason, Unanswered::Beyond);
                prop_assert!(stored.len() < all.len() || stored.len() == limit as usize);
            }
        }
    }
}

/// `v` of the row that a unit has, `Some(None)` if it knows that there is none.
fn row_of(unit: &[u8], c: &str, d: &str) -> Result<Option<i32>, Unanswered> {
    let script = "CREATE TABLE s.t (k int, c int, d int, v int, w text, PRIMARY KEY (k, c, d))
        WITH CLUSTERING ORDER BY (c ASC, d DESC);";
    let schema = Defined(defined_tables(script, None).unwrap());
    let text = format!("SELECT d, v, k FROM s.t WHERE k = 7 AND c = {c} AND d = {d}");
    let Plan::CachedRead(plan) = analyse(&parse(&text), &schema, None) else {
        panic!("{text} is a row")
    };
    let mut key = RowKey::new();
    plan.key.bind(|_| None, &mut key).unwrap();
    let stored = StoredUnit::decode(unit).unwrap().row(&plan.table, &key)?;
    let row = crate::row::StoredRow::decode(&stored).unwrap();
    assert_eq!(row.fingerprint(), plan.fingerprint);
    let value = row.cell(0).value.map(|value| i32::from_be_bytes(value.try_into().unwrap()));
    assert_eq!(row.is_absent(), value.is_none());
    Ok(value)
}

#[test]
fn a_unit_tells_of_each_row_that_lies_within_it() {
    let mut backwards = five();
    backwards.reverse();
    for (rows, asked, unknown) in [
        (five(), ASKED, None),
        (five(), UnitAsked { rows: 5, ..ASKED }, Some((3, 7))),
        (five()[..3].to_vec(), UnitAsked { rows: 3, ..ASKED }, Some((2, 1))),
        (backwards.clone(), UnitAsked { reversed: true, ..ASKED }, None),
        (backwards[..2].to_vec(), UnitAsked { reversed: true, rows: 2, ..ASKED }, Some((3, 9))),
        (Vec::new(), ASKED, None),
    ] {
        let unit = filled(&rows, asked).unwrap().bytes;
        for (c, d) in (0..5).flat_map(|c| (0..11).map(move |d| (c, d))) {
            let is_there = rows.contains(&row(c, d, None));
            // `c` rises and `d` falls in the table's order.
            let is_beyond = unknown.is_some_and(|(last_c, last_d)| match asked.reversed {
                false => c > last_c || c == last_c && d <= last_d,
                true => c < last_c || c == last_c && d >= last_d,
            });
            let expected = match is_beyond && !is_there {
                true => Err(Unanswered::Beyond),
                false => Ok(is_there.then_some(10 * c + d)),
            };
            let found = row_of(&unit, &c.to_string(), &d.to_string());
            assert_eq!(found, expected, "{c}, {d} of {} rows, {asked:?}", rows.len());
        }
    }
}

#[test]
fn a_damaged_unit_tells_of_no_row() {
    let unit = filled(&five(), ASKED).unwrap().bytes;
    for cut in HEADER..unit.len() {
        let decoded = StoredUnit::decode(&unit[..cut]);
        assert!(decoded.is_none() || row_of(&unit[..cut], "3", "9").is_err(), "{cut}");
    }
}

#[test]
fn a_row_that_is_stored_under_another_form_of_its_key_is_not_shown_under_this_one() {
    let script = "CREATE TABLE s.t (k int, c varint, v int, PRIMARY KEY (k, c));";
    let schema = Defined(defined_tables(script, None).unwrap());
    let text = "SELECT c, v FROM s.t WHERE k = 7 AND c = 5";
    let Plan::CachedRead(plan) = analyse(&parse(text), &schema, None) else {
        panic!("{text} is of one row")
    };
    let mut key = RowKey::new();
    plan.key.bind(|_| None, &mut key).unwrap();
    let unit_key = RowKey::from_engine_key(key.unit_key(), 1, 0).unwrap();
    let (int, time) = (|n: i32| n.to_be_bytes(), 1_i64.to_be_bytes());
    for (stored, is_shown) in [(&[5][..], true), (&[0, 5], false), (&[0, 0, 5], false)] {
        let (k, v) = (int(7), int(1));
        let row = vec![Some(&k[..]), Some(stored), Some(&v[..]), Some(&time[..]), None];
        let unit =
            read_unit(&plan.table, plan.fingerprint, &unit_key, &[row], ASKED, 1_000).unwrap();
        let unit = StoredUnit::decode(&unit.bytes).unwrap();
        let row = unit.row(&plan.table, &key);
        assert_eq!(row.is_ok(), is_shown, "{stored:?}");
        // A later fill of the row makes it go, whatever its form.
        assert!(unit.tells_of(&plan.table, &key), "{stored:?}");
    }
}
