//! The clean stop: writes the DRAM tier out, seals all segments, takes a checkpoint, and notes in
//! the state file that the stop was clean.

use super::Background;
use super::parts::close::ClosePhase;
use crate::device::DeviceId;
use crate::tier::EntryState;

impl Background {
    pub(super) fn step_close(&mut self, now: u64) {
        self.close.steps += 1;
        match self.close.phase {
            ClosePhase::Open | ClosePhase::Over => {}
            ClosePhase::Settle => {
                if self.load.is_none() && !self.checkpoint.is_running() {
                    self.dirty_all_without_copy();
                    self.try_all_retired();
                    // The device may have recovered long before the pause after its last failure is
                    // over.
                    self.end_pauses(now);
                    self.close.goes_on(now);
                    self.close.go(ClosePhase::Copy);
                }
            }
            ClosePhase::Copy => {
                let left = self.copy_dirty(u64::MAX, true);
                let busy = !self.awaits_only_silent_devices() || self.reclaim.is_some();
                // No segment can be freed any more, or writing fails.
                self.close.given_up = self.close.is_out_of_patience(busy, now) && left;
                if !left || self.close.given_up {
                    self.core.streams.flush(u64::MAX, true);
                    self.close.go(ClosePhase::Write);
                }
            }
            ClosePhase::Write => {
                // A reclaim that was under way may have opened a segment for what it keeps.
                if self.reclaim.is_none() && !self.core.streams.all_sealed() {
                    self.core.streams.flush(u64::MAX, true);
                } else if self.core.streams.outstanding() == 0
                    && self.reclaim.is_none()
                    && self.has_flushed()
                    // One that began before is not the last: it does not know what was sealed
                    // since.
                    && !self.checkpoint.is_running()
                {
                    // A write has failed, and what it was to copy is dirty again.
                    if !self.close.given_up && self.is_dirty() {
                        return self.close.go(ClosePhase::Copy);
                    }
                    self.close.before = self.checkpoint.sequence();
                    self.checkpoint.want();
                    self.close.go(ClosePhase::Checkpoint);
                }
            }
            ClosePhase::Checkpoint => {
                // One step later than asked for, so that it has been started.
                if self.close.steps <= 1 || self.checkpoint.is_running() {
                    return;
                }
                // An earlier release opens the cache where the state file says nothing of a kill
                // log, also not of files to be removed.
                if !self.compaction.stale.is_empty() {
                    return;
                }
                // One that failed, or that came too early to lift the journal's poison: a warm next
                // start is worth another.
                let failed = self.checkpoint.sequence() == self.close.before;
                if (failed || self.core.journal.is_poisoned()) && !self.close.retried {
                    self.close.retried = true;
                    self.checkpoint.want();
                    self.close.go(ClosePhase::Checkpoint);
                } else {
                    self.finish_close();
                }
            }
        }
    }

    fn end_pauses(&mut self, now: u64) {
        for n in 0..self.devices.len() {
            self.devices[n].end_pause(now);
            self.tell_table(DeviceId(n as u16), now);
        }
    }

    fn is_dirty(&self) -> bool {
        self.core.shards.iter().any(|slot| slot.lock().dram.dirty_len() > 0)
    }

    /// Objects whose copy was refused, or is gone, get another chance: now everything that fits is
    /// kept.
    fn dirty_all_without_copy(&self) {
        for slot in &self.core.shards {
            let mut shard = slot.lock();
            let lost: Vec<(u64, u64)> = shard
                .dram
                .iter()
                .filter(
                    |e| matches!(e.state, EntryState::Clean(at) if !shard.is_copied(e.hash, at)),
                )
                .map(|e| (e.hash, e.version))
                .collect();
            for (hash, version) in lost {
                shard.dram.mark_dirty(hash, version);
            }
        }
    }

    fn finish_close(&mut self) {
        let sequence = self.checkpoint.sequence();
        if sequence == self.close.before {
            tracing::warn!(
                "the last checkpoint could not be written: the next start is as after a crash"
            );
        } else {
            let marked = self.core.mark_clean(sequence.unwrap_or(0));
            if let Err(error) = &marked {
                tracing::warn!(%error, "the clean marker could not be written: the next start is as after a crash");
            }
            self.close.clean = marked.unwrap_or(false);
        }
        self.close.go(ClosePhase::Over);
    }
}
