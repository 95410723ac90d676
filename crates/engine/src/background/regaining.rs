//! Makes objects in DRAM dirty again whose copy on flash was lost, because the segment that it was
//! in was retired.
//!
//! All of DRAM is looked through, a bounded part in each step. Meanwhile such an object counts as
//! copied nowhere: who evicts it, or stops the cache, asks what became of its segment. Reads and
//! puts that see the segment as it was before end under their shard's lock, so before that shard is
//! looked through. Later ones see that it is retired. It is not used again before the end of the
//! pass: its number would be that of another copy.

use super::Background;
use crate::api::DropReason;
use crate::sync::atomic::Ordering;
use crate::tier::{EntryState, NOWHERE};

/// Objects in DRAM looked at in one turn at a shard's lock.
const VISITED: usize = if cfg!(test) { 8 } else { 256 };
/// Turns in a step.
const TURNS: usize = if cfg!(test) { 2 } else { 16 };

impl Background {
    /// Whether some objects may pass for copied that are not.
    pub(super) fn note_regaining(&self) {
        self.core.progress.regaining.store(self.regaining.is_running(), Ordering::Release);
    }

    pub(super) fn step_regaining(&mut self) {
        if !self.regaining.is_running() {
            return;
        }
        for _ in 0..TURNS {
            self.regain();
        }
        // The clean stop copies what is dirty, and ends where nothing is.
        while self.close.is_running() && self.regaining.is_running() {
            self.regain();
        }
        self.note_regaining();
    }

    /// Looks at a part of a shard.
    fn regain(&mut self) {
        if !self.regaining.is_running() {
            return;
        }
        let mut pass = self.regaining.take_pass();
        let Some(slot) = self.core.shards.get(pass.shard) else {
            return self.core.totals.dropped(DropReason::WriteFailed, pass.lost());
        };
        let mut shard = slot.lock();
        let mut found = Vec::new();
        let next = shard.dram.visit(pass.from, VISITED, |object| match object.state {
            EntryState::Clean(at) if at != NOWHERE && pass.seeks(at.segment) => {
                found.push((object.hash, object.version, at.segment));
            }
            _ => {}
        });
        for (hash, version, segment) in found {
            if shard.dram.mark_dirty(hash, version) {
                pass.regained(segment);
            }
        }
        drop(shard);
        (pass.shard, pass.from) = match next {
            Some(from) => (pass.shard, from),
            None => (pass.shard + 1, 0),
        };
        self.regaining.pass = Some(pass);
    }
}
