//! The write budget: an average over time of the bytes written to the devices.

use crate::sync::atomic::{AtomicU64, Ordering};

/// What is not used is kept for so long, in seconds.
const KEPT: u64 = 3600;

/// How many bytes may have been written since opening. Objects are written within the average.
/// Metadata and padding are written whenever they have to be, and count: objects are refused until
/// the average holds again.
#[derive(Debug)]
pub struct WriteBudget {
    /// Bytes per second.
    rate: u64,
    /// Bytes that may have been written by now.
    granted: AtomicU64,
    /// Until when that is, in milliseconds of the monotonic clock.
    until: AtomicU64,
}

impl WriteBudget {
    /// A budget of `rate` bytes per second from `now` (milliseconds) on, with an hour of it put by.
    pub fn new(rate: u64, now: u64) -> Self {
        Self {
            rate,
            granted: AtomicU64::new(rate.saturating_mul(KEPT)),
            until: AtomicU64::new(now),
        }
    }

    /// Whether `len` bytes more may be written, after `written` bytes since opening.
    pub fn allows(&self, written: u64, len: u32) -> bool {
        written + u64::from(len) <= self.granted.load(Ordering::Relaxed)
    }

    /// Whether half of what is put by would be left then.
    pub fn spares(&self, written: u64, len: u32) -> bool {
        self.allows(written.saturating_add(self.rate.saturating_mul(KEPT / 2)), len)
    }

    /// Grants what time has brought. For one thread.
    pub fn refill(&self, now: u64, written: u64) {
        let passed = now.saturating_sub(self.until.load(Ordering::Relaxed));
        let earned = u128::from(self.rate) * u128::from(passed) / 1000;
        if earned == 0 {
            return;
        }
        let most = written.saturating_add(self.rate.saturating_mul(KEPT));
        let granted = self.granted.load(Ordering::Relaxed).saturating_add(earned as u64).min(most);
        self.granted.store(granted, Ordering::Relaxed);
        self.until.store(now, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_put_by_and_no_more() {
        let budget = WriteBudget::new(100, 0);
        assert!(budget.allows(0, 360_000) && !budget.allows(0, 360_001));
        assert!(budget.spares(0, 180_000) && !budget.spares(1, 180_000));
        budget.refill(10_000_000, 0);
        assert!(
            budget.allows(0, 360_000) && !budget.allows(0, 360_001),
            "nothing was written in 10,000 s"
        );
        budget.refill(10_000_500, 360_000);
        assert!(budget.allows(360_000, 50) && !budget.allows(360_000, 51));
    }

    #[test]
    fn what_had_to_be_written_beyond_it_is_saved_up_again() {
        let budget = WriteBudget::new(100, 0);
        budget.refill(9_000, 361_900);
        assert!(!budget.allows(361_900, 1));
        budget.refill(20_000, 361_900);
        assert!(budget.allows(361_900, 100) && !budget.allows(361_900, 101));
    }

    #[test]
    fn moments_add_up() {
        let budget = WriteBudget::new(100, 0);
        (1..=1000).for_each(|now| budget.refill(now, 360_000));
        assert!(budget.allows(360_000, 100) && !budget.allows(360_000, 101));
    }
}
