//! `afterglow-testkit`: check a Cassandra-compatible database, directly or through Afterglow.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cli;

/// Check a Cassandra-compatible database, directly or through Afterglow.
#[derive(Parser)]
#[command(name = "afterglow-testkit", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read and write hot keys concurrently and check that no read is stale.
    History(cli::history::HistoryArgs),
    /// Check a recorded history for stale reads.
    CheckHistory(cli::history::CheckOptions),
    /// Kill the real binary again and again under load, and check that no read is stale.
    Killtest(Box<cli::killtest::KilltestArgs>),
    /// Serve CQL from memory, with faults on purpose: to test against without a database.
    FakeBackend(cli::fake_backend::FakeBackendArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::History(options) => cli::history::run(&options),
        Command::CheckHistory(options) => cli::history::run_check(&options),
        Command::Killtest(options) => cli::killtest::run(*options),
        Command::FakeBackend(options) => cli::fake_backend::run(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("afterglow-testkit: {error}");
            ExitCode::from(2)
        }
    }
}
