//! Stamps: how many writes to a row's partition and table had begun at some moment.

/// A stamp of a row. It differs as soon as the next write that may touch the row begins.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Writes to its partition's slot that have begun.
    pub(super) slot: u32,
    /// Writes to its table, or to everything, that have begun.
    pub(super) wide: u64,
}
