//! How the devices do: each has its own pause after a failed write, and one that does not answer is
//! left alone until it does.
//!
//! A device is *silent* when nothing it was asked for has come back for two seconds, while another
//! device could take its place. Then everything that waits for it goes on without it:
//!
//! - Segments that are being written there are retired, as if their writes had failed. What DRAM
//!   has of them is copied elsewhere. Their chunks count no longer as waiting, and a device has few
//!   of them in flight, so that the memory they hold is bounded.
//! - A reclaim of a segment there ends, and the segment is sealed as before.
//! - Loads, flushes and checkpoints go on as after an error.
//! - Lookups of what lies there are misses. Their slots stay.
//!
//! Lookups do not show it, for other threads wait for them. So a device that has nothing to do but
//! lookups is asked for a block each second.
//!
//! Nothing more is asked of it meanwhile ([`Background::submit`]). Buffers of what was in flight
//! belong to the disk until it hands them out. With the first that succeeds, or the last one, the
//! device is in use again.

use std::io;

use super::parts::reclaim::ReclaimIo;
use super::{Background, InFlight, Purpose};
use crate::device::{DeviceId, Io, IoKind};
use crate::format::BLOCK;
use crate::segment::{SegmentState, WriteJob};

impl Background {
    /// Looks how each device does.
    pub(super) fn step_devices(&mut self, now: u64, out: &mut Vec<Io>) {
        let closing = self.close.is_running();
        for n in 0..self.devices.len() {
            let device = DeviceId(n as u16);
            self.devices[n].look(now, self.core.table.reads(device));
            if !self.devices[n].silent && self.devices[n].is_overdue(closing) && self.has_other(n) {
                self.fall_silent(device);
            }
            if self.devices[n].silent {
                self.give_up_all_of(device);
            } else if self.has_other(n)
                && self.devices[n].is_to_be_probed(now)
                && self.core.table.take_looked_up(device)
            {
                // Lookups are sent by other threads, which wait.
                coverage_mark!(Probed);
                self.submit(out, Purpose::Probe, device, 0, IoKind::Read { len: BLOCK });
            }
            self.tell_table(device, now);
        }
    }

    /// Whether a step may give up what a device has not written.
    #[cfg(test)]
    pub(crate) fn may_give_up(&self) -> bool {
        let closing = self.close.is_running();
        self.devices.iter().any(|device| device.silent || device.is_nearly_overdue(closing))
    }

    /// Tells those who take segments how a device does.
    pub(super) fn tell_table(&self, device: DeviceId, now: u64) {
        let (table, work) = (&self.core.table, &self.devices[usize::from(device.0)]);
        if usize::from(device.0) < table.devices() {
            table.set_resting(device, work.is_resting(now));
            table.set_silent(device, work.silent);
            table.set_load(device, work.load());
        }
    }

    /// Whether another device answers.
    fn has_other(&self, n: usize) -> bool {
        let has_segments = |n: usize| self.core.table.has_segments_on(DeviceId(n as u16));
        let others = self.devices.iter().enumerate().filter(|(other, _)| *other != n);
        others.into_iter().any(|(other, work)| !work.silent && has_segments(other))
    }

    /// A device's I/O came back. An error while others are still in flight says no more than that
    /// it does not answer.
    pub(super) fn answered(&mut self, device: DeviceId, sync: bool, failed: bool) {
        let now = self.core.time.millis();
        let work = &mut self.devices[usize::from(device.0)];
        work.ended(sync);
        if (!failed || work.is_idle()) && std::mem::take(&mut work.silent) {
            tracing::warn!(path = %self.path(device), "the device answers again: it is in use again");
            self.tell_table(device, now);
        }
    }

    fn path(&self, device: DeviceId) -> std::path::Display<'_> {
        self.core.set.infos()[usize::from(device.0)].path.display()
    }

    fn fall_silent(&mut self, device: DeviceId) {
        coverage_mark!(DeviceSilent);
        tracing::warn!(
            path = %self.path(device),
            "the device does not answer: what it holds is a miss until it does, the others go on"
        );
        self.devices[usize::from(device.0)].silent = true;
        self.core.totals.devices_silent.inc();
        // Before anything is given up: nothing new is to go there.
        self.tell_table(device, self.core.time.millis());
    }

    /// Gives up what waits for a device that does not answer.
    ///
    /// At each step, not only when it falls silent. Streams are filled by other threads: one of
    /// them may have taken a segment there just before it was told. And tasks that begin an I/O do
    /// not all ask how its device does: a flush of what was written there does not.
    fn give_up_all_of(&mut self, device: DeviceId) {
        let table = self.core.table.clone();
        let written = [SegmentState::Open, SegmentState::Sealing];
        for segment in 0..table.len() {
            // What recovery has not read yet is nobody's to give up.
            let unread = || self.load.as_ref().is_some_and(|load| load.is_unread(segment));
            if table.place(segment).device == device
                && written.contains(&table.state(segment))
                && !unread()
            {
                self.retire(segment, &io::ErrorKind::TimedOut.into());
            }
        }
        let mut waiting: Vec<u64> = self
            .in_flight
            .iter()
            .filter(|(_, io)| io.device == device && !io.purpose.is_given_up())
            .map(|(&id, _)| id)
            .collect();
        waiting.sort_unstable();
        for id in waiting {
            let Some(io) = self.in_flight.remove(&id) else { continue };
            let purpose = self.go_on_without(io.purpose);
            self.in_flight.insert(id, InFlight { purpose, ..io });
        }
        self.give_up_writes_of(device);
    }

    /// Goes on as if an I/O had failed. What is left of it for when it comes back.
    fn go_on_without(&mut self, purpose: Purpose) -> Purpose {
        let failed = || Err(io::ErrorKind::TimedOut.into());
        match purpose {
            Purpose::Write(job) => {
                self.retire(job.segment, &io::ErrorKind::TimedOut.into());
                self.give_up_job(&job);
                return Purpose::Given(job);
            }
            Purpose::Reclaim(part) => self.stop_reclaim(&part),
            Purpose::Load(part) => self.load_done(part, failed()),
            Purpose::Checkpoint(part) => {
                let at = part.written_to();
                if let Some(at) = at {
                    self.checkpoint.areas.late_write(at);
                }
                self.checkpoint_done(part, failed());
                return Purpose::Late(at);
            }
            Purpose::Flush => self.flush_done(&failed()),
            Purpose::Probe => {}
            late @ (Purpose::Given(_) | Purpose::Late(_)) => return late,
        }
        Purpose::Late(None)
    }

    /// Goes on without what this step would have started on devices that do not answer.
    pub(super) fn go_on_without_refused(&mut self) {
        for (device, purpose) in std::mem::take(&mut self.refused) {
            coverage_mark!(RefusedIo);
            let left = self.go_on_without(purpose);
            self.late_io_ended(device, left);
        }
    }

    /// An I/O is over that nobody waited for any more.
    pub(super) fn late_io_ended(&mut self, device: DeviceId, left: Purpose) {
        match left {
            Purpose::Given(job) => {
                self.devices[usize::from(device.0)].writes -= 1;
                self.core.table.write_done(job.segment);
                self.core.streams.recycle(job);
            }
            Purpose::Late(at) => self.checkpoint.late_write_ended(at),
            other => unreachable!("{other:?} is waited for"),
        }
    }

    /// The records of a chunk will not be read again: nobody waits for it any more.
    fn give_up_job(&mut self, job: &WriteJob) {
        self.core.streams.job_done(job);
        self.acknowledge(job, true);
    }

    /// Chunks of segments that were retired there, and that were not handed out.
    fn give_up_writes_of(&mut self, device: DeviceId) {
        let table = self.core.table.clone();
        let there = |segment| table.place(segment).device == device;
        // Recovery found them without a footer, which would be waited for.
        let torn =
            table.in_state(SegmentState::Sealed).filter(|&s| there(s) && table.is_pending(s));
        for segment in torn.collect::<Vec<_>>() {
            self.retire(segment, &io::ErrorKind::TimedOut.into());
        }
        while let Some(job) = self.core.streams.next_retired_job(there) {
            table.write_done(job.segment);
            self.give_up_job(&job);
        }
    }

    /// Ends the reclaim of a segment whose device does not answer. Its slots that were not looked
    /// at are as they were, and its records too.
    fn stop_reclaim(&mut self, _: &ReclaimIo) {
        let Some(reclaim) = self.reclaim.take() else { return };
        coverage_mark!(ReclaimStopped);
        self.core.table.stop_reclaim(reclaim.segment);
    }
}
