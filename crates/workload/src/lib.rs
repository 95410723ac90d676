//! Workload generators, load clients, latency recording.
