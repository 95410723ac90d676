//! A unit from before writes of its rows, and as it is with rows that were read again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use afterglow_cql::plan::{ReadPlan, RowKey};

use crate::clock::Moment;
use crate::entry::{ENDLESS, Origin, Unit};
use crate::row::{Filled, StoredRow};
use crate::unit::Coverage;

/// Rows and units that writes under way are to put back take so many bytes at most, units as they
/// have grown. Beyond that they are dropped.
pub const MOST_PENDING: usize = 32 << 20;

/// Bytes of a row or unit that a write under way is to put back. They only grow.
pub(crate) struct Pending {
    all: Arc<AtomicUsize>,
    bytes: AtomicUsize,
}

impl Pending {
    /// `None` beyond [`MOST_PENDING`]. `all`: those of all writes.
    pub(crate) fn take(all: &Arc<AtomicUsize>, bytes: usize) -> Option<Pending> {
        let pending = Pending { all: all.clone(), bytes: AtomicUsize::new(0) };
        pending.grow_to(bytes).then_some(pending)
    }

    /// It has become so large. False beyond [`MOST_PENDING`]: it must not be kept.
    pub(crate) fn grow_to(&self, bytes: usize) -> bool {
        // Two may grow it at the same time. Together they add what the larger one needs.
        let more = bytes.saturating_sub(self.bytes.fetch_max(bytes, Ordering::Relaxed));
        let before = self.all.fetch_add(more, Ordering::Relaxed);
        more == 0 || before.saturating_add(more) <= MOST_PENDING
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// What a unit was served under, and what it is of.
pub(crate) struct KeptOf {
    /// Of its table.
    pub plan: ReadPlan,
    /// The key of the unit.
    pub key: RowKey,
    /// Its table's gate and its slot.
    pub gates: (u32, u32),
    /// The claim that it was servable under.
    pub claim: u64,
    /// Generation of the policies then.
    pub generation: u64,
    pub(crate) pending: Pending,
}

/// A unit that is not in the cache while rows of it are written. A copy shares its bytes.
#[derive(Clone)]
pub(crate) struct KeptUnit {
    origin: Origin,
    unit: Unit,
    of: Arc<KeptOf>,
}

impl KeptUnit {
    /// `None` for a unit that may lack a write (`doubted`).
    pub(crate) fn new(origin: Origin, unit: Unit, of: KeptOf) -> Option<KeptUnit> {
        (!origin.doubted).then(|| KeptUnit { origin, unit, of: Arc::new(of) })
    }

    /// What it is of.
    pub(crate) fn of(&self) -> &KeptOf {
        &self.of
    }

    /// As [`KeptUnit::of`], to keep.
    pub(crate) fn shared(&self) -> Arc<KeptOf> {
        self.of.clone()
    }

    /// The rows.
    pub(crate) fn unit(&self) -> &Unit {
        &self.unit
    }

    /// What to store.
    pub(crate) fn value(&self) -> Vec<u8> {
        self.origin.before(self.unit.bytes())
    }

    /// The seconds that it is still served; `Some(None)` if it has no end, `None` if it has ended.
    /// `now`: in seconds since boot.
    pub(crate) fn left(&self, now: u32) -> Option<Option<u32>> {
        if self.origin.max_age == ENDLESS {
            return Some(None);
        }
        let age = now.checked_sub(self.origin.filled_at)?;
        self.origin.max_age.checked_sub(age).filter(|left| *left > 0).map(Some)
    }

    /// Whether a write of this row matters to it. `None` if that is not certain. Once it does not
    /// it never does again: a unit never reaches farther than before.
    pub(crate) fn covers(&self, row: &RowKey) -> Option<bool> {
        let coverage = self.unit.stored().coverage(&self.of.plan.table, row)?;
        Some(coverage == Coverage::Within)
    }

    /// With this row, that was read at `asked_at`. `None` if no unit is left. Its age goes on
    /// counting from its own fill.
    pub(crate) fn with(
        &self,
        key: &RowKey,
        row: &Filled,
        asked_at: Moment,
        most_bytes: usize,
    ) -> Option<KeptUnit> {
        // No SELECT shows when a row without values ends.
        if row.marker_only {
            return None;
        }
        if !self.covers(key)? {
            return Some(self.clone());
        }
        let stored = StoredRow::decode(&row.bytes)?;
        let table = &self.of.plan.table;
        let bytes = self.unit.stored().amended(table, key, &stored, most_bytes)?;
        let age = asked_at.boot.checked_sub(self.origin.filled_at)?;
        let own = row.max_age.map(|max_age| age.saturating_add(max_age).min(ENDLESS - 1));
        let max_age = own.map_or(self.origin.max_age, |own| own.min(self.origin.max_age));
        // The present one and the next, until the next has taken its place.
        if !self.of.pending.grow_to(2 * bytes.len()) {
            return None;
        }
        let unit = Unit::checked(bytes.into(), self.of.plan.fingerprint)?;
        let origin = Origin { max_age, ..self.origin };
        Some(KeptUnit { origin, unit, of: self.of.clone() })
    }

    /// Whether both are the same copy.
    pub(crate) fn is(&self, other: &KeptUnit) -> bool {
        self.unit.bytes().as_ptr() == other.unit.bytes().as_ptr()
            && self.origin == other.origin
            && Arc::ptr_eq(&self.of, &other.of)
    }
}
