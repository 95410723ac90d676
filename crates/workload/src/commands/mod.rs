//! The subcommands: options and printing; the work is done in the library. Exit codes: 0 fine, 1 a check failed, 2 could not run.

/// Prints a line to standard output. Whoever closes the pipe early (`| head`) has seen enough: no panic.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

pub mod fake_backend;
pub mod history;
pub mod killtest;
pub mod load_cql;
pub mod report;
pub mod run_cql;
mod target;
pub mod ycsb_check;

/// What a subcommand returns.
pub type Outcome = Result<std::process::ExitCode, Box<dyn std::error::Error>>;
