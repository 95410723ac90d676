//! Statistics of an open cache, gathered from the parts that count them.

use crate::core::Core;
use crate::segment::SegmentState;
use crate::stats::Stats;
use crate::sync::atomic::Ordering;

impl Core {
    /// Everything counted so far.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            totals: self.totals.snapshot(),
            segment_size: self.table.segment_size().into(),
            segment_table_bytes: self.table.bytes() as u64,
            segments_free: self.table.free_count().into(),
            segments: u64::from(self.table.len())
                - self.table.in_state(SegmentState::Retired).count() as u64,
            chunks_waiting: self.streams.outstanding().into(),
            journal_bytes: self.journal.appended_bytes(),
            journal_used: self.journal.used(),
            journal_capacity: self.journal.entries(),
            journal_poisoned: self.journal.is_poisoned(),
            clock_behind: self.time.behind(),
            loading: self.progress.loading.load(Ordering::Acquire),
            checkpointing: self.progress.checkpointing.load(Ordering::Relaxed),
            load_parts: self.progress.load_parts.load(Ordering::Relaxed),
            load_parts_done: self.progress.load_parts_done.load(Ordering::Relaxed),
            ..Stats::default()
        };
        let (mut oldest, mut entered) = (u64::MAX, u64::MAX);
        for slot in &self.shards {
            stats.index_slots += slot.index.slots() as u64;
            stats.index_slots_used += slot.index.len() as u64;
            stats.index_bytes += slot.index.lines() as u64 * 64;
            let shard = slot.lock();
            stats.dram_objects += shard.dram.len() as u64;
            stats.dram_bytes += shard.dram.bytes() as u64;
            stats.dram_capacity += shard.dram.budget() as u64;
            stats.unsaved_bytes += shard.dram.dirty_bytes() as u64;
            oldest = oldest.min(shard.dram.dirty_since().unwrap_or(u64::MAX));
            entered = entered.min(shard.dram.oldest_since().unwrap_or(u64::MAX));
        }
        // After the shards: what leaves them meanwhile is still counted here.
        stats.unsaved_bytes += self.streams.unwritten_bytes();
        oldest = oldest.min(self.streams.unwritten_since().unwrap_or(u64::MAX));
        // With nothing to wait for the oldest is younger than now.
        stats.unsaved_ms = self.time.millis().saturating_sub(oldest);
        stats.dram_oldest_ms = self.time.millis().saturating_sub(entered);
        let namespaces = self.namespaces.list.read();
        stats.namespaces = namespaces.iter().map(|ns| ns.counters.snapshot(&ns.name)).collect();
        stats
    }
}
