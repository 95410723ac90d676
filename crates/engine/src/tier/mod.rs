//! The DRAM tier: the objects of one shard that are served from memory.
//!
//! Replacement is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023) in bytes: a small FIFO
//! that new objects must leave through, a main FIFO with reinsertion, and a ghost of hashes lately evicted. The share of the
//! small queue adapts: see the head of `tier`.
//!
//! One [`DramTier`] lives under its shard's mutex and needs no locks of its own.

mod arena;
pub(crate) mod budget;
mod copies;
mod entry;
mod ghost;
mod sketch;
mod tier;
pub(crate) mod victims;

pub use arena::ENTRY_OVERHEAD;
pub use entry::{DramEntry, EntryState, NOWHERE, join};
pub use sketch::FrequencySketch;
pub use tier::DramTier;

#[cfg(test)]
mod tests;
