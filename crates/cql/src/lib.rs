//! CQL native protocol and statement analysis, sans-io.
pub mod freshness;
