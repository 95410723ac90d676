//! The turn to be answered with a dump: one client has it at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody has the turn, and whether others want it.
#[derive(Debug, Default)]
pub(super) struct DumpTurn {
    taken: AtomicBool,
    wanted: AtomicBool,
}

impl DumpTurn {
    /// Whether somebody was told that another one has the turn, since that one has it.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}

/// The turn itself; the next client may have it when it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<DumpTurn>);

impl Turn {
    /// Takes it. Where somebody has it, it is known from now on that another one wants it.
    pub(super) fn take(turn: &Arc<DumpTurn>) -> Option<Self> {
        let free = !turn.taken.swap(true, Ordering::AcqRel);
        turn.wanted.store(!free, Ordering::Release);
        free.then(|| Turn(turn.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
