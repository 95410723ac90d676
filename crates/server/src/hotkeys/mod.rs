//! Which keys, prefixes and tables are asked for most: sampled, in bounded memory.
//!
//! Each reactor has a [`Sampler`] of each front end. It counts down from one request that is
//! looked at to the next and takes only that one's key to a [`sketch`] under a lock that nobody
//! else wants but for a report. [`report`] adds the sketches of all reactors up.

pub mod report;
mod sampler;
mod sketch;

pub use sampler::{SAMPLED, Sampler, Seen};
