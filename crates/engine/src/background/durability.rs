//! Acknowledges operations that wait for the device: for a record to be on flash, or for a flush.
//!
//! All operations that wait at one moment share one chunk. All whose record is written at one
//! moment share one flush. While a flush is under way, operations gather for the next.
//!
//! A segment may be given up between a record's write and the end of its flush. Its puts are
//! refused then. So at the end of a flush no put that waits for it is in a segment out of use.

use std::io;

use super::parts::flushes::Unflushed;
use super::{Background, Purpose};
use crate::api::RefuseReason;
use crate::device::{Io, IoKind, IoOutput};
use crate::segment::{SegmentState, WriteJob};

impl Background {
    pub(super) fn step_through(&mut self, now: u64, out: &mut Vec<Io>) {
        let core = self.core.clone();
        core.streams.close_awaited();
        let lost = core.streams.take_lost().into_iter();
        core.give_up(lost.chain(core.waiters.overdue(Some(now))), RefuseReason::Device);
        if self.flushes.in_flight > 0 {
            return;
        }
        let written = std::mem::take(&mut self.flushes.next);
        let removals = core.waiters.removals();
        if written.is_empty() && removals.is_empty() {
            return;
        }
        let mut devices: Vec<u16> =
            written.iter().map(|put| core.table.place(put.segment).device.0).collect();
        devices.sort_unstable();
        devices.dedup();
        (self.flushes.now, self.flushes.removals) = (written, removals);
        self.flushes.in_flight = devices.len() as u32;
        self.flushes.failed = false;
        for device in devices {
            self.submit(out, Purpose::Flush, crate::device::DeviceId(device), 0, IoKind::Sync);
        }
        if self.flushes.in_flight == 0 {
            self.flushed();
        }
    }

    /// A chunk's write is over; `lost` when its records cannot be read again.
    pub(super) fn acknowledge(&mut self, job: &WriteJob, failed: bool) {
        let lost = failed || self.core.table.state(job.segment) == SegmentState::Retired;
        if lost {
            return self.core.give_up(job.awaited.iter().copied(), RefuseReason::Device);
        }
        for &id in &job.awaited {
            if self.core.waiters.is_synced(id) {
                self.flushes.next.push(Unflushed { waiter: id, segment: job.segment });
            } else {
                self.core.complete(id);
            }
        }
    }

    pub(super) fn flush_done(&mut self, result: &io::Result<IoOutput>) {
        self.flushes.in_flight -= 1;
        if result.is_err() {
            self.core.totals.write_errors.inc();
            self.flushes.failed = true;
        }
        if self.flushes.in_flight == 0 {
            self.flushed();
        }
    }

    /// The devices have flushed (or not); the journal says what is alive and where, so it must last
    /// as long.
    fn flushed(&mut self) {
        let sound = self.core.sync_journal() && !self.flushes.failed;
        let puts = std::mem::take(&mut self.flushes.now).into_iter().map(|put| {
            let state = self.core.table.state(put.segment);
            assert!(state != SegmentState::Retired, "{put:?} waits and its segment is given up");
            put.waiter
        });
        let removals = std::mem::take(&mut self.flushes.removals);
        let all = puts.chain(removals);
        match sound {
            true => all.for_each(|id| self.core.complete(id)),
            false => self.core.give_up(all, RefuseReason::Device),
        }
    }

    /// Whether nobody waits for a flush.
    pub(super) fn has_flushed(&self) -> bool {
        self.flushes.in_flight == 0 && self.flushes.next.is_empty()
    }
}
