//! The CQL front end in front of a real database: what passing through adds to a read, how soon hits are answered, and what they cost.
//!
//! ```text
//!   core 0: database (if its process is named)         | Afterglow while hits are measured: the database has nothing to do then
//!   core 1: load client, and what reads pass through: Afterglow, or a bare relay to compare it with
//! ```
//!
//! Requests are encoded before they are needed (`afterglow_loadgen::cql::driver`); flat out, a row whose client used more than 0.9 of its core is void. Under
//! light load the client of hits polls: how long a sleeping thread takes to wake up is the machine's affair, not that of the server.
//!
//! A database that was loaded or read flat out goes on compacting and compiling for a while, on the core that hits are measured on; so what
//! is measured under light load waits until it has come to rest, and during hits it has the lowest priority.

mod relay;
mod server;

use std::{
    fmt::Display,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use afterglow_cql::{frame::Version, message::Consistency};

use self::{relay::Relay, server::CqlServer};
use super::{
    BenchError, pin, progress,
    report::{Check, ClientSide, Report, Run, Section, Series},
    store::Scratch,
};
use crate::comparison::median;
use afterglow_loadgen::{
    cpu,
    cql::{
        ConnectOptions, Connection,
        load::{LoadOptions, load},
        run::{self, RunOptions, Verify, Warm},
        table::TableSpec,
    },
    result::{LoadShape, RunResult, VOID_ABOVE},
    ycsb::{Distribution, HOT_SET},
};

/// What is measured.
#[derive(Clone, Debug)]
pub struct CqlOptions {
    /// Where to make caches.
    pub dir: PathBuf,
    /// The program that has `serve`.
    pub program: PathBuf,
    /// The database, HOST:PORT.
    pub backend: String,
    /// The database's process, if it is on this machine: it is kept on the first core, and its CPU shown.
    pub backend_pid: Option<u32>,
    /// Protocol version.
    pub version: Version,
    /// Rows of 100 B.
    pub rows: u64,
    /// Rows of 4 KB, read from flash: several times what fits into DRAM.
    pub large_rows: u64,
    /// Bytes of flash.
    pub flash: u64,
    /// Reads a second under light load.
    pub light: f64,
    /// Seconds of each run.
    pub seconds: f64,
    /// Runs of each kind.
    pub runs: usize,
}

/// Added by passing through at half of the database's maximum, p50, in microseconds.
const ADDED: f64 = 40.0;
/// DRAM hits under light load, p50 and p99.
const DRAM: (f64, f64) = (60.0, 200.0);
/// Flash hits under light load, p50 and p99.
const FLASH: (f64, f64) = (200.0, 600.0);
/// DRAM hits a second of one core.
const HITS: f64 = 150_000.0;
/// What the DRAM tier has while hits are measured: all small rows, and few of the large ones.
const MEMORY: u64 = 64 << 20;
const HALF: &str = "Passing through, at half of the database's maximum";
const KEYSPACE: &str = "afterglow_bench";
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Requests in flight flat out: connections, and on each.
const FLAT_OUT: (usize, usize) = (4, 32);
/// Warming up, so many times a run: a JVM goes on compiling long after its throughput looks level.
const WARMUP: f64 = 20.0;
/// The database is at rest when it used less than this of a core for two seconds; it is waited for no longer than that.
const REST: (f64, Duration) = (0.1, Duration::from_secs(90));
/// A row with a lower hit ratio says nothing of hits.
const HIT_RATIO: f64 = 0.999;
/// Nor one of which fewer came from where they were to come from.
const SHARE: f64 = 0.8;

/// Runs all of it. What could not be measured, and runs that do not mean what they should, are told in the report with the reason; they
/// cost nothing else of it, but the target they were for is missed.
///
/// # Errors
/// The database cannot be reached or takes no rows.
pub fn cql(options: &CqlOptions) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let report = Report::new("cql", scratch.path());
    if let Some(pid) = options.backend_pid {
        pin::process(pid, SERVER_CORE).map_err(BenchError::io(format!("keep process {pid} on one core")))?;
    }
    let mut bench = CqlBench { options, scratch, report, rejected: Vec::new() };
    bench.drop_tables()?;
    bench.load(&bench.small())?;
    bench.pass_through();
    bench.load(&bench.large())?;
    if let Some(pid) = options.backend_pid {
        pin::last(pid).map_err(BenchError::io(format!("lower the priority of process {pid}")))?;
    }
    bench.hits();
    bench.drop_tables()?;
    let CqlBench { mut report, rejected, .. } = bench;
    if !rejected.is_empty() {
        let mut section = Section::new("Rejected", "runs that do not count; the reasons are told below");
        section.series = rejected;
        report.sections.push(section);
    }
    Ok(report)
}

struct CqlBench<'a> {
    options: &'a CqlOptions,
    scratch: Scratch,
    report: Report,
    /// Runs that do not count.
    rejected: Vec<Series>,
}

/// One load on one server.
struct ReadLoad<'a> {
    host: &'a str,
    table: TableSpec,
    distribution: Distribution,
    /// Connections, and requests in flight on each.
    lanes: (usize, usize),
    rate: Option<f64>,
    /// Only where the client has a core of its own.
    polls: bool,
    warm: Warm,
    seconds: f64,
    operations: Option<u64>,
    watch: Option<u32>,
    admin: Option<&'a str>,
}

impl CqlBench<'_> {
    fn small(&self) -> TableSpec {
        self.table("small", self.options.rows, 100)
    }

    fn large(&self) -> TableSpec {
        self.table("large", self.options.large_rows, 4000)
    }

    fn table(&self, name: &str, records: u64, field_size: u32) -> TableSpec {
        TableSpec { keyspace: KEYSPACE.into(), table: name.into(), records, fields: 1, field_size, zeros: 0 }
    }

    fn connect(&self) -> ConnectOptions {
        ConnectOptions {
            version: self.options.version,
            timeout: Duration::from_secs(30),
            ..ConnectOptions::default()
        }
    }

    fn drop_tables(&self) -> Result<(), BenchError> {
        let drop = || {
            let mut connection = Connection::open(&self.options.backend, &self.connect())?;
            connection.query(&format!("DROP KEYSPACE IF EXISTS {KEYSPACE}"), Consistency::Quorum)
        };
        drop().map(|_| ()).map_err(|e| BenchError::Void(e.to_string()))
    }

    fn load(&self, table: &TableSpec) -> Result<(), BenchError> {
        progress(format_args!("loading {} rows of {} B", table.records, table.field_size));
        let options = LoadOptions {
            table: table.clone(),
            hosts: vec![self.options.backend.clone()],
            connect: self.connect(),
            create: true,
            consistency: Consistency::LocalQuorum,
            threads: 1,
            connections: 4,
            in_flight: 32,
            attempts: 20,
        };
        load(&options, |_| ()).map(|_| ()).map_err(|e| BenchError::Void(e.to_string()))
    }

    /// Reads flat out, whatever is asked for.
    fn shape<'s>(&self, host: &'s str, table: TableSpec) -> ReadLoad<'s> {
        ReadLoad {
            host,
            table,
            distribution: Distribution::Uniform,
            lanes: FLAT_OUT,
            rate: None,
            polls: false,
            warm: Warm::For(Duration::from_secs_f64(self.options.seconds / 4.0)),
            seconds: self.options.seconds,
            operations: None,
            watch: None,
            admin: None,
        }
    }

    fn run(&self, shape: &ReadLoad<'_>) -> Result<RunResult, BenchError> {
        let options = RunOptions {
            label: String::new(),
            scenario: String::new(),
            load: LoadShape {
                table: shape.table.clone(),
                distribution: shape.distribution,
                hot_set: HOT_SET,
                read_ratio: 1.0,
                threads: 1,
                connections: shape.lanes.0,
                in_flight: shape.lanes.1,
                rate: shape.rate,
                seed: 1,
            },
            hosts: vec![shape.host.to_owned()],
            connect: self.connect(),
            consistency: Consistency::LocalQuorum,
            reconnect: false,
            poisson: false,
            polls: shape.polls,
            warm: shape.warm,
            duration: Duration::from_secs_f64(shape.seconds),
            operations: shape.operations,
            verify: Verify::Sample,
            watch: shape.watch.map(|pid| ("server".to_owned(), pid)).into_iter().collect(),
            metrics: shape.admin.map(str::to_owned),
        };
        let _pinned = pin::Pinned::to(CLIENT_CORE).map_err(BenchError::io("keep the client on one core"))?;
        let result = run::run(&options, |_| ()).map_err(|e| BenchError::Void(e.to_string()))?;
        if result.is_clean() {
            Ok(result)
        } else {
            Err(BenchError::Void(format!("{}: reads failed: {:?}", shape.host, result.errors)))
        }
    }

    /// Says that something does not count, and why.
    fn reject(&mut self, what: &str, why: impl Display) {
        progress(format_args!("rejected: {what}: {why}"));
        self.report.missing.push(format!("{what}: {why}"));
    }

    /// As [`CqlBench::reject`], of a run, which is kept apart.
    fn reject_run(&mut self, name: String, run: Run, why: impl Display) {
        self.reject(&name, why);
        self.rejected.push(Series { name, runs: vec![run] });
    }

    /// Waits until the database has nothing more to do; without its process nobody knows.
    fn rest(&mut self, before: &str) {
        let Some(pid) = self.options.backend_pid else { return };
        progress(format_args!("waiting until the database is at rest"));
        let (share, longest) = REST;
        let (began, window) = (Instant::now(), Duration::from_secs(2));
        while began.elapsed() < longest {
            let of = || cpu::of_process(pid);
            let (start, Ok(used)) = (Instant::now(), of()) else { break };
            sleep(window);
            let Ok(now) = of() else { break };
            if ((now - used) as f64) < share * start.elapsed().as_nanos() as f64 {
                return;
            }
        }
        let why = format!("the database was not at rest after {} s", longest.as_secs());
        self.report.missing.push(format!("{before}: {why}; what follows has that in it"));
    }

    /// What passing through adds, and what it does to the highest throughput.
    fn pass_through(&mut self) {
        let o = self.options;
        let length = Duration::from_secs_f64(WARMUP * o.seconds);
        progress(format_args!("warming the database for {} s", length.as_secs()));
        let warm = ReadLoad { warm: Warm::For(length), ..self.shape(&o.backend, self.small()) };
        if let Err(error) = self.run(&ReadLoad { watch: o.backend_pid, ..warm }) {
            self.reject("Warming the database", error);
        }
        let data = self.scratch.path().join("pass").display().to_string();
        let options = [
            "--backend",
            &o.backend,
            "--data-dir",
            &data,
            "--flash-size",
            "64MiB",
            "--table-policy",
            "*.*=off",
        ];
        let (mut half, mut full) = (None, None);
        let relay = Relay::start(&o.backend, CLIENT_CORE).map_err(BenchError::io("relay bytes"));
        match CqlServer::start(&o.program, CLIENT_CORE, &options).and_then(|server| Ok((server, relay?))) {
            Ok((server, relay)) => {
                let contenders = [
                    ("directly", o.backend.as_str(), o.backend_pid),
                    ("through Afterglow", server.address.as_str(), Some(server.pid())),
                    ("through a bare relay", relay.address.as_str(), None),
                ];
                let section =
                    Section::new("Passing through, flat out", "4 connections, 32 reads in flight on each");
                let flat_out = self.in_turn(section, &contenders, None);
                match &flat_out.series[0].runs[..] {
                    [] => self.reject(HALF, "how much the database can do is not known"),
                    runs => {
                        let highest = median(runs.iter().map(|r| r.per_second));
                        self.report.figure("highest throughput of the database, directly", highest, "/s");
                        half = Some(self.at_half(&contenders, highest / 2.0));
                    }
                }
                full = Some(flat_out);
                if let Err(error) = server.stop() {
                    self.reject("the end of passing through", error);
                }
            }
            Err(error) => self.reject("Passing through", error),
        }
        self.judge_passing(half, full);
    }

    fn at_half(&mut self, contenders: &[(&str, &str, Option<u32>)], rate: f64) -> Section {
        self.rest(HALF);
        let note = format!(
            "{rate:.0} reads/s in equal distances over 4 connections, client and what it goes through on one core"
        );
        self.in_turn(Section::new(HALF, note), contenders, Some(rate))
    }

    fn judge_passing(&mut self, half: Option<Section>, full: Option<Section>) {
        let within = |p50| Check::at_most("added by passing through, p50, us", p50, ADDED);
        let check = match half.as_ref().map(|section| &section.series[..]) {
            Some([direct, through, relay]) if !direct.runs.is_empty() => {
                let added = |by: &Series, figure: fn(&Run) -> f64| {
                    median(by.runs.iter().zip(&direct.runs).map(|(a, b)| figure(a) - figure(b)))
                };
                let p99 = added(through, |r| r.latency.p99_us);
                self.report.figure("added by passing through, p99", p99, "us");
                let bare = added(relay, |r| r.latency.p50_us);
                self.report.figure("added by a relay that only copies bytes, p50", bare, "us");
                within(added(through, |r| r.latency.p50_us))
            }
            _ => within(0.0).unmeasured(),
        };
        self.report.checks.push(check);
        if let Some([direct, through, relay]) = full.as_ref().map(|section| &section.series[..])
            && !direct.runs.is_empty()
        {
            for (by, series) in [("Afterglow", through), ("a relay that only copies bytes", relay)] {
                let name = format!("highest throughput through {by}, share of that directly");
                self.report.figure(name, series.ratio_to(direct), "");
            }
        }
        self.report.sections.extend([half, full].into_iter().flatten());
    }

    /// As many runs of each as asked for, in alternating order. Of a round all runs count, or none.
    fn in_turn(
        &mut self,
        mut section: Section,
        contenders: &[(&str, &str, Option<u32>)],
        rate: Option<f64>,
    ) -> Section {
        section.series =
            contenders.iter().map(|(name, ..)| Series { name: (*name).into(), runs: Vec::new() }).collect();
        for round in 1..=self.options.runs {
            progress(format_args!("{}: round {round} of {}", section.name, self.options.runs));
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 0 {
                order.reverse();
            }
            let mut runs: Vec<Option<Run>> = vec![None; contenders.len()];
            for at in order {
                let (name, host, watch) = contenders[at];
                match self.run(&ReadLoad { rate, watch, ..self.shape(host, self.small()) }) {
                    Ok(result) => runs[at] = Some(as_run(&result, false)),
                    Err(error) => self.reject(&format!("{}, {name}, round {round}", section.name), error),
                }
            }
            if runs.iter().all(Option::is_some) {
                section.series.iter_mut().zip(runs).for_each(|(series, run)| series.runs.extend(run));
                continue;
            }
            for ((name, ..), run) in contenders.iter().zip(runs) {
                if let Some(run) = run {
                    let name = format!("{}, {name}, round {round}", section.name);
                    self.reject_run(name, run, "another run of its round does not count");
                }
            }
        }
        section
    }

    /// How soon hits are answered, and how many of them a core answers.
    fn hits(&mut self) {
        let o = self.options;
        let data = self.scratch.path().join("hits").display().to_string();
        let (flash, memory) = (format!("{}MiB", o.flash >> 20), format!("{}MiB", MEMORY >> 20));
        let options = [
            ["--backend", &o.backend],
            ["--data-dir", &data],
            ["--flash-size", &flash],
            ["--memory", &memory],
            ["--table-policy", "*.*=exclusive"],
        ];
        let series = |name: &str| Series { name: name.to_owned(), runs: Vec::new() };
        let (mut dram, mut flat_out) = (series("DRAM, rows of 100 B"), series("DRAM, rows of 100 B"));
        let mut from_flash = series("flash, rows of 4 KB");
        match CqlServer::start(&o.program, SERVER_CORE, &options.concat()) {
            Ok(server) => {
                let light = |table| ReadLoad {
                    rate: Some(o.light),
                    polls: true,
                    lanes: (4, 16),
                    ..self.shape(&server.address, table)
                };
                let (small, large) = (light(self.small()), light(self.large()));
                let full = self.shape(&server.address, self.small());
                if self.fill(&server, &small.table) {
                    self.rest("hits from DRAM");
                    self.repeat(&mut dram, &server, &small, Of::Dram);
                    self.repeat(&mut flat_out, &server, &full, Of::DramFlatOut);
                }
                if self.fill(&server, &large.table) {
                    self.rest("hits from flash");
                    self.repeat(&mut from_flash, &server, &large, Of::Flash);
                }
                if let Err(error) = server.stop() {
                    self.reject("the end of hits", error);
                }
            }
            Err(error) => self.reject("Hits", error),
        }
        self.judge_hits(dram, flat_out, from_flash);
    }

    fn judge_hits(&mut self, dram: Series, flat_out: Series, flash: Series) {
        for (name, hits, (p50, p99)) in [("DRAM", &dram, DRAM), ("flash", &flash, FLASH)] {
            for (which, bound, figure) in
                [("p50", p50, (|r| r.latency.p50_us) as fn(&Run) -> f64), ("p99", p99, |r| r.latency.p99_us)]
            {
                let name = format!("{name} hit under light load, {which}, us");
                let check = check_of(hits, figure, |value| Check::at_most(name.as_str(), value, bound));
                self.report.checks.push(check);
            }
        }
        let per_core = check_of(
            &flat_out,
            |r| r.per_second,
            |value| Check::at_least("DRAM hits/s of one core, rows of 100 B", value, HITS),
        );
        self.report.checks.push(per_core);
        let note = format!(
            "{:.0} reads/s in equal distances over 4 connections; the client never sleeps, so that its waking up is not measured",
            self.options.light
        );
        let mut section = Section::new("Hits under light load", note);
        section.series.extend([dram, flash]);
        let mut full = Section::new("Hits flat out", "4 connections, 32 reads in flight on each");
        full.series.push(flat_out);
        self.report.sections.extend([section, full]);
    }

    /// Reads every row until all are hits; says so where they do not become it.
    fn fill(&mut self, server: &CqlServer, table: &TableSpec) -> bool {
        progress(format_args!("filling the cache with {} rows of {} B", table.records, table.field_size));
        let mut last = String::new();
        for _ in 0..30 {
            let pass = ReadLoad {
                distribution: Distribution::Sequential,
                warm: Warm::For(Duration::ZERO),
                seconds: 300.0,
                operations: Some(table.records),
                admin: Some(&server.admin),
                ..self.shape(&server.address, table.clone())
            };
            match self.run(&pass) {
                Ok(result) => {
                    let cache = result.cache.unwrap_or_default();
                    if cache.hit_ratio() >= HIT_RATIO {
                        return true;
                    }
                    last = format!("{cache:?}");
                }
                Err(error) => last = error.to_string(),
            }
            // Before it has its lease the instance passes everything.
            sleep(Duration::from_millis(500));
        }
        self.reject(
            &format!("hits of rows of {} B", table.field_size),
            format!("rows do not become hits: {last}"),
        );
        false
    }

    /// Runs of one shape, all of whose reads must be hits, nearly all of one kind.
    fn repeat(&mut self, series: &mut Series, server: &CqlServer, shape: &ReadLoad<'_>, of: Of) {
        progress(format_args!("hits: {} ({of:?})", series.name));
        for number in 1..=self.options.runs {
            let name = format!("{} ({of:?}), run {number}", series.name);
            let result = self.run(&ReadLoad {
                watch: Some(server.pid()),
                admin: Some(&server.admin),
                table: shape.table.clone(),
                ..*shape
            });
            match result {
                Err(error) => self.reject(&name, error),
                Ok(result) => match of.doubt(&result) {
                    Some(why) => self.reject_run(name, as_run(&result, shape.polls), why),
                    None => series.runs.push(as_run(&result, shape.polls)),
                },
            }
        }
    }
}

/// What the reads of a run are to be.
#[derive(Clone, Copy, Debug)]
enum Of {
    Dram,
    DramFlatOut,
    Flash,
}

impl Of {
    /// Why a run was not that.
    fn doubt(self, result: &RunResult) -> Option<String> {
        let cache = result.cache.unwrap_or_default();
        let hits = (cache.dram_hits + cache.flash_hits).max(1) as f64;
        let share = match self {
            Of::Dram | Of::DramFlatOut => cache.dram_hits as f64 / hits,
            Of::Flash => cache.flash_hits as f64 / hits,
        };
        let client = result.client.busiest_thread;
        if cache.hit_ratio() < HIT_RATIO || share < SHARE {
            return Some(format!("what was read was not that: {cache:?}"));
        }
        let void = matches!(self, Of::DramFlatOut) && client > VOID_ABOVE;
        void.then(|| {
            format!("the load client used {client:.2} of its core, and may have been what limited it")
        })
    }
}

/// A check over the median of a series; missed where no run counts.
fn check_of(series: &Series, figure: fn(&Run) -> f64, check: impl Fn(f64) -> Check) -> Check {
    match &series.runs[..] {
        [] => check(0.0).unmeasured(),
        runs => check(median(runs.iter().map(figure))),
    }
}

fn as_run(result: &RunResult, polls: bool) -> Run {
    let client = result.cache.as_ref().map(|cache| ClientSide {
        cores: result.client.busiest_thread,
        hit_ratio: cache.hit_ratio(),
        from_flash: Some(cache.flash_hits as f64 / (cache.dram_hits + cache.flash_hits).max(1) as f64),
        refused: 0,
        polls,
    });
    Run {
        operations: result.operations,
        seconds: result.seconds,
        per_second: result.per_second,
        cpu_us_per_operation: result.server_us_per_operation().unwrap_or(0.0),
        latency: result.reads.clone(),
        curve: result.curve.clone(),
        client,
    }
}
