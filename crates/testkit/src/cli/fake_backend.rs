//! `fake-backend`

use std::{net::SocketAddr, time::Duration};

use afterglow_testkit::fake_backend::{FakeBackend, Faults};

use afterglow_loadgen::{cql::target::duration, say};

use super::Outcome;

/// What goes wrong on purpose.
#[derive(clap::Args, Clone)]
#[command(
    next_help_heading = "Faults of the fake backend (never of schema, system tables or keyspace afterglow)"
)]
pub struct FaultOptions {
    /// Statements take up to twice this long.
    #[arg(long, default_value = "0ms", value_parser = duration)]
    delay: Duration,
    /// Fraction of writes answered with a timeout; half of them have happened.
    #[arg(long, default_value_t = 0.0)]
    write_timeouts: f64,
    /// Fraction of statements that end their connection; half of the writes among them have
    /// happened.
    #[arg(long, default_value_t = 0.0)]
    drops: f64,
    /// Fraction of reads that lie: to see that a check finds it.
    #[arg(long, default_value_t = 0.0)]
    stale_reads: f64,
    /// Refuses lightweight transactions, those of the keyspace afterglow too.
    #[arg(long)]
    refuse_transactions: bool,
}

impl FaultOptions {
    pub fn faults(&self, seed: u64) -> Faults {
        Faults {
            delay: self.delay,
            write_timeouts: self.write_timeouts,
            drops: self.drops,
            stale_reads: self.stale_reads,
            refuses_transactions: self.refuse_transactions,
            seed,
            ..Faults::default()
        }
    }
}

#[derive(clap::Args)]
pub struct FakeBackendArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:9042")]
    listen: SocketAddr,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    faults: FaultOptions,
}

pub fn run(options: &FakeBackendArgs) -> Outcome {
    let backend = FakeBackend::start(options.listen, options.faults.faults(options.seed))
        .map_err(|e| format!("cannot listen on {}: {e}", options.listen))?;
    say!("serving CQL v4 and v5 on {} from memory; end with Ctrl-C", backend.address());
    loop {
        std::thread::park();
    }
}
