//! How a device does: what it has in flight, since when nothing came back, and for how long it
//! takes no new segments.

use crate::segment::FULL_LOAD;

/// First pause after a failed write. It doubles as long as nothing but failures come: each costs a
/// segment. A success cuts it down to this one.
pub(in crate::background) const PAUSE: u64 = 1_000;
/// Longest pause.
const MAX_PAUSE: u64 = 60_000;
/// A device is silent when it had I/Os in flight for so many milliseconds, and the background work
/// took so many steps meanwhile, and none came back. A thread that was kept from running has taken
/// fewer.
const SILENT_AFTER: u64 = 2_000;
const SILENT_STEPS: u32 = 20;
/// Milliseconds over which the load is averaged.
const MINUTE: u64 = 60_000;

/// A device, as the background work knows it.
#[derive(Debug, Default)]
pub(in crate::background) struct DeviceWork {
    /// Writes of chunks and footers in flight.
    pub(in crate::background) writes: u32,
    /// I/Os of any kind in flight.
    pub(in crate::background) in_flight: u32,
    /// It does not answer.
    pub(in crate::background) silent: bool,
    /// Length of the latest pause after a failed write, in milliseconds; 0 once writing goes on.
    pub(in crate::background) pause: u64,
    /// When the latest write failed.
    failed_at: u64,
    /// Takes no new segments until then.
    paused_until: u64,
    /// When an I/O came back last, or was started with none in flight; and steps since.
    moved_at: u64,
    steps: u32,
    /// Writes in flight on average, in thousandths, and when that was last reckoned.
    load: f64,
    reckoned: u64,
}

impl DeviceWork {
    /// An I/O is started.
    pub(in crate::background) fn started(&mut self, now: u64) {
        if self.in_flight == 0 {
            (self.moved_at, self.steps) = (now, 0);
        }
        self.in_flight += 1;
    }

    /// An I/O came back.
    pub(in crate::background) fn ended(&mut self, now: u64) {
        self.in_flight -= 1;
        (self.moved_at, self.steps) = (now, 0);
    }

    /// Takes note of the time, at each step.
    pub(in crate::background) fn look(&mut self, now: u64) {
        self.steps = self.steps.saturating_add(1);
        let passed = now.saturating_sub(self.reckoned).min(MINUTE);
        let share = passed as f64 / MINUTE as f64;
        self.load += (f64::from(self.writes * FULL_LOAD) - self.load) * share;
        self.reckoned = now;
    }

    /// Writes in flight on an average of the last minute, in thousandths.
    pub(in crate::background) fn load(&self) -> u32 {
        self.load as u32
    }

    /// Whether nothing has come back for too long.
    pub(in crate::background) fn is_overdue(&self, now: u64) -> bool {
        self.in_flight > 0
            && self.steps >= SILENT_STEPS
            && now.saturating_sub(self.moved_at) >= SILENT_AFTER
    }

    /// Whether it may be overdue at the next step.
    #[cfg(test)]
    pub(in crate::background) fn is_nearly_overdue(&self) -> bool {
        self.in_flight > 0 && self.steps + 1 >= SILENT_STEPS
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

    #[test]
    fn a_device_is_silent_after_two_seconds_without_an_answer_and_not_before() {
        let mut device = DeviceWork::default();
        device.started(100);
        let look = |device: &mut DeviceWork, from: u64, to: u64| {
            (from..=to).step_by(50).for_each(|now| device.look(now));
            device.is_overdue(to)
        };
        assert!(!look(&mut device, 100, 2_050));
        assert!(look(&mut device, 2_100, 2_100));
        device.started(2_100);
        device.ended(2_150);
        assert!(!look(&mut device, 2_150, 4_100), "another came back");
        assert!(look(&mut device, 4_150, 4_150));
        device.ended(4_200);
        assert!(!look(&mut device, 4_200, 60_000), "nothing is asked of it");
    }

    #[test]
    fn a_thread_that_was_kept_from_running_says_nothing_of_the_device() {
        let mut device = DeviceWork::default();
        device.started(100);
        device.look(60_000);
        assert!(!device.is_overdue(60_000));
    }

    #[test]
    fn load_is_averaged_over_a_minute() {
        let mut device = DeviceWork { writes: 2, ..DeviceWork::default() };
        (0..=30_000).step_by(50).for_each(|now| device.look(now));
        assert!((700..900).contains(&device.load()), "{}", device.load());
        (30_050..=300_000).step_by(50).for_each(|now| device.look(now));
        assert!((1_900..=2_000).contains(&device.load()), "{}", device.load());
    }
}
