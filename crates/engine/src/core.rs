//! The engine's shared state and the operations on it that never wait for a device.
//!
//! Every change of a key happens under its shard's mutex, in this order: take the version, write the journal entry, clear
//! the old slot, change the DRAM tier. Whoever sees the change acknowledged can therefore rely on the journal.

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::io;
use std::sync::Arc;

use crate::sync::{Mutex, RwLock};

use crate::api::{DropReason, MissReason, NO_EXPIRY, PREFETCHED, Tier};
use crate::clock::Clock;
use crate::device::DeviceSet;
use crate::device::area::MetaStore;
use crate::durability::backpressure::Rooms;
use crate::durability::pending::Waiters;
use crate::format::journal::ENTRY;
use crate::format::key_hash;
use crate::format::record::{self, Meta};
use crate::format::state::{STATE, StateFile};
use crate::index::{Location, SizeClass};
use crate::journal::Journal;
use crate::namespace::NamespaceState;
use crate::ops::get;
use crate::ops::get::Lookup;
use crate::segment::{AppendError, Object, SegmentState, SegmentTable, StreamId, Streams};
use crate::shard::{Shard, ShardSlot};
use crate::stats::{EngineCounters, Stats};
use crate::tier::budget::WriteBudget;
use crate::tier::victims::VictimPopularity;
use crate::tier::{DramEntry, DramTier, EntryState, NOWHERE};
use crate::version::{self, Versions};

/// Objects that expire within this many seconds go to their own segments.
const SHORT_TTL: u64 = 3600;

/// What stands between an object and flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Popularity and the write budget.
    Asked,
    /// The write budget: somebody waits for it to be on flash.
    Through(u64),
    /// Nothing.
    Forced,
}

/// The shared state of an open cache.
pub struct Core {
    pub(crate) uuid: [u8; 16],
    pub(crate) hash_seed: u64,
    pub(crate) shards: Box<[ShardSlot]>,
    pub(crate) table: Arc<SegmentTable>,
    pub(crate) streams: Streams,
    /// Operations that wait for the device.
    pub(crate) waiters: Waiters,
    /// Changes that wait for room in the journal.
    pub(crate) rooms: Rooms,
    pub(crate) journal: Arc<Journal>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) totals: Arc<EngineCounters>,
    pub(crate) set: Arc<dyn DeviceSet>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Every namespace ever opened, by id.
    pub(crate) namespaces: RwLock<Vec<Arc<NamespaceState>>>,
    /// Held while a namespace is opened.
    pub(crate) opening: Mutex<()>,
    /// Held for writing while a group, epoch or namespace is removed, from taking the version to the change of the table; for
    /// reading from seeing that an object is alive to taking the version of what replaces it.
    pub(crate) kills_lock: RwLock<()>,
    pub(crate) time: AtomicU64,
    pub(crate) loading: AtomicBool,
    /// Segments written since the checkpoint are still to be read: until then an older copy may pass for the newest of a key, unless the
    /// journal tells.
    pub(crate) unread: AtomicBool,
    pub(crate) checkpointing: AtomicBool,
    /// Segments and blocks of index lines to be loaded after opening, and those already loaded.
    pub(crate) load_parts: AtomicU64,
    pub(crate) load_parts_done: AtomicU64,
    /// No puts any more.
    pub(crate) closed: AtomicBool,
    /// The clean marker is being written, or was.
    pub(crate) marked: AtomicBool,
    /// Something changed after that.
    pub(crate) spoiled: AtomicBool,
    /// With at most this many segments free, popularity decides what is written.
    pub(crate) free_target: u32,
    /// Popularity of what reclaim drops.
    pub(crate) victims: VictimPopularity,
    pub(crate) budget: Option<WriteBudget>,
    /// Where the journal began when the cache was opened.
    pub(crate) journal_began: u64,
    pub(crate) blocking_reads: AtomicU32,
    pub(crate) max_blocking_reads: u32,
    /// Offsets of the two checkpoint areas on device 0, and their length.
    pub(crate) areas: [u64; 3],
    /// The state file's content; held while it is replaced.
    pub(crate) state: Mutex<StateFile>,
    pub(crate) meta: Arc<dyn MetaStore>,
}

impl Core {
    /// Hash of a key.
    pub(crate) fn hash(&self, ns: u16, key: &[u8]) -> u64 {
        key_hash(self.hash_seed, ns, key)
    }

    pub(crate) fn shard(&self, hash: u64) -> &ShardSlot {
        &self.shards[hash as usize & (self.shards.len() - 1)]
    }

    /// Seconds that the wall clock is behind the highest time ever seen, which is what counts.
    pub(crate) fn clock_behind(&self) -> u64 {
        self.now().saturating_sub(self.clock.unix())
    }

    /// Unix seconds: never less than ever before, also in earlier lives of the cache.
    pub(crate) fn now(&self) -> u64 {
        let wall = self.clock.unix();
        let before = self.time.load(Ordering::Acquire);
        if wall <= before {
            return before;
        }
        let before = self.time.fetch_max(wall, Ordering::AcqRel);
        if wall > before {
            self.journal.store_time(wall);
        }
        wall.max(before)
    }

    pub(crate) fn is_expired(&self, expiry: u32) -> bool {
        expiry != NO_EXPIRY && u64::from(expiry) <= self.now()
    }

    pub(crate) fn namespace_by_id(&self, id: u16) -> Option<Arc<NamespaceState>> {
        self.namespaces.read().get(usize::from(id)).cloned()
    }

    /// Largest record.
    pub(crate) fn max_record(&self) -> usize {
        self.table.segment_size() as usize / 4
    }

    pub(crate) fn get(self: &Arc<Self>, ns: &Arc<NamespaceState>, key: &[u8]) -> Lookup {
        let hash = self.hash(ns.id, key);
        let mut shard = self.shard(hash).lock_for(hash);
        shard.sketch.add(hash);
        if let Some(entry) = shard.dram.get(hash, ns.id, key) {
            let (meta, hit) = (entry.meta(), entry.hit(Tier::Dram));
            if let Some(reason) = self.dead(ns, &meta) {
                shard.dram.remove(hash, ns.id, key);
                ns.counters.miss(reason);
                return Lookup::Miss(reason);
            }
            ns.counters.hit(Tier::Dram);
            return Lookup::Hit(hit);
        }
        drop(shard);
        get::lookup(self, ns, key, hash)
    }

    /// Asks for what finding the first [`PREFETCHED`] of these keys in DRAM will look at, so that memory is waited for once a step for all
    /// of them, not three times for each: their places in the tables, then the nodes found there, then the objects.
    pub(crate) fn prefetch<'k>(&self, ns: &NamespaceState, keys: impl Iterator<Item = &'k [u8]>) {
        let mut hashes = [0; PREFETCHED];
        let mut len = 0;
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(ns.id, key);
            drop(self.shard(*hash).lock_for(*hash));
            len += 1;
        }
        for step in [DramTier::prefetch_node, DramTier::prefetch_data] {
            hashes[..len].iter().for_each(|&hash| step(&self.shard(hash).lock().dram, hash));
        }
    }

    /// Why an object is dead, if it is.
    pub(crate) fn dead(&self, ns: &NamespaceState, meta: &Meta) -> Option<MissReason> {
        if ns.is_killed(meta) {
            Some(MissReason::Killed)
        } else if self.is_expired(meta.expiry) {
            Some(MissReason::Expired)
        } else {
            None
        }
    }

    /// Puts an entry into the DRAM tier and sees to those it evicts.
    pub(crate) fn insert_dram(&self, shard: &mut Shard, entry: DramEntry) {
        let mut victims = std::mem::take(&mut shard.victims);
        shard.dram.insert(entry, &mut victims);
        self.evict_all(shard, victims);
    }

    /// The same where the DRAM tier has nothing of that hash.
    pub(crate) fn insert_dram_absent(&self, shard: &mut Shard, entry: DramEntry) {
        let mut victims = std::mem::take(&mut shard.victims);
        shard.dram.insert_absent(entry, &mut victims);
        self.evict_all(shard, victims);
    }

    /// Changes what a shard's DRAM tier may take. It shrinks by small steps, so that the shard's lock is not held for long, and waits
    /// before each until the write queue has room for what leaves.
    pub(crate) fn resize_dram(&self, slot: &ShardSlot, budget: usize) {
        const STEP: usize = 64 << 10;
        loop {
            self.wait_for_queue();
            let mut shard = slot.lock();
            let shard = &mut *shard;
            // What is not taken needs no steps: nothing leaves for it.
            let next = budget.max(shard.dram.budget().min(shard.dram.bytes()).saturating_sub(STEP));
            let mut victims = std::mem::take(&mut shard.victims);
            shard.dram.set_budget(next, &mut victims);
            self.evict_all(shard, victims);
            if next == budget {
                return;
            }
        }
    }

    fn evict_all(&self, shard: &mut Shard, mut victims: Vec<DramEntry>) {
        let full = !victims.is_empty();
        for victim in victims.drain(..) {
            self.evict(shard, &victim);
            shard.keep_memory(victim.data);
        }
        shard.victims = victims;
        if full && let Some(next) = shard.dram.prefetch_victim() {
            // Most likely the next insertion evicts too.
            shard.index.prefetch(next);
        }
    }

    /// An entry has left the DRAM tier: its copy on flash must be there, or it is written, or its loss is counted.
    fn evict(&self, shard: &mut Shard, entry: &DramEntry) {
        if let EntryState::Clean(at) = entry.state
            && at != NOWHERE
            && shard.is_copied(entry.hash, at)
        {
            return;
        }
        let Some(ns) = self.namespace_by_id(entry.ns) else { return };
        if self.dead(&ns, &entry.meta()).is_some() {
            return ns.counters.dropped(DropReason::Dead);
        }
        if let Err(reason) = self.write_out(shard, entry, Admission::Asked) {
            ns.counters.dropped(reason);
        }
    }

    /// Tells the DRAM tier the time, in milliseconds of the monotonic clock.
    pub(crate) fn tell_time(&self, now: u64) {
        self.shards.iter().for_each(|slot| slot.lock().dram.set_now(now));
    }

    /// Copies an entry of the DRAM tier to flash; what is refused is not asked for again until it is evicted.
    pub(crate) fn copy_out(&self, shard: &mut Shard, entry: &DramEntry, forced: bool) -> bool {
        match self.write_out(shard, entry, if forced { Admission::Forced } else { Admission::Asked }) {
            Ok(at) => shard.dram.mark_clean(entry.hash, entry.version, at),
            // The device is behind or segments are being reclaimed: the entry stays dirty and is tried again.
            Err(DropReason::QueueFull | DropReason::NoFreeSegment | DropReason::WriteFailed) => false,
            Err(_) => shard.dram.mark_clean(entry.hash, entry.version, NOWHERE),
        }
    }

    /// Appends an object to its stream and publishes where it is.
    pub(crate) fn write_out(
        &self,
        shard: &mut Shard,
        entry: &DramEntry,
        admission: Admission,
    ) -> Result<Location, DropReason> {
        let (key, value) = entry.data.split_at(entry.key_len as usize);
        let len = record::padded_len(key.len(), value.len());
        self.admit(shard, entry.hash, len, admission)?;
        let short = entry.expiry != NO_EXPIRY && u64::from(entry.expiry) < self.now() + SHORT_TTL;
        let stream = if short { StreamId::ShortTtl } else { StreamId::New };
        let object = Object { hash: entry.hash, meta: entry.meta(), key, value };
        let awaited = if let Admission::Through(id) = admission { Some(id) } else { None };
        let at = self.append(stream, &object, awaited)?;
        self.publish(shard, entry.hash, at, len);
        Ok(at)
    }

    pub(crate) fn append(
        &self,
        stream: StreamId,
        object: &Object<'_>,
        awaited: Option<u64>,
    ) -> Result<Location, DropReason> {
        self.streams.append(stream, object, self.clock.millis(), awaited).map_err(|e| match e {
            AppendError::NoFreeSegment => DropReason::NoFreeSegment,
            AppendError::QueueFull => DropReason::QueueFull,
            AppendError::Failing => DropReason::WriteFailed,
        })
    }

    /// Points the index at a record.
    pub(crate) fn publish(&self, shard: &mut Shard, hash: u64, at: Location, len: u32) {
        let class = SizeClass::from_bytes(len).expect("a quarter of a segment fits a size class");
        let inserted = shard.index.insert(hash, at, class);
        self.table.slot_added(at.segment);
        if let Some(old) = inserted.replaced {
            self.table.slot_removed(old.location().segment);
        }
        if let Some(old) = inserted.evicted {
            self.table.slot_removed(old.location().segment);
            self.totals.dropped(DropReason::IndexFull, 1);
        }
    }

    /// Whether an object may be written: everything while segments are free, then what is asked for at least as often as
    /// what would have to go, within the write budget.
    fn admit(&self, shard: &Shard, hash: u64, len: u32, admission: Admission) -> Result<(), DropReason> {
        if admission == Admission::Forced {
            return Ok(());
        }
        if !self.is_within_budget(len) {
            return Err(DropReason::WriteBudget);
        }
        if admission != Admission::Asked || self.table.free_count() > self.free_target {
            return Ok(());
        }
        if self.victims.admits(shard.sketch.estimate(hash)) { Ok(()) } else { Err(DropReason::NotAdmitted) }
    }

    /// Whether the write budget, if there is one, allows `len` bytes more.
    pub(crate) fn is_within_budget(&self, len: u32) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.allows(self.written(), len))
    }

    /// Bytes written since opening, or sure to be: records with their padding, metadata, and the journal.
    pub(crate) fn written(&self) -> u64 {
        self.totals.written() + self.journal_bytes()
    }

    fn journal_bytes(&self) -> u64 {
        (self.journal.head() - self.journal_began) * ENTRY
    }

    /// Changes the state file; the change holds only if it became durable.
    pub(crate) fn update_state(&self, change: impl FnOnce(&mut StateFile)) -> io::Result<()> {
        self.replace_state(&mut self.state.lock(), change)
    }

    fn replace_state(&self, state: &mut StateFile, change: impl FnOnce(&mut StateFile)) -> io::Result<()> {
        let mut new = state.clone();
        change(&mut new);
        self.meta.replace(STATE, &new.encode())?;
        *state = new;
        Ok(())
    }

    /// Writes the clean marker. Whoever removes something from now on takes it back first ([`Core::clear_clean_marker`]).
    pub(crate) fn mark_clean(&self, checkpoint: u64) -> io::Result<()> {
        self.marked.store(true, Ordering::SeqCst);
        for slot in &self.shards {
            drop(slot.lock());
        }
        drop(self.kills_lock.write());
        // Who removed something without seeing the mark is in the journal by now, which must last as long as the marker.
        self.journal.sync()?;
        let (next, time) = (self.versions.peek(), self.now());
        let mut state = self.state.lock();
        if self.spoiled.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.replace_state(&mut state, |state| {
            (state.clean, state.checkpoint) = (true, checkpoint);
            (state.version_limit, state.time) = (next, time);
        })
    }

    /// Takes the clean marker back before a change after the clean stop is acknowledged.
    pub(crate) fn clear_clean_marker(&self) {
        if !self.marked.load(Ordering::SeqCst) {
            return;
        }
        // Nobody goes on before the one who takes it back has done so.
        let mut state = self.state.lock();
        if self.spoiled.swap(true, Ordering::SeqCst) {
            return;
        }
        coverage_mark!(Spoiled);
        let limit = self.versions.peek() + version::BLOCK;
        if self.replace_state(&mut state, |s| (s.clean, s.version_limit) = (false, limit)).is_err() {
            self.journal.poison_now();
            // The marker lasts: so must what contradicts it.
            self.sync_journal();
        }
    }

    /// Everything counted so far.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            totals: self.totals.snapshot(),
            segment_size: self.table.segment_size().into(),
            segment_table_bytes: self.table.bytes() as u64,
            segments_free: self.table.free_count().into(),
            segments: u64::from(self.table.len()) - self.table.in_state(SegmentState::Retired).count() as u64,
            chunks_waiting: self.streams.outstanding().into(),
            journal_bytes: self.journal_bytes(),
            journal_used: self.journal.used(),
            journal_capacity: self.journal.entries(),
            journal_poisoned: self.journal.is_poisoned(),
            clock_behind: self.clock_behind(),
            loading: self.loading.load(Ordering::Acquire),
            checkpointing: self.checkpointing.load(Ordering::Relaxed),
            load_parts: self.load_parts.load(Ordering::Relaxed),
            load_parts_done: self.load_parts_done.load(Ordering::Relaxed),
            ..Stats::default()
        };
        let mut oldest = u64::MAX;
        for slot in &self.shards {
            stats.index_slots += slot.index.slots() as u64;
            stats.index_slots_used += slot.index.len() as u64;
            stats.index_bytes += slot.index.lines() as u64 * 64;
            let shard = slot.lock();
            stats.dram_objects += shard.dram.len() as u64;
            stats.dram_bytes += shard.dram.bytes() as u64;
            stats.dram_capacity += shard.dram.budget() as u64;
            stats.unsaved_bytes += shard.dram.dirty_bytes() as u64;
            oldest = oldest.min(shard.dram.dirty_since().unwrap_or(u64::MAX));
        }
        // After the shards: what leaves them meanwhile is still counted here.
        stats.unsaved_bytes += self.streams.unwritten_bytes();
        oldest = oldest.min(self.streams.unwritten_since().unwrap_or(u64::MAX));
        // With nothing to wait for the oldest is younger than now.
        stats.unsaved_ms = self.clock.millis().saturating_sub(oldest);
        let namespaces = self.namespaces.read();
        stats.namespaces = namespaces.iter().map(|ns| ns.counters.snapshot(&ns.name)).collect();
        stats
    }
}
