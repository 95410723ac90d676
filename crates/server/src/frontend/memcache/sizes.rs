//! `stats sizes`: the sizes of a sample of the objects in memory.

use std::collections::BTreeMap;

use afterglow_engine::Stats;

use super::object;
use super::shared::MemcacheShared;

/// Objects looked at: less than a millisecond's work.
const SAMPLED: usize = 4096;
/// Sizes are told in steps of so many bytes, as in memcached.
const STEP: usize = 32;

/// How many objects of memory are about so large, by the upper bound of their size.
pub fn histogram(front_end: &MemcacheShared, stats: &Stats) -> BTreeMap<usize, u64> {
    let mut counts = BTreeMap::new();
    let sampled = front_end.store.objects.sample_dram(SAMPLED, |object| {
        if let Some(item) = object::decode_kept(object) {
            let size = item.counted_size(object.key).next_multiple_of(STEP);
            *counts.entry(size).or_insert(0) += 1;
        }
    });
    scale(&mut counts, sampled, stats.dram_objects);
    counts
}

/// Makes of a sample what it says of `all`.
fn scale(counts: &mut BTreeMap<usize, u64>, sampled: u64, all: u64) {
    if sampled < all {
        for count in counts.values_mut() {
            *count = (u128::from(*count) * u128::from(all) / u128::from(sampled.max(1))) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_stands_for_all() {
        let mut counts = BTreeMap::from([(64, 3), (96, 1)]);
        scale(&mut counts, 4, 4);
        assert_eq!(counts, [(64, 3), (96, 1)].into());
        scale(&mut counts, 4, 400);
        assert_eq!(counts, [(64, 300), (96, 100)].into());
    }
}
