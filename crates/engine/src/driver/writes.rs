//! Copies of dirty objects to flash, and the writes of chunks and footers.

use std::io;

use super::{Driver, Purpose};
use crate::api::DropReason;
use crate::disk::{Io, IoKind, WriteBuf};
use crate::dram::Entry;
use crate::segment::{SegmentState, WriteJob};
use crate::shard::Shard;

/// The first time between two tries.
pub(super) const FIRST_TRY: u64 = TRY_AGAIN;
/// Age at which a dirty object is copied, in milliseconds.
const COPY_AFTER: u64 = 4_000;
/// Age at which an open chunk is written although it is not full.
const FLUSH_AFTER: u64 = 3_000;
/// Distance of age marks.
const MARK_EVERY: u64 = 500;
/// Objects copied from a shard per turn at its lock, and bytes of them beyond the first.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 256 << 10;
/// Turns per shard and step.
const TURNS: usize = 64;
/// Writes in flight: few, so that reads go first.
const WRITES_IN_FLIGHT: u32 = 4;
/// First pause after a failed write. It doubles as long as nothing but failures come: each costs a segment.
const PAUSE: u64 = 1_000;
/// Longest pause.
const MAX_PAUSE: u64 = 60_000;
/// Time between two tries of retired segments, one at a time, once writing goes on. It doubles with every segment that is
/// retired meanwhile, to an hour: a place that stays bad costs a write an hour.
const TRY_AGAIN: u64 = 10_000;
const MAX_TRY_AGAIN: u64 = 3_600_000;

impl Driver {
    /// Copies what has waited long enough, and closes chunks that have.
    pub(super) fn step_copies(&mut self, now: u64) {
        if self.marks.back().is_none_or(|&(at, _)| now >= at + MARK_EVERY) {
            self.marks.push_back((now, self.core.versions.peek()));
        }
        while let Some(&(at, version)) = self.marks.front() {
            if now < at + COPY_AFTER {
                break;
            }
            self.copy_below = version;
            self.marks.pop_front();
        }
        if !self.close.is_copying() {
            self.copy_dirty(self.copy_below, false);
        }
        self.core.streams.flush(now.saturating_sub(FLUSH_AFTER), false);
        self.try_retired(now);
    }

    /// Copies dirty objects below a version to flash, only so far ahead of the device; says whether some are left for the next step, which
    /// begins where this one ends.
    pub(super) fn copy_dirty(&mut self, below: u64, forced: bool) -> bool {
        let (mut left, first, shards) = (false, self.copy_next, self.core.shards.len());
        for at in (first..shards).chain(0..first) {
            if self.core.streams.is_ahead() {
                self.copy_next = at;
                return true;
            }
            left |= self.copy_shard(at, below, forced);
        }
        left
    }

    fn copy_shard(&self, at: usize, below: u64, forced: bool) -> bool {
        for _ in 0..TURNS {
            let mut shard = self.core.shards[at].lock();
            let batch = batch(shard.dram.oldest_dirty().take_while(|e| e.version < below));
            if batch.is_empty() {
                return false;
            }
            // A refusal by the device side ends the shard's turn: the object is the oldest next time too.
            if !self.copy_batch(&mut shard, &batch, forced) {
                return true;
            }
        }
        true
    }

    /// Copies objects of a shard until the device side refuses one or is far enough behind. Each was put a while ago and is in no cache:
    /// it is asked for while the one before is copied.
    fn copy_batch(&self, shard: &mut Shard, batch: &[Entry], forced: bool) -> bool {
        let mut ahead = batch.iter().skip(1);
        batch.iter().all(|entry| {
            if let Some(next) = ahead.next() {
                shard.prefetch_copy(next);
            }
            !self.core.streams.is_ahead() && self.core.copy_out(shard, entry, forced)
        })
    }

    /// Gives a retired segment back once writing goes on: after an outage of the device none of them is bad.
    fn try_retired(&mut self, now: u64) {
        if self.pause > 0 || now < self.try_again_at || self.close.is_running() {
            return;
        }
        let (table, streams) = (&self.core.table, &self.core.streams);
        // The longest retired has the lowest generation: all get their turn.
        let longest = table.in_state(SegmentState::Retired).min_by_key(|&s| table.generation(s));
        let again = longest.is_some_and(|s| !streams.holds(s) && table.try_again(s));
        if again {
            self.core.totals.segments_tried_again.inc();
        }
        self.try_again_at = now + self.try_again;
    }

    /// Hands queued chunks and footers to the device, a bounded number at a time.
    pub(super) fn step_writes(&mut self, out: &mut Vec<Io>) {
        while self.writes_in_flight < WRITES_IN_FLIGHT {
            let Some(job) = self.core.streams.next_job() else { return };
            self.writes_in_flight += 1;
            let place = self.core.table.place(job.segment);
            let (offset, data) = (place.offset + u64::from(job.start), WriteBuf::from(job.data.clone()));
            self.submit(out, Purpose::Write(job), place.device, offset, IoKind::Write { data });
        }
    }

    pub(super) fn written(&mut self, job: &WriteJob, result: io::Result<()>) {
        self.writes_in_flight -= 1;
        let (core, failed) = (self.core.clone(), result.is_err());
        if let Err(error) = result {
            core.totals.write_errors.inc();
            if core.table.retire(job.segment) {
                // One that fails alone, not in an outage, is a bad place.
                self.try_again =
                    if self.pause == 0 { (self.try_again * 2).min(MAX_TRY_AGAIN) } else { TRY_AGAIN };
                self.pause = (self.pause * 2).clamp(PAUSE, MAX_PAUSE);
                core.totals.segments_retired.inc();
                core.totals.dropped(DropReason::WriteFailed, core.table.live(job.segment).into());
                tracing::warn!(segment = job.segment, %error, "writing failed: the segment is retired, and tried again later");
            }
            core.streams.pause_until(core.clock.millis() + self.pause);
        } else {
            self.pause = 0;
        }
        core.table.write_done(job.segment);
        core.streams.job_done(job);
        self.acknowledge(job, failed);
    }
}

/// What is copied in one turn at a shard's lock: readers wait for no more than one large object.
fn batch<'a>(dirty: impl Iterator<Item = &'a Entry>) -> Vec<Entry> {
    let mut bytes = 0;
    let fits = |entry: &&Entry| {
        bytes += entry.data.len();
        bytes <= BATCH_BYTES || bytes == entry.data.len()
    };
    dirty.take(BATCH).take_while(fits).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dram::EntryState;

    fn sizes(objects: &[usize]) -> Vec<usize> {
        let entry = |&len: &usize| Entry {
            hash: 0,
            version: 0,
            data: vec![0; len].into(),
            key_len: 0,
            expiry: 0,
            group: 0,
            epoch_slot: 0,
            ns: 0,
            state: EntryState::Dirty,
        };
        let entries: Vec<_> = objects.iter().map(entry).collect();
        batch(entries.iter()).iter().map(|entry| entry.data.len()).collect()
    }

    #[test]
    fn a_turn_copies_many_small_objects_or_one_large_one() {
        assert_eq!(sizes(&[100; 50]), [100; BATCH]);
        assert_eq!(sizes(&[4 << 20, 100]), [4 << 20]);
        assert_eq!(sizes(&[100, 4 << 20, 100]), [100]);
        assert_eq!(sizes(&[100 << 10; 5]), [100 << 10; 2]);
    }
}
