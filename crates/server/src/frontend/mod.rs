//! Front ends: what clients talk to.

pub mod cql;
pub mod memcache;
mod sessions;
