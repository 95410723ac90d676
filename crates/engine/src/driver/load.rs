//! Loading index lines behind a cache that serves already, and sweeping what the journal contradicts.
//!
//! While this runs, lookups compare versions with the shard's kill map, and every put and remove adds to it. A slot from the
//! checkpoint is entered only if nothing was entered for its tag meanwhile. When all lines are there, each hash in the map
//! loses its slot unless that points into a segment written or read exactly since the checkpoint: such slots were entered by
//! somebody who knew the version. Then the index is exact and the map is dropped.
//!
//! With another number of lines or shards than the checkpoint's the index is rebuilt: the lines go to a temporary index of the old
//! shape; then every footer is read, and a record is live if and only if its old slot points at just that place.

use crate::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::io;

use super::{Driver, Purpose, bytes};
use crate::api::DropReason;
use crate::core::Core;
use crate::disk::{DeviceId, Io, IoKind, IoOutput};
use crate::format::checkpoint::{BLOCK_LINES, Header, decode_block, stride};
use crate::format::footer::{self, Entry};
use crate::index::{IndexWriter, Location, Slot, UNIT};
use crate::recovery::LoadPlan;
use crate::segment::SegmentState;

/// Reads in flight.
const READS: usize = 4;
/// Hashes swept per step.
const SWEEP: usize = 16_384;
/// Records of a footer entered per turn at a lock are not bounded: footers are.
const MAX_FOOTERS: usize = 2;

/// An I/O of loading.
#[derive(Debug)]
pub enum Part {
    Block { shard: u32, block: u64 },
    Footer { segment: u32 },
}

/// The state of loading.
pub struct Load {
    header: Header,
    area: u32,
    generations: Vec<u64>,
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
}

impl Load {
    pub(super) fn new(core: &Core, plan: LoadPlan) -> Option<Self> {
        let (header, area) = plan.checkpoint?;
        let same = header.shards as usize == core.shards.len()
            && header.lines == core.shards[0].index.lines() as u64;
        let blocks =
            (0..header.shards).flat_map(|s| (0..header.blocks_per_shard()).map(move |b| (s, b))).collect();
        let (mut old, mut footers) = (None, VecDeque::new());
        if !same {
            reached!(Rebuilt);
            tracing::info!("the index has another size than before: it is rebuilt in the background");
            old = Some((0..header.shards).map(|_| IndexWriter::with_lines(header.lines as usize)).collect());
            footers = (0..).zip(&plan.generations).filter(|(_, g)| **g != 0).map(|(s, _)| s).collect();
        }
        let generations = plan.generations;
        Some(Self {
            header,
            area,
            generations,
            blocks,
            footers,
            old,
            reading: 0,
            sweep: Vec::new(),
            swept_shards: 0,
        })
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

impl Driver {
    pub(super) fn step_load(&mut self, out: &mut Vec<Io>) {
        self.read_blocks(out);
        let Some(load) = &self.load else { return };
        if !load.blocks.is_empty() || load.reading > 0 {
            return;
        }
        if !load.footers.is_empty() {
            return self.read_footers(out);
        }
        if self.sweep_some() {
            self.load = None;
            self.core.loading.store(false, Ordering::Release);
            tracing::info!("index loaded");
        }
    }

    fn read_blocks(&mut self, out: &mut Vec<Io>) {
        loop {
            let Some(load) = &mut self.load else { return };
            if load.reading >= READS {
                return;
            }
            let Some((shard, block)) = load.blocks.pop_front() else { return };
            load.reading += 1;
            let offset = self.core.areas[load.area as usize] + load.header.block_at(shard, block);
            let kind = IoKind::Read { len: stride(load.header.lines) as u32 };
            self.submit(out, Purpose::Load(Part::Block { shard, block }), DeviceId(0), offset, kind);
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
                Purpose::Load(Part::Footer { segment }),
                place.device,
                offset,
                IoKind::Read { len },
            );
        }
    }

    pub(super) fn load_done(&mut self, part: Part, result: io::Result<IoOutput>) {
        let Some(load) = &mut self.load else { return };
        load.reading -= 1;
        let read = bytes(result).ok();
        match part {
            Part::Block { shard, block } => {
                let first = block * BLOCK_LINES;
                let lines =
                    read.and_then(|b| decode_block(&b, &self.core.uuid, load.header.sequence, shard, first));
                match lines {
                    Some(lines) => load.enter_lines(&self.core, shard, first, &lines),
                    None => self.core.totals.lost_index_blocks.inc(),
                }
            }
            Part::Footer { segment } => {
                let generation = load.generations[segment as usize];
                let entries = read.as_ref().and_then(|b| {
                    footer::decode_footer(b, &self.core.uuid, segment, self.core.table.segment_size())
                });
                if let Some((found, entries)) = entries.filter(|(g, _)| *g == generation) {
                    debug_assert_eq!(found, generation);
                    load.enter_records(&self.core, segment, entries);
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
            load.sweep = shard.kills.iter().flatten().map(|(&hash, _)| hash).collect();
        }
        let from = load.sweep.len().saturating_sub(SWEEP);
        for hash in load.sweep.split_off(from) {
            if let Some(at) = shard.index.peek(hash).map(Slot::location) {
                // Slots into other segments were entered by somebody who knew that they are current. A segment being
                // reclaimed counts too: its records can still be read, and kept.
                if load.is_from_lines(&self.core, at.segment) {
                    reached!(Swept);
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
                let segment = Slot::from_word(*word).map(|s| s.location().segment);
                if segment.is_some_and(|s| !core.table.contains(s) || !self.may_point_into(core, s)) {
                    *word = 0;
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

    fn enter_records(&self, core: &Core, segment: u32, entries: &[Entry]) {
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
