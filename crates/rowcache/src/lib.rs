//! What keeps cached rows no older than what was acknowledged: gates between fills and writes, the lease that
//! makes one instance the only one to cache a table, the form of a cached row. No sockets.

pub mod clock;
pub mod gate;
pub mod instance;
pub mod intents;
pub mod lease;
pub mod paxos;
pub mod policy;
pub mod row;
pub mod scope;
pub mod stamp;
pub mod tables;
mod too_large;
