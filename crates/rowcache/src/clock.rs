//! The time that everything here goes by.

/// Milliseconds of a clock that never steps back and counts while the machine sleeps.
pub type Millis = u64;
