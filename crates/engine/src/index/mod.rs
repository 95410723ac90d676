//! The DRAM index: eight bytes per object, no keys, lookups without locks.
//!
//! A table of cache lines of eight [`Slot`]s. A key has two candidate lines (partial-key cuckoo
//! hashing, Fan et al., 2014). The first comes from the low 48 bits of its hash. The other is
//! `mix(tag) - line` modulo the number of lines. This needs no key and is its own inverse, so a
//! slot can be moved knowing only where it is. **At most one slot per tag** is in the two lines
//! together. Two keys that agree on tag and lines share it, and the later one wins. The reader
//! finds out by comparing the full key on flash.
//!
//! The index grows while it is read, a line at a time ([`extent`] says how), up to what
//! [`IndexWriter::allow`] allows. Then each of the two candidates is a group of lines, and the tag
//! chooses one of it.
//!
//! An index miss does not prove that flash holds no copy of a key; nobody may infer that (see
//! [`Index::lookup`]).
//!
//! Threads: [`IndexWriter`] is the only way to change slots and is not `Clone`; it lives under its
//! shard's mutex. Any number of [`Index`] handles look up meanwhile; they see each slot old or new,
//! never torn. A hash must not be spread over shards by its top 16 bits, which would weaken the
//! tag: use the lowest bits.

mod divisor;
mod extent;
mod slot;
mod table;

use std::ops::{Deref, Range};
use std::sync::Arc;

pub use extent::MAX_GROUP;
pub use slot::{Location, MAX_RECORD, MAX_SEGMENTS, SizeClass, Slot, UNIT};
use table::Table;
pub use table::{LINE_BYTES, SLOTS_PER_LINE};

/// Slots moved at most to make room for one.
const MOVES: usize = 2;
/// The index grows when so many of its slots are taken, in percent: fuller, keys that were not
/// read lately lose theirs.
const FULL: usize = 90;

/// What [`IndexWriter::insert`] did besides storing the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inserted {
    /// The slot the new one took the place of: the same key's older one, or that of a key of equal
    /// tag and lines.
    pub replaced: Option<Slot>,
    /// Another key's slot that had to go because both lines and those reachable by two moves were
    /// full.
    pub evicted: Option<Slot>,
}

/// What [`IndexWriter::load_line`] did with the slots of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineLoaded {
    /// Slots stored.
    pub loaded: usize,
    /// Slots whose key was written meanwhile: left as they are.
    pub kept: usize,
    /// Slots without room.
    pub dropped: usize,
}

/// Shared view of one shard's index: lookups, from any thread.
pub struct Index {
    table: Table,
}

/// The one handle that changes an index.
pub struct IndexWriter {
    index: Arc<Index>,
    /// Where the next eviction starts to look, so that no slot position is favoured.
    hand: usize,
    /// See [`IndexWriter::set_captured`].
    captured: usize,
    /// See [`IndexWriter::allow`].
    allowed: usize,
    /// See [`IndexWriter::hold`].
    held: bool,
}

impl Index {
    /// Lines that fit into `bytes` of memory, at least one.
    #[must_use]
    pub fn lines_in(bytes: usize) -> usize {
        (bytes / LINE_BYTES).max(1)
    }

    /// Number of lines.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.table.lines()
    }

    /// Lines it was made with, before it grew.
    #[must_use]
    pub fn base_lines(&self) -> usize {
        self.table.base()
    }

    /// Lines it may grow to at most.
    #[must_use]
    pub fn most_lines(&self) -> usize {
        self.table.most()
    }

    /// Slots in all lines.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.lines() * SLOTS_PER_LINE
    }

    /// Occupied slots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no slot is occupied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slot of a key, if there is one; counts the lookup in its frequency.
    ///
    /// `Some` may belong to another key of equal tag: the record's full key decides. `None` means
    /// only that the index does not know the key.
    #[must_use]
    pub fn lookup(&self, hash: u64) -> Option<Slot> {
        let (place, slot) = self.table.find(hash)?;
        self.table.bump(place, slot);
        Some(slot)
    }

    /// [`Index::lookup`] without counting it.
    #[must_use]
    pub fn peek(&self, hash: u64) -> Option<Slot> {
        self.table.find(hash).map(|(_, slot)| slot)
    }

    /// Asks for both lines of a hash ahead of a lookup or change.
    pub fn prefetch(&self, hash: u64) {
        self.table.prefetch(hash);
    }

    /// Both candidate lines of a hash; they may be the same.
    #[must_use]
    pub fn lines_of(&self, hash: u64) -> [usize; 2] {
        self.table.lines_of(hash)
    }

    /// The words of `lines` (0 = empty slot), for a checkpoint. Each word is whole. A slot that
    /// moves meanwhile from a line already read to one not yet read appears twice;
    /// [`IndexWriter::load_line`] tolerates that. For the other direction see
    /// [`IndexWriter::set_captured`].
    ///
    /// # Panics
    /// When `lines` is not within the index.
    pub fn line_words(
        &self,
        lines: Range<usize>,
    ) -> impl Iterator<Item = [u64; SLOTS_PER_LINE]> + '_ {
        assert!(lines.end <= self.lines());
        lines.map(|line| self.table.words(line))
    }
}

impl IndexWriter {
    /// An empty index that takes `bytes` of memory.
    #[must_use]
    pub fn with_memory(bytes: usize) -> Self {
        Self::with_lines(Index::lines_in(bytes))
    }

    /// An empty index of `lines` lines that does not grow.
    ///
    /// # Panics
    /// When `lines` is 0.
    #[must_use]
    pub fn with_lines(lines: usize) -> Self {
        Self::growing(lines, lines)
    }

    /// An empty index of `base` lines that may grow to `most` where it is
    /// [allowed](Self::allow). Memory is reserved for all of them, and used for those there are.
    ///
    /// # Panics
    /// When `base` is 0, or `most` is less or more than [`MAX_GROUP`] times as much.
    #[must_use]
    pub fn growing(base: usize, most: usize) -> Self {
        let index = Arc::new(Index { table: Table::new(base, most) });
        Self { index, hand: 0, captured: 0, allowed: base, held: false }
    }

    /// Makes an empty index one of `lines` lines, as if it had grown.
    ///
    /// # Panics
    /// When it is not empty, or `lines` is below its base lines or above what it may grow to.
    pub fn set_lines(&mut self, lines: usize) {
        self.index.table.set_lines(lines);
        self.allowed = self.allowed.max(lines);
    }

    /// Lines it may grow to now; more than [`Index::most_lines`] count as that. They are never
    /// taken back.
    pub fn allow(&mut self, lines: usize) {
        self.allowed = self.allowed.max(lines.min(self.most_lines()));
    }

    /// Lines it may grow to now.
    #[must_use]
    pub fn allowed(&self) -> usize {
        self.allowed
    }

    /// Bytes it may take beyond what it was made with.
    #[must_use]
    pub fn grown_bytes(&self) -> usize {
        (self.allowed - self.base_lines()) * LINE_BYTES
    }

    /// The index does not grow until [`IndexWriter::let_go`]: a checkpoint has counted its lines.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// It may grow again.
    pub fn let_go(&mut self) {
        self.held = false;
    }

    /// Adds a line where the index is full and may grow: once before each insertion keeps it from
    /// filling up. Returns the slots that had to go, of which there are few.
    pub fn grow_if_full(&mut self) -> Vec<Slot> {
        let lines = self.lines();
        let full = self.len() * 100 >= lines * SLOTS_PER_LINE * FULL;
        match full && !self.held && lines < self.allowed {
            true => self.index.table.grow(),
            false => Vec::new(),
        }
    }

    /// A handle for lookups.
    #[must_use]
    pub fn reader(&self) -> Arc<Index> {
        self.index.clone()
    }

    /// Stores where a key is now. If it has an older slot, the new one replaces it with half its
    /// frequency: rewriting must not keep what was read long ago. Otherwise a free slot is used,
    /// after at most two moves. If that fails, the least used slot of the two lines is evicted
    /// (clock over frequency).
    pub fn insert(&mut self, hash: u64, location: Location, class: SizeClass) -> Inserted {
        let table = &self.index.table;
        if let Some((place, old)) = table.find(hash) {
            table.set(place, Some(Slot::new(hash, location, class, old.freq() / 2)));
            return Inserted { replaced: Some(old), evicted: None };
        }
        let new = Slot::new(hash, location, class, 0);
        let lines = table.lines_of(hash);
        let room = || table.make_room(&lines, MOVES - 1, self.captured);
        if let Some(place) = table.free_place(lines).or_else(room) {
            table.set(place, Some(new));
            return Inserted::default();
        }
        self.hand = self.hand.wrapping_add(1);
        let (place, victim) = table.clock(lines, self.hand);
        table.set(place, Some(new));
        Inserted { replaced: None, evicted: Some(victim) }
    }

    /// Points a key elsewhere if its slot still is at `expected`; says whether it was.
    pub fn replace_if(
        &mut self,
        hash: u64,
        expected: Location,
        location: Location,
        class: SizeClass,
    ) -> bool {
        match self.index.table.find(hash) {
            Some((place, old)) if old.location() == expected => {
                self.index.table.set(place, Some(Slot::new(hash, location, class, old.freq())));
                true
            }
            _ => false,
        }
    }

    /// Clears the slot of a key (or of the key it shares its slot with), and returns it.
    pub fn remove(&mut self, hash: u64) -> Option<Slot> {
        let (place, slot) = self.index.table.find(hash)?;
        self.index.table.set(place, None);
        Some(slot)
    }

    /// Clears the slot of a key if it points at `location`; says whether it did.
    pub fn remove_if(&mut self, hash: u64, location: Location) -> bool {
        match self.index.table.find(hash) {
            Some((place, slot)) if slot.location() == location => {
                self.index.table.set(place, None);
                true
            }
            _ => false,
        }
    }

    /// Adds lines to an index that is about to be full, as it does not grow for a while: a fiftieth
    /// of those there are, and no more than `most`. Returns the slots that had to go.
    pub fn grow_ahead(&mut self, most: usize) -> Vec<Slot> {
        let lines = self.lines();
        let soon = self.len() * 100 >= lines * SLOTS_PER_LINE * (FULL - 1);
        let more = (lines / 50).min(most).min(self.allowed - lines);
        let grow = |_| self.index.table.grow();
        if soon { (0..more).flat_map(grow).collect() } else { Vec::new() }
    }

    /// Adds the slots that a checkpoint holds for `line`, never over what was written meanwhile. A
    /// slot whose tag is already in its two lines is left out. A slot for which two moves make no
    /// space is dropped. What was *removed* meanwhile leaves no trace here; the caller's kill map
    /// decides on it. The index the line comes from had as many base lines, and may have grown
    /// otherwise.
    pub fn load_line(&mut self, line: usize, words: [u64; SLOTS_PER_LINE]) -> LineLoaded {
        let table = &self.index.table;
        let mut done = LineLoaded::default();
        for slot in words.into_iter().filter_map(Slot::from_word) {
            let lines = table.pair(line, slot.tag());
            if table.find_in(lines, slot.tag()).is_some() {
                coverage_mark!(LineKept);
                done.kept += 1;
                continue;
            }
            let free = table.free_in(lines[0]).or_else(|| table.free_in(lines[1]));
            if let Some(place) = free.or_else(|| table.make_room(&lines, MOVES - 1, 0)) {
                table.set(place, Some(slot));
                done.loaded += 1;
            } else {
                coverage_mark!(LineDropped);
                done.dropped += 1;
            }
        }
        done
    }

    /// A checkpoint has captured the lines before `lines`, and captures the others later. Until
    /// then no slot moves from the others to the captured lines: it would be in neither capture. 0,
    /// or the number of lines, while nothing is being captured.
    pub fn set_captured(&mut self, lines: usize) {
        self.captured = lines;
    }

    /// Empties the index.
    pub fn clear(&mut self) {
        self.index.table.clear();
    }
}

impl Deref for IndexWriter {
    type Target = Index;

    fn deref(&self) -> &Index {
        &self.index
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
