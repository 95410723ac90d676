//! Kill versions: from the journal's entries to a map for each shard.

use std::sync::Arc;
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
    let mut map = KillMap::with_capacity(count);
    for kill in scan.kills_of(shard, shards.len()) {
        map.raise(kill.hash, kill.version);
    }
    shards[shard].lock().kills = Some(Arc::new(map));
}
