//! Attempts to send a plain write of unknown outcome again.
//!
//! An attempt and a write that removes its whole table, TRUNCATE say, are sent one after the other:
//! what was removed must not come back.
//!
//! ```text
//! attempt:   noted -> has the table been removed meanwhile? no: sent -> answered -> forgotten
//! TRUNCATE:  removal counted -> are attempts noted? waits until none is -> sent
//! ```
//!
//! Each looks after it can be seen itself, so one of the two sees the other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::write_scope::Invalidation;

/// Removals of whole tables are counted in so many places. Tables that share one end each other's
/// repetitions.
const PLACES: usize = 1024;

/// Writes that are sent again, and what ends that.
pub(crate) struct Attempts {
    /// How many are at the database now, by the group of their table.
    under_way: Mutex<HashMap<u32, usize>>,
    /// Writes of a whole table that have begun, by group.
    removals: Box<[AtomicU64]>,
}

impl Default for Attempts {
    fn default() -> Self {
        let removals = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Attempts { under_way: Mutex::default(), removals }
    }
}

impl Attempts {
    pub(crate) fn add(&self, group: u32) {
        *self.under_way.lock().entry(group).or_default() += 1;
    }

    pub(crate) fn remove(&self, group: u32) {
        let mut groups = self.under_way.lock();
        let count = groups.get_mut(&group).expect("each end follows its begin");
        *count -= 1;
        if *count == 0 {
            groups.remove(&group);
        }
    }

    /// Whether one is under way that this touches as a whole.
    pub(crate) fn are_under_way(&self, dropped: &Invalidation) -> bool {
        match dropped {
            Invalidation::Table(group) => self.under_way.lock().contains_key(group),
            Invalidation::Everything => !self.under_way.lock().is_empty(),
            Invalidation::Row(_) | Invalidation::Unit(_) | Invalidation::Partition(_) => false,
        }
    }

    /// How many removals of tables of this group have begun.
    pub(crate) fn removals(&self, group: u32) -> u64 {
        self.removals[group as usize % PLACES].load(Ordering::Acquire)
    }

    /// A write that drops this is about to be sent.
    pub(crate) fn note_drop(&self, dropped: &Invalidation) {
        let places = match dropped {
            Invalidation::Table(group) => {
                let at = *group as usize % PLACES;
                &self.removals[at..=at]
            }
            Invalidation::Everything => &self.removals,
            Invalidation::Row(_) | Invalidation::Unit(_) | Invalidation::Partition(_) => return,
        };
        for place in places {
            place.fetch_add(1, Ordering::AcqRel);
        }
    }
}
