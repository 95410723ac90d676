//! Stores that do not read the older object.

use afterglow_engine::{Ack, PutOutcome};
use afterglow_memcache::{Action, Mode, NewCas, NewItem, Operation, Outcome, Reply, expiry_of};

use super::budget::FREE;
use super::metering::slow;
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use crate::hotkeys::Seen;
use crate::metrics::Path;

impl MemcacheSession {
    /// A store of the mode `set`.
    pub(super) fn set(&mut self, operation: &Operation<'_>) -> Performed {
        let Action::Store(store) = &operation.action else { unreachable!("the caller looked") };
        if self.answers.conflicts(&operation.key, true) {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.put_backpressure() {
            return Performed::Full(backpressure);
        }
        let shared = &self.reactor_state.front_end.store;
        let new = NewItem {
            value: store.new_value(),
            flags: store.flags,
            expiry: expiry_of(store.ttl, shared.now()),
            cas: NewCas::from(store.new_cas),
            stale: false,
            token_sent: false,
            binary_key: store.binary_key,
        };
        let cas = new.cas;
        let mut scratch = self.reactor_state.scratch.take();
        let ack = shared.put(&operation.key, &new, &mut scratch);
        if scratch.capacity() <= FREE {
            self.reactor_state.scratch.set(scratch);
        }
        let size = store.len();
        match ack {
            Ack::Done(put) => {
                let (reactor_state, told) = (&self.reactor_state, (cas, size, self.answers.cfd()));
                self.answers.push(|out| answer_set(reactor_state, operation, put, told, out));
                self.at_once.add(Path::Write);
            }
            Ack::Later(pending) => {
                // Until it is answered its value is held.
                let slot = self.answers.reserve(&operation.key, true, store.value.len());
                let (reactor_state, operation) =
                    (self.reactor_state.clone(), operation.clone().into_owned());
                let received = self.received;
                compio::runtime::spawn(async move {
                    let put = pending.await;
                    let told = (cas, size, slot.cfd());
                    slot.answer(|out| answer_set(&reactor_state, &operation, put, told, out));
                    reactor_state
                        .metrics
                        .took(Path::Write, received.elapsed(), || slow("store", &operation.key));
                })
                .detach();
            }
        }
        Performed::Done
    }

    /// A store that is refused. The object that it would have replaced is removed.
    pub(super) fn too_large(
        &mut self,
        key: &[u8],
        (mode, remove): (Mode, bool),
        reply: Reply<'_>,
    ) -> Performed {
        if self.answers.conflicts(key, true) {
            return Performed::Blocked;
        }
        if remove && let Some(backpressure) = self.store().objects.backpressure() {
            return Performed::Full(backpressure);
        }
        self.reactor_state.counts.store_too_large.inc();
        self.reactor_state.front_end.log_too_large(key, mode, self.answers.cfd());
        let (named, reply) = (Box::<[u8]>::from(key), reply.into_owned());
        let answer =
            move |out: &mut Vec<u8>| reply.outcome(&named, &Outcome::TooLarge, None, 0, out);
        match remove {
            true => self.remove(key, answer),
            false => {
                self.answers.push(answer);
                self.at_once.add(Path::Write);
            }
        }
        Performed::Done
    }
}

/// Answers a store that did not read the older object.
fn answer_set(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
    put: PutOutcome,
    (cas, size, cfd): (NewCas, usize, i32),
    out: &mut Vec<u8>,
) {
    let store = &reactor_state.front_end.store;
    let outcome = store.stored(&operation.key, put, Outcome::Stored { cas: 0, size }, cas);
    reactor_state.counts.count(&operation.action, &outcome);
    if let Action::Store(store) = &operation.action {
        reactor_state.front_end.log_store(&operation.key, store, None, &outcome, cfd);
    }
    reactor_state.metrics.hot.see(|| Seen::Key(&operation.key));
    operation.reply.outcome(&operation.key, &outcome, Some(Mode::Set), 0, out);
}
