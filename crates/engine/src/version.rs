//! The global version counter.
//!
//! A version is 20 bits of owner epoch and 44 bits of counter. The counter is reserved durably in
//! blocks: no version at or above the limit in the state file has ever been used. So versions, and
//! with them segment generations, never repeat.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Versions reserved at a time.
pub const BLOCK: u64 = 1 << 24;

/// Hands out versions.
#[derive(Debug)]
pub struct Versions {
    next: AtomicU64,
    limit: AtomicU64,
}

impl Versions {
    /// Starts at `next`; versions below `limit` are reserved.
    ///
    /// # Panics
    /// When the first version is not reserved.
    pub fn new(next: u64, limit: u64) -> Self {
        assert!(next < limit, "version {next} is not below the reserved {limit}");
        Self { next: next.into(), limit: limit.into() }
    }

    /// The next version, larger than all before.
    pub fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// What [`Versions::take`] would return.
    pub fn peek(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// The limit to reserve next, when less than half a block is left.
    pub fn wants_reservation(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Acquire);
        (self.peek() + BLOCK / 2 > limit).then(|| self.peek().max(limit) + BLOCK)
    }

    /// Whether versions beyond the limit were handed out: after a crash they could repeat.
    pub fn overrun(&self) -> bool {
        self.peek() > self.limit.load(Ordering::Acquire)
    }

    /// `limit` is durable now.
    pub fn reserved(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::AcqRel);
    }
}
