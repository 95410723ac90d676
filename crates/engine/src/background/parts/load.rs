//! What is still to be loaded, and how loaded records and lines enter the index.

use crate::api::DropReason;
use crate::checkpoint_areas::AreaAt;
use crate::core::Core;
use crate::format::BLOCK;
use crate::format::checkpoint::{Header, SlotPacking};
use crate::format::footer_entries::FooterEntry;
use crate::format::kill_run::{PARTS, RunHead};
use crate::index::{IndexWriter, Location, Slot, UNIT};
use crate::recovery::{Exact, LoadPlan, READ, SegmentReader};
use crate::segment::Appended;
use crate::segment::{SegmentState, SegmentTable};
use crate::sync::atomic::Ordering;
use std::collections::{HashMap, VecDeque};

/// Kill versions may be in memory for one of so many slots of the index, where that is more than
/// the journal has.
const SLOTS_A_KILL: u64 = 8;

/// A block of the checkpoint.
#[derive(Debug, Clone, Copy)]
pub(in crate::background) struct BlockPart {
    pub(in crate::background) shard: u32,
    pub(in crate::background) block: u64,
}

/// An I/O of loading: a block of so manieth copy of the checkpoint, a footer, or a part of the
/// segment that is being read.
#[derive(Debug)]
pub(in crate::background) enum LoadIo {
    Block { part: BlockPart, copy: usize },
    Footer { segment: u32 },
    Segment(SegmentPart),
}

/// A part of a segment whose records are to be known.
#[derive(Debug, Clone, Copy)]
pub(in crate::background) enum SegmentPart {
    /// The last block, which says how long the footer is.
    Last,
    /// A footer of so many bytes.
    Footer(u32),
    /// What lies from this offset on, where there is no footer.
    Data(u32),
}

impl SegmentPart {
    /// Its offset and bytes in a segment of `size` bytes.
    pub(in crate::background) fn range(self, size: u32) -> (u32, u32) {
        match self {
            Self::Last => (size - BLOCK, BLOCK),
            Self::Footer(len) => (size - len, len),
            Self::Data(at) => (at, READ.min(size - at)),
        }
    }
}

/// A segment that is being read, part by part.
#[derive(Debug)]
pub(in crate::background) struct SegmentRead {
    pub(in crate::background) segment: u32,
    /// What it was opened as.
    pub(in crate::background) generation: u64,
    /// What to read next; `None` while a read is in flight.
    pub(in crate::background) next: Option<SegmentPart>,
    /// What was read of its data.
    data: Vec<u8>,
}

impl SegmentRead {
    fn of((segment, generation): (u32, u64)) -> Self {
        Self { segment, generation, next: Some(SegmentPart::Last), data: Vec::new() }
    }

    /// Takes what was read of a part, or that it could not be read. The records, once it is over.
    pub(in crate::background) fn take(
        &mut self,
        reader: &SegmentReader<'_>,
        part: SegmentPart,
        read: Option<&[u8]>,
    ) -> Option<Exact> {
        let (segment, size) = (self.segment, reader.table.segment_size());
        match part {
            SegmentPart::Last => {
                let len = read.and_then(|bytes| reader.footer_len(segment, bytes));
                self.next = Some(len.map_or(SegmentPart::Data(0), SegmentPart::Footer));
            }
            SegmentPart::Footer(_) => {
                let found = read.and_then(|bytes| reader.of_footer(segment, bytes));
                let found = found.filter(|exact| exact.generation == self.generation);
                if found.is_some() {
                    coverage_mark!(ExactFooter);
                    return found;
                }
                self.next = Some(SegmentPart::Data(0));
            }
            SegmentPart::Data(at) => {
                self.data.resize(size as usize, 0);
                if let Some(bytes) = read {
                    self.data[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
                }
                let (at, len) = part.range(size);
                if at + len == size {
                    return Some(reader.of_data(segment, self.generation, &self.data));
                }
                self.next = Some(SegmentPart::Data(at + len));
            }
        }
        None
    }
}

/// The state of loading.
pub(in crate::background) struct Load {
    /// Where lines come from, if there are any.
    pub(in crate::background) checkpoint: Option<(Header, Vec<AreaAt>)>,
    pub(in crate::background) generations: Vec<u64>,
    /// Runs of the kill log.
    runs: Vec<RunHead>,
    /// The index is loaded in so many passes: a power of two. Each pass has the shards whose number
    /// has the same lowest bits.
    passes: usize,
    /// The one under way.
    pass: usize,
    /// Parts of runs that are still to be read in this pass: the run's place, and the part.
    kill_parts: VecDeque<(usize, usize)>,
    /// Shards that stay empty: what contradicts their objects could not be read.
    lost: Vec<bool>,
    /// Segments to be read exactly, and the generations they were opened with.
    all_exact: Vec<(u32, u64)>,
    /// The same by segment.
    exact_generations: HashMap<u32, u64>,
    /// Those not yet read in this pass.
    exact: VecDeque<(u32, u64)>,
    /// The one of them that is being read; or of the next ones.
    pub(in crate::background) read: Option<SegmentRead>,
    /// The same of segments whose footer is lost; only when rebuilding.
    pub(in crate::background) scans: VecDeque<(u32, u64)>,
    /// Which namespaces (by id) may be believed.
    pub(in crate::background) warm: Vec<bool>,
    /// Blocks not yet asked for.
    pub(in crate::background) blocks: VecDeque<BlockPart>,
    /// Blocks that a copy of the checkpoint did not have, with the next copy.
    again: Vec<(BlockPart, usize)>,
    /// Footers not yet asked for; only when rebuilding.
    pub(in crate::background) footers: VecDeque<u32>,
    /// The index in the checkpoint's shape; only when rebuilding.
    pub(in crate::background) old: Option<Vec<IndexWriter>>,
    pub(in crate::background) reading: usize,
    /// Hashes to sweep, collected shard by shard.
    pub(in crate::background) sweep: Vec<u64>,
    pub(in crate::background) swept_shards: usize,
    /// Segments and blocks there were at first.
    pub(in crate::background) parts: usize,
    /// Quarters the log knows of.
    pub(in crate::background) said: usize,
    /// When loading began, in milliseconds.
    pub(in crate::background) begin: u64,
}

impl Load {
    /// What is to be loaded, in so many `passes` or as many as it takes.
    pub(in crate::background) fn new(core: &Core, plan: LoadPlan, passes: Option<u32>) -> Self {
        let most = passes_for(core, &plan);
        let passes = passes.map_or(most.0, |passes| most.1.min(passes as usize));
        let LoadPlan { checkpoint, generations, exact, runs, warm, .. } = plan;
        let mut old = None;
        if let Some((header, _)) = &checkpoint {
            let same = header.shards as usize == core.shards.len()
                && header.base == core.shards[0].index.base_lines() as u64;
            if header.lines > header.base {
                coverage_mark!(LoadedGrown);
            }
            if header.packing == SlotPacking::Format1 {
                coverage_mark!(LoadedFormat1);
            }
            if !same {
                coverage_mark!(Rebuilt);
                tracing::info!(
                    "the size of the index has changed: it is rebuilt in the background"
                );
                let shape = |_| {
                    let lines = header.lines as usize;
                    let mut index = IndexWriter::growing(header.base as usize, lines);
                    index.set_lines(lines);
                    index
                };
                old = Some((0..header.shards).map(shape).collect());
            }
        }
        let mut load = Self {
            checkpoint,
            generations,
            runs,
            passes,
            pass: 0,
            kill_parts: VecDeque::new(),
            lost: vec![false; core.shards.len()],
            exact_generations: exact.iter().copied().collect(),
            all_exact: exact,
            exact: VecDeque::new(),
            read: None,
            scans: VecDeque::new(),
            warm,
            blocks: VecDeque::new(),
            again: Vec::new(),
            footers: VecDeque::new(),
            old,
            reading: 0,
            sweep: Vec::new(),
            swept_shards: 0,
            parts: 0,
            said: 0,
            begin: core.time.millis(),
        };
        load.fill_pass();
        // All passes have about as much.
        load.parts = load.left() * passes;
        if passes > 1 {
            coverage_mark!(LoadedInParts);
        }
        core.progress.load_parts.store(load.parts as u64, Ordering::Relaxed);
        load
    }

    /// Has the pass under way begin.
    fn fill_pass(&mut self) {
        let (pass, passes) = (self.pass, self.passes);
        let is_mine = |number: usize| number % passes == pass;
        let parts = (0..PARTS).filter(|part| is_mine(*part));
        let runs = self.runs.len();
        self.kill_parts = parts.flat_map(|part| (0..runs).map(move |run| (run, part))).collect();
        self.exact = self.all_exact.iter().copied().collect();
        if let Some((header, _)) = &self.checkpoint {
            let of_shard =
                |s| (0..header.blocks_per_shard()).map(move |block| BlockPart { shard: s, block });
            let shards = (0..header.shards).filter(|shard| is_mine(*shard as usize));
            self.blocks = shards.flat_map(of_shard).collect();
        }
        if self.old.is_some() {
            let sealed = (0..).zip(&self.generations).filter(|(_, generation)| **generation != 0);
            self.footers = sealed.map(|(segment, _)| segment).collect();
        }
        self.swept_shards = 0;
    }

    /// Begins the next pass; false when there is none.
    pub(in crate::background) fn begin_pass(&mut self) -> bool {
        debug_assert_eq!(self.left(), 0, "the pass before is over");
        if self.pass + 1 == self.passes {
            return false;
        }
        self.pass += 1;
        self.fill_pass();
        true
    }

    /// Whether a shard is loaded in this pass, by its number; or a hash, by its lowest bits.
    pub(in crate::background) fn is_of_pass(&self, number: usize) -> bool {
        number % self.passes == self.pass
    }

    /// Whether what has this hash is entered in this pass.
    pub(in crate::background) fn enters(&self, hash: u64) -> bool {
        self.is_of_pass(hash as usize) && !self.lost[hash as usize & (self.lost.len() - 1)]
    }

    /// The next part of the kill log to be read in this pass: of which run, and which part.
    pub(in crate::background) fn next_kill_part(&mut self) -> Option<(&RunHead, usize)> {
        let (run, part) = self.kill_parts.pop_front()?;
        Some((&self.runs[run], part))
    }

    /// A part of the kill log cannot be read: the shards of its hashes stay empty.
    pub(in crate::background) fn lose_shards_of(&mut self, part: usize) {
        let shards = self.lost.len();
        for (shard, lost) in self.lost.iter_mut().enumerate() {
            *lost |= shard % PARTS == part % shards;
        }
    }

    /// Whether a segment must stay as it is, for its records are read again in a later pass.
    pub(in crate::background) fn needs_again(&self, segment: u32, generation: u64) -> bool {
        let is_last = self.pass + 1 == self.passes && self.exact.is_empty() && self.read.is_none();
        !is_last && self.exact_generations.get(&segment) == Some(&generation)
    }

    /// Segments and blocks not yet entered in this pass.
    pub(in crate::background) fn left(&self) -> usize {
        let segments = self.exact.len() + self.scans.len() + usize::from(self.read.is_some());
        let lines = self.blocks.len() + self.again.len() + self.footers.len() + self.reading;
        self.kill_parts.len() + segments + lines
    }

    /// Begins to read the next segment, if none is being read: one of those written since the
    /// checkpoint, or a `scan`. Says whether there is one.
    pub(in crate::background) fn begin_read(&mut self, scan: bool, table: &SegmentTable) -> bool {
        let from = if scan { &mut self.scans } else { &mut self.exact };
        while self.read.is_none() {
            let Some((segment, generation)) = from.pop_front() else { break };
            // After the first pass it may be in another use: it had nothing then, or its device
            // did not answer.
            let lasts = [SegmentState::Sealed, SegmentState::Retired];
            let is_there =
                || table.generation(segment) == generation && lasts.contains(&table.state(segment));
            if scan || self.pass == 0 || is_there() {
                self.read = Some(SegmentRead::of((segment, generation)));
            }
        }
        self.read.is_some()
    }

    /// Whether blocks are still to be asked for.
    pub(in crate::background) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty() || !self.again.is_empty()
    }

    /// The next block to ask for, and of which copy.
    pub(in crate::background) fn next_block(&mut self) -> Option<(BlockPart, usize)> {
        self.again.pop().or_else(|| self.blocks.pop_front().map(|part| (part, 0)))
    }

    /// Asks for a block of the next copy; false where there is none.
    pub(in crate::background) fn try_next_copy(&mut self, part: BlockPart, copy: usize) -> bool {
        let copies = self.checkpoint.as_ref().map_or(0, |(_, copies)| copies.len());
        let more = copy + 1 < copies;
        if more {
            coverage_mark!(BlockOfOtherHome);
            self.again.push((part, copy + 1));
        }
        more
    }

    /// Notes how far loading has come, in the log at every quarter.
    pub(in crate::background) fn tell(&mut self, core: &Core) {
        let later = self.parts / self.passes * (self.passes - 1 - self.pass);
        let done = self.parts.saturating_sub(self.left() + later);
        core.progress.load_parts_done.store(done as u64, Ordering::Relaxed);
        let quarter = done * 4 / self.parts.max(1);
        if quarter > self.said && quarter < 4 {
            self.said = quarter;
            tracing::info!(percent = quarter * 25, "loading the index");
        }
    }

    /// Whether segments wait to be read.
    pub(in crate::background) fn has_unread(&self) -> bool {
        let later = self.pass + 1 < self.passes && !self.all_exact.is_empty();
        later || self.has_unread_in_pass()
    }

    fn has_unread_in_pass(&self) -> bool {
        !self.exact.is_empty() || (self.read.is_some() && self.is_reading_exact())
    }

    /// Whether it is known what is free: all segments were read once.
    pub(in crate::background) fn knows_what_is_free(&self) -> bool {
        self.pass > 0 || !self.has_unread_in_pass()
    }

    /// Whether it is the first time that segments are read.
    pub(in crate::background) fn is_first_pass(&self) -> bool {
        self.pass == 0
    }

    /// Whether what is being read is one of those written since the checkpoint: all blocks come
    /// after them.
    pub(in crate::background) fn is_reading_exact(&self) -> bool {
        let segment = self.read.as_ref().map(|read| read.segment);
        segment.is_some_and(|segment| self.generations[segment as usize] == 0)
    }

    /// Whether a segment waits to be read for the first time.
    pub(in crate::background) fn is_unread(&self, segment: u32) -> bool {
        if !self.is_first_pass() {
            return false;
        }
        let is_read = || self.read.as_ref().is_some_and(|read| read.segment == segment);
        self.exact.iter().any(|(unread, _)| *unread == segment)
            || (is_read() && self.is_reading_exact())
    }

    /// Whether slots into a segment can only come from the checkpoint: it is still in the use it
    /// was in then.
    pub(in crate::background) fn is_from_lines(&self, core: &Core, segment: u32) -> bool {
        let generation = self.generations.get(segment as usize).copied().unwrap_or(0);
        generation != 0 && core.table.generation(segment) == generation
    }

    /// Whether the checkpoint's slots into a segment are worth entering.
    pub(in crate::background) fn may_point_into(&self, core: &Core, segment: u32) -> bool {
        self.is_from_lines(core, segment) && core.table.state(segment) == SegmentState::Sealed
    }
}

impl Load {
    pub(in crate::background) fn enter_lines(
        &mut self,
        core: &Core,
        shard: u32,
        first: u64,
        lines: &[[u64; 8]],
    ) {
        let header = self.checkpoint.as_ref().map(|(header, _)| header);
        let packing = header.map_or(SlotPacking::Format2, |header| header.packing);
        for (line, words) in (first as usize..).zip(lines) {
            let mut words = match packing {
                SlotPacking::Format1 => words.map(Slot::word_of_format_1),
                SlotPacking::Format2 => *words,
            };
            for word in &mut words {
                let Some(at) = Slot::from_word(*word).map(Slot::location) else { continue };
                let segment = at.segment;
                // A slot has bits for an offset in the largest segment.
                let is_place =
                    core.table.contains(segment) && at.offset() < core.table.segment_size();
                if is_place && self.may_point_into(core, segment) {
                    continue;
                }
                *word = 0;
                // The segment was good when loading began: it has been reclaimed meanwhile, without
                // the slots that were still to come.
                if self.generations.get(segment as usize).is_some_and(|&generation| generation != 0)
                {
                    core.totals.dropped(DropReason::Reclaimed, 1);
                }
            }
            if words == [0; 8] {
                continue;
            }
            match &mut self.old {
                Some(old) => {
                    let loaded = old[shard as usize].load_line(line, words);
                    core.totals.dropped(DropReason::IndexFull, loaded.dropped as u64);
                }
                None if self.lost[shard as usize] => {}
                None => {
                    let mut shard = core.shards[shard as usize].lock();
                    // Segments written since the checkpoint may have taken up much of the index.
                    words
                        .iter()
                        .filter(|word| **word != 0)
                        .for_each(|_| core.grow_index(&mut shard));
                    let loaded = shard.index.load_line(line, words);
                    drop(shard);
                    core.totals.dropped(DropReason::IndexFull, loaded.dropped as u64);
                    for slot in words.into_iter().filter_map(Slot::from_word) {
                        core.table.slot_added(slot.location().segment);
                    }
                }
            }
        }
    }

    pub(in crate::background) fn enter_records(
        &self,
        core: &Core,
        segment: u32,
        entries: &[FooterEntry],
    ) {
        let Some(old) = &self.old else { return };
        for e in entries.iter().filter(|e| self.enters(e.hash)) {
            let (hash, at) = (e.hash, Location { segment, offset_units: e.offset / UNIT });
            let old = &old[hash as usize & (old.len() - 1)];
            if old.peek(hash).is_none_or(|s| s.location() != at) {
                continue;
            }
            let mut shard = core.shard(hash).lock();
            if shard.index.peek(hash).is_none() && !shard.is_superseded(hash, e.meta.version) {
                core.publish(&mut shard, hash, Appended { at, len: e.len });
            }
        }
    }
}

/// How many passes the index is loaded in, and how many at most.
///
/// A pass has kill versions in memory for all changes of its shards since the checkpoint. They may
/// be as many as the journal and the footers of as many records had before there was a kill log, or
/// a part of the index.
fn passes_for(core: &Core, plan: &LoadPlan) -> (usize, usize) {
    let slots: usize = core.shards.iter().map(|slot| slot.index.slots()).sum();
    let most = (2 * core.journal.entries()).max(slots as u64 / SLOTS_A_KILL);
    let kills: u64 = plan.runs.iter().map(RunHead::kills).sum();
    let passes = kills.max(plan.appended).div_ceil(most.max(1)).next_power_of_two();
    let shards = plan.checkpoint.as_ref().map_or(u32::MAX, |(header, _)| header.shards);
    let limit = core.shards.len().min(shards as usize).min(PARTS);
    ((passes as usize).clamp(1, limit), limit)
}
