//! Every interleaving of readers with the writer, as far as loom explores them (`make models`): the
//! code is the real one.
//!
//! A lookup may return what the key's slot was at some moment while it ran. It never returns
//! another key's slot, a mixture of two, or one that was gone before it began.

use std::collections::HashSet;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::slot::{Location, SizeClass, Slot, tag_of};
use super::table::{Table, mix};
use super::{Index, IndexWriter, Inserted, SLOTS_PER_LINE};

const HASH: u64 = 0x1234_8000_0000_0000;

fn slot(offset_units: u32) -> Slot {
    Slot::new(HASH, Location { segment: 1, offset_units }, SizeClass(3), 0)
}

/// A table with the slot of `HASH` in its second line, and that line and the first one.
fn table_with_slot_in_second_line() -> (Arc<Table>, [usize; 2]) {
    // Enough lines that the two of this tag differ.
    let table = Table::new(5, 5);
    let lines = table.lines_of(HASH);
    assert_ne!(lines[0], lines[1]);
    let place = table.free_in(lines[1]).expect("an empty line");
    table.set(place, Some(slot(7)));
    (Arc::new(table), lines)
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    // A look at a line is eight of them.
    builder.max_branches = 20_000;
    builder.check(model);
}

/// A key is found even while it moves from its second line to its first one. In this direction a
/// reader may miss both copies.
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

const CLASS: SizeClass = SizeClass(3);

/// The hash whose tag is `tag`, with its first line among the table's first.
fn hash(tag: u16) -> u64 {
    u64::from(tag) << 48
}

/// Where key `tag` is after its `n`th put.
fn at(tag: u16, n: u32) -> Location {
    Location { segment: u32::from(tag), offset_units: n }
}

/// A reader's look at a key: which put of it, checked to be of this key and whole.
fn look(index: &Index, tag: u16) -> Option<u32> {
    let slot = index.lookup(hash(tag))?;
    assert_eq!(
        (slot.tag(), slot.location().segment, slot.size_class()),
        (tag, u32::from(tag), CLASS),
        "torn or another key's"
    );
    Some(slot.location().offset_units)
}

/// A full line (the only one) of the keys 1 to 8, each put once.
fn full() -> IndexWriter {
    let mut writer = IndexWriter::with_lines(1);
    (1..=SLOTS_PER_LINE as u16).for_each(|tag| {
        writer.insert(hash(tag), at(tag, 1), CLASS);
    });
    writer
}

/// At most one slot for each tag.
fn assert_single(writer: &IndexWriter) {
    let tags: Vec<u64> = writer
        .line_words(0..writer.lines())
        .flatten()
        .filter(|word| *word != 0)
        .map(|word| word >> 48)
        .collect();
    assert_eq!(
        tags.iter().collect::<HashSet<_>>().len(),
        tags.len(),
        "two slots of one tag: {tags:?}"
    );
    assert_eq!(writer.len(), tags.len());
}

/// A key that is replaced is found all the time, and a reader that was told of the newer place
/// never sees the older one.
#[test]
fn a_replaced_slot_is_the_old_or_the_new_one_and_never_the_old_one_again() {
    explore(|| {
        let mut writer = full();
        let index = writer.reader();
        let told = Arc::new(AtomicU32::new(1));
        let reader = {
            let told = told.clone();
            thread::spawn(move || {
                let least = told.load(Ordering::Acquire);
                let first = look(&index, 3).expect("it is there all the time");
                let second = look(&index, 3).expect("it is there all the time");
                assert!(least <= first && first <= second, "{least}, then {first}, then {second}");
            })
        };
        assert_eq!(
            writer.insert(hash(3), at(3, 2), CLASS).replaced.map(|s| s.location()),
            Some(at(3, 1))
        );
        told.store(2, Ordering::Release);
        assert!(writer.replace_if(hash(3), at(3, 2), at(3, 3), CLASS));
        assert!(!writer.replace_if(hash(3), at(3, 2), at(3, 4), CLASS), "it is not there any more");
        reader.join().expect("no reader saw anything wrong");
        assert_single(&writer);
    });
}

/// Once a removal is acknowledged nobody finds the key, whoever was counting lookups of it
/// meanwhile; its neighbour stays.
#[test]
fn a_removed_slot_is_gone_and_its_neighbour_is_not() {
    explore(|| {
        let mut writer = full();
        let index = writer.reader();
        let removed = Arc::new(AtomicU32::new(0));
        let reader = {
            let removed = removed.clone();
            thread::spawn(move || {
                let gone = removed.load(Ordering::Acquire) == 1;
                let found = look(&index, 2);
                assert!(!gone || found.is_none(), "found after its removal");
                assert_eq!(look(&index, 1), Some(1), "another key was removed");
            })
        };
        assert!(writer.remove(hash(2)).is_some());
        removed.store(1, Ordering::Release);
        assert!(!writer.remove_if(hash(1), at(1, 9)), "it is elsewhere");
        reader.join().expect("no reader saw anything wrong");
        assert_eq!(writer.peek(hash(2)), None, "a late count has brought it back");
        assert_single(&writer);
    });
}

/// A key that is removed and put again is never found where it was before the removal.
#[test]
fn a_slot_put_again_is_the_new_one() {
    explore(|| {
        let mut writer = full();
        let index = writer.reader();
        let removed = Arc::new(AtomicU32::new(0));
        let reader = {
            let removed = removed.clone();
            thread::spawn(move || {
                let gone = removed.load(Ordering::Acquire) == 1;
                let found = look(&index, 8);
                assert!(!gone || found != Some(1), "the older place after the removal");
            })
        };
        writer.remove(hash(8));
        removed.store(1, Ordering::Release);
        // Another key takes its slot, so that it gets another one.
        writer.remove(hash(1));
        writer.insert(hash(8), at(8, 2), CLASS);
        reader.join().expect("no reader saw anything wrong");
        assert_eq!(look(&writer, 8), Some(2));
        assert_single(&writer);
    });
}

/// In full lines a key evicts another: readers find either one or none, never one in the other's
/// name.
#[test]
fn an_evicted_slot_is_never_taken_for_the_one_that_follows() {
    explore(|| {
        let mut writer = full();
        let index = writer.reader();
        let reader = thread::spawn(move || {
            // Counts a lookup of a possible victim while the clock goes round.
            let old = look(&index, 2);
            let new = look(&index, 9);
            assert!(old.is_none_or(|n| n == 1) && new.is_none_or(|n| n == 1));
        });
        let Inserted { evicted, .. } = writer.insert(hash(9), at(9, 1), CLASS);
        assert!(evicted.is_some(), "there was no room");
        reader.join().expect("no reader saw anything wrong");
        assert_eq!((look(&writer, 9), writer.len()), (Some(1), SLOTS_PER_LINE));
        assert_single(&writer);
    });
}

/// An insert that makes room by moving a slot to its other line: the moved key is found all the
/// while.
#[test]
fn a_displaced_slot_is_found() {
    explore(move || {
        let mut writer = IndexWriter::with_lines(2);
        // Tags of both lines, and of the first one only.
        let with = |lines| {
            (1..200).filter(|tag| writer.lines_of(hash(*tag)) == lines).collect::<Vec<u16>>()
        };
        let (both, fixed) = (with([0, 1]), with([0, 0]));
        // Line 0 holds one key that could be in line 1 too, and seven that could not.
        writer.insert(hash(both[0]), at(both[0], 1), CLASS);
        fixed[..SLOTS_PER_LINE - 1].iter().for_each(|&tag| {
            writer.insert(hash(tag), at(tag, 1), CLASS);
        });
        let (index, moved) = (writer.reader(), both[0]);
        let reader =
            thread::spawn(move || assert_eq!(look(&index, moved), Some(1), "lost on its way"));
        let last = fixed[SLOTS_PER_LINE - 1];
        assert_eq!(
            writer.insert(hash(last), at(last, 1), CLASS),
            Inserted::default(),
            "one moved, none evicted"
        );
        reader.join().expect("no reader saw anything wrong");
        assert_single(&writer);
    });
}

/// Lines of a checkpoint never come over what was written meanwhile, and readers see them whole.
#[test]
fn a_loaded_line_does_not_hide_what_was_written_meanwhile() {
    explore(|| {
        let word = |tag, n| Slot::new(hash(tag), at(tag, n), CLASS, 0).word();
        let mut writer = IndexWriter::with_lines(1);
        writer.insert(hash(3), at(3, 2), CLASS);
        let index = writer.reader();
        let reader = thread::spawn(move || {
            assert_eq!(look(&index, 3), Some(2), "the checkpoint's slot in place of a newer one");
            assert!(look(&index, 4).is_none_or(|n| n == 1));
        });
        let done = writer.load_line(0, [word(3, 1), word(4, 1), 0, 0, 0, 0, 0, 0]);
        assert_eq!((done.loaded, done.kept, done.dropped), (1, 1, 0));
        reader.join().expect("no reader saw anything wrong");
        assert_eq!(look(&writer, 3), Some(2));
        assert_single(&writer);
    });
}

/// A key whose line is parted is found all the while, in its old line or in the new one. What is
/// written behind the growth is never missed for what was there before.
#[test]
fn a_slot_whose_line_is_parted_is_found() {
    explore(|| {
        let mut writer = IndexWriter::growing(1, 2);
        // One key that goes to the new line, and one that stays.
        let class = |tag: &u16, line| super::extent::line_in_group(mix(*tag), 2) == line;
        let goes = (1..200).find(|tag| class(tag, 1)).expect("half of them");
        let stays = (1..200).find(|tag| class(tag, 0)).expect("half of them");
        for tag in [goes, stays] {
            writer.insert(hash(tag), at(tag, 1), CLASS);
        }
        let index = writer.reader();
        let told = Arc::new(AtomicU32::new(1));
        let reader = {
            let told = told.clone();
            thread::spawn(move || {
                let least = told.load(Ordering::Acquire);
                let found = look(&index, goes).expect("it is there all the time");
                assert!(least <= found, "{found} after {least}");
                assert_eq!(look(&index, stays), Some(1));
            })
        };
        assert_eq!(writer.index.table.grow(), []);
        writer.insert(hash(goes), at(goes, 2), CLASS);
        told.store(2, Ordering::Release);
        reader.join().expect("no reader saw anything wrong");
        assert_eq!(writer.lines(), 2);
        assert_single(&writer);
    });
}
