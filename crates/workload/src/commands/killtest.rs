//! `killtest`

use std::{path::PathBuf, process::ExitCode, time::Duration};

use afterglow_workload::{
    fake_backend::FakeBackend,
    killtest::{self, KillOptions},
};

use super::{Outcome, fake_backend::FaultOptions, history::Clients, target::duration};

#[derive(clap::Args)]
#[command(after_help = "\
Exit code 1: a read was stale or wrong, or no read at all came from the cache, so that the run proves nothing.

  afterglow-workload killtest --afterglow target/debug/afterglow --fake-backend --rounds 10
  afterglow-workload killtest --afterglow target/release/afterglow --backend 127.0.0.1:9042 --rounds 200")]
pub struct Options {
    /// The binary to kill.
    #[arg(long, value_name = "BINARY", default_value = "target/debug/afterglow")]
    afterglow: PathBuf,
    /// CQL address of a real database. It must not be written to by others meanwhile.
    #[arg(
        long,
        value_name = "HOST:PORT",
        required_unless_present = "fake_backend",
        conflicts_with = "fake_backend"
    )]
    backend: Option<String>,
    /// Use the in-memory server instead of a database.
    #[arg(long)]
    fake_backend: bool,
    #[command(flatten)]
    faults: FaultOptions,
    /// How often the server is ended and started again.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Shortest life of the server.
    #[arg(long, default_value = "500ms", value_parser = duration)]
    life_min: Duration,
    /// Longest life of the server.
    #[arg(long, default_value = "4s", value_parser = duration)]
    life_max: Duration,
    /// Every so many rounds SIGTERM instead of kill -9; 0 for never.
    #[arg(long, default_value_t = 5)]
    clean_every: u32,
    /// Directory for cache and log; a new one under the system's temporary directory if not given. It is removed when all is well.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// --flash-size of the server.
    #[arg(long, default_value = "256MiB")]
    flash_size: String,
    /// --memory of the server.
    #[arg(long, default_value = "64MiB")]
    memory: String,
    /// --unknown-outcome-hold of the server.
    #[arg(long, default_value = "3s")]
    hold: String,
    #[command(flatten)]
    clients: Clients,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options) -> Outcome {
    let seed = options.clients.seed;
    let fake = options
        .fake_backend
        .then(|| FakeBackend::start(([127, 0, 0, 1], 0).into(), options.faults.faults(seed)))
        .transpose()?;
    let backend = match (&fake, options.backend) {
        (Some(fake), _) => fake.address().to_string(),
        (None, Some(address)) => address,
        (None, None) => return Err("give --backend or --fake-backend".into()),
    };
    let own = options.dir.is_none();
    let directory = options
        .dir
        .unwrap_or_else(|| std::env::temp_dir().join(format!("afterglow-killtest-{}", std::process::id())));
    let settings = KillOptions {
        binary: options.afterglow,
        backend,
        directory: directory.clone(),
        rounds: options.rounds,
        life: (options.life_min, options.life_max),
        clean_every: options.clean_every,
        flash_size: options.flash_size,
        memory: options.memory,
        hold: options.hold,
        history: options.clients.history(Vec::new()),
        seed,
    };
    let report = killtest::run(&settings, |line| eprintln!("{line}"))
        .map_err(|e| format!("{e}\n(directory: {})", directory.display()))?;
    let verdict = &report.verdict;
    if options.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        say!(
            "{} times killed, {} times stopped; seed {seed}; {} reads judged, {} writes acknowledged, {} of unknown outcome",
            report.kills,
            report.stops,
            verdict.reads,
            verdict.acknowledged,
            verdict.unknown
        );
        say!(
            "hits: {} from DRAM, {} from flash, {} of them in the first second after a restart; {} misses",
            report.cache.dram_hits,
            report.cache.flash_hits,
            report.warm_hits,
            report.cache.misses
        );
        say!(
            "starts took {} ms at most; {} had to be repeated",
            report.starts_ms.iter().max().unwrap_or(&0),
            report.refused_starts
        );
        super::history::describe(verdict);
    }
    if report.passed() {
        if own {
            std::fs::remove_dir_all(&directory)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(file) = &report.history_file {
        eprintln!("all events: {}", file.display());
    } else {
        eprintln!("NOTHING PROVED: no read was answered from the cache; see {}", directory.display());
    }
    Ok(ExitCode::FAILURE)
}
