//! A read that misses a unit because it is being written waits until it is back
//! ([`afterglow_rowcache::refresh`]), for a short time at most. All reads that wait cost the
//! database nothing.

use std::time::Duration;

use afterglow_cql::plan::{ReadPlan, RowKey};
use afterglow_rowcache::entry::Unit;
use afterglow_rowcache::gate::AWAITED_FOR;
use afterglow_rowcache::serve::CachePermission;
use futures_channel::oneshot;

use super::RowCache;

/// What a read that looks for a unit finds.
pub(super) enum Waited {
    /// There is none to wait for.
    Not,
    /// It did not come back in time, or is not what the read needs.
    InVain,
    /// The unit, as the database had it at a moment since the read came.
    Unit(Unit),
}

/// The unit of a row, or a unit, that a read looks for.
#[derive(Clone, Copy)]
pub(super) struct SoughtUnit<'a> {
    pub(super) cache: &'a RowCache,
    pub(super) read: &'a ReadPlan,
    /// The key of the row or of the unit.
    pub(super) key: &'a RowKey,
    /// That of the row or unit.
    pub(super) permission: CachePermission,
}

impl SoughtUnit<'_> {
    /// Waits for it if it is being written. `serves`: whether it would answer the read. `began` is
    /// called if the read waits.
    pub(super) async fn wait(
        self,
        serves: impl FnOnce(&Unit) -> bool,
        began: impl FnOnce(),
    ) -> Waited {
        let SoughtUnit { cache, read: ReadPlan { table, fingerprint, .. }, key, permission } = self;
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        // The read may have been planned for another shape of the table than the writes.
        let is_same = |unit: &Unit| unit.stored().fingerprint() == *fingerprint;
        let serves = |unit: &Unit| is_same(unit) && serves(unit);
        let waits = cache.await_unit(table, key, permission, serves, waiter);
        let Some(hears) = hears.filter(|_| waits) else { return Waited::Not };
        began();
        let brought = compio::time::timeout(Duration::from_millis(AWAITED_FOR), hears).await;
        let unit = brought.ok().and_then(Result::ok).and_then(|brought| brought.unit(*fingerprint));
        // The lease may have ended while the read waited.
        let may = |_: &Unit| cache.row_permission(table, key) == Ok(permission);
        unit.filter(may).map_or(Waited::InVain, Waited::Unit)
    }
}
