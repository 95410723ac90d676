//! Every interleaving of a reader with the writer, as far as loom explores them:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p afterglow-engine --lib --target-dir target/loom index::loom_tests
//! ```

use loom::sync::Arc;
use loom::thread;

use super::slot::{Location, SizeClass, Slot, tag_of};
use super::table::Table;

const HASH: u64 = 0x1234_8000_0000_0000;

fn slot(offset_units: u32) -> Slot {
    Slot::new(HASH, Location { segment: 1, offset_units }, SizeClass(3), 0)
}

/// A table with the slot of `HASH` in its second line, and that line and the first one.
fn table_with_slot_in_second_line() -> (Arc<Table>, [usize; 2]) {
    // Enough lines that the two of this tag differ.
    let table = Table::new(5);
    let lines = table.lines_of(HASH);
    assert_ne!(lines[0], lines[1]);
    let place = table.free_in(lines[1]).expect("an empty line");
    table.set(place, Some(slot(7)));
    (Arc::new(table), lines)
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A key that is moved from its second line to its first one, in the direction in which a reader may miss both copies, is
/// found nevertheless.
#[test]
fn a_slot_on_the_move_is_found() {
    explore(|| {
        let (table, lines) = table_with_slot_in_second_line();
        let reader = {
            let table = table.clone();
            thread::spawn(move || table.find(HASH).map(|(_, slot)| slot.location()))
        };
        let (from, _) = table.find_in(lines, tag_of(HASH)).expect("it was put there");
        let to = table.free_in(lines[0]).expect("an empty line");
        table.move_slot(from, to);
        assert_eq!(reader.join().expect("no panic"), Some(slot(7).location()));
        assert_eq!(table.len(), 1);
    });
}

/// Counting a lookup never brings back what the writer has removed or replaced.
#[test]
fn a_late_count_changes_nothing_but_the_frequency() {
    explore(|| {
        let (table, lines) = table_with_slot_in_second_line();
        let reader = {
            let table = table.clone();
            thread::spawn(move || {
                if let Some((place, seen)) = table.find(HASH) {
                    assert!([slot(7), slot(8)].map(Slot::location).contains(&seen.location()));
                    table.bump(place, seen);
                }
            })
        };
        let (place, _) = table.find_in(lines, tag_of(HASH)).expect("it was put there");
        table.set(place, Some(slot(8)));
        let now = table.find(HASH).map(|(_, slot)| slot.location());
        assert_eq!(now, Some(slot(8).location()));
        table.set(place, None);
        reader.join().expect("no panic");
        assert_eq!(table.find(HASH), None);
    });
}
