//! The records of a shard: found by hash, on queues, in slots.
//!
//! A record is known by a 32-bit reference. Removing one may move another of its size into its
//! place, so a reference holds until the next removal. The table of buckets grows and shrinks by
//! one bucket at a time (linear hashing, Litwin 1980): no put ever pays for rehashing everything.
//!
//! What an object takes besides key and value, in bytes: 35 for its header, 5 for its bucket, 8 for
//! its place on small or main, as much again while it is dirty, and what its slot is larger than
//! it, 3.5 on average up to 1 KiB.

use bytes::Bytes;

use super::entry::{DramObject, EntryState};
use super::fifo::{Queue, Queues};
use super::heads::Heads;
use super::packed::{self, HEADER, PackedHeader};
use super::slab::{Moved, NIL, PAGE_COST, Slab, slot_size};
use crate::prefetch::{prefetch, prefetch_bytes};

/// Expiry, group and partition.
pub(super) const PARTS: usize = 3;
/// A bucket of linear hashing is looked at twice as many insertions before it is parted, its first
/// record's successor so many.
const PARTED_SOON: usize = 4;
/// What a record takes besides its slot: its bucket, its place on a queue, about its share of what
/// pages take.
const BESIDES: usize = Heads::EACH + Queues::EACH + 1;
/// What the allocation of a large object takes besides its bytes: its place among them, its count
/// of readers, and what the allocator takes for both.
const LARGE_COST: usize = 2 * size_of::<Large>() + 48;
/// Bytes of a slot that are asked for before its length is known.
const FIRST_BYTES: usize = 192;

/// Bytes that an object with so many bytes of key and value takes of the tier's budget, with
/// neither expiry nor group nor partition. It takes 4 more for each of these and 7 while it is
/// dirty. Sizes of slots round it up, so this is exact for records, and an average for the rest.
#[must_use]
pub const fn entry_bytes(len: usize) -> usize {
    slot_size(packed::record_len(len, 0)) + BESIDES + large_bytes(len)
}

/// Bytes beside its slot that an object with so many bytes of key and value takes.
const fn large_bytes(len: usize) -> usize {
    if packed::is_large(len) { len + LARGE_COST } else { 0 }
}

/// Key and value of a large object, and whose they are.
struct Large {
    data: Bytes,
    record: u32,
}

pub(super) struct Arena {
    slab: Slab,
    heads: Heads,
    queues: Queues,
    large: Vec<Large>,
    /// Bytes of large objects.
    large_bytes: usize,
    /// The time, in tenths of a second.
    pub(super) now: u32,
}

impl Arena {
    /// Bytes that an empty one takes.
    pub(super) const FIXED: usize = Slab::FIXED + Heads::FIXED + Queues::FIXED;

    pub(super) fn new() -> Self {
        Self {
            slab: Slab::new(),
            heads: Heads::new(),
            queues: Queues::new(),
            large: Vec::new(),
            large_bytes: 0,
            now: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Bytes taken.
    pub(super) fn memory(&self) -> usize {
        self.slab.bytes()
            + self.heads.memory()
            + self.queues.memory()
            + self.large_bytes
            + self.large.len() * LARGE_COST
    }

    /// Bytes that one more object takes at most, with `len` bytes of key and value and so many of
    /// expiry, group and partition.
    pub(super) fn growth(&self, len: usize, parts: usize) -> usize {
        self.slab.growth(packed::record_len(len, parts))
            + large_bytes(len)
            + Heads::EACH
            + self.queues.growth(self.now)
    }

    /// Bytes that the first object takes, as [`Self::growth`] has it, whatever there is.
    pub(super) fn growth_of_first(len: usize) -> usize {
        let slot = slot_size(packed::record_len(len, PARTS)) + PAGE_COST;
        slot + large_bytes(len) + Heads::EACH + 2 * Queues::EACH
    }

    /// Records and bytes of a queue.
    pub(super) fn queue_len(&self, queue: Queue) -> usize {
        self.queues.len(queue)
    }

    pub(super) fn queue_bytes(&self, queue: Queue) -> usize {
        self.queues.bytes(queue)
    }

    pub(super) fn header(&self, at: u32) -> &PackedHeader {
        PackedHeader::of(self.slab.slot(at))
    }

    pub(super) fn header_mut(&mut self, at: u32) -> &mut PackedHeader {
        PackedHeader::of_mut(self.slab.slot_mut(at))
    }

    /// The object of a record.
    pub(super) fn object(&self, at: u32) -> DramObject<'_> {
        packed::read(self.slab.slot(at), |number| &self.large[number as usize].data)
    }

    /// Whether a record is of this key.
    pub(super) fn is(&self, at: u32, ns: u16, key: &[u8]) -> bool {
        let slot = self.slab.slot(at);
        packed::is(slot, ns, key, |_| self.object(at).key() == key)
    }

    /// All records, in no particular order.
    pub(super) fn records(&self) -> impl Iterator<Item = u32> {
        self.slab.records()
    }

    /// What a record takes of the budget.
    pub(super) fn cost(&self, at: u32) -> usize {
        let large = packed::large_number(self.slab.slot(at))
            .map_or(0, |number| large_bytes(self.large[number as usize].data.len()));
        self.slab.size(at) + BESIDES + large
    }

    // ---- Ahead of time

    /// Asks for the bucket of a hash ahead of a search.
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(self.heads.head(self.heads.bucket(hash)));
    }

    /// Asks for the first record of the bucket of a hash, whose place the processor should have by
    /// now.
    pub(super) fn prefetch_record(&self, hash: u64) {
        match *self.heads.head(self.heads.bucket(hash)) {
            NIL => {}
            first => self.prefetch_first(first),
        }
    }

    fn prefetch_first(&self, at: u32) {
        let slot = self.slab.slot(at);
        prefetch_bytes(&slot[..slot.len().min(FIRST_BYTES)]);
    }

    /// Asks for all of a record.
    pub(super) fn prefetch_data(&self, hash: u64) {
        if let Some(at) = self.find(hash) {
            let (object, slot) = (self.object(at), self.slab.slot(at));
            match object.shared {
                Some(data) => prefetch_bytes(data),
                None => prefetch_bytes(&slot[..HEADER + object.len()]),
            }
        }
    }

    /// Prefetches what removing the oldest of a queue touches: its bucket, its bytes, and the next
    /// of its queue. Then the next removal can be prefetched in turn. Gives the hash.
    pub(super) fn prefetch_removal(&self, queue: Queue) -> Option<u64> {
        let place = self.queues.oldest(queue)?;
        let at = self.queues.record(place);
        let hash = self.header(at).hash.get();
        self.prefetch(hash);
        prefetch_bytes(self.slab.slot(at));
        if let Some(next) = self.queues.newer(place) {
            prefetch(self.header(self.queues.record(next)));
        }
        Some(hash)
    }

    // ---- Records

    /// The record of a hash, which is about to be read: its first lines are asked for together.
    pub(super) fn find_to_read(&self, hash: u64) -> Option<u32> {
        self.prefetch_record(hash);
        self.find(hash)
    }

    /// The record of a hash.
    pub(super) fn find(&self, hash: u64) -> Option<u32> {
        let mut at = *self.heads.head(self.heads.bucket(hash));
        while at != NIL {
            let header = self.header(at);
            if header.hash.get() == hash {
                return Some(at);
            }
            at = header.chain.get();
        }
        None
    }

    /// Adds an object, whose hash must not be there yet, as the newest of `queue`.
    pub(super) fn insert(&mut self, object: &DramObject<'_>, queue: Queue) -> u32 {
        let at = self.slab.alloc(packed::len_of(object));
        let number = self.keep_large(object, at);
        packed::write_new(self.slab.slot_mut(at), object, number);
        let head = self.heads.head_mut(object.hash);
        let chain = std::mem::replace(head, at);
        self.header_mut(at).chain = chain.into();
        self.join(at, queue);
        self.set_state(at, object.state);
        if self.len() > self.heads.len() {
            self.split_bucket();
        }
        at
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, at: u32) {
        let header = *self.header(at);
        self.leave(at, header.queue());
        if header.dirty_place().is_some() {
            self.leave(at, Queue::Dirty);
        }
        self.repoint_chain(header.hash.get(), at, header.chain.get());
        self.drop_large(at);
        self.free(at);
        while self.heads.len() > 1 && self.len() * 2 < self.heads.len() {
            self.merge_bucket();
        }
    }

    /// Replaces the object of a record by another of the same hash, which keeps its place in the
    /// queues.
    pub(super) fn replace(&mut self, at: u32, object: &DramObject<'_>) {
        let old_cost = self.cost(at);
        let header = *self.header(at);
        self.drop_large(at);
        let bytes = packed::len_of(object);
        let fits = slot_size(bytes) == self.slab.size(at);
        let to = if fits { at } else { self.slab.alloc(bytes) };
        if !fits {
            *self.header_mut(to) = header;
            self.repoint(header, at, to);
        }
        let number = self.keep_large(object, to);
        packed::write(self.slab.slot_mut(to), object, number);
        let new_cost = self.cost(to);
        self.queues.resize(header.queue(), old_cost, new_cost);
        if header.dirty_place().is_some() {
            self.queues.resize(Queue::Dirty, old_cost, new_cost);
        }
        self.set_state(to, object.state);
        if !fits {
            self.free(at);
        }
    }

    /// Frees the slot of a record that nobody points at, and points at what moves there.
    fn free(&mut self, at: u32) {
        if let Some(Moved { from, to }) = self.slab.free(at) {
            let header = *self.header(to);
            self.repoint(header, from, to);
            if let Some(number) = packed::large_number(self.slab.slot(to)) {
                self.large[number as usize].record = to;
            }
        }
    }

    /// Has whoever points at a record with this header, bucket and queues, point at `to`.
    fn repoint(&mut self, header: PackedHeader, from: u32, to: u32) {
        self.repoint_chain(header.hash.get(), from, to);
        self.queues.repoint(header.place.get(), to);
        if let Some(place) = header.dirty_place() {
            self.queues.repoint(place, to);
        }
    }

    // ---- Large objects

    /// Keeps the allocation of a large object, and gives its number.
    fn keep_large(&mut self, object: &DramObject<'_>, record: u32) -> u32 {
        if !packed::is_large(object.len()) {
            return NIL;
        }
        let data = object.to_shared();
        self.large_bytes += data.len();
        self.large.push(Large { data, record });
        self.large.len() as u32 - 1
    }

    fn drop_large(&mut self, at: u32) {
        let Some(number) = packed::large_number(self.slab.slot(at)) else { return };
        let gone = self.large.swap_remove(number as usize);
        self.large_bytes -= gone.data.len();
        if let Some(moved) = self.large.get(number as usize) {
            packed::set_large_number(self.slab.slot_mut(moved.record), number);
        }
    }

    // ---- Queues

    /// Whether a record is dirty as its object's state says, and where flash has it if it is not.
    pub(super) fn set_state(&mut self, at: u32, state: EntryState) {
        let is_dirty = self.header(at).dirty_place().is_some();
        match state {
            EntryState::Dirty if is_dirty => {}
            EntryState::Dirty => self.join(at, Queue::Dirty),
            EntryState::Clean(location) => {
                if is_dirty {
                    self.leave(at, Queue::Dirty);
                }
                self.header_mut(at).set_clean(location);
            }
        }
    }

    /// The oldest record of a queue.
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        self.queues.oldest(queue).map(|place| self.queues.record(place))
    }

    /// When the oldest record of a queue joined it. An update does not change that: what is written
    /// again and again stays as old as it is.
    pub(super) fn oldest_joined(&self, queue: Queue) -> Option<u32> {
        self.queues.oldest(queue).map(|place| self.queues.joined(place))
    }

    /// The records of a queue from the oldest on, and when each joined it.
    pub(super) fn queued(&self, queue: Queue) -> impl Iterator<Item = (u32, u32)> {
        let places =
            std::iter::successors(self.queues.oldest(queue), |place| self.queues.newer(*place));
        places.map(|place| (self.queues.record(place), self.queues.joined(place)))
    }

    /// Makes a record the newest of small or main.
    pub(super) fn move_to(&mut self, at: u32, queue: Queue) {
        self.leave(at, self.header(at).queue());
        self.join(at, queue);
    }

    fn join(&mut self, at: u32, queue: Queue) {
        let (cost, now) = (self.cost(at), self.now);
        let place = self.queues.push(queue, at, cost, now);
        let header = self.header_mut(at);
        match queue {
            Queue::Dirty => header.set_dirty_place(place),
            Queue::Small | Queue::Main => {
                header.set_queue(queue);
                header.place = place.into();
            }
        }
    }

    fn leave(&mut self, at: u32, queue: Queue) {
        let (cost, header) = (self.cost(at), self.header(at));
        let place = match queue {
            Queue::Dirty => header.dirty_place().expect("it is dirty"),
            Queue::Small | Queue::Main => header.place.get(),
        };
        let Self { queues, slab, .. } = self;
        queues.remove(queue, place, cost, |record, place| {
            let header = PackedHeader::of_mut(slab.slot_mut(record));
            match queue {
                Queue::Dirty => header.set_dirty_place(place),
                Queue::Small | Queue::Main => header.place = place.into(),
            }
        });
    }

    // ---- Buckets

    /// Makes whoever points at `from` in its bucket point at `to`.
    fn repoint_chain(&mut self, hash: u64, from: u32, to: u32) {
        let head = self.heads.head_mut(hash);
        if *head == from {
            *head = to;
            return;
        }
        let mut at = *head;
        loop {
            let next = self.header(at).chain.get();
            if next == from {
                break;
            }
            at = next;
        }
        self.header_mut(at).chain = to.into();
    }

    /// Adds one bucket and moves over what belongs there from the one it parts from.
    fn split_bucket(&mut self) {
        let (old, first) = self.heads.grow();
        self.deal(first);
        // Buckets are parted in their order, but their records lie anywhere.
        let first = |ahead| self.heads.get(old + ahead).filter(|&at| at != NIL);
        if let Some(at) = first(2 * PARTED_SOON) {
            prefetch(self.header(at));
        }
        if let Some(at) = first(PARTED_SOON) {
            let chain = self.header(at).chain.get();
            if chain != NIL {
                prefetch(self.header(chain));
            }
        }
    }

    /// Takes one bucket away and gives its records to the one it parted from.
    fn merge_bucket(&mut self) {
        let gone = self.heads.shrink();
        self.deal(gone);
    }

    /// Deals the records of a bucket out again.
    fn deal(&mut self, first: u32) {
        let mut at = first;
        while at != NIL {
            let header = self.header(at);
            let (next, hash) = (header.chain.get(), header.hash.get());
            let chain = std::mem::replace(self.heads.head_mut(hash), at);
            self.header_mut(at).chain = chain.into();
            at = next;
        }
    }

    /// Shows the records of a part of the hashes, and gives where the next part begins. Parts are
    /// of whole buckets, as many as have `most` records or a few more. What is there from the first
    /// part to the last is shown just once, however many others come, go or move meanwhile.
    pub(super) fn visit(&self, from: u64, most: usize, mut see: impl FnMut(u32)) -> Option<u64> {
        let (mut from, mut seen) = (from, 0);
        while from <= u64::from(u32::MAX) {
            if seen >= most {
                return Some(from);
            }
            let (bucket, end) = self.heads.bucket_at(from as u32);
            let mut at = *self.heads.head(bucket);
            while at != NIL {
                let header = self.header(at);
                if u64::from(Heads::order(header.hash.get())) >= from {
                    see(at);
                    seen += 1;
                }
                at = header.chain.get();
            }
            from = end;
        }
        None
    }
}
