//! What goes from the journal to the kill log, and what becomes of it at the next start.

use std::sync::Arc;

use super::plan::Setup;
use super::scenarios::{NS, crash, get, put};
use super::world::{Life, World};
use crate::device::area::MetaStore;
use crate::device::sim::{Crash, SimFaults};
use crate::format::kill_run::{HEAD, name};

/// Objects that stay as they are put first.
pub(super) const KEPT: u32 = 40;
/// Objects that are removed, behind a checkpoint.
const GONE: u32 = 40;

pub(super) fn setup(passes: u32) -> Setup {
    Setup {
        segments: vec![24],
        journal_kib: 8,
        compacts: 40,
        passes: Some(passes),
        ..Setup::plain(1)
    }
}

fn kept(n: u32) -> Vec<u8> {
    format!("kept {n}").into_bytes()
}

fn gone(n: u32) -> Vec<u8> {
    format!("gone {n}").into_bytes()
}

/// Puts objects and has a checkpoint taken. Then removes some, and changes one object until the
/// journal has gone round `laps` times.
pub(super) fn removed_laps_ago(setup: &Setup, laps: u64) -> (World, Life) {
    let mut world = World::new(setup);
    let mut life = world.open();
    (0..KEPT).for_each(|n| put(&life, &kept(n), b"first", 0));
    (0..GONE).for_each(|n| put(&life, &gone(n), b"first", 0));
    life.core.streams.flush(u64::MAX, true);
    for _ in 0..200 {
        world.clock.pass(100);
        world.turn(&mut life);
    }
    super::openings::checkpoint(&mut world, &mut life);
    for n in 0..KEPT {
        assert!(
            life.on_flash(&world.machine, NS as u8, &kept(n)).is_some(),
            "kept {n} is on flash"
        );
    }
    for n in 0..GONE {
        life.namespaces[NS].remove(&gone(n));
    }
    let entries = life.core.journal.entries();
    for n in 0..laps * entries {
        put(&life, b"changes", &n.to_le_bytes(), 0);
        world.turn(&mut life);
        if n.is_multiple_of(16) {
            world.clock.pass(10);
        }
    }
    (world, life)
}

/// How many of the objects that stay are hits. Fails when a removed one is.
pub(super) fn hits(world: &mut World, life: &mut Life) -> u32 {
    world.load(life);
    for n in 0..GONE {
        assert!(get(life, &gone(n)).is_none(), "gone {n} is back");
    }
    (0..KEPT).filter(|n| get(life, &kept(*n)).is_some()).count() as u32
}

#[test]
fn a_journal_goes_round_without_a_checkpoint_and_nothing_comes_back() {
    for passes in [1, 2] {
        let (mut world, life) = removed_laps_ago(&setup(passes), 6);
        let stats = life.core.stats();
        assert_eq!(stats.totals.checkpoints, 1, "{stats:?}");
        assert!(stats.totals.compactions > 20 && !stats.journal_poisoned, "{stats:?}");
        let mut life = crash(&mut world, life, Crash::Process);
        assert_eq!(hits(&mut world, &mut life), KEPT, "{passes} passes");
        // Once more, from what the life before has left of it.
        let mut life = crash(&mut world, life, Crash::Process);
        assert_eq!(hits(&mut world, &mut life), KEPT, "{passes} passes");
    }
}

#[test]
fn a_checkpoint_makes_runs_needless_and_their_files_go() {
    let (mut world, mut life) = removed_laps_ago(&setup(1), 6);
    let files = |world: &World| (0..200).filter(|n| world.machine.has_meta(&name(*n))).count();
    assert!(files(&world) > 20, "{} files", files(&world));
    super::openings::checkpoint(&mut world, &mut life);
    for _ in 0..300 {
        world.clock.pass(10);
        world.turn(&mut life);
    }
    // What was opened before the checkpoint's head needs the journal from there.
    assert!(files(&world) <= 1, "{} files", files(&world));
    let mut life = crash(&mut world, life, Crash::Process);
    assert_eq!(hits(&mut world, &mut life), KEPT);
}

#[test]
fn a_run_that_is_lost_costs_warmth_and_nothing_comes_back() {
    for lost in [0, 7, 20] {
        let (mut world, life) = removed_laps_ago(&setup(1), 6);
        world.crash(life, Crash::Process);
        world.machine.meta().remove(&name(lost)).expect("no faults");
        let mut life = world.open();
        assert_eq!(hits(&mut world, &mut life), 0, "run {lost} is lost, the namespace is cold");
    }
}

#[test]
fn a_part_that_cannot_be_read_costs_its_shards_alone() {
    let (mut world, life) = removed_laps_ago(&setup(2), 6);
    world.crash(life, Crash::Process);
    // The removals are in the first runs. Of each the last byte is that of a part.
    let files = world.machine.meta();
    for n in 0..2 {
        let mut bytes = files.read(&name(n)).expect("no faults").expect("there");
        assert!(bytes.len() > HEAD);
        *bytes.last_mut().expect("it has bytes") ^= 1;
        files.replace(&name(n), &bytes).expect("no faults");
    }
    let mut life = world.open();
    let hits = hits(&mut world, &mut life);
    assert!(life.core.stats().totals.lost_kill_parts > 0, "{:?}", life.core.stats());
    assert!((1..KEPT).contains(&hits), "{hits} of {KEPT}: one of two shards");
}

#[test]
fn a_data_directory_that_takes_nothing_has_checkpoints_as_ever() {
    let (mut world, mut life) = removed_laps_ago(&setup(1), 1);
    let before = life.core.stats().totals;
    world.machine.set_faults(SimFaults { meta_error: 1.0, ..SimFaults::none() });
    for n in 0..4 * life.core.journal.entries() {
        put(&life, b"changes", &n.to_le_bytes(), 0);
        for _ in 0..4 {
            world.clock.pass(40);
            world.turn(&mut life);
        }
    }
    let stats = life.core.stats();
    assert_eq!(stats.totals.compactions, before.compactions, "{stats:?}");
    assert!(stats.totals.compaction_failures > 0 && !stats.journal_poisoned, "{stats:?}");
    assert!(stats.totals.checkpoints > before.checkpoints, "{stats:?}");
    world.machine.set_faults(SimFaults::none());
    let mut life = crash(&mut world, life, Crash::Process);
    assert_eq!(hits(&mut world, &mut life), KEPT);
}

/// Changes are acknowledged while the oldest ones are on their way to the kill log.
#[test]
fn a_crash_at_any_moment_of_a_compaction_brings_nothing_back() {
    let (mut stopped, mut moment) = (0, 0);
    while moment < 24 {
        let (mut world, mut life) = removed_laps_ago(&setup(2), 1);
        world.machine.crash_after(moment);
        let entries = life.core.journal.entries();
        for n in 0..entries {
            if world.machine.is_down() {
                stopped += 1;
                break;
            }
            put(&life, b"changes", &n.to_le_bytes(), 0);
            world.turn(&mut life);
        }
        let mut life = crash(&mut world, life, Crash::Process);
        assert_eq!(hits(&mut world, &mut life), KEPT, "moment {moment}");
        moment += 1;
    }
    assert!(stopped > 0, "no test");
}

/// Who asks for room in a full journal gets it from a compaction.
#[test]
fn a_full_journal_gets_room_without_a_checkpoint() {
    let (mut world, mut life) = removed_laps_ago(&setup(1), 1);
    let checkpoints = life.core.stats().totals.checkpoints;
    let core = Arc::clone(&life.core);
    let mut n = 0_u32;
    while !core.must_wait_for_room() {
        put(&life, b"changes", &n.to_le_bytes(), 0);
        n += 1;
    }
    for _ in 0..200 {
        world.turn(&mut life);
    }
    assert!(!core.must_wait_for_room());
    let stats = core.stats();
    assert_eq!(stats.totals.checkpoints, checkpoints, "{stats:?}");
    assert!(!stats.journal_poisoned, "{stats:?}");
}
