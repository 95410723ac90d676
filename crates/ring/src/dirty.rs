//! Dirty bits: for each shard and epoch, which of its slots a write has touched. A bit is set
//! before the write is granted.
//!
//! A row of an older epoch counts only if its slot is clean in every later epoch. The bits of all
//! of these must be known.

use std::collections::BTreeMap;

/// Words of the bitmap of one shard and epoch.
pub const WORDS: usize = 16;

/// The bits of one shard in one epoch.
pub type Bits = [u64; WORDS];

#[derive(Debug, Default, Clone)]
pub struct DirtyBits {
    /// By shard and epoch.
    pub(crate) bits: BTreeMap<(u16, u64), Bits>,
}

fn place(token: i64) -> (usize, u64) {
    let slot = (token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    ((slot / 64) as usize % WORDS, 1 << (slot % 64))
}

impl DirtyBits {
    /// A new epoch begins here with clean bits. An epoch that is held already keeps its bits.
    pub fn begin(&mut self, shard: u16, epoch: u64) {
        self.bits.entry((shard, epoch)).or_insert([0; WORDS]);
    }

    /// Notes a write to a token.
    pub fn set(&mut self, shard: u16, epoch: u64, token: i64) {
        if let Some(bits) = self.bits.get_mut(&(shard, epoch)) {
            let (word, bit) = place(token);
            bits[word] |= bit;
        }
    }

    /// Notes a write to everything.
    pub fn set_all(&mut self, shard: u16, epoch: u64) {
        if let Some(bits) = self.bits.get_mut(&(shard, epoch)) {
            *bits = [u64::MAX; WORDS];
        }
    }

    /// Takes in the bits of an epoch from another member. What is set already stays set.
    pub fn learn(&mut self, shard: u16, epoch: u64, words: &[u64]) {
        let Ok(bits) = Bits::try_from(words) else { return };
        let known = self.bits.entry((shard, epoch)).or_insert([0; WORDS]);
        known.iter_mut().zip(bits).for_each(|(known, more)| *known |= more);
    }

    /// Whether the slot of a token is clean in every epoch after `from` up to `to`.
    pub fn is_clean(&self, shard: u16, token: i64, from: u64, to: u64) -> bool {
        let (word, bit) = place(token);
        to - from <= CHAIN
            && (from + 1..=to)
                .all(|e| self.bits.get(&(shard, e)).is_some_and(|b| b[word] & bit == 0))
    }

    /// What is known of a shard, for a member that takes it over.
    pub fn of(&self, shard: u16) -> Vec<(u64, Vec<u64>)> {
        let of = self.bits.range((shard, 0)..=(shard, u64::MAX));
        of.map(|((_, epoch), bits)| (*epoch, bits.to_vec())).collect()
    }

    /// Forgets epochs that no chain reaches any more.
    pub fn tidy(&mut self, shard: u16, epoch: u64) {
        let oldest = epoch.saturating_sub(CHAIN);
        self.bits.retain(|(s, e), _| *s != shard || *e >= oldest);
    }
}

/// How many epochs back a row may count.
const CHAIN: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_only_over_epochs_that_are_known_and_clean() {
        let mut dirty = DirtyBits::default();
        dirty.begin(3, 5);
        assert!(dirty.is_clean(3, 77, 4, 5) && !dirty.is_clean(3, 77, 3, 5));
        dirty.learn(3, 4, &[0; WORDS]);
        assert!(dirty.is_clean(3, 77, 3, 5));
        dirty.set(3, 5, 77);
        dirty.begin(3, 5);
        assert!(!dirty.is_clean(3, 77, 4, 5) && dirty.is_clean(3, 77, 5, 5));
        dirty.set_all(3, 4);
        assert!(!dirty.is_clean(3, 78, 3, 4));
    }
}
