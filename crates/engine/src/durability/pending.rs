//! The caller's end of an operation whose acknowledgement waits for a device.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::api::RefuseReason;
use crate::core::Core;
use crate::durability::waiters::Ticket;

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

/// The acknowledgement of an operation: a future for reactors. It is resolved by the engine's
/// background thread, after five seconds at the latest, as long as the disks of the data directory
/// answer. Dropping it takes nothing back.
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

    /// Blocks until the operation is acknowledged or refused: five seconds at most, as long as the
    /// disks of the data directory answer.
    pub fn wait(mut self) -> T {
        let completion = self.ticket.completion.clone();
        let mut state = completion.state.lock();
        loop {
            if let Some(outcome) = state.outcome {
                return self.take(outcome);
            }
            if completion.changed.wait_for(&mut state, POLL_INTERVAL).timed_out()
                && self.core.time.millis() >= self.ticket.deadline
            {
                drop(state);
                self.core.give_up([self.ticket.id], RefuseReason::Device);
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
