//! A get, from top to bottom: look up, read, verify, promote.
//!
//! ```text
//! Core::get ─────────────▶ hit in DRAM, or a miss that DRAM knows
//!    │ not in DRAM
//! look_up_on_flash ──────▶ miss: the index knows nothing, or what it knows leads nowhere
//!    │ slot ◀─────────────────────────────────────────────────┐
//! FlashRead ─ one device read by the caller ─▶ finish         │ the record moved, at most
//! MAX_FOLLOWED times
//!    │                                                        │
//! verify ─▶ checksum, key, kill versions, expiry ─────────────┘
//!    │ any doubt is a miss
//! promote_if_current ───▶ hit; a copy goes to DRAM, which may evict and write out another object
//!    └ relocate: its device has too much to do, so the record is written again on another
//! ```
//!
//! So a get that reads flash can write: an object that its copy evicts from DRAM goes to flash if
//! flash does not have it.

use crate::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::api::{Hit, MissReason, PREFETCHED, Tier};
use crate::core::Core;
use crate::device::{AlignedBuf, DeviceId};
use crate::format::BLOCK;
use crate::format::record::{self, Record};
use crate::index::{Location, MAX_RECORD, SizeClass, Slot};
use crate::namespace::state::NamespaceState;
use crate::segment::SegmentState;
use crate::shard::Shard;
use crate::tier::admission::PROVEN_AT;
use crate::tier::{DramObject, DramTier, EntryState, NOWHERE};

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
    /// Probably on flash: the caller reads the range it names and hands the outcome to
    /// [`FlashRead::finish`].
    Flash(FlashRead),
}

/// Where an object is, see [`Namespace::peek`](crate::Namespace::peek).
#[derive(Debug)]
pub enum Peek {
    /// In DRAM.
    Dram(Hit),
    /// Not in DRAM, and probably on flash.
    Flash,
    /// Nowhere.
    Absent,
}

/// A lookup that waits for one device read.
///
/// The caller reads [`FlashRead::len`] bytes at [`FlashRead::offset`] of [`FlashRead::device`] into
/// an aligned buffer. It may use [`Namespace::get_blocking`](crate::Namespace::get_blocking), a
/// ring of its own or another way. It hands the outcome to [`FlashRead::finish`]. Dropped
/// unfinished it counts as a miss.
#[must_use]
pub struct FlashRead {
    core: Arc<Core>,
    ns: Arc<NamespaceState>,
    key: Arc<[u8]>,
    hash: u64,
    pointer: Pointer,
    device: DeviceId,
    offset: u64,
    len: u32,
    /// Where the record starts in what is read.
    skip: u32,
    attempt: Attempt,
    done: bool,
}

/// What the index returned, and when.
#[derive(Clone, Copy)]
struct Pointer {
    slot: Slot,
    /// Which use of its segment that was.
    generation: u64,
    /// The kill map was in use when the slot was looked up.
    mapped: bool,
}

/// Which attempt of a lookup this is, and whether it is counted.
#[derive(Clone, Copy)]
struct Attempt {
    /// How often the record has moved away before.
    followed: u8,
    /// Its outcome counts as a hit or miss of its namespace.
    counted: bool,
    /// Somebody is served with what it finds. Then a read that is dropped unfinished counts as a
    /// miss, and one that finds the record as a use of what was admitted.
    serves: bool,
}

// ---- Look up
// -------------------------------------------------------------------------------------

impl Core {
    /// Looks a key up: in DRAM, then in the index.
    pub(crate) fn get(self: &Arc<Self>, ns: &Arc<NamespaceState>, key: &[u8]) -> Lookup {
        let hash = self.hash(ns.id, key);
        let mut shard = self.shard(hash).lock_for(hash);
        let popularity = shard.count_request(hash);
        if let Some(entry) = shard.dram.get(hash, ns.id, key) {
            let (meta, hit) = (entry.meta(), entry.hit(Tier::Dram));
            let refused = entry.state == EntryState::Clean(NOWHERE);
            if let Some(reason) = self.why_dead(ns, &meta) {
                shard.dram.remove(hash, ns.id, key);
                ns.counters.miss(reason);
                return Lookup::Miss(reason);
            }
            if refused && popularity >= PROVEN_AT {
                // The background asks for its copy again: a crash is not to cost the hottest.
                coverage_mark!(RefusedCopyProven);
                shard.dram.mark_dirty(hash, meta.version);
            }
            ns.counters.hit(Tier::Dram);
            return Lookup::Hit(hit);
        }
        drop(shard);
        look_up_on_flash(self, ns, key, hash, FIRST)
    }

    /// Where a key's object is, without a count and without a use of the object.
    pub(crate) fn peek(&self, ns: &NamespaceState, key: &[u8]) -> Peek {
        let hash = self.hash(ns.id, key);
        let shard = self.shard(hash).lock_for(hash);
        match shard.dram.peek(hash, ns.id, key) {
            Some(entry) if self.why_dead(ns, &entry.meta()).is_none() => {
                Peek::Dram(entry.hit(Tier::Dram))
            }
            Some(_) => Peek::Absent,
            None if shard.index.lookup(hash).is_some() => Peek::Flash,
            None => Peek::Absent,
        }
    }

    /// What flash has of a key, without a count.
    pub(crate) fn peek_flash(self: &Arc<Self>, ns: &Arc<NamespaceState>, key: &[u8]) -> Lookup {
        let hash = self.hash(ns.id, key);
        let attempt = Attempt { counted: false, serves: false, ..FIRST };
        look_up_on_flash(self, ns, key, hash, attempt)
    }

    /// Prefetches what a lookup of the first [`PREFETCHED`] of these keys in DRAM will touch. There
    /// are three steps: their places in the tables, then the first records there, then the objects.
    /// So memory is waited for once a step for all keys, not three times for each.
    pub(crate) fn prefetch<'k>(&self, ns: &NamespaceState, keys: impl Iterator<Item = &'k [u8]>) {
        let mut hashes = [0; PREFETCHED];
        let mut len = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(ns.id, key);
            drop(self.shard(*hash).lock_for(*hash));
            len += 1;
        }
        for step in [DramTier::prefetch_record, DramTier::prefetch_data] {
            hashes[..len].iter().for_each(|&hash| step(&self.shard(hash).lock().dram, hash));
        }
    }
}

/// The first attempt of a lookup.
const FIRST: Attempt = Attempt { followed: 0, counted: true, serves: true };

/// Looks up a key that is not in DRAM, for callers that count the outcome themselves. Only a read
/// that is dropped is counted here.
pub fn look_up_uncounted(
    core: &Arc<Core>,
    ns: &Arc<NamespaceState>,
    key: &[u8],
    hash: u64,
) -> Lookup {
    look_up_on_flash(core, ns, key, hash, Attempt { counted: false, ..FIRST })
}

/// Asks the index where on flash a key may be.
fn look_up_on_flash(
    core: &Arc<Core>,
    ns: &Arc<NamespaceState>,
    key: &[u8],
    hash: u64,
    attempt: Attempt,
) -> Lookup {
    let miss = |reason| miss(ns, reason, attempt.counted);
    // Read before the slot: a slot seen while the map is in use must be compared with it.
    let mapped = core.progress.loading.load(Ordering::Acquire);
    if !ns.is_told_by_journal() && core.progress.unread.load(Ordering::Acquire) {
        return miss(MissReason::Loading);
    }
    let Some(slot) = core.shard(hash).index.lookup(hash) else {
        return miss(if mapped { MissReason::Loading } else { MissReason::Absent });
    };
    let at = slot.location();
    if !core.table.contains(at.segment) || at.offset() >= core.table.segment_size() {
        clear_slot(core, hash, at);
        return miss(MissReason::Corrupt);
    }
    // Read before the state: a segment that is used again meanwhile has another generation.
    let generation = core.table.generation(at.segment);
    if let Some(reason) = holds_nothing(core.table.state(at.segment)) {
        clear_slot(core, hash, at);
        return miss(reason);
    }
    // The slot stays: the device may answer again, with what it has.
    if core.table.is_silent(at.segment) {
        return miss(MissReason::Device);
    }
    core.table.look_up(at.segment);
    let read = FlashRead::of(core, ns, key, hash, Pointer { slot, generation, mapped }, attempt);
    // What is not written yet is read from memory.
    if core.table.state(at.segment) != SegmentState::Sealed
        && let Some(bytes) =
            core.streams.read(at.segment, at.offset(), slot.size_class().max_bytes())
    {
        return read.verify(&Bytes::from(bytes), 0, Tier::Buffer);
    }
    Lookup::Flash(read)
}

/// Why a segment in this state has no records, if it has none.
fn holds_nothing(state: SegmentState) -> Option<MissReason> {
    match state {
        SegmentState::Retired => Some(MissReason::Device),
        SegmentState::Free | SegmentState::Checkpoint => Some(MissReason::Absent),
        SegmentState::Sealed
        | SegmentState::Reclaiming
        | SegmentState::Open
        | SegmentState::Sealing => None,
    }
}

fn miss(ns: &NamespaceState, reason: MissReason, counted: bool) -> Lookup {
    if counted {
        ns.counters.miss(reason);
    }
    Lookup::Miss(reason)
}

/// Clears a slot that points at no record.
fn clear_slot(core: &Core, hash: u64, at: Location) {
    if core.shard(hash).lock().clear_if(hash, at) {
        core.totals.stale_slots.inc();
    }
}

// ---- Read
// ----------------------------------------------------------------------------------------

impl FlashRead {
    /// The read of the record at `slot`: whole blocks of the device, within the segment.
    fn of(
        core: &Arc<Core>,
        ns: &Arc<NamespaceState>,
        key: &[u8],
        hash: u64,
        pointer: Pointer,
        attempt: Attempt,
    ) -> Self {
        let (at, max) = (pointer.slot.location(), pointer.slot.size_class().max_bytes());
        let place = core.table.place(at.segment);
        core.table.read_begins(place.device);
        let alignment = u64::from(core.set.infos()[usize::from(place.device.0)].alignment);
        let from = place.offset + u64::from(at.offset());
        let start = from & !(alignment - 1);
        let segment_end = place.offset + u64::from(core.table.segment_size());
        let end = ((from + u64::from(max) + alignment - 1) & !(alignment - 1)).min(segment_end);
        Self {
            core: core.clone(),
            ns: ns.clone(),
            key: key.into(),
            hash,
            pointer,
            device: place.device,
            offset: start,
            len: (end - start) as u32,
            skip: (from - start) as u32,
            attempt,
            done: false,
        }
    }

    /// Memory that the read of an object takes at most, wherever its record lies. A read has as
    /// many bytes as a record of its size class may have, in whole blocks.
    #[must_use]
    pub fn most_held(key_len: usize, value_len: usize) -> usize {
        let len = record::most_len(key_len, value_len).min(MAX_RECORD as usize) as u32;
        let most = SizeClass::from_bytes(len).map_or(len, SizeClass::max_bytes);
        AlignedBuf::read_capacity((most + BLOCK) as usize)
    }

    /// The engine that it looks in.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The key that is looked up.
    #[must_use]
    pub fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

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

    /// Bytes that the record has at most, its header and key included: as the index knows it.
    #[must_use]
    pub fn most_of_record(&self) -> u32 {
        self.pointer.slot.size_class().max_bytes()
    }

    /// Always false: there is something to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Ends the lookup with the outcome of the read: a hit, a miss, or another read. There is
    /// another read if the record moved meanwhile, a bounded number of times.
    pub fn finish(self, read: io::Result<AlignedBuf>) -> Lookup {
        self.core.totals.device_reads.inc();
        match read {
            Ok(buf) => {
                let skip = self.skip as usize;
                self.verify(&Bytes::from(buf), skip, Tier::Flash)
            }
            Err(_) => {
                self.core.totals.read_errors.inc();
                self.end_missed(MissReason::Device)
            }
        }
    }

    /// Cancels the lookup without counting it: the caller looks the key up again later, and that is
    /// counted.
    pub fn take_back(mut self) {
        self.done = true;
    }

    /// Ends the lookup with a miss because too many reads are in flight.
    pub fn busy(self) -> Lookup {
        self.end_missed(MissReason::Busy)
    }

    /// Where the index pointed, and which use of the segment that was.
    pub(crate) fn seen(&self) -> (Location, u64) {
        (self.pointer.slot.location(), self.pointer.generation)
    }

    fn end_missed(mut self, reason: MissReason) -> Lookup {
        self.done = true;
        miss(&self.ns, reason, self.attempt.counted)
    }

    fn end_missed_and_clear_slot(self, reason: MissReason) -> Lookup {
        clear_slot(&self.core, self.hash, self.pointer.slot.location());
        self.end_missed(reason)
    }

    /// Looks the key up again: its record has moved.
    fn follow(mut self) -> Lookup {
        coverage_mark!(ReadFollowed);
        if self.attempt.followed >= MAX_FOLLOWED {
            return self.end_missed(MissReason::Moved);
        }
        self.done = true;
        let attempt = Attempt { followed: self.attempt.followed + 1, ..self.attempt };
        look_up_on_flash(&self.core, &self.ns, &self.key, self.hash, attempt)
    }
}

impl std::fmt::Debug for FlashRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.pointer.slot.location();
        f.debug_struct("FlashRead")
            .field("device", &self.device)
            .field("at", &at)
            .field("len", &self.len)
            .finish()
    }
}

impl Drop for FlashRead {
    fn drop(&mut self) {
        self.core.table.read_ends(self.device);
        if !self.done && self.attempt.serves {
            self.ns.counters.miss(MissReason::Abandoned);
        }
    }
}

// ---- Verify
// --------------------------------------------------------------------------------------

impl FlashRead {
    /// Checks the bytes that were read: checksum and generation, full key, kill versions, expiry.
    /// Any doubt is a miss.
    fn verify(mut self, bytes: &Bytes, skip: usize, tier: Tier) -> Lookup {
        let at = self.pointer.slot.location();
        let generation = self.pointer.generation;
        let context = self.core.record_context(at.segment, generation, at.offset());
        // The slot is read again once the record has been checked. The check takes as long as this
        // prefetch.
        self.core.shard(self.hash).index.prefetch(self.hash);
        let Some(found) = bytes.get(skip..).and_then(|b| record::decode(b, &context)) else {
            let moved = self.core.table.generation(at.segment) != self.pointer.generation
                || self
                    .core
                    .shard(self.hash)
                    .index
                    .peek(self.hash)
                    .is_none_or(|s| s.location() != at);
            return if moved {
                self.follow()
            } else {
                self.end_missed_and_clear_slot(MissReason::Corrupt)
            };
        };
        if found.meta.ns != self.ns.id || *found.key != *self.key {
            // The slot is right for its own key; it stays.
            return self.end_missed(MissReason::Collision);
        }
        if let Some(reason) = self.core.why_dead(&self.ns, &found.meta) {
            return self.end_missed_and_clear_slot(reason);
        }
        match self.promote_if_current(&found, tier) {
            Verdict::Current => {}
            Verdict::Dead(reason) => return self.end_missed_and_clear_slot(reason),
            Verdict::Unknown => return self.follow(),
        }
        self.done = true;
        if self.attempt.serves {
            self.core.admission.duel.hit(self.hash);
        }
        if self.attempt.counted {
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

    /// Decides under the shard's lock whether the record is current. If the index still points at
    /// it, a copy may go to the DRAM tier.
    ///
    /// The race: the location may have been used again during the read, and holds another record
    /// now. While the index loads, the slot may also have been cleared because it was stale when
    /// the lookup saw it. The kill map that said so may be gone since. Then it is unknown whether
    /// the record is current, and the lookup begins again.
    fn promote_if_current(&self, found: &Record<'_>, tier: Tier) -> Verdict {
        let at = self.pointer.slot.location();
        let mut shard = self.core.shard(self.hash).lock_for_copy(self.hash);
        if shard.is_superseded(self.hash, found.meta.version) {
            return Verdict::Dead(MissReason::Superseded);
        }
        let same_use = || self.core.table.generation(at.segment) == self.pointer.generation;
        let here = shard.is_at(self.hash, at) && same_use();
        if self.pointer.mapped && !here {
            coverage_mark!(ReadUnknown);
            return Verdict::Unknown;
        }
        if let Some(verdict) = self.look_at_group(found) {
            return verdict;
        }
        if here {
            let slot = self.pointer.slot;
            // What is looked up without a count is about to be replaced.
            let moved = if tier == Tier::Flash && self.attempt.counted {
                self.core.relocate(&mut shard, self.hash, slot, found)
            } else {
                None
            };
            self.promote(&mut shard, found, moved.unwrap_or(at));
        } else {
            coverage_mark!(ReadRaced);
        }
        Verdict::Current
    }

    /// Asks once more, under the shard's lock, whether the record's group was removed. No copy of a
    /// removed object is made once that lock was taken after the removal.
    ///
    /// The race: its segment was given up during the read, and with it the removal was forgotten.
    /// Then the lookup begins again.
    fn look_at_group(&self, found: &Record<'_>) -> Option<Verdict> {
        if found.meta.group == 0 {
            return None;
        }
        let Pointer { slot, generation, .. } = self.pointer;
        // In this order: while the segment is in use, its removals are remembered.
        if self.ns.is_killed(&found.meta) {
            return Some(Verdict::Dead(MissReason::Killed));
        }
        let still = self.core.table.is_still(slot.location().segment, generation);
        (!still).then_some(Verdict::Unknown)
    }
}

enum Verdict {
    Current,
    Dead(MissReason),
    Unknown,
}

// ---- Promote
// -------------------------------------------------------------------------------------

impl FlashRead {
    /// Promotes a copy to the DRAM tier if the tier wants one. What it evicts is written out. If
    /// flash takes nothing at this moment, the read goes without a copy: it must not cost an object
    /// that only DRAM has. `at` is where flash has it.
    fn promote(&self, shard: &mut Shard, found: &Record<'_>, at: Location) {
        if self.ns.is_off_dram() {
            return;
        }
        let bytes = found.key.len() + found.value.len();
        let trial = &shard.trial;
        let wanted = shard.dram.wants_copy(self.hash, bytes, |hash| trial.popularity(hash));
        if !wanted || shard.dram.peek_hash(self.hash).is_some() {
            return;
        }
        // The copy is clean only if the record on flash will stay. A chunk that failed to be
        // written is still read from memory for a while. A reclaim under way may have missed this
        // object: one that cannot read its footer copies only what lives in DRAM when it begins.
        let stays = shard.is_copied_to_stay(self.hash, at);
        let has_uncopied =
            || shard.dram.dirty_len() > 0 || self.core.progress.regaining.load(Ordering::Acquire);
        let may_write = !shard.dram.has_room(bytes) && (!stays || has_uncopied());
        if may_write && !self.core.streams.have_room() {
            coverage_mark!(ReadNotPromoted);
            return;
        }
        if !stays {
            // Being read from flash has proven it. It is not to be refused the copy it needs now.
            shard.sketch.raise(self.hash, PROVEN_AT);
        }
        let state = if stays { EntryState::Clean(at) } else { EntryState::Dirty };
        let object = DramObject::new(self.hash, &found.meta, found.key, found.value, state);
        self.core.insert_absent_and_evict(shard, &object);
    }
}
