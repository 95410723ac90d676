//! `afterglow-workload`: load, measure and check a Cassandra-compatible database, directly or through Afterglow.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod commands;

/// Load, measure and check a Cassandra-compatible database, directly or through Afterglow.
#[derive(Parser)]
#[command(name = "afterglow-workload", version, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load a YCSB table: every record once, values that can be verified.
    LoadCql(commands::load_cql::Options),
    /// Measure reads and updates of a loaded table.
    RunCql(Box<commands::run_cql::Options>),
    /// Compare runs: tables of medians and paired ratios, Markdown, a page with plots.
    Report(commands::report::Options),
    /// Read and write hot keys concurrently and check that no read is stale.
    History(commands::history::Options),
    /// Check a recorded history for stale reads.
    CheckHistory(commands::history::CheckOptions),
    /// Kill the real binary again and again under load, and check that no read is stale.
    Killtest(Box<commands::killtest::Options>),
    /// Serve CQL from memory, with faults on purpose: to test against without a database.
    FakeBackend(commands::fake_backend::Options),
    /// Compare our YCSB generators with histograms drawn from the real site.ycsb:core.
    YcsbCheck(commands::ycsb_check::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::LoadCql(options) => commands::load_cql::run(options),
        Command::RunCql(options) => commands::run_cql::run(*options),
        Command::Report(options) => commands::report::run(&options),
        Command::History(options) => commands::history::run(&options),
        Command::CheckHistory(options) => commands::history::run_check(&options),
        Command::Killtest(options) => commands::killtest::run(*options),
        Command::FakeBackend(options) => commands::fake_backend::run(&options),
        Command::YcsbCheck(options) => commands::ycsb_check::run(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("afterglow-workload: {error}");
            ExitCode::from(2)
        }
    }
}
