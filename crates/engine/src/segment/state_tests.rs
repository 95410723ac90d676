//! Segments on their way from one state to the next.

use super::state::*;
use super::used_for::SegmentState;
use crate::device::DeviceId;
use crate::format::record::RecordFormat;

fn table() -> SegmentTable {
    let place = |n: u64| SegmentLocation { device: DeviceId(0), offset: n * 65536 };
    let table = SegmentTable::new((0..3).map(place).collect(), 65536);
    table.finish_restore();
    table
}

#[test]
fn a_segment_goes_round() {
    let table = table();
    let s = table.take_free().unwrap();
    table.open(s, 7, 0, RecordFormat::Compact);
    table.record_added(s, 5, 100, 64);
    table.write_started(s);
    table.write_done(s);
    assert_eq!(table.state(s), SegmentState::Open, "written so far, but not sealed");
    table.write_started(s);
    assert!(table.start_sealing(s));
    table.write_done(s);
    assert_eq!(table.state(s), SegmentState::Sealed);
    table.start_reclaim(s);
    table.set_free(s);
    assert_eq!((table.free_count(), table.generation(s)), (3, 7));
}

#[test]
fn figures_are_those_of_what_a_segment_holds_now() {
    let table = table();
    let s = table.take_free().unwrap();
    table.open(s, 7, 0, RecordFormat::Compact);
    for version in 0..3 {
        table.record_added(s, version, 100, 64);
    }
    (0..5).for_each(|_| table.slot_added(s));
    let seen = |id: u32| table.figures()[id as usize];
    let of = |f: SegmentFigures| (f.state, f.records, f.live, f.bytes);
    assert_eq!(of(seen(s)), (SegmentState::Open, 3, 3, 192), "never more alive than there are");
    (0..4).for_each(|_| table.slot_removed(s));
    assert_eq!(seen(s).live, 1);
    assert!(table.start_sealing(s));
    table.write_started(s);
    table.write_done(s);
    table.start_reclaim(s);
    table.set_free(s);
    assert_eq!(of(seen(s)), (SegmentState::Free, 0, 0, 0), "nothing of its last use");
}

#[test]
fn a_segment_whose_write_failed_is_not_sealed_and_nobody_falls_over_it() {
    let table = table();
    let s = table.take_free().unwrap();
    table.open(s, 7, 0, RecordFormat::Compact);
    table.write_started(s);
    // A write has failed between a putter's look at the state and its sealing.
    assert!(table.retire(s) && !table.retire(s));
    assert!(!table.start_sealing(s));
    assert!(!table.try_again(s), "a write is on its way");
    table.write_done(s);
    assert_eq!((table.state(s), table.free_count()), (SegmentState::Retired, 2));
    assert!(table.try_again(s) && !table.try_again(s));
    assert_eq!((table.state(s), table.free_count()), (SegmentState::Free, 3));
}

#[test]
#[should_panic(expected = "1 writes of its last use are on their way")]
fn a_write_of_the_last_use_keeps_the_next_one_from_beginning() {
    let table = table();
    let s = table.take_free().unwrap();
    table.open(s, 7, 0, RecordFormat::Compact);
    assert!(table.start_sealing(s));
    table.write_started(s);
    table.write_done(s);
    table.write_started(s);
    table.start_reclaim(s);
}

#[test]
#[should_panic(expected = "generation 7 after 7")]
fn a_generation_is_never_used_twice() {
    let table = table();
    let s = table.take_free().unwrap();
    table.open(s, 7, 0, RecordFormat::Compact);
    assert!(table.retire(s) && table.try_again(s));
    table.open(s, 7, 0, RecordFormat::Compact);
}

#[test]
fn a_segment_of_checkpoints_is_none_of_records() {
    let table = table();
    let s = table.take_for_checkpoint(DeviceId(0), 7).unwrap();
    assert_eq!((table.state(s), table.generation(s)), (SegmentState::Checkpoint, 7));
    assert_eq!((table.free_count(), table.entries()[s as usize].state), (2, 0));
    table.finish_restore();
    assert_eq!(table.free_count(), 2, "it is not free");
    let other = table.take_free().unwrap();
    table.open(other, 8, 0, RecordFormat::Compact);
    assert!(!table.restore_for_checkpoint(other), "it has records");
}

#[test]
#[should_panic(expected = "cannot go from Free to Reclaiming")]
fn edges_that_are_not_drawn_do_not_exist() {
    table().start_reclaim(0);
}
