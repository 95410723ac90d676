//! What callers are told that look rows up and fill them themselves.

use crate::identity::MemberId;
use crate::io::Rows;
use crate::message::RowKey;

/// How a row may be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillTerms {
    /// The epoch of its shard.
    pub epoch: u64,
    /// Writes may be on their way that this member does not know of: the row may live for a short
    /// time only.
    pub weak: bool,
}

/// Rows of a shard that were cached under earlier epochs may count, here or at its old owner. They
/// are to be asked for one by one: [`Member::counts_still`](crate::Member::counts_still).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The shard.
    pub shard: usize,
    /// Its present epoch.
    pub epoch: u64,
    /// Whom to ask, for a time after a move.
    pub old_owner: Option<MemberId>,
}

/// A row that was cached under an epoch before the present one, here or elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OlderRow {
    /// The token of its partition.
    pub token: i64,
    /// The epoch.
    pub epoch: u64,
    /// The bit of its table if what is cached says that there is no row; 0 if there is one. See
    /// [`Rows::makes_rows`].
    pub absent: u64,
}

impl OlderRow {
    /// What is cached under that epoch, of these rows.
    pub(crate) fn of(key: &RowKey, epoch: u64, row: Option<&[u8]>, rows: &dyn Rows) -> Self {
        let absent = if row.is_some() { 0 } else { rows.table_bit(key) };
        Self { token: key.token, epoch, absent }
    }
}
