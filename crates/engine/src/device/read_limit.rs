//! How many threads may be in a blocking read at once.

use crate::sync::atomic::{AtomicU32, Ordering};

/// Counts blocking reads, so that a slow device does not take every thread.
pub struct BlockingReads {
    running: AtomicU32,
    most: u32,
}

impl BlockingReads {
    /// At most so many at once.
    pub fn new(most: u32) -> Self {
        Self { running: AtomicU32::new(0), most }
    }

    /// Runs `read` on this thread; `None` when too many are running.
    pub fn run<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let allowed = self.running.fetch_add(1, Ordering::Relaxed) < self.most;
        let result = allowed.then(read);
        self.running.fetch_sub(1, Ordering::Relaxed);
        result
    }
}
