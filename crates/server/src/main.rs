//! The Afterglow binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    afterglow::cli::run()
}
