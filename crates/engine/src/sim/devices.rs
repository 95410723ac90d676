//! Caches of several devices of which one fails, hangs, is lost or comes back, step by step.

use super::plan::Setup;
use super::scenarios::{NS, get, pass, put};
use super::world::{Life, World};
use crate::clock::Clock;
use crate::device::DeviceId;
use crate::device::sim::{Crash, SimFaults, SimMachine};
use crate::ops::get::Lookup;
use crate::segment::SegmentState;

pub(super) const FIRST: DeviceId = DeviceId(0);
pub(super) const SECOND: DeviceId = DeviceId(1);

fn world(seed: u64) -> (World, Life) {
    let mut world = World::new(&Setup { segments: vec![12, 12], ..Setup::plain(seed) });
    let life = world.open();
    (world, life)
}

pub(super) fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// Puts objects of a kibibyte until both devices have some of them.
pub(super) fn fill(world: &mut World, life: &mut Life, from: u32, to: u32) {
    for n in from..to {
        put(life, &key(n), &[n as u8; 1000], 0);
        pass(world, life, 2);
    }
    life.core.streams.flush(u64::MAX, true);
    pass(world, life, 60);
}

/// Objects whose copy lies on a device.
pub(super) fn on(world: &World, life: &Life, device: DeviceId, keys: u32) -> Vec<u32> {
    let lies_there = |n: &u32| {
        let at = life.on_flash(&world.machine, NS as u8, &key(*n));
        at.is_some_and(|at| at.device == device)
    };
    (0..keys).filter(lies_there).collect()
}

pub(super) fn hits(life: &Life, keys: &[u32]) -> usize {
    keys.iter().filter(|&&n| get(life, &key(n)).is_some()).count()
}

/// Ends a life, and begins the next after `meanwhile`, with its index loaded.
fn restart(world: &mut World, life: Life, meanwhile: impl FnOnce(&World)) -> Life {
    world.crash(life, Crash::Process);
    meanwhile(world);
    let mut life = world.open();
    world.load(&mut life);
    life
}

#[test]
fn a_device_that_is_lost_costs_its_share_and_comes_back_empty() {
    for lost in [FIRST, SECOND] {
        for checkpoint in [false, true] {
            let (mut world, mut life) = world(1);
            fill(&mut world, &mut life, 0, 120);
            if checkpoint {
                life.core.wait_lists.want();
                pass(&mut world, &mut life, 100);
                assert!(life.core.stats().totals.checkpoints > 0, "no test");
            }
            let other = if lost == FIRST { SECOND } else { FIRST };
            let (kept, gone) = (on(&world, &life, other, 120), on(&world, &life, lost, 120));
            assert!(kept.len() > 20 && gone.len() > 20, "no test: {} {}", kept.len(), gone.len());
            let uuid = life.core.uuid;
            life = restart(&mut world, life, |world| world.machine.set_away(lost, true));
            assert_eq!(life.core.uuid, uuid, "the cache was made anew");
            let what = format!("{lost:?}, checkpoint {checkpoint}");
            assert_eq!(hits(&life, &kept), kept.len(), "{what}: the other device is cold");
            assert_eq!(hits(&life, &gone), 0, "{what}");
            // What changes meanwhile, the device does not learn.
            for &n in &gone {
                life.namespaces[NS].remove(&key(n));
            }
            fill(&mut world, &mut life, 200, 210);
            life = restart(&mut world, life, |world| world.machine.set_away(lost, false));
            assert_eq!(hits(&life, &gone), 0, "{what}: removed objects are back");
            assert_eq!(hits(&life, &kept), kept.len(), "{what}: the other device is cold");
            // It is used again, and its content is kept.
            fill(&mut world, &mut life, 300, 420);
            let new = on(&world, &life, lost, 420);
            assert!(new.len() > 20, "{what}: it is not used: {}", new.len());
            let life = restart(&mut world, life, |_| {});
            assert_eq!(hits(&life, &new), new.len(), "{what}: what is new on it is not kept");
            assert_eq!(hits(&life, &gone), 0, "{what}: removed objects are back");
        }
    }
}

#[test]
fn a_device_that_fails_costs_no_checkpoint_and_no_write_of_the_other() {
    for sick in [FIRST, SECOND] {
        let (mut world, mut life) = world(1);
        fill(&mut world, &mut life, 0, 40);
        world.machine.set_away(sick, true);
        for n in 100..1100 {
            put(&life, &key(n % 300), &[2; 900], 0);
            pass(&mut world, &mut life, 2);
        }
        let stats = life.core.stats();
        assert!(stats.totals.checkpoints > 0 && !stats.journal_poisoned, "{sick:?}: {stats:?}");
        let retired = life.core.table.in_state(SegmentState::Retired).count();
        assert!(retired <= 10, "{sick:?}: {retired} segments are out of use");
        put(&life, b"late", b"value", 0);
        pass(&mut world, &mut life, 150);
        assert!(life.on_flash(&world.machine, NS as u8, b"late").is_some(), "{sick:?}: {stats:?}");
        // The newest checkpoint is on the other device.
        let checkpoints = life.core.stats().totals.checkpoints;
        assert!(world.close(&mut life));
        assert!(life.core.stats().totals.checkpoints > checkpoints, "{sick:?}: no clean stop");
    }
}

#[test]
fn a_device_that_does_not_answer_is_left_alone_until_it_does() {
    for mute in [FIRST, SECOND] {
        let (mut world, mut life) = world(1);
        fill(&mut world, &mut life, 0, 120);
        let there = on(&world, &life, mute, 120);
        world.machine.set_mute(mute, true);
        for n in 200..400 {
            put(&life, &key(n), &[2; 900], 0);
            pass(&mut world, &mut life, 2);
        }
        let stats = life.core.stats();
        assert!(stats.totals.devices_silent > 0, "{mute:?}: {stats:?}");
        let (n, core) = (there[0], &life.core);
        let hash = core.hash(NS as u16, &key(n));
        core.shard(hash).lock().dram.remove(hash, NS as u16, &key(n));
        let lookup = life.namespaces[NS].get(&key(n));
        assert!(matches!(lookup, Lookup::Miss(_)), "{mute:?}: a read would hang: {lookup:?}");
        put(&life, b"late", b"value", 0);
        pass(&mut world, &mut life, 150);
        assert!(life.on_flash(&world.machine, NS as u8, b"late").is_some(), "{mute:?}");
        let before = life.core.stats().totals.checkpoints;
        life.core.wait_lists.want();
        pass(&mut world, &mut life, 100);
        assert!(life.core.stats().totals.checkpoints > before, "{mute:?}: no checkpoint");
        world.machine.set_mute(mute, false);
        pass(&mut world, &mut life, 50);
        assert_eq!(get(&life, &key(n)), Some(vec![n as u8; 1000]), "{mute:?}: what it has is back");
    }
}

/// A cache of two devices whose index has 64 blocks.
fn many_blocks() -> World {
    let mut world = World::sized(8 << 20, 64 << 10, 16 << 20, 1 << 20);
    world.machine = SimMachine::new(1, SimFaults::none(), &[8 << 20; 2]);
    world.config.shards = 64;
    world
}

#[test]
fn a_home_that_falls_silent_while_the_index_loads_holds_up_no_other_device() {
    for mute in [FIRST, SECOND] {
        let mut world = many_blocks();
        let mut life = world.open_as_configured().expect("opens");
        fill(&mut world, &mut life, 0, 300);
        assert!(world.close(&mut life));
        world.crash(life, Crash::Process);
        let mut life = world.open_as_configured().expect("opens");
        world.machine.set_mute(mute, true);
        put(&life, b"early", b"value", 0);
        pass(&mut world, &mut life, 400);
        let stats = life.core.stats();
        assert!(!stats.loading && stats.totals.lost_index_blocks == 0, "{mute:?}: {stats:?}");
        let other = if mute == FIRST { SECOND } else { FIRST };
        let kept = on(&world, &life, other, 300);
        assert!(kept.len() > 60, "{mute:?}: no test: {}", kept.len());
        assert_eq!(hits(&life, &kept), kept.len(), "{mute:?}");
        put(&life, b"late", b"value", 0);
        pass(&mut world, &mut life, 150);
        assert!(life.on_flash(&world.machine, NS as u8, b"late").is_some(), "{mute:?}");
    }
}

#[test]
fn a_home_that_is_away_for_one_start_costs_nothing_although_it_is_the_only_one() {
    // Caches of earlier builds have one home.
    let setup = Setup { segments: vec![12, 12], fixed_lives: 1, ..Setup::plain(1) };
    let mut world = World::new(&setup);
    let mut life = world.open();
    fill(&mut world, &mut life, 0, 120);
    let all = [on(&world, &life, FIRST, 120), on(&world, &life, SECOND, 120)].concat();
    assert!(all.len() > 60, "no test: {}", all.len());
    let uuid = life.core.uuid;
    assert!(world.close(&mut life));
    world.crash(life, Crash::Process);
    world.machine.set_away(FIRST, true);
    let Err(refused) = world.open_as_configured() else { panic!("what it had is given up") };
    assert!(refused.to_string().starts_with("sim-0 cannot be"), "{refused}");
    world.machine.set_away(FIRST, false);
    let mut life = world.open();
    world.load(&mut life);
    assert_eq!(life.core.uuid, uuid, "the cache was made anew");
    assert_eq!(hits(&life, &all), all.len());
}

#[test]
fn a_device_that_falls_silent_while_its_segments_are_read_at_a_start_holds_up_no_other() {
    for mute in [FIRST, SECOND] {
        for rebuilt in [false, true] {
            let (mut world, mut life) = world(1);
            fill(&mut world, &mut life, 0, 120);
            if rebuilt {
                assert!(world.close(&mut life));
                // Another number of shards: the index is built anew from the segments.
                world.size.shards = 1;
            }
            world.crash(life, Crash::Process);
            let mut life = world.open();
            world.machine.set_mute(mute, true);
            pass(&mut world, &mut life, 300);
            let (what, stats) = (format!("{mute:?}, rebuilt {rebuilt}"), life.core.stats());
            assert!(!stats.loading && stats.totals.devices_silent > 0, "{what}: {stats:?}");
            let other = if mute == FIRST { SECOND } else { FIRST };
            let kept = on(&world, &life, other, 120);
            assert!(kept.len() > 20, "{what}: {} are left", kept.len());
            assert_eq!(hits(&life, &kept), kept.len(), "{what}");
        }
    }
}

#[test]
fn a_device_that_only_lookups_are_sent_to_falls_silent_too() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life, 0, 120);
    let there = on(&world, &life, SECOND, 120);
    assert!(world.close(&mut life));
    world.crash(life, Crash::Process);
    let mut life = world.open();
    world.load(&mut life);
    pass(&mut world, &mut life, 100);
    world.machine.set_mute(SECOND, true);
    assert!(there.len() > 20, "no test: {}", there.len());
    // Those on their way are not ended.
    for &n in &there[..10] {
        let sent = life.namespaces[NS].get(&key(n));
        assert!(matches!(sent, Lookup::Flash(_)), "{sent:?}");
    }
    pass(&mut world, &mut life, 100);
    assert_eq!(life.core.stats().totals.devices_silent, 1);
    let lookup = life.namespaces[NS].get(&key(there[10]));
    assert!(matches!(lookup, Lookup::Miss(_)), "it would wait: {lookup:?}");
}

#[test]
fn a_home_that_can_be_neither_read_nor_written_at_a_start_costs_its_share() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life, 0, 120);
    life.core.wait_lists.want();
    pass(&mut world, &mut life, 100);
    assert!(life.core.stats().totals.checkpoints > 0, "no test");
    let (kept, gone) = (on(&world, &life, SECOND, 120), on(&world, &life, FIRST, 120));
    assert!(kept.len() > 20 && gone.len() > 20, "no test: {} {}", kept.len(), gone.len());
    let [first, second, _] = life.core.areas;
    life = restart(&mut world, life, |world| {
        for area in [first, second] {
            world.machine.flip_bit(FIRST, area + 40, 3);
        }
        world.machine.set_bad(FIRST, first..second + 4096);
    });
    assert_eq!(hits(&life, &kept), kept.len(), "the other device is cold");
    assert_eq!(hits(&life, &gone), 0, "it is no member");
    let mut life = restart(&mut world, life, |world| world.machine.set_bad(FIRST, 0..0));
    assert_eq!(members(&life).len(), 2, "it joins again");
    fill(&mut world, &mut life, 200, 320);
    assert!(on(&world, &life, FIRST, 320).len() > 20, "it is not used");
    assert_eq!((hits(&life, &kept), hits(&life, &gone)), (kept.len(), 0));
}

#[test]
fn a_stop_is_clean_although_a_device_that_has_nothing_but_flushes_hangs() {
    let third = DeviceId(2);
    let mut judged = 0;
    for seed in 0..20 {
        let setup = Setup { segments: vec![12, 12, 12], ..Setup::plain(seed) };
        let mut world = World::new(&setup);
        let mut life = world.open();
        fill(&mut world, &mut life, 0, 180);
        let kept = on(&world, &life, FIRST, 180);
        assert!(kept.len() > 20 && !on(&world, &life, third, 180).is_empty(), "no test");
        life.background.start_close();
        // Not in every order of steps the device is at some time left with flushes alone.
        let mut turn = || {
            world.clock.pass(10);
            world.turn(&mut life);
            world.machine.is_only_flushed(third)
        };
        if !(0..200).any(|_| turn()) {
            continue;
        }
        judged += 1;
        world.machine.set_mute(third, true);
        assert!(world.close(&mut life), "the stop is given up");
        let life = restart(&mut world, life, |_| {});
        assert_eq!(hits(&life, &kept), kept.len());
    }
    assert!(judged > 0, "no device was left with flushes alone");
}

/// Number and epoch of each member.
fn members(life: &Life) -> Vec<(u32, u64)> {
    life.core.state.lock().devices.iter().map(|member| (member.id, member.epoch)).collect()
}

#[test]
fn a_device_that_returns_is_not_taken_for_the_member_that_has_its_number_now() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life, 0, 120);
    let gone = on(&world, &life, SECOND, 120);
    let [_, (number, first)] = members(&life)[..] else { panic!("two members") };
    life = restart(&mut world, life, |world| world.machine.set_away(SECOND, true));
    for &n in &gone {
        life.namespaces[NS].remove(&key(n));
    }
    life = restart(&mut world, life, |world| world.machine.set_away(SECOND, true));
    world.crash(life, Crash::Process);
    world.all_back();
    world.exchange(1);
    life = world.open();
    let [_, (again, second)] = members(&life)[..] else { panic!("two members") };
    assert!(again == number && second > first, "no test: {again} of {second}");
    fill(&mut world, &mut life, 200, 320);
    world.crash(life, Crash::Process);
    world.exchange(1);
    let mut life = world.open();
    world.load(&mut life);
    let [_, (_, third)] = members(&life)[..] else { panic!("two members") };
    assert!(third > second, "it joins with an epoch of its own: {third} after {second}");
    assert_eq!(hits(&life, &gone), 0, "removed objects are back");
}

#[test]
fn a_checkpoint_that_is_nowhere_whole_is_none() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life, 0, 120);
    life.core.wait_lists.want();
    pass(&mut world, &mut life, 100);
    let (all, totals) = (
        [on(&world, &life, FIRST, 120), on(&world, &life, SECOND, 120)].concat(),
        life.core.stats().totals,
    );
    assert!(totals.checkpoints > 0 && all.len() > 60, "no test: {totals:?}");
    let (removed, kept) = all.split_at(20);
    for &n in removed {
        life.namespaces[NS].remove(&key(n));
    }
    // Both devices say that they have written, and have not.
    world.set_faults(SimFaults { lost_write: 1.0, ..SimFaults::none() });
    life.core.wait_lists.want();
    pass(&mut world, &mut life, 100);
    world.set_faults(SimFaults::none());
    assert_eq!(life.core.stats().totals.checkpoints, totals.checkpoints);
    let life = restart(&mut world, life, |_| {});
    assert_eq!(hits(&life, removed), 0, "removed objects are back");
    assert_eq!(hits(&life, kept), kept.len(), "the cache is cold");
}

#[test]
fn a_stop_ends_although_no_device_answers() {
    for segments in [vec![24], vec![12, 12]] {
        let mut world = World::new(&Setup { segments: segments.clone(), ..Setup::plain(1) });
        let mut life = world.open();
        fill(&mut world, &mut life, 0, 120);
        let all: Vec<u32> =
            [FIRST, SECOND].iter().flat_map(|&device| on(&world, &life, device, 120)).collect();
        assert!(all.len() > 60, "no test: {}", all.len());
        for n in 0..segments.len() as u16 {
            world.machine.set_mute(DeviceId(n), true);
        }
        put(&life, b"late", b"value", 0);
        let began = world.clock.millis();
        assert!(!world.close(&mut life), "nothing of it can be written");
        assert!(world.clock.millis() - began < 30_000, "it waits too long");
        let life = restart(&mut world, life, |_| {});
        assert_eq!(hits(&life, &all), all.len(), "{segments:?}: the next start is cold");
    }
}

/// Whether an opening is refused because two devices are one, and says so by their names.
fn is_refused_as_one(world: &mut World) -> bool {
    match world.open_as_configured() {
        Ok(_) => false,
        Err(refused) => {
            let said = refused.to_string();
            assert!(said.contains("sim-0") && said.contains("sim-1"), "{said}");
            said.contains("two names of one device")
        }
    }
}

#[test]
fn a_cache_is_not_made_of_two_names_of_one_device() {
    let mut world = World::sized(4 << 20, 64 << 10, 16 << 20, 1 << 20);
    world.machine = SimMachine::new(1, SimFaults::none(), &[4 << 20; 2]);
    world.machine.set_alias(Some((SECOND, FIRST)));
    assert!(is_refused_as_one(&mut world), "each start would lose half of it");
    let mut first = vec![1; 4096];
    world.machine.peek(FIRST, 0, &mut first);
    assert!(first.iter().all(|byte| *byte == 0), "the device is as it was");
    world.machine.set_alias(None);
    assert!(world.open_as_configured().is_ok());
}

#[test]
fn two_names_of_one_device_cost_nothing_of_a_cache_that_is_to_be_made_anew() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life, 0, 120);
    let all = [on(&world, &life, FIRST, 120), on(&world, &life, SECOND, 120)].concat();
    let uuid = life.core.uuid;
    let life = restart(&mut world, life, |_| {});
    world.crash(life, Crash::Process);
    world.machine.set_alias(Some((SECOND, FIRST)));
    let size = world.config.segment_size.replace(128 << 10);
    assert!(is_refused_as_one(&mut world), "each start would lose half of it");
    world.machine.set_alias(None);
    world.config.segment_size = size;
    let mut life = world.open();
    world.load(&mut life);
    assert_eq!(life.core.uuid, uuid, "the cache was made anew");
    assert_eq!(hits(&life, &all), all.len());
}

#[test]
fn a_device_that_takes_no_superblock_costs_nothing_of_the_cache_that_was_there() {
    let (mut world, mut life) = world(1);
    fill(&mut world, &mut life, 0, 120);
    let all = [on(&world, &life, FIRST, 120), on(&world, &life, SECOND, 120)].concat();
    let life = restart(&mut world, life, |_| {});
    world.crash(life, Crash::Process);
    let size = world.config.segment_size.replace(128 << 10);
    world.machine.set_bad(SECOND, 0..8192);
    assert!(world.open_as_configured().is_err(), "no test: it was written");
    world.machine.set_bad(SECOND, 0..0);
    world.config.segment_size = size;
    let mut life = world.open();
    world.load(&mut life);
    assert_eq!(hits(&life, &all), all.len(), "the cache was made anew");
}

#[test]
fn a_second_name_of_a_member_does_not_join_and_costs_the_member_nothing() {
    for (name, real) in [(SECOND, FIRST), (FIRST, SECOND)] {
        let (mut world, mut life) = world(1);
        fill(&mut world, &mut life, 0, 120);
        let all = [on(&world, &life, FIRST, 120), on(&world, &life, SECOND, 120)].concat();
        assert!(all.len() > 60, "no test: {}", all.len());
        let before = members(&life);
        world.crash(life, Crash::Process);
        world.machine.set_alias(Some((name, real)));
        for _ in 0..2 {
            assert!(is_refused_as_one(&mut world), "it would take the place of the member");
        }
        world.machine.set_alias(None);
        let mut life = world.open();
        world.load(&mut life);
        assert_eq!(members(&life), before, "who was a member still is");
        assert_eq!(hits(&life, &all), all.len());
    }
}
