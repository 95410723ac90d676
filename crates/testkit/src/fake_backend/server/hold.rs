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
    kinds: Vec<StatementKind>,
    waiting: Vec<StatementKind>,
    /// Nothing at all is answered.
    frozen: bool,
    /// Nobody waits any more.
    over: bool,
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
pub struct Held<'a>(&'a Holds, StatementKind);

impl Held<'_> {
    /// Waits until so many answers are kept back at once.
    pub fn wait_for(&self, answers: usize) {
        let mut state = lock(&self.0.state);
        while state.waiting.iter().filter(|kind| **kind == self.1).count() < answers {
            state = self.0.wait(state);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).kinds.retain(|kind| *kind != self.1);
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
        lock(&self.state).kinds.push(kind);
        Held(self, kind)
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

    /// Waits while statements of that kind are kept back.
    pub fn wait_while_held(&self, kind: StatementKind) {
        let mut state = lock(&self.state);
        if !state.kinds.contains(&kind) {
            return;
        }
        state.waiting.push(kind);
        self.changed.notify_all();
        while state.kinds.contains(&kind) && !state.over {
            state = self.wait(state);
        }
        let at = state.waiting.iter().position(|waiting| *waiting == kind);
        state.waiting.swap_remove(at.expect("was put in above"));
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}
