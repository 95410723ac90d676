//! Workloads for Afterglow: YCSB's key choosers, latency recording free of coordinated omission, a native CQL load client, a checker for
//! stale reads, and reports. The binary `afterglow-workload` is a thin front over this library.

pub mod bench;
pub mod cpu;
pub mod cql;
pub mod fake_backend;
pub mod flat;
pub mod history;
pub mod killtest;
pub mod latency;
pub mod memcache;
pub mod metrics;
pub mod pace;
pub mod report;
pub mod result;
pub mod rng;
pub mod values;
pub mod ycsb;
