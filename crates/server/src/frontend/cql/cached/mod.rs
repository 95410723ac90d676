//! The cached path: rows served from the engine, filled from the database, dropped by writes.
//!
//! [`RowCache`] is shared by all reactors and knows no socket. What keeps its rows fresh is told in
//! `docs/internals/architecture.md`; the parts are [`scope`] (what a write may touch), [`write`] and [`in_flight`] (the order of a write),
//! [`instance`] and the lease (whether `exclusive` rows may be believed), and `afterglow_rowcache::gate`.

mod answer;
mod bound;
#[cfg(test)]
mod expiry_tests;
mod fill;
mod in_flight;
mod intent_log;
mod keeper;
mod newest;
mod read;
mod router;
mod row_cache;
mod serial;
mod setting;
mod setup;
mod state;
#[cfg(test)]
mod testing;
mod times;
mod write;

pub use afterglow_rowcache::clock::{Clock, Moment};
pub use router::CachedRouter;
pub use row_cache::{CachePermission, Fill, FillResult, FillWaiter, Row, RowCache};
pub use setup::{Cached, CachedConfig, CachedError, Keeping, look};
pub use times::Times;
