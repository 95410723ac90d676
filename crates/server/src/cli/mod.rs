//! The command line.

mod admin_client;
mod check_config;
mod command;
mod data_dir;
mod explain;
mod generate;
mod health;
mod hotkeys;
mod inputs;
mod inspect;
mod invalidate;
pub mod output;
mod ring;
mod ring_text;
mod serve;
mod size;
mod top;
mod units;

use std::io::Write;
use std::process::ExitCode;

use output::Failure;

/// Does what the command line says, and returns the exit status: 0 done, 1 failed, 2 wrong flags or
/// configuration.
pub fn run() -> ExitCode {
    let matches = command::command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("serve", arguments)) => serve::run(arguments),
        Some(("check-config", arguments)) => check_config::run(arguments),
        Some(("inspect", arguments)) => inspect::run(arguments),
        Some(("bench", _)) => Err(Failure::usage(command::BENCH_MOVED)),
        Some(("hotkeys", arguments)) => hotkeys::run(arguments),
        Some(("invalidate", arguments)) => invalidate::run(arguments),
        Some(("ring", arguments)) => ring::run(arguments),
        Some(("top", arguments)) => top::run(arguments),
        Some(("explain", arguments)) => explain::run(arguments),
        Some(("size", arguments)) => size::run(arguments),
        Some(("health", arguments)) => health::run(arguments),
        Some(("completions", arguments)) => generate::completions(arguments, command::documented()),
        Some(("man-pages", arguments)) => generate::man_pages(arguments, command::documented()),
        _ => unreachable!("clap requires one of the subcommands above"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                // Whoever reads standard error may be gone: the status says it still.
                let _ = writeln!(std::io::stderr(), "{}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}
