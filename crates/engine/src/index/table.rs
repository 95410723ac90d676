//! Lines of atomic slots, and moves between lines that stay correct for readers without locks.
//!
//! Only one thread at a time writes (the owner of the `IndexWriter`). Readers at most raise a
//! slot's frequency by a compare-and-swap on the whole word, which fails if the writer has changed
//! it.
//!
//! Moving a slot between its lines has three steps: copy, count, clear. A reader that missed both
//! copies has seen the cleared one. So it sees the count changed, and looks again.

#![allow(unsafe_code)]

use super::slot::{Slot, tag_of};
use crate::prefetch::prefetch;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Slots in a line.
pub const SLOTS_PER_LINE: usize = 8;
/// Bytes of a line.
pub const LINE_BYTES: usize = 64;

/// Times a reader looks again because slots moved under it; after that it reports a miss, which is
/// always allowed.
const LOOKUP_RETRIES: usize = 4;

/// One cache line.
#[repr(C, align(64))]
struct Line([AtomicU64; SLOTS_PER_LINE]);

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// A slot's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotPosition {
    line: usize,
    at: usize,
}

pub(super) struct Table {
    lines: Box<[Line]>,
    /// Occupied slots; written by the writer only.
    len: AtomicUsize,
    /// Moves between lines so far.
    moves: AtomicU64,
}

impl Table {
    pub(super) fn new(lines: usize) -> Self {
        assert!(lines > 0, "an index has at least one line");
        Self { lines: empty_lines(lines), len: AtomicUsize::new(0), moves: AtomicU64::new(0) }
    }

    pub(super) fn lines(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The line of a hash's low 48 bits, scaled to the number of lines.
    pub(super) fn first_line(&self, hash: u64) -> usize {
        ((u128::from(hash << 16) * self.lines.len() as u128) >> 64) as usize
    }

    /// A line and the other one for this tag: `pair(other, tag)` gives the same two, swapped.
    pub(super) fn pair(&self, line: usize, tag: u16) -> [usize; 2] {
        let lines = self.lines.len();
        // mix(tag) - line modulo lines, without going below zero.
        let sum = (mix(tag) % lines as u64) as usize;
        let other = if sum >= line { sum - line } else { sum + lines - line };
        [line, other]
    }

    pub(super) fn lines_of(&self, hash: u64) -> [usize; 2] {
        self.pair(self.first_line(hash), tag_of(hash))
    }

    pub(super) fn prefetch(&self, hash: u64) {
        self.lines_of(hash).into_iter().for_each(|line| prefetch(&self.lines[line]));
    }

    fn load(&self, place: SlotPosition) -> Option<Slot> {
        Slot::from_word(self.lines[place.line].0[place.at].load(Ordering::Acquire))
    }

    fn places(line: usize) -> impl Iterator<Item = SlotPosition> {
        (0..SLOTS_PER_LINE).map(move |at| SlotPosition { line, at })
    }

    /// The slot of this tag in the two lines, in one pass.
    pub(super) fn find_in(&self, lines: [usize; 2], tag: u16) -> Option<(SlotPosition, Slot)> {
        lines.into_iter().flat_map(Self::places).find_map(|place| {
            let slot = self.load(place).filter(|slot| slot.tag() == tag)?;
            Some((place, slot))
        })
    }

    /// The slot of a hash; looks again when a move may have hidden it.
    pub(super) fn find(&self, hash: u64) -> Option<(SlotPosition, Slot)> {
        let (lines, tag) = (self.lines_of(hash), tag_of(hash));
        let mut moves = self.moves.load(Ordering::Acquire);
        for _ in 0..LOOKUP_RETRIES {
            if let Some(found) = self.find_in(lines, tag) {
                return Some(found);
            }
            let now = self.moves.load(Ordering::Acquire);
            if now == moves {
                return None;
            }
            moves = now;
        }
        None
    }

    /// Counts a lookup, unless the slot has changed since it was seen.
    pub(super) fn bump(&self, place: SlotPosition, seen: Slot) {
        if seen.freq() < 3 {
            let word = &self.lines[place.line].0[place.at];
            let bumped = seen.with_freq(seen.freq() + 1).word();
            // Losing the race costs one count of a popularity estimate.
            let _ =
                word.compare_exchange(seen.word(), bumped, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Writer only: stores a slot, or empties it.
    pub(super) fn set(&self, place: SlotPosition, slot: Option<Slot>) {
        let word = &self.lines[place.line].0[place.at];
        let was = word.swap(slot.map_or(0, Slot::word), Ordering::Release);
        let len = self.len() + usize::from(slot.is_some()) - usize::from(was != 0);
        self.len.store(len, Ordering::Relaxed);
    }

    /// A free slot in a line.
    pub(super) fn free_in(&self, line: usize) -> Option<SlotPosition> {
        Self::places(line).find(|&place| self.load(place).is_none())
    }

    /// A free slot in the emptier of the two lines.
    pub(super) fn free_place(&self, lines: [usize; 2]) -> Option<SlotPosition> {
        let free = lines
            .map(|line| Self::places(line).filter(|&place| self.load(place).is_none()).count());
        let line = lines[usize::from(free[1] > free[0])];
        self.free_in(line)
    }

    /// Writer only: frees a slot in one of some full lines by moving a slot to its other line. If
    /// none of those has space and `depth` allows, space is made there first. In the end
    /// `depth + 1` slots have moved. Each step of depth looks at 8 times more lines. No slot moves
    /// from line `captured` or a later one to an earlier one.
    pub(super) fn make_room(
        &self,
        lines: &[usize],
        depth: usize,
        captured: usize,
    ) -> Option<SlotPosition> {
        let places = || lines.iter().flat_map(|&line| Self::places(line));
        let other = |from: SlotPosition| {
            let to = self.pair(from.line, self.load(from)?.tag())[1];
            (from.line < captured || to >= captured).then_some(to)
        };
        let near = places().find_map(|from| Some((from, self.free_in(other(from)?)?)));
        let (from, to) = match near {
            None if depth == 0 => return None,
            None => places().find_map(|from| {
                Some((from, self.make_room(&[other(from)?], depth - 1, captured)?))
            })?,
            Some(found) => found,
        };
        self.move_slot(from, to);
        Some(from)
    }

    /// Writer only: copy, count, clear; see the head of this file.
    pub(super) fn move_slot(&self, from: SlotPosition, to: SlotPosition) {
        coverage_mark!(Displaced);
        let slot = self.load(from);
        self.set(to, slot);
        self.moves.fetch_add(1, Ordering::Release);
        self.set(from, None);
    }

    /// Writer only: the least used slot of two full lines, by the clock algorithm. It goes round
    /// from `hand` and lowers the frequency of every slot passed, until one has none left.
    pub(super) fn clock(&self, lines: [usize; 2], hand: usize) -> (SlotPosition, Slot) {
        let places = |n: usize| {
            let n = (hand + n) % (2 * SLOTS_PER_LINE);
            SlotPosition { line: lines[n / SLOTS_PER_LINE], at: n % SLOTS_PER_LINE }
        };
        for n in 0.. {
            let place = places(n);
            let slot = self.load(place).expect("lines without a free slot");
            if slot.freq() == 0 {
                return (place, slot);
            }
            self.set(place, Some(slot.with_freq(slot.freq() - 1)));
            // Readers may raise frequencies while the hand goes round: after the rounds it takes
            // without them, any goes.
            if n >= 4 * 2 * SLOTS_PER_LINE {
                return (place, slot);
            }
        }
        unreachable!("the loop above is bounded by its last condition")
    }

    /// The words of a line.
    pub(super) fn words(&self, line: usize) -> [u64; SLOTS_PER_LINE] {
        std::array::from_fn(|at| self.lines[line].0[at].load(Ordering::Acquire))
    }

    /// Writer only: empties every slot.
    pub(super) fn clear(&self) {
        for line in 0..self.lines() {
            for place in Self::places(line) {
                self.set(place, None);
            }
        }
    }
}

/// Spreads a tag over 64 bits (the finalizer of SplitMix64).
fn mix(tag: u16) -> u64 {
    let mut x = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Zeroed lines straight from the allocator, so that a large index costs nothing to open: the
/// kernel gives zero pages when they are first touched.
#[cfg(not(any(loom, shuttle)))]
fn empty_lines(lines: usize) -> Box<[Line]> {
    // SAFETY: a Line is eight AtomicU64, for which all bytes zero is a valid value.
    unsafe { Box::new_zeroed_slice(lines).assume_init() }
}

#[cfg(any(loom, shuttle))]
fn empty_lines(lines: usize) -> Box<[Line]> {
    (0..lines).map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))).collect()
}
