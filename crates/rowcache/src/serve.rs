//! May a cached row be served?
//!
//! 1. [`fits`]: is a whole row what the database would answer to a request with these parameters?
//! 2. [`Index::answers`](crate::tables::Index::answers): is it, at this consistency level?
//! 3. [`RowCache::cache_permission`]: may rows of the table be served at all now, and under what?
//!    Policy, lease, claim.
//! 4. [`RowCache::look_up`]: the engine's answer. It finds nothing that a write has dropped.
//! 5. [`RowCache::accept`]: was this row filled under that permission, is it young enough, has it
//!    the table's shape?
//!
//! Whether the user may read the table is not asked here: the database decides it.

use std::sync::atomic::Ordering;

use afterglow_cql::message::QueryParams;
use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_engine::{Hit, Lookup};

use crate::entry::{ENDLESS, Origin, Row};
use crate::policy::Policy;
use crate::row_cache::{NO_CLAIM, RowCache};

/// Under what a table's rows are cached at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePermission {
    /// All writers come through us, and the lease says that nobody else caches.
    Exclusive {
        /// Rows of another claim are not believed.
        claim: u64,
    },
    /// Nothing older than this many seconds.
    Bounded {
        /// At least one.
        seconds: u32,
    },
}

/// Why no row of a table may be served or filled now: reads of it go to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCached {
    /// The schema is not known, or a write that may touch anything is on its way.
    Suspended,
    /// The table's policy says so.
    PolicyOff,
    /// The table's policy is `exclusive`, and the lease is not ours or the claim not on disk.
    NoLease,
}

/// Why no row answers a request as the database would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It continues a paged result, or pages more finely than one row.
    Paging,
    /// It sets something for itself, or binds another number of values than the statement has
    /// markers.
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
    // Too many or too few values are the database's to refuse.
    if params.values.len() != read.key.markers() {
        return Err(Unfit::Option);
    }
    Ok(())
}

/// Why a row that was found is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotServed {
    /// It is not what was installed.
    Corrupt,
    /// Its time is over.
    Expired,
    /// It is of another claim, another boot or another shape of the table.
    Unusable,
}

impl<W> RowCache<W> {
    /// Under what rows of `table` may be served and filled now.
    ///
    /// # Errors
    /// Why the read must go to the database.
    pub fn cache_permission(&self, table: &TableSchema) -> Result<CachePermission, NotCached> {
        if self.suspended.load(Ordering::Acquire) || self.doubts.load(Ordering::Acquire) > 0 {
            return Err(NotCached::Suspended);
        }
        let (generation, policy) = self.policies.of(table);
        match policy {
            Policy::Off => Err(NotCached::PolicyOff),
            Policy::MaxStaleness(bound) => Ok(CachePermission::Bounded {
                seconds: u32::try_from(bound.as_secs()).unwrap_or(u32::MAX).max(1),
            }),
            Policy::Exclusive => {
                // In this order, the reverse of `set_claim`: a claim read after its generation is
                // never an older one.
                let made_for = self.claim_generation.load(Ordering::Acquire);
                let claim = self.claim.load(Ordering::Acquire);
                if claim == NO_CLAIM
                    || made_for != generation
                    || !self.lease.holds(self.clock.now())
                {
                    return Err(NotCached::NoLease);
                }
                Ok(CachePermission::Exclusive { claim })
            }
        }
    }

    /// Looks a row up. A [`Lookup::Flash`] is read by the caller and finished; a hit goes to
    /// [`RowCache::accept`].
    pub fn look_up(&self, key: &RowKey) -> Lookup {
        self.rows.get(key.engine_key())
    }

    /// Whether a hit may be served under this licence, to a plan made for this shape of the table.
    ///
    /// # Errors
    /// Why it counts as a miss.
    pub fn accept(
        &self,
        hit: &Hit,
        cache_permission: CachePermission,
        fingerprint: u64,
    ) -> Result<Row, NotServed> {
        let (origin, row) = Origin::split(&hit.value).ok_or(NotServed::Corrupt)?;
        let (present, longest) = match cache_permission {
            CachePermission::Exclusive { claim } => (claim, origin.life),
            CachePermission::Bounded { seconds } => (self.boot, origin.life.min(seconds)),
        };
        assert!(present != NO_CLAIM, "a row is served without a claim");
        if origin.claim != present {
            return Err(NotServed::Unusable);
        }
        // The engine ends rows by the wall clock, which may have been set back since.
        if longest != ENDLESS {
            match self.age(origin.filled_at) {
                Some(age) if age < longest => {}
                Some(_) => return Err(NotServed::Expired),
                None => return Err(NotServed::Unusable),
            }
        }
        Row::checked(hit.value.slice_ref(row), fingerprint).ok_or(NotServed::Unusable)
    }

    /// Seconds since that second since boot. Both are rounded down, so an age below a bound is
    /// truly below it. `None`: it is yet to come.
    pub(crate) fn age(&self, filled_at: u32) -> Option<u32> {
        self.clock.seconds().checked_sub(filled_at)
    }
}
