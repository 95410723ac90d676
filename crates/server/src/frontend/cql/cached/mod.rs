//! The cached path: rows served from the engine, filled from the database, dropped by writes.
//!
//! [`RowCache`] is shared by all reactors and knows no socket. What keeps its rows fresh is told in
//! `docs/internals/architecture.md`; the parts are [`scope`] (what a write may touch), [`write`] and [`in_flight`] (the order of a write),
//! [`instance`] and the lease (whether `exclusive` rows may be believed), and `afterglow_rowcache::gate`.

use futures_channel::oneshot;

mod answer;
mod bound;
mod fill;
mod keeper;
mod labels;
mod newest;
mod policies;
mod read;
mod router;
mod serial;
mod setting;
mod setup;
mod state;
mod times;
mod write;

pub use afterglow_rowcache::restart::{StartError as CachedError, look};
pub use router::CachedRouter;
pub use setup::{Cached, CachedConfig, Keeping};
pub use times::Times;

/// The row a fill brought, or nothing if it brought none that can be shared.
type FillResult = Option<afterglow_rowcache::entry::Row>;
/// How a read that waits for another's fill hears of it.
type FillWaiter = oneshot::Sender<FillResult>;
/// The cache of rows, shared by all reactors.
type RowCache = afterglow_rowcache::row_cache::RowCache<FillWaiter>;
/// A write on its way.
type WriteInFlight = afterglow_rowcache::write::WriteInFlight<FillWaiter>;
