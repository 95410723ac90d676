//! What became of lookups, by when they began.

use std::time::Duration;

/// Lookups that began in one stretch of time.
#[derive(Clone, Debug, Default)]
struct Window {
    begun: u64,
    hits: u64,
    /// Of those that have ended, in nanoseconds.
    took: Vec<u64>,
}

impl Window {
    /// The time within which 99 in 100 ended; those that have not ended took for ever.
    fn p99(&self) -> Duration {
        let rank = (self.begun * 99).div_ceil(100).max(1) as usize;
        let mut took = self.took.clone();
        took.sort_unstable();
        took.get(rank - 1).map_or(Duration::MAX, |&nanos| Duration::from_nanos(nanos))
    }

    fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.begun.max(1) as f64
    }
}

/// Stretches of one length, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    length: Duration,
    windows: Vec<Window>,
}

impl Windows {
    pub(super) fn new(length: Duration) -> Self {
        Self { length, windows: Vec::new() }
    }

    fn at(&mut self, begin: Duration) -> &mut Window {
        let n = (begin.as_nanos() / self.length.as_nanos()) as usize;
        if self.windows.len() <= n {
            self.windows.resize_with(n + 1, Window::default);
        }
        &mut self.windows[n]
    }

    /// A lookup begins.
    pub(super) fn begun(&mut self, begin: Duration) {
        self.at(begin).begun += 1;
    }

    /// One that began then has ended.
    pub(super) fn ended(&mut self, begin: Duration, took: Duration, hit: bool) {
        let window = self.at(begin);
        window.took.push(took.as_nanos() as u64);
        window.hits += u64::from(hit);
    }

    /// Those that lie between two times, both ends of windows.
    fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = (Duration, &Window)> {
        let window = |(n, window)| (self.length * n as u32, window);
        let windows = self.windows.iter().enumerate().map(window);
        windows.filter(move |(begin, _)| *begin >= from && *begin + self.length <= to)
    }

    /// The median of the windows' p99 between two times.
    pub(super) fn p99(&self, from: Duration, to: Duration) -> Duration {
        let mut all: Vec<_> = self.between(from, to).map(|(_, window)| window.p99()).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(Duration::MAX)
    }

    /// Share of lookups between two times that were hits.
    pub(super) fn hit_ratio(&self, from: Duration, to: Duration) -> f64 {
        let (hits, begun) = self
            .between(from, to)
            .fold((0, 0), |(hits, begun), (_, w)| (hits + w.hits, begun + w.begun));
        hits as f64 / begun.max(1) as f64
    }

    /// Lookups between two times that have not ended.
    pub(super) fn unended(&self, from: Duration, to: Duration) -> u64 {
        self.between(from, to).map(|(_, w)| w.begun - w.took.len() as u64).sum()
    }

    /// How long after `event` the p99 stays below `bound` up to `to`: `None` where it does not.
    pub(super) fn back_after(
        &self,
        event: Duration,
        to: Duration,
        bound: Duration,
    ) -> Option<Duration> {
        let mut back = Some(event);
        for (begin, window) in self.between(Duration::ZERO, to) {
            if begin + self.length > event && window.p99() > bound {
                back = None;
            } else if back.is_none() {
                back = Some(begin);
            }
        }
        back.map(|back| back.saturating_sub(event))
    }

    /// Begin in seconds, p99 in milliseconds and hit ratio of each window.
    pub(super) fn rows(&self, to: Duration) -> Vec<(f64, f64, f64)> {
        let row = |(begin, window): (Duration, &Window)| {
            let p99 = window.p99();
            let ms = if p99 == Duration::MAX { f64::INFINITY } else { p99.as_secs_f64() * 1e3 };
            (begin.as_secs_f64(), ms, window.hit_ratio())
        };
        self.between(Duration::ZERO, to).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Windows of a second with 100 lookups each, of which all took so many milliseconds; 0 has
    /// not ended.
    fn windows(took: &[u64]) -> Windows {
        let mut windows = Windows::new(SECOND);
        for (n, &took) in took.iter().enumerate() {
            for at in 0..100 {
                let begin = SECOND * n as u32 + ms(at * 10);
                windows.begun(begin);
                if took > 0 {
                    windows.ended(begin, ms(took), at % 2 == 0);
                }
            }
        }
        windows
    }

    #[test]
    fn a_lookup_that_has_not_ended_took_for_ever() {
        let mut few = Windows::new(SECOND);
        for n in 0..200 {
            few.begun(ms(n));
            if n > 1 {
                few.ended(ms(n), ms(n), true);
            }
        }
        assert_eq!(few.p99(Duration::ZERO, SECOND), ms(199), "two in 200 are not one in 100 more");
        few.begun(ms(5));
        assert_eq!(few.p99(Duration::ZERO, SECOND), Duration::MAX);
        assert_eq!(few.unended(Duration::ZERO, SECOND), 3);
    }

    #[test]
    fn it_is_back_with_the_first_window_after_the_last_bad_one() {
        let all = windows(&[5, 5, 50, 0, 5, 60, 5, 5]);
        let back = |event, bound| all.back_after(event, SECOND * 8, ms(bound));
        assert_eq!(back(ms(2000), 10), Some(SECOND * 4));
        assert_eq!(back(ms(2500), 10), Some(ms(3500)), "counted from the event");
        assert_eq!(back(ms(2000), 55), Some(SECOND * 4));
        assert_eq!(back(ms(6000), 10), Some(Duration::ZERO), "what was before it counts not");
        assert_eq!(windows(&[5, 50]).back_after(SECOND, SECOND * 2, ms(10)), None);
        assert_eq!(all.p99(Duration::ZERO, SECOND * 2), ms(5));
        assert_eq!(all.hit_ratio(Duration::ZERO, SECOND * 2), 0.5);
    }
}
