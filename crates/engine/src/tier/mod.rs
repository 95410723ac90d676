//! The DRAM tier: the objects of one shard that are served from memory.
//!
//! Eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023),
//! counted in bytes. It has a small FIFO that new objects pass through, a main FIFO with
//! reinsertion, and a ghost of hashes lately evicted. The share of the small queue adapts: see the
//! head of `dram`. Scans and loops defeat it; where they do, another policy takes its place
//! (`eviction`, `trial`).
//!
//! One [`DramTier`] lives under its shard's mutex and needs no locks of its own.

pub(crate) mod admission;
mod arena;
pub(crate) mod budget;
mod copies;
mod dram;
pub(crate) mod duel;
mod entry;
mod evict;
mod evicted;
mod eviction;
mod fifo;
mod ghost;
mod heads;
mod packed;
mod sketch;
mod slab;
mod trial;
mod write_out;

pub use arena::entry_bytes;
pub use dram::DramTier;
pub(crate) use dram::LEAST_BYTES;
pub use entry::{DramEntry, DramObject, EntryState, NOWHERE, join};
pub use evicted::{Evicted, Victims};
pub(crate) use packed::join_large;
pub use sketch::FrequencySketch;
pub use trial::PolicyTrial;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trial_tests;
