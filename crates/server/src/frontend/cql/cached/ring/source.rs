//! Where a member has its time and its random numbers from: the system. In the simulation
//! (`sim`) both are given to a thread, so that a run is the same again.

use afterglow_ring::Time;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

/// Microseconds of a clock that never steps and counts while the machine sleeps.
pub fn now() -> Time {
    #[cfg(test)]
    if let Some(now) = given::now() {
        return now;
    }
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// 122 bits that nobody can guess or repeat.
pub fn random() -> u128 {
    #[cfg(test)]
    if let Some(random) = given::random() {
        return random;
    }
    Uuid::new_v4().as_u128()
}

/// What a simulation gives to its thread.
#[cfg(test)]
pub mod given {
    use std::cell::Cell;

    use afterglow_loadgen::rng::mix;
    use afterglow_ring::Time;

    thread_local! {
        static NOW: Cell<Option<Time>> = const { Cell::new(None) };
        static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// The clock of the instance whose turn it is.
    pub fn set_now(now: Time) {
        NOW.set(Some(now));
    }

    /// From now on random numbers follow from this one.
    pub fn set_random(seed: u64) {
        RANDOM.set(Some(seed));
    }

    /// From now on both are the system's again.
    pub fn end() {
        NOW.set(None);
        RANDOM.set(None);
    }

    pub(super) fn now() -> Option<Time> {
        NOW.get()
    }

    pub(super) fn random() -> Option<u128> {
        let next = || {
            let state = RANDOM.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
            RANDOM.set(Some(state));
            Some(u128::from(mix(state)))
        };
        Some((next()? << 64) | next()?)
    }
}
