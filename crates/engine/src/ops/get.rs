//! Reads from flash: one device read, then every doubt is a miss.

use crate::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::api::{Hit, MissReason, Tier};
use crate::core::Core;
use crate::device::{AlignedBuf, DeviceId};
use crate::format::record::{self, Record};
use crate::index::{Location, Slot};
use crate::namespace::NamespaceState;
use crate::segment::SegmentState;
use crate::tier::{DramEntry, EntryState};

/// How often a lookup follows a record that moves.
const MAX_FOLLOWED: u8 = 3;

/// Outcome of [`Namespace::get`](crate::Namespace::get) and [`FlashRead::finish`].
#[derive(Debug)]
#[must_use]
pub enum Lookup {
    /// Found.
    Hit(Hit),
    /// Not found, and why.
    Miss(MissReason),
    /// Probably on flash: read the range it names and hand the outcome to [`FlashRead::finish`].
    Flash(FlashRead),
}

/// A lookup that waits for one device read.
///
/// The caller reads [`FlashRead::len`] bytes at [`FlashRead::offset`] of [`FlashRead::device`] into an aligned buffer, with
/// [`Namespace::get_blocking`](crate::Namespace::get_blocking), on a ring of its own or otherwise, and hands the outcome to [`FlashRead::finish`].
/// Dropped unfinished it counts as a miss.
#[must_use]
pub struct FlashRead {
    core: Arc<Core>,
    ns: Arc<NamespaceState>,
    key: Box<[u8]>,
    hash: u64,
    slot: Slot,
    generation: u64,
    device: DeviceId,
    offset: u64,
    len: u32,
    /// Where the record starts in what is read.
    skip: u32,
    followed: u8,
    /// The kill map was in force when the slot was looked up.
    mapped: bool,
    /// Its outcome counts as a hit or miss of its namespace.
    counted: bool,
    done: bool,
}

impl std::fmt::Debug for FlashRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.slot.location();
        f.debug_struct("FlashRead")
            .field("device", &self.device)
            .field("at", &at)
            .field("len", &self.len)
            .finish()
    }
}

impl Drop for FlashRead {
    fn drop(&mut self) {
        if !self.done {
            self.ns.counters.miss(MissReason::Abandoned);
        }
    }
}

/// Looks up what is not in the DRAM tier.
pub fn lookup(core: &Arc<Core>, ns: &Arc<NamespaceState>, key: &[u8], hash: u64) -> Lookup {
    follow(core, ns, key, hash, Follow { followed: 0, counted: true })
}

/// The same for callers that count the outcome themselves; only a read that is dropped is counted here.
pub fn lookup_uncounted(core: &Arc<Core>, ns: &Arc<NamespaceState>, key: &[u8], hash: u64) -> Lookup {
    follow(core, ns, key, hash, Follow { followed: 0, counted: false })
}

#[derive(Clone, Copy)]
struct Follow {
    followed: u8,
    counted: bool,
}

fn follow(core: &Arc<Core>, ns: &Arc<NamespaceState>, key: &[u8], hash: u64, by: Follow) -> Lookup {
    let miss = |reason| miss(ns, reason, by.counted);
    // Read before the slot: a slot seen while the map is in force must be compared with it.
    let mapped = core.loading.load(Ordering::Acquire);
    if !ns.options.is_told_by_journal() && core.unread.load(Ordering::Acquire) {
        return miss(MissReason::Loading);
    }
    let Some(slot) = core.shard(hash).index.lookup(hash) else {
        return miss(if mapped { MissReason::Loading } else { MissReason::Absent });
    };
    let at = slot.location();
    if !core.table.contains(at.segment) || at.offset() >= core.table.segment_size() {
        clear(core, hash, at);
        return miss(MissReason::Corrupt);
    }
    let generation = core.table.generation(at.segment);
    match core.table.state(at.segment) {
        SegmentState::Retired => {
            clear(core, hash, at);
            return miss(MissReason::Device);
        }
        SegmentState::Free => {
            clear(core, hash, at);
            return miss(MissReason::Absent);
        }
        SegmentState::Sealed | SegmentState::Reclaiming | SegmentState::Open | SegmentState::Sealing => {}
    }
    let max = slot.size_class().max_bytes();
    let place = core.table.place(at.segment);
    let alignment = u64::from(core.set.infos()[usize::from(place.device.0)].alignment);
    let from = place.offset + u64::from(at.offset());
    let start = from & !(alignment - 1);
    let segment_end = place.offset + u64::from(core.table.segment_size());
    let end = ((from + u64::from(max) + alignment - 1) & !(alignment - 1)).min(segment_end);
    let read = FlashRead {
        core: core.clone(),
        ns: ns.clone(),
        key: key.into(),
        hash,
        slot,
        generation,
        device: place.device,
        offset: start,
        len: (end - start) as u32,
        skip: (from - start) as u32,
        followed: by.followed,
        mapped,
        counted: by.counted,
        done: false,
    };
    if core.table.state(at.segment) != SegmentState::Sealed
        && let Some(bytes) = core.streams.read(at.segment, at.offset(), max)
    {
        return read.resolve(&Bytes::from(bytes), 0, Tier::Buffer);
    }
    Lookup::Flash(read)
}

fn miss(ns: &NamespaceState, reason: MissReason, counted: bool) -> Lookup {
    if counted {
        ns.counters.miss(reason);
    }
    Lookup::Miss(reason)
}

/// Clears a slot that leads nowhere.
fn clear(core: &Core, hash: u64, at: Location) {
    if core.shard(hash).lock().clear_if(hash, at) {
        core.totals.stale_slots.inc();
    }
}

impl FlashRead {
    /// The device to read from.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// First byte to read, a multiple of the device's alignment.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes to read, a multiple of the device's alignment.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Always false: there is something to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Ends the lookup with what the read brought: a hit, a miss, or (when the record moved meanwhile; a bounded number of
    /// times) another read.
    pub fn finish(self, read: io::Result<AlignedBuf>) -> Lookup {
        self.core.totals.device_reads.inc();
        match read {
            Ok(buf) => {
                let skip = self.skip as usize;
                self.resolve(&Bytes::from(buf), skip, Tier::Flash)
            }
            Err(_) => {
                self.core.totals.read_errors.inc();
                self.end(MissReason::Device)
            }
        }
    }

    /// Gives the lookup up as if it had never been: the caller looks the key up again later, which is what counts.
    pub fn take_back(mut self) {
        self.done = true;
    }

    /// Ends the lookup with a miss because too many reads are in flight.
    pub fn busy(self) -> Lookup {
        self.end(MissReason::Busy)
    }

    /// Where the index pointed, and which use of the segment that was.
    pub(crate) fn seen(&self) -> (Location, u64) {
        (self.slot.location(), self.generation)
    }

    fn end(mut self, reason: MissReason) -> Lookup {
        self.done = true;
        miss(&self.ns, reason, self.counted)
    }

    fn end_gone(self, reason: MissReason) -> Lookup {
        clear(&self.core, self.hash, self.slot.location());
        self.end(reason)
    }

    fn follow(mut self) -> Lookup {
        coverage_mark!(ReadFollowed);
        if self.followed >= MAX_FOLLOWED {
            return self.end(MissReason::Moved);
        }
        self.done = true;
        let by = Follow { followed: self.followed + 1, counted: self.counted };
        follow(&self.core, &self.ns, &self.key, self.hash, by)
    }

    fn resolve(mut self, bytes: &Bytes, skip: usize, tier: Tier) -> Lookup {
        let at = self.slot.location();
        let seed = record::seed(self.core.hash_seed, self.generation, at.offset());
        // Looked at again once the record has been checked, which takes as long as fetching it.
        self.core.shard(self.hash).index.prefetch(self.hash);
        let Some(found) = bytes.get(skip..).and_then(|b| record::decode(b, seed)) else {
            let moved = self.core.table.generation(at.segment) != self.generation
                || self.core.shard(self.hash).index.peek(self.hash).is_none_or(|s| s.location() != at);
            return if moved { self.follow() } else { self.end_gone(MissReason::Corrupt) };
        };
        if found.meta.ns != self.ns.id || *found.key != *self.key {
            // The slot is right for its own key; it stays.
            return self.end(MissReason::Collision);
        }
        if let Some(reason) = self.core.dead(&self.ns, &found.meta) {
            return self.end_gone(reason);
        }
        match self.promote(&found) {
            Verdict::Current => {}
            Verdict::Superseded => return self.end_gone(MissReason::Superseded),
            Verdict::Unknown => return self.follow(),
        }
        self.done = true;
        if self.counted {
            self.ns.counters.hit(tier);
        }
        Lookup::Hit(Hit {
            value: bytes.slice_ref(found.value),
            version: found.meta.version,
            expiry: found.meta.expiry,
            group: found.meta.group,
            partition: found.meta.epoch_slot,
            tier,
        })
    }

    /// Decides under the shard's lock whether the record may be believed, and if it still is where the index says, takes a
    /// clean copy into the DRAM tier.
    fn promote(&self, found: &Record<'_>) -> Verdict {
        let at = self.slot.location();
        let mut shard = self.core.shard(self.hash).lock_for(self.hash);
        shard.dram.prefetch_return(self.hash);
        if shard.is_superseded(self.hash, found.meta.version) {
            return Verdict::Superseded;
        }
        // The place may have been used again while the read was under way: then what is there now is another record.
        let here = shard.is_at(self.hash, at) && self.core.table.generation(at.segment) == self.generation;
        if self.mapped && !here {
            // The slot may have been cleared because it was stale when we saw it, and the map may be gone since.
            coverage_mark!(ReadUnknown);
            return Verdict::Unknown;
        }
        let bytes = found.key.len() + found.value.len();
        if here && shard.dram.wants_copy(self.hash, bytes) && shard.dram.peek_hash(self.hash).is_none() {
            let entry = DramEntry {
                hash: self.hash,
                version: found.meta.version,
                data: shard.join(found.key, found.value),
                key_len: found.key.len() as u32,
                expiry: found.meta.expiry,
                group: found.meta.group,
                epoch_slot: found.meta.epoch_slot,
                ns: found.meta.ns,
                // What failed to be written is read from memory for a while yet. A reclaim that is under way may have passed this object by:
                // one that cannot read its footer copies what lives in DRAM when it begins.
                state: match shard.is_copied_to_stay(self.hash, at) {
                    true => EntryState::Clean(at),
                    false => EntryState::Dirty,
                },
            };
            self.core.insert_dram_absent(&mut shard, entry);
        }
        if !here {
            coverage_mark!(ReadRaced);
        }
        Verdict::Current
    }
}

enum Verdict {
    Current,
    Superseded,
    Unknown,
}
