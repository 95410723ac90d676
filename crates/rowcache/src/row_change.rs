//! A write of one row whose cached copy can follow it: after the database has acknowledged the
//! write, the next read is a hit with the new values.
//!
//! 1. [`RowChange::of`] takes the written values, the timestamp and the TTL from the request.
//! 2. The gates of the write are closed. [`UpdatedRow::of`] looks at the cached row, which is then
//!    dropped, and makes the row that the write leaves behind.
//! 3. The write is sent, and acknowledged.
//! 4. [`RowCache::replace`] installs the new row if nothing else has happened to it.
//!
//! Invariants:
//! - What is put back was servable when the write began. Its cells that the write sets are not
//!   null, and all are older than the write.
//! - The time of the fill stays: an update never makes a row live longer. The maximum age may
//!   become shorter.
//! - Rows that may lack an acknowledged write (`doubted`), and rows beside a gate that is held or
//!   weak, are not put back.
//! - The rows of all writes under way take [`MOST_PENDING`](crate::kept_unit::MOST_PENDING) bytes at most.

use std::sync::Arc;

use afterglow_cql::frame::notation::Value;
use afterglow_cql::plan::{RowUpdate, TableSchema, ValueSource};
use afterglow_cql::statement::Marker;
use afterglow_engine::{Ack, Hit, Peek, PutOptions, PutOutcome};

use crate::clock::Moment;
use crate::entry::{ENDLESS, Origin};
use crate::gate::SLOT_BITS;
use crate::kept_unit::Pending;
use crate::row::{Cell, StoredRow, encode};
use crate::row_cache::RowCache;
use crate::serve::CachePermission;
use crate::stamp::Stamp;
use crate::write_scope::{WriteScope, gate_of, group_of};

/// The values of a write of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    table: Arc<TableSchema>,
    fingerprint: u64,
    timestamp: i64,
    /// In seconds; 0 for none.
    ttl: u32,
    /// By position of the column.
    cells: Vec<(u16, Vec<u8>)>,
}

impl RowChange {
    /// The values that a request writes. `value` gives what is bound to a marker, none if nothing
    /// is; `default_timestamp` is that of the request. `None` if a value, the timestamp or the TTL
    /// is not known, if a value is null, or if nothing is written.
    pub fn of<'v>(
        update: &RowUpdate,
        value: &impl Fn(&Marker) -> Option<Value<'v>>,
        default_timestamp: Option<i64>,
    ) -> Option<RowChange> {
        let timestamp = match &update.timestamp {
            None => default_timestamp?,
            Some(source) => i64::from_be_bytes(number(source, value)?),
        };
        let ttl = match &update.ttl {
            None => update.table.default_ttl,
            Some(source) => u32::try_from(i32::from_be_bytes(number(source, value)?)).ok()?,
        };
        let mut cells = Vec::with_capacity(update.cells.len());
        for cell in &update.cells {
            let bytes = match &cell.value {
                ValueSource::Literal(bytes) => bytes.as_slice(),
                ValueSource::Bind(marker) => match value(marker)? {
                    Value::Bytes(bytes) => bytes,
                    Value::Unset => continue,
                    Value::Null => return None,
                },
            };
            if !cell.is_stored_as(bytes) {
                return None;
            }
            cells.push((cell.column, bytes.to_vec()));
        }
        let RowUpdate { table, fingerprint, .. } = update;
        let change =
            RowChange { table: table.clone(), fingerprint: *fingerprint, timestamp, ttl, cells };
        (!change.cells.is_empty()).then_some(change)
    }

    /// The table as it was when the write was planned.
    pub fn table(&self) -> &Arc<TableSchema> {
        &self.table
    }

    /// Whether what it sets has no TTL, of its own or of its table.
    pub fn is_endless(&self) -> bool {
        self.ttl == 0
    }

    fn bytes(&self) -> usize {
        self.cells.iter().map(|(_, value)| value.len()).sum()
    }

    /// The row after the write. `None` if a cell that it sets is null or not older than it.
    fn apply(&self, row: &StoredRow<'_>, now: Moment) -> Option<Vec<u8>> {
        let expiry = match self.ttl {
            0 => 0,
            ttl => now.unix.saturating_add(ttl),
        };
        let mut cells: Vec<Cell<'_>> = (0..row.columns()).map(|at| row.cell(at)).collect();
        for (column, value) in &self.cells {
            let cell = cells.get_mut(usize::from(*column))?;
            if cell.value.is_none() || self.timestamp <= cell.write_time {
                return None;
            }
            *cell = Cell { value: Some(value), write_time: self.timestamp, expiry };
        }
        let mut bytes = Vec::new();
        encode(self.fingerprint, &cells, &mut bytes).then_some(bytes)
    }

    /// The row's maximum age after the write. What it sets lives for its TTL from when the server
    /// takes it, which counts whole seconds (see [`Filled::max_age`](crate::row::Filled::max_age)).
    /// `now`: a moment before the write is sent. `None` if the row ends at once.
    fn max_age(&self, origin: &Origin, now: Moment) -> Option<u32> {
        if self.ttl == 0 {
            return Some(origin.max_age);
        }
        let age = now.boot.checked_sub(origin.filled_at)?;
        let own = age.saturating_add(self.ttl - 1).min(ENDLESS - 1);
        Some(own.min(origin.max_age)).filter(|max_age| *max_age > age)
    }
}

/// A number of a `USING` clause.
fn number<'v, const N: usize>(
    source: &ValueSource,
    value: &impl Fn(&Marker) -> Option<Value<'v>>,
) -> Option<[u8; N]> {
    match source {
        ValueSource::Literal(bytes) => bytes.as_slice().try_into().ok(),
        ValueSource::Bind(marker) => value(marker)?.bytes()?.try_into().ok(),
    }
}

/// What is known of the cached row that a write names, before it is dropped.
pub(crate) enum CachedRow {
    /// It can be put back with the new values.
    Updatable(UpdatedRow),
    /// It is on flash only, and is not read for this.
    OnFlash,
    /// It cannot be put back, or there is none.
    Dropped,
}

/// A row as the database has it once the write is acknowledged.
pub(crate) struct UpdatedRow {
    key: Vec<u8>,
    /// What is stored, and how.
    value: Vec<u8>,
    options: PutOptions,
    /// Its table's gate and its slot.
    gates: (u32, u32),
    /// Of the write.
    stamp: Stamp,
    table: Arc<TableSchema>,
    /// What it was servable under.
    permission: CachePermission,
    /// Generation of the policies then.
    generation: u64,
    _pending: Pending,
}

impl UpdatedRow {
    /// Looks at the row that a write names. The gates of the write are closed, and the row is not
    /// dropped yet.
    pub(crate) fn of<W>(cache: &RowCache<W>, scope: &WriteScope, change: &RowChange) -> CachedRow {
        let gate = gate_of(&change.table.keyspace, &change.table.name);
        let row = scope.only_row().and_then(|(slot, key)| {
            // Before the row is looked up: a write that drops it from here on has another stamp.
            let stamp = cache.gates.sole_writer((gate, slot), cache.clock.now())?;
            Some(((gate, slot), stamp, key))
        });
        let Some((gates, stamp, key)) = row else { return CachedRow::Dropped };
        match cache.rows.peek(key) {
            Peek::Absent => CachedRow::Dropped,
            Peek::Flash => CachedRow::OnFlash,
            Peek::Dram(hit) => UpdatedRow::from_hit(cache, (gates, stamp, key), &hit, change)
                .map_or(CachedRow::Dropped, CachedRow::Updatable),
        }
    }

    fn from_hit<W>(
        cache: &RowCache<W>,
        (gates, stamp, key): ((u32, u32), Stamp, &[u8]),
        hit: &Hit,
        change: &RowChange,
    ) -> Option<UpdatedRow> {
        // In a ring, what one instance knows of the other writes to a row is not all there is.
        if cache.shards.get().is_some() {
            return None;
        }
        let (table, now) = (&change.table, cache.clock.moment());
        let generation = cache.policies.generation();
        let permission = cache.cache_permission(table).ok()?;
        let row = cache.accept(hit, permission, change.fingerprint).ok()?;
        let (origin, _) = Origin::split(&hit.value)?;
        if origin.doubted {
            return None;
        }
        let origin = Origin { max_age: change.max_age(&origin, now)?, ..origin };
        // It becomes as large as before and what is written, roughly.
        let _pending = Pending::take(&cache.pending, hit.value.len() + change.bytes())?;
        let value = origin.before(&change.apply(&row.stored(), now)?);
        let expiry = match origin.max_age {
            ENDLESS => 0,
            max_age => {
                let left = max_age.checked_sub(cache.age(origin.filled_at)?)?;
                now.unix.saturating_add(left)
            }
        };
        let token = u64::from(gates.1) << (64 - SLOT_BITS);
        let options = PutOptions { expiry, group: group_of(table.id), token };
        let (key, table) = (key.to_vec(), table.clone());
        Some(UpdatedRow {
            key,
            value,
            options,
            gates,
            stamp,
            table,
            permission,
            generation,
            _pending,
        })
    }
}

impl<W> RowCache<W> {
    /// Installs a row that the database has acknowledged. False if something else has happened to
    /// it since the write began: another write, a hold, another permission.
    pub(crate) fn replace(&self, row: &UpdatedRow) -> bool {
        let is_permitted = self.policies.generation() == row.generation
            && self.cache_permission(&row.table) == Ok(row.permission);
        is_permitted
            && self.gates.replace(row.gates, row.stamp, || {
                // When the journal is full it is kept for writes.
                let stored = |ack| match ack {
                    Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => true,
                    Ack::Done(PutOutcome::Refused(_)) => false,
                };
                self.rows.backpressure().is_none()
                    && stored(self.rows.submit_put(&row.key, &row.value, row.options))
            })
    }
}

#[cfg(test)]
#[path = "row_change_tests.rs"]
mod tests;
