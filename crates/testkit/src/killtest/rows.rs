//! The table under test: keys are numbers, values say of themselves which write they are of.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use afterglow_cql::token::murmur3;
use afterglow_engine::PARTITION_SHIFT;
use afterglow_loadgen::rng::mix;

/// Rows of a partition.
pub(super) const PARTITION: u64 = 8;
/// What every value begins with, so that values can be found among other bytes.
pub(super) const MAGIC: [u8; 8] = *b"\xA7glow\x1Eva";
/// Magic, key, number, length.
const HEAD: usize = 32;

/// A table's rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// How many keys.
    pub(super) keys: u64,
    /// No value is longer.
    pub(super) largest: u64,
}

impl Rows {
    /// Length of a value: most are small, a few in a hundred are hundreds of kilobytes, about 11
    /// KiB on average.
    pub(super) fn size(&self, key: u64, number: u64) -> u64 {
        let (from, to) = match mix(key) % 100 {
            0..55 => (100, 1_000),
            55..85 => (1_000, 8_000),
            85..97 => (8_000, 64_000),
            _ => (64_000, 300_000),
        };
        (from + mix(mix(key) ^ number) % (to - from)).min(self.largest)
    }

    /// Keys that nobody writes once they are there: what is served of them is the same before and
    /// after a crash.
    pub(super) fn is_still(key: u64) -> bool {
        (key / PARTITION).is_multiple_of(2)
    }

    /// Partitions that share their epoch with another one of the table. A delete of the other
    /// partition takes their rows out of the cache as well, of which nobody is told: there are 2^20
    /// epochs.
    pub(super) fn sharing_an_epoch(self) -> HashSet<u64> {
        let mut by_epoch: HashMap<u64, Vec<u64>> = HashMap::new();
        for partition in 0..self.keys.div_ceil(PARTITION) {
            let token = murmur3(columns(partition * PARTITION).0.as_bytes());
            by_epoch.entry(token as u64 >> PARTITION_SHIFT).or_default().push(partition);
        }
        by_epoch.into_values().filter(|sharing| sharing.len() > 1).flatten().collect()
    }

    /// The keys of the same partition.
    pub(super) fn partition(&self, key: u64) -> Range<u64> {
        let first = key / PARTITION * PARTITION;
        first..(first + PARTITION).min(self.keys)
    }
}

/// The number of the `n`-th write.
pub(super) fn number_of(n: u64, expires: bool) -> u64 {
    2 * n + u64::from(expires)
}

/// Whether what the write wrote has a time to live.
pub(super) fn expires(number: u64) -> bool {
    !number.is_multiple_of(2)
}

/// Partition key and clustering column.
pub(super) fn columns(key: u64) -> (String, [u8; 4]) {
    (format!("part{:07}", key / PARTITION), ((key % PARTITION) as i32).to_be_bytes())
}

/// The key of a row.
pub(super) fn key_of(partition: &[u8], clustering: &[u8]) -> Option<u64> {
    let partition: u64 = std::str::from_utf8(partition).ok()?.strip_prefix("part")?.parse().ok()?;
    let clustering = i32::from_be_bytes(clustering.try_into().ok()?);
    Some(partition * PARTITION + u64::try_from(clustering).ok()?)
}

/// The value of `key` that write `number` writes.
pub(super) fn value(key: u64, number: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len as usize + 8);
    out.extend_from_slice(&MAGIC);
    [key, number, len].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    let seed = mix(mix(key) ^ number);
    (0u64..).take((len as usize).saturating_sub(HEAD).div_ceil(8)).for_each(|i| {
        out.extend_from_slice(&mix(seed.wrapping_add(i)).to_le_bytes());
    });
    out.truncate(len as usize);
    out
}

/// Key, number and length that the start of a value claims.
pub(super) fn head(bytes: &[u8]) -> Option<(u64, u64, u64)> {
    let head = bytes.first_chunk::<HEAD>()?;
    let word =
        |i: usize| u64::from_le_bytes(head[8 * i..8 * i + 8].try_into().expect("eight bytes"));
    (head[..8] == MAGIC).then(|| (word(1), word(2), word(3)))
}

/// The number of the write that `bytes` are of, if they are a whole value of `key` in every byte.
pub(super) fn number(key: u64, bytes: &[u8]) -> Option<u64> {
    let (found, number, len) = head(bytes)?;
    (found == key && len == bytes.len() as u64 && bytes == value(key, number, len))
        .then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_again_and_any_other_byte_is_not_it() {
        for len in [40, 100, 4_093] {
            let bytes = value(7, 12, len);
            assert_eq!(number(7, &bytes), Some(12));
            assert_eq!(number(8, &bytes), None, "another key's");
            assert_eq!(number(7, &bytes[..bytes.len() - 1]), None, "cut");
            for at in [0, 9, 17, 25, 33, bytes.len() - 1] {
                let mut flipped = bytes.clone();
                flipped[at] ^= 4;
                assert_ne!(number(7, &flipped), Some(12), "byte {at}");
            }
        }
    }

    #[test]
    fn some_partitions_share_an_epoch() {
        let sharing = |keys| Rows { keys, largest: 1 }.sharing_an_epoch();
        assert_eq!(sharing(8 * 230), HashSet::new());
        assert_eq!(sharing(8 * 231), HashSet::from([109, 230]));
        assert_eq!(sharing(10_000), HashSet::from([109, 230]), "one is written, the other is not");
    }

    #[test]
    fn keys_survive_their_columns_and_sizes_are_mixed() {
        for key in [0, 7, 8, 12_345] {
            let (partition, clustering) = columns(key);
            assert_eq!(key_of(partition.as_bytes(), &clustering), Some(key));
        }
        let rows = Rows { keys: 10_000, largest: 250_000 };
        let sizes: Vec<u64> = (0..rows.keys).map(|key| rows.size(key, 1)).collect();
        assert!(sizes.iter().all(|size| (100..=250_000).contains(size)));
        let mean = sizes.iter().sum::<u64>() / rows.keys;
        assert!((9_000..14_000).contains(&mean), "{mean}");
    }
}
