//! Answers that are kept back, and nodes that stand still.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::lock::lock;
use crate::fake_backend::faults::StatementKind;

/// What a node keeps back at present.
#[derive(Default)]
pub struct Holds {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many holds there were so far, which numbers them.
    begun: u64,
    holds: Vec<Hold>,
    /// For each statement that is kept back, the newest hold that it came after.
    waiting: Vec<Hold>,
    /// Nothing at all is answered.
    frozen: bool,
    /// Nobody waits any more.
    over: bool,
}

/// A hold of the statements of one kind that come after it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hold {
    number: u64,
    kind: StatementKind,
}

/// Has a node stand still until it is dropped, see [`FakeBackend::freeze`].
///
/// [`FakeBackend::freeze`]: super::FakeBackend::freeze
pub struct Frozen<'a>(&'a Holds);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).frozen = false;
        self.0.changed.notify_all();
    }
}

/// Keeps answers back until it is dropped, see [`FakeBackend::hold`].
///
/// [`FakeBackend::hold`]: super::FakeBackend::hold
pub struct Held<'a>(&'a Holds, Hold);

impl Held<'_> {
    /// Waits until so many answers are kept back at once. What an earlier hold has kept back may
    /// not have gone on yet: it does not count.
    pub fn wait_for(&self, answers: usize) {
        let Hold { number, kind } = self.1;
        let counts = |waiting: &&Hold| waiting.kind == kind && waiting.number >= number;
        let mut state = lock(&self.0.state);
        while state.waiting.iter().filter(counts).count() < answers {
            state = self.0.wait(state);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).holds.retain(|hold| *hold != self.1);
        self.0.changed.notify_all();
    }
}

impl Holds {
    /// Nothing is answered until what this returns is dropped.
    pub fn freeze(&self) -> Frozen<'_> {
        lock(&self.state).frozen = true;
        Frozen(self)
    }

    /// Statements of that kind are not answered until what this returns is dropped.
    pub fn hold(&self, kind: StatementKind) -> Held<'_> {
        let mut state = lock(&self.state);
        state.begun += 1;
        let hold = Hold { number: state.begun, kind };
        state.holds.push(hold);
        Held(self, hold)
    }

    /// The node ends: whoever waits goes on.
    pub fn end(&self) {
        lock(&self.state).over = true;
        self.changed.notify_all();
    }

    /// Waits while the node stands still.
    pub fn wait_while_frozen(&self) {
        let mut state = lock(&self.state);
        while state.frozen && !state.over {
            state = self.wait(state);
        }
    }

    /// Waits while a statement of that kind that came now is kept back. Holds that begin later do
    /// not keep it.
    pub fn wait_while_held(&self, kind: StatementKind) {
        let mut state = lock(&self.state);
        let Some(newest) = state.holds.iter().rev().find(|hold| hold.kind == kind).copied() else {
            return;
        };
        let keeps = |hold: &Hold| hold.kind == kind && hold.number <= newest.number;
        state.waiting.push(newest);
        self.changed.notify_all();
        while state.holds.iter().any(keeps) && !state.over {
            state = self.wait(state);
        }
        let at = state.waiting.iter().position(|waiting| *waiting == newest);
        state.waiting.swap_remove(at.expect("was put in above"));
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}
