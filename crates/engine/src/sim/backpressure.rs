//! A caller that awaits backpressure before each put loses nothing to a full write queue while the
//! device makes progress.

use super::scenarios::{NS, fill_queue, get, is_ready, put, world};
use super::world::{Life, World};
use crate::api::{DropReason, PutOptions, PutOutcome};
use crate::device::sim::SimRandom;
use crate::ops::get::Lookup;

/// Objects dropped because the write queue was full.
fn dropped(life: &Life) -> u64 {
    life.core.stats().namespaces[NS].dropped[DropReason::QueueFull as usize]
}

/// Awaits room as a front end does, on a device that takes `ms` for a turn; how long that was.
fn await_room(world: &mut World, life: &mut Life, ms: u64) -> u64 {
    let mut waited = 0;
    while let Some(mut backpressure) = life.namespaces[NS].put_backpressure() {
        while !is_ready(&mut backpressure) {
            world.clock.pass(ms);
            world.turn(life);
            waited += ms;
        }
    }
    waited
}

/// Fills flash with objects of up to `largest` bytes, several between two turns of the background
/// work. Flash is large enough for all of them.
fn fill(seed: u64, largest: u64, ms: u64) -> (World, Life, u64) {
    let mut world = World::sized(96 << 20, 1 << 20, 8 << 20, 1 << 20);
    world.reseed(seed);
    let mut life = world.open_as_configured().expect("opens");
    let mut random = SimRandom::new(seed);
    let (mut bytes, mut waited, mut n) = (0, 0, 0u32);
    while bytes < 60 << 20 {
        waited = waited.max(await_room(&mut world, &mut life, ms));
        let len = 1 + random.below(largest);
        let value = vec![7; len as usize];
        let outcome = life.namespaces[NS].put(&n.to_le_bytes(), &value, PutOptions::default());
        assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
        (bytes, n) = (bytes + len, n + 1);
        if random.below(20) == 0 {
            world.clock.pass(ms);
            world.turn(&mut life);
        }
    }
    (world, life, waited)
}

#[test]
fn a_fill_that_waits_for_room_loses_nothing_while_the_device_goes_on() {
    for seed in 0..2 {
        for (largest, ms) in [(500, 1), (100_000, 1), (250_000, 60)] {
            let (_, life, waited) = fill(seed, largest, ms);
            assert!(
                life.core.table.free_count() > life.core.admission.free_target,
                "nothing was reclaimed"
            );
            let what = format!("seed {seed}, up to {largest} bytes, {ms} ms: waited {waited} ms");
            assert_eq!(dropped(&life), 0, "{what}");
            assert!(largest < 1_000 || waited > 0, "the queue was never full: {what}");
        }
    }
}

/// As many reads as there are objects on flash, while nothing is written. The queue stays nearly
/// full, and DRAM is full of objects that flash does not have.
#[test]
fn a_read_costs_no_object_that_only_memory_has() {
    let (mut world, mut life, _) = fill(1, 100_000, 1);
    let mut n = 0u32;
    while life.namespaces[NS].put_backpressure().is_none() {
        put(&life, format!("late-{n}").as_bytes(), &[1; 50_000], 0);
        n += 1;
    }
    let is_on_flash =
        |n: u32| matches!(life.namespaces[NS].get(&n.to_le_bytes()), Lookup::Flash(_));
    let on_flash: Vec<u32> = (0..400).filter(|&n| is_on_flash(n)).collect();
    let promoted = |life: &Life, n: &u32| {
        assert!(get(life, &n.to_le_bytes()).is_some(), "{n} is on flash");
        !matches!(life.namespaces[NS].get(&n.to_le_bytes()), Lookup::Flash(_))
    };
    // Where DRAM has room a copy evicts nothing.
    let few = on_flash.iter().filter(|n| promoted(&life, n)).count();
    assert!(on_flash.len() > 100 && few * 4 < on_flash.len(), "{few} of {}", on_flash.len());
    assert_eq!(dropped(&life), 0);
    // Once the device has caught up, copies are taken again.
    for _ in 0..2_000 {
        world.clock.pass(10);
        world.turn(&mut life);
    }
    let more = on_flash.iter().filter(|n| promoted(&life, n)).count();
    assert!(more > 2 * few && dropped(&life) == 0, "{more} after {few}");
}

#[test]
fn who_waits_for_the_write_queue_has_patience_from_the_last_chunk_on() {
    let mut longest = 0;
    for seed in 0..8 {
        let (mut world, mut life) = world(seed);
        let mut backpressure = fill_queue(&life);
        let waiting = |life: &Life| life.core.stats().chunks_waiting;
        for n in 0..20_000u32 {
            if dropped(&life) > 0 {
                break;
            }
            put(&life, format!("impatient-{n}").as_bytes(), &[1; 2000], 0);
        }
        let mut waited = 0;
        while life.core.streams.is_nearly_full() {
            assert!(
                !is_ready(&mut backpressure),
                "seed {seed}: the device goes on after {waited} ms"
            );
            let before = waiting(&life);
            world.clock.pass(600);
            waited += 600;
            while waiting(&life) == before {
                world.turn(&mut life);
            }
        }
        assert!(is_ready(&mut backpressure), "seed {seed}");
        longest = longest.max(waited);
    }
    assert!(
        longest > 1_000,
        "nobody waited longer than for a device that does not answer: {longest} ms"
    );
}
