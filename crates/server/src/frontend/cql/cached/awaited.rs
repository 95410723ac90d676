//! A read that misses a unit because it is being written waits until it is back
//! ([`afterglow_rowcache::refresh`]), for a short time at most. All reads that wait cost the
//! database nothing.

use std::time::Duration;

use afterglow_rowcache::entry::Unit;
use afterglow_rowcache::gate::AWAITED_FOR;
use afterglow_rowcache::serve::CachePermission;
use futures_channel::oneshot;

use super::miss::Filler;

/// What a read that looks for a unit finds.
pub(super) enum Waited {
    /// There is none to wait for.
    Not,
    /// It did not come back in time, or is not what the read needs.
    InVain,
    /// The unit, as the database had it at a moment since the read came.
    Unit(Unit),
}

impl Filler<'_> {
    /// Waits for the unit of the row, or for the unit. `serves`: whether it would answer the read.
    /// `began` is called if the read waits.
    pub(super) async fn await_unit(
        &self,
        permission: CachePermission,
        serves: impl FnOnce(&Unit) -> bool,
        began: impl FnOnce(),
    ) -> Waited {
        let (cache, table) = (&self.shared.cache, &self.read.table);
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        let fingerprint = self.read.fingerprint;
        let serves = |unit: &Unit| unit.stored().fingerprint() == fingerprint && serves(unit);
        let waits = cache.await_unit(table, self.key, permission, serves, waiter);
        let Some(hears) = hears.filter(|_| waits) else { return Waited::Not };
        began();
        let brought = compio::time::timeout(Duration::from_millis(AWAITED_FOR), hears).await;
        let unit = brought.ok().and_then(Result::ok).and_then(|brought| brought.unit());
        // The read may have been planned for another shape of the table than the writes, and the
        // lease may have ended while it waited.
        let is_right = |unit: &Unit| {
            unit.stored().fingerprint() == fingerprint
                && cache.row_permission(table, self.key) == Ok(permission)
        };
        unit.filter(is_right).map_or(Waited::InVain, Waited::Unit)
    }
}
