//! The memcached front end: clients talk to it as if it were memcached.
//!
//! 1. A [connection] gives the bytes that arrived to the [decoder](afterglow_memcache::Decoder).
//! 2. It [performs](perform) each decoded request on the [store].
//! 3. A request that needs flash waits in a task of its own. No other connection waits for it, and
//!    no other key of the same one.
//! 4. [Answers](answers) leave in the order of the requests, as many as are known in one write.
//!
//! A get begins in [`connection`], passes [`perform`], [`get`](mod@get) and the engine's
//! `Namespace::get`, and ends in [`answers`], which [`connection`] sends.
//!
//! It may not touch the CQL front end, the CQL protocol, or what keeps rows fresh:
//! `tools/check_crates.py` refuses such an import. Segments, index and journal are private to the
//! engine.

mod answers;
mod arriving;
mod blocking_turns;
mod budget;
mod certificates;
mod connection;
mod counted;
mod delete;
mod driving;
mod dump;
mod dump_turn;
mod flush;
mod front_end;
mod get;
mod head;
mod joining;
mod limits;
mod line;
mod logged;
mod metering;
mod modify;
mod object;
mod options;
mod outgoing;
mod parts;
mod perform;
mod reactor_state;
mod reading;
mod receiving;
mod recency;
mod room;
#[cfg(test)]
mod room_model;
mod sending;
mod session;
mod set;
mod shared;
mod signs_of_life;
mod sizes;
mod stat_settings;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod version;
mod watch;
mod watchers;

pub use front_end::{MemcacheFrontEnd, MemcacheFrontEndError, Sockets, look};
pub use limits::MemcacheLimits;
pub use options::{FrontEndAddress, MemcacheFrontEndConfig};
pub use parts::part_len;
pub use store::NAMESPACE;
