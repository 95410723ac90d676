//! What is still to be loaded, and how loaded records and lines enter the index.

use crate::api::DropReason;
use crate::checkpoint_areas::AreaAt;
use crate::core::Core;
use crate::format::checkpoint::{Header, SlotPacking};
use crate::format::footer_entries::FooterEntry;
use crate::index::{IndexWriter, Location, Slot, UNIT};
use crate::recovery::LoadPlan;
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

/// An I/O of loading: a block of so manieth copy of the checkpoint, or a footer.
#[derive(Debug)]
pub(in crate::background) enum LoadIo {
    Block { part: BlockPart, copy: usize },
    Footer { segment: u32 },
}

/// The state of loading.
pub(in crate::background) struct Load {
    /// Where lines come from, if there are any.
    pub(in crate::background) checkpoint: Option<(Header, Vec<AreaAt>)>,
    pub(in crate::background) generations: Vec<u64>,
    /// Segments not yet read exactly, and the generations they were opened with.
    pub(in crate::background) exact: VecDeque<(u32, u64)>,
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
        self.exact.len() + self.blocks.len() + self.again.len() + self.footers.len() + self.reading
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
        !self.exact.is_empty()
    }

    /// Whether a segment waits to be read.
    pub(in crate::background) fn is_unread(&self, segment: u32) -> bool {
        self.exact.iter().any(|(unread, _)| *unread == segment)
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
