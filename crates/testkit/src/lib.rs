//! Test tools for Afterglow, with the binary `afterglow-testkit`:
//!
//! - a fake database that fails on purpose;
//! - a checker that finds stale reads in recorded histories;
//! - the kill test of the real binary.

pub mod fake_backend;
pub mod history;
pub mod killtest;
