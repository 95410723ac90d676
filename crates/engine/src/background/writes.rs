//! Copies of dirty objects to flash, and the writes of chunks and footers.

use std::io;

use super::state::{TRY_AGAIN, tell_time};
use super::{Background, Purpose};
use crate::api::RefuseReason;
use crate::device::{Io, IoKind, WriteBuf};
use crate::geometry::FEW_IN_FLIGHT;
use crate::segment::{SegmentState, WriteJob};
use crate::shard::Shard;
use crate::sync::atomic::Ordering;
use crate::tier::{DramEntry, DramObject};

/// Age at which a dirty object is copied, in milliseconds, counted from the first change that flash
/// does not have. An object that changes all the time is copied once in this time, and at most
/// once.
const COPY_AFTER: u64 = 4_000;
/// Age at which an open chunk is written although it is not full.
const FLUSH_AFTER: u64 = 3_000;
/// How often the DRAM tier is told the time, by which it knows the age of dirty objects.
const TELL_EVERY: u64 = 500;
/// Objects copied from a shard per turn at its lock, and bytes of them beyond the first.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 256 << 10;
/// Turns per shard and step.
const TURNS: usize = 64;
/// Writes in flight to a single device: few, so that reads go first. Several devices have
/// [`FEW_IN_FLIGHT`] each, so that one that does not answer holds little memory.
const WRITES_IN_FLIGHT: u32 = 4;
/// Longest time between two tries.
const MAX_TRY_AGAIN: u64 = 3_600_000;

impl Background {
    /// Copies what has waited long enough, and closes chunks that have.
    pub(super) fn step_copies(&mut self, now: u64) {
        if now >= self.told + TELL_EVERY {
            self.told = now;
            tell_time(&self.core, now);
        }
        if !self.close.is_copying()
            && let Some(by) = now.checked_sub(COPY_AFTER)
        {
            self.copy_dirty(by, false);
        }
        self.core.streams.flush(now.saturating_sub(FLUSH_AFTER), false);
        self.try_retired(now);
    }

    /// Copies objects that were dirty by then to flash, within a bound ahead of the device. Returns
    /// whether some are left for the next step, which begins where this one ends.
    pub(super) fn copy_dirty(&mut self, by: u64, forced: bool) -> bool {
        let (mut left, first, shards) = (false, self.copy_next, self.core.shards.len());
        for at in (first..shards).chain(0..first) {
            if self.is_ahead() {
                self.copy_next = at;
                return true;
            }
            left |= self.copy_shard(at, by, forced);
        }
        left
    }

    /// Whether nothing has been written to some device since a write there failed.
    #[cfg(test)]
    pub(crate) fn is_pausing(&self) -> bool {
        self.devices.iter().any(|device| device.pause > 0 || device.silent)
    }

    /// Whether enough waits for the device. While writing fails a chunk at a time shows whether it
    /// still does: each may cost a segment.
    fn is_ahead(&self) -> bool {
        let streams = &self.core.streams;
        let all_fail = self.devices.iter().all(|device| device.pause > 0 || device.silent);
        streams.is_ahead() || (all_fail && streams.outstanding() > 0)
    }

    fn copy_shard(&self, at: usize, by: u64, forced: bool) -> bool {
        for _ in 0..TURNS {
            let mut shard = self.core.shards[at].lock();
            let batch = batch(shard.dram.dirty_by(by));
            if batch.is_empty() {
                return false;
            }
            // A refusal by the device side ends the shard's turn: the object is the oldest next
            // time too.
            if !self.copy_batch(&mut shard, &batch, forced) {
                return true;
            }
        }
        true
    }

    /// Copies objects of a shard until the device side refuses one or is far enough behind. Each
    /// was put a while ago and is in no cache: it is asked for while the one before is copied.
    fn copy_batch(&self, shard: &mut Shard, batch: &[DramEntry], forced: bool) -> bool {
        let mut ahead = batch.iter().skip(1);
        batch.iter().all(|entry| {
            if let Some(next) = ahead.next() {
                shard.prefetch_copy(next);
            }
            !self.is_ahead() && self.core.copy_out(shard, entry, forced)
        })
    }

    /// Gives a retired segment back once writing goes on: after an outage of the device none of
    /// them is bad.
    fn try_retired(&mut self, now: u64) {
        // Objects may still count as copied to one of them.
        let copied = self.regaining.is_running();
        if now < self.try_again_at || copied || self.close.is_running() {
            return;
        }
        let table = &self.core.table;
        let goes_on = |segment: &u32| {
            if table.is_missing(*segment) {
                return false;
            }
            let device = &self.devices[usize::from(table.place(*segment).device.0)];
            device.pause == 0 && !device.silent
        };
        // The longest retired has the lowest generation: all get their turn.
        let retired = table.in_state(SegmentState::Retired).filter(goes_on);
        let longest = retired.min_by_key(|&s| table.generation(s));
        self.give_back(longest);
        self.try_again_at = now + self.try_again;
    }

    /// The clean stop is about to copy, and has no time for one after the other. What is free is
    /// used before them.
    pub(super) fn try_all_retired(&self) {
        let table = &self.core.table;
        self.give_back(table.in_state(SegmentState::Retired).filter(|&s| !table.is_missing(s)));
    }

    fn give_back(&self, retired: impl IntoIterator<Item = u32>) {
        let (table, streams) = (&self.core.table, &self.core.streams);
        for segment in retired {
            if !streams.holds(segment) && table.try_again(segment) {
                self.core.totals.segments_tried_again.inc();
            }
        }
    }

    /// Hands queued chunks and footers to the devices, a bounded number at a time to each.
    pub(super) fn step_writes(&mut self, out: &mut Vec<Io>) {
        let most = if self.devices.len() > 1 { FEW_IN_FLIGHT } else { WRITES_IN_FLIGHT };
        loop {
            let table = self.core.table.clone();
            let takes = |segment| {
                let device = &self.devices[usize::from(table.place(segment).device.0)];
                device.writes < most && !device.silent
            };
            let Some(job) = self.core.streams.next_job_of(takes) else { return };
            let place = table.place(job.segment);
            self.devices[usize::from(place.device.0)].writes += 1;
            let (offset, data) =
                (place.offset + u64::from(job.start), WriteBuf::from(job.data.clone()));
            self.submit(out, Purpose::Write(job), place.device, offset, IoKind::Write { data });
        }
    }

    pub(super) fn written(&mut self, job: &WriteJob, result: io::Result<()>) {
        let (core, failed) = (self.core.clone(), result.is_err());
        let (device, now) = (core.table.place(job.segment).device, core.time.millis());
        self.devices[usize::from(device.0)].writes -= 1;
        if let Err(error) = result {
            core.totals.write_errors.inc();
            self.retire(job.segment, &error);
            self.devices[usize::from(device.0)].failed(now);
        } else {
            self.devices[usize::from(device.0)].succeeded();
        }
        self.tell_table(device, now);
        core.table.write_done(job.segment);
        core.streams.job_done(job);
        self.acknowledge(job, failed);
    }

    /// Takes a segment out of use that cannot be written, if it is not yet.
    pub(super) fn retire(&mut self, segment: u32, error: &io::Error) {
        let core = self.core.clone();
        // Before its copies count as lost: a read must not evict what only DRAM has.
        core.progress.regaining.store(true, Ordering::Release);
        if !core.table.retire(segment) {
            return self.note_regaining();
        }
        // What is written there and not flushed yet never lasts: the segment may be used again.
        core.give_up(self.flushes.take_those_in(segment), RefuseReason::Device);
        let device = &mut self.devices[usize::from(core.table.place(segment).device.0)];
        // One that fails alone, not in an outage, is a bad place.
        self.try_again = if device.pause == 0 && !device.silent {
            (self.try_again * 2).min(MAX_TRY_AGAIN)
        } else {
            TRY_AGAIN
        };
        if !device.silent {
            device.lengthen_pause();
        }
        core.totals.segments_retired.inc();
        self.regaining.add(segment, core.table.live(segment).into());
        tracing::warn!(segment, %error, "writing failed: the segment is retired and tried again later");
    }
}

/// What is copied in one turn at a shard's lock: readers wait for no more than one large object.
fn batch<'a>(dirty: impl Iterator<Item = DramObject<'a>>) -> Vec<DramEntry> {
    let mut bytes = 0;
    let fits = |object: &DramObject<'_>| {
        bytes += object.len();
        bytes <= BATCH_BYTES || bytes == object.len()
    };
    dirty.take(BATCH).take_while(fits).map(|object| object.to_entry()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::EntryState;

    fn sizes(objects: &[usize]) -> Vec<usize> {
        let entry = |&len: &usize| DramEntry {
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
        batch(entries.iter().map(DramEntry::object)).iter().map(|entry| entry.data.len()).collect()
    }

    #[test]
    fn a_turn_copies_many_small_objects_or_one_large_one() {
        assert_eq!(sizes(&[100; 50]), [100; 32]);
        assert_eq!(sizes(&[4 << 20, 100]), [4 << 20]);
        assert_eq!(sizes(&[100, 4 << 20, 100]), [100]);
        assert_eq!(sizes(&[100 << 10; 5]), [100 << 10; 2]);
    }
}
