//! Everything Afterglow counts, and how Prometheus reads it.
//!
//! A reactor has its own shard of counters, from [`Metrics::front_end`] and [`Metrics::backend`].
//! It increments them with relaxed atomics that no other core writes. Shards are summed when the
//! metrics are read. Every label value is known at compile time, so memory is bounded whatever
//! clients send.

mod backend;
mod counter;
pub mod engine;
mod exposition;
pub mod figures;
mod frontend;
mod histogram;
mod labels;
mod latency_window;
mod memcache;
mod process;
mod registry;
mod ring;
mod ring_link;
mod tables;

pub use backend::{BackendMetrics, LeaseMetrics};
pub use counter::{Counter, Family, Gauge, OneMore, OwnCounter};
pub use exposition::{Exposition, Kind, TextFormat};
pub use frontend::FrontEndMetrics;
pub use histogram::Histogram;
pub use labels::{
    CarriedFrom, ConnectFailure, FillOutcome, Label, LeaseState, LinkDrop, LinkEnd,
    LinkHandshakeFailure, MissReason, PassReason, Path, QuarantineReason, RequestKind, Tier,
    TlsFailure, WriteOutcome, WriteScopeLabel,
};
pub use latency_window::LatencyWindow;
pub use memcache::MemcacheMetrics;
pub use process::{cpu_seconds, resident_bytes};
pub use registry::{FrontEndTraffic, Metrics};
pub use ring::{RingEntry, RingFigures, RingMemberFigures};
pub use ring_link::RingLinkMetrics;
pub use tables::{TableCounters, TableFigures, TableMetrics};
