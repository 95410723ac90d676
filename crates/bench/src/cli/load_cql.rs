//! `load-cql`

use std::process::ExitCode;

use afterglow_loadgen::cql::{
    load::{LoadOptions, load},
    table::TableSpec,
};
use afterglow_loadgen::say;

use afterglow_loadgen::cql::target::Target;

use super::outcome::Outcome;

#[derive(clap::Args)]
pub struct LoadCqlArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    table: TableSpec,
    /// Create keyspace (one copy) and table first, if they are not there.
    #[arg(long)]
    create: bool,
    /// Threads; one loads about as fast as a single-node Cassandra takes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Connections per thread.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Inserts in flight per connection.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=32768))]
    in_flight: u16,
    /// How often an insert is tried before the load fails; waits grow from 10 ms to 1.3 s.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// Print no progress.
    #[arg(long, short)]
    quiet: bool,
}

pub fn run(options: LoadCqlArgs) -> Outcome {
    let settings = LoadOptions {
        table: options.table.clone(),
        hosts: options.target.hosts.clone(),
        connect: options.target.connect()?,
        create: options.create,
        consistency: options.target.consistency,
        threads: usize::from(options.threads),
        connections: usize::from(options.connections),
        in_flight: usize::from(options.in_flight),
        attempts: options.attempts,
    };
    let (total, mut seconds) = (options.table.records, 0);
    let loaded = load(&settings, |records| {
        seconds += 1;
        if !options.quiet {
            let left =
                (total - records.min(total)) as f64 / (records.max(1) as f64 / f64::from(seconds));
            eprintln!("loading  {records:>10} of {total} records, about {left:.0} s left");
        }
    })?;
    say!(
        "loaded {} records ({:.1} MB of values) into {}.{} in {:.1} s, {:.0} a second; {} inserts repeated",
        loaded.records,
        options.table.bytes() as f64 / 1e6,
        options.table.keyspace,
        options.table.table,
        loaded.seconds,
        loaded.records as f64 / loaded.seconds,
        loaded.retries
    );
    Ok(ExitCode::SUCCESS)
}
