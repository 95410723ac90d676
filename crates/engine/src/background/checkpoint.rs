//! Checkpoints: index, segment table and kill tables, written while the cache serves.
//!
//! ```text
//!   Idle ──▶ Blocks ──▶ Flush ──▶ Header ──▶ FlushHeader ──▶ Verify ──▶ Idle, journal truncated
//!    │         ▲ │          │          │            │             │
//!    ▼         │ └──────────┴──────────┴────────────┴─────────────┴─────▶ Idle, nothing changed
//!   Erase ──▶ FlushErased                           (from Erase and FlushErased too)
//! ```
//! An attempt that fails behind its header leaves a checkpoint that may be whole. After a crash it
//! is the newest. The next attempt writes to the same area, so it erases that header first: a crash
//! would find lines of both behind it.
//!
//! The order at the start matters:
//!
//! 1. Read the journal's head.
//! 2. Read the version floor.
//! 3. Take and release every shard's lock once. The index of a shard does not grow from then on,
//!    until all its lines are captured: the header has counted them.
//!
//! A change with a lower version has then finished. A change with a higher version writes its
//! journal entry at or above the head that was read. So the lines, captured afterwards, contain
//! every effect below the floor. The journal from that head on has every effect at or above it.
//!
//! A segment that is open at that moment may contain records killed since it was opened, so the
//! journal is kept from its opening. Every record that the captured lines name must be written
//! before the flush. An older copy of the same object may be on flash, and no line names it now.

use crate::sync::atomic::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::io;

use super::parts::checkpoint::{AreaAt, CheckpointIo, CheckpointPhase, CheckpointRun, Todo};
use super::state::bytes;
use super::{Background, Purpose};
use crate::checkpoint_areas::CheckpointAreas;
use crate::checkpoint_pace::{journal_share, segments_between};
use crate::core::Core;
use crate::device::{AlignedBuf, DeviceId, Io, IoKind, IoOutput, WriteBuf};
use crate::format::block_lines::block_lines;
#[cfg(test)]
use crate::format::checkpoint::SEGMENT_ENTRY;
use crate::format::checkpoint::{Header, SlotPacking, Tables, decode_block, encode_block, stride};
#[cfg(test)]
use crate::format::record::RecordFormat;
use crate::format::{BLOCK, round_up};
#[cfg(test)]
use crate::index::Slot;
use crate::segment::SegmentTable;

/// I/Os of a checkpoint in flight.
const IN_FLIGHT: usize = 4;
/// Bytes of tables per write.
const PIECE: usize = 1 << 20;
/// Least time between two checkpoints, in milliseconds.
const PAUSE: u64 = 1_000;
/// A checkpoint at least that often while anything changes; less often where the kill log may have
/// more than a journal.
const EVERY: u64 = 300_000;

/// How a checkpoint packs slots.
#[cfg(not(test))]
fn packing(_: &Core, _: &mut [u8]) -> SlotPacking {
    SlotPacking::Format2
}

/// How a checkpoint packs slots. A cache of the simulation whose records are as those of format 1
/// writes checkpoints as format 1 did. Their tables have nothing but the state in the last word of
/// a segment.
#[cfg(test)]
fn packing(core: &Core, tables: &mut [u8]) -> SlotPacking {
    if core.streams.format() == RecordFormat::Compact {
        return SlotPacking::Format2;
    }
    let segments = core.table.len() as usize;
    for entry in tables.chunks_exact_mut(SEGMENT_ENTRY).take(segments) {
        entry[SEGMENT_ENTRY - 3..].fill(0);
    }
    SlotPacking::Format1
}

/// What a checkpoint writes before its header: the blocks of all shards, then pieces of its tables.
fn todo(header: &Header, tables_len: usize) -> VecDeque<Todo> {
    let blocks = (0..header.shards)
        .flat_map(|s| (0..header.blocks_per_shard()).map(move |b| Todo::Block(s, b)));
    let pieces = (0..tables_len).step_by(PIECE).map(Todo::Tables);
    blocks.chain(pieces).collect()
}

impl Background {
    pub(super) fn step_checkpoint(&mut self, now: u64, out: &mut Vec<Io>) {
        self.seal_what_holds_the_journal();
        if self.checkpoint.run.is_none()
            && self.load.is_none()
            && !self.core.table.is_footer_pending()
            && self.checkpoint_is_due(now)
        {
            self.start_checkpoint();
        }
        self.issue_checkpoint(out);
        let Some(run) = &self.checkpoint.run else { return };
        if run.in_flight == 0 && (run.has_failed() || run.todo.is_empty()) {
            if run.phase == CheckpointPhase::Blocks && !run.has_failed() && !self.are_lines_true() {
                coverage_mark!(CheckpointWaited);
                return;
            }
            self.end_phase(now);
            self.issue_checkpoint(out);
        }
    }

    /// Whether a checkpoint is written, and is read back.
    #[cfg(test)]
    pub(crate) fn is_verifying_checkpoint(&self) -> bool {
        self.checkpoint.run.as_ref().is_some_and(|run| run.phase == CheckpointPhase::Verify)
    }

    /// Whether all that the captured lines name is on flash.
    ///
    /// A line may name a record in an open chunk whose object has an older copy on flash. A reclaim
    /// moves records so. An eviction does it too, when the object's slot has changed since it came
    /// into memory. Until the new copy is written a crash needs the old one. Only the lines of the
    /// checkpoint before lead there.
    fn are_lines_true(&mut self) -> bool {
        let Some(run) = &mut self.checkpoint.run else { return true };
        self.core.streams.are_all_written(&mut run.named_before)
    }

    /// The journal is needed from where the oldest open segment was opened: a stream that gets
    /// little must not fill it.
    fn seal_what_holds_the_journal(&self) {
        let journal = &self.core.journal;
        let (used, most) = (journal.used(), journal.entries() / 4);
        if used > most {
            self.core.streams.seal_opened_before(journal.head().saturating_sub(most));
        }
    }

    fn checkpoint_is_due(&self, now: u64) -> bool {
        let (c, core) = (&self.checkpoint, &self.core);
        if c.wanted || core.wait_lists.take_wanted() {
            return true;
        }
        if c.ended.is_some_and(|at| now < at + PAUSE) || self.close.is_running() {
            return false;
        }
        // The further apart, the less is written; but recovery reads all changes and the footers of
        // all segments since.
        let (far, entries) = (self.far(), core.journal.entries());
        let (all, size) = (core.table.len().into(), core.table.segment_size().into());
        let segments = segments_between(self.index_bytes(), all, size);
        let every = EVERY.saturating_mul(far / journal_share(entries).max(1));
        let old =
            now >= c.ended.unwrap_or(0).saturating_add(every) && core.journal.head() != c.head;
        (core.journal.used() > journal_share(entries) && !self.may_compact(now))
            || self.since_base() >= far
            || core.table.opened() + c.opened_before >= c.opened + segments
            // Also records of namespaces that journal no puts.
            || core.table.appended() + c.appended_before >= c.appended + entries.max(far)
            || core.journal.is_poisoned()
            || (core.journal.is_bare() && core.journal.head() > 0)
            || old
    }

    fn start_checkpoint(&mut self) {
        self.complete_homes();
        let core = &self.core;
        // Not before this checkpoint, but before the next one: open segments must not keep the
        // journal poisoned.
        core.streams.seal_opened_before(core.journal.poisoned_below().unwrap_or(0));
        let head = core.journal.head();
        let floor = core.versions.peek();
        for slot in &core.shards {
            core.hold_index(&mut slot.lock());
        }
        drop(core.namespaces.removing.write());
        // The table first: a segment that is sealed in between counts as open, which costs journal
        // and nothing else.
        let position = core.table.oldest_open_position().map_or(head, |p| p.min(head));
        let namespaces = core.namespaces.list.read().iter().map(|ns| ns.kills()).collect();
        let [areas, second] = [0, 1].map(|number| self.checkpoint.areas.segments(number));
        let tables = Tables { segments: core.table.entries(), namespaces, areas, second };
        let lines = core.shards.iter().map(|slot| slot.index.lines()).max().unwrap_or(0) as u64;
        let base = core.shards[0].index.base_lines() as u64;
        // A version, never used before: blocks of an attempt that failed must not pass for blocks
        // of this one.
        let sequence = core.versions.take();
        let which = self.checkpoint.last.map_or(0, |(_, which)| 1 - which);
        let mut encoded = tables.encode();
        let packing = packing(core, &mut encoded);
        let header = Header {
            uuid: core.uuid,
            sequence,
            version_floor: floor,
            journal_position: position,
            time: core.time.now(),
            journal_epoch: core.state.lock().journal_epoch,
            shards: core.shards.len() as u32,
            lines,
            base,
            grown: lines > base || tables.has_segments(),
            packing,
            segments: core.table.len(),
            tables_len: encoded.len() as u64,
            tables_checksum: Tables::sum(&encoded, &core.uuid, sequence),
        };
        self.checkpoint.wanted = false;
        (self.checkpoint.head, self.checkpoint.opened) = (head, core.table.opened());
        self.checkpoint.appended = core.table.appended();
        self.look_at_homes(&header, which);
        let homes = match self.homes_for(&header, which) {
            Ok(homes) => homes,
            Err(fits) => {
                self.let_indexes_go();
                return if fits { self.fail_checkpoint() } else { self.make_it_fit(&header) };
            }
        };
        if header.grown {
            coverage_mark!(CheckpointGrown);
        }
        let (phase, todo) = self.first_phase(&homes, which, &header, encoded.len());
        self.checkpoint.run = Some(CheckpointRun {
            header,
            which,
            todo,
            began: (head, self.core.table.appended()),
            tables: encoded,
            phase,
            in_flight: 0,
            homes,
            failures: BTreeSet::new(),
            named_before: None,
        });
    }

    /// What a checkpoint begins with: its blocks, or the header that is to go before.
    fn first_phase(
        &self,
        homes: &[usize],
        which: u32,
        header: &Header,
        tables_len: usize,
    ) -> (CheckpointPhase, VecDeque<Todo>) {
        let is_headed = |&home: &usize| self.checkpoint.headed.contains(&AreaAt { home, which });
        match homes.iter().any(is_headed) {
            true => (CheckpointPhase::Erase, [Todo::Erase].into()),
            false => (CheckpointPhase::Blocks, todo(header, tables_len)),
        }
    }

    /// It is tried again later.
    pub(super) fn fail_checkpoint(&mut self) {
        self.core.totals.checkpoint_failures.inc();
        self.checkpoint.ended = Some(self.core.time.millis());
    }

    /// Indexes may grow again, and slots may move between all lines.
    fn let_indexes_go(&self) {
        for slot in &self.core.shards {
            let mut shard = slot.lock();
            shard.index.set_captured(0);
            shard.index.let_go();
        }
    }

    fn issue_checkpoint(&mut self, out: &mut Vec<Io>) {
        loop {
            let Some(run) = &mut self.checkpoint.run else { return };
            if run.in_flight >= IN_FLIGHT || run.has_failed() {
                return;
            }
            let Some(todo) = run.todo.pop_front() else { return };
            match todo {
                Todo::Block(shard, block) => {
                    let header = run.header;
                    let data = self.capture(&header, shard, block);
                    let block = (shard, block);
                    self.write_checkpoint(out, data, Some(block), |areas, table, at| {
                        let place = areas.block(table, &header, at, block);
                        place.expect("a checkpoint is begun where it has its place")
                    });
                }
                Todo::Tables(from) => {
                    let bytes = &run.tables[from..run.tables.len().min(from + PIECE)];
                    let mut data = AlignedBuf::copy_of(bytes);
                    data.set_len(round_up(bytes.len() as u64, BLOCK.into()) as usize);
                    let offset = run.header.tables_at() + from as u64;
                    self.write_to_areas(out, data, offset);
                }
                Todo::Erase => {
                    self.write_to_areas(out, AlignedBuf::zeroed(BLOCK as usize), 0);
                }
                Todo::Header => {
                    let data = AlignedBuf::copy_of(&run.header.encode());
                    self.write_to_areas(out, data, 0);
                }
                Todo::Flush(device) => {
                    run.in_flight += 1;
                    let part = Purpose::Checkpoint(CheckpointIo::Flush { device });
                    self.submit(out, part, device, 0, IoKind::Sync);
                }
                Todo::Check(part) => self.check_checkpoint(out, part),
            }
        }
    }

    /// Writes something other than a block to the area of each home, at this offset.
    fn write_to_areas(&mut self, out: &mut Vec<Io>, data: AlignedBuf, offset: u64) {
        self.write_checkpoint(out, data, None, |areas, _, at| {
            (areas.device(at.home), areas.offset(at) + offset)
        });
    }

    /// Writes a part of the checkpoint to all homes that it still goes to.
    fn write_checkpoint(
        &mut self,
        out: &mut Vec<Io>,
        data: AlignedBuf,
        block: Option<(u32, u64)>,
        place: impl Fn(&CheckpointAreas, &SegmentTable, AreaAt) -> (DeviceId, u64),
    ) {
        let Some(run) = &mut self.checkpoint.run else { return };
        let (homes, which, data) = (run.homes.clone(), run.which, WriteBuf::from(data));
        run.in_flight += homes.len();
        for home in homes {
            let at = AreaAt { home, which };
            self.core.totals.metadata_bytes.add(data.len() as u64);
            let (device, offset) = place(&self.checkpoint.areas, &self.core.table, at);
            let part = Purpose::Checkpoint(CheckpointIo::Write { at, block });
            self.submit(out, part, device, offset, IoKind::Write { data: data.clone() });
        }
    }

    /// Reads a part of the checkpoint back.
    fn check_checkpoint(&mut self, out: &mut Vec<Io>, part: CheckpointIo) {
        let Some(run) = &mut self.checkpoint.run else { return };
        let Some(home) = part.home().filter(|home| run.homes.contains(home)) else { return };
        run.in_flight += 1;
        let (header, at) = (run.header, AreaAt { home, which: run.which });
        let (areas, table) = (&self.checkpoint.areas, &self.core.table);
        let (device, area) = (areas.device(home), areas.offset(at));
        let ((device, offset), len) = match &part {
            CheckpointIo::ReadBlock { shard, block, .. } => {
                let place = areas.block(table, &header, at, (*shard, *block));
                let place = place.expect("a checkpoint is begun where it has its place");
                (place, stride(header.lines))
            }
            CheckpointIo::ReadTables { .. } => {
                let len = round_up(header.tables_len, BLOCK.into());
                ((device, area + header.tables_at()), len)
            }
            _ => ((device, area), BLOCK.into()),
        };
        let kind = IoKind::Read { len: len as u32 };
        self.submit(out, Purpose::Checkpoint(part), device, offset, kind);
    }

    /// The lines of a block as they are now.
    fn capture(&self, header: &Header, shard: u32, block: u64) -> AlignedBuf {
        let slot = &self.core.shards[shard as usize];
        // Shards have grown by different numbers of lines.
        let lines = slot.index.lines() as u64;
        let first = (block * block_lines()).min(lines);
        let last = (first + block_lines()).min(lines);
        let lines: Vec<[u64; 8]> = {
            // Under the lock no slot is between two lines of this block, and from now on none comes
            // into it from a later one.
            let mut shard = slot.lock();
            if block + 1 == header.blocks_per_shard() {
                shard.index.set_captured(0);
                shard.index.let_go();
            } else {
                shard.index.set_captured(last as usize);
            }
            slot.index.line_words(first as usize..last as usize).collect()
        };
        #[cfg(test)]
        let lines = match header.packing {
            SlotPacking::Format1 => {
                lines.iter().map(|words| words.map(Slot::word_in_format_1)).collect()
            }
            SlotPacking::Format2 => lines,
        };
        let mut data = AlignedBuf::zeroed(stride(header.lines) as usize);
        let first = block * block_lines();
        encode_block(&mut data, &header.uuid, header.sequence, shard, first, &lines);
        data
    }

    pub(super) fn checkpoint_done(&mut self, part: CheckpointIo, result: io::Result<IoOutput>) {
        let Some(run) = &mut self.checkpoint.run else { return };
        run.in_flight -= 1;
        let (header, home, block) = (run.header, part.home(), part.block());
        let sound = match part {
            CheckpointIo::Write { .. } | CheckpointIo::Flush { .. } => {
                if result.is_err() {
                    self.core.totals.write_errors.inc();
                }
                result.is_ok()
            }
            CheckpointIo::ReadBlock { shard, block, .. } => bytes(result).is_ok_and(|b| {
                decode_block(&b, &header.uuid, header.sequence, shard, block * block_lines())
                    .is_some()
            }),
            CheckpointIo::ReadTables { .. } => bytes(result).is_ok_and(|b| {
                let sum =
                    Tables::sum(&b[..header.tables_len as usize], &header.uuid, header.sequence);
                sum == header.tables_checksum
            }),
            CheckpointIo::ReadHeader { home } => {
                let area = self.checkpoint.areas.bytes(home);
                bytes(result).is_ok_and(|b| Header::decode(&b, &header.uuid, area) == Some(header))
            }
        };
        if sound {
            return;
        }
        let failed: Vec<usize> = match part {
            // Records that a device has not flushed cost hits after a power loss, and no more.
            CheckpointIo::Flush { device } => {
                let (areas, table, which) = (&self.checkpoint.areas, &self.core.table, run.which);
                let lies_there =
                    |&home: &usize| areas.lies_on(table, AreaAt { home, which }, device);
                run.homes.iter().copied().filter(lies_there).collect()
            }
            _ => home.into_iter().collect(),
        };
        for home in failed {
            let at = AreaAt { home, which: run.which };
            let segment = block
                .and_then(|b| self.checkpoint.areas.segment_of(&self.core.table, &header, at, b));
            run.failures.insert((home, segment));
            if run.homes.len() > 1 {
                coverage_mark!(CheckpointHomeLost);
            }
            run.drop_home(home);
        }
    }

    /// Nothing of a checkpoint is in flight any more.
    fn end_checkpoint(&mut self, now: u64) {
        self.checkpoint.ended = Some(now);
        let Some(run) = self.checkpoint.run.take() else { return };
        for &(home, segment) in &run.failures {
            // Where the area itself fails too, or nothing is written, it is no bad place.
            let device = &self.devices[usize::from(self.checkpoint.areas.device(home).0)];
            let fails = run.failures.contains(&(home, None)) || device.pause > 0 || device.silent;
            if let Some(number) = segment.filter(|_| !fails) {
                self.replace_segment(AreaAt { home, which: run.which }, number);
            }
        }
    }

    /// All I/Os of a phase are over.
    fn end_phase(&mut self, now: u64) {
        let Some(run) = &mut self.checkpoint.run else { return };
        // A device that has fallen silent with nothing of this in flight is not flushed below.
        let areas = &self.checkpoint.areas;
        run.homes.retain(|&home| !self.devices[usize::from(areas.device(home).0)].silent);
        if run.has_failed() {
            self.core.totals.checkpoint_failures.inc();
            self.let_indexes_go();
            return self.end_checkpoint(now);
        }
        let header = run.header;
        // One that does not answer would not be waited for anyway.
        let answers = |device: &DeviceId| {
            let has_segments = self.core.table.has_segments_on(*device);
            has_segments && !self.devices[usize::from(device.0)].silent
        };
        let devices = (0..self.devices.len() as u16).map(DeviceId).filter(answers);
        let flush = |&home: &usize| Todo::Flush(areas.device(home));
        let area = |&home: &usize| AreaAt { home, which: run.which };
        (run.phase, run.todo) = match run.phase {
            CheckpointPhase::Erase => {
                coverage_mark!(AttemptErased);
                (CheckpointPhase::FlushErased, run.homes.iter().map(flush).collect())
            }
            CheckpointPhase::FlushErased => {
                for at in run.homes.iter().map(area) {
                    self.checkpoint.headed.remove(&at);
                }
                (CheckpointPhase::Blocks, todo(&header, run.tables.len()))
            }
            CheckpointPhase::Blocks => (CheckpointPhase::Flush, devices.map(Todo::Flush).collect()),
            CheckpointPhase::Flush => {
                self.checkpoint.headed.extend(run.homes.iter().map(area));
                (CheckpointPhase::Header, [Todo::Header].into())
            }
            CheckpointPhase::Header => {
                (CheckpointPhase::FlushHeader, run.homes.iter().map(flush).collect())
            }
            CheckpointPhase::FlushHeader => {
                let parts = run.homes.iter().flat_map(|&home| {
                    let blocks =
                        (0..header.shards).flat_map(move |shard| {
                            (0..header.blocks_per_shard())
                                .map(move |block| CheckpointIo::ReadBlock { home, shard, block })
                        });
                    [CheckpointIo::ReadHeader { home }, CheckpointIo::ReadTables { home }]
                        .into_iter()
                        .chain(blocks)
                });
                (CheckpointPhase::Verify, parts.map(Todo::Check).collect())
            }
            CheckpointPhase::Verify => {
                let (which, began) = (run.which, run.began);
                self.checkpoint.last = Some((header.sequence, which));
                // Its header is the newest, and not an attempt's.
                self.checkpoint.headed.retain(|at| at.which != which);
                self.end_checkpoint(now);
                // The pair of what `start_checkpoint` has chosen: what was opened since lies above.
                let open = self.core.table.oldest_open_position();
                debug_assert!(open.is_none_or(|open| open >= header.journal_position));
                self.core.journal.truncate(header.journal_position);
                (self.checkpoint.base, self.checkpoint.appended_before) = (began, 0);
                self.checkpoint.opened_before = 0;
                self.drop_runs(header.journal_position);
                self.core.totals.checkpoints.inc();
                return;
            }
        };
        debug_assert!(!self.core.progress.loading.load(Ordering::Relaxed));
    }
}
