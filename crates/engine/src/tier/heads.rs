//! The buckets of the hash table: the first record of each.
//!
//! Linear hashing: the table grows and shrinks by one bucket. It lies in segments, so that it is
//! never copied, and takes no more than its buckets need.

use super::slab::NIL;

/// Buckets of a segment.
const SEGMENT: usize = 256;
/// What a segment takes, with its place in the directory and what the allocator takes.
const SEGMENT_BYTES: usize = SEGMENT * size_of::<u32>() + 2 * size_of::<usize>() + 16;

/// First records of buckets; at least one bucket.
#[expect(clippy::vec_box, reason = "growing the directory must not copy the segments")]
pub(super) struct Heads {
    segments: Vec<Box<[u32; SEGMENT]>>,
    len: usize,
}

impl Heads {
    /// Memory that an empty table takes.
    pub(super) const FIXED: usize = SEGMENT_BYTES + Self::EACH;
    /// Memory that one more bucket takes, on average.
    pub(super) const EACH: usize = SEGMENT_BYTES.div_ceil(SEGMENT);

    pub(super) fn new() -> Self {
        Self { segments: vec![Box::new([NIL; SEGMENT])], len: 1 }
    }

    /// Buckets.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory taken, or a little more: each bucket is paid for before its segment is made.
    pub(super) fn memory(&self) -> usize {
        SEGMENT_BYTES + self.len * Self::EACH
    }

    /// The bits of a hash that choose its bucket: neither the lowest, which chose the shard, nor
    /// the top ones, which are the index's tag.
    fn bits(hash: u64) -> u32 {
        (hash >> 16) as u32
    }

    /// The buckets' order in which a bucket has a whole range of hashes, however many buckets there
    /// are: by the bits that choose it, lowest first.
    pub(super) fn order(hash: u64) -> u32 {
        Self::bits(hash).reverse_bits()
    }

    /// The bucket of a hash: as many of its bits as cover the table, one fewer where the table has
    /// not grown so far yet.
    pub(super) fn bucket(&self, hash: u64) -> usize {
        self.chosen(Self::bits(hash))
    }

    fn chosen(&self, bits: u32) -> usize {
        let mask = self.len.next_power_of_two() - 1;
        match bits as usize & mask {
            bucket if bucket < self.len => bucket,
            beyond => beyond & (mask >> 1),
        }
    }

    /// The bucket at a place of [`Self::order`], and behind which place the next one begins.
    pub(super) fn bucket_at(&self, order: u32) -> (usize, u64) {
        let bucket = self.chosen(order.reverse_bits());
        let all = self.len.next_power_of_two();
        let (half, bits) = (all / 2, all.ilog2());
        // One that is not parted yet has the range of both.
        let is_whole = all > 1 && bucket < half && bucket + half >= self.len;
        let bits = if is_whole { bits - 1 } else { bits };
        (bucket, u64::from((bucket as u32).reverse_bits()) + (1_u64 << (32 - bits)))
    }

    /// The first record of a bucket.
    pub(super) fn head(&self, bucket: usize) -> &u32 {
        &self.segments[bucket / SEGMENT][bucket % SEGMENT]
    }

    /// The same, if there are so many buckets.
    pub(super) fn get(&self, bucket: usize) -> Option<u32> {
        (bucket < self.len).then(|| *self.head(bucket))
    }

    /// The first record of the bucket of a hash, to be changed.
    pub(super) fn head_mut(&mut self, hash: u64) -> &mut u32 {
        let bucket = self.bucket(hash);
        self.at_mut(bucket)
    }

    fn at_mut(&mut self, bucket: usize) -> &mut u32 {
        &mut self.segments[bucket / SEGMENT][bucket % SEGMENT]
    }

    /// Adds a bucket. Gives the one that is parted for it, which is empty now, and its first
    /// record: all records of its chain are to be dealt out again.
    pub(super) fn grow(&mut self) -> (usize, u32) {
        let new = self.len;
        let old = new - (new + 1).next_power_of_two() / 2;
        if new.is_multiple_of(SEGMENT) {
            self.segments.push(Box::new([NIL; SEGMENT]));
        }
        self.len += 1;
        (old, std::mem::replace(self.at_mut(old), NIL))
    }

    /// Takes the last bucket away, of more than one; gives its first record.
    pub(super) fn shrink(&mut self) -> u32 {
        let last = self.len - 1;
        let gone = std::mem::replace(self.at_mut(last), NIL);
        self.len = last;
        if last.is_multiple_of(SEGMENT) {
            self.segments.pop();
            if self.segments.capacity() > 4 * self.segments.len() {
                self.segments.shrink_to(2 * self.segments.len());
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_part_the_order_of_hashes_whatever_their_number() {
        let mut heads = Heads::new();
        for len in 1..600 {
            assert_eq!(heads.len(), len);
            let (mut at, mut seen) = (0, vec![false; len]);
            while at <= u64::from(u32::MAX) {
                let (bucket, end) = heads.bucket_at(at as u32);
                assert!(
                    !std::mem::replace(&mut seen[bucket], true),
                    "{bucket} of {len} comes twice"
                );
                // The first and the last hash of its range are its own, and the one behind is not.
                for order in [at, end - 1] {
                    let hash = u64::from((order as u32).reverse_bits()) << 16;
                    assert_eq!((heads.bucket(hash), Heads::order(hash)), (bucket, order as u32));
                }
                at = end;
            }
            assert!(seen.into_iter().all(|seen| seen), "{len} buckets");
            heads.grow();
        }
        (1..600).for_each(|_| assert_eq!(heads.shrink(), NIL));
        assert_eq!((heads.len(), heads.segments.len(), heads.memory()), (1, 1, Heads::FIXED));
    }
}
