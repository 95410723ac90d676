//! The clean stop: the DRAM tier is written out, everything is sealed, a checkpoint taken, and the state file says so.

use super::Driver;
use crate::dram::EntryState;

/// Steps without progress after which what cannot be written is given up.
const PATIENCE: u32 = 1_000;

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
    waited: u32,
    /// Record bytes written when something was last seen to go on.
    written: u64,
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

    /// Whether nothing has gone on for long: no I/O in flight (`busy`), and of `written` record bytes none new.
    fn is_out_of_patience(&mut self, busy: bool, written: u64) -> bool {
        if busy || written != self.written {
            (self.written, self.waited) = (written, 0);
        }
        self.waited > PATIENCE
    }

    fn go(&mut self, phase: Phase) {
        (self.phase, self.waited) = (phase, 0);
    }
}

impl Driver {
    pub(super) fn step_close(&mut self, _now: u64) {
        self.close.waited += 1;
        match self.close.phase {
            Phase::Open | Phase::Over => {}
            Phase::Settle => {
                if self.load.is_none() && !self.checkpoint.is_running() {
                    self.dirty_all_without_copy();
                    self.close.go(Phase::Copy);
                }
            }
            Phase::Copy => {
                let left = self.copy_dirty(u64::MAX, true);
                let busy = !self.in_flight.is_empty() || self.reclaim.is_some();
                let stuck = self.close.is_out_of_patience(busy, self.core.totals.record_bytes.get());
                // Nothing in flight for long and still no room: no segment can be freed any more, or writing fails.
                if !left || stuck {
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
                    self.close.before = self.checkpoint.sequence();
                    self.checkpoint.want();
                    self.close.go(Phase::Checkpoint);
                }
            }
            Phase::Checkpoint => {
                // One step later than asked for, so that it has been started.
                if self.close.waited <= 1 || self.checkpoint.is_running() {
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

    /// Objects whose copy was refused, or is gone, get another chance: now everything that fits is kept.
    fn dirty_all_without_copy(&self) {
        for slot in &self.core.shards {
            let mut shard = slot.lock();
            let lost: Vec<(u64, u64)> = shard
                .dram
                .iter()
                .filter(|e| matches!(e.state, EntryState::Clean(at) if !shard.is_at(e.hash, at)))
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
        // Writes that end between two steps are never seen in flight.
        for written in 1..=u64::from(3 * PATIENCE) {
            close.waited += 1;
            assert!(!close.is_out_of_patience(false, written));
        }
        close.waited += PATIENCE + 1;
        assert!(close.is_out_of_patience(false, u64::from(3 * PATIENCE)));
        assert!(!close.is_out_of_patience(true, u64::from(3 * PATIENCE)));
    }
}
