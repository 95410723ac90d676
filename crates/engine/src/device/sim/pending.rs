//! I/Os in flight on a simulated machine.

use crate::device::Io;

/// An I/O in flight.
pub(super) struct Pending {
    pub(super) queue: u64,
    /// Life of the machine it was submitted in.
    pub(super) life: u64,
    pub(super) io: Io,
    /// Turn it completes in.
    pub(super) due: u64,
    /// For a sync: the writes it covers.
    pub(super) covers: u64,
    pub(super) held: bool,
}

impl Pending {
    /// Whether it is held up still.
    pub(super) fn is_held(&self, life: u64, turn: u64) -> bool {
        self.held && self.life == life && self.due > turn
    }
}
