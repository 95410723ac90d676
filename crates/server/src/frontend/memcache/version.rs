//! The version that clients are told.

/// The version of memcached that clients are told, which decides what some of them try.
const MEMCACHED: &str = "1.6.18";

/// What clients are told of the version.
pub fn version() -> String {
    format!("{MEMCACHED}-afterglow-{}", env!("CARGO_PKG_VERSION"))
}
