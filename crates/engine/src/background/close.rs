//! The clean stop: the DRAM tier is written out, everything is sealed, a checkpoint taken, and the state file says so.

use super::Background;
use crate::tier::EntryState;

/// Milliseconds without an I/O that succeeds, and with none in flight, after which what cannot be written is given up.
const TIMEOUT: u64 = 5_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Open,
    /// Loading, reclaim or a checkpoint is still under way.
    Settle,
    /// The DRAM tier is being copied to flash.
    Copy,
    /// Chunks and footers are being written.
    Write,
    /// The last checkpoint is being written.
    Checkpoint,
    Over,
}

/// How far a clean stop is.
#[derive(Debug, Default)]
pub struct Close {
    phase: Phase,
    /// Steps in this phase.
    steps: u32,
    /// When something was last seen to go on.
    moved: u64,
    /// What is dirty still cannot be written.
    given_up: bool,
    /// Sequence of the newest checkpoint before the last one.
    before: Option<u64>,
    clean: bool,
    /// A second last checkpoint was asked for.
    retried: bool,
}

impl Close {
    pub(super) fn start(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Settle;
        }
    }

    /// Whether copying is the clean stop's own: nobody else may ask whether an object is worth it, and give it up, nor open a
    /// segment behind the last checkpoint.
    pub(super) fn is_copying(&self) -> bool {
        !matches!(self.phase, Phase::Open | Phase::Settle)
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Open | Phase::Over)
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// From here on nothing may be opened for writing any more.
    pub(super) fn is_sealing(&self) -> bool {
        matches!(self.phase, Phase::Write | Phase::Checkpoint | Phase::Over)
    }

    /// An I/O has succeeded.
    pub(super) fn goes_on(&mut self, now: u64) {
        self.moved = now;
    }

    /// Whether nothing has gone on for long. One that is in flight (`busy`) may still succeed; that many fail is no progress.
    fn is_out_of_patience(&self, busy: bool, now: u64) -> bool {
        !busy && now.saturating_sub(self.moved) > TIMEOUT
    }

    fn go(&mut self, phase: Phase) {
        (self.phase, self.steps) = (phase, 0);
    }
}

impl Background {
    pub(super) fn step_close(&mut self, now: u64) {
        self.close.steps += 1;
        match self.close.phase {
            Phase::Open | Phase::Over => {}
            Phase::Settle => {
                if self.load.is_none() && !self.checkpoint.is_running() {
                    self.dirty_all_without_copy();
                    self.try_all_retired();
                    // The device may have recovered long before the pause after its last failure is over.
                    self.pause = 0;
                    self.core.streams.pause_until(now);
                    self.close.goes_on(now);
                    self.close.go(Phase::Copy);
                }
            }
            Phase::Copy => {
                let left = self.copy_dirty(u64::MAX, true);
                let busy = !self.in_flight.is_empty() || self.reclaim.is_some();
                // No segment can be freed any more, or writing fails.
                self.close.given_up = left && self.close.is_out_of_patience(busy, now);
                if !left || self.close.given_up {
                    self.core.streams.flush(u64::MAX, true);
                    self.close.go(Phase::Write);
                }
            }
            Phase::Write => {
                // A reclaim that was under way may have opened a segment for what it keeps.
                if self.reclaim.is_none() && !self.core.streams.all_sealed() {
                    self.core.streams.flush(u64::MAX, true);
                } else if self.core.streams.outstanding() == 0
                    && self.reclaim.is_none()
                    && self.has_flushed()
                    // One that began before is not the last: it does not know what was sealed since.
                    && !self.checkpoint.is_running()
                {
                    // A write has failed, and what it was to copy is dirty again.
                    if !self.close.given_up && self.is_dirty() {
                        return self.close.go(Phase::Copy);
                    }
                    self.close.before = self.checkpoint.sequence();
                    self.checkpoint.want();
                    self.close.go(Phase::Checkpoint);
                }
            }
            Phase::Checkpoint => {
                // One step later than asked for, so that it has been started.
                if self.close.steps <= 1 || self.checkpoint.is_running() {
                    return;
                }
                // One that failed, or that came too early to lift the journal's poison: a warm next start is worth another.
                let failed = self.checkpoint.sequence() == self.close.before;
                if (failed || self.core.journal.is_poisoned()) && !self.close.retried {
                    self.close.retried = true;
                    self.checkpoint.want();
                    self.close.go(Phase::Checkpoint);
                } else {
                    self.finish_close();
                }
            }
        }
    }

    fn is_dirty(&self) -> bool {
        self.core.shards.iter().any(|slot| slot.lock().dram.dirty_len() > 0)
    }

    /// Objects whose copy was refused, or is gone, get another chance: now everything that fits is kept.
    fn dirty_all_without_copy(&self) {
        for slot in &self.core.shards {
            let mut shard = slot.lock();
            let lost: Vec<(u64, u64)> = shard
                .dram
                .iter()
                .filter(|e| matches!(e.state, EntryState::Clean(at) if !shard.is_copied(e.hash, at)))
                .map(|e| (e.hash, e.version))
                .collect();
            for (hash, version) in lost {
                shard.dram.mark_dirty(hash, version);
            }
        }
    }

    fn finish_close(&mut self) {
        let sequence = self.checkpoint.sequence();
        self.close.clean = sequence != self.close.before;
        if self.close.clean {
            let marked = self.core.mark_clean(sequence.unwrap_or(0));
            if let Err(error) = marked {
                tracing::warn!(%error, "the clean marker could not be written: the next start is as after a crash");
            }
        } else {
            tracing::warn!("the last checkpoint could not be written: the next start is as after a crash");
        }
        self.close.go(Phase::Over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_for_standing_still_only() {
        let mut close = Close::default();
        close.goes_on(100);
        assert!(!close.is_out_of_patience(false, 100 + TIMEOUT));
        assert!(close.is_out_of_patience(false, 101 + TIMEOUT));
        assert!(!close.is_out_of_patience(true, 101 + TIMEOUT), "what is in flight may succeed");
        // However often it is looked at.
        for _ in 0..10_000 {
            assert!(!close.is_out_of_patience(false, 100 + TIMEOUT));
        }
        close.goes_on(101 + TIMEOUT);
        assert!(!close.is_out_of_patience(false, 101 + 2 * TIMEOUT));
    }
}
