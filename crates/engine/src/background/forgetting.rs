//! Forgets removals of groups that have nothing left to remove, so that a namespace remembers those
//! of one or two laps over flash.
//!
//! A round goes over removals below a version:
//!
//! 1. Each shard's lock is taken, and what they have removed is taken out of DRAM. From then on no
//!    copy of such an object is made: what copies a record from flash, to DRAM or to another
//!    segment, asks under that lock whether its group was removed.
//! 2. So no segment that is opened from now on has such an object. Once all segments that were
//!    opened before are free, no object is left that the removals could remove.
//! 3. They are forgotten.
//!
//! Who reads a record while its segment becomes free asks for the removal first, and then whether
//! the segment is still in use: until then the removal is remembered.
//!
//! A checkpoint has the removals and the segments of one moment, since both change here or under
//! locks that it takes. Those that it lacks had nothing left in its segments. The journal has those
//! that come after it. So a crash brings nothing back.

use super::Background;
use super::parts::forgetting::Round;
use crate::shard::ShardSlot;

/// Objects in DRAM looked at in one turn at a shard's lock.
const VISITED: usize = 256;
/// Turns in a step.
const TURNS: usize = 16;

impl Background {
    pub(super) fn step_forgetting(&mut self) {
        // While the index loads, what segments hold is not known.
        if self.load.is_some() || self.close.is_running() {
            return;
        }
        let turns = match self.forgetting.round {
            Some(Round::Flash { .. }) => 1,
            _ => TURNS,
        };
        for _ in 0..turns {
            self.forgetting.round = match self.forgetting.round {
                None if self.remembers_many() => Some(self.begin_round()),
                None => return,
                Some(Round::Dram { below, shard, from }) => Some(self.look_at(below, shard, from)),
                Some(Round::Flash { below, opened }) => self.look_at_flash(below, opened),
            };
        }
    }

    fn remembers_many(&self) -> bool {
        let namespaces = self.core.namespaces.list.read();
        namespaces.iter().any(|ns| ns.removed_groups() > self.forgetting.above)
    }

    fn begin_round(&self) -> Round {
        let below = self.core.versions.peek();
        // A removal below it is in force.
        drop(self.core.namespaces.removing.write());
        Round::Dram { below, shard: 0, from: 0 }
    }

    /// Takes objects of removed groups out of a part of a shard.
    fn look_at(&self, below: u64, shard: usize, from: u64) -> Round {
        let core = &self.core;
        let Some(slot) = core.shards.get(shard) else {
            // Open segments would be waited for until they are full.
            core.streams.seal_opened_before(core.journal.head());
            return Round::Flash { below, opened: core.versions.peek() };
        };
        match self.take_removed(slot, from) {
            Some(from) => Round::Dram { below, shard, from },
            None => Round::Dram { below, shard: shard + 1, from: 0 },
        }
    }

    /// Takes objects of removed groups out of DRAM; where the next part begins.
    fn take_removed(&self, slot: &ShardSlot, from: u64) -> Option<u64> {
        let namespaces = self.core.namespaces.list.read().clone();
        let mut removed = Vec::new();
        let mut shard = slot.lock();
        let next = shard.dram.visit(from, VISITED, |object| {
            let ns = namespaces.get(usize::from(object.ns));
            if object.group != 0 && ns.is_some_and(|ns| ns.is_killed(&object.meta())) {
                removed.push((object.hash, object.ns, object.key().to_vec()));
            }
        });
        for (hash, ns, key) in removed {
            coverage_mark!(RemovedInMemory);
            shard.dram.remove(hash, ns, &key);
        }
        next
    }

    /// Forgets the removals if no segment is left that was opened before.
    fn look_at_flash(&self, below: u64, opened: u64) -> Option<Round> {
        let core = &self.core;
        if core.table.lowest_generation() < opened {
            return Some(Round::Flash { below, opened });
        }
        // Who has seen one of these segments in use, under its shard's lock, is done with it.
        core.shards.iter().for_each(|slot| drop(slot.lock()));
        for ns in core.namespaces.list.read().iter() {
            ns.forget_groups(below);
        }
        coverage_mark!(GroupsForgotten);
        None
    }
}
