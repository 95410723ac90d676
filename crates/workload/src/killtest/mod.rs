//! Kills the real binary with `kill -9` at random moments under a concurrent load, starts it again, and judges every read.
//!
//! ```text
//!   history clients ---CQL---> afterglow ---CQL---> database (or the fake backend)
//!        |                         ^
//!        |                         | start, kill -9 (every n-th time SIGTERM), start ...
//!        +--- events --> checker   +--- rounds
//! ```

mod process;

use std::{
    fs::File,
    io::{self, BufWriter},
    path::PathBuf,
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

use process::{Life, Server};

use crate::{
    cql::CqlError,
    history::{Event, History, HistoryError, HistoryOptions, Verdict, check, residue, write_events},
    metrics::{self, CacheCounters},
    rng::Rng,
};

/// Settings.
#[derive(Clone, Debug)]
pub struct KillOptions {
    /// The `afterglow` binary.
    pub binary: PathBuf,
    /// CQL address of the database.
    pub backend: String,
    /// Directory for the cache and the log; made if missing. The history is left there if something is wrong.
    pub directory: PathBuf,
    /// Lives of the server.
    pub rounds: u32,
    /// Length of a life: from, to.
    pub life: (Duration, Duration),
    /// Every so many rounds SIGTERM instead of SIGKILL; 0 for never.
    pub clean_every: u32,
    /// `--flash-size` of the server.
    pub flash_size: String,
    /// `--memory` of the server.
    pub memory: String,
    /// `--unknown-outcome-hold` of the server: longer than the database needs to give up a write.
    pub hold: String,
    /// The load; its hosts are set by the test.
    pub history: HistoryOptions,
    /// Seed of the moments.
    pub seed: u64,
}

/// What came out.
#[derive(Debug, serde::Serialize)]
pub struct KillReport {
    /// Times the server was killed.
    pub kills: u32,
    /// Times it was stopped with SIGTERM.
    pub stops: u32,
    /// Milliseconds from each start to the first answer.
    pub starts_ms: Vec<u64>,
    /// Starts that had to be repeated: the kernel takes the sockets and locks of a killed process that used io_uring away only some
    /// milliseconds after the process is gone, so its successor may find its port or its files in use.
    pub refused_starts: u32,
    /// Where reads were answered, over all lives (as far as the counters could be read before the end of each).
    pub cache: CacheCounters,
    /// Hits within each life's first second, after the first life: what a restart kept warm.
    pub warm_hits: u64,
    /// Reads that failed while the server was away.
    pub read_errors: u64,
    /// The judgement.
    pub verdict: Verdict,
    /// Where the events were written, if there are violations.
    pub history_file: Option<PathBuf>,
}

impl KillReport {
    /// Whether all reads were right and some of them came from the cache: without hits the test proves nothing.
    pub fn passed(&self) -> bool {
        self.verdict.violations.is_empty() && self.cache.dram_hits + self.cache.flash_hits > 0
    }
}

/// Why the test could not be done.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// The binary could not be run.
    #[error("cannot run {}: {source}; build it with `cargo build -p afterglow`", binary.display())]
    Start {
        /// The binary.
        binary: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It ended although nobody killed it.
    #[error("the server ended by itself ({status}); its log ends with:\n{log}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// Last lines.
        log: String,
    },
    /// It did not come up.
    #[error("the server's CQL door did not answer within {seconds} s; its log ends with:\n{log}")]
    Silent {
        /// How long was waited.
        seconds: u64,
        /// Last lines.
        log: String,
    },
    /// It did not end after SIGTERM.
    #[error("the server did not end within {0} s after SIGTERM")]
    Undying(u64),
    /// It ended with an error after SIGTERM.
    #[error("the server ended with {0} after SIGTERM")]
    Unclean(ExitStatus),
    /// The directory or a file in it cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No free port, or the child cannot be killed.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
    /// The table could not be made, or not be read in the end.
    #[error(transparent)]
    Cql(#[from] CqlError),
    /// The recorder is at fault.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Operations after which a part of the history is judged: about 100 bytes each are held until then.
const JUDGE_AT: u64 = 2_000_000;
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const RETRY_STARTS: Duration = Duration::from_secs(5);
const FIRST_SECOND: Duration = Duration::from_secs(1);

/// Runs the test; `progress` hears a line per round.
pub fn run(options: &KillOptions, mut progress: impl FnMut(&str)) -> Result<KillReport, KillError> {
    let log = options.directory.join("afterglow.log");
    process::prepare(&options.directory, &log)
        .map_err(|source| KillError::Files { path: options.directory.clone(), source })?;
    // Not from the seed of the moments: two tests with one seed may run side by side.
    let mut ports = Rng::new(u64::from(std::process::id()));
    let server = Server {
        binary: options.binary.clone(),
        backend: options.backend.clone(),
        data_dir: options.directory.join("data"),
        log,
        cql: process::free_port(&mut ports)?,
        admin: process::free_port(&mut ports)?,
        flash_size: options.flash_size.clone(),
        memory: options.memory.clone(),
        policy: format!("{}.*=exclusive", options.history.keyspace),
        hold: options.hold.clone(),
    };
    let test = Test {
        options,
        rng: Rng::new(options.seed),
        report: KillReport {
            kills: 0,
            stops: 0,
            starts_ms: Vec::new(),
            refused_starts: 0,
            cache: CacheCounters::default(),
            warm_hits: 0,
            read_errors: 0,
            verdict: Verdict::default(),
            history_file: None,
        },
        server,
    };
    test.run(&mut progress)
}

struct Test<'a> {
    options: &'a KillOptions,
    server: Server,
    rng: Rng,
    report: KillReport,
}

impl Test<'_> {
    fn run(mut self, progress: &mut impl FnMut(&str)) -> Result<KillReport, KillError> {
        let mut life = self.start()?;
        let hosts = vec![self.server.cql.clone()];
        let load = HistoryOptions { hosts, ..self.options.history.clone() };
        load.create_table()?;
        let origin = Instant::now();
        let mut history = History::start(load.clone());
        let mut judged = 0;
        for round in 1..=self.options.rounds {
            let clean = self.options.clean_every > 0 && round % self.options.clean_every == 0;
            life = self.round(life, round, clean)?;
            let cache = &self.report.cache;
            progress(&format!(
                "round {round:>3} of {}: {}, up again in {} ms; {} operations, {} hits from DRAM, {} from flash, {} warm",
                self.options.rounds,
                if clean { "SIGTERM" } else { "kill -9" },
                self.report.starts_ms.last().unwrap_or(&0),
                judged + history.answered(),
                cache.dram_hits,
                cache.flash_hits,
                self.report.warm_hits,
            ));
            if history.answered() > JUDGE_AT {
                judged += history.answered();
                let rest = self.judge(history)?;
                if !self.report.verdict.violations.is_empty() {
                    return Ok(self.report);
                }
                history = History::resume(load.clone(), origin, rest);
            }
        }
        self.judge(history)?;
        drop(life);
        Ok(self.report)
    }

    /// Ends a part of the history and judges it. Returns what the next part needs of it.
    fn judge(&mut self, history: History) -> Result<Vec<Event>, KillError> {
        self.report.read_errors += history.read_errors();
        let carried = history.carried();
        let events = history.finish()?;
        let part = check(&events)?;
        let verdict = &mut self.report.verdict;
        verdict.reads += part.reads;
        verdict.acknowledged += part.acknowledged.saturating_sub(carried.0);
        verdict.unknown += part.unknown.saturating_sub(carried.1);
        if !part.violations.is_empty() {
            verdict.violations = part.violations;
            let path = self.options.directory.join("history.jsonl");
            let write = |path: &PathBuf| write_events(&events, BufWriter::new(File::create(path)?));
            write(&path).map_err(|source| KillError::Files { path: path.clone(), source })?;
            self.report.history_file = Some(path);
        }
        Ok(residue(&events)?)
    }

    /// Starts the server as a supervisor would: again, if it ends at once, for five seconds.
    fn start(&mut self) -> Result<Life, KillError> {
        let began = Instant::now();
        loop {
            match self.server.start(START_LIMIT) {
                Ok(life) => {
                    self.report.starts_ms.push(began.elapsed().as_millis() as u64);
                    return Ok(life);
                }
                Err(KillError::Ended { .. }) if began.elapsed() < RETRY_STARTS => {
                    self.report.refused_starts += 1;
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets the server live, ends it, and starts the next life.
    fn round(&mut self, mut life: Life, round: u32, clean: bool) -> Result<Life, KillError> {
        let (from, to) = self.options.life;
        let length = from + to.saturating_sub(from).mul_f64(self.rng.next_f64());
        let started = Instant::now();
        let mut first = None;
        let mut counters = CacheCounters::default();
        // The counters die with the server: read them often, up to just before its end.
        while started.elapsed() < length {
            let step = length.saturating_sub(started.elapsed()).min(Duration::from_millis(100));
            thread::sleep(step);
            if life.has_ended().is_some() {
                // Not our doing: starting it again tells why.
                break;
            }
            if let Ok(now) = metrics::scrape(&self.server.admin) {
                counters = now;
            }
            if started.elapsed() >= FIRST_SECOND {
                first.get_or_insert(counters);
            }
        }
        let total = &mut self.report.cache;
        total.dram_hits += counters.dram_hits;
        total.flash_hits += counters.flash_hits;
        total.misses += counters.misses;
        if round > 1 {
            let first = first.unwrap_or(counters);
            self.report.warm_hits += first.dram_hits + first.flash_hits;
        }
        if let Some(status) = life.has_ended() {
            return Err(KillError::Ended { status, log: self.server.tail() });
        }
        if clean {
            life.stop(STOP_LIMIT)?;
            self.report.stops += 1;
        } else {
            life.kill()?;
            self.report.kills += 1;
        }
        self.start()
    }
}
