//! Hot keys: the keys, prefixes and tables that are asked for most. They are sampled, in bounded
//! memory.
//!
//! Each reactor has a [`Sampler`] of each front end. It counts requests down to the next sampled
//! one. Only the key of a sampled request goes to a [`sketch`], under a lock that only a report
//! also takes. [`report`] adds the sketches of all reactors up.

pub mod report;
mod sampler;
mod sketch;

pub use sampler::{SAMPLED, Sampler, Seen};
