//! Operations whose acknowledgement waits for a device: what their callers hold, and what the background work knows of them.
//!
//! A waiting operation is a [`Waiter`] in the [`Waiters`] of the cache until somebody takes it out: the background work when
//! its record is on flash (and flushed, where that was asked for), or whoever finds its deadline passed. Taking it out is
//! what decides, so that each has one outcome. Deadlines are of one length: the oldest waiter has the first.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::api::RefuseReason;
use crate::core::Core;
use crate::index::Location;

/// How long a device may take for a write that somebody waits for, in milliseconds.
pub const TIMEOUT: u64 = 5_000;
/// Operations that may wait at once.
const MAX_WAITERS: usize = 1 << 16;
/// How often a blocked caller looks at the clock itself, should the background thread be stuck.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Outcome of an operation in its submitted form.
#[derive(Debug)]
#[must_use]
pub enum Ack<T> {
    /// It is acknowledged, or refused.
    Done(T),
    /// It is carried out, reads see it; its acknowledgement waits for the device.
    Later(Pending<T>),
}

impl<T> Ack<T> {
    /// Blocks until the operation is acknowledged or refused: some seconds at most.
    pub fn wait(self) -> T {
        match self {
            Self::Done(outcome) => outcome,
            Self::Later(pending) => pending.wait(),
        }
    }
}

/// The acknowledgement of an operation: a future for reactors. It is resolved by the engine's background thread, after five
/// seconds at the latest, as long as the disks of the data directory answer. Dropping it takes nothing back.
#[must_use]
pub struct Pending<T> {
    core: Arc<Core>,
    ticket: Ticket,
    outcome: Option<T>,
    refused: fn(T, RefuseReason) -> T,
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("id", &self.ticket.id).finish_non_exhaustive()
    }
}

/// Nothing in it is ever pinned.
impl<T> Unpin for Pending<T> {}

impl<T> Pending<T> {
    pub(crate) fn new(
        core: &Arc<Core>,
        ticket: Ticket,
        outcome: T,
        refused: fn(T, RefuseReason) -> T,
    ) -> Self {
        Self { core: core.clone(), ticket, outcome: Some(outcome), refused }
    }

    /// Whether [`Pending::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.completion.state.lock().outcome.is_some()
    }

    /// What it will return when it is acknowledged rather than refused.
    #[cfg(test)]
    pub(crate) fn preview(&self) -> &T {
        self.outcome.as_ref().expect("not ready yet")
    }

    /// Whether it waits although its deadline had passed `at` that time.
    #[cfg(test)]
    pub(crate) fn is_late(&self, at: u64) -> bool {
        at >= self.ticket.deadline && !self.is_done()
    }

    /// Blocks until the operation is acknowledged or refused: five seconds at most, as long as the disks of the data directory
    /// answer.
    pub fn wait(mut self) -> T {
        let completion = self.ticket.completion.clone();
        let mut state = completion.state.lock();
        loop {
            if let Some(outcome) = state.outcome {
                return self.take(outcome);
            }
            if completion.changed.wait_for(&mut state, POLL_INTERVAL).timed_out()
                && self.core.clock.millis() >= self.ticket.deadline
            {
                drop(state);
                self.core.give_up(self.ticket.id, RefuseReason::Device);
                state = completion.state.lock();
            }
        }
    }

    fn take(&mut self, outcome: Result<(), RefuseReason>) -> T {
        let value = self.outcome.take().expect("not polled after it was ready");
        match outcome {
            Ok(()) => value,
            Err(reason) => (self.refused)(value, reason),
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let outcome = {
            let mut state = self.ticket.completion.state.lock();
            if state.outcome.is_none() {
                state.waker = Some(cx.waker().clone());
            }
            state.outcome
        };
        match outcome {
            Some(outcome) => Poll::Ready(self.take(outcome)),
            None => Poll::Pending,
        }
    }
}

/// What the caller of a waiting operation holds.
#[derive(Debug)]
pub struct Ticket {
    pub id: u64,
    deadline: u64,
    completion: Arc<Completion>,
}

#[derive(Debug, Default)]
struct Completion {
    state: Mutex<PendingState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingState {
    outcome: Option<Result<(), RefuseReason>>,
    waker: Option<Waker>,
}

/// An operation that waits.
#[derive(Debug)]
pub struct Waiter {
    /// Its namespace.
    pub ns: u16,
    /// Its key's hash and the version of its put; `None` for removals.
    pub put: Option<(u64, u64)>,
    /// Where its record is, once it is appended.
    pub at: Option<Location>,
    /// It waits for flushes too.
    pub synced: bool,
    deadline: u64,
    completion: Arc<Completion>,
}

impl Waiter {
    /// Hands the outcome over.
    pub fn finish(self, outcome: Result<(), RefuseReason>) {
        let waker = {
            let mut state = self.completion.state.lock();
            state.outcome = Some(outcome);
            state.waker.take()
        };
        self.completion.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// All operations that wait.
#[derive(Debug, Default)]
pub struct Waiters {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    by_id: BTreeMap<u64, Waiter>,
    /// Removals that wait for a flush of the journal.
    removals: Vec<u64>,
    /// Nobody would take them out any more.
    ended: bool,
}

impl Waiters {
    /// Adds one; `None` when too many wait already, or nobody looks after them any more.
    pub fn add(&self, ns: u16, put: Option<(u64, u64)>, synced: bool, now: u64) -> Option<Ticket> {
        let mut known = self.known.lock();
        if known.ended || known.by_id.len() >= MAX_WAITERS {
            return None;
        }
        known.next += 1;
        let (id, deadline, completion) = (known.next, now + TIMEOUT, Arc::new(Completion::default()));
        let waiter = Waiter { ns, put, at: None, synced, deadline, completion: completion.clone() };
        known.by_id.insert(id, waiter);
        if put.is_none() {
            known.removals.push(id);
        }
        Some(Ticket { id, deadline, completion })
    }

    /// Its record was appended there.
    pub fn place(&self, id: u64, at: Location) {
        if let Some(waiter) = self.known.lock().by_id.get_mut(&id) {
            waiter.at = Some(at);
        }
    }

    /// Takes one out: its outcome is now the caller's to decide. `None` when somebody else has done so.
    pub fn take(&self, id: u64) -> Option<Waiter> {
        self.known.lock().by_id.remove(&id)
    }

    /// Whether one waits for flushes too.
    pub fn is_synced(&self, id: u64) -> bool {
        self.known.lock().by_id.get(&id).is_some_and(|waiter| waiter.synced)
    }

    /// Nobody may wait any more.
    pub fn end(&self) {
        self.known.lock().ended = true;
    }

    /// Those whose deadline has passed, or all.
    pub fn overdue(&self, now: Option<u64>) -> Vec<u64> {
        let known = self.known.lock();
        let late = |waiter: &Waiter| now.is_none_or(|now| now >= waiter.deadline);
        known.by_id.iter().take_while(|(_, waiter)| late(waiter)).map(|(&id, _)| id).collect()
    }

    /// Removals that came since this was last asked.
    pub fn removals(&self) -> Vec<u64> {
        std::mem::take(&mut self.known.lock().removals)
    }
}
