//! Who a member is, and whose a write is.

use std::fmt;

/// An instance, the same across its restarts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// A random number of 128 bits: one life of a member in the map, or of a process. Never used
/// twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u128);

/// A random number of 128 bits: one ring, from the founding of its map on. Who finds another one
/// knows that somebody has emptied the ring's table: versions and epochs have begun anew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct RingId(pub u128);

/// A member in one of its incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The instance.
    pub id: MemberId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

/// A write: the process that sends it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PermitKey {
    /// The process.
    pub process: Identity,
    /// Counted by it.
    pub number: u64,
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0 & 0xffff)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}.{:?}", self.id, self.incarnation)
    }
}
