//! The background copy, step by step: an object that stays in DRAM is on flash in time, whatever
//! else goes on.

use super::openings::checkpoint;
use super::plan::{Setup, Size};
use super::scenarios::{NS, copy_to_segment, crash, get, pass, put, put_first_in_segment, world};
use super::world::{Life, World};
use crate::api::{DropReason, MissReason};
use crate::device::sim::{Crash, SimFaults, SimIo};
use crate::ops::get::Lookup;
use crate::segment::SegmentState;
use crate::sync::atomic::Ordering;
use crate::tier::admission::PROVEN_AT;

/// Turns of a tenth of a second in which what was put must have come to flash.
const IN_TIME: usize = 100;

fn keys(name: &str, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("{name}-{n}").into_bytes()).collect()
}

fn put_all(life: &Life, keys: &[Vec<u8>], value: &[u8]) {
    keys.iter().for_each(|key| put(life, key, value, 0));
}

fn not_on_flash(world: &World, life: &Life, keys: &[Vec<u8>]) -> usize {
    keys.iter().filter(|key| life.on_flash(&world.machine, NS as u8, key).is_none()).count()
}

#[test]
fn counters_that_never_rest_hold_up_nobodys_copy_and_are_copied_themselves() {
    let (mut world, mut life) = world(1);
    // Before the others in their queues.
    let (counters, others) = (keys("counter", 3), keys("other", 200));
    put_all(&life, &counters, b"0");
    put_all(&life, &others, &[7; 100]);
    for n in 0..IN_TIME {
        put_all(&life, &counters, n.to_string().as_bytes());
        pass(&mut world, &mut life, 1);
        let age = life.core.stats().unsaved_ms;
        assert!(age < 10_000, "something has waited for {age} ms");
    }
    assert_eq!(
        not_on_flash(&world, &life, &others),
        0,
        "objects that nobody changed are in DRAM alone"
    );
    // At most one copy of each in four seconds.
    let before = life.core.stats().totals.record_bytes;
    for n in 0..4 * IN_TIME {
        put_all(&life, &counters, n.to_string().as_bytes());
        pass(&mut world, &mut life, 1);
    }
    let written = life.core.stats().totals.record_bytes - before;
    let record = crate::format::record::usual_padded("counter-0".len(), 3);
    let most = u64::from(record) * counters.len() as u64 * (4 * IN_TIME as u64 / 40 + 1);
    assert!(0 < written && written <= most, "{written} bytes of copies, {most} are plenty");
    let life = crash(&mut world, life, Crash::Process);
    let lost = others.iter().filter(|key| get(&life, key).is_none()).count();
    assert_eq!(lost, 0, "objects put fifty seconds before the crash are lost");
}

/// Goes on while writes fail until a segment is given up for it, and has the device recover.
fn until_a_segment_is_retired(world: &mut World, life: &mut Life) {
    for _ in 0..IN_TIME {
        pass(world, life, 1);
        if life.core.stats().totals.segments_retired > 0 {
            break;
        }
    }
    assert!(life.core.stats().totals.segments_retired > 0, "no test: {:?}", life.core.stats());
    world.machine.set_faults(SimFaults::none());
}

#[test]
fn what_a_failed_write_leaves_in_dram_alone_is_written_again() {
    for stop in [false, true] {
        let (mut world, mut life) = world(1);
        let objects = keys("object", 30);
        put_all(&life, &objects, &[7; 500]);
        world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
        until_a_segment_is_retired(&mut world, &mut life);
        let life = if stop {
            assert!(world.close(&mut life));
            assert_eq!(
                not_on_flash(&world, &life, &objects),
                0,
                "the clean stop has left objects behind"
            );
            crash(&mut world, life, Crash::Machine)
        } else {
            pass(&mut world, &mut life, IN_TIME);
            assert_eq!(life.core.stats().unsaved_bytes, 0, "{:?}", life.core.stats());
            crash(&mut world, life, Crash::Process)
        };
        let lost = objects.iter().filter(|key| get(&life, key).is_none()).count();
        assert_eq!(lost, 0, "stop: {stop}");
    }
}

/// A step looks through a part of DRAM: the thread that writes is held up by no more.
#[test]
fn what_a_failed_write_leaves_in_dram_alone_is_found_a_part_at_a_time() {
    let dirty = |life: &Life| {
        life.core.shards.iter().map(|shard| shard.lock().dram.dirty_len()).sum::<usize>()
    };
    let (mut world, mut life) = world(1);
    let objects = keys("object", 100);
    put_all(&life, &objects, &[7; 100]);
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    while life.core.stats().totals.segments_retired == 0 {
        pass(&mut world, &mut life, 1);
    }
    world.machine.set_faults(SimFaults::none());
    assert_eq!(dirty(&life), 0, "all were copied to the segment, and none is looked for yet");
    let regaining = |life: &Life| life.core.progress.regaining.load(Ordering::Acquire);
    assert!(regaining(&life), "reads evict nothing that passes for copied");
    let (mut most, mut before) = (0, 0);
    for _ in 0..objects.len() {
        assert_eq!(life.core.table.in_state(SegmentState::Retired).count(), 1, "it is not in use");
        world.turn(&mut life);
        let now = dirty(&life);
        most = most.max(now - before);
        before = now;
        if now == objects.len() {
            break;
        }
    }
    assert_eq!(before, objects.len(), "all are found");
    pass(&mut world, &mut life, 1);
    assert!(!regaining(&life), "and then they may");
    assert!((1..objects.len() / 2).contains(&most), "{most} in one step");
    pass(&mut world, &mut life, IN_TIME);
    assert_eq!(not_on_flash(&world, &life, &objects), 0, "{:?}", life.core.stats());
    assert_eq!(life.core.totals.dropped_for(DropReason::WriteFailed), 0);
}

/// The pause behind failed writes grows with each, for as long as nothing else comes: a write that
/// succeeds ends it.
#[test]
fn once_a_write_succeeds_what_comes_next_is_on_flash_in_time() {
    let (mut world, mut life) = world(1);
    let objects = keys("object", 6);
    // Each in a segment of its own, and all of them on their way.
    objects.iter().for_each(|key| copy_to_segment(&life, key, &[7; 500]));
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    while life.core.stats().totals.segments_retired < 4 {
        world.turn(&mut life);
    }
    world.machine.set_faults(SimFaults::none());
    while life.core.stats().chunks_waiting > 0 {
        world.turn(&mut life);
    }
    assert!(
        !life.background.is_pausing(),
        "no test: all writes have failed: {:?}",
        life.core.stats()
    );
    put(&life, b"key", &[7; 500], 0);
    pass(&mut world, &mut life, IN_TIME);
    assert_eq!(not_on_flash(&world, &life, &[b"key".to_vec()]), 0, "{:?}", life.core.stats());
}

#[test]
fn a_clean_stop_whose_writes_fail_at_first_keeps_everything_all_the_same() {
    let (mut world, mut life) = world(1);
    let objects = keys("object", 30);
    put_all(&life, &objects, &[7; 500]);
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    life.background.start_close();
    until_a_segment_is_retired(&mut world, &mut life);
    assert!(world.close(&mut life));
    let life = crash(&mut world, life, Crash::Machine);
    let lost = objects.iter().filter(|key| get(&life, key).is_none()).count();
    assert_eq!(lost, 0);
}

#[test]
fn a_clean_stop_over_a_device_that_takes_nothing_any_more_ends() {
    let (mut world, mut life) = world(1);
    put_all(&life, &keys("object", 30), &[7; 500]);
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    let before = crate::clock::Clock::millis(&*world.clock);
    assert!(world.close(&mut life));
    let took = crate::clock::Clock::millis(&*world.clock) - before;
    assert!(took < 10_000, "{took} ms");
}

#[test]
fn what_dram_holds_of_a_segment_whose_footer_cannot_be_read_is_written_again() {
    for stop in [false, true] {
        let (mut world, mut life) = world(1);
        let kept = keys("kept", 20);
        put_all(&life, &kept, &[7; 500]);
        pass(&mut world, &mut life, IN_TIME);
        assert_eq!(not_on_flash(&world, &life, &kept), 0, "no test");
        world.machine.set_faults(SimFaults { read_error: 1.0, ..SimFaults::none() });
        for n in 0..600 {
            put(&life, format!("other-{n}").as_bytes(), &[2; 4000], 0);
            // They stay in DRAM, which is all that can be read.
            assert!(kept.iter().all(|key| get(&life, key).is_some()), "lost while it ran");
            if n % 5 == 0 {
                pass(&mut world, &mut life, 5);
            }
        }
        let totals = life.core.stats().totals;
        assert!(totals.segments_reclaimed > 20, "no test: {totals:?}");
        world.machine.set_faults(SimFaults::none());
        let life = if stop {
            assert!(world.close(&mut life));
            crash(&mut world, life, Crash::Machine)
        } else {
            pass(&mut world, &mut life, IN_TIME);
            crash(&mut world, life, Crash::Process)
        };
        let lost = kept.iter().filter(|key| get(&life, key).is_none()).count();
        assert_eq!(lost, 0, "stop: {stop}");
    }
}

#[test]
fn a_clean_stop_writes_to_segments_that_an_outage_has_cost() {
    let size = Size { shards: 1, lines: 120, dram: 120 << 10 };
    let mut world =
        World::new(&Setup { segment_kib: 16, segments: vec![10], size, ..Setup::plain(1) });
    let mut life = world.open();
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    let objects = keys("object", 25);
    put_all(&life, &objects, &[7; 2700]);
    pass(&mut world, &mut life, 6_000);
    let retired = life.core.table.in_state(SegmentState::Retired).count();
    assert!(retired >= 8, "no test: {retired} of 10 segments are out of use");
    world.machine.set_faults(SimFaults::none());
    assert!(world.close(&mut life));
    let life = crash(&mut world, life, Crash::Machine);
    let lost = objects.iter().filter(|key| get(&life, key).is_none()).count();
    assert_eq!(lost, 0, "the device had recovered, and DRAM held all of them");
}

/// Puts `key` and has other objects follow it until its segment is the next to be reclaimed, and
/// nothing else is.
fn oldest_but_for_none(world: &mut World, life: &mut Life, key: &[u8]) -> u32 {
    put_first_in_segment(world, life, key, &[1; 900]);
    let hash = life.core.hash(NS as u16, key);
    let segment = life.core.shard(hash).index.peek(hash).expect("on flash").location().segment;
    let table = life.core.table.clone();
    let oldest = || table.in_state(SegmentState::Sealed).min_by_key(|&s| table.generation(s));
    for n in 0..200 {
        let is_reclaiming = table.in_state(SegmentState::Reclaiming).next().is_some();
        if oldest() == Some(segment)
            && !is_reclaiming
            && table.free_count() <= life.core.admission.free_target + 1
        {
            return segment;
        }
        put_first_in_segment(world, life, format!("filler-{n}").as_bytes(), &[2; 900]);
        assert_eq!(table.state(segment), SegmentState::Sealed, "no test: reclaimed too early");
    }
    panic!("no test: {:?}", life.core.stats());
}

/// The same for the object `key`, read often enough to be worth keeping. Its segment and its hash.
fn oldest_and_worth_keeping(world: &mut World, life: &mut Life) -> (u32, u64) {
    let segment = oldest_but_for_none(world, life, b"key");
    let hash = life.core.hash(NS as u16, b"key");
    let read = (0..3).all(|_| life.core.shard(hash).index.lookup(hash).is_some());
    assert!(read, "no test: it is gone");
    (segment, hash)
}

/// Reads an object that DRAM does not have, and that is asked for often. A reclaim of its own
/// segment begins, whose footer cannot be read; the read ends `turns` turns later. False if the
/// reclaim is over by then.
fn read_while_reclaimed_blindly(seed: u64, turns: usize) -> bool {
    let (mut world, mut life) = world(seed);
    let (segment, hash) = oldest_and_worth_keeping(&mut world, &mut life);
    life.core.shard(hash).lock().sketch.raise(hash, PROVEN_AT);
    let Lookup::Flash(read) = life.namespaces[NS].get(b"key") else { panic!("it is on flash") };
    let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
    world.machine.set_faults(SimFaults { read_error: 1.0, ..SimFaults::none() });
    for n in 0..40 {
        if life.core.table.state(segment) == SegmentState::Reclaiming {
            break;
        }
        copy_to_segment(&life, format!("last-{n}").as_bytes(), &[3; 900]);
        world.turn(&mut life);
    }
    assert_eq!(life.core.table.state(segment), SegmentState::Reclaiming, "no test");
    for _ in 0..turns {
        world.turn(&mut life);
    }
    if life.core.table.state(segment) != SegmentState::Reclaiming {
        return false;
    }
    assert!(matches!(read.finish(bytes), Lookup::Hit(_)), "its bytes are there still");
    assert!(
        life.core.shard(hash).lock().dram.peek(hash, NS as u16, b"key").is_some(),
        "no test: not promoted"
    );
    world.machine.set_faults(SimFaults::none());
    // Where there was no room for a copy, the next hit asks for one.
    pass(&mut world, &mut life, IN_TIME);
    assert!(get(&life, b"key").is_some(), "lost, {turns} turns after the begin, seed {seed}");
    pass(&mut world, &mut life, IN_TIME);
    assert_eq!(
        not_on_flash(&world, &life, &[b"key".to_vec()]),
        0,
        "in DRAM alone, {turns} turns after the begin, seed {seed}"
    );
    let life = crash(&mut world, life, Crash::Process);
    assert!(get(&life, b"key").is_some(), "lost with the process, {turns} turns, seed {seed}");
    true
}

#[test]
fn what_a_read_brings_from_a_segment_that_is_reclaimed_blindly_is_written_again() {
    for seed in 1..=24 {
        let is_in_time = |&turns: &usize| read_while_reclaimed_blindly(seed, turns);
        let moments = (0..40).take_while(is_in_time).count();
        assert!(moments > 0, "no test: no read ended while its segment was reclaimed, seed {seed}");
    }
}

/// A lookup brings an object into memory while a reclaim reads its record to write it again, which
/// it cannot do then.
#[test]
fn what_a_reclaim_gives_up_while_dram_holds_it_is_a_lost_copy_and_no_lost_object() {
    let (mut world, mut life) = world(1);
    let (segment, hash) = oldest_and_worth_keeping(&mut world, &mut life);
    // The footer is read first, then the record.
    world.machine.hold_up(SimIo::Read, 1, 100);
    for n in 0..40 {
        if world.machine.is_held_up() {
            break;
        }
        copy_to_segment(&life, format!("last-{n}").as_bytes(), &[3; 900]);
        world.turn(&mut life);
    }
    assert!(world.machine.is_held_up(), "no test: the record is not read");
    assert!(get(&life, b"key").is_some());
    let held = life.core.shard(hash).lock().dram.peek(hash, NS as u16, b"key").is_some();
    assert!(held, "no test: not promoted");
    let before = life.core.stats().totals;
    world.machine.set_faults(SimFaults { read_error: 1.0, ..SimFaults::none() });
    while life.core.table.state(segment) == SegmentState::Reclaiming {
        world.turn(&mut life);
    }
    world.machine.set_faults(SimFaults::none());
    let totals = life.core.stats().totals;
    assert_eq!(totals.copies_lost, before.copies_lost + 1, "{totals:?}");
    assert_eq!(totals.dropped, before.dropped, "nothing is lost: {totals:?}");
    pass(&mut world, &mut life, IN_TIME);
    let life = crash(&mut world, life, Crash::Process);
    assert!(get(&life, b"key").is_some(), "it was in memory, and is not copied again");
}

/// A segment has to be freed while one block of the index is still to be loaded. A record in it is
/// read to be written again. The journal knows of its removal, and the sweep comes later.
#[test]
fn a_reclaim_while_the_index_loads_does_not_write_again_what_the_journal_contradicts() {
    let (mut world, mut life) = world(1);
    let (segment, hash) = oldest_and_worth_keeping(&mut world, &mut life);
    checkpoint(&mut world, &mut life);
    assert_eq!(life.core.table.state(segment), SegmentState::Sealed, "no test: reclaimed");
    life.namespaces[NS].remove(b"key");
    world.crash(life, Crash::Process);

    // The index has two shards, each a block, read one after the other.
    world.machine.hold_up(SimIo::Read, 1 - (hash & 1), 200);
    let mut life = world.open();
    let is_loaded = |life: &Life| life.core.shard(hash).index.peek(hash).is_some();
    (0..20).for_each(|_| world.turn(&mut life));
    assert!(is_loaded(&life) && world.machine.is_held_up(), "no test: no block is left");
    // Reclaim waits for the index as long as a segment is free. Then some are, to write to.
    let table = life.core.table.clone();
    while table.take_free().is_some() {}
    for _ in 0..20 {
        if table.state(segment) == SegmentState::Reclaiming {
            break;
        }
        world.turn(&mut life);
    }
    assert_eq!(table.state(segment), SegmentState::Reclaiming, "no test: no reclaim");
    table.finish_restore();
    // What is written earns what may be written again.
    (0..2u8).for_each(|n| copy_to_segment(&life, &[n], &[3; 900]));
    while table.state(segment) == SegmentState::Reclaiming {
        world.turn(&mut life);
    }
    assert!(world.machine.is_held_up(), "no test: the index is loaded");
    world.load(&mut life);
    assert!(get(&life, b"key").is_none(), "its removal was acknowledged");
}

/// Whoever replaces an object asks for it first, and removes it then.
#[test]
fn what_is_removed_before_its_read_is_over_is_found_without_a_count_and_does_not_come_back() {
    let (mut world, mut life) = world(1);
    put_first_in_segment(&mut world, &mut life, b"key", b"value");
    let counted = |life: &Life| {
        let stats = &life.core.stats().namespaces[NS];
        (stats.hits, stats.misses)
    };
    let before = counted(&life);
    let ask = |life: &Life| match life.namespaces[NS].peek_flash(b"key") {
        Lookup::Flash(read) => read,
        other => panic!("it is on flash: {other:?}"),
    };
    drop(ask(&life));
    let read = ask(&life);
    life.namespaces[NS].remove(b"key");
    let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
    let Lookup::Hit(hit) = read.finish(bytes) else { panic!("its bytes are there still") };
    assert_eq!(*hit.value, *b"value");
    assert!(matches!(life.namespaces[NS].peek_flash(b"key"), Lookup::Miss(MissReason::Absent)));
    assert_eq!(counted(&life), before, "nothing is counted");
    assert_eq!(get(&life, b"key"), None, "it does not come back");
}
