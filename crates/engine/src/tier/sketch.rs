//! How often objects were asked for lately, in half a byte per counter.
//!
//! A count-min sketch with conservative 4-bit counters, all halved after a fixed number of
//! additions (Einziger, Friedman and Manes, "TinyLFU", 2017). The estimate is never below the true,
//! aged count up to 15, and rarely above.

use crate::prefetch::prefetch;

/// Counters per object expected; four of them are raised for each.
const COUNTERS_PER_OBJECT: usize = 8;
/// Additions per object expected after which all counts are halved.
const SAMPLE: usize = 10;
/// Counters in a word, and a word's four counters looked at per object.
const PER_WORD: usize = 16;

/// Estimates of recent popularity, 0 to 15, for keyed 64-bit hashes.
#[derive(Debug, Clone)]
pub struct FrequencySketch {
    /// Blocks of eight words (a cache line): all counters of an object are in one.
    blocks: Vec<[u64; 8]>,
    additions: usize,
    sample: usize,
}

impl FrequencySketch {
    /// A sketch for about `objects` different objects; takes 4 bytes for each.
    #[must_use]
    pub fn new(objects: usize) -> Self {
        let objects = objects.max(1);
        let blocks = vec![[0; 8]; Self::bytes_for(objects) / 64];
        Self { blocks, additions: 0, sample: objects.saturating_mul(SAMPLE) }
    }

    /// A sketch for about `objects` different objects whose counts are halved after `sample`
    /// requests.
    #[must_use]
    pub fn with_sample(objects: usize, sample: usize) -> Self {
        Self { sample: sample.max(1), ..Self::new(objects) }
    }

    /// Memory of a sketch for so many objects, in bytes.
    #[must_use]
    pub fn bytes_for(objects: usize) -> usize {
        (objects.max(1) * COUNTERS_PER_OBJECT).div_ceil(8 * PER_WORD) * 64
    }

    /// Memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.len() * 64
    }

    /// Asks for the counters of a hash ahead of a count or estimate.
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.blocks[self.counters(hash).0]);
    }

    /// Counts a request. Returns the estimate with it.
    pub fn add(&mut self, hash: u64) -> u8 {
        let estimate = self.estimate(hash);
        if estimate == 15 {
            return estimate;
        }
        let (block, counters) = self.counters(hash);
        for (word, shift) in counters {
            let word = &mut self.blocks[block][word];
            // Conservative: only the counters that hold the estimate down are raised.
            if (*word >> shift & 15) == u64::from(estimate) {
                *word += 1 << shift;
            }
        }
        self.additions += 1;
        if self.additions >= self.sample {
            self.halve();
        }
        estimate + 1
    }

    /// Counts requests until they are at least so many.
    pub fn raise(&mut self, hash: u64, count: u8) {
        debug_assert!(count <= 15);
        while self.estimate(hash) < count {
            self.add(hash);
        }
    }

    /// Requests counted lately, at most 15.
    #[must_use]
    pub fn estimate(&self, hash: u64) -> u8 {
        let (block, counters) = self.counters(hash);
        let values = counters.map(|(word, shift)| (self.blocks[block][word] >> shift & 15) as u8);
        values.into_iter().min().unwrap_or(0)
    }

    /// The block of a hash and its four counters there, two words apart so that they never
    /// coincide.
    fn counters(&self, hash: u64) -> (usize, [(usize, u32); 4]) {
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let block = ((u128::from(mixed) * self.blocks.len() as u128) >> 64) as usize;
        let bits = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 24;
        let counter = |n: usize| {
            let part = (bits >> (5 * n)) as usize & 31;
            (2 * n + part / PER_WORD, (part % PER_WORD) as u32 * 4)
        };
        (block, std::array::from_fn(counter))
    }

    fn halve(&mut self) {
        const KEEP: u64 = 0x7777_7777_7777_7777;
        self.blocks.iter_mut().flatten().for_each(|word| *word = *word >> 1 & KEEP);
        self.additions /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes as spread out as real ones.
    fn hash(n: u64) -> u64 {
        n.wrapping_mul(0x2545_f491_4f6c_dd1d)
            ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
    }

    #[test]
    fn an_estimate_is_never_below_the_count_and_rarely_above() {
        let mut sketch = FrequencySketch::new(1000);
        for n in 0..1000 {
            (0..n % 5).for_each(|_| _ = sketch.add(hash(n)));
        }
        let over = (0..1000).filter(|&n| {
            let estimate = u64::from(sketch.estimate(hash(n)));
            assert!(
                estimate >= n % 5,
                "object {n} counted {} times is estimated {estimate}",
                n % 5
            );
            estimate > n % 5
        });
        assert!(over.count() < 50);
    }

    #[test]
    fn counts_saturate_and_age() {
        let mut sketch = FrequencySketch::new(100);
        (0..40).for_each(|_| _ = sketch.add(hash(1)));
        assert_eq!(sketch.estimate(hash(1)), 15);
        (2..20_000).for_each(|n| _ = sketch.add(hash(n)));
        assert!(sketch.estimate(hash(1)) < 15, "an object nobody asks for keeps its old fame");
    }

    #[test]
    fn memory_is_four_bytes_per_object() {
        assert_eq!(FrequencySketch::new(1 << 20).bytes(), 4 << 20);
        assert_eq!(FrequencySketch::new(0).bytes(), 64);
    }
}
