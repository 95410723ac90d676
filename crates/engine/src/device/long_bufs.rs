//! Long read buffers that a thread keeps for its next reads.
//!
//! A buffer of 128 KiB and more is a mapping of its own. Making one, touching its pages for the
//! first time and unmapping it cost more than half of the CPU of a get of 1 MiB from flash. So a
//! thread that is allowed to keeps them. Which memory that is, is for the caller to say: at first
//! it is none.
//!
//! Buffers have classes, as many as there are lengths worth telling apart. A read takes the one of
//! its class that came last, whose bytes are likeliest in the processor's cache. Where there is no
//! room, the one that has waited longest goes.

use std::collections::{BTreeMap, VecDeque};

/// Steps of an octave: a buffer is at most a sixteenth longer than its read.
const STEPS: usize = 16;

/// Buffers of kind `B`, kept by capacity.
pub(super) struct LongBufs<B> {
    /// Of each capacity, those that came first in front, each with the number of its coming.
    kept: BTreeMap<usize, VecDeque<(u64, B)>>,
    came: u64,
    bytes: usize,
    /// Bytes that may be kept.
    most: usize,
    /// Fewest bytes that were kept since somebody asked what is not used.
    least: usize,
}

impl<B> Default for LongBufs<B> {
    fn default() -> Self {
        Self { kept: BTreeMap::new(), came: 0, bytes: 0, most: 0, least: 0 }
    }
}

/// The capacity of a buffer for a read of `len` bytes: a multiple of `unit`.
pub(super) fn capacity_of(len: usize, unit: usize) -> usize {
    let step = ((len.max(1).next_power_of_two() / 2) / STEPS).max(unit);
    len.max(1).next_multiple_of(step)
}

impl<B> LongBufs<B> {
    /// From now on so many bytes may be kept. What is kept beyond goes when a buffer comes, or when
    /// [`LongBufs::shrink`] is called.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer of this capacity.
    pub(super) fn take(&mut self, capacity: usize) -> Option<B> {
        let class = self.kept.get_mut(&capacity)?;
        let (_, buf) = class.pop_back()?;
        if class.is_empty() {
            self.kept.remove(&capacity);
        }
        self.bytes -= capacity;
        self.least = self.least.min(self.bytes);
        Some(buf)
    }

    /// Keeps a buffer, if so much may be kept at all. What goes is handed to `free`.
    pub(super) fn keep(&mut self, capacity: usize, buf: B, mut free: impl FnMut(B)) {
        if capacity > self.most {
            return free(buf);
        }
        self.shrink(self.most - capacity, free);
        self.came += 1;
        self.bytes += capacity;
        self.kept.entry(capacity).or_default().push_back((self.came, buf));
        debug_assert!(self.bytes <= self.most);
    }

    /// Hands what has waited longest to `free`, until no more than `most` bytes are kept, nor more
    /// than may be.
    pub(super) fn shrink(&mut self, most: usize, mut free: impl FnMut(B)) {
        let most = most.min(self.most);
        while self.bytes > most {
            let first = |(_, class): &(&usize, &VecDeque<(u64, B)>)| class[0].0;
            let Some((&capacity, _)) = self.kept.iter().min_by_key(first) else { return };
            let oldest = self.kept.get_mut(&capacity).and_then(VecDeque::pop_front);
            if self.kept.get(&capacity).is_some_and(VecDeque::is_empty) {
                self.kept.remove(&capacity);
            }
            self.bytes -= capacity;
            oldest.into_iter().for_each(|(_, buf)| free(buf));
        }
        self.least = self.least.min(self.bytes);
    }

    /// Hands to `free` as many bytes as were kept all the time since the last call.
    pub(super) fn shrink_unused(&mut self, free: impl FnMut(B)) {
        self.shrink(self.bytes - self.least, free);
        self.least = self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(bufs: &mut LongBufs<u32>, capacity: usize, buf: u32) -> Vec<u32> {
        let mut freed = Vec::new();
        bufs.keep(capacity, buf, |buf| freed.push(buf));
        freed
    }

    #[test]
    fn nothing_is_kept_unless_it_may_be() {
        let mut bufs = LongBufs::default();
        assert_eq!(kept(&mut bufs, 4096, 1), [1]);
        bufs.set_most(4096);
        assert!(kept(&mut bufs, 4096, 2).is_empty());
        assert_eq!(kept(&mut bufs, 8192, 3), [3]);
        assert_eq!((bufs.take(8192), bufs.take(4096), bufs.take(4096)), (None, Some(2), None));
        assert_eq!(bufs.bytes(), 0);
    }

    #[test]
    fn what_came_last_is_taken_and_what_waited_longest_goes() {
        let mut bufs = LongBufs::default();
        bufs.set_most(10);
        for (capacity, buf) in [(4, 1), (2, 2), (4, 3)] {
            assert!(kept(&mut bufs, capacity, buf).is_empty());
        }
        assert_eq!(kept(&mut bufs, 2, 4), [1]);
        assert_eq!(bufs.bytes(), 8);
        assert_eq!((bufs.take(2), bufs.take(2), bufs.take(2)), (Some(4), Some(2), None));
        bufs.set_most(3);
        let mut freed = Vec::new();
        bufs.shrink(10, |buf| freed.push(buf));
        assert_eq!((freed, bufs.bytes()), (vec![3], 0));
    }

    #[test]
    fn what_nobody_took_is_given_back() {
        let mut bufs = LongBufs::default();
        bufs.set_most(100);
        (0..5).for_each(|buf| assert!(kept(&mut bufs, 10, buf).is_empty()));
        let mut freed = Vec::new();
        bufs.shrink_unused(|buf| freed.push(buf));
        assert!(freed.is_empty(), "they have just come");
        let (a, b) = (bufs.take(10).unwrap(), bufs.take(10).unwrap());
        assert!(kept(&mut bufs, 10, a).is_empty() && kept(&mut bufs, 10, b).is_empty());
        bufs.shrink_unused(|buf| freed.push(buf));
        assert_eq!((freed.len(), bufs.bytes()), (3, 20));
        bufs.shrink_unused(|buf| freed.push(buf));
        assert_eq!((freed.len(), bufs.bytes()), (5, 0));
    }

    #[test]
    fn a_capacity_is_a_sixteenth_too_long_at_most() {
        for len in (1..3000).map(|n| n * 4096) {
            let capacity = capacity_of(len, 4096);
            assert!(capacity >= len && capacity.is_multiple_of(4096));
            assert!(capacity - len < (len / STEPS).max(4096), "{len}");
            assert_eq!(capacity_of(capacity, 4096), capacity, "a class of its own");
        }
    }
}
