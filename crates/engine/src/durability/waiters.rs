//! Operations that wait for a device, as the background work knows them.
//!
//! A waiting operation is a [`Waiter`] in the [`Waiters`] of the cache. The background work takes
//! it out when its record is on flash, and flushed if that was asked for. Or whoever finds its
//! deadline passed takes it out. Taking it out is what decides, so that each has one outcome.
//! Deadlines are of one length: the oldest waiter has the first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex};

use crate::api::RefuseReason;
use crate::index::Location;

/// How long a device may take for a write that somebody waits for, in milliseconds.
pub const TIMEOUT: u64 = 5_000;
/// Operations that may wait at once.
const MAX_WAITERS: usize = 1 << 16;

/// What the caller of a waiting operation holds.
#[derive(Debug)]
pub struct Ticket {
    pub id: u64,
    pub(super) deadline: u64,
    pub(super) completion: Arc<Completion>,
}

/// Where the outcome is handed over.
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) state: Mutex<PendingState>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct PendingState {
    pub(super) outcome: Option<Result<(), RefuseReason>>,
    pub(super) waker: Option<Waker>,
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
        let (id, deadline, completion) =
            (known.next, now + TIMEOUT, Arc::new(Completion::default()));
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

    /// Takes one out: its outcome is now the caller's to decide. `None` when somebody else has done
    /// so.
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
