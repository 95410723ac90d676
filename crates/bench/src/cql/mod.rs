//! The CQL front end in front of a real database. Measures what passing through adds to a read, how
//! soon hits are answered, and what they cost.
//!
//! ```text
//!   core 0: database (if its process is named)         | Afterglow while hits are measured: the database has nothing to do then
//!   core 1: load client, and what reads pass through: Afterglow, or a bare relay to compare it with
//! ```
//!
//! Requests are encoded before they are needed (`afterglow_loadgen::cql::driver`); flat out, a row
//! whose client used more than 0.9 of its core is void. Under light load the client of hits polls.
//! The time in which a sleeping thread wakes up is a property of the machine, not of the server.
//!
//! After loads or reads at full speed a database compacts and compiles for a while, on the core
//! that hits are measured on. So measurements under light load wait until it is idle. During hits
//! it has the lowest priority.
//!
//! Other loads are compared with the database itself: [`ycsb`], [`large`].

mod hits;
mod large;
mod pairs;
mod passing;
mod relay;
mod server;
mod ycsb;

use std::{
    cell::Cell,
    fmt::Display,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use afterglow_cql::{frame::Version, message::Consistency};

use self::server::CqlServer;
use super::{
    BenchError, pin, progress,
    report::{ClientSide, Report, Run, Section, Series},
    store::Scratch,
};
use afterglow_loadgen::{
    cpu,
    cql::{
        ConnectOptions, Connection,
        load::{LoadOptions, load},
        run::{self, RunOptions, Verify, Warm},
        table::TableSpec,
    },
    result::{LoadShape, RunResult},
    ycsb::{Distribution, HOT_SET, Workload},
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
    /// The database's process, if it is on this machine: it is kept on the first core, and its CPU
    /// shown.
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
    /// Loads to compare with the database itself; none: the front end is measured alone.
    pub loads: Vec<Load>,
    /// Of these loads, but that of large rows: records of each table.
    pub records: u64,
    /// Of these loads: memory of the cache, one after the other.
    pub memory: Vec<u64>,
    /// Of these loads: seconds in which the database is warmed.
    pub warm: f64,
    /// Of large rows: reads a second; `None`: half of what the database can do.
    pub rate: Option<f64>,
}

/// A load that is measured directly and through Afterglow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A workload at full speed, and at half of the database's.
    Workload(Workload),
    /// Reads of rows of 4 KB while the database compacts, and at rest.
    LargeRows,
}

const KEYSPACE: &str = "afterglow_bench";
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Requests in flight flat out: connections, and on each.
const FLAT_OUT: (usize, usize) = (4, 32);
/// The database is at rest when it used less than this of a core for two seconds; it is waited for
/// no longer than that.
const REST: (f64, Duration) = (0.1, Duration::from_secs(90));

/// Runs all of it. The report lists what could not be measured, and invalid runs, with the reason.
/// The rest of the report is not affected, but their target is missed.
///
/// # Errors
/// The database cannot be reached or takes no rows.
pub fn cql(options: &CqlOptions) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let report = Report::new("cql", scratch.path());
    if let Some(pid) = options.backend_pid {
        pin::process(pid, SERVER_CORE)
            .map_err(BenchError::io(format!("keep process {pid} on one core")))?;
    }
    let (rejected, seeds) = (Vec::new(), Cell::new(0));
    let mut bench = CqlBench { options, scratch, report, rejected, seeds };
    bench.drop_tables()?;
    if options.loads.is_empty() {
        bench.front_end()?;
    } else {
        bench.loads()?;
    }
    bench.drop_tables()?;
    let CqlBench { mut report, rejected, .. } = bench;
    if !rejected.is_empty() {
        let mut section =
            Section::new("Rejected", "runs that do not count; the reasons are told below");
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
    /// Seed of the last run of a load: no two ask for the same.
    seeds: Cell<u64>,
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
    fn front_end(&mut self) -> Result<(), BenchError> {
        self.load(&self.small())?;
        self.pass_through();
        self.load(&self.large())?;
        if let Some(pid) = self.options.backend_pid {
            pin::last(pid)
                .map_err(BenchError::io(format!("lower the priority of process {pid}")))?;
        }
        self.hits();
        Ok(())
    }

    fn loads(&mut self) -> Result<(), BenchError> {
        let workloads: Vec<Workload> = self
            .options
            .loads
            .iter()
            .filter_map(|l| match l {
                Load::Workload(workload) => Some(*workload),
                Load::LargeRows => None,
            })
            .collect();
        if !workloads.is_empty() {
            self.ycsb(&workloads)?;
        }
        if self.options.loads.contains(&Load::LargeRows) {
            self.large_rows()?;
        }
        Ok(())
    }

    fn small(&self) -> TableSpec {
        self.table("small", self.options.rows, 100)
    }

    fn large(&self) -> TableSpec {
        self.table("large", self.options.large_rows, 4000)
    }

    fn table(&self, name: &str, records: u64, field_size: u32) -> TableSpec {
        TableSpec {
            keyspace: KEYSPACE.into(),
            table: name.into(),
            records,
            fields: 1,
            field_size,
            zeros: 0,
            partition_rows: 0,
            newest_first: false,
        }
    }

    fn connect(&self) -> ConnectOptions {
        ConnectOptions {
            version: self.options.version,
            timeout: Duration::from_secs(30),
            ..ConnectOptions::default()
        }
    }

    /// Afterglow with so much memory, over what it has on flash in this folder.
    fn cache(&self, folder: &str, memory: u64) -> Result<CqlServer, BenchError> {
        let o = self.options;
        let data = self.scratch.path().join(folder).display().to_string();
        let (flash, memory) = (format!("{}MiB", o.flash >> 20), format!("{}MiB", memory >> 20));
        let options = [
            ["--backend", &o.backend],
            ["--data-dir", &data],
            ["--flash-size", &flash],
            ["--memory", &memory],
            ["--table-policy", "*.*=exclusive"],
        ];
        CqlServer::start(&o.program, SERVER_CORE, &options.concat())
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
                workload: None,
                threads: 1,
                connections: shape.lanes.0,
                in_flight: shape.lanes.1,
                rate: shape.rate,
                seed: 1,
            },
            hosts: vec![shape.host.to_owned()],
            owned: false,
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
        let _pinned =
            pin::Pinned::to(CLIENT_CORE).map_err(BenchError::io("keep the client on one core"))?;
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
}

fn as_run(result: &RunResult, polls: bool) -> Run {
    let client = result.cache.as_ref().map(|cache| ClientSide {
        cores: result.client.busiest_thread,
        hit_ratio: cache.hit_ratio(),
        from_flash: Some(
            cache.flash_hits as f64 / (cache.dram_hits + cache.flash_hits).max(1) as f64,
        ),
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
