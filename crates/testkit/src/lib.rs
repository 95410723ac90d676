//! What Afterglow is tested with: a fake database with faults on purpose, a checker of recorded
//! histories for stale reads, and the kill test of the real binary. The binary `afterglow-testkit`
//! is a thin front over this library.

pub mod fake_backend;
pub mod history;
pub mod killtest;
