//! Front ends: the protocols by which clients reach the cache.

pub mod cql;
pub mod memcache;
mod sessions;
