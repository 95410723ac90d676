//! What is still to be loaded, and how loaded records and lines enter the index.

use crate::api::DropReason;
use crate::checkpoint_areas::AreaAt;
use crate::core::Core;
use crate::format::BLOCK;
use crate::format::checkpoint::{Header, SlotPacking};
use crate::format::footer_entries::FooterEntry;
use crate::index::{IndexWriter, Location, Slot, UNIT};
use crate::recovery::{Exact, LoadPlan, READ, SegmentReader};
use crate::segment::Appended;
use crate::segment::SegmentState;
use crate::sync::atomic::Ordering;
use std::collections::VecDeque;

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
    /// Segments not yet read exactly, and the generations they were opened with.
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
    pub(in crate::background) fn new(core: &Core, plan: LoadPlan) -> Self {
        let LoadPlan { checkpoint, generations, exact, warm } = plan;
        let (mut blocks, mut footers, mut old) = (VecDeque::new(), VecDeque::new(), None);
        if let Some((header, _)) = &checkpoint {
            let of_shard =
                |s| (0..header.blocks_per_shard()).map(move |block| BlockPart { shard: s, block });
            blocks = (0..header.shards).flat_map(of_shard).collect();
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
                footers =
                    (0..).zip(&generations).filter(|(_, g)| **g != 0).map(|(s, _)| s).collect();
            }
        }
        let mut load = Self {
            checkpoint,
            generations,
            exact: exact.into(),
            read: None,
            scans: VecDeque::new(),
            warm,
            blocks,
            again: Vec::new(),
            footers,
            old,
            reading: 0,
            sweep: Vec::new(),
            swept_shards: 0,
            parts: 0,
            said: 0,
            begin: core.time.millis(),
        };
        load.parts = load.left();
        core.progress.load_parts.store(load.parts as u64, Ordering::Relaxed);
        load
    }

    /// Segments and blocks not yet entered.
    pub(in crate::background) fn left(&self) -> usize {
        let segments = self.exact.len() + self.scans.len() + usize::from(self.read.is_some());
        segments + self.blocks.len() + self.again.len() + self.footers.len() + self.reading
    }

    /// Begins to read the next segment, if none is being read: one of those written since the
    /// checkpoint, or a `scan`. Says whether there is one.
    pub(in crate::background) fn begin_read(&mut self, scan: bool) -> bool {
        let from = if scan { &mut self.scans } else { &mut self.exact };
        if self.read.is_none() {
            self.read = from.pop_front().map(SegmentRead::of);
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
        let done = self.parts.saturating_sub(self.left());
        core.progress.load_parts_done.store(done as u64, Ordering::Relaxed);
        let quarter = done * 4 / self.parts.max(1);
        if quarter > self.said && quarter < 4 {
            self.said = quarter;
            tracing::info!(percent = quarter * 25, "loading the index");
        }
    }

    /// Whether segments wait to be read: until then nobody knows what is free.
    pub(in crate::background) fn has_unread(&self) -> bool {
        !self.exact.is_empty() || (self.read.is_some() && self.is_reading_exact())
    }

    /// Whether what is being read is one of those written since the checkpoint: all blocks come
    /// after them.
    pub(in crate::background) fn is_reading_exact(&self) -> bool {
        let segment = self.read.as_ref().map(|read| read.segment);
        segment.is_some_and(|segment| self.generations[segment as usize] == 0)
    }

    /// Whether a segment waits to be read.
    pub(in crate::background) fn is_unread(&self, segment: u32) -> bool {
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
        for e in entries {
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
