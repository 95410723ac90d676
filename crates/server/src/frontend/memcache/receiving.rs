//! Stores of values that come in parts. Each part is put as it comes, so that a connection holds
//! one of them at most. A client that goes before the end leaves parts that no head names.
//!
//! The head is put once all parts are acknowledged, and the client is answered once the head is.

use std::rc::Rc;
use std::time::Instant;

use afterglow_engine::{Ack, PutOutcome};
use afterglow_memcache::{Action, Mode, Operation, Outcome, bad_chunk};

use super::answers::Slot;
use super::arriving::Receiving;
use super::delete::remove_unseen;
use super::driving::begin;
use super::metering::slow;
use super::modify::change;
use super::parts::{PartPut, REFUSED_PAUSE, REFUSED_TRIES, may_come_again};
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use super::set::{finish, submit};
use super::store::mode;
use crate::metrics::Path;

impl MemcacheSession {
    /// Begins a store of a value of `len` bytes that comes in parts.
    pub fn begin_parts(&mut self, operation: Operation<'_>, len: usize) -> Performed {
        if !self.answers.has_room(0) {
            return Performed::Blocked;
        }
        self.receiving = Some(Receiving {
            operation: operation.into_owned(),
            head: self.store().parts.head(len),
            next: 0,
            tries: 0,
            failed: false,
            pending: Vec::new(),
        });
        Performed::Done
    }

    /// Puts the next part. It may have to come again.
    pub fn part(&mut self, bytes: &[u8]) -> Performed {
        let parts = &self.reactor_state.front_end.store.parts;
        let receiving = self.receiving.as_mut().expect("a part comes after a beginning");
        if receiving.failed {
            return Performed::Done;
        }
        if receiving.tries == 0
            && let Some(backpressure) = parts.backpressure()
        {
            receiving.tries = 1;
            return Performed::Full(backpressure);
        }
        match parts.put(&receiving.head, receiving.next, bytes) {
            PartPut::Stored => {}
            PartPut::Later(pending) => receiving.pending.push(pending),
            PartPut::NotNow if receiving.tries < REFUSED_TRIES => {
                receiving.tries += 1;
                return Performed::Refused;
            }
            PartPut::NotNow | PartPut::Refused => receiving.failed = true,
        }
        (receiving.next, receiving.tries) = (receiving.next + 1, 0);
        Performed::Done
    }

    /// Ends a value of parts, all of which were put; `whole` says whether its line ends where it
    /// should.
    pub fn end_parts(&mut self, whole: bool) -> Performed {
        let receiving = self.receiving.as_ref().expect("an end comes after a beginning");
        if !whole {
            let text = bad_chunk(&receiving.operation.reply);
            self.answers.push(|out| out.extend_from_slice(text.as_bytes()));
            self.at_once.add(Path::Local);
            self.receiving = None;
            return Performed::Done;
        }
        if self.answers.conflicts(&receiving.operation.key, true) {
            return Performed::Blocked;
        }
        let receiving = self.receiving.take().expect("looked at above");
        self.count_meta(&receiving.operation.reply);
        let slot = self.answers.reserve(&receiving.operation.key, true, 0);
        let (reactor_state, received) = (self.reactor_state.clone(), self.received);
        compio::runtime::spawn(async move {
            let operation = Rc::new(receiving.stores());
            if receiving.all_stored().await {
                if let Some(backpressure) = reactor_state.front_end.store.objects.put_backpressure()
                {
                    backpressure.await;
                }
                if matches!(&operation.action, Action::Store(store) if store.mode == Mode::Set) {
                    return store_later(reactor_state, operation, slot, received).await;
                }
                let modify = begin(&reactor_state, &operation, |_| true);
                return change(reactor_state, operation, modify, slot, received).await;
            }
            // As any refused store, it removes what was there.
            remove_unseen(&reactor_state, &operation.key).await;
            let cfd = slot.cfd();
            slot.answer(|out| refuse(&reactor_state, &operation, cfd, out));
            reactor_state
                .metrics
                .took(Path::Write, received.elapsed(), || slow("store", &operation.key));
        })
        .detach();
        Performed::Done
    }
}

/// Puts the head of a value whose parts are there, as a `set` does that reads nothing. Where flash
/// does not take it, it comes again, as parts do.
async fn store_later(
    reactor_state: Rc<MemcacheReactorState>,
    operation: Rc<Operation<'static>>,
    slot: Slot,
    received: Instant,
) {
    let (mut ack, mut told) = submit(&reactor_state, &operation);
    for _ in 0..REFUSED_TRIES {
        let comes_again =
            matches!(ack, Ack::Done(PutOutcome::Refused(reason)) if may_come_again(reason));
        if !comes_again {
            break;
        }
        compio::time::sleep(REFUSED_PAUSE).await;
        (ack, told) = submit(&reactor_state, &operation);
    }
    finish(reactor_state, &operation, ack, told, slot, received).await;
}

/// Answers a store whose parts were not taken.
fn refuse(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
    cfd: i32,
    out: &mut Vec<u8>,
) {
    let outcome = Outcome::Failed;
    reactor_state.counts.count(&operation.action, &outcome);
    if let Action::Store(store) = &operation.action {
        reactor_state.front_end.log_store(&operation.key, store, None, &outcome, cfd);
    }
    operation.reply.outcome(&operation.key, &outcome, mode(&operation.action), 0, out);
}
