//! Devices that fall mute in the middle of an opening: it ends, and costs no more than their share.

use super::devices::{FIRST, SECOND, fill, hits, key, on};
use super::plan::Setup;
use super::scenarios::{NS, pass};
use super::world::{Life, World};
use crate::device::DeviceId;
use crate::device::sim::Crash;
use crate::error::OpenError;

/// No opening asks a device for so much.
const MOMENTS: u64 = 40;

fn world(segments: &[u32]) -> (World, Life) {
    let mut world = World::new(&Setup { segments: segments.to_vec(), ..Setup::plain(1) });
    let mut life = world.open();
    fill(&mut world, &mut life, 0, 120);
    (world, life)
}

/// Has a checkpoint taken.
fn checkpoint(world: &mut World, life: &mut Life) {
    let before = life.core.stats().totals.checkpoints;
    life.core.wait_lists.want();
    pass(world, life, 100);
    assert!(life.core.stats().totals.checkpoints > before, "no test");
}

/// What a life has left before the device hangs.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// A journal, and a checkpoint.
    Checkpoint,
    /// A journal alone.
    Journal,
    /// A clean stop.
    Stop,
    /// The newest checkpoint cannot be read on one of its devices.
    Unread,
    /// The device was away, so that it joins.
    Joins,
}

/// A world whose next opening is one in whose middle a device may hang, and objects of the other.
fn left(left: Left, mute: DeviceId) -> (World, Vec<u32>, Vec<u32>) {
    let (mut world, mut life) = world(&[12, 12]);
    if !matches!(left, Left::Journal) {
        checkpoint(&mut world, &mut life);
    }
    let other = if mute == FIRST { SECOND } else { FIRST };
    let (kept, gone) = (on(&world, &life, other, 120), on(&world, &life, mute, 120));
    assert!(kept.len() > 20 && gone.len() > 20, "no test: {} {}", kept.len(), gone.len());
    // What was removed is not to come back with whatever device.
    let (removed, kept) = kept.split_at(5);
    let removed = [removed, &gone[..5]].concat();
    for &n in &removed {
        life.namespaces[NS].remove(&key(n));
    }
    if matches!(left, Left::Stop) {
        assert!(world.close(&mut life));
    }
    let newest = life.core.areas[(life.core.stats().totals.checkpoints as usize + 1) % 2];
    world.crash(life, Crash::Process);
    match left {
        Left::Unread => world.machine.flip_bit(mute, newest + 40, 3),
        Left::Joins => {
            world.machine.set_away(mute, true);
            let life = world.open();
            world.crash(life, Crash::Process);
            world.machine.set_away(mute, false);
        }
        Left::Checkpoint | Left::Journal | Left::Stop => {}
    }
    (world, kept.to_vec(), removed)
}

#[test]
fn a_device_that_hangs_while_the_cache_is_opened_costs_its_share_at_most() {
    let all = [Left::Checkpoint, Left::Journal, Left::Stop, Left::Unread, Left::Joins];
    for what in all {
        for mute in [FIRST, SECOND] {
            let mut hung = 0;
            for moment in 0..MOMENTS {
                let (mut world, kept, removed) = left(what, mute);
                world.machine.hang_while_opening(mute, moment);
                let mut life = world.open();
                if !std::mem::take(&mut world.hung) {
                    break;
                }
                hung += 1;
                // It falls silent, and the index loads without it.
                pass(&mut world, &mut life, 150);
                let said = format!("{what:?}, {mute:?}, moment {moment}");
                assert!(!life.core.stats().loading, "{said}: the index is not loaded");
                assert_eq!(hits(&life, &kept), kept.len(), "{said}: the other device is cold");
                assert_eq!(hits(&life, &removed), 0, "{said}: a removed object is back");
                // What it was asked for may happen once it answers again.
                world.machine.set_mute(mute, false);
                fill(&mut world, &mut life, 200, 230);
                checkpoint(&mut world, &mut life);
                world.crash(life, Crash::Process);
                let mut life = world.open();
                world.load(&mut life);
                assert!(!world.hung, "{said}");
                assert_eq!(hits(&life, &kept), kept.len(), "{said}: cold at the next start");
                assert_eq!(hits(&life, &removed), 0, "{said}: back at the next start");
            }
            assert!((1..MOMENTS).contains(&hung), "{what:?}, {mute:?}: no test: {hung} moments");
        }
    }
}

#[test]
fn without_its_only_device_an_opening_ends_with_an_error_and_costs_nothing() {
    let mut refused = 0;
    for moment in 0..MOMENTS {
        let (mut world, mut life) = world(&[24]);
        let all = on(&world, &life, FIRST, 120);
        assert!(world.close(&mut life));
        world.crash(life, Crash::Process);
        world.machine.hang_while_opening(FIRST, moment);
        let kind = match world.open_as_configured() {
            // After a clean stop nothing more than that is to be lost with the power.
            Err(OpenError::Unreadable { .. } | OpenError::Io { .. }) => {
                refused += 1;
                Crash::Machine
            }
            Err(error) => panic!("moment {moment}: {error}"),
            // It was asked for nothing more than a flush then.
            Ok(life) => {
                drop(life);
                Crash::Process
            }
        };
        let hung = std::mem::take(&mut world.hung);
        // What it was asked for may happen now.
        world.machine.set_mute(FIRST, false);
        world.machine.crash(kind);
        let mut life = world.open();
        world.load(&mut life);
        assert_eq!(hits(&life, &all), all.len(), "moment {moment}");
        if !hung {
            break;
        }
    }
    assert!((2..MOMENTS).contains(&refused), "no test: {refused}");
}

#[test]
fn a_cache_that_starts_cold_for_want_of_its_journal_opens_although_a_device_hangs() {
    for mute in [FIRST, SECOND] {
        let mut hung = 0;
        for moment in 0..200 {
            let (mut world, life) = world(&[12, 12]);
            world.crash(life, Crash::Process);
            // The index is built anew from the segments, for what is never changed.
            let _ = world.machine.create_media("journal", 16 << 10);
            world.machine.hang_while_opening(mute, moment);
            let mut life = world.open();
            if !std::mem::take(&mut world.hung) {
                break;
            }
            hung += 1;
            pass(&mut world, &mut life, 150);
            fill(&mut world, &mut life, 200, 230);
        }
        assert!((1..200).contains(&hung), "{mute:?}: no test: {hung}");
    }
}
