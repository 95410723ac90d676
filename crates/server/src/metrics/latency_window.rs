//! Percentiles of recent latencies, to decide by. They are shown to nobody.

use std::time::Duration;

use super::histogram::{BUCKETS, bucket, upper_bound_us};

/// Latencies that count at most: then each of them counts half.
const MOST: u32 = 2048;
/// With fewer there is no percentile.
const FEWEST: u32 = 128;

/// The last thousand latencies or two, by size: later ones weigh more. The buckets are those of
/// [`Histogram`](super::Histogram). A clock has no part in it.
#[derive(Debug)]
pub struct LatencyWindow {
    counts: [u32; BUCKETS],
    count: u32,
}

impl Default for LatencyWindow {
    fn default() -> Self {
        LatencyWindow { counts: [0; BUCKETS], count: 0 }
    }
}

impl LatencyWindow {
    /// Takes one in.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        if self.count == MOST {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.count = self.counts.iter().sum();
        }
    }

    /// What so many thousandths of the latencies do not exceed; too long by up to a quarter. `None`
    /// if there are too few, or if it is more than 16.8 s.
    pub fn percentile(&self, permille: u32) -> Option<Duration> {
        if self.count < FEWEST {
            return None;
        }
        let rank = (self.count * permille).div_ceil(1000);
        let mut below = 0;
        let at = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        upper_bound_us(at).map(Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_percentile_is_at_most_a_quarter_too_long() {
        let mut window = LatencyWindow::default();
        (1..=1000).for_each(|ms| window.record(ms * MS));
        for permille in [500, 900, 990, 999] {
            let (found, exact) = (window.percentile(permille).unwrap(), permille * MS);
            assert!(found >= exact && 4 * found <= 5 * exact + MS, "{permille}: {found:?}");
        }
    }

    #[test]
    fn few_latencies_have_no_percentile_and_very_long_ones_have_none() {
        let mut window = LatencyWindow::default();
        (1..FEWEST).for_each(|_| window.record(MS));
        assert_eq!(window.percentile(990), None);
        window.record(MS);
        assert_eq!(window.percentile(990), Some(Duration::from_micros(1024)));
        (0..FEWEST).for_each(|_| window.record(Duration::from_secs(20)));
        assert_eq!(window.percentile(990), None);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut window = LatencyWindow::default();
        (0..1_000_000).for_each(|_| window.record(100 * MS));
        assert!(window.percentile(990).unwrap() >= 100 * MS);
        (0..16 * MOST).for_each(|_| window.record(MS));
        assert_eq!(window.percentile(990), Some(Duration::from_micros(1024)));
        assert!(window.count < MOST);
    }
}
