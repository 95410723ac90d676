//! Lets the index grow where objects turn out to be small.
//!
//! A shard's index adds lines by itself when it is full, up to what it is allowed. This task allows
//! more before that is used up, in this order:
//!
//! 1. Segments for the checkpoints of so large an index ([`CheckpointAreas::make_room`]).
//! 2. The DRAM tier gives up the memory, and evicts what no longer fits.
//! 3. The index may grow.
//!
//! So neither the memory's budget is exceeded nor a checkpoint without its place. Without free
//! segments, or where half of the DRAM tier's memory is given, the index stays as it is. Then the
//! least used slots are evicted, and counted.
//!
//! [`CheckpointAreas::make_room`]: crate::checkpoint_areas::CheckpointAreas::make_room

use super::Background;
use crate::core::Core;
use crate::device::DeviceId;
use crate::format::footer_entries::FooterEntry;
use crate::format::journal::Event;
use crate::heap;
use crate::index::{LINE_BYTES, SLOTS_PER_LINE};
use crate::shard::ShardSlot;

/// More lines are allowed when so many slots of those allowed are taken, in percent. The index
/// itself grows at 90.
const SOON_FULL: usize = 85;
/// Most bytes of a DRAM tier given up at once: as long as its shard's lock is held.
const MOST: usize = 64 << 10;
/// Of so many base lines one is allowed at a time.
const SHARE: usize = 16;

impl Background {
    pub(super) fn step_growth(&mut self) {
        if !self.close.is_sealing() {
            for shard in 0..self.core.shards.len() {
                self.allow_some(shard, 0);
            }
        }
    }

    /// Lets a shard's index grow for so many slots that are about to be loaded.
    pub(super) fn grow_for(&mut self, shard: usize, slots: usize) {
        while self.allow_some(shard, slots) {}
    }

    /// Lets indexes grow for records that are about to be loaded.
    pub(super) fn grow_for_records(&mut self, entries: &[FooterEntry]) {
        let mut slots = vec![0; self.core.shards.len()];
        let mask = slots.len() - 1;
        entries.iter().for_each(|entry| slots[entry.hash as usize & mask] += 1);
        for (shard, slots) in slots.into_iter().enumerate() {
            self.grow_for(shard, slots);
        }
    }

    /// Allows a shard's index some lines more if `coming` slots more make it soon full. Says
    /// whether it did.
    fn allow_some(&mut self, shard: usize, coming: usize) -> bool {
        let core = self.core.clone();
        let slot = &core.shards[shard];
        let Some((allowed, more)) = wants(slot, coming) else { return false };
        // What leaves the DRAM tier must be written.
        if core.must_wait_for_queue() {
            return false;
        }
        let has_room = self.make_room_for_checkpoints((allowed + more) as u64);
        if has_room {
            core.give_to_index(slot, more);
            self.given_up += more * LINE_BYTES;
        }
        if self.given_up >= self.give_back {
            self.given_up = 0;
            heap::give_back();
        }
        has_room
    }
}

impl Background {
    /// Takes segments for checkpoints of so many lines a shard. Says whether these have their
    /// place.
    pub(super) fn make_room_for_checkpoints(&mut self, lines: u64) -> bool {
        let (core, devices) = (&self.core, &self.devices);
        let answers = |device: DeviceId| !devices[usize::from(device.0)].silent;
        let take = |device: DeviceId| take_for_checkpoint(core, device);
        // As many as reclaim keeps free, so that growth takes none that writes wait for.
        let (shards, leave) = (core.shards.len() as u32, core.admission.free_target);
        self.checkpoint.areas.make_room(&core.table, (shards, lines), leave, answers, take)
    }
}

/// Takes a free segment of a device for blocks of checkpoints.
pub(super) fn take_for_checkpoint(core: &Core, device: DeviceId) -> Option<u32> {
    let generation = core.take_version();
    let segment = core.table.take_for_checkpoint(device, generation)?;
    // An older checkpoint knows the segment in its last use. Its footer may be whole still when
    // blocks have been written over its records.
    core.journal.append(Event::Open { segment }, generation);
    Some(segment)
}

/// How many lines a shard's index is allowed, and how many more it should be with `coming` slots
/// more.
fn wants(slot: &ShardSlot, coming: usize) -> Option<(usize, usize)> {
    let index = &slot.index;
    let slots = index.len() + coming;
    let is_soon_full = |lines: usize| slots * 100 >= lines * SLOTS_PER_LINE * SOON_FULL;
    // Without the lock: what is allowed is no less than there is.
    if index.lines() == index.most_lines() || !is_soon_full(index.lines()) {
        return None;
    }
    let shard = slot.lock();
    let allowed = shard.index.allowed();
    let more = (index.base_lines() / SHARE).clamp(1, MOST / LINE_BYTES);
    let more = more.min(index.most_lines() - allowed);
    // The index has no more of it than the DRAM tier, which somebody may have made smaller.
    let given = shard.index.grown_bytes() + more * LINE_BYTES;
    let has_memory = shard.dram.budget() >= given + more * LINE_BYTES;
    (more > 0 && has_memory && is_soon_full(allowed)).then_some((allowed, more))
}
