//! How far a clean stop is.

/// Milliseconds without an I/O that succeeds, and with none in flight, after which what cannot be
/// written is given up.
const TIMEOUT: u64 = 5_000;
/// The longest time between two checks that counts. A thread that checks later was kept from
/// running, by a flush or by the machine. That says nothing about the device.
const LOOK: u64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::background) enum ClosePhase {
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
pub(in crate::background) struct Close {
    pub(in crate::background) phase: ClosePhase,
    /// Steps in this phase.
    pub(in crate::background) steps: u32,
    /// When something was last seen to go on, the time that its own thread stood still left out.
    pub(in crate::background) moved: u64,
    /// When it was last looked whether something goes on.
    pub(in crate::background) looked: u64,
    /// What is dirty still cannot be written.
    pub(in crate::background) given_up: bool,
    /// Sequence of the newest checkpoint before the last one.
    pub(in crate::background) before: Option<u64>,
    /// The next start finds the clean marker.
    pub(in crate::background) clean: bool,
    /// A second last checkpoint was asked for.
    pub(in crate::background) retried: bool,
}

impl Close {
    pub(in crate::background) fn start(&mut self) {
        if self.phase == ClosePhase::Open {
            self.phase = ClosePhase::Settle;
        }
    }

    /// Whether only the clean stop copies. Nobody else may then judge whether an object is worth a
    /// copy and drop it, or open a segment behind the last checkpoint.
    pub(in crate::background) fn is_copying(&self) -> bool {
        !matches!(self.phase, ClosePhase::Open | ClosePhase::Settle)
    }

    pub(in crate::background) fn is_running(&self) -> bool {
        !matches!(self.phase, ClosePhase::Open | ClosePhase::Over)
    }

    pub(in crate::background) fn is_over(&self) -> bool {
        self.phase == ClosePhase::Over
    }

    /// From here on nothing may be opened for writing any more.
    pub(in crate::background) fn is_sealing(&self) -> bool {
        matches!(self.phase, ClosePhase::Write | ClosePhase::Checkpoint | ClosePhase::Over)
    }

    /// An I/O has succeeded.
    pub(in crate::background) fn goes_on(&mut self, now: u64) {
        (self.moved, self.looked) = (now, now);
    }

    /// Whether nothing has gone on for long. One that is in flight (`busy`) may still succeed; that
    /// many fail is no progress.
    pub(in crate::background) fn is_out_of_patience(&mut self, busy: bool, now: u64) -> bool {
        let stood_still = now.saturating_sub(self.looked).saturating_sub(LOOK);
        (self.moved, self.looked) = (self.moved + stood_still, now);
        !busy && now.saturating_sub(self.moved) > TIMEOUT
    }

    pub(in crate::background) fn go(&mut self, phase: ClosePhase) {
        (self.phase, self.steps) = (phase, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every half a second from `from` to `to`; what the last look says.
    fn look(close: &mut Close, busy: bool, from: u64, to: u64) -> bool {
        (from..=to).step_by(500).map(|now| close.is_out_of_patience(busy, now)).last().unwrap()
    }

    #[test]
    fn patience_is_for_standing_still_only() {
        let mut close = Close::default();
        close.goes_on(100);
        assert!(!look(&mut close, false, 100, 100 + TIMEOUT));
        // However often it is looked at.
        for _ in 0..10_000 {
            assert!(!close.is_out_of_patience(false, 100 + TIMEOUT));
        }
        assert!(!close.is_out_of_patience(true, 101 + TIMEOUT), "what is in flight may succeed");
        assert!(close.is_out_of_patience(false, 101 + TIMEOUT));
        close.goes_on(101 + TIMEOUT);
        assert!(!look(&mut close, false, 101 + TIMEOUT, 101 + 2 * TIMEOUT));
    }

    #[test]
    fn a_thread_that_was_kept_from_running_gives_nothing_up() {
        let mut close = Close::default();
        close.goes_on(100);
        assert!(!close.is_out_of_patience(false, 60_000), "nobody has asked the device meanwhile");
        assert!(look(&mut close, false, 60_000, 60_000 + 2 * TIMEOUT), "but it ends");
    }
}
