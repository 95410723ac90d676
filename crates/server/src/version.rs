//! Which Afterglow this is.

/// The version, as in `0.1.0`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built from; empty where that was not known.
pub const COMMIT: &str = env!("AFTERGLOW_COMMIT");

/// Both, for people: `0.1.0 (commit 0123456789ab)`.
pub const LONG: &str = env!("AFTERGLOW_LONG_VERSION");
