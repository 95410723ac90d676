//! Counts the sessions of a front end, for a clean end.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// How many sessions there are.
#[derive(Default)]
pub struct Sessions {
    count: Mutex<usize>,
    changed: Condvar,
}

/// One session, as long as it lives.
pub struct Entered(Arc<Sessions>);

impl Sessions {
    /// One more.
    pub fn enter(self: &Arc<Self>) -> Entered {
        *self.count.lock() += 1;
        Entered(self.clone())
    }

    /// Waits for the last session to end; false when the deadline came first.
    pub fn wait_for_none(&self, deadline: Instant) -> bool {
        let mut count = self.count.lock();
        while *count > 0 {
            if self.changed.wait_until(&mut count, deadline).timed_out() {
                return *count == 0;
            }
        }
        true
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.changed.notify_all();
    }
}
