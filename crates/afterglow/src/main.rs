//! The Afterglow binary.

use std::process::ExitCode;

/// Counts nothing unless `afterglow bench memory` tells it to.
#[global_allocator]
static ALLOCATOR: afterglow_workload::bench::alloc::Counting = afterglow_workload::bench::alloc::Counting;

fn main() -> ExitCode {
    afterglow::cli::run()
}
