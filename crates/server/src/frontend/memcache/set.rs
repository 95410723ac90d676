//! Stores that do not read the older object.

use std::rc::Rc;
use std::time::Instant;

use afterglow_engine::{Ack, PutOutcome};
use afterglow_memcache::{Action, Mode, NewCas, NewItem, Operation, Outcome, Reply, expiry_of};

use super::answers::Slot;
use super::budget::FREE;
use super::metering::slow;
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use crate::hotkeys::Seen;
use crate::metrics::Path;

impl MemcacheSession {
    /// A store of the mode `set`.
    pub(super) fn set(&mut self, operation: &Operation<'_>) -> Performed {
        if self.answers.conflicts(&operation.key, true) {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.put_backpressure() {
            return Performed::Full(backpressure);
        }
        let (ack, told) = submit(&self.reactor_state, operation);
        match ack {
            Ack::Done(put) => {
                let (reactor_state, cfd) = (&self.reactor_state, self.answers.cfd());
                let answer =
                    |out: &mut Vec<u8>| answer_set(reactor_state, operation, put, told, cfd, out);
                self.answers.push(answer);
                self.at_once.add(Path::Write);
            }
            later @ Ack::Later(_) => {
                // The cache has the value: it is not held for the answer, however long that takes.
                let slot = self.answers.reserve(&operation.key, true, 0);
                let (reactor_state, operation) =
                    (self.reactor_state.clone(), operation.without_value());
                let received = self.received;
                compio::runtime::spawn(async move {
                    finish(reactor_state, &operation, later, told, slot, received).await;
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

/// What is told of a store: its token, and the length of the value.
pub(super) type Told = (NewCas, usize);

/// Puts what a store of the mode `set` stores.
pub(super) fn submit(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
) -> (Ack<PutOutcome>, Told) {
    let Action::Store(store) = &operation.action else { unreachable!("the caller looked") };
    let shared = &reactor_state.front_end.store;
    let new = NewItem {
        value: store.new_value(),
        flags: store.flags,
        expiry: expiry_of(store.ttl, shared.now()),
        cas: NewCas::from(store.new_cas),
        stale: false,
        token_sent: false,
        binary_key: store.binary_key,
    };
    let mut scratch = reactor_state.scratch.take();
    let ack = shared.put(&operation.key, &new, &mut scratch);
    if scratch.capacity() <= FREE {
        reactor_state.scratch.set(scratch);
    }
    (ack, (new.cas, store.len()))
}

/// Waits for the acknowledgement of such a put and answers it.
pub(super) async fn finish(
    reactor_state: Rc<MemcacheReactorState>,
    operation: &Operation<'_>,
    ack: Ack<PutOutcome>,
    told: Told,
    slot: Slot,
    received: Instant,
) {
    let put = match ack {
        Ack::Done(put) => put,
        Ack::Later(pending) => pending.await,
    };
    let cfd = slot.cfd();
    slot.answer(|out| answer_set(&reactor_state, operation, put, told, cfd, out));
    let took = received.elapsed();
    reactor_state.metrics.took(Path::Write, took, || slow("store", &operation.key));
}

/// Answers a store that did not read the older object.
fn answer_set(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
    put: PutOutcome,
    (cas, size): Told,
    cfd: i32,
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
