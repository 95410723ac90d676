//! Doors: what clients talk to.

pub mod cql;
