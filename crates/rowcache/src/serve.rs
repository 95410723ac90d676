//! May a cached row be served?
//!
//! 1. [`fits`]: would the database answer a request with these parameters with a whole row?
//! 2. [`Index::answers`](crate::tables::Index::answers): is that so at this consistency level? If
//!    it is while no write is in doubt, [`RowCache::is_undoubted`] and [`RowCache::is_doubted`].
//! 3. [`RowCache::cache_permission`]: may rows of the table be served now, and under which
//!    permission? It looks at policy, lease and claim.
//! 4. [`RowCache::look_up`]: asks the engine. It finds no row that a write has dropped.
//! 5. [`RowCache::accept`]: was this row filled under that permission? Is it young enough? Has it
//!    the table's shape?
//!
//! Whether the user may read the table is not checked here: the database decides it.

use std::sync::atomic::Ordering;

use afterglow_cql::message::QueryParams;
use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_cql::token::murmur3;
use afterglow_engine::{Hit, Lookup, Peek};
use bytes::Bytes;

use crate::clock::{Millis, seconds};
use crate::entry::{ENDLESS, Origin, Row, Unit};
use crate::gate::slot_of;
use crate::policy::Policy;
use crate::row_cache::{NO_CLAIM, RowCache};
use crate::shards::claim_of;
use crate::write_scope::{gate_of, group_of, token_of};

/// Under what a table's rows are cached at this moment: the cache permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePermission {
    /// All writers come through us, and the lease says that nobody else caches.
    Exclusive {
        /// Rows of another claim are misses.
        claim: u64,
    },
    /// Rows older than this many seconds are misses.
    Bounded {
        /// At least one.
        seconds: u32,
    },
}

/// Why no row of a table may be served or filled now. Reads of it go to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCached {
    /// The schema is not known, or a write is in flight that may touch any row of the table.
    Suspended,
    /// The table's policy says so.
    PolicyOff,
    /// The table's policy is `exclusive`, and the lease is not ours or the claim not on disk.
    NoLease,
    /// The table's policy is `exclusive`, and another instance of the ring owns the partition.
    NotOwner,
    /// The present policies are not known to be those of all instances that share the tables.
    Disagreement,
}

/// Why no cached row can answer a request as the database would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It continues a paged result, or pages more finely than one row.
    Paging,
    /// It sets an option of its own, or its number of values differs from the statement's markers.
    Option,
}

/// Whether a stored row answers a request with these parameters as the database would.
///
/// # Errors
/// Why the read must go to the database.
pub fn fits(params: &QueryParams<'_>, read: &ReadPlan) -> Result<(), Unfit> {
    // With a page size of 1 the database says that there may be more.
    if params.paging_state.is_some() || params.page_size.is_some_and(|size| size <= 1) {
        return Err(Unfit::Paging);
    }
    if params.now_in_seconds.is_some() {
        return Err(Unfit::Option);
    }
    // The database refuses too many or too few values.
    if !read.binds.fit(&params.values) {
        return Err(Unfit::Option);
    }
    Ok(())
}

/// Why a row that was found is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotServed {
    /// Its bytes are not a stored row.
    Corrupt,
    /// It has reached its maximum age, or a bound of staleness.
    Expired,
    /// It is of another claim, another boot or another shape of the table.
    Unusable,
}

impl<W> RowCache<W> {
    /// Whether each instance of a ring may have copies of its own of the table's rows. Under
    /// `exclusive` only their owner has one.
    pub fn is_cached_by_each(&self, table: &TableSchema) -> bool {
        self.policy_of(table).1 != Policy::Exclusive
    }

    /// The policy of a table, with the generation it is of. Notes when that generation came.
    fn policy_of(&self, table: &TableSchema) -> (u64, Policy) {
        let (generation, policy) = self.policies.of(table);
        let seen = self.policies_seen.load(Ordering::Acquire);
        if seen != generation + 1 {
            self.policies_since.store(self.clock.seconds(), Ordering::Release);
            self.policies_seen.store(generation + 1, Ordering::Release);
        }
        (generation, policy)
    }

    /// Whether a copy of that second may have missed writes of other instances' rows: in a ring
    /// they close no gates here while the table is `exclusive`, and it may have been before.
    fn is_of_earlier_policies(&self, filled_at: u32) -> bool {
        let since = self.policies_since.load(Ordering::Acquire);
        since > 0 && filled_at <= since && self.shards.get().is_some()
    }

    /// The permission under which rows of `table` may be served and filled now.
    ///
    /// # Errors
    /// Why the read must go to the database.
    pub fn cache_permission(&self, table: &TableSchema) -> Result<CachePermission, NotCached> {
        let suspended = self.suspended.load(Ordering::Acquire);
        if suspended || self.doubts.has(|| group_of(table.id)) {
            return Err(NotCached::Suspended);
        }
        let (generation, policy) = self.policy_of(table);
        if !self.agrees(generation) {
            return Err(NotCached::Disagreement);
        }
        match policy {
            Policy::Off => Err(NotCached::PolicyOff),
            Policy::MaxStaleness(bound) => Ok(CachePermission::Bounded {
                seconds: u32::try_from(bound.as_secs()).unwrap_or(u32::MAX).max(1),
            }),
            Policy::Exclusive => {
                // The race with `set_claim`: this reads in the reverse order of its writes. A claim
                // read after its generation is never older than that.
                let made_for = self.claim_generation.load(Ordering::Acquire);
                let claim = self.claim.load(Ordering::Acquire);
                let now = self.clock.now();
                self.note_time(now);
                if claim == NO_CLAIM || made_for != generation || !self.lease.holds(now) {
                    return Err(NotCached::NoLease);
                }
                Ok(CachePermission::Exclusive { claim })
            }
        }
    }

    /// As [`RowCache::cache_permission`], for the row with this key. Where several instances share
    /// the table it permits only what this one owns.
    ///
    /// # Errors
    /// Why the read must go to the database, or to the owner ([`NotCached::NotOwner`]).
    pub fn row_permission(
        &self,
        table: &TableSchema,
        key: &RowKey,
    ) -> Result<CachePermission, NotCached> {
        self.narrowed(self.cache_permission(table), key)
    }

    /// What [`RowCache::cache_permission`] has just said of a table, for the row with this key. In
    /// two steps for those who need no key where the table is not cached at all:
    /// [`NotCached::NoLease`] is the one refusal that the key may change.
    ///
    /// # Errors
    /// As [`RowCache::row_permission`].
    pub fn narrowed(
        &self,
        permission: Result<CachePermission, NotCached>,
        key: &RowKey,
    ) -> Result<CachePermission, NotCached> {
        let Some(shards) = self.shards.get() else { return permission };
        // The race with a change of the owner: the lease is asked first, then the shard. A shard
        // that is ours then was ours while the lease held, or was gained since and has only rows
        // that were filled since. In the other order a lease that came back with a newer map would
        // vouch for a shard that this map has taken from us.
        let owned = shards.owned(murmur3(key.partition_key()));
        match (permission, owned) {
            (Ok(CachePermission::Exclusive { claim }), Some((shard, epoch))) => {
                Ok(CachePermission::Exclusive { claim: claim_of(claim, shard, epoch) })
            }
            (Ok(CachePermission::Exclusive { .. }) | Err(NotCached::NoLease), None) => {
                Err(NotCached::NotOwner)
            }
            (permission, _) => permission,
        }
    }

    /// Whether the schema is not known, or a write is in flight that has not dropped what it may
    /// touch.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.suspended.load(Ordering::Acquire) || self.doubts.is_any()
    }

    /// Looks a row up. A [`Lookup::Flash`] is read by the caller and finished; a hit goes to
    /// [`RowCache::accept`].
    pub fn look_up(&self, key: &RowKey) -> Lookup {
        self.look_up_key(key.engine_key())
    }

    /// As [`RowCache::look_up`], by the key that the engine has the row under.
    pub fn look_up_key(&self, engine_key: &[u8]) -> Lookup {
        self.rows.get(engine_key)
    }

    /// Looks up the unit of the row's partition. `None`, and no lookup that is counted, if there is
    /// none, or none in DRAM and `reads_flash` says not to read it. A hit goes to
    /// [`RowCache::accept_unit`].
    pub fn look_up_unit(&self, key: &RowKey, reads_flash: impl FnOnce() -> bool) -> Option<Lookup> {
        let is_there = match self.rows.peek(key.unit_key()) {
            Peek::Absent => false,
            Peek::Dram(_) => true,
            Peek::Flash => reads_flash(),
        };
        is_there.then(|| self.rows.get(key.unit_key()))
    }

    /// What DRAM has under the key. Not counted as a lookup, and no use of the object: for a read
    /// that has been a miss already.
    pub fn peek(&self, key: &RowKey) -> Option<Hit> {
        match self.rows.peek(key.engine_key()) {
            Peek::Dram(hit) => Some(hit),
            Peek::Flash | Peek::Absent => None,
        }
    }

    /// Whether a hit may be served under this permission, to a plan made for this shape of the
    /// table.
    ///
    /// # Errors
    /// Why it counts as a miss.
    pub fn accept(
        &self,
        hit: &Hit,
        cache_permission: CachePermission,
        fingerprint: u64,
    ) -> Result<Row, NotServed> {
        let (row, age) = self.accept_value(hit, cache_permission)?;
        Ok(Row::checked(row, fingerprint).ok_or(NotServed::Unusable)?.aged(age))
    }

    /// As [`RowCache::accept`], for the unit of a partition.
    ///
    /// # Errors
    /// Why it counts as a miss.
    pub fn accept_unit(
        &self,
        hit: &Hit,
        cache_permission: CachePermission,
        fingerprint: u64,
    ) -> Result<Unit, NotServed> {
        let (unit, age) = self.accept_value(hit, cache_permission)?;
        Ok(Unit::checked(unit, fingerprint).ok_or(NotServed::Unusable)?.aged(age))
    }

    /// Whether whatever of a partition is cached undoubted now, or filled from now on, has every
    /// write that was acknowledged to anybody. Only under `exclusive` are all of them known here,
    /// and only outside a ring all of those that fills may miss. `key`: of a row or unit.
    pub fn is_undoubted(
        &self,
        table: &TableSchema,
        key: &RowKey,
        cache_permission: CachePermission,
    ) -> bool {
        if self.shards.get().is_some()
            || !matches!(cache_permission, CachePermission::Exclusive { .. })
        {
            return false;
        }
        let gate = gate_of(&table.keyspace, &table.name);
        let slot = slot_of(token_of(gate, key.partition_key()));
        self.gates.is_undoubted((gate, slot), self.clock.now())
    }

    /// Whether a fill that may have missed a write brought what was found. The gates may say
    /// nothing of it any more.
    pub fn is_doubted(&self, hit: &Hit) -> bool {
        Origin::split(&hit.value).is_none_or(|(origin, _)| origin.doubted)
    }

    /// What is stored, and its age in seconds.
    fn accept_value(
        &self,
        hit: &Hit,
        cache_permission: CachePermission,
    ) -> Result<(Bytes, u32), NotServed> {
        let (origin, row) = Origin::split(&hit.value).ok_or(NotServed::Corrupt)?;
        let (present, longest) = match cache_permission {
            CachePermission::Exclusive { claim } => (claim, origin.max_age),
            CachePermission::Bounded { .. } if self.is_of_earlier_policies(origin.filled_at) => {
                return Err(NotServed::Unusable);
            }
            CachePermission::Bounded { seconds } => (self.boot, origin.max_age.min(seconds)),
        };
        assert!(present != NO_CLAIM, "a row is served without a claim");
        if origin.claim != present {
            return Err(NotServed::Unusable);
        }
        // The engine ends rows by the wall clock, which may have been set back since.
        let age = match longest {
            // Nothing depends on it, so it is worth no look at a clock.
            ENDLESS => self.recent.load(Ordering::Relaxed).saturating_sub(origin.filled_at),
            longest => match self.age(origin.filled_at) {
                Some(age) if age < longest => age,
                Some(_) => return Err(NotServed::Expired),
                None => return Err(NotServed::Unusable),
            },
        };
        Ok((hit.value.slice_ref(row), age))
    }

    /// Every read under `exclusive` comes here, so a row without an end has its age by the same
    /// look at the clock. The shared word is written once a second.
    fn note_time(&self, now: Millis) {
        let seconds = seconds(now);
        if self.recent.load(Ordering::Relaxed) != seconds {
            self.recent.store(seconds, Ordering::Relaxed);
        }
    }

    /// The age of a fill of that second since boot, in seconds. Both times are rounded down, so an
    /// age below a bound is truly below it. `None`: that second is in the future.
    pub(crate) fn age(&self, filled_at: u32) -> Option<u32> {
        self.clock.seconds().checked_sub(filled_at)
    }
}
