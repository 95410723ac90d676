//! What a read that missed does, and what of its fill is cached for how long.
//!
//! 1. [`RowCache::join`]: the gates say whether the read fills, waits for another's fill, or passes
//!    by.
//! 2. The caller reads the row from the database ([`fill_query`](crate::row::fill_query),
//!    [`read_fill`](crate::row::read_fill)), with the moment from before.
//! 3. [`RowCache::install`]: stored if no write has begun since, in one step with the check.

use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Ack, PutOptions, PutOutcome, RefuseReason};
use bytes::Bytes;

use crate::clock::Moment;
use crate::entry::{ENDLESS, Origin, Row};
use crate::gate::{Join, Ticket, slot_of};
use crate::row::{Filled, StoredRow};
use crate::row_cache::{NO_CLAIM, RowCache};
use crate::serve::CachePermission;
use crate::write_scope::{gate_of, group_of, token_of};

/// What became of a fill that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// The row is cached.
    Row,
    /// That the row does not exist is cached.
    Absent,
    /// A write, or a younger fill, has overtaken it.
    Overtaken,
    /// What it brought may not be cached.
    Uncacheable,
    /// The engine did not take it.
    Refused,
    /// It is larger than what the engine can keep.
    TooLarge,
}

/// A finished fill.
pub struct InstallOutcome<W> {
    /// For who led it; `None` where what it brought cannot be understood.
    pub row: Option<Row>,
    /// Whether it is cached.
    pub installed: Installed,
    /// Reads that waited for it.
    pub waiters: Vec<W>,
    /// What they are to be told: nothing where the row has ended before they may have come.
    pub shared: Option<Row>,
}

/// A fill that came back.
pub struct ReturnedFill<'a> {
    /// The plan that the row was read for.
    pub plan: &'a ReadPlan,
    /// The row's key.
    pub key: &'a RowKey,
    /// What the database said.
    pub filled: Filled,
    /// The permission to cache from before the fill was sent.
    pub cache_permission: CachePermission,
    /// The moment before it was sent.
    pub asked_at: Moment,
}

impl ReturnedFill<'_> {
    /// For how long after it was sent what it brought may be served, in seconds; `None`: for ever.
    /// `weak`: the most where it may not have seen all that was acknowledged.
    fn life(&self, weak: Option<u32>) -> Option<u32> {
        let bound = match self.cache_permission {
            CachePermission::Bounded { seconds } => Some(seconds),
            CachePermission::Exclusive { .. } => None,
        };
        [bound, weak, self.filled.life].into_iter().flatten().min()
    }
}

impl<W> RowCache<W> {
    /// What a read that missed shall do: lead the fill, wait for another's, or pass the gates by.
    /// `waiter` is called only if the answer is [`Join::Wait`].
    pub fn join(
        &self,
        table: &TableSchema,
        key: &RowKey,
        cache_permission: CachePermission,
        waiter: impl FnOnce() -> W,
    ) -> Join<W> {
        let tolerant = matches!(cache_permission, CachePermission::Bounded { .. });
        let gate = gate_of(&table.keyspace, &table.name);
        let slot = slot_of(token_of(gate, key.partition_key()));
        self.gates.join(gate, slot, key.engine_key(), self.clock.now(), tolerant, waiter)
    }

    /// Ends a fill: installs the row if nothing overtook it. Those who waited are the caller's to
    /// tell.
    ///
    /// `asked_at` is the moment *before* the fill was sent.
    pub fn install(&self, mut fill: ReturnedFill<'_>, ticket: Ticket<W>) -> InstallOutcome<W> {
        let bytes = Bytes::from(std::mem::take(&mut fill.filled.bytes));
        let row = Row::checked(bytes.clone(), fill.plan.fingerprint);
        let mut installed = Installed::Overtaken;
        let weak = ticket.is_weak().then_some(self.weak_life.as_secs() as u32);
        // A bare row may end before its marker says so, which no SELECT shows: only a bound
        // licenses that.
        let life = fill.life(weak);
        let finished = if fill.filled.marker_only
            && matches!(fill.cache_permission, CachePermission::Exclusive { .. })
        {
            installed = Installed::Uncacheable;
            ticket.finish(|| ())
        } else {
            ticket.finish(|| installed = self.put(&fill, &bytes, life))
        };
        // Who came while the database took its time may have come after the row's end.
        let ended =
            life.is_some_and(|life| self.age(fill.asked_at.boot).is_none_or(|age| age >= life));
        if installed == Installed::TooLarge {
            self.gates.note_too_large(fill.key.engine_key(), finished.stamp, self.clock.now());
        }
        let shared = row.clone().filter(|_| !ended);
        InstallOutcome { row, installed, waiters: finished.waiters, shared }
    }

    fn put(&self, fill: &ReturnedFill<'_>, bytes: &[u8], life: Option<u32>) -> Installed {
        let ReturnedFill { plan: ReadPlan { table, .. }, key, cache_permission, asked_at, .. } =
            fill;
        let claim = match cache_permission {
            CachePermission::Exclusive { claim } => *claim,
            CachePermission::Bounded { .. } => self.boot,
        };
        // The pair of [`RowCache::accept`]: what is cached without a claim is never believed.
        assert!(claim != NO_CLAIM, "a row is cached without a claim");
        let origin = Origin { claim, filled_at: asked_at.boot, life: life.unwrap_or(ENDLESS) };
        let token = token_of(gate_of(&table.keyspace, &table.name), key.partition_key());
        let expiry = life.map_or(0, |life| asked_at.unix.saturating_add(life));
        let options = PutOptions { expiry, group: group_of(table.id), token };
        // A full journal is for writes: this row is filled again by a later read.
        if self.rows.backpressure().is_some() {
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
}
