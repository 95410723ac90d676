//! The cache's time. TTLs are enforced by it: [`CacheTime::is_expired`] is asked for every object
//! that is put or found (`Core::why_dead`).

use std::sync::Arc;

use crate::api::NO_EXPIRY;
use crate::clock::Clock;
use crate::journal::Journal;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The cache's time: the highest that the wall clock has ever shown, also in earlier lives. The
/// journal remembers it.
pub struct CacheTime {
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    highest: AtomicU64,
}

impl CacheTime {
    /// Goes on from `highest`, in Unix seconds.
    pub fn new(clock: Arc<dyn Clock>, journal: Arc<Journal>, highest: u64) -> Self {
        Self { clock, journal, highest: highest.into() }
    }

    /// Unix seconds: never less than ever before.
    pub fn now(&self) -> u64 {
        let wall = self.clock.unix();
        let before = self.highest.load(Ordering::Acquire);
        if wall <= before {
            return before;
        }
        let before = self.highest.fetch_max(wall, Ordering::AcqRel);
        if wall > before {
            self.journal.store_time(wall);
        }
        wall.max(before)
    }

    /// Milliseconds of the monotonic clock.
    pub fn millis(&self) -> u64 {
        self.clock.millis()
    }

    /// Seconds that the wall clock is behind the highest time ever seen, which is what counts.
    pub fn behind(&self) -> u64 {
        self.now().saturating_sub(self.clock.unix())
    }

    /// Whether something with this expiry is dead.
    pub fn is_expired(&self, expiry: u32) -> bool {
        expiry != NO_EXPIRY && u64::from(expiry) <= self.now()
    }

    /// The highest time seen, without a look at the clock.
    #[cfg(test)]
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::Relaxed)
    }
}
