//! How a device does: what it has in flight, since when nothing came back, and for how long it
//! takes no new segments.

use crate::segment::FULL_LOAD;

/// First pause after a failed write. It doubles as long as nothing but failures come: each costs a
/// segment. A success cuts it down to this one.
pub(in crate::background) const PAUSE: u64 = 1_000;
/// Longest pause.
const MAX_PAUSE: u64 = 60_000;
/// A device is silent when reads or writes were in flight for so many milliseconds, and nothing
/// came back.
const SILENT_AFTER: u64 = 2_000;
/// The same where only flushes are: they may take long on a sound device.
const SYNC_SILENT_AFTER: u64 = 30_000;
/// The same during a clean stop, which is given up as a whole after ten seconds without an answer.
const SYNC_SILENT_AFTER_CLOSING: u64 = 5_000;
/// Of the time between two looks only so much counts. A thread that looks later was kept from
/// running. That says nothing about the device.
const LOOK: u64 = 100;
/// How often a device is asked for something that nothing else asks of it, in milliseconds.
const PROBE_EVERY: u64 = 1_000;
/// Milliseconds over which the load is averaged.
const MINUTE: u64 = 60_000;
/// The same for what it is right now.
const LATELY: u64 = 10_000;

/// I/Os of a kind in flight, and for how long nothing has come back.
#[derive(Debug, Default, Clone, Copy)]
struct InFlightOfKind {
    in_flight: u32,
    /// Milliseconds that count.
    waited: u64,
}

impl InFlightOfKind {
    fn started(&mut self) {
        if self.in_flight == 0 {
            self.waited = 0;
        }
        self.in_flight += 1;
    }

    fn is_overdue(self, limit: u64) -> bool {
        self.in_flight > 0 && self.waited >= limit
    }
}

/// A device, as the background work knows it.
#[derive(Debug, Default)]
pub(in crate::background) struct DeviceWork {
    /// Writes of chunks and footers in flight.
    pub(in crate::background) writes: u32,
    /// Reads and writes in flight.
    transfers: InFlightOfKind,
    /// Flushes in flight.
    syncs: InFlightOfKind,
    /// It does not answer.
    pub(in crate::background) silent: bool,
    /// Length of the latest pause after a failed write, in milliseconds; 0 once writing goes on.
    pub(in crate::background) pause: u64,
    /// When the latest write failed.
    failed_at: u64,
    /// Takes no new segments until then.
    paused_until: u64,
    /// Reads of lookups and writes in flight on an average of a minute, in thousandths.
    load: f64,
    /// The same of the last seconds.
    load_lately: f64,
    /// When it was last looked at.
    looked: u64,
    /// When it may be asked again for nothing but an answer.
    probe_at: u64,
}

impl DeviceWork {
    fn waiting(&mut self, sync: bool) -> &mut InFlightOfKind {
        if sync { &mut self.syncs } else { &mut self.transfers }
    }

    /// An I/O is started; a flush, or something else.
    pub(in crate::background) fn started(&mut self, sync: bool) {
        self.waiting(sync).started();
    }

    /// An I/O came back.
    pub(in crate::background) fn ended(&mut self, sync: bool) {
        self.waiting(sync).in_flight -= 1;
        (self.transfers.waited, self.syncs.waited) = (0, 0);
    }

    /// Whether it is to be asked now whether it answers: nothing else shows that.
    pub(in crate::background) fn is_to_be_probed(&mut self, now: u64) -> bool {
        let is_due = self.is_idle() && now >= self.probe_at;
        if is_due {
            self.probe_at = now + PROBE_EVERY;
        }
        is_due
    }

    /// Whether nothing is in flight.
    pub(in crate::background) fn is_idle(&self) -> bool {
        self.transfers.in_flight + self.syncs.in_flight == 0
    }

    /// Takes note of the time, at each step, and of the reads that lookups have in flight.
    pub(in crate::background) fn look(&mut self, now: u64, reads: u32) {
        let passed = now.saturating_sub(self.looked);
        self.transfers.waited += passed.min(LOOK);
        self.syncs.waited += passed.min(LOOK);
        let in_flight = f64::from(self.writes + reads) * f64::from(FULL_LOAD);
        let share = |time: u64| passed.min(time) as f64 / time as f64;
        self.load += (in_flight - self.load) * share(MINUTE);
        self.load_lately += (in_flight - self.load_lately) * share(LATELY);
        self.looked = now;
    }

    /// Reads of lookups and writes in flight on an average of the last minute, in thousandths.
    pub(in crate::background) fn load(&self) -> u32 {
        self.load as u32
    }

    /// The same on an average of the last ten seconds.
    pub(in crate::background) fn load_lately(&self) -> u32 {
        self.load_lately as u32
    }

    /// Whether nothing has come back for too long.
    pub(in crate::background) fn is_overdue(&self, closing: bool) -> bool {
        self.is_overdue_in(0, closing)
    }

    fn is_overdue_in(&self, ms: u64, closing: bool) -> bool {
        let sync = if closing { SYNC_SILENT_AFTER_CLOSING } else { SYNC_SILENT_AFTER };
        self.transfers.is_overdue(SILENT_AFTER - ms) || self.syncs.is_overdue(sync - ms)
    }

    /// Whether it may be overdue at the next step.
    #[cfg(test)]
    pub(in crate::background) fn is_nearly_overdue(&self, closing: bool) -> bool {
        self.is_overdue_in(LOOK, closing)
    }

    /// A write has failed that costs a segment.
    pub(in crate::background) fn lengthen_pause(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSE, MAX_PAUSE);
    }

    /// A write has failed.
    pub(in crate::background) fn failed(&mut self, now: u64) {
        self.failed_at = now;
        self.paused_until = now + self.pause;
    }

    /// A write has succeeded: only the first pause behind the latest failure is left of a long one.
    pub(in crate::background) fn succeeded(&mut self) {
        if std::mem::take(&mut self.pause) > 0 {
            self.paused_until = self.failed_at + PAUSE;
        }
    }

    /// It may have recovered long before the pause is over.
    pub(in crate::background) fn end_pause(&mut self, now: u64) {
        (self.pause, self.paused_until) = (0, now);
    }

    /// Whether it takes no new segments.
    pub(in crate::background) fn is_resting(&self, now: u64) -> bool {
        self.silent || now < self.paused_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a device every 50 ms; what the last look says.
    fn look(device: &mut DeviceWork, from: u64, to: u64) -> bool {
        (from..=to).step_by(50).for_each(|now| device.look(now, 0));
        device.is_overdue(false)
    }

    #[test]
    fn a_device_is_silent_after_two_seconds_without_an_answer_and_not_before() {
        let mut device = DeviceWork::default();
        device.look(100, 0);
        device.started(false);
        assert!(!look(&mut device, 100, 2_050));
        assert!(look(&mut device, 2_100, 2_100));
        device.started(false);
        device.ended(false);
        assert!(!look(&mut device, 2_150, 4_050), "another came back");
        assert!(look(&mut device, 4_100, 4_150));
        device.ended(false);
        assert!(!look(&mut device, 4_200, 60_000), "nothing is asked of it");
    }

    #[test]
    fn a_flush_may_take_long_and_covers_up_no_read_that_is_not_answered() {
        let mut device = DeviceWork::default();
        device.look(100, 0);
        device.started(true);
        assert!(!look(&mut device, 100, 25_000), "a flush alone");
        assert!(device.is_overdue(true), "a stop has no time for it");
        device.started(false);
        assert!(!look(&mut device, 25_050, 26_950), "the read has just begun");
        assert!(look(&mut device, 27_000, 27_000), "the read is not answered");
        device.ended(false);
        assert!(!look(&mut device, 27_050, 56_950), "something came back");
        assert!(look(&mut device, 57_000, 57_050), "the flush does not end");
    }

    #[test]
    fn a_thread_that_was_kept_from_running_says_nothing_of_the_device() {
        let mut device = DeviceWork::default();
        device.look(100, 0);
        device.started(false);
        for now in [1_000, 2_500, 60_000] {
            device.look(now, 0);
        }
        assert!(!device.is_overdue(false), "it was looked at three times");
    }

    #[test]
    fn load_is_averaged_over_a_minute() {
        let mut device = DeviceWork { writes: 2, ..DeviceWork::default() };
        (0..=30_000).step_by(50).for_each(|now| device.look(now, 0));
        assert!((700..900).contains(&device.load()), "{}", device.load());
        (30_050..=300_000).step_by(50).for_each(|now| device.look(now, 0));
        assert!((1_900..=2_000).contains(&device.load()), "{}", device.load());
        (300_050..=310_000).step_by(50).for_each(|now| device.look(now, 6));
        assert!((2_800..3_200).contains(&device.load()), "reads count: {}", device.load());
        let lately = device.load_lately();
        assert!((5_500..6_500).contains(&lately), "of the last seconds: {lately}");
    }
}
