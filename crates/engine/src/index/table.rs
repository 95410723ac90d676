//! Lines of atomic slots, and moves between lines that stay correct for readers without locks.
//!
//! Only one thread at a time writes (the owner of the `IndexWriter`). Readers at most raise a
//! slot's frequency by a compare-and-swap on the whole word, which fails if the writer has changed
//! it.
//!
//! Moving a slot between its lines has three steps: copy, count, clear. A reader that missed both
//! copies has seen the cleared one. So it sees the count changed, and looks again.
//!
//! Adding a line ([`Table::grow`]) has four: copy the slots that belong there, publish the extent,
//! count, clear. A reader computes a key's lines after it has read the count. If it has missed a
//! slot by the lines of before, it sees the count changed, and with it the extent.
//!
//! Invariants:
//! - A slot is in a line that its tag and the extent name; twice only while it moves.
//! - A line beyond the extent is empty.

#![allow(unsafe_code)]

use super::divisor::Divisor;
use super::extent::{Extent, MAX_GROUP, line_in_group};
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
    /// Memory for as many lines as there may ever be; the system gives what is touched.
    lines: Lines,
    /// Lines that hashes name.
    base: usize,
    /// The same, to divide by: each operation names lines several times.
    divisor: Divisor,
    /// The [`Extent`]; written by the writer only.
    extent: AtomicU64,
    /// Occupied slots; written by the writer only.
    len: AtomicUsize,
    /// Moves between lines so far.
    moves: AtomicU64,
}

impl Table {
    /// A table of `base` lines that may grow to `most`.
    pub(super) fn new(base: usize, most: usize) -> Self {
        assert!(base > 0, "an index has at least one line");
        assert!((base..=base * MAX_GROUP).contains(&most), "{most} lines over {base}");
        Self {
            lines: Lines::empty(most),
            base,
            divisor: Divisor::new(base),
            extent: AtomicU64::new(Extent::of(base, base).word()),
            len: AtomicUsize::new(0),
            moves: AtomicU64::new(0),
        }
    }

    pub(super) fn base(&self) -> usize {
        self.base
    }

    fn extent(&self) -> Extent {
        Extent::from_word(self.extent.load(Ordering::Acquire))
    }

    pub(super) fn lines(&self) -> usize {
        self.extent().lines(self.base)
    }

    /// Lines there may be at most.
    pub(super) fn most(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The base line of a hash: its low 48 bits, scaled to the number of base lines.
    fn base_line(&self, hash: u64) -> usize {
        ((u128::from(hash << 16) * self.base as u128) >> 64) as usize
    }

    /// The base line of any line.
    fn base_of(&self, line: usize) -> usize {
        if line < self.base { line } else { line % self.base }
    }

    /// The other base line for a tag: that of the other one is this one.
    fn other_base(&self, base_line: usize, mix: u64) -> usize {
        // mix - line modulo lines, without going below zero.
        let sum = self.divisor.rest(mix);
        if sum >= base_line { sum - base_line } else { sum + self.base - base_line }
    }

    /// The line that now holds a tag of a base line's group.
    fn line_for(&self, extent: Extent, base_line: usize, mix: u64) -> usize {
        match extent.group(base_line) {
            1 => base_line,
            group => base_line + self.base * line_in_group(mix, group),
        }
    }

    /// The two lines of a tag, one of them in the group of `line`, which may be of any extent.
    /// `pair(other, tag)` gives the same two, swapped.
    pub(super) fn pair(&self, line: usize, tag: u16) -> [usize; 2] {
        let (extent, mix, first) = (self.extent(), mix(tag), self.base_of(line));
        [first, self.other_base(first, mix)].map(|line| self.line_for(extent, line, mix))
    }

    /// The two lines of a hash.
    pub(super) fn lines_of(&self, hash: u64) -> [usize; 2] {
        self.pair(self.base_line(hash), tag_of(hash))
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
        let tag = tag_of(hash);
        let mut moves = self.moves.load(Ordering::Acquire);
        for _ in 0..LOOKUP_RETRIES {
            // Behind the count: whoever sees a line's growth counted sees its extent too.
            if let Some(found) = self.find_in(self.lines_of(hash), tag) {
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

    /// Writer only: sets the extent of an empty table.
    pub(super) fn set_lines(&self, lines: usize) {
        assert!(self.len() == 0 && lines <= self.most(), "{lines} lines of {}", self.most());
        self.extent.store(Extent::of(self.base, lines).word(), Ordering::Release);
    }

    /// Writer only: adds a line; see the head of this file. Returns the slots that had to go: more
    /// belonged to the new line than it has places, and there was no place in their other lines.
    pub(super) fn grow(&self) -> Vec<Slot> {
        let extent = self.extent();
        let (new, base_line, group) = (extent.lines(self.base), extent.next, extent.rounds);
        assert!(new < self.most(), "an index of {new} lines cannot grow");
        debug_assert_eq!(self.words(new), [0; SLOTS_PER_LINE], "line {new} is in use already");
        let gone = self.thin_out(base_line, group);
        let leaving = self.leaving(base_line, group);
        for (from, to) in leaving.iter().zip(Self::places(new)) {
            self.set(to, self.load(*from));
        }
        self.extent.store(extent.grown(self.base).word(), Ordering::Release);
        self.moves.fetch_add(1, Ordering::Release);
        leaving.iter().for_each(|&from| self.set(from, None));
        debug_assert!(self.leaving(base_line, group).is_empty());
        coverage_mark!(IndexGrew);
        gone
    }

    /// The slots of a group of `group` lines that belong to the next line it gets.
    fn leaving(&self, base_line: usize, group: usize) -> Vec<SlotPosition> {
        let lines = (0..group).map(|n| base_line + n * self.base);
        let leaves = |place: &SlotPosition| {
            let slot = self.load(*place);
            slot.is_some_and(|slot| line_in_group(mix(slot.tag()), group + 1) == group)
        };
        lines.flat_map(Self::places).filter(leaves).collect()
    }

    /// Writer only: sees to it that no more slots belong to the next line of a group than it has
    /// places. The others move to their other line, or go: the least used first.
    fn thin_out(&self, base_line: usize, group: usize) -> Vec<Slot> {
        let mut gone = Vec::new();
        loop {
            let leaving = self.leaving(base_line, group);
            if leaving.len() <= SLOTS_PER_LINE {
                return gone;
            }
            let slot = |at: &SlotPosition| self.load(*at).expect("only the writer clears slots");
            let free = |from: &SlotPosition| {
                let [_, other] = self.pair(from.line, slot(from).tag());
                let elsewhere = self.base_of(other) != base_line;
                Some((*from, elsewhere.then(|| self.free_in(other))??))
            };
            if let Some((from, to)) = leaving.iter().find_map(free) {
                self.move_slot(from, to);
                continue;
            }
            let least = leaving.iter().min_by_key(|at| slot(at).freq()).expect("more than a line");
            gone.push(slot(least));
            self.set(*least, None);
        }
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
        (0..self.lines()).flat_map(Self::places).for_each(|place| self.set(place, None));
    }
}

/// Spreads a tag over 64 bits (the finalizer of SplitMix64).
pub(super) fn mix(tag: u16) -> u64 {
    let mut x = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Memory of lines, all of which are empty at first.
struct Lines {
    /// As many words as the lines have, and those of one line more. The models make lines one by
    /// one.
    #[cfg(not(any(loom, shuttle)))]
    words: Box<[AtomicU64]>,
    /// The first word that is aligned as a line is.
    #[cfg(not(any(loom, shuttle)))]
    first: usize,
    #[cfg(any(loom, shuttle))]
    lines: Box<[Line]>,
}

#[cfg(not(any(loom, shuttle)))]
impl Lines {
    /// Zeros straight from the allocator: the kernel gives zero pages when they are first touched.
    /// The standard library writes zeros itself where more than 16 bytes of alignment are asked
    /// for. So this asks for words.
    fn empty(lines: usize) -> Self {
        let words = Box::new_zeroed_slice((lines + 1) * SLOTS_PER_LINE);
        // SAFETY: all bytes zero is a valid value of an AtomicU64.
        let words: Box<[AtomicU64]> = unsafe { words.assume_init() };
        let first = words.as_ptr().align_offset(LINE_BYTES);
        assert!(first <= SLOTS_PER_LINE, "words are aligned to 8 bytes");
        Self { words, first }
    }
}

#[cfg(not(any(loom, shuttle)))]
impl std::ops::Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        let lines = self.words.len() / SLOTS_PER_LINE - 1;
        // SAFETY: a Line is eight AtomicU64 one after the other. From `first` on, which is no more
        // than a line, the box has so many, aligned as a Line is: both are what `empty` has made,
        // and neither changes. The box is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().add(self.first).cast(), lines) }
    }
}

#[cfg(any(loom, shuttle))]
impl Lines {
    fn empty(lines: usize) -> Self {
        let empty = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: (0..lines).map(empty).collect() }
    }
}

#[cfg(any(loom, shuttle))]
impl std::ops::Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        &self.lines
    }
}
