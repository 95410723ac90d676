//! Sequences of opening and closing that random runs meet too rarely, step by step.

use std::collections::HashMap;

use super::durable::acknowledged;
use super::scenarios::{NS, crash, get, pass, pass_until, put, put_first_in_segment, world};
use super::state::look_up;
use super::world::{EPOCH, Life, World};
use crate::api::{PutOptions, PutOutcome, RefuseReason};
use crate::device::DeviceId;
use crate::device::sim::{Crash, SimFaults};
use crate::durability::pending::Ack;
use crate::ops::get::Lookup;

/// The synced namespace.
const SYNCED: usize = 1;
/// The Immutable namespace.
const IMMUTABLE: usize = 2;

fn put_until(life: &Life, expiry: u64) -> PutOutcome {
    let options = PutOptions { expiry: expiry as u32, ..PutOptions::default() };
    life.namespaces[NS].put(b"k", b"v", options)
}

#[test]
fn a_clock_that_was_far_ahead_costs_warmth_and_not_every_put_for_years() {
    const TEN_YEARS: u64 = 10 * 365 * 86_400;
    for (ahead, forgotten) in [(3600, false), (TEN_YEARS, true)] {
        let (mut world, mut life) = world(1);
        world.clock.set_unix(EPOCH + ahead);
        put(&life, b"key", b"value", 0);
        pass(&mut world, &mut life, 200);
        assert!(life.on_flash(&world.machine, NS as u8, b"key").is_some());
        world.clock.set_unix(EPOCH);
        assert_eq!(life.core.stats().clock_behind, ahead, "and says so");
        let refused = put_until(&life, EPOCH + 60);
        assert_eq!(
            refused,
            PutOutcome::Refused(RefuseReason::Expired),
            "time does not go back in a life"
        );
        for _ in 0..3 {
            life = crash(&mut world, life, Crash::Process);
            let outcome = put_until(&life, EPOCH + 60);
            assert_eq!(
                matches!(outcome, PutOutcome::Stored { .. }),
                forgotten,
                "{ahead} s: {outcome:?}"
            );
            assert_eq!(get(&life, b"key").is_some(), !forgotten, "{ahead} s");
            assert_eq!(life.core.stats().clock_behind, if forgotten { 0 } else { ahead });
        }
        // What comes afterwards is as warm as ever.
        put(&life, b"new", b"value", 0);
        pass(&mut world, &mut life, 200);
        let life = crash(&mut world, life, Crash::Process);
        assert!(get(&life, b"new").is_some(), "{ahead} s");
    }
}

/// Puts two objects into the Immutable namespace and removes one, in a journal that no checkpoint
/// goes with.
fn one_removed(world: &mut World, mut life: Life) -> Life {
    // Begins a new journal at the next opening, and there are no checkpoints from then on.
    life.core.journal.poison_now();
    life = crash(world, life, Crash::Process);
    world.machine.set_faults(SimFaults { sync_error: 1.0, ..SimFaults::none() });
    put_immutable(world, &mut life, b"gone");
    put_immutable(world, &mut life, b"kept");
    // It is footers that tell.
    life.core.streams.flush(u64::MAX, true);
    pass(world, &mut life, 20);
    life.namespaces[IMMUTABLE].remove(b"gone");
    life
}

#[test]
fn removals_in_immutable_namespaces_outlive_crashes_while_opening() {
    for moment in 0..60 {
        let (mut world, life) = world(moment);
        let life = one_removed(&mut world, life);
        assert_eq!(life.core.stats().totals.checkpoints, 0, "moment {moment}");
        world.crash(life, Crash::Process);
        world.machine.set_faults(SimFaults::none());
        world.machine.crash_after(moment);
        let life = world.open();
        let life = crash(&mut world, life, Crash::Process);
        assert!(!is_immutable_hit(&life, b"gone"), "moment {moment}: a removed object is back");
        assert!(is_immutable_hit(&life, b"kept"), "moment {moment}: the namespace is cold");
    }
}

fn put_immutable(world: &mut World, life: &mut Life, key: &[u8]) {
    match life.namespaces[IMMUTABLE].submit_put(key, b"value", PutOptions::default()) {
        Ack::Later(pending) => drop(acknowledged(world, life, pending)),
        Ack::Done(outcome) => panic!("it is write-through: {outcome:?}"),
    }
}

fn is_immutable_hit(life: &Life, key: &[u8]) -> bool {
    matches!(look_up(life, &life.namespaces[IMMUTABLE], key), Lookup::Hit(_))
}

/// Has a checkpoint taken.
pub(super) fn checkpoint(world: &mut World, life: &mut Life) {
    let before = life.core.stats().totals.checkpoints;
    life.core.streams.flush(u64::MAX, true);
    life.core.wait_lists.want();
    pass_until(world, life, |life| life.core.stats().totals.checkpoints > before);
}

/// Puts `gone`, takes a checkpoint, and removes it.
fn removed_behind_a_checkpoint(world: &mut World, life: &mut Life) {
    put_immutable(world, life, b"gone");
    checkpoint(world, life);
    life.namespaces[IMMUTABLE].remove(b"gone");
}

#[test]
fn a_removal_that_only_a_lost_journal_knew_does_not_undo_itself() {
    let (mut world, mut life) = world(1);
    removed_behind_a_checkpoint(&mut world, &mut life);
    world.crash(life, Crash::Process);
    let _ = world.machine.create_media("journal", 16 << 10);
    let mut life = world.open();
    world.load(&mut life);
    assert!(!is_immutable_hit(&life, b"gone"));
}

#[test]
fn a_removal_whose_page_the_kernel_gave_up_does_not_undo_itself() {
    for flushed in [false, true] {
        let (mut world, mut life) = world(1);
        put(&life, b"gone", b"value", 0);
        pass(&mut world, &mut life, 200);
        assert!(life.on_flash(&world.machine, NS as u8, b"gone").is_some());
        checkpoint(&mut world, &mut life);
        life.namespaces[NS].remove(b"gone");
        // What comes next finds the page given up.
        world.machine.set_faults(SimFaults { writeback_error: 1.0, ..SimFaults::none() });
        life.namespaces[NS].remove(b"other");
        world.machine.set_faults(SimFaults::none());
        // Whoever flushes is told, in this life or in the next.
        assert!(!flushed || life.core.journal.sync().is_err());
        let mut life = crash(&mut world, life, Crash::Process);
        world.load(&mut life);
        assert!(get(&life, b"gone").is_none(), "flushed: {flushed}");
    }
}

#[test]
fn a_removal_that_only_an_unreadable_checkpoint_knew_does_not_undo_itself() {
    let (mut world, mut life) = world(1);
    removed_behind_a_checkpoint(&mut world, &mut life);
    assert!(world.close(&mut life));
    let newest = (life.core.stats().totals.checkpoints as usize + 1) % 2;
    world.crash(life, Crash::Process);
    // After a clean stop everything is warm without a journal; the new one begins beside the last
    // checkpoint.
    let _ = world.machine.create_media("journal", 16 << 10);
    let life = world.open();
    let header = life.core.areas[newest];
    world.crash(life, Crash::Process);
    world.machine.flip_bit(DeviceId(0), header + 40, 3);
    let mut life = world.open();
    world.load(&mut life);
    assert!(!is_immutable_hit(&life, b"gone"), "the checkpoint before the last has the object");
}

#[test]
fn removals_that_a_journal_begun_in_doubt_has_written_over_do_not_undo_themselves() {
    for gone_round in [false, true] {
        let (mut world, life) = world(1);
        let mut life = one_removed(&mut world, life);
        let fill = |life: &Life, percent: u64| {
            for n in 0..life.core.journal.entries() * percent / 100 {
                life.namespaces[NS].remove(&n.to_le_bytes());
            }
        };
        fill(&life, if gone_round { 60 } else { 20 });
        world.machine.set_faults(SimFaults::none());
        checkpoint(&mut world, &mut life);
        fill(&life, if gone_round { 60 } else { 20 });
        let (stats, header) = (life.core.stats(), life.core.areas[0]);
        assert!(stats.totals.checkpoints == 1 && !stats.journal_poisoned, "no test: {stats:?}");
        world.crash(life, Crash::Process);
        world.machine.flip_bit(DeviceId(0), header + 40, 3);
        let mut life = world.open();
        world.load(&mut life);
        assert!(!is_immutable_hit(&life, b"gone"), "gone round: {gone_round}");
        assert_eq!(
            is_immutable_hit(&life, b"kept"),
            !gone_round,
            "what tells everything is believed"
        );
    }
}

#[test]
fn a_removal_whose_flush_failed_is_not_forgotten_after_one_that_succeeds() {
    for seed in 0..20 {
        let (mut world, mut life) = world(seed);
        removed_behind_a_checkpoint(&mut world, &mut life);
        world.machine.set_faults(SimFaults { media_sync_error: 1.0, ..SimFaults::none() });
        assert!(life.core.journal.sync().is_err());
        world.machine.set_faults(SimFaults::none());
        life.core.journal.sync().expect("nothing fails any more");
        let life = crash(&mut world, life, Crash::Machine);
        assert!(!is_immutable_hit(&life, b"gone"), "seed {seed}");
    }
}

#[test]
fn a_last_checkpoint_that_fails_once_is_tried_again() {
    for failures in [1, 2] {
        let (mut world, mut life) = world(1);
        put(&life, b"key", b"value", 0);
        pass(&mut world, &mut life, 100);
        let before = life.core.stats().totals.checkpoint_failures;
        world.machine.set_faults(SimFaults { sync_error: 1.0, ..SimFaults::none() });
        life.background.start_close();
        while !life.background.is_closed() {
            pass(&mut world, &mut life, 1);
            if life.core.stats().totals.checkpoint_failures >= before + failures {
                world.machine.set_faults(SimFaults::none());
            }
        }
        let life = crash(&mut world, life, Crash::Machine);
        let is_warm = get(&life, b"key").is_some();
        assert_eq!(is_warm, failures == 1, "warm after power loss only if it was a clean stop");
    }
}

#[test]
fn another_number_of_shards_is_taken_or_refused_by_name() {
    let (mut world, mut life) = world(1);
    put(&life, b"key", b"value", 0);
    assert!(world.close(&mut life));
    world.crash(life, Crash::Process);
    world.config.shards = 4096;
    (world.config.memory, world.config.index_memory) = (64 << 20, None);
    let Err(refused) = world.open_as_configured() else { panic!("4096 shards do not fit") };
    assert!(refused.to_string().contains("4096 shards"), "{refused}");
    world.size.shards = 1;
    let life = world.open();
    let life = crash(&mut world, life, Crash::Process);
    assert_eq!(get(&life, b"key").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_journal_that_went_round_since_the_only_readable_checkpoint_is_not_believed() {
    let (mut world, mut life) = world(1);
    put(&life, b"key", b"value", 0);
    pass(&mut world, &mut life, 100);
    let mut n = 0u32;
    let mut write_until = |world: &mut World, life: &mut Life, is_over: &dyn Fn(&Life) -> bool| {
        while !is_over(life) {
            put(life, format!("other-{}", n % 50).as_bytes(), &[1; 40], 0);
            pass(world, life, 1);
            n += 1;
        }
    };
    let checkpoints = |life: &Life| life.core.stats().totals.checkpoints;
    write_until(&mut world, &mut life, &|life| checkpoints(life) == 1);
    let needed = life.core.journal.head() - life.core.journal.used();
    life.namespaces[NS].remove(b"key");
    let (removed_at, capacity) = (life.core.journal.head(), life.core.journal.entries());
    write_until(&mut world, &mut life, &|life| checkpoints(life) == 2);
    // The background does nothing from here on: a third checkpoint would overwrite the first.
    let mut n = 0u32;
    while life.core.journal.head() <= removed_at + capacity {
        put(&life, format!("more-{}", n % 50).as_bytes(), &[1; 40], 0);
        n += 1;
    }
    let stats = life.core.stats();
    let whole = stats.totals.checkpoints == 2 && !stats.checkpointing && !stats.journal_poisoned;
    assert!(whole && needed < removed_at, "{stats:?}");
    // The second checkpoint is damaged: the first one's journal has been written over.
    let header = life.core.areas[1];
    world.machine.flip_bit(DeviceId(0), header + 40, 3);
    let life = crash(&mut world, life, Crash::Process);
    assert_eq!(get(&life, b"key"), None, "a removed object is back");
}

/// Power loss takes journal entries below the position that the newest checkpoint needs. The next
/// opening cannot read it, and a removal is noted below that position. False if no entry was lost.
fn removed_while_a_checkpoint_cannot_be_read(seed: u64) -> bool {
    let (mut world, mut life) = world(seed);
    match life.namespaces[SYNCED].submit_put(b"key", b"value", PutOptions::default()) {
        Ack::Later(pending) => drop(acknowledged(&mut world, &mut life, pending)),
        Ack::Done(outcome) => panic!("it is synced: {outcome:?}"),
    }
    checkpoint(&mut world, &mut life);
    (0..40u8).for_each(|n| put(&life, &[n], b"value", 0));
    checkpoint(&mut world, &mut life);
    let needed = life.core.journal.head() - life.core.journal.used();
    let header = life.core.areas[(life.core.stats().totals.checkpoints as usize + 1) % 2];
    world.crash(life, Crash::Machine);
    world.machine.flip_bit(DeviceId(0), header + 40, 3);
    let life = world.open();
    let is_below = life.core.journal.head() < needed;
    life.namespaces[SYNCED].remove(b"key");
    world.crash(life, Crash::Process);
    world.machine.flip_bit(DeviceId(0), header + 40, 3);
    let mut life = world.open();
    world.load(&mut life);
    let found = look_up(&life, &life.namespaces[SYNCED], b"key");
    assert!(!matches!(found, Lookup::Hit(_)), "seed {seed}: a removed object is back");
    is_below
}

#[test]
fn a_checkpoint_that_could_not_be_read_does_not_count_once_it_can_be() {
    let tested = (0..20).filter(|&seed| removed_while_a_checkpoint_cannot_be_read(seed)).count();
    assert!(tested > 0, "no test: no journal entry was lost");
}

/// A checkpoint of several blocks takes its time, in which new objects push the slots of others to
/// their other lines.
#[test]
fn what_is_moved_while_a_checkpoint_is_written_is_found_after_a_crash() {
    let mut world = World::sized(32 << 20, 128 << 10, 1 << 20, 1 << 20);
    (world.config.index_memory, world.config.shards) = (Some(512 << 10), 1);
    world.config.index_growth = false;
    let mut life = world.open_as_configured().expect("opens");
    let key = |n: u32| format!("key-{n}");
    let full = life.core.stats().index_slots as u32 / 100 * 88;
    for n in 0..full {
        put(&life, key(n).as_bytes(), &[1; 60], 0);
        if n % 64 == 0 {
            pass(&mut world, &mut life, 1);
        }
    }
    pass(&mut world, &mut life, 300);
    let before = life.core.stats().totals.checkpoints;
    life.core.wait_lists.want();
    let mut next = full;
    while life.core.stats().totals.checkpoints == before {
        (next..next + 130).for_each(|n| put(&life, key(n).as_bytes(), &[1; 60], 0));
        next += 130;
        pass(&mut world, &mut life, 1);
    }
    let there = |world: &World, life: &Life, n: u32| {
        life.on_flash(&world.machine, NS as u8, key(n).as_bytes()).is_some()
    };
    let old: Vec<u32> = (0..full).filter(|&n| there(&world, &life, n)).collect();
    // Nothing was dropped, so that nothing is missing but what another key, put later, has the slot
    // of.
    let stats = life.core.stats();
    assert_eq!(
        stats.totals.dropped.iter().sum::<u64>() + stats.totals.copies_lost,
        0,
        "no test: {stats:?}"
    );
    let slot = |n: u32| {
        let hash = life.core.hash(NS as u16, key(n).as_bytes());
        let index = &life.core.shard(hash).index;
        let mut lines = index.lines_of(hash).map(|line| line % index.base_lines());
        lines.sort_unstable();
        (hash >> 48, lines)
    };
    let latest: HashMap<_, u32> = (0..next).map(|n| (slot(n), n)).collect();
    let gone: Vec<u32> =
        (0..full).filter(|&n| latest[&slot(n)] == n && !there(&world, &life, n)).collect();
    assert!(gone.is_empty(), "{gone:?} are in no slot: {stats:?}");
    world.crash(life, Crash::Process);
    let mut life = world.open_as_configured().expect("opens");
    world.load(&mut life);
    let lost = old.iter().filter(|&&n| !there(&world, &life, n)).count();
    assert_eq!(lost, 0, "of {} objects", old.len());
}

/// An attempt fails behind its header, and the process dies in the middle of the next one. The
/// first one's header is the newest then, and blocks of the second may lie behind it.
#[test]
fn a_checkpoint_cut_short_spoils_none_that_an_attempt_before_has_left() {
    for moment in 0..40 {
        let (mut world, mut life) = world(moment);
        let keys: Vec<Vec<u8>> = (0..8u32).map(|n| format!("key-{n}").into_bytes()).collect();
        for key in &keys {
            put_first_in_segment(&mut world, &mut life, key, b"value");
        }
        checkpoint(&mut world, &mut life);
        let failures = life.core.stats().totals.checkpoint_failures;
        life.core.wait_lists.want();
        pass_until(&mut world, &mut life, |life| life.background.is_verifying_checkpoint());
        world.machine.set_faults(SimFaults { read_error: 1.0, ..SimFaults::none() });
        pass_until(&mut world, &mut life, |life| {
            life.core.stats().totals.checkpoint_failures > failures
        });
        world.machine.set_faults(SimFaults::none());
        life.core.wait_lists.want();
        pass(&mut world, &mut life, moment as usize);
        let life = crash(&mut world, life, Crash::Process);
        let stats = life.core.stats();
        assert_eq!(stats.totals.lost_index_blocks, 0, "moment {moment}: {stats:?}");
        let lost = keys.iter().filter(|key| get(&life, key).is_none()).count();
        assert_eq!(lost, 0, "moment {moment}");
    }
}

/// A life is stopped, and its data directory copied. What a second life changes is on flash, or
/// also in a checkpoint, when the copy comes back.
fn brought_back(clean: bool, covered: bool) -> (World, Life) {
    let (mut world, mut life) = world(1);
    put_immutable(&mut world, &mut life, b"gone");
    [&b"gone"[..], b"changed"].iter().for_each(|key| put(&life, key, b"old", 0));
    pass(&mut world, &mut life, 200);
    checkpoint(&mut world, &mut life);
    assert!(life.on_flash(&world.machine, NS as u8, b"gone").is_some(), "no test");
    assert!(!clean || world.close(&mut life));
    world.crash(life, Crash::Process);
    let copy = world.machine.copy_directory();
    let mut life = world.open();
    world.load(&mut life);
    put(&life, b"changed", b"new", 0);
    for ns in [NS, IMMUTABLE] {
        life.namespaces[ns].remove(b"gone");
    }
    life.core.streams.flush(u64::MAX, true);
    pass(&mut world, &mut life, 200);
    assert!(life.on_flash(&world.machine, NS as u8, b"changed").is_some(), "no test");
    if covered {
        checkpoint(&mut world, &mut life);
    }
    world.crash(life, Crash::Process);
    world.machine.bring_back(&copy);
    let mut life = world.open();
    world.load(&mut life);
    (world, life)
}

#[test]
fn an_older_copy_of_the_data_directory_brings_nothing_back() {
    for (clean, covered) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut world, mut life) = brought_back(clean, covered);
        let what = format!("clean {clean}, covered {covered}");
        assert_eq!(get(&life, b"gone"), None, "{what}: a removed object is back");
        assert!(!is_immutable_hit(&life, b"gone"), "{what}: a removed object is back");
        assert_ne!(get(&life, b"changed").as_deref(), Some(&b"old"[..]), "{what}");
        put(&life, b"kept", b"value", 0);
        pass(&mut world, &mut life, 200);
        life = crash(&mut world, life, Crash::Process);
        assert!(get(&life, b"kept").is_some(), "{what}: it is as warm as ever");
        // Its versions are above all that were used: else segments could not be opened.
        for n in 0..900u32 {
            put(&life, &n.to_le_bytes(), &[1; 900], 0);
            pass(&mut world, &mut life, 2);
        }
        assert!(life.core.table.opened() > 10, "{what}: no test");
    }
}
