//! The choosers without a power law: uniform, hotspot, sequential, counter.

use super::generator::{Generator, java_abs};
use crate::rng::Rng;

/// Every item of `min..=max` equally often.
#[derive(Clone, Debug)]
pub struct Uniform {
    min: u64,
    interval: u64,
}

impl Uniform {
    /// Over `min..=max`.
    pub fn new(min: u64, max: u64) -> Self {
        Self { min, interval: max - min + 1 }
    }
}

impl Generator for Uniform {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        self.min + java_abs(rng.next_u64()) % self.interval
    }
}

/// A hot interval at the front gets a fixed fraction of the requests; uniform inside the hot and
/// inside the cold part.
#[derive(Clone, Debug)]
pub struct Hotspot {
    min: u64,
    hot: u64,
    cold: u64,
    hot_requests: f64,
}

impl Hotspot {
    /// Over `min..=max`: the first `hot_set` (fraction) of the items gets `hot_requests` (fraction)
    /// of the requests. Fractions outside `0..=1` count as 0, as in YCSB; an empty part hands its
    /// requests to the other one (YCSB divides by zero there).
    pub fn new(min: u64, max: u64, hot_set: f64, hot_requests: f64) -> Self {
        let fraction = |f: f64| if (0.0..=1.0).contains(&f) { f } else { 0.0 };
        let interval = max - min + 1;
        let hot = (interval as f64 * fraction(hot_set)) as u64;
        let hot_requests = match (hot, interval - hot) {
            (0, _) => 0.0,
            (_, 0) => 1.0,
            _ => fraction(hot_requests),
        };
        Self { min, hot, cold: interval - hot, hot_requests }
    }
}

impl Generator for Hotspot {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        if rng.next_f64() < self.hot_requests {
            self.min + java_abs(rng.next_u64()) % self.hot
        } else {
            self.min + self.hot + java_abs(rng.next_u64()) % self.cold
        }
    }
}

/// `min..=max` in order, then from the start again.
#[derive(Clone, Debug)]
pub struct Sequential {
    min: u64,
    interval: u64,
    position: u64,
}

impl Sequential {
    /// Over `min..=max`, from `min`.
    pub fn new(min: u64, max: u64) -> Self {
        Self::starting_at(min, max, 0)
    }

    /// Over `min..=max`, from the item `first` places after `min`.
    pub fn starting_at(min: u64, max: u64, first: u64) -> Self {
        let interval = max - min + 1;
        Self { min, interval, position: first % interval }
    }
}

impl Generator for Sequential {
    fn next(&mut self, _: &mut Rng) -> u64 {
        let item = self.min + self.position;
        self.position = (self.position + 1) % self.interval;
        item
    }
}

/// Counts up without end: the keys of inserts.
#[derive(Clone, Debug)]
pub struct Counter {
    next: u64,
}

impl Counter {
    /// Starts at `first`.
    pub fn new(first: u64) -> Self {
        Self { next: first }
    }

    /// The number handed out last; before the first call one below the start (which is 0 for a
    /// start of 0).
    pub fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }
}

impl Generator for Counter {
    fn next(&mut self, _: &mut Rng) -> u64 {
        self.next += 1;
        self.next - 1
    }
}
