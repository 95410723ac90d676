//! Lists the objects of a namespace. Callers show them, or remove by a property of the key that no
//! group or partition epoch covers.
//!
//! A pass visits the DRAM tier, then each segment, and keeps what an index slot points at. An
//! object may move meanwhile out of a segment not yet visited, to DRAM or to a segment opened
//! later. Another pass finds it there. Passes end when no segment was reclaimed during one. Keys
//! put or removed while the listing runs may or may not be listed. A key may be listed twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::Listed;
use crate::core::Core;
use crate::device::AlignedBuf;
use crate::format::footer_entries::{EntryPosition, FooterEntry};
use crate::format::record::{self, Meta, Record, RecordContext};
use crate::format::{UNIT, key_hash};
use crate::index::{Location, Slot};
use crate::namespace::state::NamespaceState;
use crate::recovery::SegmentReader;
use crate::segment::SegmentState;
use crate::tier::EntryState;

/// Passes over a cache that is being written to so fast that each overtakes the one before.
const MAX_PASSES: u32 = 8;
/// Bytes read from a sealed segment at a time.
const READ: u32 = 256 << 10;
/// Objects visited under one hold of a lock.
const STEP: usize = 256;

/// Why a listing ended before it was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The index is still loading after opening: list again when
    /// [`Stats::loading`](crate::Stats::loading) is over.
    #[error("the index is still loading: list again when it has loaded")]
    Loading,
    /// A segment could not be read.
    #[error("a part of the cache could not be read: clear the namespace instead")]
    Unreadable,
    /// Objects moved faster than they could be listed.
    #[error("objects move faster than they can be listed: list again when writes are fewer")]
    Moving,
}

/// The keys of a namespace: see [`Namespace::keys`](crate::Namespace::keys). After an error there
/// are no more items, and the listing is not complete.
pub type Keys = Listing<Vec<u8>>;

/// The objects of a namespace, each as the `T` made of it: see
/// [`Namespace::list`](crate::Namespace::list).
///
/// It goes by parts, so that it takes little memory (a segment's footer and one read) and holds a
/// shard's lock for a moment only.
#[must_use]
pub struct Listing<T> {
    core: Arc<Core>,
    ns: Arc<NamespaceState>,
    /// Makes of an object what is listed of it; called under a shard's lock, too.
    take: Box<dyn FnMut(&Listed<'_>) -> T + Send>,
    /// What cannot be read is left out, as it is a miss for readers, too.
    lenient: bool,
    found: VecDeque<T>,
    /// What is still to be visited in this pass.
    parts: VecDeque<ListingPart>,
    passes: u32,
    /// Segments reclaimed when this pass began.
    reclaimed: u64,
    /// What moves during this pass goes to segments of this generation or a later one.
    moves_to: u64,
    failed: bool,
}

#[derive(Debug)]
enum ListingPart {
    /// Objects in DRAM from this part of a shard on.
    Dram { shard: usize, from: u64 },
    /// Segments whose footer is not written yet.
    Unsealed,
    /// Records of an open segment from this one on.
    Open { segment: u32, generation: u64, from: EntryPosition },
    /// What was found open or sealing before.
    Late(u32),
    /// A sealed segment.
    Segment(u32),
    /// Records lying in a sealed segment.
    Records { segment: u32, generation: u64, entries: Vec<FooterEntry>, at: usize },
}

impl<T> std::fmt::Debug for Listing<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing")
            .field("pass", &self.passes)
            .field("left", &self.parts.len())
            .finish()
    }
}

impl Keys {
    pub(crate) fn keys(core: &Arc<Core>, ns: &Arc<NamespaceState>) -> Self {
        Listing::new(core, ns, false, Box::new(|object| object.key.to_vec()))
    }
}

impl<T> Listing<T> {
    pub(crate) fn new(
        core: &Arc<Core>,
        ns: &Arc<NamespaceState>,
        lenient: bool,
        take: Box<dyn FnMut(&Listed<'_>) -> T + Send>,
    ) -> Self {
        let mut listing = Self {
            core: core.clone(),
            ns: ns.clone(),
            take,
            lenient,
            found: VecDeque::new(),
            parts: VecDeque::new(),
            passes: 0,
            reclaimed: 0,
            moves_to: 0,
            failed: false,
        };
        listing.start_pass();
        listing
    }

    /// The next object among those found so far.
    pub fn pop(&mut self) -> Option<T> {
        self.found.pop_front()
    }

    /// Looks for more; `None` when there are none. Blocks for at most a few reads of flash.
    pub fn advance(&mut self) -> Option<Result<(), KeysError>> {
        if self.failed {
            return None;
        }
        let outcome = match self.parts.pop_front() {
            Some(part) => self.visit(part),
            None if self.is_settled() => return None,
            None if self.passes >= MAX_PASSES && self.lenient => return None,
            None if self.passes >= MAX_PASSES => Err(KeysError::Moving),
            None => {
                self.start_pass();
                Ok(())
            }
        };
        self.failed = outcome.is_err();
        Some(outcome)
    }

    fn start_pass(&mut self) {
        let (core, table) = (&self.core, &self.core.table);
        self.passes += 1;
        // Before anything is looked at: what is reclaimed from now on may be missed.
        self.reclaimed = core.totals.segments_reclaimed.get();
        let from = self.moves_to;
        let unsealed = [SegmentState::Open, SegmentState::Sealing]
            .into_iter()
            .flat_map(|state| table.in_state(state));
        self.moves_to = unsealed.map(|s| table.generation(s)).fold(core.versions.peek(), u64::min);
        let segments =
            (0..table.len()).filter(|&s| table.generation(s) >= from).map(ListingPart::Segment);
        let dram = (0..core.shards.len()).map(|shard| ListingPart::Dram { shard, from: 0 });
        self.parts = dram.chain([ListingPart::Unsealed]).chain(segments).collect();
    }

    /// Whether what this pass did not see cannot have been there all the time.
    fn is_settled(&self) -> bool {
        let core = &self.core;
        core.totals.segments_reclaimed.get() == self.reclaimed
            && core.table.in_state(SegmentState::Reclaiming).next().is_none()
    }

    fn visit(&mut self, part: ListingPart) -> Result<(), KeysError> {
        if self.core.progress.loading.load(Ordering::Acquire)
            || self.core.progress.unread.load(Ordering::Acquire)
        {
            return Err(KeysError::Loading);
        }
        match part {
            ListingPart::Dram { shard, from } => self.visit_dram(shard, from),
            ListingPart::Unsealed => self.visit_unsealed(),
            ListingPart::Open { segment, generation, from } => {
                return self.visit_open(segment, generation, from);
            }
            ListingPart::Late(segment) => return self.visit_late(segment),
            ListingPart::Segment(segment) => return self.visit_segment(segment),
            ListingPart::Records { segment, generation, entries, at } => {
                return self.visit_records(segment, generation, entries, at);
            }
        }
        Ok(())
    }

    /// Objects that live in DRAM and are not found on flash as well. What is there all the time is
    /// seen, whatever others come or go between two steps.
    fn visit_dram(&mut self, number: usize, from: u64) {
        let core = self.core.clone();
        let shard = core.shards[number].lock();
        let next = shard.dram.visit(from, STEP, |object| {
            let on_flash =
                matches!(object.state, EntryState::Clean(at) if shard.is_copied(object.hash, at));
            // In later passes the segment it is in may not be visited.
            if object.ns != self.ns.id || (on_flash && self.passes == 1) {
                return;
            }
            if core.why_dead(&self.ns, &object.meta()).is_none() {
                self.found.push_back((self.take)(&object.listed()));
            }
        });
        if let Some(from) = next {
            self.parts.push_front(ListingPart::Dram { shard: number, from });
        }
    }

    /// Segments whose footer is not written yet: the streams know what is in those that are open.
    fn visit_unsealed(&mut self) {
        let table = &self.core.table;
        let unsealed = [SegmentState::Open, SegmentState::Sealing];
        for segment in unsealed.into_iter().flat_map(|state| table.in_state(state)) {
            let generation = table.generation(segment);
            let from = EntryPosition::default();
            self.parts.push_front(ListingPart::Open { segment, generation, from });
        }
    }

    /// Some records of an open segment, of which most are still in memory. A record is known here a
    /// little before the index points at it. Both happen while its shard's lock is held once, so a
    /// lookup waits for the index.
    fn visit_open(
        &mut self,
        segment: u32,
        generation: u64,
        mut from: EntryPosition,
    ) -> Result<(), KeysError> {
        let found = self.core.streams.entries(segment, generation, &mut from, STEP);
        let Some(entries) = found else {
            // Sealed meanwhile: its footer is on its way.
            self.parts.push_back(ListingPart::Late(segment));
            return Ok(());
        };
        if !entries.is_empty() {
            self.parts.push_front(ListingPart::Open { segment, generation, from });
        }
        let ns = self.ns.id;
        for entry in entries.iter().filter(|entry| entry.meta.ns == ns) {
            let at = Location { segment, offset_units: entry.offset / UNIT };
            self.visit_record(at, entry.len)?;
        }
        Ok(())
    }

    fn visit_late(&mut self, segment: u32) -> Result<(), KeysError> {
        match self.core.table.state(segment) {
            // The device takes its time: the index finds what is in it.
            SegmentState::Open | SegmentState::Sealing => self.visit_slots_of(segment),
            _ => self.visit_segment(segment),
        }
    }

    fn visit_slot(&mut self, slot: Slot) -> Result<(), KeysError> {
        let at = slot.location();
        let max = slot.size_class().max_bytes().min(self.core.table.segment_size() - at.offset());
        self.visit_record(at, max)
    }

    /// The record of at most `max` bytes at a place, if the index still points there.
    fn visit_record(&mut self, at: Location, max: u32) -> Result<(), KeysError> {
        let core = self.core.clone();
        let generation = core.table.generation(at.segment);
        let context = core.record_context(at.segment, generation, at.offset());
        if let Some(bytes) = core.streams.read(at.segment, at.offset(), max) {
            self.take_record(&bytes, &context, (at, generation));
            return Ok(());
        }
        let Some((buf, skip)) = self.read(at.segment, at.offset(), max) else {
            return self.unreadable();
        };
        self.take_record(&buf[skip..], &context, (at, generation));
        Ok(())
    }

    /// Lists a record that the index points at. What does not hold is a miss for readers, too.
    fn take_record(
        &mut self,
        bytes: &[u8],
        context: &RecordContext,
        (at, generation): (Location, u64),
    ) {
        let Some(Record { meta, key, value, .. }) = record::decode(bytes, context) else { return };
        let hash = key_hash(self.core.hash_seed, meta.ns, key);
        if meta.ns == self.ns.id
            && self.core.why_dead(&self.ns, &meta).is_none()
            && self.core.shard(hash).lock().is_at(hash, at)
            && self.core.table.is_still(at.segment, generation)
        {
            let Meta { version, expiry, group, epoch_slot: partition, .. } = meta;
            let listed = Listed { key, value, version, expiry, group, partition };
            self.found.push_back((self.take)(&listed));
        }
    }

    fn unreadable(&self) -> Result<(), KeysError> {
        if self.lenient { Ok(()) } else { Err(KeysError::Unreadable) }
    }

    /// Bytes of a segment, from a block's start on, and where `offset` is in them.
    fn read(&self, segment: u32, offset: u32, len: u32) -> Option<(AlignedBuf, usize)> {
        let place = self.core.table.place(segment);
        let alignment = self.core.set.infos()[usize::from(place.device.0)].alignment;
        let from = offset & !(alignment - 1);
        let end = (offset + len).next_multiple_of(alignment).min(self.core.table.segment_size());
        let buf =
            self.core.set.read_at(place.device, place.offset + u64::from(from), end - from).ok()?;
        Some((buf, (offset - from) as usize))
    }

    fn visit_segment(&mut self, segment: u32) -> Result<(), KeysError> {
        let core = self.core.clone();
        match core.table.state(segment) {
            // What becomes free in this moment was reclaimed, and is looked for again.
            SegmentState::Free
            | SegmentState::Checkpoint
            | SegmentState::Open
            | SegmentState::Sealing
            | SegmentState::Retired => {
                return Ok(());
            }
            SegmentState::Sealed | SegmentState::Reclaiming => {}
        }
        let namespaces = core.namespaces.list.read().len();
        let generation = core.table.generation(segment);
        let footer = SegmentReader::new(&core, namespaces)
            .footer(segment)
            .filter(|exact| exact.generation == generation);
        let Some(footer) = footer else {
            // Its records are served all the same, one by one: the index finds them.
            return self.visit_slots_of(segment);
        };
        let mut entries = footer.entries;
        entries.retain(|entry| {
            let at = Location { segment, offset_units: entry.offset / UNIT };
            entry.meta.ns == self.ns.id
                && core.why_dead(&self.ns, &entry.meta).is_none()
                && core.shard(entry.hash).lock().is_at(entry.hash, at)
        });
        // With its segment the removal of a group may have been forgotten.
        if !core.table.is_still(segment, generation) {
            return Ok(());
        }
        entries.sort_unstable_by_key(|entry| entry.offset);
        self.parts.push_front(ListingPart::Records { segment, generation, entries, at: 0 });
        Ok(())
    }

    /// Reads records lying one behind the other, many with one read.
    fn visit_records(
        &mut self,
        segment: u32,
        generation: u64,
        entries: Vec<FooterEntry>,
        at: usize,
    ) -> Result<(), KeysError> {
        let Some(first) = entries.get(at) else { return Ok(()) };
        let start = first.offset;
        let fits = |e: &FooterEntry| e.offset + e.len <= start + READ.max(first.len);
        let n = entries[at..].partition_point(fits);
        let last = &entries[at + n - 1];
        let len = last.offset + last.len - start;
        let read = self.read(segment, start, len);
        if read.is_none() {
            self.unreadable()?;
        }
        for entry in read.is_some().then_some(&entries[at..at + n]).into_iter().flatten() {
            let offset = entry.offset;
            let context = self.core.record_context(segment, generation, offset);
            let (buf, skip) = read.as_ref().expect("looked at above");
            let bytes = &buf[skip + (offset - start) as usize..];
            let Some(found) = record::decode(bytes, &context) else { continue };
            let Meta { version, expiry, group, epoch_slot: partition, .. } = found.meta;
            let listed =
                Listed { key: found.key, value: found.value, version, expiry, group, partition };
            self.found.push_back((self.take)(&listed));
        }
        self.parts.push_front(ListingPart::Records { segment, generation, entries, at: at + n });
        Ok(())
    }

    fn visit_slots_of(&mut self, segment: u32) -> Result<(), KeysError> {
        self.slots(|s| s == segment).into_iter().try_for_each(|slot| self.visit_slot(slot))
    }

    /// Slots that point into some segments. Under each shard's lock: nothing is displaced
    /// meanwhile.
    fn slots(&self, wanted: impl Fn(u32) -> bool) -> Vec<Slot> {
        let mut slots = Vec::new();
        for shard in &self.core.shards {
            let _unmoved = shard.lock();
            let words = shard.index.line_words(0..shard.index.lines()).flatten();
            slots.extend(
                words.filter_map(Slot::from_word).filter(|slot| wanted(slot.location().segment)),
            );
        }
        slots
    }
}

impl<T> Iterator for Listing<T> {
    type Item = Result<T, KeysError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.pop() {
                return Some(Ok(found));
            }
            if let Err(error) = self.advance()? {
                return Some(Err(error));
            }
        }
    }
}
