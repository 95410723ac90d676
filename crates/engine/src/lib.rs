//! The Afterglow cache engine: a persistent flash cache that is warm after `kill -9` and never serves a stale value.
//!
//! [`Cache::open`] gives a cache, [`Cache::namespace`] a [`Namespace`] with [`get`](Namespace::get), [`put`](Namespace::put)
//! and [`remove`](Namespace::remove). Lookups come in two forms: blocking, and submitted ([`Lookup::Flash`]) for callers with
//! an I/O ring of their own. Outcomes are types; nothing is dropped without a counter ([`Stats`]).
//!
//! Inside, the engine is a state machine over three seams, so that all of it runs under a deterministic simulation: devices
//! ([`disk`]), small durable areas ([`media`]) and clocks ([`clock`]). Formats are in [`format`](mod@format).

#[macro_use]
mod coverage;

mod api;
mod background;
mod backpressure;
mod budget;
mod cache;
pub mod clock;
mod config;
mod core;
pub mod disk;
pub mod dram;
mod error;
pub mod format;
mod geometry;
pub mod index;
mod intents;
mod journal;
mod keys;
pub mod media;
mod modify;
mod mutate;
mod namespace;
mod pending;
mod prefetch;
mod read;
mod recovery;
mod segment;
mod shard;
mod stats;
mod sync;
mod version;
mod victims;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod testing;

pub use api::{
    DropReason, Hit, Lookup, MissReason, NO_EXPIRY, PARTITION_SHIFT, PREFETCHED, PutOptions, PutOutcome,
    RefuseReason, Tier,
};
pub use backpressure::Backpressure;
pub use cache::{Cache, Namespace};
pub use config::{Config, Durability, Mutability, NamespaceOptions, Survives};
pub use disk::{DeviceConfig, DeviceId, IoEngine, Truncated};
pub use error::OpenError;
pub use intents::{IntentDoubt, IntentId, IntentTable, Unsettled};
pub use keys::{Keys, KeysError, Listed, Listing};
pub use modify::{Change, Changed, Modified, Modify, ModifyRead};
pub use pending::{Ack, Pending};
pub use read::FlashRead;
pub use recovery::{Opening, Origin, Outlook, look};
pub use stats::{EngineTotals, NamespaceStats, Stats};
