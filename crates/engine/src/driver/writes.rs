//! Copies of dirty objects to flash, and the writes of chunks and footers.

use std::io;

use super::{Driver, Purpose};
use crate::api::DropReason;
use crate::disk::{Io, IoKind, WriteBuf};
use crate::segment::WriteJob;

/// Age at which a dirty object is copied, in milliseconds.
const COPY_AFTER: u64 = 4_000;
/// Age at which an open chunk is written although it is not full.
const FLUSH_AFTER: u64 = 3_000;
/// Distance of age marks.
const MARK_EVERY: u64 = 500;
/// Objects copied from a shard per turn at its lock.
const BATCH: usize = 32;
/// Turns per shard and step.
const TURNS: usize = 64;
/// Writes in flight: few, so that reads go first.
const WRITES_IN_FLIGHT: u32 = 4;
/// First pause after a failed write. It doubles as long as nothing but failures come: each costs a segment.
const PAUSE: u64 = 1_000;
/// Longest pause.
const MAX_PAUSE: u64 = 60_000;

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
    }

    /// Copies dirty objects below a version to flash; says whether some are left for the next step.
    pub(super) fn copy_dirty(&self, below: u64, forced: bool) -> bool {
        let mut left = false;
        for slot in &self.core.shards {
            for turn in 0..=TURNS {
                let mut shard = slot.lock();
                let batch: Vec<_> = shard
                    .dram
                    .oldest_dirty()
                    .take_while(|e| e.version < below)
                    .take(BATCH)
                    .cloned()
                    .collect();
                if batch.is_empty() {
                    break;
                }
                // A refusal by the device side ends the shard's turn: the object is the oldest next time too.
                if turn == TURNS || !batch.iter().all(|e| self.core.copy_out(&mut shard, e, forced)) {
                    left = true;
                    break;
                }
            }
        }
        left
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
                self.pause = (self.pause * 2).clamp(PAUSE, MAX_PAUSE);
                core.totals.segments_retired.inc();
                core.totals.dropped(DropReason::WriteFailed, core.table.live(job.segment).into());
                tracing::warn!(segment = job.segment, %error, "writing failed: the segment is retired until the next opening");
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
