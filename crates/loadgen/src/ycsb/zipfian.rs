//! Zipfian choosers after "Quickly Generating Billion-Record Synthetic Databases" (Gray et al.,
//! SIGMOD 1994).

use super::generator::{Generator, fnv_hash64};
use crate::rng::Rng;

/// YCSB's skew.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// How many items YCSB's scrambled zipfian draws from, whatever the number of records.
pub const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// `zeta(SCRAMBLED_ITEMS, 0.99)` as YCSB has it precomputed.
pub const SCRAMBLED_ZETAN: f64 = 26.46902820178302;

/// The sum of `1 / i^theta` for `i` in `1..=n`.
pub fn zeta(n: u64, theta: f64) -> f64 {
    extend_zeta(0, n, theta, 0.0)
}

/// Adds the terms of `from + 1 ..= to` to `sum`.
pub(super) fn extend_zeta(from: u64, to: u64, theta: f64, sum: f64) -> f64 {
    (from..to).fold(sum, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(theta))
}

/// Item `base` is the hottest, `base + 1` the next, and so on.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    base: u64,
    theta: f64,
    alpha: f64,
    zetan: f64,
    zeta2: f64,
    eta: f64,
    /// Below this, `u * zetan` means the second item.
    second: f64,
    /// The item count that `zetan` was computed for.
    count_for_zeta: u64,
}

impl Zipfian {
    /// Over `min..=max` with YCSB's constant.
    pub fn new(min: u64, max: u64) -> Self {
        Self::with_constant(min, max, ZIPFIAN_CONSTANT)
    }

    /// Over `min..=max` with skew `theta` in `(0, 1)`. Sums `max - min + 1` terms.
    pub fn with_constant(min: u64, max: u64, theta: f64) -> Self {
        Self::with_zeta(min, max, theta, zeta(max - min + 1, theta))
    }

    /// Over `min..=max` where the caller knows `zetan`, the zeta of the number of items.
    pub fn with_zeta(min: u64, max: u64, theta: f64, zetan: f64) -> Self {
        let items = max - min + 1;
        let zeta2 = zeta(2, theta);
        let eta = Self::eta(items, theta, zeta2, zetan);
        Self {
            items,
            base: min,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zetan,
            zeta2,
            eta,
            second: 1.0 + 0.5f64.powf(theta),
            count_for_zeta: items,
        }
    }

    fn eta(items: u64, theta: f64, zeta2: f64, zetan: f64) -> f64 {
        (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta2 / zetan)
    }

    /// The next item when there are now `items` of them. As in YCSB the sums follow growth only,
    /// and `eta` keeps the number of items the generator was made with.
    pub fn next_of(&mut self, items: u64, rng: &mut Rng) -> u64 {
        if items > self.count_for_zeta {
            self.zetan = extend_zeta(self.count_for_zeta, items, self.theta, self.zetan);
            self.count_for_zeta = items;
            self.eta = Self::eta(self.items, self.theta, self.zeta2, self.zetan);
        }
        let u = rng.next_f64();
        let uz = u * self.zetan;
        if uz < 1.0 {
            return self.base;
        }
        if uz < self.second {
            return self.base + 1;
        }
        self.base + (items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

impl Generator for Zipfian {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        self.next_of(self.items, rng)
    }
}

/// Zipfian popularity scattered over the key space.
///
/// As in YCSB: whatever the number of records, the rank is drawn from [`SCRAMBLED_ITEMS`] + 1
/// items. Its hash is taken modulo the number of records. So the set of hot keys does not depend on
/// growth. The skew is therefore *milder* than that of a zipfian over the records. The hottest key
/// gets 3.8 % of the requests, and unlucky keys share a slot with hot ones.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
    min: u64,
    items: u64,
}

impl ScrambledZipfian {
    /// Over `min..=max` with YCSB's constant.
    pub fn new(min: u64, max: u64) -> Self {
        let ranks = Zipfian::with_zeta(0, SCRAMBLED_ITEMS, ZIPFIAN_CONSTANT, SCRAMBLED_ZETAN);
        Self { ranks, min, items: max - min + 1 }
    }
}

impl Generator for ScrambledZipfian {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        self.min + fnv_hash64(self.ranks.next(rng)) % self.items
    }
}
