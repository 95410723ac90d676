//! Deletes. One that answers whether the object was there, or compares a cas, is a
//! [read-modify-write](super::modify). One that says nothing of it reads no flash.

use afterglow_engine::{Ack, Modify};
use afterglow_memcache::{
    Action, Delete, Fetched, LogEntry, Operation, Outcome, PAST, Reply, expiry_of,
};

use super::metering::slow;
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use super::store::FoundBefore;
use crate::metrics::Path;

impl MemcacheSession {
    /// Removes an object whatever it is. The index alone says whether it counts as a hit.
    pub(super) fn delete_blindly<F>(
        &mut self,
        operation: &Operation<'static>,
        modify: Modify<F, FoundBefore>,
    ) -> Performed {
        // An index hit counts as found: another key with the same tag is rare.
        let outcome = match modify {
            Modify::Flash(read) => {
                read.take_back();
                Outcome::Deleted
            }
            Modify::Done(_) | Modify::Later(_) => Outcome::Missing,
        };
        self.reactor_state.counts.count(&operation.action, &outcome);
        let fetched = match outcome {
            Outcome::Deleted => Fetched::Found(0),
            _ => Fetched::Missing,
        };
        let (key, cfd) = (&*operation.key, self.answers.cfd());
        let watchers = &self.reactor_state.front_end.watchers;
        watchers.log(&LogEntry::Fetch { key, fetched, cfd });
        self.remove(&operation.key, |_| {});
        Performed::Done
    }

    /// Removes an object without reading it. The answer is sent once the removal is as durable as
    /// the namespace asks for.
    pub(super) fn remove(&mut self, key: &[u8], answer: impl FnOnce(&mut Vec<u8>) + 'static) {
        match self.store().remove(key) {
            Ack::Done(_) => {
                self.answers.push(answer);
                self.at_once.add(Path::Write);
            }
            Ack::Later(pending) => {
                let slot = self.answers.reserve(key, true, 0);
                let (reactor_state, received) = (self.reactor_state.clone(), self.received);
                let named: Box<[u8]> = match reactor_state.metrics.slow.names_keys() {
                    true => key.into(),
                    false => Box::default(),
                };
                compio::runtime::spawn(async move {
                    pending.await;
                    slot.answer(answer);
                    reactor_state
                        .metrics
                        .took(Path::Write, received.elapsed(), || slow("delete", &named));
                })
                .detach();
            }
        }
    }
}

/// Removes an object that could not be read, and waits until the removal is as durable as the
/// namespace asks for.
pub(super) async fn remove_unseen(reactor_state: &MemcacheReactorState, key: &[u8]) {
    let store = &reactor_state.front_end.store;
    while let Some(backpressure) = store.objects.backpressure() {
        backpressure.await;
    }
    if let Ack::Later(pending) = store.remove(key) {
        pending.await;
    }
}

/// Whether it is to take the object away where it cannot be read. A client that asked for a change
/// does not expect the old value; only a read does, unless it gives an expiry that has passed.
pub(super) fn removes_unseen(action: &Action<'_>, now: u64) -> bool {
    match action {
        Action::Get(get) => get.touch.is_some_and(|ttl| expiry_of(ttl, now) == PAST),
        Action::Store(_) | Action::Delete(_) | Action::Arithmetic(_) => true,
    }
}

/// Whether it removes the object whatever it is, and does not answer with its value.
pub(super) fn is_blind_delete(operation: &Operation<'_>) -> bool {
    let plain = |delete: &Delete| delete.cas.is_none() && !delete.mark_stale && !delete.value_only;
    matches!(operation.reply, Reply::Text { quiet: true })
        && matches!(&operation.action, Action::Delete(delete) if plain(delete))
}
