//! Loads for Afterglow and their measurement:
//!
//! - YCSB's key choosers;
//! - native load clients of CQL and memcached;
//! - latency recording free of coordinated omission;
//! - the CPU time of processes.
//!
//! The crate knows nothing of the product but its protocol.

pub mod cpu;
pub mod cql;
pub mod flat;
pub mod latency;
pub mod memcache;
pub mod metrics;
pub mod pace;
pub mod port;
pub mod result;
pub mod rng;
pub mod say;
pub mod values;
pub mod ycsb;
