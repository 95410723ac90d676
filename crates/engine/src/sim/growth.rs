//! An index that grows under load, over crashes: small objects, of which many more come than the
//! index was made for.

use super::coverage::{Coverage, Path};
use super::scenarios::{NS, get, pass, put};
use super::world::{Life, World};
use crate::api::DropReason;
use crate::device::DeviceId;
use crate::device::sim::{Crash, SimFaults, SimMachine, SimRandom};
use crate::format::checkpoint::BLOCK_LINES;
use crate::segment::SegmentState;

/// Objects of a story: four times as many as the checkpoint areas were made for.
const OBJECTS: u32 = 60_000;
const FLASH: u64 = 16 << 20;
const MEMORY: u64 = 8 << 20;
/// The index at the beginning; it grows twelvefold.
const INDEX: u64 = 48 << 10;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n}").into_bytes()
}

/// Every seventh object is put twice.
fn value(n: u32, round: u32) -> Vec<u8> {
    format!("value-{n}-{round}").into_bytes()
}

fn small_index() -> World {
    let mut world = World::sized(FLASH, 64 << 10, MEMORY, 1 << 20);
    (world.config.index_memory, world.config.shards) = (Some(INDEX), 2);
    world
}

/// Puts an object, and perhaps an earlier one again.
fn put_next(life: &Life, n: u32) {
    put(life, &key(n), &value(n, 0), 0);
    if n.is_multiple_of(7) && n >= 700 {
        put(life, &key(n - 700), &value(n - 700, 1), 0);
    }
}

/// Puts an object and has it copied to flash at once: the index names it.
fn put_on_flash(life: &Life, n: u32) {
    put_next(life, n);
    let hash = life.core.hash(NS as u16, &key(n));
    let mut shard = life.core.shard(hash).lock();
    let object = shard.dram.peek_hash(hash).expect("just put").to_entry();
    assert!(life.core.copy_out(&mut shard, &object, true), "it is copied");
}

/// Puts objects until `end`.
fn load(world: &mut World, life: &mut Life, from: u32, end: u32) {
    for n in from..end {
        put_next(life, n);
        if n % 16 == 0 {
            pass(world, life, 1);
        }
    }
}

fn newest(n: u32, end: u32) -> Vec<u8> {
    value(n, u32::from(n.is_multiple_of(7) && n + 700 < end))
}

/// Which of the first `end` objects have a copy on flash; whatever is found is the newest.
fn on_flash(world: &World, life: &Life, end: u32) -> Vec<u32> {
    let there = |n: &u32| life.on_flash(&world.machine, NS as u8, &key(*n)).is_some();
    (0..end).filter(there).collect()
}

fn check_values(life: &Life, end: u32) -> usize {
    let found = (0..end).filter_map(|n| Some((n, get(life, &key(n))?)));
    found.map(|(n, found)| assert_eq!(found, newest(n, end), "object {n}")).count()
}

fn checkpoint_segments(life: &Life) -> Vec<u32> {
    life.core.table.in_state(SegmentState::Checkpoint).collect()
}

fn full(life: &Life) -> u64 {
    life.core.totals.dropped_for(DropReason::IndexFull)
}

fn reopen(world: &mut World) -> Life {
    let mut life = world.open_as_configured().expect("opens");
    world.load(&mut life);
    life
}

#[test]
fn an_index_that_grows_keeps_what_flash_holds_within_its_memory() {
    let mut world = small_index();
    let mut life = world.open_as_configured().expect("opens");
    let before = life.core.stats();
    load(&mut world, &mut life, 0, OBJECTS);
    let stats = life.core.stats();
    assert!(stats.index_bytes >= 10 * before.index_bytes, "{stats:?}");
    let budget = before.index_bytes + before.dram_capacity;
    assert!(stats.index_bytes + stats.dram_capacity <= budget, "{stats:?}");
    assert!(stats.dram_bytes <= stats.dram_capacity + 8192, "{stats:?}");
    let bytes = stats.index_bytes as f64 / stats.index_slots_used as f64;
    assert!(bytes <= 9.5, "{bytes:.2} bytes a slot");
    let kept = check_values(&life, OBJECTS);
    assert!(kept as f64 >= 0.99 * f64::from(OBJECTS), "{kept} of {OBJECTS}: {stats:?}");
    assert!(checkpoint_segments(&life).len() >= 2, "checkpoints need segments");
    assert!(world.close(&mut life));
    let (stats, segments) = (life.core.stats(), checkpoint_segments(&life));
    // What was in memory, too, may share its slot with another.
    let named = on_flash(&world, &life, OBJECTS).len();
    assert!(named * 1000 >= kept * 998, "{named} of {kept} on flash");
    world.crash(life, Crash::Process);
    let mut life = world.open_as_configured().expect("opens");
    // At once: nobody may take them for free.
    assert_eq!(checkpoint_segments(&life), segments);
    world.load(&mut life);
    // All shards as large as the largest was.
    let (before, now) = (stats.index_bytes, life.core.stats().index_bytes);
    assert!((before..before * 102 / 100).contains(&now), "{now} bytes after {before}");
    let again = check_values(&life, OBJECTS);
    assert_eq!(again, named, "after a clean stop");
    assert_eq!(full(&life), 0);
}

/// The process dies at moments of every kind while the index grows and checkpoints are written.
/// What had its copy on flash has it again, and nothing is old.
#[test]
fn what_a_growing_index_names_outlives_crashes() {
    let _ = Coverage::take();
    for seed in 0..6 {
        let (mut world, mut random) = (small_index(), SimRandom::new(seed));
        world.reseed(seed);
        let mut life = world.open_as_configured().expect("opens");
        let mut done = 0;
        while done < OBJECTS {
            let end = (done + 4_000 + random.below(14_000) as u32).min(OBJECTS);
            load(&mut world, &mut life, done, end);
            if random.below(2) == 0 {
                life.core.wait_lists.want();
                (0..random.below(60)).for_each(|_| world.turn(&mut life));
            }
            let dropped = full(&life);
            let before = on_flash(&world, &life, end);
            world.crash(life, Crash::Process);
            life = reopen(&mut world);
            let lost: Vec<_> = {
                let after = on_flash(&world, &life, end);
                before.iter().filter(|n| after.binary_search(n).is_err()).collect()
            };
            // Two keys may share a slot.
            let allowed = 4 + full(&life) as usize;
            assert!(lost.len() <= allowed, "seed {seed}, {end}: {lost:?}, {dropped} before");
            check_values(&life, end);
            done = end;
        }
        assert!(life.core.stats().index_bytes > 4 * INDEX, "{:?}", life.core.stats());
    }
    let missing = Coverage::take().missing();
    for path in [Path::IndexGrew, Path::CheckpointGrown, Path::LoadedGrown] {
        assert!(!missing.contains(&path.label()), "no test of: {}", path.label());
    }
}

/// A checkpoint has as many blocks as its header says. A line that came meanwhile, behind the last
/// block, would be in none; it has taken slots from lines of other blocks.
#[test]
fn what_is_put_while_a_checkpoint_captures_the_index_costs_nothing_of_what_was_there() {
    let mut world = small_index();
    world.config.shards = 1;
    let mut life = world.open_as_configured().expect("opens");
    let mut end = 0;
    let is_nearly_a_block_more = |life: &Life| {
        let lines = life.core.shards[0].index.lines() as u64;
        // So many that not all blocks are captured at once.
        lines > 5 * BLOCK_LINES && lines % BLOCK_LINES > BLOCK_LINES - 10
    };
    while !is_nearly_a_block_more(&life) {
        load(&mut world, &mut life, end, end + 16);
        end += 16;
    }
    life.core.wait_lists.want();
    for _ in 0..3 {
        world.turn(&mut life);
        (end..end + 100).for_each(|n| put_on_flash(&life, n));
        end += 100;
    }
    pass(&mut world, &mut life, 100);
    let before = on_flash(&world, &life, end);
    world.crash(life, Crash::Process);
    let life = reopen(&mut world);
    let after = on_flash(&world, &life, end);
    let lost = before.iter().filter(|n| after.binary_search(n).is_err()).count();
    // Two keys may share a slot.
    assert!(lost <= 4, "{lost} of {}", before.len());
    check_values(&life, end);
}

/// A checkpoint that is lost, of an index that has grown since the one before: nothing old, and the
/// cache goes on.
#[test]
fn a_lost_checkpoint_of_a_grown_index_brings_nothing_old_back() {
    for which in [0, 1] {
        let mut world = small_index();
        let mut life = world.open_as_configured().expect("opens");
        load(&mut world, &mut life, 0, OBJECTS / 2);
        world.crash(life, Crash::Process);
        let header = {
            let life = reopen(&mut world);
            let at = life.core.areas[which];
            world.crash(life, Crash::Process);
            at
        };
        world.machine.flip_bit(DeviceId(0), header + 40, 3);
        let mut life = reopen(&mut world);
        check_values(&life, OBJECTS / 2);
        load(&mut world, &mut life, OBJECTS / 2, OBJECTS);
        assert!(world.close(&mut life));
        world.crash(life, Crash::Process);
        let life = reopen(&mut world);
        let kept = check_values(&life, OBJECTS);
        assert!(kept as u32 > OBJECTS / 3, "{kept} are there");
    }
}

/// With another memory, or another number of shards, a grown index is rebuilt.
#[test]
fn a_grown_index_is_rebuilt_in_another_shape() {
    // The last has as many base lines a shard as before.
    for (index, shards) in [(INDEX * 2, 2), (INDEX, 4), (INDEX / 2, 2), (INDEX * 2, 4)] {
        let mut world = small_index();
        let mut life = world.open_as_configured().expect("opens");
        load(&mut world, &mut life, 0, OBJECTS / 2);
        let kept = check_values(&life, OBJECTS / 2);
        assert!(world.close(&mut life));
        world.crash(life, Crash::Process);
        (world.config.index_memory, world.config.shards) = (Some(index), shards);
        let mut life = reopen(&mut world);
        let again = check_values(&life, OBJECTS / 2);
        assert!(
            again as f64 >= kept as f64 * 0.99,
            "{index} B, {shards} shards: {again} of {kept}"
        );
        load(&mut world, &mut life, OBJECTS / 2, OBJECTS);
        assert!(check_values(&life, OBJECTS) as f64 >= f64::from(OBJECTS) * 0.97);
    }
}

/// A device that joins has no segments for checkpoints of an index that has grown before. It gets
/// them, so that the loss of the other home costs no more than what lies there.
#[test]
fn a_home_that_joins_takes_checkpoints_of_an_index_that_has_grown_before() {
    let objects = OBJECTS / 3 * 4;
    let (first, second) = (DeviceId(0), DeviceId(1));
    let mut world = small_index();
    world.machine = SimMachine::new(1, SimFaults::none(), &[FLASH / 2; 2]);
    let mut life = world.open_as_configured().expect("opens");
    load(&mut world, &mut life, 0, objects);
    assert!(world.close(&mut life));
    world.crash(life, Crash::Process);
    world.machine.wipe(second);
    let mut life = reopen(&mut world);
    assert!(!checkpoint_segments(&life).is_empty(), "no test: no block lies beyond the areas");
    let end = objects + OBJECTS / 6;
    load(&mut world, &mut life, objects, end);
    assert!(world.close(&mut life));
    let there = |world: &World, life: &Life, n: &u32| {
        let at = life.on_flash(&world.machine, NS as u8, &key(*n));
        at.is_some_and(|at| at.device == second)
    };
    let before: Vec<u32> = (0..end).filter(|n| there(&world, &life, n)).collect();
    assert!(before.len() > 1_000, "no test: {}", before.len());
    world.crash(life, Crash::Process);
    world.machine.set_away(first, true);
    let life = reopen(&mut world);
    let after = before.iter().filter(|n| there(&world, &life, n)).count();
    // Two keys may share a slot.
    assert!(after * 1_000 >= before.len() * 995, "{after} of {} are left", before.len());
}

/// An index that may not grow stays as it is.
#[test]
fn an_index_of_fixed_size_does_not_grow() {
    let mut world = small_index();
    world.config.index_growth = false;
    let mut life = world.open_as_configured().expect("opens");
    let before = life.core.stats();
    load(&mut world, &mut life, 0, OBJECTS / 2);
    let stats = life.core.stats();
    assert_eq!(
        (stats.index_bytes, stats.dram_capacity),
        (before.index_bytes, before.dram_capacity)
    );
    assert!(full(&life) > 0);
    check_values(&life, OBJECTS / 2);
}

#[test]
fn a_segment_of_checkpoints_that_cannot_be_written_is_replaced() {
    // So many that blocks lie beyond the areas.
    let objects = OBJECTS / 3 * 4;
    let mut world = small_index();
    let mut life = world.open_as_configured().expect("opens");
    load(&mut world, &mut life, 0, objects);
    life.core.streams.flush(u64::MAX, true);
    pass(&mut world, &mut life, 200);
    let before = checkpoint_segments(&life);
    let bad = before[0];
    let (place, size) = (life.core.table.place(bad), life.core.table.segment_size());
    world.machine.set_bad(place.device, place.offset..place.offset + u64::from(size));
    // One in each area, and one more in each.
    let done = life.core.stats().totals.checkpoints;
    for _ in 0..8 {
        life.core.wait_lists.want();
        pass(&mut world, &mut life, 100);
    }
    let stats = life.core.stats();
    assert!(stats.totals.checkpoints >= done + 4, "they do not go on: {stats:?}");
    assert_eq!(stats.totals.segments_retired, 1, "{stats:?}");
    let after = checkpoint_segments(&life);
    assert!(!after.contains(&bad) && after.len() == before.len(), "{before:?} {after:?}");
    let held = on_flash(&world, &life, objects);
    world.crash(life, Crash::Process);
    let life = reopen(&mut world);
    assert_eq!(checkpoint_segments(&life), after, "the newest checkpoint names them");
    let again = on_flash(&world, &life, objects);
    let lost = held.iter().filter(|n| again.binary_search(n).is_err()).count();
    assert!(held.len() > 1_000 && lost * 1_000 <= held.len(), "{lost} of {} lost", held.len());
}
