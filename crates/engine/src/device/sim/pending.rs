//! I/Os in flight on a simulated machine.

use crate::device::{Io, IoKind};

/// An I/O in flight.
pub(super) struct PendingIo {
    pub(super) queue: u64,
    /// Life of the machine it was submitted in.
    pub(super) life: u64,
    pub(super) io: Io,
    /// Turn it completes in.
    pub(super) due: u64,
    /// For a sync: the writes it covers.
    pub(super) covers: u64,
    pub(super) held: bool,
    /// It takes many times as long as others.
    pub(super) slow: bool,
}

impl PendingIo {
    #[cfg(test)]
    pub(super) fn is_flush(&self) -> bool {
        matches!(self.io.kind, IoKind::Sync)
    }

    /// Whether it is a write that takes long, and is not over.
    pub(super) fn is_slow_write(&self, life: u64, turn: u64) -> bool {
        self.slow
            && matches!(self.io.kind, IoKind::Write { .. })
            && self.life == life
            && self.due > turn
    }

    /// Whether it is held up still.
    pub(super) fn is_held(&self, life: u64, turn: u64) -> bool {
        self.held && self.life == life && self.due > turn
    }
}
