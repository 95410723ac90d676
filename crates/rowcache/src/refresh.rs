//! A read of one row right after a write of it, so that the next read is a hit: a refresh.
//!
//! What a write leaves behind is not always known. A tombstone that no SELECT shows may hide a new
//! row, and a unit has no write times. So the row is read again, as soon as the write is
//! acknowledged. Nothing is concluded from the write's values or timestamp.
//!
//! 1. The gates of the write close ([`RowCache::begin_unit_write`]). The first write takes the unit
//!    of the row's partition, which is then dropped. Others that begin before it is back go on with
//!    the same unit.
//! 2. Reads that the unit would serve wait for it ([`RowCache::await_unit`]).
//! 3. The write is sent, and acknowledged. Its gates open. [`RowCache::end_unit_write`] says
//!    whether to read the row: not if another write of it is under way, nor if it is behind the
//!    unit's last.
//! 4. The caller notes the time, and reads the row as for a fill of it.
//! 5. [`RowCache::end_refresh`] puts the row into the unit, if no other write of the row has begun.
//!    With the last row the unit is put back, and served to the reads that waited.
//!
//! Invariants:
//! - The unit was servable when the first write began, under `exclusive`. That was the only one
//!   that might touch the partition then. Each one since is of one row that is known. Any other
//!   write ends the refresh. So every other row is as the unit has it.
//! - Each written row is read after all writes of it were acknowledged, at a level that sees them.
//! - The unit is neither cached nor shown to a read before all of its rows are so. So no read sees
//!   one write without another that came before it.
//! - The time of the unit's fill stays: a refresh never makes it live longer.
//! - A unit that may lack an acknowledged write (`doubted`), and a unit beside a gate that is held
//!   or weak, is not kept.
//! - The units of all writes under way take [`MOST_PENDING`](crate::kept_unit::MOST_PENDING) bytes
//!   at most, together with the rows that writes are to put back.

use std::sync::Arc;

use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Ack, Peek, PutOptions, PutOutcome, RefuseReason};

use crate::clock::Moment;
use crate::entry::{Origin, Unit};
use crate::gate::{Acknowledged, Amended, AmendmentId, Reread, SLOT_BITS, Share, slot_of};
use crate::install::{Installed, has_one_of};
use crate::kept_unit::{KeptOf, KeptUnit, Pending};
use crate::row::Filled;
use crate::row_cache::RowCache;
use crate::serve::CachePermission;
use crate::write_scope::{WriteScope, gate_of, group_of, token_of};

/// A row that a write names, whose partition may have a unit.
pub(crate) struct RowOfUnit {
    table: Arc<TableSchema>,
    row: RowKey,
    /// Its table's gate and its slot.
    gates: (u32, u32),
}

impl RowOfUnit {
    /// The one row that a write names, and writes for certain. `None` if a unit cannot follow the
    /// write.
    pub(crate) fn of<W>(
        cache: &RowCache<W>,
        scope: &WriteScope,
        table: &Arc<TableSchema>,
    ) -> Option<RowOfUnit> {
        let (slot, engine_key) = scope.only_row()?;
        // A transaction may complete another one. In a ring, what one instance knows of the other
        // writes to a partition is not all there is. A trigger may write other rows.
        if scope.conditional || cache.shards.get().is_some() || table.triggers {
            return None;
        }
        let columns = (table.partition_key.len(), table.clustering.len());
        let row = RowKey::from_engine_key(engine_key, columns.0, columns.1)?;
        let gates = (gate_of(&table.keyspace, &table.name), slot);
        row.has_clustering().then(|| RowOfUnit { table: table.clone(), row, gates })
    }
}

/// A row to be read again. If it is dropped, the unit is not cached, and reads that wait for it ask
/// the database.
pub struct Refresh<W>(Reread<W>);

impl<W> Refresh<W> {
    /// What to read: the row with this key.
    pub fn row(&self) -> (&ReadPlan, &RowKey) {
        (&self.0.of().plan, self.0.row())
    }

    /// The key of the unit.
    pub fn unit_key(&self) -> &[u8] {
        self.0.of().key.engine_key()
    }
}

/// A unit that was put back, or the end of its refresh.
pub struct Refreshed<W> {
    /// What came of the row that was read.
    pub installed: Installed,
    /// Reads that waited for the unit. Those that are dropped go on without it.
    pub waiters: Vec<W>,
    /// The unit for them: as the database has it, at a moment after they came. None if it has
    /// reached its maximum age, or may be older than what they have seen.
    pub unit: Option<Unit>,
}

/// What a write leaves of the unit of its partition.
pub enum UnitLeft<W> {
    /// Nothing.
    Dropped,
    /// The row is to be read again.
    Refresh(Refresh<W>),
    /// Other writes of it are under way, or reads. They go on with it.
    Awaited,
    /// It is back as it was: the row is behind its last.
    Back(Refreshed<W>),
}

impl<W> RowCache<W> {
    /// Closes the gates of a write of one row that is about to be sent, and takes the unit.
    pub(crate) fn begin_unit_write(&self, of: &RowOfUnit) -> Option<Share<W>> {
        let now = self.clock.now();
        if let Some(share) = self.gates.begin_row_write(of.gates, &of.row) {
            return Some(share);
        }
        // Before the unit is looked up: a write that drops it from here on has another stamp.
        let stamp = self.gates.sole_writer(of.gates, now)?;
        let (unit, covered) = self.keep_unit(of)?;
        self.gates.amend(unit, &of.row, covered, stamp, now)
    }

    /// The unit of the row, which is not dropped yet, and whether it reaches to the row. `None` if
    /// there is none in DRAM, or if it cannot be kept.
    fn keep_unit(&self, of: &RowOfUnit) -> Option<(KeptUnit, bool)> {
        let Peek::Dram(hit) = self.rows.peek(of.row.unit_key()) else { return None };
        let generation = self.policies.generation();
        let permission = self.cache_permission(&of.table).ok()?;
        // Others may write under another policy: the unit would be of two moments.
        let CachePermission::Exclusive { claim } = permission else { return None };
        let plan = ReadPlan::of_table(of.table.clone());
        let unit = self.accept_unit(&hit, permission, plan.fingerprint).ok()?;
        let (origin, _) = Origin::split(&hit.value)?;
        // It may be there twice while a row is put in.
        let pending = Pending::take(&self.pending, 2 * hit.value.len())?;
        let key = RowKey::from_engine_key(of.row.unit_key(), of.table.partition_key.len(), 0)?;
        let kept_of = KeptOf { plan, key, gates: of.gates, claim, generation, pending };
        let unit = KeptUnit::new(origin, unit, kept_of)?;
        let covered = unit.covers(&of.row)?;
        Some((unit, covered))
    }

    /// Whether a read waits for the unit of this row, or for the unit with this key, which is being
    /// written. `serves`: whether the unit, as it is without that, would answer it. The caller
    /// waits for [`AWAITED_FOR`](crate::gate::AWAITED_FOR) at most.
    pub fn await_unit(
        &self,
        table: &TableSchema,
        key: &RowKey,
        permission: CachePermission,
        serves: impl FnOnce(&Unit) -> bool,
        waiter: impl FnOnce() -> W,
    ) -> bool {
        let CachePermission::Exclusive { claim } = permission else { return false };
        let gate = gate_of(&table.keyspace, &table.name);
        let slot = slot_of(token_of(gate, key.partition_key()));
        let unit = (gate, slot, key.unit_key());
        let awaited = self.gates.awaited(unit, self.clock.now(), claim);
        awaited
            .is_some_and(|awaited| serves(awaited.unit.unit()) && self.gates.wait(&awaited, waiter))
    }

    fn still_permits(&self, of: &KeptOf) -> bool {
        self.policies.generation() == of.generation
            && self.cache_permission(&of.plan.table)
                == Ok(CachePermission::Exclusive { claim: of.claim })
    }

    /// A write was acknowledged, every quorum sees it, and its gates are open.
    pub(crate) fn end_unit_write(&self, share: Share<W>) -> UnitLeft<W> {
        if !self.still_permits(share.of()) {
            return UnitLeft::Dropped;
        }
        match share.acknowledged() {
            Acknowledged::Read(row) => UnitLeft::Refresh(Refresh(row)),
            Acknowledged::Wait => UnitLeft::Awaited,
            Acknowledged::Open(at) => match self.open(&at) {
                Some(back) => UnitLeft::Back(back),
                None => UnitLeft::Awaited,
            },
            Acknowledged::Lost => UnitLeft::Dropped,
        }
    }

    /// Puts the row that was read into the unit, if no other write of the row has begun meanwhile.
    /// If no other row is being written or read, the unit is back. `asked_at` is the moment
    /// *before* the row was asked for, which was after the write was acknowledged. The caller tells
    /// the reads that waited.
    pub fn end_refresh(
        &self,
        refresh: Refresh<W>,
        row: &Filled,
        asked_at: Moment,
        most_bytes: usize,
    ) -> Refreshed<W> {
        let Refresh(reread) = refresh;
        let ended = |installed| Refreshed { installed, waiters: Vec::new(), unit: None };
        if !self.still_permits(reread.of()) {
            return ended(Installed::Uncacheable);
        }
        let key = reread.row().clone();
        let with = |unit: &KeptUnit| unit.with(&key, row, asked_at, most_bytes);
        match reread.amend(with) {
            Amended::Overtaken => ended(Installed::Overtaken),
            Amended::Lost => ended(Installed::Uncacheable),
            Amended::Waits => ended(Installed::Row),
            // If another write has begun, the unit waits for that one.
            Amended::Whole(at) => self.open(&at).unwrap_or_else(|| ended(Installed::Row)),
        }
    }

    /// Puts a unit back of which nothing is written.
    fn open(&self, at: &AmendmentId) -> Option<Refreshed<W>> {
        let opened = self.gates.open(at, |unit, newer| {
            let table = &unit.of().plan.table;
            if has_one_of(table, unit.unit().bytes(), newer) {
                return (Installed::Overtaken, false);
            }
            let Some(left) = unit.left(self.clock.seconds()) else {
                return (Installed::Uncacheable, false);
            };
            (self.put_unit(unit, left), true)
        })?;
        let (installed, is_shown) = opened.installed;
        let unit = is_shown.then(|| opened.unit.unit().clone());
        Some(Refreshed { installed, waiters: opened.waiters, unit })
    }

    fn put_unit(&self, unit: &KeptUnit, left: Option<u32>) -> Installed {
        let KeptOf { plan, key, gates, .. } = unit.of();
        let token = u64::from(gates.1) << (64 - SLOT_BITS);
        let expiry = left.map_or(0, |left| self.expiry_in(left));
        let options =
            PutOptions { expiry, group: group_of(plan.table.id), token, ..PutOptions::default() };
        // When the journal is full it is kept for writes.
        if self.rows.backpressure().is_some() {
            return Installed::Refused;
        }
        match self.rows.submit_put(key.engine_key(), &unit.value(), options) {
            Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => Installed::Row,
            Ack::Done(PutOutcome::Refused(RefuseReason::TooLarge | RefuseReason::KeyTooLong)) => {
                Installed::TooLarge
            }
            Ack::Done(PutOutcome::Refused(_)) => Installed::Refused,
        }
    }
}

#[cfg(test)]
#[path = "refresh_tests.rs"]
mod tests;
