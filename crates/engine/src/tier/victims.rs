//! How popular the objects are that reclaim drops. While segments are scarce, an admitted object
//! must be asked for as often.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Dropped objects that are averaged over, about.
const SPAN: i32 = 64;
/// Objects that nobody asked for, as many as which the average begins with.
const BEGIN: i32 = 8;
/// Bits behind the point: without them what one object adds would be rounded away, and the average
/// never rise.
const FRACTION: u32 = 16;

/// An exponential average of sketch estimates (0 to 15). Only the driver changes it.
#[derive(Debug, Default)]
pub struct VictimPopularity {
    average: AtomicU32,
    /// Objects seen, up to what makes [`SPAN`].
    seen: AtomicU32,
}

impl VictimPopularity {
    /// An object that may be dropped is asked for so often.
    pub fn note(&self, estimate: u8) {
        let (average, new) =
            (self.average.load(Ordering::Relaxed) as i32, i32::from(estimate) << FRACTION);
        let seen = (self.seen.load(Ordering::Relaxed) as i32 + 1).min(SPAN - BEGIN);
        self.seen.store(seen as u32, Ordering::Relaxed);
        // Rounded down: it never stays above what all of them have.
        let next = average + (new - average).div_euclid(BEGIN + seen);
        self.average.store(next as u32, Ordering::Relaxed);
    }

    /// Whether something asked for so often is worth the place of what is dropped for it.
    pub fn admits(&self, estimate: u8) -> bool {
        u32::from(estimate) << FRACTION >= self.average.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(estimates: impl IntoIterator<Item = u8>) -> VictimPopularity {
        let victims = VictimPopularity::default();
        estimates.into_iter().for_each(|estimate| victims.note(estimate));
        victims
    }

    #[test]
    fn what_is_less_popular_than_what_goes_is_refused_and_what_is_as_popular_is_not() {
        for popularity in 1..=15 {
            let victims = after([popularity; 1000]);
            assert!(victims.admits(popularity) && !victims.admits(popularity - 1), "{victims:?}");
        }
        assert!(after([]).admits(0) && after([0; 1000]).admits(0));
    }

    #[test]
    fn a_life_of_a_few_reclaims_has_an_average_already() {
        assert!(after([4; 4]).admits(2), "chance");
        assert!(!after([4; 30]).admits(2));
    }

    #[test]
    fn a_few_popular_ones_count_and_are_forgotten_again() {
        assert!(!after([0, 0, 0, 4].repeat(100)).admits(0));
        assert!(after([0, 0, 0, 4].repeat(100)).admits(2));
        let faded = after([15; 500].into_iter().chain([1; 2000]));
        assert!(faded.admits(1) && !faded.admits(0), "{faded:?}");
    }
}
