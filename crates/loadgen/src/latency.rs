//! Latency recording: HdrHistogram in nanoseconds, three significant digits, up to an hour.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

const LOWEST_NS: u64 = 64;
const HIGHEST_NS: u64 = 3_600_000_000_000;

/// Counts latencies. About 270 KiB.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// An empty recorder.
    pub fn new() -> Self {
        // The bounds are constants that satisfy the constructor's conditions.
        let histogram =
            Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, 3).expect("valid constant bounds");
        Self { histogram }
    }

    /// Counts one operation; more than an hour counts as an hour.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record(nanoseconds);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("equal constant bounds");
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.histogram.clear();
    }

    /// The figures of a report.
    pub fn summary(&self) -> Summary {
        let at = |percentile| micros(self.histogram.value_at_percentile(percentile));
        Summary {
            count: self.histogram.len(),
            mean_us: if self.histogram.is_empty() { 0.0 } else { self.histogram.mean() / 1000.0 },
            p50_us: at(50.0),
            p95_us: at(95.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: if self.histogram.is_empty() { 0.0 } else { micros(self.histogram.max()) },
        }
    }

    /// Points (percentile, microseconds) of the curve a plot shows: ten per order of magnitude
    /// towards 100 %.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        if self.histogram.is_empty() {
            return Vec::new();
        }
        (0..=50)
            .map(|i| 100.0 - 100.0 * 10f64.powf(-f64::from(i) / 10.0))
            .take_while(|p| (100.0 - p) / 100.0 * self.histogram.len() as f64 >= 1.0)
            .map(|p| (p, micros(self.histogram.value_at_percentile(p))))
            .collect()
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Latencies in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Operations counted.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::new();
        (1..=1000u64).for_each(|i| latency.record(i * 1000));
        let s = latency.summary();
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.002;
        assert!(near(s.p50_us, 500.0) && near(s.p95_us, 950.0) && near(s.p99_us, 990.0), "{s:?}");
        assert!(
            near(s.p999_us, 999.0) && near(s.max_us, 1000.0) && near(s.mean_us, 500.5),
            "{s:?}"
        );
    }

    #[test]
    fn nothing_recorded_is_zero_and_over_an_hour_does_not_panic() {
        let mut latency = Latency::new();
        assert_eq!(latency.summary(), Summary::default());
        latency.record(u64::MAX);
        assert!(latency.summary().max_us >= 3.5e9);
    }
}
