//! What leaves the DRAM tier next, by one of two policies.
//!
//! *S3-FIFO* judges an object by its hits while it is in small and by its return soon after. That
//! follows recency. But what belongs to a loop or a scan longer than the ghost leaves small before
//! it is asked for again: nothing of it is ever hit. The *contest* is W-TinyLFU's admission
//! (Einziger et al., "TinyLFU", 2017) over the same two queues, with 1 % for small. The oldest of
//! small replaces the oldest of main if it was asked for more often, and leaves otherwise:
//!
//! ```text
//!              S3-FIFO                                     contest
//! small ──▶ two hits: main, else evicted      small ──▶ two hits, or more popular than the oldest
//! main  ──▶ hits left: round again,                     of main: main, and that one is evicted;
//!           else evicted                                else evicted itself
//! ghost ──▶ left small lately: main           main  ──▶ hits left: round again
//! ```
//!
//! One request more seldom decides. In a loop the candidate has just been counted once more than a
//! holder whose turn is still to come. So each round would replace all of main before it is hit.
//!
//! Which of the two is followed is tried out: see `trial`, which also counts requests. A change of
//! policy moves no object. The queues get their new shares as objects come and go.

use super::dram::{DramTier, EvictionPolicy};
use super::evicted::Victims;
use super::fifo::Queue;

/// Hits in small that earn a place in main.
const PROMOTE_AT: u8 = 2;
/// Share of the budget for small in a contest, in percent.
const WINDOW: usize = 1;
/// A candidate that was asked for just once more than the holder wins one time in so many.
const ONE_MORE: u32 = 16;

impl DramTier {
    /// The queue whose oldest goes next, or is judged next, where an object is to come that takes
    /// `incoming` bytes.
    pub(super) fn next_queue(&self, incoming: usize) -> Queue {
        if self.arena.queue_len(Queue::Small) == 0 {
            return Queue::Main;
        }
        let small = self.arena.queue_bytes(Queue::Small);
        let over = match self.policy {
            EvictionPolicy::S3Fifo => small > self.small_target,
            EvictionPolicy::Contest => small + incoming > self.window(),
        };
        if over || self.arena.queue_len(Queue::Main) == 0 { Queue::Small } else { Queue::Main }
    }

    /// Bytes that small has in a contest.
    fn window(&self) -> usize {
        self.budget / 100 * WINDOW
    }

    /// Takes out the next victim, where an object is to come that takes `incoming` bytes. The tier
    /// is not empty.
    pub(super) fn evict(&mut self, incoming: usize, victims: &mut impl Victims) {
        // Ends: every turn evicts, or small has one object less.
        loop {
            if self.next_queue(incoming) == Queue::Main {
                let at = self.oldest_unhit().expect("main has objects");
                return self.evict_one(at, Queue::Main, victims);
            }
            let at = self.arena.oldest(Queue::Small).expect("small has objects");
            let freq = self.arena.header(at).freq();
            if self.arena.header(at).is_copy() {
                self.copies.left_small(freq > 0);
            }
            match self.policy {
                EvictionPolicy::S3Fifo if freq >= PROMOTE_AT => self.move_to_main(at),
                EvictionPolicy::S3Fifo => return self.evict_one(at, Queue::Small, victims),
                EvictionPolicy::Contest if self.main_lacks(at) => self.move_to_main(at),
                EvictionPolicy::Contest => return self.contest(at, victims),
            }
        }
    }

    /// The oldest of small, or that of main which nobody asked for lately: one of them is evicted.
    fn contest(&mut self, candidate: u32, victims: &mut impl Victims) {
        let Some(holder) = self.oldest_unhit() else {
            return self.evict_one(candidate, Queue::Small, victims);
        };
        let asked = |at: u32| victims.popularity(self.arena.object(at).hash);
        let (more, less) = (asked(candidate), asked(holder));
        let wins = self.arena.header(candidate).freq() >= PROMOTE_AT
            || more > less + 1
            || (more == less + 1 && self.draw());
        if wins {
            self.move_to_main(candidate);
            self.evict_one(holder, Queue::Main, victims);
        } else {
            self.evict_one(candidate, Queue::Small, victims);
        }
    }

    /// True one time in [`ONE_MORE`], by a linear congruential generator.
    fn draw(&mut self) -> bool {
        self.draws = self.draws.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.draws >> 16).is_multiple_of(ONE_MORE)
    }

    /// Whether small keeps its share without this one of its objects, so that main lacks bytes.
    fn main_lacks(&self, at: u32) -> bool {
        self.arena.queue_bytes(Queue::Small) - self.arena.cost(at) > self.window()
    }

    /// The oldest of main without hits left; all before it go round again, with one hit less.
    pub(super) fn oldest_unhit(&mut self) -> Option<u32> {
        loop {
            let at = self.arena.oldest(Queue::Main)?;
            let header = self.arena.header_mut(at);
            let freq = header.freq();
            if freq == 0 {
                return Some(at);
            }
            header.set_freq(freq - 1);
            self.arena.move_to(at, Queue::Main);
        }
    }

    fn move_to_main(&mut self, at: u32) {
        self.arena.header_mut(at).set_freq(0);
        self.arena.move_to(at, Queue::Main);
    }

    fn evict_one(&mut self, at: u32, queue: Queue, victims: &mut impl Victims) {
        if queue == Queue::Small {
            self.copies.evicted();
        }
        let object = self.arena.object(at);
        let hash = object.hash;
        victims.take(&object);
        self.arena.remove(at);
        self.ghost.remember(hash, queue);
    }
}
