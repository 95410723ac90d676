//! What the fake does on purpose that a database does not.

use std::time::Duration;

use afterglow_cql::error::ErrorCode;

/// Statements whose answers can be kept back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementKind {
    /// SELECT from a table of users.
    Read,
    /// INSERT, UPDATE, DELETE and text batches of them, on tables of users.
    Write,
    /// SELECT from a table of `system_schema`.
    Schema,
}

/// What goes wrong on purpose. It never touches the schema, the system tables or, where nothing
/// else is said, the keyspace `afterglow`.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Statements take up to twice this long (uniformly). One connection answers one after the
    /// other.
    pub delay: Duration,
    /// Statements about the database's own tables take this long.
    pub system_delay: Duration,
    /// Who wants events is told of a change of the schema as late as a server may: just before it
    /// is shown the version.
    pub late_events: bool,
    /// Fraction of writes answered with a write timeout; half of them have happened all the same.
    pub write_timeouts: f64,
    /// What those writes are answered with instead, in the layout of that code.
    pub write_error: Option<ErrorCode>,
    /// Fraction of statements that end their connection instead of being answered; half of the
    /// writes among them have happened.
    pub drops: f64,
    /// Fraction of reads that return what was there before the last write: a check that sees
    /// nothing then is worth nothing.
    pub stale_reads: f64,
    /// Lightweight transactions are refused, those of the keyspace `afterglow` too.
    pub refuses_transactions: bool,
    /// Seed of these choices.
    pub seed: u64,
}
