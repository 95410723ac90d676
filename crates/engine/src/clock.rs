//! Time, handed in so that a simulation can be the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// A wall clock, which may jump, and two that may not.
pub trait Clock: Send + Sync {
    /// Unix milliseconds.
    fn unix_millis(&self) -> u64;

    /// Unix seconds.
    fn unix(&self) -> u64 {
        self.unix_millis() / 1_000
    }

    /// Milliseconds since some moment, those in which the machine sleeps left out.
    fn millis(&self) -> u64;

    /// Milliseconds since some moment, those in which the machine sleeps included.
    fn boot_millis(&self) -> u64;
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
    fn unix_millis(&self) -> u64 {
        millis_of(ClockId::RealtimeCoarse)
    }

    fn unix(&self) -> u64 {
        // Behind by some ticks of the kernel's, 4 or 10 ms each, and a third of the price: each
        // request asks several times.
        u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0)
    }

    fn millis(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }

    fn boot_millis(&self) -> u64 {
        millis_of(ClockId::Boottime)
    }
}

fn millis_of(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + now.tv_nsec as u64 / 1_000_000
}

/// A clock that stands still until it is set.
#[derive(Debug, Default)]
pub struct ManualClock {
    unix_millis: AtomicU64,
    millis: AtomicU64,
    boot_millis: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `unix`.
    #[must_use]
    pub fn at(unix: u64) -> Self {
        let unix_millis = (unix * 1_000).into();
        Self { unix_millis, millis: 0.into(), boot_millis: 0.into() }
    }

    /// Lets `millis` pass on the monotonic clock only.
    pub fn pass(&self, millis: u64) {
        self.millis.fetch_add(millis, Ordering::Relaxed);
    }

    /// The machine sleeps for so long: the monotonic clock alone does not count that.
    pub fn sleep(&self, millis: u64) {
        self.boot_millis.fetch_add(millis, Ordering::Relaxed);
        self.unix_millis.fetch_add(millis, Ordering::Relaxed);
    }

    /// Sets the wall clock, forwards or back.
    pub fn set_unix(&self, unix: u64) {
        self.unix_millis.store(unix * 1_000, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn unix_millis(&self) -> u64 {
        self.unix_millis.load(Ordering::Relaxed)
    }

    fn millis(&self) -> u64 {
        self.millis.load(Ordering::Relaxed)
    }

    fn boot_millis(&self) -> u64 {
        self.boot_millis.load(Ordering::Relaxed)
    }
}
