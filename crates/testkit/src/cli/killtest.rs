//! `killtest`

use std::{path::PathBuf, process::ExitCode, time::Duration};

use afterglow_loadgen::cql::table::identifier;
use afterglow_testkit::killtest::{self, KillOptions, Lie, Place};

use afterglow_loadgen::{cql::target::duration, say};

use super::{Outcome, fake_backend::FaultOptions};

#[derive(clap::Args)]
#[command(after_help = "\
A row had reached flash if the cache served it just before a kill, and its bytes are on flash once
the process has ended. At least 99.9 % of such rows must be served after the start. Other rows may
be missing if they were written within the last 10 s.

Exit code 1 means one of these:
  - a read was stale or wrong, or a running server gave an error;
  - too much was missing after a restart;
  - no read came from the cache, so the run proves nothing.

  afterglow-testkit killtest --afterglow target/debug/afterglow --rounds 16
  afterglow-testkit killtest --afterglow target/release/afterglow --rounds 300 --life-max 12s
  afterglow-testkit killtest --afterglow target/release/afterglow --backend 127.0.0.1:9042 --rounds 20")]
pub struct KilltestArgs {
    /// The binary to kill.
    #[arg(long, value_name = "BINARY", default_value = "target/debug/afterglow")]
    afterglow: PathBuf,
    /// CQL address of a real database instead of the in-memory one; it must not be written to by
    /// others meanwhile. What a restart kept is then not judged.
    #[arg(long, value_name = "HOST:PORT")]
    backend: Option<String>,
    #[command(flatten)]
    faults: FaultOptions,
    /// How often the server is ended and started again.
    #[arg(long, default_value_t = 16)]
    rounds: u32,
    /// Only rounds in this place; repeatable. Disk and device need root.
    #[arg(long, value_enum)]
    place: Vec<Place>,
    /// Shortest life of the server.
    #[arg(long, default_value = "300ms", value_parser = duration)]
    life_min: Duration,
    /// Longest life of the server.
    #[arg(long, default_value = "3s", value_parser = duration)]
    life_max: Duration,
    /// Directory for caches and logs; a new one under the system's temporary directory if not
    /// given. It is removed when all is well.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Keys, of about 11 KiB each; sizes of flash and memory follow.
    #[arg(long, default_value_t = 10000, value_parser = clap::value_parser!(u64).range(1000..))]
    keys: u64,
    /// Rows read before and after each end of a life.
    #[arg(long, default_value_t = 1000)]
    sample: u64,
    /// Clients that read, one request at a time each.
    #[arg(long, default_value_t = 4)]
    readers: usize,
    /// Clients that write.
    #[arg(long, default_value_t = 2)]
    writers: usize,
    /// Pause of each client between its operations.
    #[arg(long, default_value = "0ms", value_parser = duration)]
    pause: Duration,
    /// --unknown-outcome-hold of the server.
    #[arg(long, default_value = "3s")]
    hold: String,
    /// Keyspace of the table `rows`, which is created and emptied.
    #[arg(long, default_value = "killtest", value_parser = identifier)]
    keyspace: String,
    /// Seed of all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do this between two lives: to see that it is found.
    #[arg(long, value_enum)]
    lie: Option<Lie>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(options: KilltestArgs) -> Outcome {
    let own = options.dir.is_none();
    let directory = options.dir.unwrap_or_else(|| {
        std::env::temp_dir().join(format!("afterglow-killtest-{}", std::process::id()))
    });
    let settings = KillOptions {
        binary: options.afterglow,
        backend: options.backend,
        faults: options.faults.faults(options.seed),
        directory: directory.clone(),
        rounds: options.rounds,
        places: options.place,
        life: (options.life_min, options.life_max),
        keys: options.keys,
        sample: options.sample,
        readers: options.readers,
        writers: options.writers,
        pause: options.pause,
        hold: options.hold,
        keyspace: options.keyspace,
        seed: options.seed,
        lie: options.lie,
    };
    let report = killtest::run(&settings, |line| eprintln!("{line}"))
        .map_err(|e| format!("{e}\n(seed {}, directory: {})", options.seed, directory.display()))?;
    if options.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        say!("{}", report.table());
        say!("seed {}; {} starts had to be repeated", options.seed, report.refused_starts);
    }
    if report.passed() {
        if own {
            std::fs::remove_dir_all(&directory)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    for line in report.explain() {
        eprintln!("{line}");
    }
    eprintln!("see {}", directory.display());
    Ok(ExitCode::FAILURE)
}
