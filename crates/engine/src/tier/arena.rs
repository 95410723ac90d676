//! The arena of entries: a dense array of nodes, chained into a hash table and linked into queues
//! by index.
//!
//! Removing a node moves the last one into its place. So memory is exactly proportional to the
//! number of entries, whatever sizes they had before. The table grows and shrinks by one bucket at
//! a time (linear hashing, Litwin 1980): no put ever pays for rehashing everything.

use super::DramEntry;
use crate::prefetch::prefetch;

/// No node.
pub(super) const NIL: u32 = u32::MAX;
/// Nodes and buckets are allocated in blocks of so many.
const BLOCK: usize = 256;
/// The first node of a bucket is asked for twice as many insertions before the bucket is parted,
/// the second so many.
const PARTED_SOON: usize = 4;
/// What the allocator and the reference count of [`bytes::Bytes`] take per entry, rounded up.
const HEAP_OVERHEAD: usize = 64;

/// Bytes the tier takes per entry besides key and value.
pub const ENTRY_OVERHEAD: usize = size_of::<Node>() + size_of::<u32>() + HEAP_OVERHEAD;
/// Most bytes the arena has allocated beyond its entries.
pub(super) const ARENA_SLACK: usize = BLOCK * (2 * size_of::<Node>() + 2 * size_of::<u32>());

/// The queues a node can be on: one of small and main, and dirty besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Small = 0,
    Main = 1,
    Dirty = 2,
}

/// Neighbours in a queue, older and newer.
#[derive(Debug, Clone, Copy)]
struct Links {
    older: u32,
    newer: u32,
}

const UNLINKED: Links = Links { older: NIL, newer: NIL };

pub(super) struct Node {
    pub(super) entry: DramEntry,
    /// Next node of the same bucket.
    chain: u32,
    /// Links in small or main, and in dirty.
    links: [Links; 2],
    /// [`Queue::Small`] or [`Queue::Main`].
    pub(super) queue: Queue,
    /// Hits since it entered its queue, at most 3.
    pub(super) freq: u8,
    /// Whether flash held it when it came.
    pub(super) copy: bool,
    /// Whether it is on the dirty queue.
    dirty: bool,
    /// When it joined the dirty queue, as the arena counts time.
    since: u32,
    /// When it joined small or main.
    entered: u32,
}

/// Ends, length and bytes of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) oldest: u32,
    newest: u32,
    pub(super) len: usize,
    pub(super) bytes: usize,
}

const EMPTY: Ends = Ends { oldest: NIL, newest: NIL, len: 0, bytes: 0 };

pub(super) struct Arena {
    /// Blocks of nodes, all but the last full.
    blocks: Vec<Vec<Node>>,
    len: usize,
    buckets: Vec<u32>,
    queues: [Ends; 3],
    /// The time, in tenths of a second.
    pub(super) now: u32,
}

/// Bytes an entry takes of the budget.
pub(super) fn cost(entry: &DramEntry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

impl Arena {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), len: 0, buckets: vec![NIL], queues: [EMPTY; 3], now: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn ends(&self, queue: Queue) -> &Ends {
        &self.queues[queue as usize]
    }

    pub(super) fn node(&self, at: u32) -> &Node {
        &self.blocks[at as usize / BLOCK][at as usize % BLOCK]
    }

    pub(super) fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.blocks[at as usize / BLOCK][at as usize % BLOCK]
    }

    /// Asks for the chain of a hash ahead of a search.
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets[self.bucket(hash)]);
    }

    /// Asks for the first node of the chain of a hash, whose place the processor should have by
    /// now.
    pub(super) fn prefetch_node(&self, hash: u64) {
        match self.buckets[self.bucket(hash)] {
            NIL => {}
            first => prefetch(self.node(first)),
        }
    }

    /// Prefetches what removing a node touches: its chain, its bytes, and the next node of its
    /// queue. Then the next removal can be prefetched in turn. Gives the node's hash.
    pub(super) fn prefetch_removal(&self, at: u32) -> u64 {
        let Node { entry, queue, .. } = self.node(at);
        self.prefetch(entry.hash);
        // Both ends: the allocator looks at what is before and behind.
        entry.data.first().into_iter().chain(entry.data.last()).for_each(prefetch);
        match self.newer(at, *queue) {
            NIL => {}
            next => prefetch(self.node(next)),
        }
        entry.hash
    }

    /// The node of a hash.
    pub(super) fn find(&self, hash: u64) -> Option<u32> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NIL {
            let node = self.node(at);
            if node.entry.hash == hash {
                return Some(at);
            }
            at = node.chain;
        }
        None
    }

    /// Adds an entry, whose hash must not be there yet, as the newest of `queue`.
    pub(super) fn insert(&mut self, entry: DramEntry, queue: Queue) -> u32 {
        let at = self.len as u32;
        let bucket = self.bucket(entry.hash);
        let (chain, dirty) = (self.buckets[bucket], entry.is_dirty());
        self.buckets[bucket] = at;
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let node = Node {
            entry,
            chain,
            links: [UNLINKED; 2],
            queue,
            freq: 0,
            copy: !dirty,
            dirty: false,
            since: 0,
            entered: 0,
        };
        self.blocks[self.len / BLOCK].push(node);
        self.len += 1;
        self.link(at, queue);
        if dirty {
            self.link(at, Queue::Dirty);
        }
        if self.len > self.buckets.len() {
            self.split_bucket();
        }
        at
    }

    /// Takes an entry out. Afterwards another node may have its index.
    pub(super) fn remove(&mut self, at: u32) -> DramEntry {
        self.unlink(at, self.node(at).queue);
        if self.node(at).dirty {
            self.unlink(at, Queue::Dirty);
        }
        let (hash, chain) = (self.node(at).entry.hash, self.node(at).chain);
        self.repoint_chain(hash, at, chain);
        self.len -= 1;
        let last = self.len as u32;
        let moved =
            self.blocks[self.len / BLOCK].pop().expect("the last block holds the last node");
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.pop();
        }
        let removed = if at == last { moved } else { self.settle(last, at, moved) };
        if self.buckets.len() > 1 && self.len * 2 < self.buckets.len() {
            self.merge_bucket();
        }
        removed.entry
    }

    /// Replaces the entry of a node by another of the same hash, which keeps its place in the
    /// queues; returns the old one.
    pub(super) fn replace(&mut self, at: u32, entry: DramEntry) -> DramEntry {
        let (queue, was_dirty, is_dirty) =
            (self.node(at).queue, self.node(at).dirty, entry.is_dirty());
        let (new_cost, old_cost) = (cost(&entry), cost(&self.node(at).entry));
        for queue in [Some(queue), was_dirty.then_some(Queue::Dirty)].into_iter().flatten() {
            let ends = &mut self.queues[queue as usize];
            ends.bytes = ends.bytes + new_cost - old_cost;
        }
        let old = std::mem::replace(&mut self.node_mut(at).entry, entry);
        self.set_dirty(at, is_dirty);
        old
    }

    /// Puts a node on the dirty queue or takes it off, to match its entry's state.
    pub(super) fn set_dirty(&mut self, at: u32, dirty: bool) {
        match (self.node(at).dirty, dirty) {
            (false, true) => self.link(at, Queue::Dirty),
            (true, false) => self.unlink(at, Queue::Dirty),
            _ => {}
        }
    }

    /// When a node joined small or main, whichever it is on.
    pub(super) fn entered(&self, at: u32) -> u32 {
        self.node(at).entered
    }

    /// When a node joined the dirty queue. An update does not change it: what is written again and
    /// again stays as old as it is.
    pub(super) fn dirty_since(&self, at: u32) -> u32 {
        self.node(at).since
    }

    /// Makes a node the newest of small or main.
    pub(super) fn move_to(&mut self, at: u32, queue: Queue) {
        self.unlink(at, self.node(at).queue);
        self.node_mut(at).queue = queue;
        self.link(at, queue);
    }

    /// The next newer node of a queue.
    pub(super) fn newer(&self, at: u32, queue: Queue) -> u32 {
        self.node(at).links[slot(queue)].newer
    }

    fn link(&mut self, at: u32, queue: Queue) {
        let bytes = cost(&self.node(at).entry);
        let older = self.queues[queue as usize].newest;
        self.node_mut(at).links[slot(queue)] = Links { older, newer: NIL };
        let now = self.now;
        let node = self.node_mut(at);
        match queue {
            Queue::Dirty => (node.dirty, node.since) = (true, now),
            Queue::Small | Queue::Main => node.entered = now,
        }
        match older {
            NIL => self.queues[queue as usize].oldest = at,
            older => self.node_mut(older).links[slot(queue)].newer = at,
        }
        let ends = &mut self.queues[queue as usize];
        ends.newest = at;
        ends.len += 1;
        ends.bytes += bytes;
    }

    fn unlink(&mut self, at: u32, queue: Queue) {
        let bytes = cost(&self.node(at).entry);
        let links = std::mem::replace(&mut self.node_mut(at).links[slot(queue)], UNLINKED);
        if queue == Queue::Dirty {
            self.node_mut(at).dirty = false;
        }
        self.repoint_neighbours(links, queue, links.newer, links.older);
        let ends = &mut self.queues[queue as usize];
        ends.len -= 1;
        ends.bytes -= bytes;
    }

    /// Links the neighbours of a node (or the queue's ends) to what replaces it: `newer` for the
    /// older neighbour and `older` for the newer one.
    fn repoint_neighbours(&mut self, links: Links, queue: Queue, newer: u32, older: u32) {
        match links.older {
            NIL => self.queues[queue as usize].oldest = newer,
            neighbour => self.node_mut(neighbour).links[slot(queue)].newer = newer,
        }
        match links.newer {
            NIL => self.queues[queue as usize].newest = older,
            neighbour => self.node_mut(neighbour).links[slot(queue)].older = older,
        }
    }

    /// Puts `moved`, which was at `from`, at `to`, and returns what was there.
    fn settle(&mut self, from: u32, to: u32, moved: Node) -> Node {
        let (links, queue, dirty, hash) = (moved.links, moved.queue, moved.dirty, moved.entry.hash);
        let removed = std::mem::replace(self.node_mut(to), moved);
        self.repoint_neighbours(links[0], queue, to, to);
        if dirty {
            self.repoint_neighbours(links[1], Queue::Dirty, to, to);
        }
        self.repoint_chain(hash, from, to);
        removed
    }

    /// Makes whoever points at `from` in its chain point at `to`.
    fn repoint_chain(&mut self, hash: u64, from: u32, to: u32) {
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == from {
            self.buckets[bucket] = to;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.node(at).chain != from {
            at = self.node(at).chain;
        }
        self.node_mut(at).chain = to;
    }

    /// The bucket of a hash: as many of its bits as cover the table, one fewer where the table has
    /// not grown so far yet.
    fn bucket(&self, hash: u64) -> usize {
        // Neither the lowest bits, which chose the shard, nor the top ones, which are the index's
        // tag.
        let bits = (hash >> 16) as u32 as usize;
        let mask = self.buckets.len().next_power_of_two() - 1;
        match bits & mask {
            bucket if bucket < self.buckets.len() => bucket,
            beyond => beyond & (mask >> 1),
        }
    }

    /// Adds one bucket and moves over what belongs there from the one it parts from.
    fn split_bucket(&mut self) {
        let new = self.buckets.len();
        if self.buckets.capacity() == new {
            // Not doubled: memory follows the number of entries.
            self.buckets.reserve_exact(BLOCK.max(new / 8));
        }
        let old = new - (new + 1).next_power_of_two() / 2;
        self.buckets.push(NIL);
        self.deal_out(old);
        // Buckets are parted in their order, but their nodes lie anywhere.
        let first =
            |ahead| self.buckets.get(old + ahead).filter(|&&at| at != NIL).map(|&at| self.node(at));
        if let Some(node) = first(2 * PARTED_SOON) {
            prefetch(node);
        }
        if let Some(node) = first(PARTED_SOON).filter(|node| node.chain != NIL) {
            prefetch(self.node(node.chain));
        }
    }

    /// Takes one bucket away and gives its nodes to the one it parted from.
    fn merge_bucket(&mut self) {
        let gone = self.buckets.pop().expect("more than one bucket");
        if self.buckets.capacity() > 2 * self.buckets.len() + BLOCK {
            self.buckets.shrink_to(self.buckets.len() + BLOCK);
        }
        self.deal(gone);
    }

    /// Deals the nodes of a bucket out again.
    fn deal_out(&mut self, bucket: usize) {
        let first = std::mem::replace(&mut self.buckets[bucket], NIL);
        self.deal(first);
    }

    fn deal(&mut self, first: u32) {
        let mut at = first;
        while at != NIL {
            let next = self.node(at).chain;
            let bucket = self.bucket(self.node(at).entry.hash);
            self.node_mut(at).chain = std::mem::replace(&mut self.buckets[bucket], at);
            at = next;
        }
    }
}

/// Which of a node's links belong to a queue.
fn slot(queue: Queue) -> usize {
    usize::from(queue == Queue::Dirty)
}
