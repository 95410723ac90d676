//! What opening a cache found, and what it kept of it.

use std::fmt;

use crate::device::Truncated;

/// What the cache was before it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// There was none.
    New,
    /// There was one that cannot be used; an empty one takes its place.
    Replaced(&'static str),
    /// It was closed properly.
    Closed,
    /// The process that had it open ended without closing it.
    Process,
    /// The machine was restarted before it was closed.
    Machine,
}

/// What opening a cache found, and what it kept of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The id that the cache was made with.
    pub cache: [u8; 16],
    /// How often it has been opened, this time included. It is durable before anything else of the
    /// cache changes, so no two openings of one cache have the same number.
    pub number: u64,
    /// What it was before.
    pub origin: Origin,
    /// Namespaces there are.
    pub namespaces: usize,
    /// Those whose objects are served again.
    pub warm: usize,
    /// Whether the journal told every removal since the last checkpoint.
    pub journal: bool,
    /// Whether all was forgotten because the clock had been far ahead.
    pub timeless: bool,
    /// Segments with objects that are served again.
    pub segments: u64,
    /// Devices that were shorter than the cache on them.
    pub truncated: Vec<Truncated>,
}

impl Opening {
    fn why(&self) -> &'static str {
        let lost = self.warm < self.namespaces && !self.journal;
        match self.origin {
            Origin::New => "it is new",
            Origin::Replaced(why) => why,
            _ if self.timeless => "the clock had been ahead by more than a day",
            Origin::Closed => "it was closed properly",
            Origin::Process if lost => {
                "the last process ended without closing it, and its journal is missing, damaged or has lost an entry"
            }
            Origin::Process => {
                "the last process ended without closing it, what had reached flash is served"
            }
            Origin::Machine => {
                "it was not closed before the machine was restarted, so invalidations might have been lost"
            }
        }
    }

    /// Whether nothing that was there before is believed, or nothing was there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.origin, Origin::New | Origin::Replaced(_)) || self.timeless
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Opening { namespaces, warm, .. } = *self;
        match warm {
            _ if self.is_empty() => write!(f, "cold: {}", self.why())?,
            _ if warm == namespaces => write!(f, "warm: {}", self.why())?,
            0 => write!(f, "cold: {}", self.why())?,
            _ => write!(f, "warm in {warm} of {namespaces} namespaces: {}", self.why())?,
        }
        if warm > 0 {
            write!(f, "; {} segments with objects were kept", self.segments)?;
        }
        for Truncated { path, left, size } in &self.truncated {
            write!(
                f,
                "; {} was truncated to {left} of {size} bytes, what it lost is a miss",
                path.display()
            )?;
        }
        Ok(())
    }
}
