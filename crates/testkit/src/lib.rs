//! Test tools for Afterglow: a fake database that fails on purpose, a checker of recorded histories
//! for stale reads, and the kill test of the real binary. The binary `afterglow-testkit` is a thin
//! front over this library.

pub mod fake_backend;
pub mod history;
pub mod killtest;
