//! What keeps cached rows no older than what was acknowledged. No sockets: it knows plans and keys
//! of `afterglow_cql`, and the engine that rows live in. Who drives it sends requests, tells what
//! the database answered, and hands in a clock.
//!
//! # May a cached row be served?
//!
//! [`serve`], in this order: [`serve::fits`] and [`tables::Index::answers`] say whether a whole
//! row, read at LOCAL_QUORUM, is what the database would answer to the request.
//! [`RowCache::cache_permission`] says whether rows of the table may be served now: the table's
//! policy, and under `exclusive` the lease ([`lease::LeaseClock::holds`]) and the claim
//! ([`claims::Claims`]). [`RowCache::accept`] says whether the row that [`RowCache::look_up`] found
//! was filled under that permission and is young enough. What a miss does is in [`install`]: the
//! gates ([`gate::Gates::join`]) decide whether a read may fill, and [`gate::Ticket::finish`]
//! whether what it brings is still the newest.
//!
//! # What a write does, in order
//!
//! [`write`](mod@write): what it may touch ([`write_scope::WriteScope::add`]); then
//! [`RowCache::begin_write`] notes intents ([`intents`]), closes gates
//! ([`gate::Gates::begin_write`]) and drops rows; it is sent; then [`write::WriteInFlight::settle`]
//! opens the gates ([`gate::Gates::end_write`]) or holds them, and settles or keeps the intents;
//! then the client is told.
//!
//! # What survives a crash
//!
//! What [`restart::start`] finds: the engine's rows; the intents of writes whose outcome is not
//! known ([`intents::IntentTable::open`]), whose gates are held again ([`RowCache::new`]); the
//! identity, and claim and lease epochs ([`instance::Instance::open`]). Those are believed only
//! after a short absence in the same boot under the same policies.
//!
//! [`RowCache`]: row_cache::RowCache
//! [`RowCache::new`]: row_cache::RowCache::new
//! [`RowCache::cache_permission`]: row_cache::RowCache::cache_permission
//! [`RowCache::accept`]: row_cache::RowCache::accept
//! [`RowCache::look_up`]: row_cache::RowCache::look_up
//! [`RowCache::begin_write`]: row_cache::RowCache::begin_write

pub mod claims;
pub mod clock;
pub mod entry;
#[cfg(test)]
mod expiry_tests;
pub mod gate;
pub mod inquiries;
pub mod install;
pub mod instance;
pub mod intents;
pub mod lease;
pub mod paxos;
pub mod policy;
pub mod restart;
pub mod row;
pub mod row_cache;

pub mod serve;
pub mod stamp;
pub mod tables;
#[cfg(test)]
mod testing;
mod too_large;
pub mod write;
pub mod write_scope;
