//! The memcached front end: clients talk to it as if it were memcached.
//!
//! A [connection] hands what has come to the [decoder](afterglow_memcache::Decoder) and
//! [performs](perform) the requests it finds on the [store]; answers leave [in order](answers), as
//! many as are known in one write. What needs flash waits in a task of its own, so that neither
//! other connections nor other keys of the same one wait with it.

mod answers;
mod budget;
mod connection;
mod counted;
mod dump;
mod dump_turn;
mod flush;
mod front_end;
mod get;
mod limits;
mod logged;
mod metering;
mod modify;
mod object;
mod options;
mod perform;
mod reactor_state;
mod recency;
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
mod tls;
mod version;
mod watch;
mod watchers;

pub use front_end::{MemcacheFrontEnd, MemcacheFrontEndError, Sockets, look};
pub use limits::MemcacheLimits;
pub use options::{FrontEndAddress, MemcacheFrontEndConfig};
pub use store::NAMESPACE;
pub use tls::{Tls, TlsError};
