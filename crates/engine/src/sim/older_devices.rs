//! Devices that are rolled back to a snapshot, step by step.

use super::plan::Setup;
use super::scenarios::pass;
use super::state::look_up;
use super::world::{Life, World};
use crate::api::PutOptions;
use crate::device::DeviceId;
use crate::device::sim::Crash;
use crate::ops::get::Lookup;

/// Namespaces whose values change: write-back, synced, and one that survives clean stops only.
const SPACES: [usize; 3] = [0, 1, 3];
const KEYS: u32 = 40;

/// How the life ends that is in use until the device is rolled back.
#[derive(Debug, Clone, Copy)]
enum LifeEnd {
    Stop,
    Process,
    Machine,
}

fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

fn put(world: &mut World, life: &mut Life, n: u32, value: u8) {
    for ns in SPACES {
        drop(life.namespaces[ns].submit_put(&key(n), &[value; 900], PutOptions::default()));
    }
    pass(world, life, 2);
}

/// Everything is on flash, and a checkpoint covers it.
fn settle(world: &mut World, life: &mut Life) {
    life.core.streams.flush(u64::MAX, true);
    pass(world, life, 120);
    life.core.wait_lists.want();
    pass(world, life, 100);
    assert!(life.core.stats().totals.checkpoints > 0, "no test");
}

#[test]
fn a_device_that_is_rolled_back_brings_nothing_back() {
    for segments in [&[40][..], &[20, 20]] {
        for device in 0..segments.len() as u16 {
            for end in [LifeEnd::Stop, LifeEnd::Process, LifeEnd::Machine] {
                roll_back(segments, DeviceId(device), end);
            }
        }
    }
}

/// One key in three is put again after the snapshot, and one in three removed.
fn roll_back(segments: &[u32], device: DeviceId, end: LifeEnd) {
    let mut world = World::new(&Setup { segments: segments.to_vec(), ..Setup::plain(1) });
    let mut life = world.open();
    (0..KEYS).for_each(|n| put(&mut world, &mut life, n, 1));
    settle(&mut world, &mut life);
    let image = world.machine.image_of(device);
    for n in 0..KEYS {
        match n % 3 {
            0 => put(&mut world, &mut life, n, 2),
            1 => SPACES.iter().for_each(|&ns| {
                life.namespaces[ns].remove(&key(n));
            }),
            _ => {}
        }
    }
    settle(&mut world, &mut life);
    if matches!(end, LifeEnd::Stop) {
        assert!(world.close(&mut life), "no clean stop");
    }
    world
        .crash(life, if matches!(end, LifeEnd::Machine) { Crash::Machine } else { Crash::Process });
    world.machine.roll_back(device, &image);
    let mut life = world.open();
    world.load(&mut life);
    for (ns, n) in SPACES.iter().flat_map(|&ns| (0..KEYS).map(move |n| (ns, n))) {
        let Lookup::Hit(hit) = look_up(&life, &life.namespaces[ns], &key(n)) else { continue };
        let newest = if n % 3 == 0 { 2 } else { 1 };
        let what = format!("{segments:?}, {device:?}, {end:?}: key {n} of namespace {ns}");
        assert!(n % 3 != 1 && hit.value[0] == newest, "{what} is as it was before");
    }
}
