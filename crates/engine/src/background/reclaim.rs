//! Frees segments: dead ones first, then the oldest.
//!
//! Objects that were read since they were written may be reinserted, within a budget. Objects that
//! live in DRAM are copied again. A segment is free once everything appended until then is on
//! flash. Until then a crash finds the old copies.

use std::collections::VecDeque;
use std::io;

use super::parts::reclaim::{Reclaim, ReclaimIo};
use super::state::bytes;
use super::{Background, Purpose};
use crate::api::DropReason;
use crate::core::Core;
use crate::device::{AlignedBuf, Io, IoKind, IoOutput};
use crate::format::footer;
use crate::format::footer_entries::FooterEntry;
use crate::format::record::{self, Meta, RecordFormat};
use crate::format::{BLOCK, UNIT};
use crate::index::Location;
use crate::segment::{Object, SegmentState, StreamId};
use crate::shard::Shard;
use crate::tier::admission::Admission;
use crate::tier::{DramEntry, EntryState, NOWHERE};

/// Objects in DRAM looked at in one turn at a shard's lock.
const VISITED: usize = 4096;
/// Records examined per step.
const PER_STEP: usize = 2048;
/// Chunks of memory that reads of records to be reinserted may take, one long record apart.
const READ_CHUNKS: u32 = 2;

/// A byte that was not admitted earns so many times what a written one earns for reinsertion.
const REFUSED_EARN: u64 = 4;

/// What happened to an object of a reclaimed segment that lives in DRAM.
enum Hot {
    /// DRAM does not have it.
    Absent,
    /// It is in an open chunk.
    Copied,
    /// It waits among the dirty objects.
    Dirty,
    /// It is only in DRAM now.
    GivenUp,
    /// Too many chunks wait for the device.
    Later,
}

impl Background {
    pub(super) fn step_reclaim(&mut self, out: &mut Vec<Io>) {
        if self.reclaim.is_none() {
            let free = self.core.table.free_count();
            // While the index loads it is not known which objects are alive. Reclaim waits as long
            // as it can.
            let can_wait =
                self.load.as_ref().is_some_and(|load| free > 0 || !load.knows_what_is_free());
            if free > self.core.admission.free_target || can_wait || self.close.is_sealing() {
                return;
            }
            let Some(segment) = self.victim() else { return };
            self.start_reclaim(segment, out);
        }
        self.look_at_records();
        self.read_kept(out);
        let over = |r: &Reclaim| {
            r.entries.as_ref().is_some_and(VecDeque::is_empty)
                && r.keep.is_empty()
                && r.reading == 0
        };
        if self.reclaim.as_ref().is_some_and(over) && self.are_copies_written() {
            let reclaim = self.reclaim.take().expect("just looked at");
            let place = self.core.table.place(reclaim.segment);
            // Before the segment may be opened again.
            tracing::debug!(device = place.device.0, offset = place.offset, "segment reclaimed");
            self.core.table.set_free(reclaim.segment);
            self.core.totals.segments_reclaimed.inc();
        }
    }

    /// Whether a crash now would find a copy of all that the segment held and slots still name.
    ///
    /// Not only the reclaim appends such copies. A lookup may bring an object into DRAM meanwhile.
    /// Its eviction writes it again, and its slot leaves the segment before the reclaim looks at
    /// it. So the reclaim waits for everything appended, whoever did it.
    fn are_copies_written(&mut self) -> bool {
        let Some(reclaim) = &mut self.reclaim else { return true };
        self.core.streams.are_all_written(&mut reclaim.copied_before)
    }

    /// The segment that is cheapest to free: one with nothing alive, else the oldest.
    fn victim(&self) -> Option<u32> {
        let (table, now, loading) = (&self.core.table, self.core.time.now(), self.load.is_some());
        let dead =
            |s: u32| u64::from(table.max_expiry(s)) <= now || (!loading && table.live(s) == 0);
        table
            .in_state(SegmentState::Sealed)
            .filter(|&s| !table.is_pending(s) && table.is_usable(s))
            .filter(|&s| !self.is_loaded_from(s))
            .min_by_key(|&s| (!dead(s), table.generation(s)))
    }

    /// Whether its records are still to be entered in the index.
    fn is_loaded_from(&self, segment: u32) -> bool {
        let generation = self.core.table.generation(segment);
        self.load.as_ref().is_some_and(|load| load.needs_again(segment, generation))
    }

    fn start_reclaim(&mut self, segment: u32, out: &mut Vec<Io>) {
        if self.load.is_some() {
            coverage_mark!(ReclaimLoading);
        }
        let table = &self.core.table;
        table.start_reclaim(segment);
        let (generation, place) = (table.generation(segment), table.place(segment));
        let len = table.footer(segment);
        let offset = place.offset + u64::from(table.segment_size() - len);
        let keep = VecDeque::new();
        self.reclaim = Some(Reclaim {
            segment,
            generation,
            entries: None,
            keep,
            reading: 1,
            reading_bytes: 0,
            copied_before: None,
            room: 0,
            left: 0,
        });
        self.submit(
            out,
            Purpose::Reclaim(ReclaimIo::Footer),
            place.device,
            offset,
            IoKind::Read { len },
        );
    }

    /// Adds credit for reinsertion: a share of what was written since, without what reclaims wrote.
    /// What was not admitted counts too, and more: each such byte is a write that was saved, and
    /// those on flash are worth more where few are let in.
    fn earn_credit(&mut self) {
        let totals = &self.core.totals;
        // Lookups move records to other devices meanwhile: what they have written is in one sum and
        // maybe not yet in the other. The next look makes up for that.
        let again = totals.reinserted_bytes.get();
        let refused = REFUSED_EARN * self.core.admission.refused();
        self.credit.earn(totals.record_bytes.get().saturating_sub(again) + refused);
    }

    /// Drops the slots of records, or notes records to be reinserted.
    fn look_at_records(&mut self) {
        self.earn_credit();
        let Some(reclaim) = &mut self.reclaim else { return };
        // The clean stop drops nothing that fits.
        let (core, forced) = (&self.core, self.close.is_copying());
        for _ in 0..PER_STEP {
            let Some(entry) = reclaim.entries.as_mut().and_then(VecDeque::pop_front) else {
                return;
            };
            let (hash, at) = (entry.hash, location(reclaim.segment, &entry));
            let mut shard = core.shard(hash).lock();
            let Some(slot) = shard.index.peek(hash).filter(|s| s.location() == at) else {
                continue;
            };
            let admission = if forced { Admission::Forced } else { Admission::Asked };
            let len = core.table.format(reclaim.segment).padded(entry.len);
            let has_room = len <= reclaim.room.min(reclaim.left);
            match copy_hot(core, &mut shard, &entry, has_room.then_some(admission)) {
                Hot::Absent => {}
                Hot::Copied => {
                    reclaim.take(len);
                    continue;
                }
                hot @ (Hot::Dirty | Hot::GivenUp) => {
                    if matches!(hot, Hot::Dirty) {
                        reclaim.take(len);
                    }
                    core.totals.copies_lost.inc();
                    shard.clear_if(hash, at);
                    continue;
                }
                Hot::Later => {
                    reclaim.entries.get_or_insert_default().push_front(entry);
                    return;
                }
            }
            let has_room = reclaim.left >= len + core.table.segment_size() / 2;
            let allowed = has_room
                && self.credit.is_left()
                && core.admission.is_within_budget(|| core.written(), entry.len);
            if slot.freq() > 0 && allowed && is_alive(core, &entry.meta) {
                reclaim.left -= len;
                self.credit.spend(len);
                reclaim.keep.push_back(entry);
            } else if shard.clear_if(hash, at) {
                core.totals.dropped(DropReason::Reclaimed, 1);
            }
        }
    }

    fn read_kept(&mut self, out: &mut Vec<Io>) {
        let most = self.core.streams.chunk_size() * READ_CHUNKS;
        loop {
            let Some(reclaim) = &mut self.reclaim else { return };
            let Some(entry) = reclaim.keep.front() else { return };
            let (start, len) = blocks(entry);
            if !reclaim.may_read(len, most) {
                return;
            }
            let Some(entry) = reclaim.keep.pop_front() else { return };
            reclaim.reading += 1;
            reclaim.reading_bytes += len;
            let place = self.core.table.place(reclaim.segment);
            let part = ReclaimIo::Record { skip: (entry.offset - start) as usize, entry };
            let kind = IoKind::Read { len };
            self.submit(
                out,
                Purpose::Reclaim(part),
                place.device,
                place.offset + u64::from(start),
                kind,
            );
        }
    }

    pub(super) fn reclaim_done(&mut self, part: ReclaimIo, result: io::Result<IoOutput>) {
        let Some(reclaim) = &mut self.reclaim else { return };
        reclaim.reading -= 1;
        match part {
            ReclaimIo::Footer => {
                let footer = bytes(result);
                let entries = footer.as_ref().ok().and_then(|b| {
                    let size = self.core.table.segment_size();
                    let found = footer::decode_footer(b, &self.core.uuid, reclaim.segment, size)?;
                    let same = found.trailer.generation == reclaim.generation;
                    same.then(|| found.entries.into())
                });
                let blind = entries.is_none();
                if blind {
                    coverage_mark!(ReclaimBlind);
                }
                let segment = reclaim.segment;
                let entries: VecDeque<FooterEntry> =
                    entries.unwrap_or_else(|| self.known_without_footer(segment));
                let Some(reclaim) = &mut self.reclaim else { return };
                let (most, format) =
                    (self.core.table.segment_size() / 4 * 3, self.core.table.format(segment));
                reclaim.room = if blind {
                    most
                } else {
                    entries.iter().map(|e| format.padded(e.len)).sum::<u32>() / 4 * 3
                };
                // At least an eighth of the segment is freed.
                reclaim.left = self.core.table.segment_size() / 8 * 7;
                reclaim.entries = Some(entries);
            }
            ReclaimIo::Record { entry, skip } => {
                reclaim.reading_bytes -= blocks(&entry).1;
                let (segment, generation) = (reclaim.segment, reclaim.generation);
                if !self.reinsert(segment, generation, &entry, skip, bytes(result).ok()) {
                    self.credit.give_back(self.core.table.format(segment).padded(entry.len));
                }
            }
        }
    }

    /// What is known of a segment whose footer cannot be read: the records of objects that live in
    /// DRAM. These must not count as copied once the segment is used again. Slots of others stay;
    /// lookups clear them when they find nothing.
    fn known_without_footer(&self, segment: u32) -> VecDeque<FooterEntry> {
        let mut entries = VecDeque::new();
        each_copy_in(&self.core, segment, |shard, object, at| {
            if shard.is_at(object.hash, at) {
                let key_len = object.key_len as usize;
                let len = record::most_len(key_len, object.data.len() - key_len) as u32;
                let (hash, meta, offset) = (object.hash, object.meta(), at.offset());
                entries.push_back(FooterEntry { hash, meta, offset, len });
            } else {
                // Another key has taken its slot: no lookup would find the record.
                shard.dram.mark_dirty(object.hash, object.version);
            }
        });
        entries
    }

    /// Appends a record again and points its slot there, unless the slot has changed meanwhile.
    /// Returns whether it did.
    fn reinsert(
        &self,
        segment: u32,
        generation: u64,
        entry: &FooterEntry,
        skip: usize,
        data: Option<AlignedBuf>,
    ) -> bool {
        let core = &self.core;
        let (hash, at) = (entry.hash, location(segment, entry));
        let context = core.record_context(segment, generation, entry.offset);
        let found = data.as_ref().and_then(|d| record::decode(&d[skip..], &context));
        let mut shard = core.shard(hash).lock();
        if !shard.is_at(hash, at) {
            coverage_mark!(ReinsertRaced);
            return false;
        }
        // An object of a removed group must not go to a segment where nobody looks for it.
        let alive = found.filter(|r| r.meta.group == 0 || is_alive(core, &r.meta));
        let current = alive.filter(|r| {
            let superseded = shard.is_superseded(hash, r.meta.version);
            if superseded {
                coverage_mark!(ReinsertSuperseded);
            }
            !superseded
        });
        // Other writers may have used the space since the record was noted.
        let allowed =
            current.filter(|_| core.admission.is_within_budget(|| core.written(), entry.len));
        let moved = allowed.and_then(|r| {
            let object = Object { hash, meta: r.meta, key: r.key, value: r.value };
            core.append(StreamId::Reinserted, &object, None).ok()
        });
        match moved {
            Some(to) => {
                coverage_mark!(Reinserted);
                if core.table.format(segment) == RecordFormat::Fixed {
                    coverage_mark!(ReinsertedFixed);
                }
                core.publish(&mut shard, hash, to);
            }
            None => {
                shard.clear_if(hash, at);
                // A lookup may have promoted the object during this read. It waits among the dirty
                // objects then.
                if shard.dram.peek_hash(hash).is_some_and(|o| o.version == entry.meta.version) {
                    core.totals.copies_lost.inc();
                } else {
                    core.totals.dropped(DropReason::Reclaimed, 1);
                }
            }
        }
        moved.is_some()
    }
}

/// Copies a record's object again if it lives in DRAM. A crash may lose the last seconds of new
/// objects; this object is not new, and may be among the hottest. If no segment is free it waits
/// among the dirty objects. If it is refused (or no `admission` is asked for), nobody asks again
/// until it is evicted.
fn copy_hot(
    core: &Core,
    shard: &mut Shard,
    entry: &FooterEntry,
    admission: Option<Admission>,
) -> Hot {
    let (hash, version) = (entry.hash, entry.meta.version);
    let Some(object) = shard.dram.peek_hash(hash).filter(|o| o.version == version) else {
        return Hot::Absent;
    };
    let written = match admission {
        Some(admission) => {
            let object = object.to_entry();
            core.write_out(shard, &object.object(), admission)
        }
        None => Err(DropReason::NotAdmitted),
    };
    match written {
        Ok(to) => {
            coverage_mark!(ReclaimCopied);
            shard.dram.mark_clean(hash, version, to);
            return Hot::Copied;
        }
        Err(DropReason::QueueFull) => return Hot::Later,
        Err(DropReason::NoFreeSegment | DropReason::WriteFailed) => {
            coverage_mark!(ReclaimDirtied);
            shard.dram.mark_dirty(hash, version);
            return Hot::Dirty;
        }
        Err(_) => {
            coverage_mark!(ReclaimRefused);
            shard.dram.mark_clean(hash, version, NOWHERE);
        }
    }
    Hot::GivenUp
}

/// The blocks that a record lies in: where they start in the segment, and their bytes.
fn blocks(entry: &FooterEntry) -> (u32, u32) {
    let start = entry.offset & !(BLOCK - 1);
    (start, (entry.offset + entry.len).next_multiple_of(BLOCK) - start)
}

fn location(segment: u32, entry: &FooterEntry) -> Location {
    Location { segment, offset_units: entry.offset / UNIT }
}

fn is_alive(core: &Core, meta: &Meta) -> bool {
    core.namespaces.by_id(meta.ns).is_some_and(|ns| core.why_dead(&ns, meta).is_none())
}

/// Has `found` look at every object that DRAM holds a copy of from this segment, under its shard's
/// lock, some at a time.
fn each_copy_in(
    core: &Core,
    segment: u32,
    mut found: impl FnMut(&mut Shard, &DramEntry, Location),
) {
    for slot in &core.shards {
        let mut next = Some(0);
        while let Some(from) = next {
            let mut shard = slot.lock();
            let mut copies = Vec::new();
            next = shard.dram.visit(from, VISITED, |object| match object.state {
                EntryState::Clean(at) if at != NOWHERE && at.segment == segment => {
                    copies.push((object.to_entry(), at));
                }
                _ => {}
            });
            copies.iter().for_each(|(entry, at)| found(&mut shard, entry, *at));
        }
    }
}
