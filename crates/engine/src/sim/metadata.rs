//! What footers, checkpoints and journal cost in addition to the records.

use super::world::{Life, World};
use crate::api::{PutOptions, PutOutcome};
use crate::format::journal::ENTRY;

/// The proportions of 4 GiB of flash with the default journal, at a 32nd.
const FLASH: u64 = 128 << 20;
const SEGMENT: u32 = 1 << 20;
const MEMORY: u64 = 24 << 20;
const JOURNAL: u64 = 2 << 20;

/// Bytes of an object with its record's header, about.
const OBJECT: u64 = 4096;

/// Most metadata in percent of record bytes.
const MOST: f64 = 3.0;

fn put(world: &mut World, life: &mut Life, n: u64) {
    let outcome = life.namespaces[0].put(&n.to_le_bytes(), &[7; 4000], PutOptions::default());
    assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
    if n.is_multiple_of(16) {
        world.clock.pass(100);
        world.turn(life);
    }
}

/// Writes three times the flash; metadata in percent of record bytes once every put needs another
/// object's place.
fn metadata_percent(index_memory: Option<u64>) -> f64 {
    let mut world = World::sized(FLASH, SEGMENT, MEMORY, JOURNAL);
    // A shard's lines go in blocks, which would be mostly empty in a 32nd of a shard.
    (world.config.index_memory, world.config.shards) = (index_memory, 1);
    let mut life = world.open_as_configured().expect("opens");
    let full = FLASH / OBJECT;
    (0..full).for_each(|n| put(&mut world, &mut life, n));
    let before = life.core.stats().totals;
    (full..3 * full).for_each(|n| put(&mut world, &mut life, n));
    let after = life.core.stats().totals;
    let (records, journal) = (after.record_bytes - before.record_bytes, 2 * full * ENTRY);
    let checkpoints = after.checkpoints - before.checkpoints;
    assert!(checkpoints >= 1 && records > FLASH, "{after:?}");
    let percent = |bytes: u64| bytes as f64 * 100.0 / records as f64;
    let metadata = after.metadata_bytes - before.metadata_bytes;
    println!(
        "index {index_memory:?}: {:.2} % footers and {checkpoints} checkpoints, {:.2} % journal",
        percent(metadata),
        percent(journal)
    );
    percent(metadata + journal)
}

#[test]
fn metadata_is_a_small_part_of_what_is_written() {
    // The default, and an index with room for just such objects.
    for index_memory in [None, Some(FLASH / 400)] {
        let percent = metadata_percent(index_memory);
        assert!(percent <= MOST, "{percent:.2} % with {index_memory:?} of index");
    }
}
