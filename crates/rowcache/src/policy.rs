//! Who else writes to a table, as the operator says.

use std::time::Duration;

/// What the operator says of a table's writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Every writer comes through us.
    Exclusive,
    /// Others may write past us; nothing is served for longer than this, in whole seconds.
    MaxStaleness(Duration),
    /// Never cached.
    Off,
}

/// The policies in force. They may be replaced at any time.
pub trait Policies: Send + Sync {
    /// Grows with every replacement; cheap, for the hot path.
    fn generation(&self) -> u64;

    /// The policy of a table, with a generation that is never newer than it: who keeps both looks again rather
    /// than too late.
    fn policy(&self, keyspace: &str, table: &str) -> (u64, Policy);
}
