//! The command line.

mod check_config;
mod command;
mod explain;
mod inputs;
mod inspect;
mod serve;

use std::{io::Write, process::ExitCode};

use clap::ArgMatches;

/// Something went wrong while running.
const FAILED: u8 = 1;
/// Flags or configuration are wrong; also clap's own.
const USAGE: u8 = 2;

/// Why a command ended without success; the message is for the person who typed it.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Flags, environment or file are wrong.
    fn usage(message: impl ToString) -> Self {
        Failure { code: USAGE, message: message.to_string() }
    }

    /// It did not work, and the log has said why.
    fn said() -> Self {
        Failure::failed("")
    }

    /// All was said rightly, and still it did not work.
    fn failed(message: impl ToString) -> Self {
        Failure { code: FAILED, message: message.to_string() }
    }
}

/// Does what the command line says, and returns the exit status: 0 done, 1 failed, 2 wrong flags or configuration.
pub fn run() -> ExitCode {
    let matches = command::command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("serve", arguments)) => serve::run(arguments),
        Some(("check-config", arguments)) => check_config::run(arguments),
        Some(("inspect", arguments)) => inspect::run(arguments),
        Some(("bench", _)) => Err(Failure::usage(command::BENCH_MOVED)),
        Some(("explain", arguments)) => explain::run(arguments),
        _ => unreachable!("clap requires one of the subcommands above"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("{}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints to standard output. A reader that went away (`| head`) is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("error: cannot write: {e}")))
        }
        _ => Ok(()),
    }
}

fn flag(arguments: &ArgMatches, name: &str) -> bool {
    arguments.get_flag(name)
}
