//! The transaction that this member has under way, at most one.
//!
//! Its outcome may stay unknown. Then it may apply at any later time, as long as the version is the
//! one it was for. So reading settles nothing while the version stands: a further compare-and-set
//! must move it on.

use std::sync::Arc;

use crate::config::Time;
use crate::map::Map;

#[derive(Debug, Default, Clone)]
pub struct Transactions {
    next: u64,
    under_way: Option<UnderWay>,
    /// The version that a transaction of unknown outcome was for.
    unsettled: Option<u64>,
}

#[derive(Debug, Clone)]
struct UnderWay {
    id: u64,
    map: Arc<Map>,
    sent: Time,
}

impl Transactions {
    /// Whether one is under way.
    pub fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether the version must be moved on, to settle one of unknown outcome.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    /// Begins one that makes `map` of the version before it; its number.
    pub fn begin(&mut self, map: Arc<Map>, now: Time) -> u64 {
        self.next += 1;
        self.under_way = Some(UnderWay { id: self.next, map, sent: now });
        self.next
    }

    /// An answer: the map that the transaction was to make, if it is the one under way.
    pub fn answered(&mut self, id: u64) -> Option<Arc<Map>> {
        self.under_way.take_if(|t| t.id == id).map(|t| t.map)
    }

    /// The one under way has no outcome that will be known.
    pub fn unknown(&mut self, map: &Map) {
        coverage_mark!(TransactionUnknown);
        self.unsettled = Some(map.version - 1);
    }

    /// The one under way, if it has been sent so long ago that it counts as unknown.
    pub fn overdue(&mut self, now: Time, after: Time) -> Option<Arc<Map>> {
        self.under_way.take_if(|t| now >= t.sent + after).map(|t| t.map)
    }

    /// A newer map: whatever was to change an older version cannot apply any more.
    pub fn adopted(&mut self, map: &Map) {
        if self.unsettled.is_some_and(|version| map.version > version) {
            self.unsettled = None;
        }
    }
}
