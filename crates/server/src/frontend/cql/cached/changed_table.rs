//! What is known of a table between the event that tells of its change and the next snapshot.

use afterglow_rowcache::suspected::Suspected;

use super::FillWaiter;

/// A table of which a change was heard. Most changes touch no row: another comment, an index.
pub(super) struct ChangedTable {
    pub(super) keyspace: String,
    pub(super) table: String,
    /// Its rows, which are not served until then.
    pub(super) suspected: Suspected<FillWaiter>,
    /// Another change was heard of before a snapshot showed the first.
    pub(super) again: bool,
}
