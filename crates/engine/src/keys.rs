//! Listing the keys of a namespace: for removing by what a key says, which no group or partition epoch covers.
//!
//! A pass visits the DRAM tier, then each segment, and keeps what an index slot points at. What moves meanwhile out of a segment not
//! yet visited goes to DRAM or to a segment opened later, so it is caught by another pass; passes end when no segment was reclaimed
//! during one. Keys put or removed while it runs may or may not be listed, and a key may be listed twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::disk::AlignedBuf;
use crate::dram::EntryState;
use crate::format::footer::Entry;
use crate::format::record;
use crate::format::{UNIT, key_hash};
use crate::index::{Location, Slot};
use crate::namespace::NamespaceState;
use crate::recovery::{Reader, meta_of};
use crate::segment::SegmentState;

/// Passes over a cache that is being written to so fast that each overtakes the one before.
const MAX_PASSES: u32 = 8;
/// Bytes read from a sealed segment at a time.
const READ: u32 = 256 << 10;

/// Why a listing ended before it was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The index is still loading after opening: list again when [`Stats::loading`](crate::Stats::loading) is over.
    #[error("the index is still loading: list again when it has loaded")]
    Loading,
    /// A segment could not be read.
    #[error("a part of the cache could not be read: clear the namespace instead")]
    Unreadable,
    /// Objects moved faster than they could be listed.
    #[error("objects move faster than they can be listed: list again when less is written")]
    Moving,
}

/// The keys of a namespace: see [`Namespace::keys`](crate::Namespace::keys). After an error there are no more items, and the listing is not
/// complete.
#[must_use]
pub struct Keys {
    core: Arc<Core>,
    ns: Arc<NamespaceState>,
    found: VecDeque<Vec<u8>>,
    /// What is still to be visited in this pass.
    parts: VecDeque<Part>,
    passes: u32,
    /// Segments reclaimed when this pass began.
    reclaimed: u64,
    /// What moves during this pass goes to segments of this generation or a later one.
    moves_to: u64,
    failed: bool,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Dram(usize),
    Unsealed,
    Segment(u32),
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("pass", &self.passes).field("left", &self.parts.len()).finish()
    }
}

impl Keys {
    pub(crate) fn new(core: &Arc<Core>, ns: &Arc<NamespaceState>) -> Self {
        let mut keys = Self {
            core: core.clone(),
            ns: ns.clone(),
            found: VecDeque::new(),
            parts: VecDeque::new(),
            passes: 0,
            reclaimed: 0,
            moves_to: 0,
            failed: false,
        };
        keys.start_pass();
        keys
    }

    fn start_pass(&mut self) {
        let (core, table) = (&self.core, &self.core.table);
        self.passes += 1;
        // Before anything is looked at: what is reclaimed from now on may be missed.
        self.reclaimed = core.totals.segments_reclaimed.get();
        let from = self.moves_to;
        let unsealed =
            [SegmentState::Open, SegmentState::Sealing].into_iter().flat_map(|state| table.in_state(state));
        self.moves_to = unsealed.map(|s| table.generation(s)).fold(core.versions.peek(), u64::min);
        let segments = (0..table.len()).filter(|&s| table.generation(s) >= from).map(Part::Segment);
        self.parts = (0..core.shards.len()).map(Part::Dram).chain([Part::Unsealed]).chain(segments).collect();
    }

    /// Whether what this pass did not see cannot have been there all the time.
    fn is_settled(&self) -> bool {
        let core = &self.core;
        core.totals.segments_reclaimed.get() == self.reclaimed
            && core.table.in_state(SegmentState::Reclaiming).next().is_none()
    }

    fn visit(&mut self, part: Part) -> Result<(), KeysError> {
        if self.core.loading.load(Ordering::Acquire) || self.core.unread.load(Ordering::Acquire) {
            return Err(KeysError::Loading);
        }
        match part {
            Part::Dram(shard) => self.visit_dram(shard),
            Part::Unsealed => return self.visit_unsealed(),
            Part::Segment(segment) => return self.visit_segment(segment),
        }
        Ok(())
    }

    /// What lives in DRAM and is not found on flash as well.
    fn visit_dram(&mut self, shard: usize) {
        let shard = self.core.shards[shard].lock();
        for entry in shard.dram.iter().filter(|entry| entry.ns == self.ns.id) {
            let on_flash = matches!(entry.state, EntryState::Clean(at) if shard.is_at(entry.hash, at));
            // In later passes the segment it is in may not be visited.
            if !on_flash || self.passes > 1 {
                self.found.push_back(entry.key().to_vec());
            }
        }
    }

    /// Records of segments whose footer is not written yet: the index knows them, and most are still in memory.
    fn visit_unsealed(&mut self) -> Result<(), KeysError> {
        let table = &self.core.table;
        let is_unsealed = |s: u32| {
            table.contains(s) && matches!(table.state(s), SegmentState::Open | SegmentState::Sealing)
        };
        let mut slots = self.slots(is_unsealed);
        slots.sort_unstable_by_key(|slot| (slot.location().segment, slot.location().offset_units));
        for slot in slots {
            self.visit_slot(slot)?;
        }
        Ok(())
    }

    fn visit_slot(&mut self, slot: Slot) -> Result<(), KeysError> {
        let (core, at) = (&self.core, slot.location());
        let generation = core.table.generation(at.segment);
        let seed = record::seed(core.hash_seed, generation, at.offset());
        let max = slot.size_class().max_bytes().min(core.table.segment_size() - at.offset());
        let in_memory = core.streams.read(at.segment, at.offset(), max);
        let read = match in_memory {
            Some(bytes) => record::decode(&bytes, seed).map(|found| (found.meta, found.key.to_vec())),
            None => {
                let (buf, skip) = self.read(at.segment, at.offset(), max).ok_or(KeysError::Unreadable)?;
                record::decode(&buf[skip..], seed).map(|found| (found.meta, found.key.to_vec()))
            }
        };
        // What does not hold is a miss for readers, too.
        let Some((meta, key)) = read else { return Ok(()) };
        let hash = key_hash(core.hash_seed, meta.ns, &key);
        if meta.ns == self.ns.id
            && core.dead(&self.ns, &meta).is_none()
            && core.shard(hash).lock().is_at(hash, at)
        {
            self.found.push_back(key);
        }
        Ok(())
    }

    /// Bytes of a segment, from a block's start on, and where `offset` is in them.
    fn read(&self, segment: u32, offset: u32, len: u32) -> Option<(AlignedBuf, usize)> {
        let place = self.core.table.place(segment);
        let alignment = self.core.set.infos()[usize::from(place.device.0)].alignment;
        let from = offset & !(alignment - 1);
        let end = (offset + len).next_multiple_of(alignment).min(self.core.table.segment_size());
        let buf = self.core.set.read_at(place.device, place.offset + u64::from(from), end - from).ok()?;
        Some((buf, (offset - from) as usize))
    }

    fn visit_segment(&mut self, segment: u32) -> Result<(), KeysError> {
        let core = self.core.clone();
        match core.table.state(segment) {
            // What becomes free in this moment was reclaimed, and is looked for again.
            SegmentState::Free | SegmentState::Open | SegmentState::Sealing | SegmentState::Retired => {
                return Ok(());
            }
            SegmentState::Sealed | SegmentState::Reclaiming => {}
        }
        let namespaces = core.namespaces.read().len();
        let generation = core.table.generation(segment);
        let footer =
            Reader::new(&core, namespaces).footer(segment).filter(|exact| exact.generation == generation);
        let Some(footer) = footer else {
            // Its records are served all the same, one by one: the index finds them.
            return self.visit_slots_of(segment);
        };
        let mut entries = footer.entries;
        entries.retain(|entry| {
            let at = Location { segment, offset_units: entry.offset.get() / UNIT };
            entry.ns.get() == self.ns.id
                && core.dead(&self.ns, &meta_of(entry)).is_none()
                && core.shard(entry.hash.get()).lock().is_at(entry.hash.get(), at)
        });
        entries.sort_unstable_by_key(|entry| entry.offset.get());
        self.read_keys(segment, generation, &entries)
    }

    /// Reads records lying one behind the other, many with one read.
    fn read_keys(&mut self, segment: u32, generation: u64, entries: &[Entry]) -> Result<(), KeysError> {
        let mut rest = entries;
        while let Some(first) = rest.first() {
            let start = first.offset.get();
            let fits = |e: &Entry| e.offset.get() + e.len.get() <= start + READ.max(first.len.get());
            let n = rest.partition_point(fits);
            let last = &rest[n - 1];
            let len = last.offset.get() + last.len.get() - start;
            let (buf, skip) = self.read(segment, start, len).ok_or(KeysError::Unreadable)?;
            for entry in &rest[..n] {
                let offset = entry.offset.get();
                let seed = record::seed(self.core.hash_seed, generation, offset);
                if let Some(found) = record::decode(&buf[skip + (offset - start) as usize..], seed) {
                    self.found.push_back(found.key.to_vec());
                }
            }
            rest = &rest[n..];
        }
        Ok(())
    }

    fn visit_slots_of(&mut self, segment: u32) -> Result<(), KeysError> {
        self.slots(|s| s == segment).into_iter().try_for_each(|slot| self.visit_slot(slot))
    }

    /// Slots that point into some segments. Under each shard's lock: nothing is displaced meanwhile.
    fn slots(&self, wanted: impl Fn(u32) -> bool) -> Vec<Slot> {
        let mut slots = Vec::new();
        for shard in &self.core.shards {
            let _unmoved = shard.lock();
            let words = shard.index.line_words(0..shard.index.lines()).flatten();
            slots.extend(words.filter_map(Slot::from_word).filter(|slot| wanted(slot.location().segment)));
        }
        slots
    }
}

impl Iterator for Keys {
    type Item = Result<Vec<u8>, KeysError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(key) = self.found.pop_front() {
                return Some(Ok(key));
            }
            if self.failed {
                return None;
            }
            let outcome = match self.parts.pop_front() {
                Some(part) => self.visit(part),
                None if self.is_settled() => return None,
                None if self.passes >= MAX_PASSES => Err(KeysError::Moving),
                None => {
                    self.start_pass();
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                self.failed = true;
                return Some(Err(error));
            }
        }
    }
}
