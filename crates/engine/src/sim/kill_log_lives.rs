//! The kill log over several lives: clean stops, crashes and power losses at bad moments.

use super::kill_log::*;
use super::plan::{Options, Setup};
use super::scenarios::{NS, crash, get, put};
use super::world::{Life, World};
use crate::api::PutOptions;
use crate::device::area::{Media, MetaStore};
use crate::device::sim::{Crash, SimFaults};
use crate::durability::pending::{Ack, Pending};
use crate::format::journal;
use crate::format::kill_run::name;
use crate::format::state::{STATE, StateFile, WITH_KILL_LOG};

/// After a clean stop no run is named, so an earlier release has to open the cache.
#[test]
fn a_clean_stop_leaves_nothing_that_an_earlier_release_refuses() {
    let (mut world, mut life) = removed_laps_ago(&setup(1), 6);
    assert!(world.close(&mut life));
    drop(life);
    let bytes = world.machine.meta().read(STATE).expect("no faults").expect("there");
    let state = StateFile::decode(&bytes).expect("whole");
    assert!(state.clean && state.kill_log.runs.is_empty(), "{state:?}");
    assert_ne!(bytes[8..12], WITH_KILL_LOG.to_le_bytes(), "{:?}", state.kill_log);
}

/// Segments written since the checkpoint count over lives, as changes and records do.
#[test]
fn segments_since_the_checkpoint_count_over_lives() {
    let (mut world, mut life) = removed_laps_ago(&setup(2), 1);
    let mut total = 0;
    for _ in 0..4 {
        let (checkpoints, opened) =
            (life.core.stats().totals.checkpoints, life.core.table.opened());
        let mut n = 0_u32;
        // Fewer than make a checkpoint due in one life.
        while life.core.table.opened() < opened + 14 {
            put(&life, format!("large {}", n % 64).as_bytes(), &[7; 4000], 0);
            n += 1;
            for _ in 0..3 {
                world.clock.pass(10);
                world.turn(&mut life);
            }
        }
        total += 14;
        for _ in 0..300 {
            world.clock.pass(10);
            world.turn(&mut life);
        }
        if life.core.stats().totals.checkpoints > checkpoints {
            return;
        }
        world.crash(life, Crash::Process);
        life = world.open();
        world.load(&mut life);
    }
    panic!("{total} segments of 24 were opened since the checkpoint, and none was taken");
}

/// Somebody has removed the state file, or it is damaged: the cache is made anew.
#[test]
fn a_cache_without_a_state_file_leaves_no_runs_behind() {
    let (mut world, life) = removed_laps_ago(&setup(1), 6);
    world.crash(life, Crash::Process);
    let files = |world: &World| (0..200).filter(|n| world.machine.has_meta(&name(*n))).count();
    assert!(files(&world) > 20, "{} files", files(&world));
    world.machine.meta().remove(STATE).expect("no faults");
    let mut life = world.open();
    for _ in 0..300 {
        world.clock.pass(10);
        world.turn(&mut life);
    }
    assert_eq!(files(&world), 0);
}

/// The run is written, and the state file cannot be. Its file goes again.
#[test]
fn a_run_that_could_not_be_named_leaves_no_file() {
    let (mut world, mut life) = removed_laps_ago(&setup(1), 1);
    let named = |life: &Life| life.core.state.lock().kill_log.runs.len();
    let files = |world: &World| (0..200).filter(|n| world.machine.has_meta(&name(*n))).count();
    world.machine.set_faults(SimFaults { meta_error: 0.5, ..SimFaults::none() });
    let mut more = false;
    for n in 0..2 * life.core.journal.entries() {
        put(&life, b"changes", &n.to_le_bytes(), 0);
        world.clock.pass(100);
        world.turn(&mut life);
        more |= files(&world) > named(&life);
    }
    assert!(more, "no run was written and not named");
    world.machine.set_faults(SimFaults::none());
    // Those that could not be removed either go at the next start.
    let mut life = crash(&mut world, life, Crash::Process);
    assert_eq!(hits(&mut world, &mut life), KEPT);
    for _ in 0..300 {
        world.clock.pass(100);
        world.turn(&mut life);
    }
    assert_eq!(files(&world), named(&life));
}

/// The index has grown. The next life begins with the small one.
#[test]
fn a_grown_index_gets_room_in_the_journal_while_it_is_loaded() {
    let mut world = World::sized(16 << 20, 64 << 10, 8 << 20, 128 << 10);
    (world.config.index_memory, world.config.shards) = (Some(48 << 10), 2);
    let mut life = world.open_as_configured().expect("opens");
    for n in 0..60_000_u32 {
        put(&life, format!("key-{n}").as_bytes(), &n.to_le_bytes(), 0);
        if n % 16 == 0 {
            world.clock.pass(100);
            world.turn(&mut life);
        }
    }
    super::openings::checkpoint(&mut world, &mut life);
    let before = life.core.stats();
    for n in 0..16_000_u32 {
        put(&life, format!("key-{n}").as_bytes(), &n.to_le_bytes(), 0);
        if n % 16 == 0 {
            world.clock.pass(100);
            world.turn(&mut life);
        }
    }
    let stats = life.core.stats();
    assert_eq!(stats.totals.checkpoints, before.totals.checkpoints);
    assert!(stats.totals.compactions > 0, "{stats:?}");
    world.crash(life, Crash::Process);
    let mut life = world.open_as_configured().expect("opens");
    // While the devices are busy with reads changes come.
    for n in 0..2 * life.core.journal.entries() {
        put(&life, b"changes", &n.to_le_bytes(), 0);
        world.turn_without_answers(&mut life);
    }
    let stats = life.core.stats();
    assert!(!stats.journal_poisoned, "{stats:?}");
}

/// A thread had a position of the journal when the process died, and had not stored its entry.
#[test]
fn a_hole_that_a_dead_process_left_does_not_keep_the_journal_from_being_compacted() {
    let (mut world, life) = removed_laps_ago(&setup(1), 2);
    let position = life.core.journal.head() - 3;
    let entries = life.core.journal.entries();
    world.crash(life, Crash::Process);
    let media = world.machine.open_media("journal").expect("there");
    media.store(journal::HEADER + position % entries * journal::ENTRY, &[0; 32]).expect("stored");
    let mut life = world.open();
    world.load(&mut life);
    for n in 0..2 * entries {
        put(&life, b"changes", &n.to_le_bytes(), 0);
        world.turn(&mut life);
        world.clock.pass(1);
    }
    let stats = life.core.stats();
    assert!(stats.totals.compactions > 4, "{stats:?}");
    assert_eq!(stats.totals.compaction_failures, 0, "{stats:?}");
    let mut life = crash(&mut world, life, Crash::Process);
    assert_eq!(hits(&mut world, &mut life), KEPT);
}

fn wait<T>(world: &mut World, life: &mut Life, ack: Ack<T>) {
    let Ack::Later(pending) = ack else { return };
    let pending: Pending<T> = pending;
    for _ in 0..1000 {
        if pending.is_done() {
            drop(pending.wait());
            return;
        }
        world.turn(life);
    }
    panic!("not acknowledged")
}

/// A namespace that survives power losses, at any moment.
#[test]
fn nothing_comes_back_after_a_power_loss_at_any_moment_of_a_compaction() {
    for moment in (0..60).step_by(3) {
        let setup = Setup {
            namespaces: vec![Options { immutable: false, clean_stop: false, durability: 2 }],
            ..setup(if moment % 2 == 0 { 1 } else { 2 })
        };
        let mut world = World::new(&setup);
        let mut life = world.open();
        for n in 0..20 {
            for kind in ["kept", "gone"] {
                let ns = life.namespaces[NS].clone();
                let ack = ns.submit_put(
                    format!("{kind} {n}").as_bytes(),
                    b"first",
                    PutOptions::default(),
                );
                wait(&mut world, &mut life, ack);
            }
        }
        super::openings::checkpoint(&mut world, &mut life);
        for n in 0..20 {
            let ns = life.namespaces[NS].clone();
            let ack = ns.submit_remove(format!("gone {n}").as_bytes());
            wait(&mut world, &mut life, ack);
        }
        for life_no in 0..3 {
            let entries = life.core.journal.entries();
            let much = entries * 2;
            for n in 0..much {
                if n + 40 == much {
                    world.machine.crash_after(moment);
                }
                if world.machine.is_down() {
                    break;
                }
                let ns = life.namespaces[NS].clone();
                // It costs no flash: nothing is reclaimed.
                drop(ns.submit_remove(&n.to_le_bytes()));
                world.turn(&mut life);
                world.clock.pass(1);
            }
            world.crash(life, Crash::Machine);
            life = world.open();
            for _ in 0..(life_no * 4) {
                world.turn(&mut life);
            }
            if life_no < 2 {
                continue;
            }
            world.load(&mut life);
            for n in 0..20 {
                assert!(get(&life, format!("gone {n}").as_bytes()).is_none(), "{moment}: {n}");
            }
            let hits =
                (0..20).filter(|n| get(&life, format!("kept {n}").as_bytes()).is_some()).count();
            assert_eq!(hits, 20, "{moment}");
        }
    }
}
