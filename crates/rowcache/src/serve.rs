//! May a cached row be served?
//!
//! 1. [`fits`]: would the database answer a request with these parameters with a whole row?
//! 2. [`Index::answers`](crate::tables::Index::answers): is that so at this consistency level?
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
use afterglow_engine::{Hit, Lookup};

use crate::entry::{ENDLESS, Origin, Row};
use crate::policy::Policy;
use crate::row_cache::{NO_CLAIM, RowCache};

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
    /// The schema is not known, or a write that may touch anything is in flight.
    Suspended,
    /// The table's policy says so.
    PolicyOff,
    /// The table's policy is `exclusive`, and the lease is not ours or the claim not on disk.
    NoLease,
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
    if params.values.len() != read.key.markers() {
        return Err(Unfit::Option);
    }
    Ok(())
}

/// Why a row that was found is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotServed {
    /// Its bytes are not a stored row.
    Corrupt,
    /// Its life is over.
    Expired,
    /// It is of another claim, another boot or another shape of the table.
    Unusable,
}

impl<W> RowCache<W> {
    /// The permission under which rows of `table` may be served and filled now.
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
                // The race with `set_claim`: this reads in the reverse order of its writes. A claim
                // read after its generation is never older than that.
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

    /// The age of a fill of that second since boot, in seconds. Both times are rounded down, so an
    /// age below a bound is truly below it. `None`: that second is in the future.
    pub(crate) fn age(&self, filled_at: u32) -> Option<u32> {
        self.clock.seconds().checked_sub(filled_at)
    }
}
