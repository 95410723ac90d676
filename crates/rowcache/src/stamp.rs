//! What had been written to a row's partition and table at some moment.

/// A moment between two writes that may touch a row: it differs as soon as the next one begins.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Writes to its partition's slot that have begun.
    pub(super) slot: u32,
    /// Writes to its table, or to everything, that have begun.
    pub(super) wide: u64,
}
