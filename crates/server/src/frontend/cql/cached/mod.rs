//! The cached path: rows served from the engine, filled from the database, dropped by writes.
//!
//! [`afterglow_rowcache`] makes every decision and has no socket. This module connects it to
//! requests and to the database:
//!
//! - [`router`]: which way a request goes.
//! - [`level`]: at which consistency levels a read is answered.
//! - [`slice`]: a read of a slice of one partition, and its fill.
//! - [`rows`]: a read of rows of several partitions, each served and filled as one row is.
//! - [`awaited`]: a read that waits for a unit which is being written.
//! - [`sought`]: where the cache has one row: as such, or in the unit of its partition.
//! - [`read`], [`miss`], [`fill`] and [`fill_nodes`]: a read of one row, what it does where the
//!   cache has none, the read of the database that fills the cache, and which nodes it asks.
//! - [`wanted`]: the metadata that the answer to a read carries.
//! - [`fill_result`]: what those hear who wait for a fill.
//! - [`write`](mod@write) and [`update`]: a write, and what it sets in a cached row.
//! - [`schema_change`]: what a change of the schema means for fills.
//! - [`serial`] and [`repeat`]: what settles a write of unknown outcome, a lightweight transaction
//!   or a plain one.
//! - [`keeper`]: the lease, on a connection of its own.
//! - [`ring`]: several instances as one cache.
//! - [`setup`]: start and stop.

mod answer;
mod awaited;
mod changed_table;
mod fill;
mod fill_nodes;
mod fill_result;
mod heard_schema;
mod in_vain;
mod invalidate;
mod keeper;
mod labels;
mod level;
mod miss;
mod names;
mod newest;
mod outcome;
mod own_keyspace;
mod own_query;
mod paxos_settings;
mod policies;
mod read;
mod refresh;
mod repeat;
mod ring;
mod router;
mod rows;
mod schema_change;
mod serial;
mod setting;
mod setup;
mod slice;
mod sought;
mod state;
#[cfg(test)]
mod testing;
mod times;
mod under_way;
mod unheard;
mod update;
mod wanted;
mod weak_writes;
mod write;
mod write_in_ring;
mod write_level;

pub use afterglow_rowcache::instance_file::note_clean_stop;
pub use afterglow_rowcache::restart::{StartError as CachedError, look, tables_of_last_run};
pub use invalidate::{Invalidator, Named};
pub use ring::{
    DifferenceStatus, LeaseStatus, MemberStatus, MoveStatus, RangeStatus, RingConfig, RingHandle,
    RingStatus,
};
pub use router::CachedRouter;
pub use setup::{Cached, CachedConfig, Keeping};
pub use times::Times;

use fill_result::FillWaiter;

/// The cache of rows, shared by all reactors.
type RowCache = afterglow_rowcache::row_cache::RowCache<FillWaiter>;
/// A write on its way.
type WriteInFlight = afterglow_rowcache::write_in_flight::WriteInFlight<FillWaiter>;
