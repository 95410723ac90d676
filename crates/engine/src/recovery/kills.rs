//! Kill versions: from the journal's entries to a map for each shard.

use std::hash::BuildHasherDefault;
use std::thread;

use crate::journal::{Scan, threads_for};
use crate::kill_map::KillMap;
use crate::shard::ShardSlot;

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
