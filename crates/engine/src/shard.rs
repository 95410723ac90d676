//! A shard: the part of the key space whose changes go through one mutex.

use std::sync::Arc;

use crate::sync::{Mutex, MutexGuard};

use crate::index::{Index, IndexWriter, Location};
use crate::kill_map::KillMap;
use crate::prefetch::prefetch_bytes;
use crate::segment::{SegmentState, SegmentTable};
use crate::tier::{DramEntry, DramTier, Evicted, FrequencySketch, PolicyTrial};

/// What a shard's mutex guards.
pub struct Shard {
    /// The index of its keys.
    pub index: IndexWriter,
    /// Objects in DRAM.
    pub dram: DramTier,
    /// How often keys were asked for or put lately.
    pub sketch: FrequencySketch,
    pub trial: PolicyTrial,
    /// While the index loads: the lowest version of a hash that may still be believed. Slots loaded
    /// from a checkpoint can be older than what the journal or this process knows.
    ///
    /// The sweep reads it without the mutex, once nothing is added any more.
    pub kills: Option<Arc<KillMap>>,
    /// Whether changes still add to `kills`: until the last index line is loaded.
    pub collecting: bool,
    /// Scratch for objects the DRAM tier evicts.
    pub victims: Evicted,
    /// Where segments are and what state they are in.
    pub table: Arc<SegmentTable>,
}

/// A shard: lookups go to `index` without the mutex.
#[repr(align(128))]
pub struct ShardSlot {
    /// Lock-free lookups.
    pub index: Arc<Index>,
    state: Mutex<Shard>,
}

impl ShardSlot {
    /// A shard without objects: `dram` bytes of DRAM tier, a sketch for `sketch` objects.
    pub fn new(index: IndexWriter, dram: usize, sketch: usize, table: Arc<SegmentTable>) -> Self {
        let reader = index.reader();
        let (dram, sketch) = (DramTier::new(dram), FrequencySketch::new(sketch));
        let state = Shard {
            index,
            dram,
            sketch,
            trial: PolicyTrial::new(),
            kills: None,
            collecting: false,
            victims: Evicted::default(),
            table,
        };
        Self { index: reader, state: Mutex::new(state) }
    }

    /// Takes the mutex to look at or change an object, whose places are asked for together.
    pub fn lock_for(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.index.prefetch(hash);
        self.lock_prefetched(hash)
    }

    /// The same for an object whose index lines have been asked for.
    pub fn lock_prefetched(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = self.state.lock();
        shard.dram.prefetch(hash);
        shard.sketch.prefetch(hash);
        shard.trial.prefetch(hash);
        shard
    }

    /// Takes the mutex to promote what was read from flash. The request is counted already, and the
    /// index lines have been asked for.
    pub fn lock_for_copy(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = self.state.lock();
        shard.dram.prefetch(hash);
        shard.dram.prefetch_return(hash);
        shard.trial.prefetch(hash);
        shard
    }

    /// Takes the mutex.
    pub fn lock(&self) -> MutexGuard<'_, Shard> {
        self.state.lock()
    }
}

impl Shard {
    /// Counts a request for an object. Returns its popularity with it.
    pub fn count_request(&mut self, hash: u64) -> u8 {
        let popularity = self.sketch.add(hash);
        self.trial.request(&mut self.dram, hash);
        popularity
    }

    /// Has objects compete for the DRAM tier, which is too small here to try it out.
    #[cfg(test)]
    pub fn hold_contest(&mut self) {
        self.trial.hold_contest(&mut self.dram);
    }

    /// Asks for what copying an object to flash will look at.
    pub fn prefetch_copy(&self, entry: &DramEntry) {
        self.index.prefetch(entry.hash);
        self.dram.prefetch(entry.hash);
        self.sketch.prefetch(entry.hash);
        prefetch_bytes(&entry.data);
    }

    /// Clears whatever the index holds under `hash`, because `version` is newer.
    pub fn clear_older(&mut self, hash: u64, version: u64) {
        if let Some(slot) = self.index.remove(hash) {
            self.table.slot_removed(slot.location().segment);
        }
        if self.collecting && self.kills.is_some() {
            self.distrust_below(hash, version);
        }
    }

    /// Opening: slots of `hash` that come from the checkpoint must not be believed below `version`.
    /// False when it is itself below what is known.
    pub fn distrust_below(&mut self, hash: u64, version: u64) -> bool {
        let kills = Arc::get_mut(self.kills.get_or_insert_default());
        kills.expect("the sweep reads a map that does not grow").raise(hash, version)
    }

    /// Opening: whether it is known already that slots of `hash` must not be believed below
    /// `version`, or below more.
    pub fn knows_of(&self, hash: u64, version: u64) -> bool {
        self.known_kill(hash).is_some_and(|kill| version <= kill)
    }

    /// Clears the slot of `hash` if it points at `location`.
    pub fn clear_if(&mut self, hash: u64, location: Location) -> bool {
        let cleared = self.index.remove_if(hash, location);
        if cleared {
            self.table.slot_removed(location.segment);
        }
        cleared
    }

    /// Whether the slot of `hash` points at `location`.
    pub fn is_at(&self, hash: u64, location: Location) -> bool {
        self.index.peek(hash).is_some_and(|slot| slot.location() == location)
    }

    /// Whether flash has a copy: see [`is_copied`].
    pub fn is_copied(&self, hash: u64, location: Location) -> bool {
        is_copied(&self.index, &self.table, hash, location)
    }

    /// The same, and the segment is not about to be given up.
    pub fn is_copied_to_stay(&self, hash: u64, location: Location) -> bool {
        self.is_copied(hash, location)
            && self.table.state(location.segment) != SegmentState::Reclaiming
    }

    /// Whether a copy of `hash` with this version is known to be superseded.
    pub fn is_superseded(&self, hash: u64, version: u64) -> bool {
        self.known_kill(hash).is_some_and(|kill| version < kill)
    }

    /// The version below which nothing of `hash` is believed, while the index loads.
    fn known_kill(&self, hash: u64) -> Option<u64> {
        self.kills.as_ref()?.get(hash)
    }
}

/// Whether flash has a copy of `hash` at `location`, or will have one. The index points there, and
/// the segment has neither failed to be written nor been given up.
pub fn is_copied(index: &IndexWriter, table: &SegmentTable, hash: u64, location: Location) -> bool {
    let gone = [SegmentState::Retired, SegmentState::Free, SegmentState::Checkpoint];
    index.peek(hash).is_some_and(|slot| slot.location() == location)
        && !gone.contains(&table.state(location.segment))
}
