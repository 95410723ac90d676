//! Time, handed in so that a simulation can be the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// A wall clock, which may jump, and a monotonic one, which may not.
pub trait Clock: Send + Sync {
    /// Unix seconds.
    fn unix(&self) -> u64;
    /// Milliseconds since some moment.
    fn millis(&self) -> u64;
}

/// The clocks of the system.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn unix(&self) -> u64 {
        // Behind by some ticks of the kernel's, 4 or 10 ms each, and a third of the price: each
        // request asks several times.
        u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0)
    }

    fn millis(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }
}

/// A clock that stands still until it is set.
#[derive(Debug, Default)]
pub struct ManualClock {
    unix: AtomicU64,
    millis: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `unix`.
    #[must_use]
    pub fn at(unix: u64) -> Self {
        Self { unix: unix.into(), millis: 0.into() }
    }

    /// Lets `millis` pass on the monotonic clock only.
    pub fn pass(&self, millis: u64) {
        self.millis.fetch_add(millis, Ordering::Relaxed);
    }

    /// Sets the wall clock, forwards or back.
    pub fn set_unix(&self, unix: u64) {
        self.unix.store(unix, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn unix(&self) -> u64 {
        self.unix.load(Ordering::Relaxed)
    }

    fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }
}
