//! What keeps cached rows no older than what was acknowledged: gates between fills and writes, the lease that
//! makes one instance the only one to cache a table, the form of a cached row. No sockets.

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
pub mod scope;
pub mod serve;
pub mod stamp;
pub mod tables;
#[cfg(test)]
mod testing;
mod too_large;
pub mod write;
