//! A refusal of the database that may pass by itself, as while a node starts anew: it is told once
//! it has lasted.

use std::cell::Cell;

use afterglow_ring::Time;

/// For so long it is not told, in microseconds.
const LASTS: Time = 5_000_000;
/// One that comes so long after the one before has nothing to do with it.
const APART: Time = 60_000_000;

/// Since when the database has refused something each time, and whether that was told.
#[derive(Default)]
pub struct Lasting {
    since: Cell<Option<Time>>,
    last: Cell<Time>,
    told: Cell<bool>,
}

impl Lasting {
    /// It has refused. Whether that is to be told now: `at_once`, or once it has lasted.
    pub fn refused(&self, at_once: bool, now: Time) -> bool {
        let is_another = now >= self.last.replace(now) + APART;
        let since = self.since.get().filter(|_| !is_another).unwrap_or(now);
        self.since.set(Some(since));
        let is_due = at_once || now >= since + LASTS;
        is_due && !self.told.replace(true)
    }

    /// Whether it was not seen for so long that it is most likely over.
    pub fn is_past(&self, now: Time) -> bool {
        now >= self.last.get() + APART
    }

    /// Whether it was told, and is not over.
    pub fn is_told(&self) -> bool {
        self.told.get()
    }

    /// It has not. Whether the refusal was told.
    pub fn over(&self) -> bool {
        self.since.set(None);
        self.told.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_once_and_only_when_it_stays_or_has_lasted() {
        let lasting = Lasting::default();
        let refused = |at_once, now| lasting.refused(at_once, now);
        assert_eq!(
            [0, LASTS - 1, LASTS, 2 * LASTS].map(|now| refused(false, now)),
            [false, false, true, false]
        );
        assert!(lasting.over());
        assert!(!refused(false, 3 * LASTS), "another one");
        assert!(!lasting.over(), "it was not told");
        assert_eq!([3, 4].map(|n| refused(true, n * LASTS)), [true, false]);
        assert!(lasting.over() && !lasting.over());
    }

    #[test]
    fn refusals_that_are_far_apart_are_not_one_that_lasts() {
        let lasting = Lasting::default();
        let times = [APART, 2 * APART, 2 * APART + LASTS - 1, 2 * APART + LASTS];
        assert_eq!(times.map(|now| lasting.refused(false, now)), [false, false, false, true]);
        assert!(!lasting.is_past(3 * APART) && lasting.is_past(3 * APART + LASTS));
    }
}
