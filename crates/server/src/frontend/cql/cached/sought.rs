//! Where the cache has one row: under its own key, or in the unit of its partition.
//!
//! 1. [`Sought::look_up`]: the row itself. If there is none for certain, the unit.
//! 2. [`Sought::read`]: either from flash.
//!
//! The unit is as fresh as the row: every write to the row drops it, and the permission is that of
//! the row. A row that is perhaps there, and cannot be read now, is not taken from the unit. It may
//! be older than the unit, and a later read would find it again.

use afterglow_cql::plan::{ReadPlan, RowKey};
use afterglow_engine::{FlashRead, Hit, Lookup};
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::unit::{Unanswered, Units};

use super::level::Need;
use super::state::CachedState;
use crate::metrics::{FrontEndMetrics, MissReason, Tier};

/// A row that a read asks for, and under which permission.
#[derive(Clone, Copy)]
pub struct Sought<'a> {
    /// The cached path.
    pub shared: &'a CachedState,
    /// The plan of the read.
    pub read: &'a ReadPlan,
    /// The key of the row.
    pub key: &'a RowKey,
    /// That of the row.
    pub permission: CachePermission,
    /// By the level of the read.
    pub need: Need,
}

/// What a look into DRAM gives.
pub enum Found {
    /// The row, or that there is none.
    Row(Row, Tier),
    /// It is on flash.
    Flash(OnFlash),
    /// The cache cannot tell.
    Missing(MissReason),
}

/// What is to be read from flash.
pub enum OnFlash {
    /// The row itself.
    Row(FlashRead),
    /// The unit. The row is missing for this reason.
    Unit(FlashRead, MissReason),
}

impl Sought<'_> {
    /// Looks for the row, then for the unit of its partition.
    pub fn look_up(&self) -> Found {
        match self.shared.cache.look_up(self.key) {
            Lookup::Hit(hit) => match self.accept(&hit) {
                Ok(row) => Found::Row(row, hit.tier.into()),
                Err(reason) => self.in_unit(reason),
            },
            Lookup::Miss(reason) => self.in_unit(reason.into()),
            Lookup::Flash(flash) => Found::Flash(OnFlash::Row(flash)),
        }
    }

    /// Reads what is on flash. If it is no row, the unit may have it.
    ///
    /// # Errors
    /// Why it is a miss.
    pub async fn read(
        &self,
        flash: OnFlash,
        metrics: &FrontEndMetrics,
    ) -> Result<(Row, Tier), MissReason> {
        let (unit, reason) = match flash {
            OnFlash::Unit(unit, reason) => (unit, reason),
            OnFlash::Row(row) => {
                let read = self.shared.read(row, metrics).await;
                let missing = match read.and_then(|hit| Ok((self.accept(&hit)?, hit.tier.into()))) {
                    Ok(found) => return Ok(found),
                    Err(reason) => self.in_unit(reason),
                };
                match missing {
                    Found::Row(row, tier) => return Ok((row, tier)),
                    Found::Missing(reason) => return Err(reason),
                    Found::Flash(OnFlash::Unit(unit, reason)) => (unit, reason),
                    Found::Flash(OnFlash::Row(_)) => unreachable!("it was read"),
                }
            }
        };
        let read = self.shared.read(unit, metrics).await;
        let found = read.ok().and_then(|hit| Some((self.row_of(&hit)?, hit.tier.into())));
        found.ok_or(reason)
    }

    fn accept(&self, hit: &Hit) -> Result<Row, MissReason> {
        if !self.need.takes(self.shared, hit) {
            return Err(MissReason::Unusable);
        }
        Ok(self.shared.cache.accept(hit, self.permission, self.read.fingerprint)?)
    }

    /// The row is missing for this reason.
    fn in_unit(&self, missing: MissReason) -> Found {
        let (cache, units) = (&self.shared.cache, &self.shared.units);
        if !may_be_in_unit(units, self.read, self.key, missing) {
            return Found::Missing(missing);
        }
        let reads_flash = || !units.is_beyond(self.unit_key(), cache.clock().now());
        match cache.look_up_unit(self.key, reads_flash) {
            Some(Lookup::Hit(hit)) => match self.row_of(&hit) {
                Some(row) => Found::Row(row, hit.tier.into()),
                None => Found::Missing(missing),
            },
            Some(Lookup::Flash(flash)) => Found::Flash(OnFlash::Unit(flash, missing)),
            Some(Lookup::Miss(_)) | None => Found::Missing(missing),
        }
    }

    fn unit_key(&self) -> &[u8] {
        self.key.unit_key()
    }

    fn row_of(&self, hit: &Hit) -> Option<Row> {
        let (cache, units) = (&self.shared.cache, &self.shared.units);
        if !self.need.takes(self.shared, hit) {
            return None;
        }
        let unit = cache.accept_unit(hit, self.permission, self.read.fingerprint).ok()?;
        match unit.row(&self.read.table, self.key) {
            Ok(row) => {
                units.note_hit(self.unit_key());
                Some(row)
            }
            Err(Unanswered::Beyond) if Tier::from(hit.tier) == Tier::Flash => {
                units.note_beyond(self.unit_key(), cache.clock().now());
                None
            }
            Err(_) => None,
        }
    }
}

/// Whether a row that is missing for this reason may be taken from the unit of its partition. One
/// that may be found again later is not.
pub(super) fn may_be_in_unit(
    units: &Units,
    read: &ReadPlan,
    key: &RowKey,
    missing: MissReason,
) -> bool {
    let has_units = key.has_clustering() && read.table.statics.is_empty();
    units.most_bytes() > 0 && has_units && is_certain(missing)
}

/// Whether a row that is missing for this reason is not found again later.
fn is_certain(missing: MissReason) -> bool {
    matches!(
        missing,
        MissReason::Absent
            | MissReason::Expired
            | MissReason::Killed
            | MissReason::Superseded
            | MissReason::Unusable
    )
}
