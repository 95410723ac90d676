//! The Afterglow cache engine: a persistent flash cache that is warm after `kill -9` and never
//! serves a stale value.
//!
//! [`Cache::open`] gives a cache, [`Cache::namespace`] a [`Namespace`] with
//! [`get`](Namespace::get), [`put`](Namespace::put) and [`remove`](Namespace::remove). Lookups come
//! in two forms: blocking, and submitted ([`Lookup::Flash`]) for callers with an I/O ring of their
//! own. Every outcome is a type; nothing is dropped without a counter ([`Stats`]).
//!
//! Inside, the engine is a state machine over three interfaces: devices ([`device`]), small durable
//! areas ([`device::area`]) and clocks ([`clock`]). So all of it runs under a deterministic
//! simulation. Formats are in [`format`](mod@format).

#[macro_use]
mod coverage;

mod api;
mod background;
mod cache;
mod checkpoint_areas;
mod checkpoint_pace;
pub mod clock;
mod config;
mod core;
pub mod device;
mod durability;
mod error;
pub mod format;
mod geometry;
mod heap;
pub mod index;
mod journal;
mod kill_map;
mod namespace;
mod ops;
mod prefetch;
mod progress;
mod recovery;
mod segment;
mod shard;
mod sizing;
mod snapshot;
mod stats;
mod sync;
pub mod tier;
mod time;
mod version;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod testing;

pub use api::{
    DropReason, Hit, Listed, MissReason, NO_EXPIRY, PARTITION_SHIFT, PREFETCHED, PutOptions,
    PutOutcome, RefuseReason, Resized, Tier,
};
pub use cache::Cache;
pub use config::{Config, Durability, Mutability, NamespaceOptions, Survives};
pub use device::{DeviceConfig, DeviceId, IoEngine, Truncated};
pub use durability::backpressure::Backpressure;
pub use durability::pending::{Ack, Pending};
pub use error::OpenError;
pub use namespace::Namespace;
pub use ops::get::{FlashRead, Lookup, Peek};
pub use ops::list::{Keys, KeysError, Listing};
pub use ops::modify::{Change, Changed, Modified, Modify, ModifyRead};
pub use recovery::{Looked, Opening, Origin, Outlook, look};
pub use segment::{SegmentFigures, SegmentState};
pub use sizing::WrittenByPut;
pub use stats::{EngineTotals, NamespaceStats, Stats};
