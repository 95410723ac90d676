//! Hit ratios of independent requests whose popularity follows Zipf's law.
//!
//! The DRAM tier takes few of the objects that are read from flash, and keeps those that are read
//! again, so popular ones gather there. That is close to q-LRU: an object of which the share `p` of
//! requests asks is there with the probability `q (1 - e) / (e + q (1 - e))`, `e = exp(-p T)`. The
//! characteristic time `T` follows from the tier's size (Martina, Garetto and Leonardi, "A unified
//! approach to the performance analysis of caching systems", INFOCOM 2014). Flash keeps what is
//! read, by reinsertion: the same with `q = 1`, which is the approximation of Che for LRU. A
//! lifetime bounds both: an object that is read `r` times in its lifetime is there for
//! `r / (1 + r)` of the reads.

/// The `q` of the DRAM tier. It is fitted: with it the model is within 5 points of what is measured
/// of the real tier, see the tests.
const TAKEN: f64 = 1.0 / 16.0;
/// So many of the most popular objects are counted one by one, the others in cohorts.
const SINGLE: u64 = 4096;
/// Each cohort reaches so much farther than the one before.
const GROWTH: f64 = 1.01;
/// Steps of a bisection over the doubles.
const STEPS: usize = 200;

/// Shares of reads that each tier answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HitRatio {
    /// From memory.
    pub dram: f64,
    /// From flash.
    pub flash: f64,
}

impl HitRatio {
    /// What neither answers.
    pub fn miss(&self) -> f64 {
        (1.0 - self.dram - self.flash).max(0.0)
    }
}

/// How long objects live, in requests: of all objects together while one of them lives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lifetime {
    /// Until they are evicted.
    Unbounded,
    /// So many requests long.
    Requests(f64),
}

/// Objects of about the same popularity.
#[derive(Debug, Clone, Copy)]
struct Cohort {
    count: f64,
    /// The share of requests that asks for one of them.
    share: f64,
}

/// Which share of requests asks for which object.
#[derive(Debug, Clone)]
pub struct Popularity {
    cohorts: Vec<Cohort>,
}

impl Popularity {
    /// The object of rank `r` among `objects` has a share proportional to `r^-exponent`. Exponent 0
    /// is uniform.
    pub fn zipf(objects: u64, exponent: f64) -> Self {
        let weight = |rank: f64| rank.powf(-exponent);
        let single = objects.min(SINGLE);
        let mut cohorts: Vec<Cohort> =
            (1..=single).map(|rank| Cohort { count: 1.0, share: weight(rank as f64) }).collect();
        let mut first = single as f64 + 1.0;
        while first <= objects as f64 {
            let last = (first * GROWTH).floor().clamp(first, objects as f64);
            let count = last - first + 1.0;
            let sum = integral(first - 0.5, last + 0.5, exponent);
            cohorts.push(Cohort { count, share: sum / count });
            first = last + 1.0;
        }
        let all: f64 = cohorts.iter().map(|cohort| cohort.count * cohort.share).sum();
        cohorts.iter_mut().for_each(|cohort| cohort.share /= all);
        Self { cohorts }
    }

    /// Of a cache with places for so many objects in memory and on flash.
    pub fn hit_ratio(&self, in_dram: u64, on_flash: u64, lifetime: Lifetime) -> HitRatio {
        let dram = self.hits(in_dram as f64, TAKEN, lifetime);
        // What memory holds, flash holds too: a copy is there within seconds.
        let all = self.hits(on_flash.max(in_dram) as f64, 1.0, lifetime).max(dram);
        HitRatio { dram, flash: all - dram }
    }

    /// The share of requests that a cache answers that has `places`, and lets one in `1 / taken` of
    /// what it misses in.
    fn hits(&self, places: f64, taken: f64, lifetime: Lifetime) -> f64 {
        let there = |cohort: &Cohort, time: f64| {
            let gone = (-cohort.share * time).exp();
            let kept = taken * (1.0 - gone) / (gone + taken * (1.0 - gone));
            kept.min(alive(cohort.share, lifetime))
        };
        let taken_places =
            |time: f64| self.cohorts.iter().map(|g| g.count * there(g, time)).sum::<f64>();
        let answered =
            |time: f64| self.cohorts.iter().map(|g| g.count * g.share * there(g, time)).sum();
        // In the exponent: characteristic times span many orders of magnitude.
        let (mut low, mut high) = (-40.0_f64, 120.0_f64);
        if taken_places(high.exp()) <= places {
            return answered(high.exp());
        }
        for _ in 0..STEPS {
            let middle = (low + high) / 2.0;
            if taken_places(middle.exp()) < places { low = middle } else { high = middle }
        }
        answered(low.exp())
    }
}

/// The share of its reads for which an object has not expired.
fn alive(share: f64, lifetime: Lifetime) -> f64 {
    match lifetime {
        Lifetime::Unbounded => 1.0,
        Lifetime::Requests(requests) => share * requests / (1.0 + share * requests),
    }
}

/// The integral of `x^-exponent`.
fn integral(from: f64, to: f64, exponent: f64) -> f64 {
    let power = 1.0 - exponent;
    match power.abs() < 1e-9 {
        true => (to / from).ln(),
        false => (to.powf(power) - from.powf(power)) / power,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(real: f64, expected: f64, tolerance: f64) {
        assert!((real - expected).abs() <= tolerance, "{real} is not {expected} +- {tolerance}");
    }

    #[test]
    fn shares_are_those_of_zipf_and_sum_to_one() {
        for (objects, exponent) in
            [(1_000_000_u64, 0.99), (50_000, 0.7), (1_000_000, 1.0), (10, 1.2)]
        {
            let popularity = Popularity::zipf(objects, exponent);
            let sum = |of: fn(&Cohort) -> f64| popularity.cohorts.iter().map(of).sum::<f64>();
            near(sum(|g| g.count), objects as f64, 1e-3);
            near(sum(|g| g.count * g.share), 1.0, 1e-9);
            // Term by term.
            let whole: f64 = (1..=objects).map(|rank| (rank as f64).powf(-exponent)).sum();
            near(popularity.cohorts[0].share, 1.0 / whole, 1e-6);
        }
    }

    #[test]
    fn uniform_requests_hit_in_proportion_and_all_objects_hit_always() {
        let uniform = Popularity::zipf(100_000, 0.0);
        let ratio = uniform.hit_ratio(10_000, 50_000, Lifetime::Unbounded);
        near(ratio.dram, 0.1, 1e-3);
        near(ratio.flash, 0.4, 1e-3);
        near(ratio.miss(), 0.5, 1e-3);
        let all = uniform.hit_ratio(10_000, 100_000, Lifetime::Unbounded);
        near(all.miss(), 0.0, 1e-9);
    }

    /// What docs/internals and the head of the engine's `copies` say that DRAM answers where flash
    /// holds everything, measured with a million objects.
    #[test]
    fn dram_answers_what_was_measured_of_the_real_tier() {
        for (exponent, percent, measured) in
            [(0.99, 1, 0.575), (0.99, 10, 0.770), (0.7, 1, 0.215), (0.7, 10, 0.451)]
        {
            let objects = 1_000_000;
            let popularity = Popularity::zipf(objects, exponent);
            let ratio = popularity.hit_ratio(objects * percent / 100, objects, Lifetime::Unbounded);
            near(ratio.dram, measured, 0.05);
        }
    }

    #[test]
    fn a_lifetime_costs_the_reads_after_its_end() {
        // One object: of 1 + 9 reads in a lifetime the first misses.
        let one = Popularity::zipf(1, 1.0).hit_ratio(1, 1, Lifetime::Requests(9.0));
        near(one.miss(), 0.1, 1e-9);
        let many = Popularity::zipf(1000, 0.9);
        let long = many.hit_ratio(10, 1000, Lifetime::Requests(1e9)).miss();
        let short = many.hit_ratio(10, 1000, Lifetime::Requests(1000.0)).miss();
        assert!(long < 0.001 && short > 0.1, "{long} {short}");
    }

    #[test]
    fn a_billion_objects_are_no_more_work() {
        let popularity = Popularity::zipf(1_000_000_000, 0.99);
        assert!(popularity.cohorts.len() < 10_000);
    }
}
