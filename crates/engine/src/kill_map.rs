//! Kill versions of single keys, while the index loads.
//!
//! The map grows while the cache serves, under the mutex of its shard. It is parted, so that a
//! hash table that grows moves few entries at once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A shard of a full journal of 64 MiB has some 260,000 entries. A part has 4,096 of them then, and
/// moves them in some 50 µs.
const PARTS: usize = 64;

/// By hash: lower versions are dead, wherever they are.
#[derive(Debug, Default, Clone)]
pub struct KillMap {
    parts: Vec<Part>,
}

type Part = HashMap<u64, u64, BuildHasherDefault<Spread>>;

impl KillMap {
    /// An empty map with room for `count` hashes.
    pub fn with_capacity(count: usize) -> Self {
        let part = || Part::with_capacity_and_hasher(count.div_ceil(PARTS), <_>::default());
        Self { parts: (0..PARTS).map(|_| part()).collect() }
    }

    /// The version below which nothing of `hash` is believed.
    pub fn get(&self, hash: u64) -> Option<u64> {
        self.parts.get(part_of(hash))?.get(&hash).copied()
    }

    /// Believes nothing of `hash` below `version` any more. False when it is itself below what is
    /// known.
    pub fn raise(&mut self, hash: u64, version: u64) -> bool {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, Part::default);
        }
        let kill = self.parts[part_of(hash)].entry(hash).or_insert(version);
        let newest = *kill <= version;
        *kill = (*kill).max(version);
        newest
    }

    /// All hashes and their versions.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.parts.iter().flatten().map(|(&hash, &version)| (hash, version))
    }
}

/// Bits that choose neither the shard nor, after [`Spread`], the place in a part.
fn part_of(hash: u64) -> usize {
    (hash >> 58) as usize % PARTS
}

/// Hashes are random already, but all those of a shard have their lowest bits in common, which is
/// where a map looks.
#[derive(Debug, Default, Clone, Copy)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are keys");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::SimRandom;

    #[test]
    fn the_newest_version_of_a_hash_counts() {
        let mut map = KillMap::default();
        assert_eq!(map.get(7), None);
        assert!(map.raise(7, 10));
        assert!(!map.raise(7, 9), "it is below what is known");
        assert!(map.raise(7, 10) && map.raise(7, 11));
        assert_eq!(map.get(7), Some(11));
        assert!(map.raise(7 | 1 << 63, 5));
        let mut all: Vec<_> = map.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [(7, 11), (7 | 1 << 63, 5)]);
    }

    #[test]
    fn no_part_of_a_shard_of_a_full_journal_is_large() {
        let mut random = SimRandom::new(1);
        let mut map = KillMap::default();
        (0..260_000).for_each(|n| assert!(map.raise(random.next_u64() & !15, n)));
        let largest = map.parts.iter().map(Part::len).max();
        assert!(largest < Some(5_000), "{largest:?}");
    }
}
