//! The ghost: hashes of objects lately evicted, with the time and the queue of each.
//!
//! It is a bucketed table of 31-bit fingerprints and eviction stamps instead of a queue. An entry
//! is forgotten by its age; in a full bucket the oldest goes first. 8 bytes per remembered object.

use super::fifo::Queue;
use crate::prefetch::prefetch;

const WAYS: usize = 8;
/// Room is made for a quarter more than is remembered, since buckets fill unevenly.
const HEADROOM: (usize, usize) = (5, 4);
const MIN_BUCKETS: usize = 16;
/// Top bit of a fingerprint word: evicted from main.
const FROM_MAIN: u32 = 1 << 31;

/// A fingerprint with its origin bit, and the eviction stamp; fingerprint 0 is an empty place.
type Mark = (u32, u32);

/// The places of a bucket: one cache line.
#[derive(Clone)]
#[repr(align(64))]
struct Bucket([Mark; WAYS]);

const EMPTY: Bucket = Bucket([(0, 0); WAYS]);

pub(super) struct Ghost {
    buckets: Vec<Bucket>,
    /// Evictions from small and from main so far, wrapping.
    now: [u32; 2],
    /// Evictions from the same queue an entry is remembered for.
    limit: u32,
}

/// An object that came back after its eviction.
pub(super) struct Remembered {
    pub(super) from: Queue,
    /// Evictions since its own, at most the limit.
    pub(super) age: u32,
}

impl Ghost {
    /// What an empty one takes.
    pub(super) const LEAST_BYTES: usize = MIN_BUCKETS * size_of::<Bucket>();

    pub(super) fn new() -> Self {
        Self { buckets: vec![EMPTY; MIN_BUCKETS], now: [0; 2], limit: 1 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Asks for the bucket of a hash ahead of remembering or recalling it.
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets[bucket_at(fingerprint(hash), self.buckets.len())]);
    }

    /// Sets how many evictions back it remembers; the table follows, in large steps.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, u32::MAX as usize / 2) as u32;
        let wanted =
            (self.limit as usize * HEADROOM.0 / HEADROOM.1).div_ceil(WAYS).max(MIN_BUCKETS);
        if wanted > self.buckets.len() || wanted * 4 < self.buckets.len() {
            self.resize(wanted + wanted / 4);
        }
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![EMPTY; buckets]);
        for mark in old.into_iter().flat_map(|bucket| bucket.0) {
            if self.age(&mark).is_some() {
                self.place(bucket_at(mark.0 & !FROM_MAIN, buckets), mark);
            }
        }
    }

    /// Age of a mark in evictions, `None` when it is empty or forgotten.
    fn age(&self, mark: &Mark) -> Option<u32> {
        let age = self.now[origin(mark)].wrapping_sub(mark.1);
        (mark.0 != 0 && age < self.limit).then_some(age)
    }

    /// Puts a mark into a bucket: in the place of the same object, or an empty or forgotten one, or
    /// the oldest.
    fn place(&mut self, bucket: usize, mark: Mark) {
        let print = mark.0 & !FROM_MAIN;
        let worth = |old: &Mark| match self.age(old) {
            _ if old.0 & !FROM_MAIN == print => 0,
            None => 1,
            Some(age) => u32::MAX - age,
        };
        let places = self.buckets[bucket].0.iter().map(worth).enumerate();
        if let Some((least, _)) = places.min_by_key(|&(_, worth)| worth) {
            self.buckets[bucket].0[least] = mark;
        }
    }

    /// Remembers an eviction.
    pub(super) fn remember(&mut self, hash: u64, from: Queue) {
        let print = fingerprint(hash);
        let main = from == Queue::Main;
        let now = &mut self.now[usize::from(main)];
        *now = now.wrapping_add(1);
        let mark = (if main { print | FROM_MAIN } else { print }, *now);
        self.place(bucket_at(print, self.buckets.len()), mark);
    }

    /// Whether this object was evicted lately.
    pub(super) fn find(&self, hash: u64) -> Option<Remembered> {
        let (bucket, at) = self.position(hash)?;
        self.told(&self.buckets[bucket].0[at])
    }

    /// The same; forgets it.
    pub(super) fn recall(&mut self, hash: u64) -> Option<Remembered> {
        let (bucket, at) = self.position(hash)?;
        let mark = std::mem::take(&mut self.buckets[bucket].0[at]);
        self.told(&mark)
    }

    fn position(&self, hash: u64) -> Option<(usize, usize)> {
        let print = fingerprint(hash);
        let bucket = bucket_at(print, self.buckets.len());
        let at = self.buckets[bucket].0.iter().position(|mark| mark.0 & !FROM_MAIN == print)?;
        Some((bucket, at))
    }

    fn told(&self, mark: &Mark) -> Option<Remembered> {
        let age = self.age(mark)?;
        Some(Remembered { from: [Queue::Small, Queue::Main][origin(mark)], age })
    }
}

/// The queue a mark comes from, as an index.
fn origin(mark: &Mark) -> usize {
    usize::from(mark.0 & FROM_MAIN != 0)
}

/// 31 bits of the hash, never 0; they choose the bucket too, so that the table can be resized
/// without the hashes.
fn fingerprint(hash: u64) -> u32 {
    ((hash >> 17) as u32 & !FROM_MAIN).max(1)
}

fn bucket_at(print: u32, buckets: usize) -> usize {
    ((u64::from(print) * buckets as u64) >> 31) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash as spread out as a real one.
    fn hash(key: u64) -> u64 {
        (key + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    #[test]
    fn it_remembers_as_many_evictions_as_told_each_once() {
        let mut ghost = Ghost::new();
        ghost.set_limit(1000);
        (0..3000).for_each(|key| ghost.remember(hash(key), Queue::Small));
        let young = (2000..3000).filter(|&key| ghost.recall(hash(key)).is_some()).count();
        assert!(young >= 970, "{young} of the last 1000 are remembered");
        assert!((0..2000).all(|key| ghost.recall(hash(key)).is_none()), "older ones are forgotten");
        assert!((2000..3000).all(|key| ghost.recall(hash(key)).is_none()), "a return is told once");
    }

    #[test]
    fn it_tells_from_where_and_how_long_ago() {
        let mut ghost = Ghost::new();
        ghost.set_limit(100);
        ghost.remember(hash(1), Queue::Main);
        ghost.remember(hash(2), Queue::Small);
        (10..15).for_each(|key| ghost.remember(hash(key), Queue::Small));
        let told = |back: Option<Remembered>| back.map(|back| (back.from, back.age));
        assert_eq!(
            told(ghost.recall(hash(1))),
            Some((Queue::Main, 0)),
            "each queue has its own age"
        );
        assert_eq!(told(ghost.recall(hash(2))), Some((Queue::Small, 5)));
    }

    #[test]
    fn growing_and_shrinking_keeps_what_is_young() {
        let mut ghost = Ghost::new();
        ghost.set_limit(100);
        (0..100).for_each(|key| ghost.remember(hash(key), Queue::Small));
        let small = ghost.bytes();
        ghost.set_limit(100_000);
        assert!(ghost.bytes() > 100 * small && ghost.bytes() <= 100_000 * 13);
        let kept = (0..50).filter(|&key| ghost.recall(hash(key)).is_some()).count();
        assert!(kept >= 48, "{kept} of 50 survive growing");
        ghost.set_limit(100);
        assert!(ghost.bytes() <= 2 * small);
        let kept = (50..100).filter(|&key| ghost.recall(hash(key)).is_some()).count();
        assert!(kept >= 40, "{kept} of 50 survive shrinking");
    }
}
