//! Bounds the inquiries about writes of unknown outcome: questions to the database about
//! lightweight transactions, and plain writes that are sent again. Their gates stay closed
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_cql::plan::TableSchema;

use crate::row_cache::RowCache;
use crate::write_scope::gate_of;

/// At most so many inquiries are made at once. Other transactions wait until the replicas have
/// forgotten them, and other writes until their hints have gone.
const MAX_INQUIRIES: usize = 1024;

/// One inquiry, as long as it lasts.
pub struct Counted<W>(Arc<RowCache<W>>);

impl<W> Drop for Counted<W> {
    fn drop(&mut self) {
        self.0.unresolved.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<W> RowCache<W> {
    /// Whether no more inquiries are to be made now.
    pub fn is_full_of_inquiries(&self) -> bool {
        self.unresolved.load(Ordering::Acquire) >= MAX_INQUIRIES
    }

    /// How many writes of the whole table have begun. Tables that share a gate share their number.
    pub fn table_writes(&self, table: &TableSchema) -> u64 {
        self.gates.wide_writes(gate_of(&table.keyspace, &table.name))
    }

    /// For how long a write may be sent again after its outcome turned out to be unknown. `grace`:
    /// the table's `gc_grace_seconds`. A tombstone that has gone hides no write any more.
    pub fn may_repeat_for(&self, grace: u32) -> Duration {
        self.hold.min(Duration::from_secs(u64::from(grace) / 2))
    }

    /// Counts an inquiry.
    pub fn count_inquiry(self: &Arc<Self>) -> Counted<W> {
        self.unresolved.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }
}
