//! Limits of a front end that may change while it serves: by SIGHUP, or by a client's command.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Limits and switches, as they are now.
#[derive(Debug)]
pub struct LiveLimits {
    connections: AtomicUsize,
    /// Milliseconds, 0 for none.
    idle: AtomicU64,
    memory: AtomicU64,
    track_sizes: AtomicBool,
    verbosity: AtomicU32,
}

/// Limits that an operator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemcacheLimits {
    /// Connections at once.
    pub connections: usize,
    /// A connection on which nothing comes for so long is closed.
    pub idle_timeout: Option<Duration>,
    /// Bytes of memory for the whole cache, which clients may lower and raise again.
    pub memory: u64,
}

impl LiveLimits {
    pub(super) fn new(limits: MemcacheLimits) -> Self {
        let live = LiveLimits {
            connections: AtomicUsize::new(0),
            idle: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            track_sizes: AtomicBool::new(false),
            verbosity: AtomicU32::new(0),
        };
        live.set(limits);
        live
    }

    /// Puts other limits in force. Connections that are open stay.
    pub(super) fn set(&self, limits: MemcacheLimits) {
        let idle = limits.idle_timeout.map_or(0, |timeout| timeout.as_millis().max(1));
        self.connections.store(limits.connections, Ordering::Relaxed);
        self.idle.store(u64::try_from(idle).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.memory.store(limits.memory, Ordering::Relaxed);
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        match self.idle.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }

    pub(super) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Whether a client wants sizes of objects counted.
    pub(super) fn tracks_sizes(&self) -> bool {
        self.track_sizes.load(Ordering::Relaxed)
    }

    pub(super) fn track_sizes(&self, wanted: bool) {
        self.track_sizes.store(wanted, Ordering::Relaxed);
    }

    pub(super) fn verbosity(&self) -> u32 {
        self.verbosity.load(Ordering::Relaxed)
    }

    pub(super) fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level, Ordering::Relaxed);
    }
}
