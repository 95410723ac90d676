//! Front ends: the protocols by which clients reach the cache.

mod client_handshakes;
pub mod cql;
pub mod memcache;
mod sessions;
