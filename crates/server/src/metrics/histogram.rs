//! Latency histograms with fixed log-linear buckets.

use std::time::Duration;

use super::OwnCounter;

/// Buckets per doubling: a bucket's width is at most a quarter of its lower bound.
const PER_OCTAVE: u64 = 4;
/// The largest bound is 2^24 microseconds, 16.8 s; beyond is one more bucket.
const LAST_OCTAVE: u64 = 24;
/// Bounds 1, 2, 3, 4 microseconds, then four per doubling, then infinity.
pub const BUCKETS: usize = ((LAST_OCTAVE - 1) * PER_OCTAVE + 1) as usize;

/// Counts durations by size, on one thread.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[OwnCounter; BUCKETS]>,
    nanoseconds: OwnCounter,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: Box::new(std::array::from_fn(|_| OwnCounter::default())),
            nanoseconds: OwnCounter::default(),
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Counts one duration for each of `count` things that were done together.
    pub fn record_many(&self, duration: Duration, count: u64) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)].add(count);
        self.nanoseconds.add(ns.saturating_mul(count));
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(OwnCounter::get).sum()
    }

    /// Adds this one's counts to `counts`, and returns the sum of its durations in nanoseconds.
    pub(super) fn add_to(&self, counts: &mut [u64; BUCKETS]) -> u64 {
        for (sum, count) in counts.iter_mut().zip(self.counts.iter()) {
            *sum += count.get();
        }
        self.nanoseconds.get()
    }
}

/// The bucket whose bounds hold that many nanoseconds; upper bounds are inclusive, as Prometheus
/// has them.
pub(super) fn bucket(ns: u64) -> usize {
    // Bounds are whole microseconds, so (lo, hi] in nanoseconds is [lo, hi) in microseconds rounded
    // down from ns - 1.
    let us = ns.saturating_sub(1) / 1_000;
    if us < PER_OCTAVE {
        return us as usize;
    }
    let octave = u64::from(us.ilog2());
    if octave >= LAST_OCTAVE {
        return BUCKETS - 1;
    }
    let step = us >> (octave - 2);
    ((octave - 2) * PER_OCTAVE + step) as usize
}

/// What Prometheus is shown: one bucket a doubling from 16 microseconds to 16.8 s, and one without
/// a bound. Finer ones would be most of all series; what is above and below is added to the
/// outermost.
pub(super) fn octaves(counts: &[u64; BUCKETS]) -> impl Iterator<Item = (Option<u64>, u64)> {
    let mut buckets = Vec::with_capacity(LAST_OCTAVE as usize);
    let mut inside = 0;
    for (bucket, count) in counts.iter().enumerate() {
        inside += count;
        let bound = upper_bound_us(bucket);
        if bound.is_none_or(|us| us >= SMALLEST_SHOWN_US && us.is_power_of_two()) {
            buckets.push((bound, std::mem::take(&mut inside)));
        }
    }
    buckets.into_iter()
}

/// The smallest bound that Prometheus is shown.
const SMALLEST_SHOWN_US: u64 = 16;

/// The upper bound of a bucket in microseconds; `None` for the last, which has none.
pub(super) fn upper_bound_us(bucket: usize) -> Option<u64> {
    let bucket = bucket as u64;
    if bucket + 1 == BUCKETS as u64 {
        return None;
    }
    if bucket < PER_OCTAVE {
        return Some(bucket + 1);
    }
    let octave = bucket / PER_OCTAVE + 1;
    Some((PER_OCTAVE + bucket % PER_OCTAVE + 1) << (octave - 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_by_at_most_a_quarter_and_end_at_2_to_24() {
        let bounds: Vec<u64> = (0..BUCKETS - 1).map(|b| upper_bound_us(b).unwrap()).collect();
        assert_eq!(bounds[..10], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]);
        assert_eq!(bounds.last(), Some(&(1 << 24)));
        for pair in bounds[3..].windows(2) {
            assert!(pair[1] > pair[0] && (pair[1] - pair[0]) * 4 <= pair[0], "{pair:?}");
        }
        assert_eq!(upper_bound_us(BUCKETS - 1), None);
    }

    #[test]
    fn prometheus_is_shown_every_count_once_under_a_true_bound() {
        let mut counts = [0; BUCKETS];
        for (bucket, count) in counts.iter_mut().enumerate() {
            *count = 1 << (bucket % 3);
        }
        let shown: Vec<_> = octaves(&counts).collect();
        assert_eq!(shown.len(), 22);
        assert_eq!(shown.iter().map(|(_, count)| count).sum::<u64>(), counts.iter().sum::<u64>());
        assert_eq!(shown.last().unwrap().0, None);
        let below: u64 = (0..BUCKETS)
            .filter(|b| upper_bound_us(*b).is_some_and(|us| us <= 16))
            .map(|b| counts[b])
            .sum();
        assert_eq!(shown[0], (Some(16), below));
    }

    #[test]
    fn a_duration_lands_between_its_bounds() {
        for b in 0..BUCKETS - 1 {
            let upper = upper_bound_us(b).unwrap() * 1_000;
            assert_eq!(bucket(upper), b, "the bound itself is inside");
            assert_eq!(bucket(upper + 1), b + 1, "one nanosecond more is not");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
