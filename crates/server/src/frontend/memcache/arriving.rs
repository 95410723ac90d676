//! A value on its way in, as far as it has come.

use afterglow_engine::{Pending, PutOutcome};
use afterglow_memcache::{Action, Operation};

use super::head::Head;

/// A value on its way in.
pub struct Receiving {
    /// The store, still without a value.
    pub operation: Operation<'static>,
    /// What its parts are named by.
    pub head: Head,
    /// The part that comes next.
    pub next: u32,
    /// How often flash has not taken it.
    pub tries: u32,
    /// A part was not stored: the others are dropped.
    pub failed: bool,
    /// Parts that are not acknowledged yet.
    pub pending: Vec<Pending<PutOutcome>>,
}

impl Receiving {
    /// The store of what has come.
    pub fn stores(&self) -> Operation<'static> {
        let mut operation = self.operation.clone();
        let Action::Store(store) = &mut operation.action else { unreachable!("only stores come") };
        store.value = self.head.encode().to_vec().into();
        store.in_parts = Some(self.head.value_len());
        operation
    }

    /// Waits until all parts are acknowledged; whether they are stored.
    pub async fn all_stored(self) -> bool {
        let mut stored = !self.failed;
        for pending in self.pending {
            stored &= matches!(pending.await, PutOutcome::Stored { .. });
        }
        stored
    }
}
