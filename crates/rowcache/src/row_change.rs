//! A write of one row whose cached copy can follow it: after the database has acknowledged the
//! write, the next read is a hit with the new values.
//!
//! 1. [`RowChange::of`] takes the written values, the timestamp and the TTL from the request.
//! 2. The gates of the write are closed. [`CachedRow::of`] looks at the cached row, which is then
//!    dropped, and makes the row that the write leaves behind ([`UpdatedRow`]). A row on flash is
//!    read while the write is under way ([`RowOnFlash`]). The write does not wait for it.
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
use afterglow_engine::{Ack, FlashRead, Hit, Lookup, Peek, PutOptions, PutOutcome};

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
            Some(source) => i64::from_be_bytes(source.number(value)?),
        };
        let ttl = match &update.ttl {
            None => update.table.default_ttl,
            Some(source) => u32::try_from(i32::from_be_bytes(source.number(value)?)).ok()?,
        };
        let mut cells = Vec::with_capacity(update.cells.len());
        for cell in &update.cells {
            let bytes = match &cell.value {
                ValueSource::Literal(bytes) => bytes,
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

/// What is known of the cached row that a write names, before it is dropped.
pub(crate) enum CachedRow {
    /// It can be put back with the new values.
    Updatable(UpdatedRow),
    /// It is on flash only.
    OnFlash(Box<RowOnFlash>),
    /// It cannot be put back, or there is none.
    Dropped,
}

/// The row that a write names, when the gates of the write have closed.
struct NamedRow {
    key: Vec<u8>,
    /// Its table's gate and its slot.
    gates: (u32, u32),
    /// Of the write.
    stamp: Stamp,
    /// What it may be servable under.
    permission: CachePermission,
    /// Generation of the policies then.
    generation: u64,
    /// Before the write is sent.
    now: Moment,
}

/// A row on flash that a write names, as it is before the write. It is dropped meanwhile, so that
/// only this read finds it.
pub(crate) struct RowOnFlash {
    row: NamedRow,
    change: RowChange,
    /// Until it is taken.
    read: Option<FlashRead>,
    _pending: Pending,
}

/// A row as the database has it once the write is acknowledged.
pub(crate) struct UpdatedRow {
    row: NamedRow,
    /// What is stored, and how.
    value: Vec<u8>,
    options: PutOptions,
    table: Arc<TableSchema>,
    _pending: Pending,
}

impl CachedRow {
    /// Looks at the row that a write names. The gates of the write are closed, and the row is not
    /// dropped yet.
    pub(crate) fn of<W>(cache: &RowCache<W>, scope: &WriteScope, change: &RowChange) -> CachedRow {
        let Some(row) = NamedRow::of(cache, scope, change) else { return CachedRow::Dropped };
        let found = match cache.rows.peek(&row.key) {
            Peek::Absent => return CachedRow::Dropped,
            Peek::Dram(hit) => Lookup::Hit(hit),
            Peek::Flash => cache.rows.peek_flash(&row.key),
        };
        match found {
            Lookup::Miss(_) => CachedRow::Dropped,
            Lookup::Hit(hit) => {
                row.after(cache, &hit, change).map_or(CachedRow::Dropped, CachedRow::Updatable)
            }
            Lookup::Flash(read) => {
                let bytes = change.bytes() + read.len() as usize;
                let Some(_pending) = Pending::take(&cache.pending, bytes) else {
                    return CachedRow::Dropped;
                };
                let (change, read) = (change.clone(), Some(read));
                CachedRow::OnFlash(Box::new(RowOnFlash { row, change, read, _pending }))
            }
        }
    }
}

impl RowOnFlash {
    /// What to read; once.
    pub(crate) fn take_read(&mut self) -> Option<FlashRead> {
        self.read.take()
    }

    /// The row that the write leaves behind, once the read has found this.
    pub(crate) fn after<W>(self, cache: &RowCache<W>, hit: &Hit) -> Option<UpdatedRow> {
        self.row.after(cache, hit, &self.change)
    }
}

impl NamedRow {
    fn of<W>(cache: &RowCache<W>, scope: &WriteScope, change: &RowChange) -> Option<NamedRow> {
        // In a ring, what one instance knows of the other writes to a row is not all there is.
        if cache.shards.get().is_some() {
            return None;
        }
        let (slot, key) = scope.only_row()?;
        let table = &change.table;
        let gates = (gate_of(&table.keyspace, &table.name), slot);
        // Before the row is looked up: a write that drops it from here on has another stamp.
        let stamp = cache.gates.sole_writer(gates, cache.clock.now())?;
        let generation = cache.policies.generation();
        let permission = cache.cache_permission(table).ok()?;
        let (key, now) = (key.to_vec(), cache.clock.moment());
        Some(NamedRow { key, gates, stamp, permission, generation, now })
    }

    /// The row as this change leaves it behind, where `hit` is what was cached before.
    fn after<W>(self, cache: &RowCache<W>, hit: &Hit, change: &RowChange) -> Option<UpdatedRow> {
        let (table, now) = (&change.table, self.now);
        let row = cache.accept(hit, self.permission, change.fingerprint).ok()?;
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
                cache.expiry_in(left)
            }
        };
        let token = u64::from(self.gates.1) << (64 - SLOT_BITS);
        let options =
            PutOptions { expiry, group: group_of(table.id), token, ..PutOptions::default() };
        Some(UpdatedRow { row: self, value, options, table: table.clone(), _pending })
    }
}

impl<W> RowCache<W> {
    /// Installs a row that the database has acknowledged. False if something else has happened to
    /// it since the write began: another write, a hold, another permission.
    pub(crate) fn replace(&self, updated: &UpdatedRow) -> bool {
        let row = &updated.row;
        let is_permitted = self.policies.generation() == row.generation
            && self.cache_permission(&updated.table) == Ok(row.permission);
        is_permitted
            && self.gates.replace(row.gates, row.stamp, || {
                // When the journal is full it is kept for writes.
                let stored = |ack| match ack {
                    Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => true,
                    Ack::Done(PutOutcome::Refused(_)) => false,
                };
                self.rows.backpressure().is_none()
                    && stored(self.rows.submit_put(&row.key, &updated.value, updated.options))
            })
    }
}

#[cfg(test)]
#[path = "row_change_tests.rs"]
mod tests;
