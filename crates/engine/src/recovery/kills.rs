//! Kill versions: from the journal's entries to a map for each shard.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::thread;

use crate::journal::Scan;
use crate::shard::ShardSlot;

/// By hash: lower versions are dead, wherever they are.
pub type KillMap = HashMap<u64, u64, BuildHasherDefault<Spread>>;

/// Entries from which on it is worth starting threads.
const MANY: usize = 1 << 16;

/// Hashes are random already, but all those of a shard have their lowest bits in common, which is where a map looks.
#[derive(Debug, Default, Clone, Copy)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are keys");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// How many threads may work on that many entries.
pub fn threads_for(entries: usize) -> usize {
    if entries < MANY {
        return 1;
    }
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

/// Gives each shard the map of its hashes.
pub fn distribute(scan: &Scan, shards: &[ShardSlot]) {
    let threads = threads_for(scan.kills().count()).min(shards.len());
    let fill_from =
        |first| (first..shards.len()).step_by(threads).for_each(|shard| fill(scan, shards, shard));
    thread::scope(|scope| {
        for first in 1..threads {
            scope.spawn(move || fill_from(first));
        }
        fill_from(0);
    });
}

/// One shard after the other: a map of all hashes would be far larger than a processor's caches.
fn fill(scan: &Scan, shards: &[ShardSlot], shard: usize) {
    let count = scan.kills_of(shard, shards.len()).count();
    let mut map = KillMap::with_capacity_and_hasher(count, BuildHasherDefault::default());
    for kill in scan.kills_of(shard, shards.len()) {
        let version = map.entry(kill.hash).or_default();
        *version = (*version).max(kill.version);
    }
    shards[shard].lock().kills = Some(map);
}
