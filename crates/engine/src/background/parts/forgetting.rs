//! How far the background is with forgetting removals of groups.

use crate::namespace::state::MAX_GROUPS;

/// Removed groups of a namespace from which on some are forgotten.
pub const FORGET_ABOVE: usize = MAX_GROUPS / 4;

/// Removals of groups that are to be forgotten.
pub struct Forgetting {
    /// A round begins where a namespace remembers more removed groups than these.
    pub(in crate::background) above: usize,
    pub(in crate::background) round: Option<Round>,
}

/// A round, at whose end removals below a version are forgotten.
#[derive(Debug, Clone, Copy)]
pub(in crate::background) enum Round {
    /// What they have removed is taken out of DRAM: objects from this part of a shard on are still
    /// to be looked at.
    Dram { below: u64, shard: usize, from: u64 },
    /// Segments that were opened before a version are waited for.
    Flash { below: u64, opened: u64 },
}

impl Forgetting {
    pub(in crate::background) fn new(above: usize) -> Self {
        Self { above, round: None }
    }
}
