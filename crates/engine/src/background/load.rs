//! Loading behind a cache that serves already: first the segments written since the checkpoint, record by record, then its index
//! lines; and sweeping what the journal contradicts.
//!
//! While this runs, lookups compare versions with the shard's kill map, and every put and remove adds to it. A slot from the
//! checkpoint is entered only if nothing was entered for its tag meanwhile. When all lines are there, each hash in the map
//! loses its slot unless that points into a segment written or read exactly since the checkpoint: such slots were entered by
//! somebody who knew the version. Then the index is exact and the map is dropped.
//!
//! With another number of lines or shards than the checkpoint's the index is rebuilt: the lines go to a temporary index of the old
//! shape; then every footer is read, or the segment where that is lost, and a record is live if and only if its old slot points at just
//! that place.

use crate::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::io;

use super::{Background, Purpose, bytes};
use crate::api::DropReason;
use crate::core::Core;
use crate::device::{DeviceId, Io, IoKind, IoOutput};
use crate::format::checkpoint::{BLOCK_LINES, Header, decode_block, stride};
use crate::format::footer::{self, FooterEntry};
use crate::index::{IndexWriter, Location, Slot, UNIT};
use crate::recovery::{self, LoadPlan, SegmentReader};
use crate::segment::SegmentState;

/// Reads in flight.
const READS: usize = 4;
/// Hashes swept per step.
const SWEEP: usize = 16_384;
/// Records of a footer entered per turn at a lock are not bounded: footers are.
const MAX_FOOTERS: usize = 2;

/// An I/O of loading.
#[derive(Debug)]
pub enum LoadIo {
    Block { shard: u32, block: u64 },
    Footer { segment: u32 },
}

/// The state of loading.
pub struct Load {
    /// Where lines come from, if there are any.
    checkpoint: Option<(Header, u32)>,
    generations: Vec<u64>,
    /// Segments not yet read exactly, and the generations they were opened with.
    exact: VecDeque<(u32, u64)>,
    /// Which namespaces (by id) may be believed.
    warm: Vec<bool>,
    /// Blocks not yet asked for.
    blocks: VecDeque<(u32, u64)>,
    /// Footers not yet asked for; only when rebuilding.
    footers: VecDeque<u32>,
    /// The index in the checkpoint's shape; only when rebuilding.
    old: Option<Vec<IndexWriter>>,
    reading: usize,
    /// Hashes to sweep, collected shard by shard.
    sweep: Vec<u64>,
    swept_shards: usize,
    /// Segments and blocks there were at first.
    parts: usize,
    /// Quarters the log knows of.
    said: usize,
    /// When loading began, in milliseconds.
    begin: u64,
}

impl Load {
    pub(super) fn new(core: &Core, plan: LoadPlan) -> Self {
        let LoadPlan { checkpoint, generations, exact, warm } = plan;
        let (mut blocks, mut footers, mut old) = (VecDeque::new(), VecDeque::new(), None);
        if let Some((header, _)) = checkpoint {
            let of_shard = |s| (0..header.blocks_per_shard()).map(move |b| (s, b));
            blocks = (0..header.shards).flat_map(of_shard).collect();
            let same = header.shards as usize == core.shards.len()
                && header.lines == core.shards[0].index.lines() as u64;
            if !same {
                coverage_mark!(Rebuilt);
                tracing::info!("the index has another size than before: it is rebuilt in the background");
                let shape = |_| IndexWriter::with_lines(header.lines as usize);
                old = Some((0..header.shards).map(shape).collect());
                footers = (0..).zip(&generations).filter(|(_, g)| **g != 0).map(|(s, _)| s).collect();
            }
        }
        let mut load = Self {
            checkpoint,
            generations,
            exact: exact.into(),
            warm,
            blocks,
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
    fn left(&self) -> usize {
        self.exact.len() + self.blocks.len() + self.footers.len() + self.reading
    }

    /// Notes how far loading has come, in the log at every quarter.
    fn tell(&mut self, core: &Core) {
        let done = self.parts.saturating_sub(self.left());
        core.progress.load_parts_done.store(done as u64, Ordering::Relaxed);
        let quarter = done * 4 / self.parts.max(1);
        if quarter > self.said && quarter < 4 {
            self.said = quarter;
            tracing::info!(percent = quarter * 25, "loading the index");
        }
    }

    /// Whether segments wait to be read: until then nobody knows what is free.
    pub(super) fn has_unread(&self) -> bool {
        !self.exact.is_empty()
    }

    /// Whether slots into a segment can only come from the checkpoint: it is still in the use it was in then.
    fn is_from_lines(&self, core: &Core, segment: u32) -> bool {
        let generation = self.generations.get(segment as usize).copied().unwrap_or(0);
        generation != 0 && core.table.generation(segment) == generation
    }

    /// Whether the checkpoint's slots into a segment are worth entering.
    fn may_point_into(&self, core: &Core, segment: u32) -> bool {
        self.is_from_lines(core, segment) && core.table.state(segment) == SegmentState::Sealed
    }
}

impl Background {
    pub(super) fn step_load(&mut self, out: &mut Vec<Io>) {
        if self.read_exact() {
            return;
        }
        self.read_blocks(out);
        let Some(load) = &mut self.load else { return };
        load.tell(&self.core);
        if !load.blocks.is_empty() || load.reading > 0 {
            return;
        }
        if !load.footers.is_empty() {
            return self.read_footers(out);
        }
        if self.sweep_some() {
            let begin = self.load.take().map_or(0, |load| load.begin);
            let ms = self.core.time.millis().saturating_sub(begin);
            self.core.progress.loading.store(false, Ordering::Release);
            let objects: usize = self.core.shards.iter().map(|slot| slot.index.len()).sum();
            tracing::info!(objects, ms, "index loaded");
        }
    }

    /// Reads one of the segments written since the checkpoint, on this thread: they come before anything else, and there is little to
    /// write yet. Says whether there was one.
    fn read_exact(&mut self) -> bool {
        let Some(load) = &mut self.load else { return false };
        let Some((segment, generation)) = load.exact.pop_front() else { return false };
        let found = SegmentReader::new(&self.core, load.warm.len()).exact(segment, generation);
        recovery::enter(&self.core, &found, &load.warm);
        load.tell(&self.core);
        if !load.has_unread() {
            self.core.progress.unread.store(false, Ordering::Release);
        }
        true
    }

    fn read_blocks(&mut self, out: &mut Vec<Io>) {
        loop {
            let Some(load) = &mut self.load else { return };
            if load.reading >= READS {
                return;
            }
            let Some((shard, block)) = load.blocks.pop_front() else { return };
            load.reading += 1;
            let (header, area) = load.checkpoint.expect("blocks are those of a checkpoint");
            let offset = self.core.areas[area as usize] + header.block_at(shard, block);
            let kind = IoKind::Read { len: stride(header.lines) as u32 };
            self.submit(out, Purpose::Load(LoadIo::Block { shard, block }), DeviceId(0), offset, kind);
        }
    }

    fn read_footers(&mut self, out: &mut Vec<Io>) {
        for _ in 0..MAX_FOOTERS {
            let Some(load) = &mut self.load else { return };
            let Some(segment) = load.footers.pop_front() else { return };
            if !load.may_point_into(&self.core, segment) {
                continue;
            }
            load.reading += 1;
            let (table, place) = (&self.core.table, self.core.table.place(segment));
            let len = footer::footer_len(table.records(segment) as usize).min(table.segment_size());
            let offset = place.offset + u64::from(table.segment_size() - len);
            self.submit(
                out,
                Purpose::Load(LoadIo::Footer { segment }),
                place.device,
                offset,
                IoKind::Read { len },
            );
        }
    }

    pub(super) fn load_done(&mut self, part: LoadIo, result: io::Result<IoOutput>) {
        let Some(load) = &mut self.load else { return };
        load.reading -= 1;
        let read = bytes(result).ok();
        match part {
            LoadIo::Block { shard, block } => {
                let first = block * BLOCK_LINES;
                let (header, _) = load.checkpoint.expect("blocks are those of a checkpoint");
                let lines =
                    read.and_then(|b| decode_block(&b, &self.core.uuid, header.sequence, shard, first));
                match lines {
                    Some(lines) => load.enter_lines(&self.core, shard, first, &lines),
                    None => self.core.totals.lost_index_blocks.inc(),
                }
            }
            LoadIo::Footer { segment } => {
                let generation = load.generations[segment as usize];
                let entries = read.as_ref().and_then(|b| {
                    footer::decode_footer(b, &self.core.uuid, segment, self.core.table.segment_size())
                });
                match entries.filter(|(found, _)| *found == generation) {
                    Some((_, entries)) => load.enter_records(&self.core, segment, entries),
                    None => {
                        // A crash of the machine may have left the footer of the segment's next use, and records of this one.
                        let found =
                            SegmentReader::new(&self.core, load.warm.len()).exact(segment, generation);
                        load.enter_records(&self.core, segment, &found.entries);
                    }
                }
            }
        }
    }

    /// Sweeps a bounded number of hashes; true when nothing is left.
    fn sweep_some(&mut self) -> bool {
        let Some(load) = &mut self.load else { return true };
        let Some(slot) = self.core.shards.get(load.swept_shards) else { return true };
        let mut shard = slot.lock();
        if shard.collecting {
            // All lines are there: from now on who changes a key clears its only slot, and the map does not grow.
            shard.collecting = false;
            // Older kills cannot contradict lines, they only concern records of segments that were open at the checkpoint.
            let floor = load.checkpoint.map_or(u64::MAX, |(header, _)| header.version_floor);
            let contradicting = shard.kills.iter().flatten().filter(|(_, version)| **version >= floor);
            load.sweep = contradicting.map(|(&hash, _)| hash).collect();
        }
        let from = load.sweep.len().saturating_sub(SWEEP);
        for hash in load.sweep.split_off(from) {
            if let Some(at) = shard.index.peek(hash).map(Slot::location) {
                // Slots into other segments were entered by somebody who knew that they are current. A segment being
                // reclaimed counts too: its records can still be read, and kept.
                if load.is_from_lines(&self.core, at.segment) {
                    coverage_mark!(Swept);
                    shard.clear_if(hash, at);
                }
            }
        }
        if load.sweep.is_empty() {
            shard.kills = None;
            load.swept_shards += 1;
        }
        load.swept_shards == self.core.shards.len()
    }
}

impl Load {
    fn enter_lines(&mut self, core: &Core, shard: u32, first: u64, lines: &[[u64; 8]]) {
        for (line, words) in (first as usize..).zip(lines) {
            let mut words = *words;
            for word in &mut words {
                let Some(segment) = Slot::from_word(*word).map(|s| s.location().segment) else { continue };
                if core.table.contains(segment) && self.may_point_into(core, segment) {
                    continue;
                }
                *word = 0;
                // The segment was good when loading began: it has been reclaimed meanwhile, without the slots that were still to come.
                if self.generations.get(segment as usize).is_some_and(|&generation| generation != 0) {
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
                    let loaded = core.shards[shard as usize].lock().index.load_line(line, words);
                    core.totals.dropped(DropReason::IndexFull, loaded.dropped as u64);
                    for slot in words.into_iter().filter_map(Slot::from_word) {
                        core.table.slot_added(slot.location().segment);
                    }
                }
            }
        }
    }

    fn enter_records(&self, core: &Core, segment: u32, entries: &[FooterEntry]) {
        let Some(old) = &self.old else { return };
        for e in entries {
            let (hash, at) = (e.hash.get(), Location { segment, offset_units: e.offset.get() / UNIT });
            let old = &old[hash as usize & (old.len() - 1)];
            if old.peek(hash).is_none_or(|s| s.location() != at) {
                continue;
            }
            let mut shard = core.shard(hash).lock();
            if shard.index.peek(hash).is_none() && !shard.is_superseded(hash, e.version.get()) {
                core.publish(&mut shard, hash, at, e.len.get());
            }
        }
    }
}
