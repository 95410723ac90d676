//! A read of one row right after a write of it, so that the next read is a hit: a refresh.
//!
//! What a write leaves behind is not always known. A tombstone that no SELECT shows may hide a new
//! row, and a unit has no write times. So the row is read again, as soon as the write is
//! acknowledged. Nothing is concluded from the write's values or timestamp.
//!
//! 1. The gates of the write are closed. [`KeptUnit::of`] takes the unit of the row's partition,
//!    which is then dropped.
//! 2. The write is sent, and acknowledged. A row behind the unit's last does not matter to the
//!    unit, which is put back at once ([`RowCache::put_back`]).
//! 3. The gates open. [`RowCache::begin_refresh`] leads a fill of the unit, unless another write
//!    has begun. Reads of the unit join it.
//! 4. The caller notes the time, and reads the row as for a fill of it.
//! 5. [`RowCache::end_refresh`] puts the unit back with that row, if still no other write has
//!    begun.
//!
//! Invariants:
//! - The unit was servable when the write began, under `exclusive`. The write was the only one that
//!   might touch the partition then, and none has begun since. So every other row is as the unit
//!   has it.
//! - The row is read after the write was acknowledged, at a level that sees it.
//! - The time of the unit's fill stays: a refresh never makes it live longer.
//! - A unit that may lack an acknowledged write (`doubted`), and a unit beside a gate that is held
//!   or weak, is not kept.
//! - The units of all writes under way take [`MOST_PENDING`](crate::row_change::MOST_PENDING) bytes
//!   at most, together with the rows that writes are to put back.

use std::sync::Arc;

use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Ack, Peek, PutOptions, PutOutcome};
use bytes::Bytes;

use crate::clock::Moment;
use crate::entry::{ENDLESS, Origin, Unit};
use crate::gate::{SLOT_BITS, Ticket};
use crate::install::{InstallOutcome, Installed, ReturnedFill};
use crate::row::{Filled, StoredRow};
use crate::row_cache::RowCache;
use crate::row_change::Pending;
use crate::serve::CachePermission;
use crate::stamp::Stamp;
use crate::unit::Coverage;
use crate::write_scope::{WriteScope, gate_of, group_of};

/// A unit from before a write of one row.
pub struct KeptUnit {
    /// What is stored.
    value: Bytes,
    origin: Origin,
    unit: Unit,
    coverage: Coverage,
    plan: ReadPlan,
    /// The keys of the unit and of the row.
    keys: (RowKey, RowKey),
    /// Its table's gate and its slot.
    gates: (u32, u32),
    /// Of the write.
    stamp: Stamp,
    /// What it was servable under.
    permission: CachePermission,
    /// Generation of the policies then.
    generation: u64,
    _pending: Pending,
}

impl KeptUnit {
    /// Takes the unit of the partition of the one row that a write names. The gates of the write
    /// are closed, and the unit is not dropped yet. `None` if there is none in DRAM, or if it
    /// cannot be kept.
    pub(crate) fn of<W>(
        cache: &RowCache<W>,
        scope: &WriteScope,
        table: &Arc<TableSchema>,
    ) -> Option<KeptUnit> {
        let (slot, engine_key) = scope.only_row()?;
        // A transaction may complete another one. In a ring, what one instance knows of the other
        // writes to a partition is not all there is. A trigger may write other rows.
        if scope.conditional || cache.shards.get().is_some() || table.triggers {
            return None;
        }
        let columns = (table.partition_key.len(), table.clustering.len());
        let row = RowKey::from_engine_key(engine_key, columns.0, columns.1)?;
        if !row.has_clustering() {
            return None;
        }
        let gates = (gate_of(&table.keyspace, &table.name), slot);
        // Before the unit is looked up: a write that drops it from here on has another stamp.
        let stamp = cache.gates.sole_writer(gates, cache.clock.now())?;
        let Peek::Dram(hit) = cache.rows.peek(row.unit_key()) else { return None };
        let generation = cache.policies.generation();
        let permission = cache.cache_permission(table).ok()?;
        // Others may write under another policy: the unit would be of two moments.
        if !matches!(permission, CachePermission::Exclusive { .. }) {
            return None;
        }
        let plan = ReadPlan::of_table(table.clone());
        let unit = cache.accept_unit(&hit, permission, plan.fingerprint).ok()?;
        let (origin, _) = Origin::split(&hit.value)?;
        if origin.doubted {
            return None;
        }
        let coverage = unit.stored().coverage(table, &row)?;
        // It may be there twice while the row is put in.
        let _pending = Pending::take(&cache.pending, 2 * hit.value.len())?;
        let key = RowKey::from_engine_key(row.unit_key(), columns.0, 0)?;
        Some(KeptUnit {
            value: hit.value.clone(),
            origin,
            unit,
            coverage,
            plan,
            keys: (key, row),
            gates,
            stamp,
            permission,
            generation,
            _pending,
        })
    }

    /// Whether it stays right whatever becomes of the written row.
    pub(crate) fn is_untouched(&self) -> bool {
        self.coverage == Coverage::Beyond
    }

    /// The key of the unit.
    pub fn key(&self) -> &RowKey {
        &self.keys.0
    }

    /// With this row, that was read at `asked_at`. `None` if no unit is left.
    fn with(&self, row: &Filled, asked_at: Moment, most_bytes: usize) -> Option<Filled> {
        let stored = StoredRow::decode(&row.bytes)?;
        let bytes =
            self.unit.stored().amended(&self.plan.table, &self.keys.1, &stored, most_bytes)?;
        let age = asked_at.boot.checked_sub(self.origin.filled_at)?;
        let own = row.max_age.map(|max_age| age.saturating_add(max_age));
        let before = Some(self.origin.max_age).filter(|max_age| *max_age != ENDLESS);
        let max_age = own.into_iter().chain(before).min();
        Some(Filled { bytes, max_age, marker_only: row.marker_only })
    }
}

/// A refresh under way: the right to put the unit back. If it is dropped, the unit is not cached,
/// and reads that wait for it ask the database.
pub struct Refresh<W> {
    kept: KeptUnit,
    ticket: Ticket<W>,
}

impl<W> Refresh<W> {
    /// What to read: the row with this key.
    pub fn row(&self) -> (&ReadPlan, &RowKey) {
        (&self.kept.plan, &self.kept.keys.1)
    }
}

impl<W> RowCache<W> {
    fn still_permits(&self, kept: &KeptUnit) -> bool {
        self.policies.generation() == kept.generation
            && self.cache_permission(&kept.plan.table) == Ok(kept.permission)
    }

    /// Puts an untouched unit back, while the gates of the write are closed. False if something
    /// else has happened to it since the write began: another write, a hold, another permission.
    pub(crate) fn put_back(&self, kept: &KeptUnit) -> bool {
        assert!(
            kept.is_untouched(),
            "a unit is put back as it was before a write of one of its rows"
        );
        let (now, origin) = (self.clock.moment(), &kept.origin);
        let left = match origin.max_age {
            ENDLESS => Some(None),
            max_age => {
                self.age(origin.filled_at).and_then(|age| max_age.checked_sub(age)).map(Some)
            }
        };
        let Some(left) = left else { return false };
        let token = u64::from(kept.gates.1) << (64 - SLOT_BITS);
        let expiry = left.map_or(0, |left| now.unix.saturating_add(left));
        let options = PutOptions { expiry, group: group_of(kept.plan.table.id), token };
        self.still_permits(kept)
            && self.gates.replace(kept.gates, kept.stamp, || {
                // When the journal is full it is kept for writes.
                let stored = |ack| match ack {
                    Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => true,
                    Ack::Done(PutOutcome::Refused(_)) => false,
                };
                self.rows.backpressure().is_none()
                    && stored(self.rows.submit_put(kept.key().engine_key(), &kept.value, options))
            })
    }

    /// After the gates of the write are open: leads a fill of the unit. `None` if another write
    /// has begun, a gate is held or weak, or a fill of the unit is under way already.
    pub fn begin_refresh(&self, kept: KeptUnit) -> Option<Refresh<W>> {
        let CachePermission::Exclusive { claim } = kept.permission else { return None };
        if !self.still_permits(&kept) {
            return None;
        }
        let (table, slot) = kept.gates;
        let unit = (table, slot, kept.key().engine_key());
        let ticket = self.gates.lead_after(unit, kept.stamp, self.clock.now(), claim)?;
        Some(Refresh { kept, ticket })
    }

    /// Puts the unit back with the row that was read, if no write has begun meanwhile. `asked_at`
    /// is the moment *before* the row was asked for, which was after [`RowCache::begin_refresh`].
    /// The caller tells the reads that waited.
    pub fn end_refresh(
        &self,
        refresh: Refresh<W>,
        row: &Filled,
        asked_at: Moment,
        most_bytes: usize,
    ) -> InstallOutcome<W> {
        let Refresh { kept, ticket } = refresh;
        let filled = kept.with(row, asked_at, most_bytes).filter(|_| self.still_permits(&kept));
        let Some(filled) = filled else {
            let (row, installed, shared) = (None, Installed::Uncacheable, None);
            let waiters = ticket.finish(|| ()).waiters;
            return InstallOutcome { row, installed, waiters, shared };
        };
        let age = asked_at.boot.saturating_sub(kept.origin.filled_at);
        let fill = ReturnedFill {
            plan: &kept.plan,
            key: kept.key(),
            filled,
            cache_permission: kept.permission,
            // Of the unit's fill: ages go on counting from there.
            asked_at: Moment {
                unix: asked_at.unix.saturating_sub(age),
                boot: kept.origin.filled_at,
            },
            weak: false,
        };
        self.install(fill, ticket)
    }
}

#[cfg(test)]
#[path = "refresh_tests.rs"]
mod tests;
