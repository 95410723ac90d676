//! Row freshness: a cached row is never older than an acknowledged write. The crate has no sockets.
//! It knows plans and keys of `afterglow_cql`, and the engine that stores the rows. Its caller
//! sends the requests, passes in what the database answered, and passes in a clock.
//!
//! # May a cached row be served?
//!
//! [`serve`] decides it, in this order:
//!
//! 1. [`serve::fits`] and [`tables::Index::answers`]: would the database answer this request with a
//!    whole row, read at LOCAL_QUORUM?
//! 2. [`RowCache::cache_permission`]: may rows of the table be served now? That depends on the
//!    table's policy, and under `exclusive` on the lease ([`lease::LeaseClock::holds`]) and the
//!    claim ([`claims::Claims`]).
//! 3. [`RowCache::look_up`]: is there a row?
//! 4. [`RowCache::accept`]: was it filled under that permission, and is it young enough?
//!
//! After a miss, [`install`] goes on. The gates ([`gate::Gates::join`]) decide whether the read may
//! fill. [`gate::Ticket::finish`] decides whether the row that it read is still the newest. In a
//! ring, [`carried`] may save the read of the database.
//!
//! # What a write does, in order
//!
//! All of it is in [`write_in_flight`]:
//!
//! 1. [`write_scope::WriteScope::add`] collects what the write may touch.
//! 2. [`RowCache::begin_write`] notes intents ([`intents`]), closes gates
//!    ([`gate::Gates::begin_write`]) and drops rows.
//! 3. The caller sends the write and awaits the answer. After a plain write of one row,
//!    [`row_change`] may put the row back with the new values.
//! 4. [`write_in_flight::WriteInFlight::settle`] opens the gates ([`gate::Gates::end_write`]) or
//!    holds them. It settles or keeps the intents.
//! 5. The caller tells the client. Meanwhile [`refresh`] may read the row again.
//!
//! # What survives a crash
//!
//! [`restart::start`] finds:
//!
//! - the engine's rows;
//! - the intents of writes whose outcome is not known ([`intents::IntentTable::open`]); their gates
//!   are held again ([`RowCache::new`]);
//! - the identity, the claim and the lease epochs ([`instance_file::InstanceFile::open`]). Claim
//!   and epochs count only after a short absence in the same boot under the same policies;
//! - the tables that the last run knew ([`restart::tables_of_last_run`], before it): rows of others
//!   are dropped by the first snapshot of the schema that has them.
//!
//! [`RowCache`]: row_cache::RowCache
//! [`RowCache::new`]: row_cache::RowCache::new
//! [`RowCache::cache_permission`]: row_cache::RowCache::cache_permission
//! [`RowCache::accept`]: row_cache::RowCache::accept
//! [`RowCache::look_up`]: row_cache::RowCache::look_up
//! [`RowCache::begin_write`]: row_cache::RowCache::begin_write

mod attempts;
pub mod carried;
pub mod claims;
pub mod clock;
mod doubts;
#[cfg(test)]
mod doubts_tests;
pub mod entry;
#[cfg(test)]
mod expiry_tests;
pub mod gate;
pub mod inquiries;
pub mod install;
pub mod instance_file;
pub mod intents;
mod kept_unit;
pub mod lease;
pub mod newcomers;
pub mod noted_tables;
pub mod paxos;
pub mod policy;
pub mod refresh;
#[cfg(test)]
mod remade_tests;
pub mod restart;
pub mod row;
pub mod row_cache;
pub mod row_change;
pub mod serve;
pub mod shards;
pub mod stamp;
pub mod suspected;
pub mod tables;
#[cfg(test)]
mod testing;
mod too_large;
pub mod unit;
#[cfg(test)]
mod unit_row_tests;
#[cfg(test)]
mod unit_tests;
#[cfg(test)]
mod weak_restart_tests;
pub mod write_in_flight;
pub mod write_scope;
