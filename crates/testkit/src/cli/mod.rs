//! The subcommands: options and printing; the work is done in the library. Exit codes: 0 fine, 1 a
//! check failed, 2 could not run.

pub mod fake_backend;
pub mod history;
pub mod killtest;

/// What a subcommand returns.
pub type Outcome = Result<std::process::ExitCode, Box<dyn std::error::Error>>;
