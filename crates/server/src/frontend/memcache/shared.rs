//! The state that all reactors of a front end share.

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use afterglow_engine::device::DeviceSet;
use afterglow_engine::{Cache, Stats};
use afterglow_memcache::auth::Users;
use parking_lot::{Mutex, RwLock};
use rustix::time::{ClockId, clock_gettime};

use super::counted::MemcacheCounts;
use super::dump_turn::DumpTurn;
use super::limits::LiveLimits;
use super::options::{FrontEndAddress, MemcacheFrontEndConfig};
use super::store::Store;
use super::watchers::Watchers;
use crate::frontend::sessions::Sessions;
use crate::reactor::Reactors;

/// What all reactors of a front end share.
pub struct MemcacheShared {
    /// Tells front ends of one process apart.
    pub(super) id: u64,
    pub(super) config: MemcacheFrontEndConfig,
    pub(super) reactors: Reactors,
    pub(super) cache: Arc<Cache>,
    pub(super) devices: Arc<dyn DeviceSet>,
    pub(super) store: Store,
    pub(super) addresses: RwLock<Vec<FrontEndAddress>>,
    pub(super) connections: AtomicUsize,
    pub(super) sessions: Arc<Sessions>,
    /// It takes no more connections: who ends its TLS handshake now is no client any more.
    pub(super) closing: AtomicBool,
    pub(super) closed: AtomicBool,
    /// Who may come in, as last read; whether anybody must say who it is never changes.
    pub(super) users: RwLock<Option<Users>>,
    /// Who is being answered with a dump, if anybody.
    pub(super) dump_turn: Arc<DumpTurn>,
    /// Limits as they are now.
    pub(super) limits: LiveLimits,
    /// The connections that watch.
    pub(super) watchers: Arc<Watchers>,
    /// What had been counted when a client last asked for a reset.
    pub(super) reset: Mutex<MemcacheCounts>,
    /// How long a change waits before it looks again at an index that is still being read.
    pub(super) loading_pause: Duration,
    /// So many looks of a change find the index still being read.
    #[cfg(test)]
    pub(super) loading: std::sync::atomic::AtomicU32,
}

impl MemcacheShared {
    /// Seconds of a clock that never steps. By it clients stand still, or are idle.
    pub(super) fn seconds(&self) -> u64 {
        clock_gettime(ClockId::MonotonicCoarse).tv_sec.unsigned_abs()
    }

    /// All that was ever counted; `stats` are the engine's.
    pub(super) fn counted_ever(&self, stats: &Stats) -> MemcacheCounts {
        let metrics = &self.config.metrics;
        let (commands, traffic) = (metrics.memcache_total(), metrics.front_end_traffic("memcache"));
        let items = self.store.total_items();
        MemcacheCounts::new(commands, traffic, self.watchers.counts(), items, stats)
    }

    /// What was counted since `stats reset`.
    pub(super) fn counted_now(&self, stats: &Stats) -> MemcacheCounts {
        // Before the counters are looked at: what is reset meanwhile may be counted, never the
        // other way round.
        let before = self.reset.lock();
        self.counted_ever(stats).since(&before)
    }

    /// Begins to count anew.
    pub(super) fn reset_counted(&self) {
        let mut before = self.reset.lock();
        *before = self.counted_ever(&self.cache.stats());
    }
}

#[cfg(test)]
impl MemcacheShared {
    /// Whether this look finds the index still being read.
    pub(super) fn says_loading(&self) -> bool {
        self.loading
            .try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1))
            .is_ok()
    }
}
