//! S3-FIFO in bytes, with a small queue whose share adapts.
//!
//! New objects enter *small*. The oldest of small moves to *main* if it was hit at least twice
//! there. Otherwise it is evicted and remembered in the *ghost*. The oldest of main goes round
//! again with one hit less if it has hits left. Otherwise it is evicted and remembered too. An
//! object that comes back while the ghost remembers its leaving small enters main.
//!
//! A fixed small queue fails where objects are asked for a second and last time after they left it.
//! An object that comes back *soon* after leaving a queue would have been a hit if that queue had
//! been larger. So that queue grows by a fraction of an object at the cost of the other, as in ARC
//! (Megiddo and Modha, FAST 2003). The fraction is small: the share follows the workload over many
//! evictions, and single returns decide nothing.
//!
//! Where that loses to another policy, the tier follows the other one: see [`super::eviction`].
//! Hit ratios on public traces are in `docs/results/hit-ratio.md`.

use super::arena::{Arena, PARTS, entry_bytes};
use super::copies::Copies;
use super::evicted::Victims;
use super::fifo::Queue;
use super::ghost::Ghost;
use super::packed;
use super::{DramObject, EntryState};
use crate::index::Location;

/// Share of the budget for small at the start, and its bounds, in percent.
const SMALL_START: usize = 10;
const SMALL_MIN: usize = 1;
const SMALL_MAX: usize = 90;
/// Evictions from a queue the ghost remembers, in percent of the objects there are.
const GHOST_PERCENT: usize = 90;
/// A return counts as soon within 1/4 as many evictions as there are objects, and moves the share
/// by 1/4 of an average object.
const SOON: usize = 4;
const STEP: usize = 4;

/// Unit in which the age of dirty objects is kept, in milliseconds.
const TICK: u64 = 100;

/// Bytes that a tier needs to hold anything. Its own structures take 11 KB of it while it is empty.
pub(crate) const LEAST_BYTES: usize = 16 << 10;

/// How the next victim is found: see `eviction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionPolicy {
    S3Fifo,
    Contest,
}

/// The objects of one shard in DRAM, within a budget of bytes.
pub struct DramTier {
    pub(super) arena: Arena,
    pub(super) ghost: Ghost,
    pub(super) budget: usize,
    /// Bytes small may have before its oldest goes rather than main's, as S3-FIFO has it.
    pub(super) small_target: usize,
    pub(super) copies: Copies,
    pub(super) policy: EvictionPolicy,
    /// Bytes of the budget that somebody else has.
    pub(super) reserved: usize,
    /// Bytes that an insertion leaves free, to be reserved next.
    pub(super) put_by: usize,
    /// State of the generator that draws.
    pub(super) draws: u32,
}

impl DramTier {
    /// What an empty tier takes.
    pub(super) const EMPTY_BYTES: usize = Arena::FIXED + Ghost::LEAST_BYTES;

    /// An empty tier that takes at most `budget` bytes, its own structures included.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        let small_target = budget / 100 * SMALL_START;
        Self {
            arena: Arena::new(),
            ghost: Ghost::new(),
            budget,
            small_target,
            copies: Copies::new(),
            policy: EvictionPolicy::S3Fifo,
            reserved: 0,
            put_by: 0,
            draws: 1,
        }
    }

    /// The object of a key, its use counted.
    pub fn get(&mut self, hash: u64, ns: u16, key: &[u8]) -> Option<DramObject<'_>> {
        let at = self.find(hash, ns, key)?;
        self.count_use(at);
        Some(self.arena.object(at))
    }

    fn count_use(&mut self, at: u32) {
        let header = self.arena.header_mut(at);
        header.set_freq(header.freq() + 1);
    }

    /// The object of a key, without counting the use.
    #[must_use]
    pub fn peek(&self, hash: u64, ns: u16, key: &[u8]) -> Option<DramObject<'_>> {
        Some(self.arena.object(self.find(hash, ns, key)?))
    }

    /// Whatever object has this hash.
    #[must_use]
    pub fn peek_hash(&self, hash: u64) -> Option<DramObject<'_>> {
        Some(self.arena.object(self.arena.find(hash)?))
    }

    /// Adds an object in place of the one of the same hash, whose version is returned. That is
    /// normally its older version. One in 2^64 times it is another key's object, which is lost as
    /// if it had never been put. Objects evicted to make room are appended to `victims`, oldest
    /// first; among them this one when it alone is beyond the budget.
    pub fn insert(&mut self, object: &DramObject<'_>, victims: &mut impl Victims) -> Option<u64> {
        let Some(at) = self.arena.find(object.hash) else {
            self.insert_absent(object, victims);
            return None;
        };
        let replaced = Some(self.arena.header(at).version.get());
        if !self.can_hold(object) {
            victims.take(object);
            self.arena.remove(at);
            return replaced;
        }
        // An update counts as a use. The object keeps its place, also among the dirty objects, and
        // the time since when it is dirty. Otherwise an object that is written again and again
        // would never be old enough to be copied, and would hold up those behind it.
        self.count_use(at);
        self.arena.replace(at, object);
        self.make_room(victims);
        replaced
    }

    /// Adds an object where none of the same hash is, which the caller has seen just now.
    pub fn insert_absent(&mut self, object: &DramObject<'_>, victims: &mut impl Victims) {
        debug_assert!(self.arena.find(object.hash).is_none());
        if !self.can_hold(object) {
            victims.take(object);
            return;
        }
        self.limit_ghost();
        let queue = self.queue_for(object.hash);
        let parts = packed::parts_of(object);
        while self.bytes() + self.arena.growth(object.len(), parts) + self.put_by > self.budget
            && !self.is_empty()
        {
            self.evict(entry_bytes(object.len()), victims);
        }
        self.arena.insert(object, queue);
        debug_assert!(self.bytes() <= self.budget || self.len() == 1);
    }

    fn can_hold(&self, object: &DramObject<'_>) -> bool {
        Arena::growth_of_first(object.len()) + self.fixed_bytes() <= self.budget
    }

    /// Asks for what finding an object will look at.
    pub fn prefetch(&self, hash: u64) {
        self.arena.prefetch(hash);
    }

    /// Asks for the beginning of an object, a while after [`Self::prefetch`].
    pub fn prefetch_record(&self, hash: u64) {
        self.arena.prefetch_record(hash);
    }

    /// Asks for all of an object, a while after [`Self::prefetch_record`].
    pub fn prefetch_data(&self, hash: u64) {
        self.arena.prefetch_data(hash);
    }

    /// Asks for what adding an object will look at.
    pub fn prefetch_return(&self, hash: u64) {
        self.ghost.prefetch(hash);
    }

    /// Asks for what evicting the next victim will look at; its hash, if there is one in sight.
    pub fn prefetch_victim(&self) -> Option<u64> {
        let hash = self.arena.prefetch_removal(self.next_queue(0))?;
        self.ghost.prefetch(hash);
        Some(hash)
    }

    /// Whether to promote an object that was read from flash, with so many bytes of key and value.
    /// Always while there is space; otherwise [`Copies`] decides.
    /// In a contest it is promoted too if it is more popular than the object it would have to beat.
    pub fn wants_copy(&mut self, hash: u64, bytes: usize, popularity: impl Fn(u64) -> u8) -> bool {
        if self.has_room(bytes) {
            return true;
        }
        if self.policy == EvictionPolicy::Contest
            && let Some(holder) = self.oldest_unhit()
        {
            let holder = self.arena.object(holder).hash;
            return popularity(hash) > popularity(holder) || self.copies.wants();
        }
        let stay = self.arena.queue_len(Queue::Small);
        if self
            .ghost
            .find(hash)
            .is_some_and(|back| back.from == Queue::Small && back.age as usize <= stay)
        {
            self.copies.missed();
        }
        self.copies.wants()
    }

    /// Whether an object with so many bytes of key and value evicts nothing, whatever expiry, group
    /// and partition it has.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        // Of a full tier the first has none, and no more are looked at.
        let fits = |parts| self.bytes() + self.arena.growth(bytes, parts) <= self.budget;
        (0..=PARTS).all(fits)
    }

    /// Takes an object out; its version.
    pub fn remove(&mut self, hash: u64, ns: u16, key: &[u8]) -> Option<u64> {
        let at = self.find(hash, ns, key)?;
        let version = self.arena.header(at).version.get();
        self.arena.remove(at);
        Some(version)
    }

    /// The dirty objects that became so by `ms` of the time told by [`Self::set_now`], oldest
    /// first, for the background copy. Each has waited that long, however often and lately it was
    /// updated meanwhile.
    pub fn dirty_by(&self, ms: u64) -> impl Iterator<Item = DramObject<'_>> {
        let queued = self.arena.queued(Queue::Dirty);
        let due = queued.take_while(move |(_, joined)| u64::from(*joined) * TICK <= ms);
        due.map(|(at, _)| self.arena.object(at))
    }

    /// Since when the oldest of the dirty objects is one, in the time told by [`Self::set_now`].
    #[must_use]
    pub fn dirty_since(&self) -> Option<u64> {
        self.arena.oldest_joined(Queue::Dirty).map(|joined| u64::from(joined) * TICK)
    }

    /// Since when the oldest object of small or main is on that queue, in the time told by
    /// [`Self::set_now`].
    #[must_use]
    pub fn oldest_since(&self) -> Option<u64> {
        let joined = [Queue::Small, Queue::Main].map(|queue| self.arena.oldest_joined(queue));
        joined.into_iter().flatten().min().map(|joined| u64::from(joined) * TICK)
    }

    /// Tells the time in milliseconds, which never goes back. Told seldom, objects pass for older
    /// than they are.
    pub fn set_now(&mut self, ms: u64) {
        self.arena.now = u32::try_from(ms / TICK).unwrap_or(u32::MAX);
    }

    /// Bytes of the dirty objects, overhead included.
    #[must_use]
    pub fn dirty_bytes(&self) -> usize {
        self.arena.queue_bytes(Queue::Dirty)
    }

    /// Number of dirty objects.
    #[must_use]
    pub fn dirty_len(&self) -> usize {
        self.arena.queue_len(Queue::Dirty)
    }

    /// Notes that flash has this version of an object now; false when DRAM does not hold just that
    /// version.
    pub fn mark_clean(&mut self, hash: u64, version: u64, location: Location) -> bool {
        self.set_state(hash, version, EntryState::Clean(location))
    }

    /// Notes that flash does not have this version of an object any more; it joins the dirty as the
    /// newest. False when DRAM does not hold just that version.
    pub fn mark_dirty(&mut self, hash: u64, version: u64) -> bool {
        self.set_state(hash, version, EntryState::Dirty)
    }

    fn set_state(&mut self, hash: u64, version: u64, state: EntryState) -> bool {
        let Some(at) = self.arena.find(hash) else { return false };
        if self.arena.header(at).version.get() != version {
            return false;
        }
        self.arena.set_state(at, state);
        true
    }

    /// Bytes taken, structures included; at most the budget, except that the structures of an empty
    /// tier stay.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.arena.memory() + self.ghost.bytes() + self.reserved
    }

    /// The bytes it may take.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Changes the budget; objects that no longer fit are appended to `victims`.
    pub fn set_budget(&mut self, budget: usize, victims: &mut impl Victims) {
        // The adapted share stays.
        let share = self.small_target as u128 * budget as u128 / self.budget.max(1) as u128;
        self.small_target = share as usize;
        self.budget = budget;
        self.make_room(victims);
    }

    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Whether it holds no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All objects, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = DramObject<'_>> {
        self.every(1)
    }

    /// One of so many of all objects, in no particular order. Of the others nothing is looked at.
    pub fn every(&self, step: usize) -> impl Iterator<Item = DramObject<'_>> {
        self.arena.records().step_by(step).map(|at| self.arena.object(at))
    }

    /// Shows about `most` objects, those of the part of all that begins at `from`, and gives where
    /// the next part begins. The first begins at 0. What is there from the first part to the last
    /// is shown just once, however many others come, go or change meanwhile.
    pub fn visit(
        &self,
        from: u64,
        most: usize,
        mut see: impl FnMut(DramObject<'_>),
    ) -> Option<u64> {
        self.arena.visit(from, most, |at| see(self.arena.object(at)))
    }

    fn find(&self, hash: u64, ns: u16, key: &[u8]) -> Option<u32> {
        self.arena.find_to_read(hash).filter(|&at| self.arena.is(at, ns, key))
    }

    fn queued_bytes(&self) -> usize {
        self.arena.queue_bytes(Queue::Small) + self.arena.queue_bytes(Queue::Main)
    }

    /// What an empty tier takes with this ghost.
    fn fixed_bytes(&self) -> usize {
        self.ghost.bytes() + self.reserved + Arena::FIXED
    }

    /// Where an object new to the tier goes, and what its return teaches about the share of small.
    fn queue_for(&mut self, hash: u64) -> Queue {
        let Some(back) = self.ghost.recall(hash) else { return Queue::Small };
        if self.policy == EvictionPolicy::Contest {
            // What it has been asked for decides, once it is the oldest of small.
            return Queue::Small;
        }
        if back.age as usize <= self.len() / SOON {
            let step = self.queued_bytes() / self.len().max(1) / STEP;
            let target = match back.from {
                Queue::Small => self.small_target + step,
                _ => self.small_target.saturating_sub(step),
            };
            let percent = self.budget / 100;
            self.small_target = target.clamp(percent * SMALL_MIN, percent * SMALL_MAX);
        }
        match back.from {
            Queue::Small => Queue::Main,
            // It had its chance: a loop larger than main would otherwise push everything out of
            // main before it is hit.
            _ => Queue::Small,
        }
    }

    /// Evicts until it is within its budget or nothing is left. The ghost follows: one of a much
    /// larger tier would leave no object any room, and no insertion would ever make it smaller.
    fn make_room(&mut self, victims: &mut impl Victims) {
        while self.bytes() > self.budget && !self.is_empty() {
            self.evict(0, victims);
            self.limit_ghost();
        }
    }

    fn limit_ghost(&mut self) {
        self.ghost.set_limit(self.len() * GHOST_PERCENT / 100);
    }
}
