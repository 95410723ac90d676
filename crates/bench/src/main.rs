//! `afterglow-bench`: measures Afterglow, databases and disks, and compares what was measured.

use std::process::ExitCode;

mod cli;

/// Counts nothing unless `afterglow-bench memory` tells it to.
#[global_allocator]
static ALLOCATOR: afterglow_bench::alloc::Counting = afterglow_bench::alloc::Counting;

fn main() -> ExitCode {
    cli::run()
}
