//! `history` and `check-history`

use std::{
    fs::File,
    io::{BufReader, BufWriter},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use afterglow_loadgen::cql::table::identifier;
use afterglow_testkit::history::{self, History, HistoryOptions, Verdict};

use afterglow_loadgen::{
    cql::target::{Target, duration},
    say,
};

use super::Outcome;

/// The readers and writers.
#[derive(clap::Args)]
#[command(next_help_heading = "Readers and writers")]
pub struct Clients {
    /// Keyspace of the table `history`, which is created and emptied.
    #[arg(long, default_value = "history", value_parser = identifier)]
    keyspace: String,
    /// Keys; the first ones are hotter.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(2..))]
    keys: u64,
    /// Clients that read, one request at a time each.
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// Clients that write.
    #[arg(long, default_value_t = 2)]
    writers: usize,
    /// Fraction of the writes that delete.
    #[arg(long, default_value_t = 0.05)]
    deletes: f64,
    /// Largest value in bytes; sizes are uniform from 8.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(8..))]
    value_max: u64,
    /// Pause of each client between its operations.
    #[arg(long, default_value = "0ms", value_parser = duration)]
    pause: Duration,
    /// Seed of all choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Clients {
    pub fn history(&self, hosts: Vec<String>) -> HistoryOptions {
        HistoryOptions {
            hosts,
            keyspace: self.keyspace.clone(),
            keys: self.keys,
            readers: self.readers,
            writers: self.writers,
            deletes: self.deletes,
            value_bytes: (8, self.value_max),
            pause: self.pause,
            seed: self.seed,
            ..HistoryOptions::default()
        }
    }
}

#[derive(clap::Args)]
#[command(after_help = "\
The server may be killed and restarted meanwhile: clients connect again and go on. Exit code 1: a
read was stale or wrong.

  afterglow-testkit history --hosts 127.0.0.1:9043 --duration 60s --dump history.jsonl")]
pub struct HistoryArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    clients: Clients,
    /// How long.
    #[arg(long, default_value = "30s", value_parser = duration)]
    duration: Duration,
    /// Write all events here, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

pub fn run(options: &HistoryArgs) -> Outcome {
    let mut settings = options.clients.history(options.target.hosts.clone());
    settings.consistency = options.target.consistency;
    let timeout = settings.connect.timeout;
    settings.connect =
        afterglow_loadgen::cql::ConnectOptions { timeout, ..options.target.connect()? };
    settings.create_table()?;
    let history = History::start(settings);
    let started = Instant::now();
    while started.elapsed() < options.duration {
        thread::sleep(
            Duration::from_secs(1).min(options.duration.saturating_sub(started.elapsed())),
        );
        eprintln!(
            "{:>4} s  {:>9} operations answered",
            started.elapsed().as_secs(),
            history.answered()
        );
    }
    let events = history.finish()?;
    if let Some(path) = &options.dump {
        let file =
            File::create(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        history::write_events(&events, BufWriter::new(file))?;
    }
    judge(&events)
}

#[derive(clap::Args)]
#[command(after_help = "\
One JSON object a line: {\"op\": \"write\" or \"read\", \"key\": number, \"value\": number or null (absent, deleted), \"start\": ns, \"end\": ns,
\"order\": the write's timestamp, if the client chose it}. A write with \"end\": null has an unknown outcome. Values are unique per key.")]
pub struct CheckOptions {
    /// The events.
    file: PathBuf,
}

pub fn run_check(options: &CheckOptions) -> Outcome {
    let name = options.file.display();
    let file = File::open(&options.file).map_err(|e| format!("cannot read {name}: {e}"))?;
    let events = history::read_events(BufReader::new(file)).map_err(|e| format!("{name}: {e}"))?;
    judge(&events)
}

fn judge(events: &[history::Event]) -> Outcome {
    let verdict = history::check(events)?;
    say!(
        "{} reads judged, {} writes acknowledged, {} of unknown outcome",
        verdict.reads,
        verdict.acknowledged,
        verdict.unknown
    );
    describe(&verdict);
    Ok(if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what is wrong, the first few in full.
pub fn describe(verdict: &Verdict) {
    if verdict.violations.is_empty() {
        say!("no stale and no wrong read");
        return;
    }
    say!("{} READS ARE WRONG", verdict.violations.len());
    for violation in verdict.violations.iter().take(10) {
        say!(
            "  {:?}: {:?}\n    should have seen {:?}",
            violation.fault,
            violation.read,
            violation.missed
        );
    }
}
