//! Moves a record to another device when a lookup has read it.
//!
//! Its device has too much to do ([`crate::background`] decides that). The lookup has the record's
//! bytes and has checked them, so moving costs no read. And what is read most moves first.
//!
//! A crash finds the record at its old or its new place: the old one stays as it is until its
//! segment is reclaimed, which waits for all that was appended. Both have the same version, so each
//! removal or newer put kills both.

use crate::core::Core;
use crate::format::record::{self, Record};
use crate::index::{Location, Slot};
use crate::segment::{Object, StreamId};
use crate::shard::Shard;

impl Core {
    /// Writes a record again on the device that takes what is read most, and points its slot there.
    /// Returns where it is then, if it has moved. The caller holds the shard's lock, and has seen
    /// under it that the slot points at the record, in the use of its segment that was read.
    ///
    /// What was read before goes first: most objects are read once. And it moves only where that
    /// costs nobody else anything. That is asked here once more: the background work looks every
    /// tenth of a second, and the device that takes may have failed or filled since.
    pub(crate) fn relocate(
        &self,
        shard: &mut Shard,
        hash: u64,
        slot: Slot,
        found: &Record<'_>,
    ) -> Option<Location> {
        let at = slot.location();
        let to = self.table.relief_of(at.segment)?;
        let len = record::usual_padded(found.key.len(), found.value.len());
        // What is being reclaimed moves on anyway. What is in DRAM is clean for where it was read.
        let may = shard.is_copied_to_stay(hash, at)
            && shard.dram.peek_hash(hash).is_none()
            && self.table.takes_objects(to)
            && self.table.free_count() > self.admission.free_target + 1
            && !self.streams.is_ahead()
            && self.admission.has_budget_to_spare(|| self.written(), len)
            && self.table.take_relief(len.into(), slot.freq());
        if !may {
            coverage_mark!(RelocationRefused);
            return None;
        }
        let object = Object { hash, meta: found.meta, key: found.key, value: found.value };
        // A reclaim may have opened one elsewhere, before or while that device was not to be used.
        self.streams.seal_read_most_elsewhere(to);
        let moved = self.append(StreamId::Reinserted, &object, None).ok()?;
        coverage_mark!(Relocated);
        self.totals.relocated_bytes.add(moved.len.into());
        self.publish(shard, hash, moved);
        Some(moved.at)
    }
}
