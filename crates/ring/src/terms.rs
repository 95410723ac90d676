//! What callers are told that look rows up and fill them themselves.

use crate::identity::MemberId;

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
    /// Whether there is a row. Otherwise what is cached says that there is none.
    pub exists: bool,
}
