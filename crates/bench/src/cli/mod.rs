//! The command line: options and printing; the work is done in the library.

mod compare;
mod load_cql;
mod measure;
mod memcache;
mod outcome;
mod output;
mod run_cql;
mod ycsb_check;

use std::process::ExitCode;

use afterglow::cli::output::Failure;
use clap::{Parser, Subcommand};

const HELP: &str = "\
Exit status: 0 every target holds, 1 one was missed, a check or the benchmark failed, 2 wrong flags.

Examples:
  What the disk under /mnt/nvme can do, and whether fio agrees:
    afterglow-bench device-limit --path /mnt/nvme --size 4GiB --fio

  What the cache leaves of it:
    afterglow-bench engine --dir /mnt/nvme --json engine.json --html engine.html

  Hit ratios of DRAM and flash together over public traces, and the flash bytes they cost:
    afterglow-bench traces --traces /srv/traces --dir /dev/shm --json traces.json

  The memcached front end next to memcached, in a few minutes:
    afterglow-bench memcache --dir /mnt/nvme --size 1GiB --seconds 1 --runs 3 --html memcache.html

  What the CQL front end adds in front of a Cassandra on this machine:
    afterglow-bench cql --backend 127.0.0.1:9042 --backend-pid 4242

  A database under YCSB's load, and the comparison of two such runs:
    afterglow-bench run-cql --hosts 127.0.0.1:9042 --label direct --json direct-1.json
    afterglow-bench report direct-1.json after-1.json --baseline direct";

/// Measure Afterglow, databases and disks, and compare what was measured.
#[derive(Parser)]
#[command(name = "afterglow-bench", version, max_term_width = 120, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Measure(measure::Benchmark),
    /// Load a YCSB table: every record once, values that can be verified.
    LoadCql(load_cql::LoadCqlArgs),
    /// Measure reads and updates of a loaded table.
    RunCql(Box<run_cql::RunCqlArgs>),
    /// Compare runs of run-cql: medians and paired ratios, Markdown, a page with plots.
    Report(compare::ReportArgs),
    /// Compare the key choosers with histograms drawn from the real site.ycsb:core.
    YcsbCheck(ycsb_check::YcsbCheckArgs),
}

/// Does what the command line says, and returns the exit status.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Measure(bench) => return exit(measure::run(bench).map(|()| ExitCode::SUCCESS)),
        Command::LoadCql(options) => load_cql::run(options),
        Command::RunCql(options) => run_cql::run(*options),
        Command::Report(options) => compare::run(&options),
        Command::YcsbCheck(options) => ycsb_check::run(&options),
    };
    exit(outcome.map_err(|error| Failure::usage(format!("error: {error}"))))
}

fn exit(outcome: Result<ExitCode, Failure>) -> ExitCode {
    outcome.unwrap_or_else(|failure| {
        eprintln!("{}", failure.message);
        ExitCode::from(failure.code)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn clap_finds_no_contradiction() {
        super::Cli::command().debug_assert();
    }
}
