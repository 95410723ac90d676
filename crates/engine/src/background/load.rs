//! Loads the index while the cache serves already. The steps: read the segments written since the
//! checkpoint, record by record; load the checkpoint's index lines; clear slots that the journal
//! contradicts.
//!
//! While this runs, lookups compare versions with the shard's kill map, and every put and remove
//! adds to it. A slot from the checkpoint is entered only if nothing was entered for its tag
//! meanwhile. When all lines are loaded, each hash in the map loses its slot. Slots that point into
//! an exact segment, or one written since the checkpoint, stay: whoever entered them knew the
//! version. Then the index is exact and the map is dropped.
//!
//! Where the kill log and the footers tell of many changes, all of that is done in several passes,
//! each for some shards, so that kill versions are in memory only for these. A pass begins with its
//! parts of the kill log. The segments written since the checkpoint are read in each pass, and keep
//! what they have until the last one.
//!
//! If the number of base lines or shards differs from the checkpoint's, the index is rebuilt. The
//! lines go to a temporary index of the old shape. Then every footer is read, or the whole segment
//! if its footer is lost. A record is live if and only if its old slot points at just that place.

use std::io;
use std::sync::Arc;

use super::parts::load::{BlockPart, Load, LoadIo, SegmentPart};
use super::state::bytes;
use super::{Background, Purpose};
use crate::core::Core;
use crate::device::{AlignedBuf, Io, IoKind, IoOutput};
use crate::format::block_lines::block_lines;
use crate::format::checkpoint::{decode_block, stride};
use crate::format::{footer, kill_run};
use crate::index::Slot;
use crate::kill_map::KillMap;
use crate::recovery::{self, Exact, SegmentReader};
use crate::shard::ShardSlot;
use crate::sync::atomic::Ordering;
use crate::sync::unlock_fair;

/// Reads in flight.
const READS: usize = 4;
/// Parts of the kill log read per step.
const KILL_PARTS: usize = 8;
/// Hashes swept per step.
const SWEEP: usize = 16_384;
/// Hashes swept, and kill versions entered, while a shard's mutex is held. Each may miss the
/// processor's caches: some 50 µs.
const AT_A_LOCK: usize = 256;
/// Records of a footer entered per turn at a lock are not bounded: footers are.
const MAX_FOOTERS: usize = 2;

impl Background {
    pub(super) fn step_load(&mut self, out: &mut Vec<Io>) {
        if self.read_kill_parts() || self.read_segment(false, out) {
            return;
        }
        // What is left to be read in the last pass may be none of it any more.
        self.tell_whether_unread();
        self.read_blocks(out);
        let Some(load) = &mut self.load else { return };
        load.tell(&self.core);
        if load.has_blocks() || load.reading > 0 {
            return;
        }
        if !load.footers.is_empty() {
            return self.read_footers(out);
        }
        if self.read_segment(true, out) {
            return;
        }
        if self.sweep_some() {
            if self.load.as_mut().is_some_and(Load::begin_pass) {
                return;
            }
            let begin = self.load.take().map_or(0, |load| load.begin);
            let ms = self.core.time.millis().saturating_sub(begin);
            self.core.progress.loading.store(false, Ordering::Release);
            let objects: usize = self.core.shards.iter().map(|slot| slot.index.len()).sum();
            tracing::info!(objects, ms, "index loaded");
        }
    }

    /// Reads some parts of the kill log into kill versions. Says whether there were any.
    ///
    /// Before anything is entered that they may contradict. A part that cannot be read costs the
    /// objects of its shards: they are not entered.
    fn read_kill_parts(&mut self) -> bool {
        let Some(load) = &mut self.load else { return false };
        let mut any = false;
        for _ in 0..KILL_PARTS {
            let Some((run, part)) = load.next_kill_part() else { break };
            any = true;
            let place = run.parts[part];
            if place.len == 0 {
                continue;
            }
            let name = kill_run::name(run.slot);
            let bytes = self.core.state.files().read_part(&name, place.offset, place.len);
            let kills = bytes.ok().flatten().and_then(|bytes| place.decode(part, &bytes));
            let Some(kills) = kills else {
                coverage_mark!(RunPartLost);
                tracing::warn!(
                    name,
                    "a part of the kill log cannot be read: what it may contradict is lost"
                );
                self.core.totals.lost_kill_parts.inc();
                load.lose_shards_of(part);
                continue;
            };
            enter_kills(&self.core, &kills);
        }
        any
    }

    /// Reads the next part of a segment: of those written since the checkpoint, which come before
    /// anything else, or for a `scan`. Says whether there is one. One after the other, for records
    /// are entered in the order of generations.
    fn read_segment(&mut self, scan: bool, out: &mut Vec<Io>) -> bool {
        let Some(load) = &mut self.load else { return false };
        if !load.begin_read(scan, &self.core.table) {
            return false;
        }
        let Some(read) = &mut load.read else { return false };
        let (segment, table) = (read.segment, &self.core.table);
        if let Some(part) = read.next.take() {
            let (offset, len) = part.range(table.segment_size());
            let place = table.place(segment);
            let purpose = Purpose::Load(LoadIo::Segment(part));
            let offset = place.offset + u64::from(offset);
            self.submit(out, purpose, place.device, offset, IoKind::Read { len });
        }
        true
    }

    /// A part of a segment was read, or could not be.
    fn enter_segment(&mut self, part: SegmentPart, bytes: Option<AlignedBuf>) {
        let Some(load) = &mut self.load else { return };
        let Some(read) = &mut load.read else { return };
        let (segment, generation) = (read.segment, read.generation);
        let device = self.core.table.place(segment).device;
        let found = if bytes.is_none() && self.devices[usize::from(device.0)].silent {
            // What it has cannot be known.
            Some(Exact::nothing(segment, generation))
        } else {
            let reader = SegmentReader::new(&self.core, load.warm.len());
            read.take(&reader, part, bytes.as_deref())
        };
        let Some(mut found) = found else { return };
        let is_exact = load.is_reading_exact();
        load.read = None;
        if is_exact && load.is_first_pass() {
            recovery::register(&self.core, &found);
        }
        found.entries.retain(|entry| load.enters(entry.hash));
        self.grow_for_records(&found.entries);
        let Some(load) = &mut self.load else { return };
        if !is_exact {
            // It may have been reclaimed meanwhile.
            if load.may_point_into(&self.core, segment) {
                load.enter_records(&self.core, segment, &found.entries);
            }
            return;
        }
        recovery::enter(&self.core, &found, &load.warm);
        load.tell(&self.core);
        self.tell_whether_unread();
    }

    /// Namespaces whose records alone tell what is newest may be looked up once all are read.
    fn tell_whether_unread(&self) {
        if self.load.as_ref().is_none_or(|load| !load.has_unread()) {
            self.core.progress.unread.store(false, Ordering::Release);
        }
    }

    fn read_blocks(&mut self, out: &mut Vec<Io>) {
        loop {
            let Some(load) = &mut self.load else { return };
            if load.reading >= READS {
                return;
            }
            let Some((part, copy)) = load.next_block() else { return };
            load.reading += 1;
            let (header, copies) = load.checkpoint.as_ref().expect("blocks are of a checkpoint");
            let (header, at) = (*header, copies[copy]);
            let (areas, table) = (&self.checkpoint.areas, &self.core.table);
            let Some((device, offset)) = areas.block(table, &header, at, (part.shard, part.block))
            else {
                load.reading -= 1;
                self.miss_block(part, copy);
                continue;
            };
            if areas.segment_of(table, &header, at, (part.shard, part.block)).is_some() {
                coverage_mark!(LoadedFromSegment);
            }
            let kind = IoKind::Read { len: stride(header.lines) as u32 };
            let load = LoadIo::Block { part, copy };
            self.submit(out, Purpose::Load(load), device, offset, kind);
        }
    }

    /// A block cannot be read from a copy of the checkpoint: it is read from the next, or lost.
    fn miss_block(&mut self, part: BlockPart, copy: usize) {
        let Some(load) = &mut self.load else { return };
        if !load.try_next_copy(part, copy) {
            self.core.totals.lost_index_blocks.inc();
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
            let len = table.footer(segment);
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
        load.reading -= usize::from(!matches!(part, LoadIo::Segment(_)));
        let read = bytes(result).ok();
        match part {
            LoadIo::Segment(part) => self.enter_segment(part, read),
            LoadIo::Block { part, copy } => self.enter_block(part, copy, read),
            LoadIo::Footer { segment } => self.enter_footer(segment, read),
        }
    }

    fn enter_block(&mut self, part: BlockPart, copy: usize, read: Option<AlignedBuf>) {
        let Some(load) = &self.load else { return };
        let BlockPart { shard, block } = part;
        let first = block * block_lines();
        let (header, _) = load.checkpoint.as_ref().expect("blocks are of a checkpoint");
        let lines =
            read.and_then(|b| decode_block(&b, &self.core.uuid, header.sequence, shard, first));
        let Some(lines) = lines else { return self.miss_block(part, copy) };
        if load.old.is_none() {
            let slots = lines.as_flattened().iter().filter(|word| **word != 0).count();
            self.grow_for(shard as usize, slots);
        }
        if let Some(load) = &mut self.load {
            load.enter_lines(&self.core, shard, first, &lines);
        }
    }

    fn enter_footer(&mut self, segment: u32, read: Option<AlignedBuf>) {
        let Some(load) = &mut self.load else { return };
        let generation = load.generations[segment as usize];
        let size = self.core.table.segment_size();
        let entries = read.as_ref().and_then(|b| {
            let found = footer::decode_footer(b, &self.core.uuid, segment, size)?;
            (found.trailer.generation == generation).then_some(found.entries)
        });
        // A crash of the machine may have left the footer of the segment's next use with records of
        // this use.
        let Some(entries) = entries else {
            return load.scans.push_back((segment, generation));
        };
        let mut entries = entries;
        entries.retain(|entry| load.enters(entry.hash));
        self.grow_for_records(&entries);
        if let Some(load) = &self.load {
            load.enter_records(&self.core, segment, &entries);
        }
    }

    /// Sweeps a bounded number of hashes; true when nothing is left.
    ///
    /// Reads and changes of a shard wait for its mutex, so it is taken for few hashes at a time.
    fn sweep_some(&mut self) -> bool {
        let Some(load) = &mut self.load else { return true };
        while load.swept_shards < self.core.shards.len() && !load.is_of_pass(load.swept_shards) {
            load.swept_shards += 1;
        }
        let Some(slot) = self.core.shards.get(load.swept_shards) else { return true };
        if let Some(kills) = end_collecting(slot) {
            // Older kills cannot contradict lines. They only concern records of segments that were
            // open at the checkpoint.
            let header = load.checkpoint.as_ref().map(|(header, _)| header);
            let floor = header.map_or(u64::MAX, |header| header.version_floor);
            load.sweep = kills.iter().filter(|kill| kill.1 >= floor).map(|kill| kill.0).collect();
        }
        let from = load.sweep.len().saturating_sub(SWEEP);
        let swept = load.sweep.split_off(from);
        for hashes in swept.chunks(AT_A_LOCK) {
            sweep(&self.core, load, slot, hashes);
        }
        if load.sweep.is_empty() {
            // Its memory is given back without the mutex.
            let kills = slot.lock().kills.take();
            drop(kills);
            load.swept_shards += 1;
        }
        load.swept_shards == self.core.shards.len()
    }
}

/// All lines of a shard are loaded. From now on a change of a key clears its only slot, and the map
/// does not grow: whoever reads it needs no mutex. `None` if that was so before.
fn end_collecting(slot: &ShardSlot) -> Option<Arc<KillMap>> {
    let mut shard = slot.lock();
    std::mem::take(&mut shard.collecting).then(|| shard.kills.clone().unwrap_or_default())
}

/// Clears the slots of some hashes that the journal contradicts.
fn sweep(core: &Core, load: &Load, slot: &ShardSlot, hashes: &[u64]) {
    debug_assert!(hashes.len() <= AT_A_LOCK, "{} hashes", hashes.len());
    let mut shard = slot.lock();
    for &hash in hashes {
        if let Some(at) = shard.index.peek(hash).map(Slot::location) {
            // Slots into other segments were entered by operations that knew them to be current. A
            // segment being reclaimed counts too: its records can still be read and reinserted.
            if load.is_from_lines(core, at.segment) {
                coverage_mark!(Swept);
                shard.clear_if(hash, at);
            }
        }
    }
    unlock_fair(shard);
}

/// Nothing on flash that is older counts any more.
fn enter_kills(core: &Core, kills: &[(u64, u64)]) {
    let mut rest = kills;
    while let Some(&(first, _)) = rest.first() {
        // Kills of a part are often all of one shard.
        let mut shard = core.shard(first).lock();
        let mask = core.shards.len() - 1;
        let is_same = |kill: &&(u64, u64)| (kill.0 ^ first) as usize & mask == 0;
        let n = rest.iter().take(AT_A_LOCK).take_while(is_same).count();
        for &(hash, version) in &rest[..n] {
            shard.distrust_below(hash, version);
        }
        unlock_fair(shard);
        rest = &rest[n..];
    }
}
