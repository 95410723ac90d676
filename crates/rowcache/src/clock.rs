//! The clock that everything in this crate uses.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of a clock that never steps back and counts while the machine sleeps.
pub type Millis = u64;

/// A moment on the clocks that matter for a fill, each rounded down.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Unix seconds.
    pub unix: u32,
    /// Seconds since boot, for staleness.
    pub boot: u32,
}

/// The whole seconds of a time since boot.
pub(crate) fn seconds(millis: Millis) -> u32 {
    (millis / 1_000) as u32
}

/// Time since boot, and wall-clock time for what the database counts by it. Time since boot never
/// steps and counts while the machine sleeps: a lease that ran out during a suspend has run out.
pub trait Clock: Send + Sync {
    /// Milliseconds since boot.
    fn now(&self) -> Millis;

    /// Seconds since 1970.
    fn unix(&self) -> u32;

    /// Whole seconds since boot.
    fn seconds(&self) -> u32 {
        seconds(self.now())
    }

    /// So many seconds later than asked for the engine ends a row, whose end it knows by its own
    /// time. What is served is judged by this clock. For a test whose time is not the engine's.
    fn slack(&self) -> u32 {
        0
    }

    /// This moment for a fill.
    fn moment(&self) -> Moment {
        Moment { unix: self.unix(), boot: self.seconds() }
    }
}

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
    }

    fn unix(&self) -> u32 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) as u32
    }
}

/// A clock that is ahead of another, by a constant. It goes on where the clock of another boot of
/// the machine ended, see [`InstanceFile::clock_ahead`].
///
/// [`InstanceFile::clock_ahead`]: crate::instance_file::InstanceFile::clock_ahead
pub struct ClockAhead {
    /// The clock.
    pub of: Arc<dyn Clock>,
    /// How far ahead, in milliseconds.
    pub by: Millis,
}

impl Clock for ClockAhead {
    fn now(&self) -> Millis {
        self.of.now() + self.by
    }

    fn unix(&self) -> u32 {
        self.of.unix()
    }

    fn slack(&self) -> u32 {
        self.of.slack()
    }
}
