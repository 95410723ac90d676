//! What a read does after a miss, and up to which age its fill is served.
//!
//! 1. [`RowCache::join`]: the gates decide whether the read fills, waits for another's fill, or is
//!    a bypass.
//! 2. The caller notes the time, then reads the row from the database
//!    ([`fill_query`](crate::row::fill_query), [`read_fill`](crate::row::read_fill)).
//! 3. [`RowCache::install`]: checks that no write has begun since, and stores the row in the same
//!    step.

use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Ack, Peek, PutOptions, PutOutcome, RefuseReason};
use bytes::Bytes;

use crate::clock::Moment;
use crate::entry::{ENDLESS, Origin, Row};
use crate::gate::{Join, Ticket, slot_of};
use crate::row::{Filled, StoredRow};
use crate::row_cache::{NO_CLAIM, RowCache};
use crate::serve::CachePermission;
use crate::unit::StoredUnit;
use crate::write_scope::{gate_of, group_of, token_of};

/// The outcome of a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// The row is cached.
    Row,
    /// The absence of the row is cached.
    Absent,
    /// A write began, or a younger fill was installed, after this fill began.
    Overtaken,
    /// The database's answer may not be cached.
    Uncacheable,
    /// The engine did not take it.
    Refused,
    /// It is larger than the engine can store.
    TooLarge,
}

/// A finished fill.
pub struct InstallOutcome<W> {
    /// For the read that led it. `None` if the answer cannot be understood, or is a unit.
    pub row: Option<Row>,
    /// Whether it is cached.
    pub installed: Installed,
    /// Reads that waited for it.
    pub waiters: Vec<W>,
    /// The result for them: none if the row reached its maximum age before they may have come.
    pub shared: Option<Row>,
}

/// A fill that was answered.
pub struct ReturnedFill<'a> {
    /// The plan that the row was read for.
    pub plan: &'a ReadPlan,
    /// The row's key.
    pub key: &'a RowKey,
    /// What the database answered.
    pub filled: Filled,
    /// The permission to cache from before the fill was sent.
    pub cache_permission: CachePermission,
    /// The moment before it was sent.
    pub asked_at: Moment,
    /// Whether it may miss acknowledged writes for another reason than its gates know.
    pub weak: bool,
}

impl ReturnedFill<'_> {
    /// The age in seconds, from when the fill was sent, at which its row is served no more.
    /// `None`: never.
    /// `weak`: the bound if the fill may not have seen all acknowledged writes.
    fn max_age(&self, weak: Option<u32>) -> Option<u32> {
        let bound = match self.cache_permission {
            CachePermission::Bounded { seconds } => Some(seconds),
            CachePermission::Exclusive { .. } => None,
        };
        [bound, weak, self.filled.max_age].into_iter().flatten().min()
    }
}

impl<W> RowCache<W> {
    /// What a read does after a miss: lead the fill, wait for another's, or bypass the cache.
    /// `waiter` is called only if the answer is [`Join::Wait`].
    pub fn join(
        &self,
        table: &TableSchema,
        key: &RowKey,
        cache_permission: CachePermission,
        waiter: impl FnOnce() -> W,
    ) -> Join<W> {
        let (tolerant, claim) = match cache_permission {
            CachePermission::Bounded { .. } => (true, self.boot),
            CachePermission::Exclusive { claim } => (false, claim),
        };
        let gate = gate_of(&table.keyspace, &table.name);
        let slot = slot_of(token_of(gate, key.partition_key()));
        let row = (gate, slot, key.engine_key());
        self.gates.join(row, self.clock.now(), tolerant, claim, waiter)
    }

    /// Ends a fill: installs the row if no write and no younger fill overtook it. The caller tells
    /// the reads that waited.
    ///
    /// `asked_at` is the moment *before* the fill was sent.
    pub fn install(&self, mut fill: ReturnedFill<'_>, ticket: Ticket<W>) -> InstallOutcome<W> {
        let bytes = Bytes::from(std::mem::take(&mut fill.filled.bytes));
        let row = Row::checked(bytes.clone(), fill.plan.fingerprint);
        let mut installed = Installed::Overtaken;
        let weak = (ticket.is_weak() || fill.weak).then_some(self.weak_max_age.as_secs() as u32);
        // A row without values lives as long as its marker, whose expiry no SELECT shows. So it is
        // cached only with a bound.
        let max_age = fill.max_age(weak);
        let doubted = ticket.is_doubted() || fill.weak;
        let finished = if fill.filled.marker_only
            && matches!(fill.cache_permission, CachePermission::Exclusive { .. })
        {
            installed = Installed::Uncacheable;
            ticket.finish(|| ())
        } else {
            ticket.finish_beside(|newer| {
                if !has_one_of(&fill.plan.table, &bytes, newer) {
                    installed = self.put(&fill, &bytes, max_age, doubted);
                }
            })
        };
        // A read that came while the database was slow may have come after the row's end.
        let ended = max_age
            .is_some_and(|max_age| self.age(fill.asked_at.boot).is_none_or(|age| age >= max_age));
        if installed == Installed::TooLarge {
            self.gates.note_too_large(fill.key.engine_key(), finished.stamp, self.clock.now());
        }
        let shared = row.clone().filter(|_| !ended);
        InstallOutcome { row, installed, waiters: finished.waiters, shared }
    }

    fn put(
        &self,
        fill: &ReturnedFill<'_>,
        bytes: &[u8],
        max_age: Option<u32>,
        doubted: bool,
    ) -> Installed {
        let ReturnedFill { plan: ReadPlan { table, .. }, key, cache_permission, asked_at, .. } =
            fill;
        let claim = match cache_permission {
            CachePermission::Exclusive { claim } => *claim,
            CachePermission::Bounded { .. } => self.boot,
        };
        // [`RowCache::accept`] asserts the same: a row cached without a claim is never served.
        assert!(claim != NO_CLAIM, "a row is cached without a claim");
        let origin = Origin {
            claim,
            filled_at: asked_at.boot,
            max_age: max_age.unwrap_or(ENDLESS),
            doubted,
        };
        let token = token_of(gate_of(&table.keyspace, &table.name), key.partition_key());
        let left =
            |max_age: u32| self.age(asked_at.boot).map_or(0, |age| max_age.saturating_sub(age));
        let expiry = max_age.map_or(0, |max_age| self.expiry_in(left(max_age)));
        let options =
            PutOptions { expiry, group: group_of(table.id), token, ..PutOptions::default() };
        self.drop_unit_with(table, key);
        // When the journal is full it is kept for writes. A later read fills this row again. What
        // an older fill has installed goes all the same, as by a put that is refused: readers are
        // about to see this one. Seldom is there something.
        if self.rows.backpressure().is_some() {
            if !matches!(self.rows.peek(key.engine_key()), Peek::Absent) {
                drop(self.rows.submit_remove(key.engine_key()));
            }
            return Installed::Refused;
        }
        match self.rows.submit_put(key.engine_key(), &origin.before(bytes), options) {
            Ack::Done(PutOutcome::Stored { .. })
                if StoredRow::decode(bytes).is_some_and(|row| row.is_absent()) =>
            {
                Installed::Absent
            }
            Ack::Done(PutOutcome::Stored { .. }) | Ack::Later(_) => Installed::Row,
            Ack::Done(PutOutcome::Refused(RefuseReason::TooLarge | RefuseReason::KeyTooLong)) => {
                Installed::TooLarge
            }
            Ack::Done(PutOutcome::Refused(_)) => Installed::Refused,
        }
    }

    /// Reads of a row are served from the row, or from the unit of its partition. No read may see
    /// an older state than an earlier one did: others may write past us, and a fill may miss a weak
    /// write. A unit in DRAM that has this row was not there when the row's fill began, or was not
    /// asked: it may be older, and would be served once the row is evicted. A unit whose fill began
    /// later has barred this one ([`Ticket::finish`]).
    fn drop_unit_with(&self, table: &TableSchema, key: &RowKey) {
        if !key.has_clustering() {
            return;
        }
        let Peek::Dram(hit) = self.rows.peek(key.unit_key()) else { return };
        let unit = Origin::split(&hit.value).and_then(|(_, bytes)| StoredUnit::decode(bytes));
        if unit.is_some_and(|unit| unit.tells_of(table, key)) {
            drop(self.rows.submit_remove(key.unit_key()));
        }
    }
}

/// Whether what was filled is a unit that has one of these rows.
pub(crate) fn has_one_of(table: &TableSchema, bytes: &[u8], rows: &[Box<[u8]>]) -> bool {
    if rows.is_empty() {
        return false;
    }
    let Some(unit) = StoredUnit::decode(bytes) else { return false };
    let columns = (table.partition_key.len(), table.clustering.len());
    let row = |row: &[u8]| RowKey::from_engine_key(row, columns.0, columns.1);
    rows.iter().any(|key| row(key).is_none_or(|key| unit.tells_of(table, &key)))
}
