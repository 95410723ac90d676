//! The counters of `stats`. `stats reset` subtracts what was counted until then.
//!
//! The counters themselves go on: readers of the metrics expect counters that only grow.

use afterglow_engine::{DropReason, MissReason, Stats, Tier};

use super::store::NAMESPACE;
use super::watchers::WatchCounts;
use crate::metrics::{FrontEndTraffic, MemcacheMetrics};

/// Counters at one moment, or what was counted between two.
#[derive(Debug, Default)]
pub struct MemcacheCounts {
    /// Commands.
    pub commands: MemcacheMetrics,
    /// Connections and bytes.
    pub traffic: FrontEndTraffic,
    /// Lines for watchers.
    pub watch: WatchCounts,
    /// Objects stored.
    pub items: u64,
    /// Hits in memory.
    pub hot: u64,
    /// Hits on flash.
    pub cold: u64,
    /// Misses in the order of [`MissReason::ALL`].
    misses: [u64; MissReason::COUNT],
    /// Objects dropped to make room, or for want of it.
    pub evictions: u64,
    /// Objects dropped because they had expired.
    pub expired: u64,
}

impl MemcacheCounts {
    /// What the front end's own counters hold, and of the engine's those of its objects.
    pub fn new(
        commands: MemcacheMetrics,
        traffic: FrontEndTraffic,
        watch: WatchCounts,
        items: u64,
        stats: &Stats,
    ) -> Self {
        let objects = stats.namespaces.iter().find(|namespace| namespace.name == NAMESPACE);
        let objects = objects.cloned().unwrap_or_default();
        let dropped = |reason: DropReason| {
            let place = DropReason::ALL.iter().position(|known| *known == reason);
            place.map_or(0, |at| objects.dropped[at] + stats.totals.dropped[at])
        };
        let expired = dropped(DropReason::Dead);
        MemcacheCounts {
            commands,
            traffic,
            watch,
            items,
            hot: objects.hits_from(Tier::Dram) + objects.hits_from(Tier::Buffer),
            cold: objects.hits_from(Tier::Flash),
            misses: objects.misses,
            evictions: DropReason::ALL.iter().map(|reason| dropped(*reason)).sum::<u64>() - expired,
            expired,
        }
    }

    /// What was counted since the counters were at `before`.
    pub fn since(&self, before: &MemcacheCounts) -> MemcacheCounts {
        let traffic = FrontEndTraffic {
            opened: self.traffic.opened.saturating_sub(before.traffic.opened),
            closed: self.traffic.closed.saturating_sub(before.traffic.closed),
            refused: self.traffic.refused.saturating_sub(before.traffic.refused),
            received: self.traffic.received.saturating_sub(before.traffic.received),
            sent: self.traffic.sent.saturating_sub(before.traffic.sent),
        };
        MemcacheCounts {
            commands: self.commands.since(&before.commands),
            traffic,
            watch: self.watch.since(&before.watch),
            items: self.items.saturating_sub(before.items),
            hot: self.hot.saturating_sub(before.hot),
            cold: self.cold.saturating_sub(before.cold),
            misses: std::array::from_fn(|at| self.misses[at].saturating_sub(before.misses[at])),
            evictions: self.evictions.saturating_sub(before.evictions),
            expired: self.expired.saturating_sub(before.expired),
        }
    }

    /// Misses for one reason.
    pub fn misses_for(&self, reason: MissReason) -> u64 {
        self.misses[reason as usize]
    }
}
