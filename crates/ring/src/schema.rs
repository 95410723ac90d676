//! What a member has heard of the changes of the database's schema.
//!
//! A keyspace that gets more replicas makes fills miss writes until a repair. Members hear of it
//! from the database, each at its own time, and one that has lost its connection hears of it later.
//! So an owner may hand a shard over before it knows. The new owner must not rely on it then:
//!
//! ```text
//! ALTER KEYSPACE --> joiner starts --> old owner hands over --> old owner hears of it
//!                    (it never hears)  (it says: not weak)
//! ```
//!
//! Each names the version of the schema up to which it has heard of everything. If both name the
//! same, whatever the old owner has not heard of comes after that version, and the new owner hears
//! of it itself. Otherwise the snapshot counts as weak for the time of a hold.

/// The version of a schema up to which somebody has heard of all changes. Equal ones are of equal
/// schemas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchemaVersion(pub u128);

impl SchemaVersion {
    /// Whether both have heard of the same changes. Whoever has heard of nothing yet, version 0,
    /// vouches for nothing.
    #[must_use]
    pub fn is_that_of(self, other: Self) -> bool {
        self == other && self != Self::default()
    }
}
