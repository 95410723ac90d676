//! Removals of groups are forgotten once nothing older is left, and not before.

use super::scenarios::{NS, crash, pass, pass_until, put, world};
use super::state::look_up;
use super::world::{Life, World};
use crate::api::{PutOptions, PutOutcome};
use crate::device::sim::Crash;
use crate::ops::get::Lookup;
use crate::segment::SegmentState;

const GROUP: u32 = 7;

fn put_in_group(life: &Life, key: &[u8]) {
    let options = PutOptions { group: GROUP, ..PutOptions::default() };
    let outcome = life.namespaces[NS].put(key, &[1; 900], options);
    assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
}

/// A cache with a removed object on flash alone.
fn removed() -> (World, Life) {
    let (mut world, mut life) = world(1);
    put_in_group(&life, b"key");
    pass(&mut world, &mut life, 100);
    take_from_dram(&life, b"key");
    life.namespaces[NS].remove_group(GROUP);
    (world, life)
}

fn take_from_dram(life: &Life, key: &[u8]) {
    let hash = life.core.hash(NS as u16, key);
    life.core.shard(hash).lock().dram.remove(hash, NS as u16, key);
}

fn removed_groups(life: &Life) -> usize {
    life.core.namespaces.by_id(NS as u16).expect("it is there").removed_groups()
}

fn write(world: &mut World, life: &mut Life, from: u32, objects: u32) {
    for n in from..from + objects {
        put(life, format!("other-{n}").as_bytes(), &[2; 4000], 0);
        if n % 5 == 0 {
            pass(world, life, 5);
        }
    }
}

/// Writes until the removal is forgotten, at most three times as much as flash has.
fn write_until_forgotten(world: &mut World, life: &mut Life) {
    let flash = life.core.stats().segments * u64::from(life.core.table.segment_size());
    let laps = (3 * flash / 4096) as u32;
    for from in (0..laps).step_by(20) {
        if removed_groups(life) == 0 {
            return;
        }
        write(world, life, from, 20);
    }
    panic!("{} groups are remembered: {:?}", removed_groups(life), life.core.stats());
}

#[test]
fn a_removal_is_remembered_as_long_as_a_segment_may_have_what_it_removed() {
    let (mut world, mut life) = removed();
    pass(&mut world, &mut life, 300);
    assert_eq!(removed_groups(&life), 1);
    let life = crash(&mut world, life, Crash::Process);
    let ns = &life.namespaces[NS];
    assert!(matches!(look_up(&life, ns, b"key"), Lookup::Miss(_)));
}

#[test]
fn a_removal_is_forgotten_once_all_of_flash_was_written_anew() {
    let (mut world, mut life) = removed();
    write_until_forgotten(&mut world, &mut life);
    let life = crash(&mut world, life, Crash::Process);
    let ns = &life.namespaces[NS];
    assert!(matches!(look_up(&life, ns, b"key"), Lookup::Miss(_)));
}

#[test]
fn what_was_removed_and_lives_in_dram_does_not_outlive_the_removal() {
    let (mut world, mut life) = world(1);
    put_in_group(&life, b"key");
    life.namespaces[NS].remove_group(GROUP);
    pass_until(&mut world, &mut life, |life| {
        let hash = life.core.hash(NS as u16, b"key");
        life.core.shard(hash).lock().dram.peek_hash(hash).is_none()
    });
    write_until_forgotten(&mut world, &mut life);
    let ns = &life.namespaces[NS];
    assert!(matches!(look_up(&life, ns, b"key"), Lookup::Miss(_)));
}

#[test]
fn a_read_that_outlives_the_removal_finds_nothing() {
    let (mut world, mut life) = removed();
    let Lookup::Flash(read) = life.namespaces[NS].get(b"key") else { panic!("it is on flash") };
    let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
    write_until_forgotten(&mut world, &mut life);
    let found = read.finish(bytes);
    assert!(matches!(found, Lookup::Miss(_)), "{found:?}");
}

/// Writes, from this object on, until the segment of the key is reclaimed; the next object.
fn write_until_reclaimed(world: &mut World, life: &mut Life) -> u32 {
    let hash = life.core.hash(NS as u16, b"key");
    for n in 0..2_000 {
        put(life, format!("other-{n}").as_bytes(), &[2; 4000], 0);
        world.clock.pass(100);
        for _ in 0..6 {
            // It is read, so it is to be written again.
            let slot = life.core.shard(hash).index.lookup(hash).expect("it is on flash");
            if life.core.table.state(slot.location().segment) == SegmentState::Reclaiming {
                return n + 1;
            }
            world.turn(life);
        }
    }
    panic!("its segment is not reclaimed: {:?}", life.core.stats());
}

#[test]
fn what_is_removed_while_it_is_written_again_does_not_outlive_the_removal() {
    for turns in 0..6 {
        let (mut world, mut life) = world(1);
        put_in_group(&life, b"key");
        pass(&mut world, &mut life, 100);
        take_from_dram(&life, b"key");
        let next = write_until_reclaimed(&mut world, &mut life);
        (0..turns).for_each(|_| world.turn(&mut life));
        life.namespaces[NS].remove_group(GROUP);
        (0..3).for_each(|_| world.turn_without_answers(&mut life));
        for n in next..next + 2_000 {
            if removed_groups(&life) == 0 {
                break;
            }
            put(&life, format!("other-{n}").as_bytes(), &[2; 4000], 0);
            pass(&mut world, &mut life, 1);
        }
        assert_eq!(removed_groups(&life), 0, "{:?}", life.core.stats());
        let ns = &life.namespaces[NS];
        assert!(matches!(look_up(&life, ns, b"key"), Lookup::Miss(_)), "after {turns} turns");
    }
}
