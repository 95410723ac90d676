//! Shards: which partitions this instance may serve under `exclusive`, where several instances
//! share the tables as a ring. Each shard has one owner, and an epoch that grows with every change
//! of the owner.
//!
//! - A row carries a claim that is made of the instance's claim, its shard and the shard's epoch
//!   ([`claim_of`]). So a row that was cached under an earlier epoch is a miss.
//! - The caller drives the ring. It calls [`Shards::set`] with each new map, before anybody else
//!   may own what this instance has lost.

use std::sync::atomic::{AtomicU32, Ordering};

/// The last epoch in which a shard is served. A change of the owner each second takes 136 years.
pub const LAST_EPOCH: u64 = u32::MAX as u64 - 1;

/// The shards of a ring, as far as this instance owns them.
#[derive(Debug)]
pub struct Shards {
    /// For each shard its epoch and one, or 0 where it is not ours. Each read looks at one of
    /// them, so they are small: 4,096 are 16 KiB.
    epochs: Box<[AtomicU32]>,
}

impl Shards {
    /// For a ring of `count` shards, a power of two. None of them is ours.
    ///
    /// # Panics
    /// When `count` is no power of two.
    pub fn new(count: usize) -> Shards {
        assert!(count.is_power_of_two(), "{count} shards: not a power of two");
        Shards { epochs: (0..count).map(|_| AtomicU32::new(0)).collect() }
    }

    /// From now on exactly these are ours, each with its epoch. A shard whose owner has changed
    /// more than [`LAST_EPOCH`] times is nobody's: its rows pass through.
    pub fn set(&self, owned: &[(usize, u64)]) {
        let mut next = vec![0; self.epochs.len()];
        for (shard, epoch) in owned.iter().filter(|(_, epoch)| *epoch <= LAST_EPOCH) {
            next[*shard] = *epoch as u32 + 1;
        }
        for (known, next) in self.epochs.iter().zip(next) {
            known.store(next, Ordering::Release);
        }
    }

    /// The shard of a Murmur3 token: its top bits, counted from the smallest token.
    pub fn shard_of(&self, token: i64) -> usize {
        let bits = self.epochs.len().trailing_zeros();
        let from_least = (token as u64) ^ (1 << 63);
        if bits == 0 { 0 } else { (from_least >> (64 - bits)) as usize }
    }

    /// The shard of a token and its epoch, if it is ours.
    pub fn owned(&self, token: i64) -> Option<(usize, u64)> {
        let shard = self.shard_of(token);
        let epoch = self.epochs[shard].load(Ordering::Acquire).checked_sub(1)?;
        Some((shard, u64::from(epoch)))
    }
}

/// The claim that rows of a shard carry in one epoch, never zero. `claim` is the instance's own.
pub fn claim_of(claim: u64, shard: usize, epoch: u64) -> u64 {
    // SplitMix64's finaliser over all three: equal claims of different epochs are as likely as
    // equal random numbers.
    let mix = |value: u64| {
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    let of_shard = mix(claim ^ (shard as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mix(of_shard ^ epoch.wrapping_add(0x9e37_79b9_7f4a_7c15)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_a_range_of_tokens_and_what_is_lost_is_not_ours() {
        let shards = Shards::new(4);
        assert_eq!([i64::MIN, -1, 0, i64::MAX].map(|token| shards.shard_of(token)), [0, 1, 2, 3]);
        assert_eq!(shards.owned(0), None);
        shards.set(&[(2, 0), (3, 7)]);
        assert_eq!([0, i64::MAX].map(|token| shards.owned(token)), [Some((2, 0)), Some((3, 7))]);
        shards.set(&[(3, 8)]);
        assert_eq!([0, i64::MAX].map(|token| shards.owned(token)), [None, Some((3, 8))]);
        assert_eq!(Shards::new(1).shard_of(i64::MAX), 0);
    }

    #[test]
    fn a_shard_whose_epochs_are_used_up_is_not_served_under_an_earlier_one() {
        let shards = Shards::new(2);
        shards.set(&[(0, LAST_EPOCH), (1, LAST_EPOCH + 1)]);
        assert_eq!([i64::MIN, 0].map(|token| shards.owned(token)), [Some((0, LAST_EPOCH)), None]);
        shards.set(&[(0, u64::MAX), (1, 1 << 32 | 7)]);
        assert_eq!([i64::MIN, 0].map(|token| shards.owned(token)), [None, None]);
    }

    #[test]
    fn claims_of_other_instances_shards_and_epochs_differ() {
        let mut seen = std::collections::HashSet::new();
        for claim in [1, 2, u64::MAX] {
            for shard in 0..64 {
                for epoch in 0..64 {
                    assert!(seen.insert(claim_of(claim, shard, epoch)));
                }
            }
        }
        assert!(!seen.contains(&0));
    }
}
