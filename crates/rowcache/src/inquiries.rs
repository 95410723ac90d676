//! Bounds the inquiries: questions to the database about lightweight transactions of unknown
//! outcome. Their gates stay closed meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::row_cache::RowCache;

/// At most so many inquiries are made at once. Other transactions wait until the replicas have
/// forgotten them.
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

    /// Counts an inquiry.
    pub fn count_inquiry(self: &Arc<Self>) -> Counted<W> {
        self.unresolved.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }
}
