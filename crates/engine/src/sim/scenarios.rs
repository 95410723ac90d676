//! Sequences that random runs meet too rarely, step by step.

use std::pin::Pin;
use std::task::{Context, Waker};

use super::plan::{Options, Setup, Size};
use super::state::look_up;
use super::world::{EPOCH, Life, World};
use crate::api::{Hit, MissReason, PutOptions, PutOutcome};
use crate::device::sim::{Crash, SimFaults};
use crate::durability::backpressure::Backpressure;
use crate::ops::get::Lookup;
use crate::ops::modify::{Change, Changed, Modified, Modify};
use crate::segment::SegmentState;
use crate::sync::atomic::Ordering;
use crate::version;

/// The namespace "mutable".
pub(super) const NS: usize = 0;

pub(super) fn world(seed: u64) -> (World, Life) {
    let mut world = World::new(&Setup::plain(seed));
    let life = world.open();
    (world, life)
}

/// What a get finds.
pub(super) fn get(life: &Life, key: &[u8]) -> Option<Vec<u8>> {
    match look_up(life, &life.namespaces[NS], key) {
        Lookup::Hit(hit) => Some(hit.value.to_vec()),
        _ => None,
    }
}

/// Ends a life and begins the next one, with its index loaded.
pub(super) fn crash(world: &mut World, life: Life, kind: Crash) -> Life {
    world.crash(life, kind);
    world.machine.set_faults(SimFaults::none());
    let mut life = world.open();
    world.load(&mut life);
    life
}

pub(super) fn pass(world: &mut World, life: &mut Life, turns: usize) {
    for _ in 0..turns {
        world.clock.pass(100);
        world.turn(life);
    }
}

/// Passes until it is so. What never comes fails: a scenario that never ended would tell nothing.
pub(super) fn pass_until(world: &mut World, life: &mut Life, is_so: impl Fn(&Life) -> bool) {
    const MOST: usize = 10_000;
    let came = (0..MOST).any(|_| {
        let so = is_so(life);
        if !so {
            pass(world, life, 1);
        }
        so
    });
    assert!(came, "not so after {MOST} turns: {:?}", life.core.stats());
}

pub(super) fn put(life: &Life, key: &[u8], value: &[u8], expiry: u32) {
    let outcome =
        life.namespaces[NS].put(key, value, PutOptions { expiry, ..PutOptions::default() });
    assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
}

#[test]
fn a_stream_that_stands_still_does_not_hold_up_the_journal() {
    let (mut world, mut life) = world(1);
    put(&life, b"short", &[1; 100], EPOCH as u32 + 1000);
    pass(&mut world, &mut life, 100);
    for n in 0..3000u32 {
        put(&life, format!("key-{}", n % 50).as_bytes(), &[2; 1000], 0);
        if n % 8 == 0 {
            pass(&mut world, &mut life, 10);
        }
    }
    assert!(!life.core.journal.is_poisoned(), "{:?}", life.core.stats());
    pass(&mut world, &mut life, 5000);
    let before = life.core.stats().totals.checkpoints;
    pass(&mut world, &mut life, 1000);
    let stats = life.core.stats();
    assert!(stats.journal_used < stats.journal_capacity / 4 * 3, "{stats:?}");
    assert_eq!(stats.totals.checkpoints, before, "an idle cache takes no checkpoints");
}

/// Puts `key` and has it be the first record of a segment on flash, and nowhere else.
pub(super) fn put_first_in_segment(world: &mut World, life: &mut Life, key: &[u8], value: &[u8]) {
    copy_to_segment(life, key, value);
    pass(world, life, 40);
}

/// Has `key` be the first record of a segment on its way to flash, and nowhere else.
pub(super) fn copy_to_segment(life: &Life, key: &[u8], value: &[u8]) {
    life.core.streams.flush(u64::MAX, true);
    put(life, key, value, 0);
    let hash = life.core.hash(NS as u16, key);
    let mut shard = life.core.shard(hash).lock();
    let entry = shard.dram.peek(hash, NS as u16, key).expect("just put").to_entry();
    assert!(life.core.copy_out(&mut shard, &entry, true));
    shard.dram.remove(hash, NS as u16, key);
    drop(shard);
    life.core.streams.flush(u64::MAX, true);
}

#[test]
fn a_read_that_outlives_its_segment_does_not_bring_the_old_value_back() {
    let (mut world, mut life) = world(1);
    put_first_in_segment(&mut world, &mut life, b"key", &[0; 900]);
    let Lookup::Flash(old) = life.namespaces[NS].get(b"key") else { panic!("it is on flash") };
    let bytes = life.core.set.read_at(old.device(), old.offset(), old.len());
    for n in 1..200u8 {
        put_first_in_segment(&mut world, &mut life, b"key", &[n; 900]);
        let Lookup::Flash(read) = life.namespaces[NS].get(b"key") else { panic!("it is on flash") };
        if read.offset() != old.offset() {
            continue;
        }
        drop(read);
        // Begun before the later puts, it may return the old value; but nobody after it.
        let _ = old.finish(bytes);
        assert_eq!(get(&life, b"key"), Some(vec![n; 900]));
        return;
    }
    panic!("the place was never used again");
}

/// Appends to `key`, which is on flash as `old`; `meanwhile` happens while the read is under way.
/// What the change has found.
fn change_while(meanwhile: impl Fn(&mut World, &mut Life)) -> (Option<Vec<u8>>, Changed) {
    let (mut world, mut life) = world(1);
    put_first_in_segment(&mut world, &mut life, b"key", b"old");
    let append = |found: Option<&Hit>| {
        let found = found.map(|hit| hit.value.to_vec());
        (Change::Value([found.as_deref().unwrap_or_default(), b"+"].concat().into()), found)
    };
    let Modify::Flash(mut read) = life.namespaces[NS].modify(b"key", append) else {
        panic!("it is on flash")
    };
    let mut bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
    meanwhile(&mut world, &mut life);
    loop {
        match read.finish(bytes) {
            Modify::Done(Ok(Modified { returned, changed })) => {
                let expected = [returned.as_deref().unwrap_or_default(), b"+"].concat();
                assert_eq!(get(&life, b"key"), Some(expected));
                return (returned, changed);
            }
            Modify::Done(Err(reason)) => panic!("{reason:?}"),
            Modify::Later(_) => panic!("write-back waits for nothing"),
            Modify::Flash(again) => read = again,
        }
        bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
    }
}

#[test]
fn a_change_that_comes_again_until_the_index_is_read_counts_once() {
    let (_world, life) = world(1);
    let (core, objects) = (&life.core, &life.namespaces[NS]);
    let change = |found: Option<&Hit>| (Change::Value(b"new".to_vec().into()), found.is_some());
    let counted = || {
        let hash = core.hash(NS as u16, b"key");
        let requests = core.shard(hash).lock().sketch.estimate(hash);
        (core.stats().namespaces[NS].lookups(), requests)
    };
    core.progress.loading.store(true, Ordering::Release);
    let first = objects.modify(b"key", change);
    assert!(matches!(first, Modify::Done(Err(MissReason::Loading))));
    assert_eq!(counted(), (1, 1));
    for _ in 0..20 {
        let again = objects.modify_again(b"key", change);
        assert!(matches!(again, Modify::Done(Err(MissReason::Loading))));
    }
    assert_eq!(counted(), (1, 1));
    core.progress.loading.store(false, Ordering::Release);
    let Modify::Done(Ok(last)) = objects.modify_again(b"key", change) else {
        panic!("nobody has to wait")
    };
    assert!(!last.returned && matches!(last.changed, Changed::Put(PutOutcome::Stored { .. })));
    // A put counts too, as a request and as no lookup.
    assert_eq!(counted(), (1, 2));
}

#[test]
fn a_change_whose_read_was_overtaken_sees_what_came_meanwhile() {
    let (found, _) = change_while(|_, _| {});
    assert_eq!(found.as_deref(), Some(&b"old"[..]));
    let (found, _) = change_while(|_, life| put(life, b"key", b"in DRAM", 0));
    assert_eq!(found.as_deref(), Some(&b"in DRAM"[..]));
    let (found, _) =
        change_while(|world, life| put_first_in_segment(world, life, b"key", b"on flash"));
    assert_eq!(found.as_deref(), Some(&b"on flash"[..]));
    let (found, _) = change_while(|_, life| {
        life.namespaces[NS].remove(b"key");
    });
    assert_eq!(found, None);
    let (found, _) = change_while(|_, life| {
        life.namespaces[NS].clear();
    });
    assert_eq!(found, None);
}

/// Puts until a change would have to wait for room in the journal; without I/O in between.
fn fill_journal(life: &Life) -> Backpressure {
    for n in 0..1000u32 {
        if let Some(backpressure) = life.namespaces[NS].backpressure() {
            return backpressure;
        }
        put(life, format!("key-{}", n % 50).as_bytes(), b"value", 0);
    }
    panic!("the journal does not get full")
}

pub(super) fn is_ready(backpressure: &mut Backpressure) -> bool {
    Pin::new(backpressure).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_full_journal_makes_changes_wait_until_a_checkpoint_has_made_room() {
    let (mut world, mut life) = world(1);
    let mut backpressure = fill_journal(&life);
    assert!(!is_ready(&mut backpressure));
    // The clock stands still: it is the checkpoint, made at once, that ends the wait.
    for _ in 0..500 {
        world.turn(&mut life);
        if is_ready(&mut backpressure) {
            let stats = life.core.stats();
            assert!(!stats.journal_poisoned && stats.totals.checkpoints == 1, "{stats:?}");
            assert!(life.namespaces[NS].backpressure().is_none());
            // A second time at once, although two checkpoints are a second apart otherwise.
            let mut backpressure = fill_journal(&life);
            for _ in 0..500 {
                world.turn(&mut life);
            }
            assert!(
                is_ready(&mut backpressure) && !life.core.stats().journal_poisoned,
                "{:?}",
                life.core.stats()
            );
            return;
        }
    }
    panic!("no room: {:?}", life.core.stats());
}

#[test]
fn nobody_waits_for_room_longer_than_50_ms_and_nobody_once_an_entry_was_lost() {
    let (mut world, mut life) = world(1);
    let mut backpressure = fill_journal(&life);
    world.turn_without_answers(&mut life);
    world.clock.pass(49);
    assert!(!is_ready(&mut backpressure) && life.namespaces[NS].backpressure().is_some());
    world.clock.pass(1);
    assert!(is_ready(&mut backpressure) && life.namespaces[NS].backpressure().is_none());
    assert!(!life.core.journal.is_poisoned(), "there is some room for those who do not wait");
    for n in 0..500u32 {
        put(&life, format!("key-{}", n % 50).as_bytes(), b"new", 0);
    }
    assert!(life.core.journal.is_poisoned() && life.namespaces[NS].backpressure().is_none());
    let life = crash(&mut world, life, Crash::Process);
    assert_eq!(get(&life, b"key-0"), None, "cold, because entries were lost");
}

/// Puts objects that leave DRAM until a put should wait for the write queue; without I/O in
/// between.
pub(super) fn fill_queue(life: &Life) -> Backpressure {
    for n in 0..20_000u32 {
        if let Some(backpressure) = life.namespaces[NS].put_backpressure() {
            return backpressure;
        }
        put(life, format!("object-{n}").as_bytes(), &[1; 2000], 0);
    }
    panic!("the write queue does not get full")
}

#[test]
fn puts_wait_for_the_write_queue_while_the_device_goes_on_and_a_second_where_it_does_not() {
    let (mut world, mut life) = world(1);
    let mut backpressure = fill_queue(&life);
    assert!(
        !is_ready(&mut backpressure) && life.namespaces[NS].backpressure().is_none(),
        "only puts wait"
    );
    let dropped = |life: &Life| -> u64 { life.core.stats().namespaces[NS].dropped.iter().sum() };
    assert_eq!(dropped(&life), 0, "nothing was lost on the way");
    // The clock stands still: it is a chunk that is written that ends the wait.
    for _ in 0..500 {
        world.turn(&mut life);
    }
    assert!(is_ready(&mut backpressure) && life.namespaces[NS].put_backpressure().is_none());
    let mut backpressure = fill_queue(&life);
    world.turn_without_answers(&mut life);
    world.clock.pass(999);
    assert!(!is_ready(&mut backpressure));
    world.clock.pass(1);
    assert!(
        is_ready(&mut backpressure) && life.namespaces[NS].put_backpressure().is_none(),
        "nobody waits for a dead device"
    );
}

#[test]
fn the_background_copy_leaves_room_in_the_write_queue_for_what_leaves_dram() {
    let (mut world, mut life) = world(1);
    for n in 0..1000u32 {
        let stats = life.core.stats();
        if stats.chunks_waiting > 0 || stats.dram_bytes + 8_000 > stats.dram_capacity {
            break;
        }
        put(&life, format!("object-{n}").as_bytes(), &[1; 2000], 0);
    }
    world.turn_without_answers(&mut life);
    for _ in 0..100 {
        world.clock.pass(100);
        world.turn_without_answers(&mut life);
    }
    let stats = life.core.stats();
    assert!(
        stats.chunks_waiting > 0 && stats.unsaved_bytes > 0,
        "copies wait for the device: {stats:?}"
    );
    // Puts that had seen room in it before.
    for n in 0..4u32 {
        put(&life, format!("late-{n}").as_bytes(), &[1; 2000], 0);
    }
    let stats = life.core.stats();
    assert_eq!(stats.namespaces[NS].dropped.iter().sum::<u64>(), 0, "{stats:?}");
}

#[test]
fn a_removal_after_the_clean_stop_that_could_not_be_noted_makes_the_next_life_cold() {
    for seed in 0..8 {
        let (mut world, mut life) = world(seed);
        let keys: Vec<Vec<u8>> = (0..450).map(|n| format!("key-{n}").into_bytes()).collect();
        for key in &keys {
            put(&life, key, &[1; 200], 0);
            pass(&mut world, &mut life, 1);
        }
        assert!(world.close(&mut life));
        // The state file cannot be written any more (or so it says), and the journal has no room
        // for all.
        world.machine.set_faults(SimFaults { meta_error: 1.0, ..SimFaults::none() });
        for key in &keys {
            life.namespaces[NS].remove(key);
        }
        assert!(life.core.journal.is_poisoned());
        let life = crash(&mut world, life, Crash::Process);
        let stale = keys.iter().filter(|key| get(&life, key).is_some()).count();
        assert_eq!(stale, 0, "seed {seed}: removed objects are back");
    }
}

/// A value is overwritten, the namespace opened with other options, the power lost: the old value
/// must not return.
fn power_lost_after(change: impl Fn(&mut Options)) {
    for seed in 0..20 {
        let (mut world, mut life) = world(seed);
        put(&life, b"key", b"old", 0);
        assert!(world.close(&mut life));
        let life = crash(&mut world, life, Crash::Process);
        put(&life, b"key", b"new", 0);
        world.crash(life, Crash::Process);
        change(&mut world.options[NS]);
        let life = world.open();
        let life = crash(&mut world, life, Crash::Machine);
        assert!(get(&life, b"key").as_deref() != Some(b"old"), "seed {seed}: an old value is back");
    }
}

#[test]
fn a_namespace_that_becomes_immutable_forgets_what_it_held_also_after_power_loss() {
    power_lost_after(|o| o.immutable = true);
}

#[test]
fn a_namespace_that_becomes_synced_has_its_earlier_removals_synced_first() {
    power_lost_after(|o| o.durability = 2);
}

#[test]
fn versions_used_beyond_what_is_reserved_are_doubted_at_once() {
    let (_, life) = world(1);
    for _ in 0..2 * version::BLOCK {
        life.core.versions.take();
    }
    // The background thread has not come round to see it.
    put(&life, b"key", b"value", 0);
    assert!(life.core.journal.is_poisoned());
}

#[test]
fn an_outage_of_the_device_does_not_cost_every_segment() {
    let (mut world, mut life) = world(1);
    world.machine.set_faults(SimFaults { write_error: 1.0, ..SimFaults::none() });
    for n in 0..3000u32 {
        put(&life, format!("key-{}", n % 400).as_bytes(), &[1; 900], 0);
        pass(&mut world, &mut life, 1);
    }
    let retired = life.core.stats().totals.segments_retired;
    assert!(retired <= 10, "{retired} segments are out of use after five minutes");
    world.machine.set_faults(SimFaults::none());
    pass(&mut world, &mut life, 700);
    put(&life, b"key", b"value", 0);
    pass(&mut world, &mut life, 200);
    assert!(
        life.on_flash(&world.machine, NS as u8, b"key").is_some(),
        "writing goes on when the device does: {:?}",
        life.core.stats()
    );
    // A segment at a time, all of them come back.
    pass(&mut world, &mut life, 3000);
    assert_eq!(
        life.core.table.in_state(SegmentState::Retired).count(),
        0,
        "{:?}",
        life.core.stats()
    );
    assert_eq!(life.core.stats().totals.segments_tried_again, retired);
    for n in 0..400u32 {
        put(&life, format!("key-{n}").as_bytes(), &[2; 900], 0);
        pass(&mut world, &mut life, 1);
    }
    for n in 0..400u32 {
        let found = get(&life, format!("key-{n}").as_bytes());
        assert!(found.is_none_or(|value| value == [2; 900]));
    }
}

#[test]
fn what_is_asked_for_all_the_time_survives_a_crash_however_often_its_segment_is_reclaimed() {
    for seed in 0..12 {
        let (mut world, mut life) = world(seed);
        let hot: Vec<Vec<u8>> = (0..10).map(|n| format!("hot-{n}").into_bytes()).collect();
        hot.iter().for_each(|key| put(&life, key, &[1; 500], 0));
        pass(&mut world, &mut life, 150);
        for n in 0..1_000 + 17 * seed {
            put(&life, format!("cold-{n}").as_bytes(), &[2; 4000], 0);
            for key in &hot {
                assert!(get(&life, key).is_some(), "seed {seed}: lost while it ran");
            }
            if n % 5 == 0 {
                pass(&mut world, &mut life, 5);
            }
        }
        let totals = life.core.stats().totals;
        assert!(totals.segments_reclaimed > 20 && totals.copies_lost == 0, "no test: {totals:?}");
        let life = crash(&mut world, life, Crash::Process);
        let lost = hot.iter().filter(|key| get(&life, key).is_none()).count();
        assert_eq!(lost, 0, "seed {seed}: old and hot, and not on flash");
    }
}

#[test]
fn an_idle_cache_writes_nothing_also_where_more_lives_in_dram_than_fits_flash() {
    for seed in 0..8 {
        let size = Size { shards: 1, lines: 120, dram: 120 << 10 };
        let mut world =
            World::new(&Setup { segment_kib: 16, segments: vec![10], size, ..Setup::plain(seed) });
        let mut life = world.open();
        for n in 0..40 + seed {
            put(&life, format!("key-{n}").as_bytes(), &[1; 2700], 0);
            // Copies of what is asked for are not refused.
            (0..4).for_each(|_| _ = get(&life, format!("key-{n}").as_bytes()));
            pass(&mut world, &mut life, 3);
        }
        pass(&mut world, &mut life, 2000);
        let before = life.core.stats().totals;
        assert!(before.segments_reclaimed > 0, "no test: {before:?}");
        pass(&mut world, &mut life, 2000);
        let after = life.core.stats().totals;
        assert_eq!(after.record_bytes, before.record_bytes, "seed {seed}: {:?}", life.core.stats());
    }
}

#[test]
fn a_clean_stop_ends_also_where_more_lives_in_dram_than_fits_flash() {
    for seed in 0..60 {
        let (dram, len) = ((60 + (seed * 13) % 120) << 10, [300, 900, 1500, 2700, 3900]);
        let (segments, len) = (8 + seed % 9, len[(seed % 5) as usize]);
        let size = Size { shards: 1, lines: 120, dram };
        let segments = vec![segments];
        let mut world =
            World::new(&Setup { segment_kib: 16, segments, size, ..Setup::plain(seed.into()) });
        let mut life = world.open();
        let keys = dram / len;
        for n in 0..keys + 5 + seed % 17 {
            put(&life, format!("key-{n}").as_bytes(), &vec![1; len as usize], 0);
            pass(&mut world, &mut life, 3);
        }
        // Copies of what is asked for are not refused.
        for n in (0..keys).cycle().take((keys * (seed / 5 % 6)) as usize) {
            get(&life, format!("key-{n}").as_bytes());
        }
        pass(&mut world, &mut life, 2000);
        assert!(world.close(&mut life), "seed {seed}");
    }
}

#[test]
fn an_object_whose_slot_was_lost_is_written_again_when_it_leaves_the_dram_tier() {
    let (mut world, mut life) = world(1);
    put(&life, b"key", b"value", 0);
    pass(&mut world, &mut life, 100);
    assert!(life.on_flash(&world.machine, NS as u8, b"key").is_some());
    // As when both its lines are full, or another key has the same tag.
    let hash = life.core.hash(NS as u16, b"key");
    life.core.shard(hash).lock().index.remove(hash);
    for n in 0..300 {
        put(&life, format!("other-{n}").as_bytes(), &[1; 900], 0);
    }
    assert!(life.core.shard(hash).lock().dram.peek_hash(hash).is_none(), "still in DRAM");
    pass(&mut world, &mut life, 50);
    assert_eq!(get(&life, b"key").as_deref(), Some(&b"value"[..]));
}
