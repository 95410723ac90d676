//! Counters: one for every way an operation can end.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::{DropReason, MissReason, RefuseReason, Tier};

/// A counter that many threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds 1.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn all<const N: usize>(counters: &[Counter; N]) -> [u64; N] {
    std::array::from_fn(|i| counters[i].get())
}

/// Counters of a namespace.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) hits: [Counter; Tier::COUNT],
    pub(crate) misses: [Counter; MissReason::COUNT],
    pub(crate) stored: Counter,
    pub(crate) refused: [Counter; RefuseReason::COUNT],
    pub(crate) dropped: [Counter; DropReason::COUNT],
    pub(crate) removes: Counter,
    pub(crate) kills: Counter,
    pub(crate) group_overflows: Counter,
}

impl Counters {
    pub(crate) fn hit(&self, tier: Tier) {
        self.hits[tier as usize].inc();
    }

    pub(crate) fn miss(&self, reason: MissReason) {
        self.misses[reason as usize].inc();
    }

    pub(crate) fn refuse(&self, reason: RefuseReason) {
        self.refused[reason as usize].inc();
    }

    pub(crate) fn dropped(&self, reason: DropReason) {
        self.dropped[reason as usize].inc();
    }

    pub(crate) fn snapshot(&self, name: &str) -> NamespaceStats {
        NamespaceStats {
            name: name.to_owned(),
            hits: all(&self.hits),
            misses: all(&self.misses),
            stored: self.stored.get(),
            refused: all(&self.refused),
            dropped: all(&self.dropped),
            removes: self.removes.get(),
            kills: self.kills.get(),
            group_overflows: self.group_overflows.get(),
        }
    }
}

/// Counters of the whole cache.
#[derive(Debug, Default)]
pub struct EngineCounters {
    pub(crate) dropped: [Counter; DropReason::COUNT],
    pub(crate) record_bytes: Counter,
    pub(crate) reinserted_bytes: Counter,
    pub(crate) relocated_bytes: Counter,
    pub(crate) metadata_bytes: Counter,
    pub(crate) padding_bytes: Counter,
    pub(crate) device_reads: Counter,
    pub(crate) read_errors: Counter,
    pub(crate) write_errors: Counter,
    pub(crate) devices_silent: Counter,
    pub(crate) kill_log_bytes: Counter,
    pub(crate) compactions: Counter,
    pub(crate) compaction_failures: Counter,
    pub(crate) lost_kill_parts: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) checkpoint_failures: Counter,
    pub(crate) lost_index_blocks: Counter,
    pub(crate) segments_retired: Counter,
    pub(crate) segments_tried_again: Counter,
    pub(crate) segments_reclaimed: Counter,
    pub(crate) copies_lost: Counter,
    pub(crate) copies_refused: Counter,
    pub(crate) stale_slots: Counter,
}

impl EngineCounters {
    pub(crate) fn dropped(&self, reason: DropReason, n: u64) {
        self.dropped[reason as usize].add(n);
    }

    pub(crate) fn dropped_for(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize].get()
    }

    /// Bytes written to segments, checkpoints and the kill log, or about to be.
    pub(crate) fn written(&self) -> u64 {
        let devices =
            self.record_bytes.get() + self.metadata_bytes.get() + self.padding_bytes.get();
        devices + self.kill_log_bytes.get()
    }

    pub(crate) fn snapshot(&self) -> EngineTotals {
        EngineTotals {
            dropped: all(&self.dropped),
            record_bytes: self.record_bytes.get(),
            reinserted_bytes: self.reinserted_bytes.get(),
            relocated_bytes: self.relocated_bytes.get(),
            metadata_bytes: self.metadata_bytes.get(),
            padding_bytes: self.padding_bytes.get(),
            device_reads: self.device_reads.get(),
            read_errors: self.read_errors.get(),
            write_errors: self.write_errors.get(),
            devices_silent: self.devices_silent.get(),
            kill_log_bytes: self.kill_log_bytes.get(),
            compactions: self.compactions.get(),
            compaction_failures: self.compaction_failures.get(),
            lost_kill_parts: self.lost_kill_parts.get(),
            checkpoints: self.checkpoints.get(),
            checkpoint_failures: self.checkpoint_failures.get(),
            lost_index_blocks: self.lost_index_blocks.get(),
            segments_retired: self.segments_retired.get(),
            segments_tried_again: self.segments_tried_again.get(),
            segments_reclaimed: self.segments_reclaimed.get(),
            copies_lost: self.copies_lost.get(),
            copies_refused: self.copies_refused.get(),
            stale_slots: self.stale_slots.get(),
        }
    }
}

/// A namespace's counters at one moment, since opening.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceStats {
    /// Its name.
    pub name: String,
    /// Hits, in the order of [`Tier::ALL`].
    pub hits: [u64; Tier::COUNT],
    /// Misses, in the order of [`MissReason::ALL`].
    pub misses: [u64; MissReason::COUNT],
    /// Puts stored.
    pub stored: u64,
    /// Puts refused, in the order of [`RefuseReason::ALL`].
    pub refused: [u64; RefuseReason::COUNT],
    /// Objects dropped on their way out of the DRAM tier, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::COUNT],
    /// Removes of single objects.
    pub removes: u64,
    /// Removes of groups, bumps of partition epochs, clears.
    pub kills: u64,
    /// How often more groups had been removed than are remembered: the oldest objects were removed
    /// instead, whatever their group.
    pub group_overflows: u64,
}

impl NamespaceStats {
    /// Hits of one tier.
    #[must_use]
    pub fn hits_from(&self, tier: Tier) -> u64 {
        self.hits[tier as usize]
    }

    /// Misses for one reason.
    #[must_use]
    pub fn misses_for(&self, reason: MissReason) -> u64 {
        self.misses[reason as usize]
    }

    /// Lookups that have ended.
    #[must_use]
    pub fn lookups(&self) -> u64 {
        self.hits.iter().chain(&self.misses).sum()
    }
}

/// Counters of the whole cache at one moment, since opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EngineTotals {
    /// Copies on flash dropped, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::COUNT],
    /// Bytes of records written, reinserted ones included.
    pub record_bytes: u64,
    /// Bytes of records written again at reclaim, and of those moved to another device.
    pub reinserted_bytes: u64,
    /// Bytes of records moved from a device that had too much to do.
    pub relocated_bytes: u64,
    /// Bytes of headers, footers and checkpoints written.
    pub metadata_bytes: u64,
    /// Bytes written to fill blocks.
    pub padding_bytes: u64,
    /// Device reads for lookups.
    pub device_reads: u64,
    /// Device reads that failed.
    pub read_errors: u64,
    /// Device writes and flushes that failed.
    pub write_errors: u64,
    /// How often a device did not answer and was left alone until it did.
    pub devices_silent: u64,
    /// Bytes of the kill log written.
    pub kill_log_bytes: u64,
    /// How often a part of the journal went to the kill log.
    pub compactions: u64,
    /// How often that failed.
    pub compaction_failures: u64,
    /// Parts of the kill log that could not be read while the index was loaded: the objects of
    /// their shards were lost.
    pub lost_kill_parts: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Checkpoints given up.
    pub checkpoint_failures: u64,
    /// Blocks of the index found damaged while loading.
    pub lost_index_blocks: u64,
    /// Segments taken out of use because writing them failed.
    pub segments_retired: u64,
    /// Of these, given back to be tried again.
    pub segments_tried_again: u64,
    /// Segments reclaimed.
    pub segments_reclaimed: u64,
    /// Objects in DRAM whose copy on flash was reclaimed while there was no room for another, or it
    /// could not be read.
    pub copies_lost: u64,
    /// Copies of objects in DRAM that flash refused, by popularity or write budget: until they are
    /// evicted nothing is lost but by a crash.
    pub copies_refused: u64,
    /// Index slots cleared because their record was gone.
    pub stale_slots: u64,
}

/// Everything the cache counts, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Per namespace.
    pub namespaces: Vec<NamespaceStats>,
    /// Whole cache.
    pub totals: EngineTotals,
    /// Objects in the DRAM tier.
    pub dram_objects: u64,
    /// Bytes of the DRAM tier, overhead included.
    pub dram_bytes: u64,
    /// How long the object that has been longest on its queue of the DRAM tier is there, in
    /// milliseconds; 0 where there is none.
    pub dram_oldest_ms: u64,
    /// What the DRAM tier may grow to.
    pub dram_capacity: u64,
    /// Bytes of objects that a crash of the process would lose now: not yet copied, or copied but
    /// not yet written.
    pub unsaved_bytes: u64,
    /// How long the oldest of them has been only in DRAM, or in a chunk that is not yet written, in
    /// milliseconds.
    pub unsaved_ms: u64,
    /// Occupied slots of the index.
    pub index_slots_used: u64,
    /// All slots of the index.
    pub index_slots: u64,
    /// Bytes of memory of the index.
    pub index_bytes: u64,
    /// Bytes of memory of the segment table.
    pub segment_table_bytes: u64,
    /// Segments free to be written.
    pub segments_free: u64,
    /// Segments in the cache, without retired ones.
    pub segments: u64,
    /// Bytes per segment.
    pub segment_size: u64,
    /// Chunks waiting for the device.
    pub chunks_waiting: u64,
    /// Bytes of journal entries written since opening.
    pub journal_bytes: u64,
    /// Journal entries in use.
    pub journal_used: u64,
    /// Journal entries in all.
    pub journal_capacity: u64,
    /// The journal lost an entry that no checkpoint has covered yet.
    pub journal_poisoned: bool,
    /// Seconds that the wall clock is behind the cache's time, which is what decides about expiry.
    pub clock_behind: u64,
    /// The index is still loading after opening.
    pub loading: bool,
    /// A checkpoint is being written.
    pub checkpointing: bool,
    /// Segments and blocks of index lines to be loaded after opening.
    pub load_parts: u64,
    /// How many of them are loaded.
    pub load_parts_done: u64,
}
