//! The CQL door in front of a real database: what passing through adds to a read, how soon hits are answered, and what they cost.
//!
//! ```text
//!   core 0: database (if its process is named)         | Afterglow while hits are measured: the database has nothing to do then
//!   core 1: load client, and Afterglow while reads pass through it
//! ```
//!
//! Requests are encoded before they are needed (`crate::cql::driver`); a row whose client used more than 0.9 of its core is void.

mod server;

use std::{path::PathBuf, time::Duration};

use afterglow_cql::{frame::Version, message::Consistency};

use self::server::Server;
use super::{
    BenchError, pin, progress,
    report::{Check, Report, Run, Section, Series},
    store::Scratch,
};
use crate::{
    cql::{
        ConnectOptions, Connection,
        load::{LoadOptions, load},
        run::{self, RunOptions, Verify, Warm},
        table::TableSpec,
    },
    metrics::CacheCounters,
    report::median,
    result::{Load, RunResult, VOID_ABOVE},
    ycsb::Distribution,
};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
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
const KEYSPACE: &str = "afterglow_bench";
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;
/// Requests in flight flat out: connections, and on each.
const FLAT_OUT: (usize, usize) = (4, 32);
/// A JVM takes its time.
const LONGEST_WARMUP: Duration = Duration::from_secs(60);
/// A row with a lower hit ratio says nothing of hits.
const HIT_RATIO: f64 = 0.999;
/// Nor one of which fewer came from where they were to come from.
const SHARE: f64 = 0.8;

/// Runs all of it.
pub fn cql(options: &Options) -> Result<Report, BenchError> {
    let scratch = Scratch::new(&options.dir)?;
    let mut report = Report::new("cql", scratch.path());
    if let Some(pid) = options.backend_pid {
        pin::process(pid, SERVER_CORE).map_err(BenchError::io(format!("keep process {pid} on one core")))?;
    }
    let bench = Bench { options, scratch };
    bench.drop_tables()?;
    bench.load(&bench.small())?;
    bench.load(&bench.large())?;
    bench.pass_through(&mut report)?;
    bench.hits(&mut report)?;
    bench.drop_tables()?;
    Ok(report)
}

struct Bench<'a> {
    options: &'a Options,
    scratch: Scratch,
}

/// One load on one server.
struct Shape<'a> {
    host: &'a str,
    table: TableSpec,
    distribution: Distribution,
    /// Connections, and requests in flight on each.
    lanes: (usize, usize),
    rate: Option<f64>,
    warm: Warm,
    seconds: f64,
    operations: Option<u64>,
    watch: Option<u32>,
    admin: Option<&'a str>,
}

impl Bench<'_> {
    fn small(&self) -> TableSpec {
        self.table("small", self.options.rows, 100)
    }

    fn large(&self) -> TableSpec {
        self.table("large", self.options.large_rows, 4000)
    }

    fn table(&self, name: &str, records: u64, field_size: u32) -> TableSpec {
        TableSpec { keyspace: KEYSPACE.into(), table: name.into(), records, fields: 1, field_size }
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
    fn shape<'s>(&self, host: &'s str, table: TableSpec) -> Shape<'s> {
        Shape {
            host,
            table,
            distribution: Distribution::Uniform,
            lanes: FLAT_OUT,
            rate: None,
            warm: Warm::For(Duration::from_secs_f64(self.options.seconds / 4.0)),
            seconds: self.options.seconds,
            operations: None,
            watch: None,
            admin: None,
        }
    }

    fn run(&self, shape: &Shape<'_>) -> Result<RunResult, BenchError> {
        let options = RunOptions {
            label: String::new(),
            scenario: String::new(),
            load: Load {
                table: shape.table.clone(),
                distribution: shape.distribution,
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

    /// What passing through adds, and what it does to the highest throughput.
    fn pass_through(&self, report: &mut Report) -> Result<(), BenchError> {
        let o = self.options;
        let data = self.scratch.path().join("pass").display().to_string();
        let server = Server::start(
            &o.program,
            CLIENT_CORE,
            &[
                "--backend",
                &o.backend,
                "--data-dir",
                &data,
                "--flash-size",
                "64MiB",
                "--table-policy",
                "*.*=off",
            ],
        )?;
        progress(format_args!("warming the database until its throughput is level"));
        let warm = Shape { warm: Warm::UntilFlat(LONGEST_WARMUP), ..self.shape(&o.backend, self.small()) };
        let highest = self.run(&Shape { watch: o.backend_pid, ..warm })?;
        let rate = highest.per_second / 2.0;
        report.figure("highest throughput of the database, directly", highest.per_second, "/s");
        let contenders = [
            ("directly", o.backend.as_str(), o.backend_pid),
            ("through Afterglow", server.address.as_str(), Some(server.pid())),
        ];
        let note = format!(
            "{rate:.0} reads/s in equal distances over 4 connections, client and Afterglow on one core"
        );
        let section = Section::new("Passing through, at half of the database's maximum", note);
        let half = self.in_turn(section, &contenders, Some(rate))?;
        let section = Section::new("Passing through, flat out", "4 connections, 32 reads in flight on each");
        let full = self.in_turn(section, &contenders, None)?;
        let added = |figure: fn(&Run) -> f64| {
            median(half.series[1].runs.iter().zip(&half.series[0].runs).map(|(a, b)| figure(a) - figure(b)))
        };
        report.figure("added by passing through, p99", added(|r| r.latency.p99_us), "us");
        let share = full.series[1].ratio_to(&full.series[0]);
        report.figure("highest throughput through Afterglow, share of that directly", share, "");
        let p50 = added(|r| r.latency.p50_us);
        report.checks.push(Check::at_most("added by passing through, p50, us", p50, ADDED));
        report.sections.extend([half, full]);
        server.stop()
    }

    /// As many runs of each as asked for, in alternating order.
    fn in_turn(
        &self,
        mut section: Section,
        contenders: &[(&str, &str, Option<u32>)],
        rate: Option<f64>,
    ) -> Result<Section, BenchError> {
        section.series =
            contenders.iter().map(|(name, ..)| Series { name: (*name).into(), runs: Vec::new() }).collect();
        for round in 0..self.options.runs {
            progress(format_args!("{}: round {} of {}", section.name, round + 1, self.options.runs));
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let (_, host, watch) = contenders[at];
                let result = self.run(&Shape { rate, watch, ..self.shape(host, self.small()) })?;
                section.series[at].runs.push(as_run(&result));
            }
        }
        Ok(section)
    }

    fn hits(&self, report: &mut Report) -> Result<(), BenchError> {
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
        let server = Server::start(&o.program, SERVER_CORE, &options.concat())?;
        let light =
            |table| Shape { rate: Some(o.light), lanes: (4, 16), ..self.shape(&server.address, table) };
        self.fill(&server, &self.small())?;
        let dram = self.repeat("DRAM, rows of 100 B", &server, &light(self.small()), |c| c.dram_hits)?;
        let flat_out = self.shape(&server.address, self.small());
        let flat_out = self.repeat("DRAM, rows of 100 B", &server, &flat_out, |c| c.dram_hits)?;
        self.fill(&server, &self.large())?;
        let flash = self.repeat("flash, rows of 4 KB", &server, &light(self.large()), |c| c.flash_hits)?;
        server.stop()?;

        report.figure("of the reads measured as flash hits, from flash", 100.0 * flash.share, "%");
        for (name, hits, (p50, p99)) in [("DRAM", &dram, DRAM), ("flash", &flash, FLASH)] {
            let (half, tail) =
                (hits.series.median(|r| r.latency.p50_us), hits.series.median(|r| r.latency.p99_us));
            report.checks.push(Check::at_most(format!("{name} hit under light load, p50, us"), half, p50));
            report.checks.push(Check::at_most(format!("{name} hit under light load, p99, us"), tail, p99));
        }
        let per_core = flat_out.series.median(|r| r.per_second);
        report.checks.push(Check::at_least("DRAM hits/s of one core, rows of 100 B", per_core, HITS));
        let client = flat_out.client;
        report.checks.push(Check::at_most(
            "of its core the client used meanwhile, else void",
            client,
            VOID_ABOVE,
        ));
        let note = format!("{:.0} reads/s in equal distances over 4 connections", o.light);
        let mut section = Section::new("Hits under light load", note);
        section.series.extend([dram.series, flash.series]);
        let mut full = Section::new("Hits flat out", "4 connections, 32 reads in flight on each");
        full.series.push(flat_out.series);
        report.sections.extend([section, full]);
        Ok(())
    }

    /// Reads every row until all are hits.
    fn fill(&self, server: &Server, table: &TableSpec) -> Result<(), BenchError> {
        progress(format_args!("filling the cache with {} rows of {} B", table.records, table.field_size));
        for _ in 0..30 {
            let pass = Shape {
                distribution: Distribution::Sequential,
                warm: Warm::For(Duration::ZERO),
                seconds: 300.0,
                operations: Some(table.records),
                admin: Some(&server.admin),
                ..self.shape(&server.address, table.clone())
            };
            let cache = self.run(&pass)?.cache.unwrap_or_default();
            if cache.hit_ratio() >= HIT_RATIO {
                return Ok(());
            }
            // Before it has its lease the instance passes everything.
            std::thread::sleep(Duration::from_millis(500));
        }
        Err(BenchError::Void(format!("rows of {} B do not become hits", table.field_size)))
    }

    /// Runs of one shape, all of whose reads must be hits, nearly all of one kind.
    fn repeat(
        &self,
        name: &str,
        server: &Server,
        shape: &Shape<'_>,
        kind: fn(&CacheCounters) -> u64,
    ) -> Result<Hits, BenchError> {
        progress(format_args!("hits: {name}"));
        let mut hits =
            Hits { series: Series { name: name.to_owned(), runs: Vec::new() }, share: 1.0, client: 0.0 };
        for _ in 0..self.options.runs {
            let result = self.run(&Shape {
                watch: Some(server.pid()),
                admin: Some(&server.admin),
                table: shape.table.clone(),
                ..*shape
            })?;
            let cache = result.cache.unwrap_or_default();
            let share = kind(&cache) as f64 / (cache.dram_hits + cache.flash_hits).max(1) as f64;
            if cache.hit_ratio() < HIT_RATIO || share < SHARE {
                return Err(BenchError::Void(format!("{name}: what was read was not that: {cache:?}")));
            }
            hits.share = hits.share.min(share);
            hits.client = hits.client.max(result.client.busiest_thread);
            hits.series.runs.push(as_run(&result));
        }
        Ok(hits)
    }
}

/// Runs whose reads were hits.
struct Hits {
    series: Series,
    /// Least share of the hits that were of the kind asked for.
    share: f64,
    /// Most of its core that the client used.
    client: f64,
}

fn as_run(result: &RunResult) -> Run {
    Run {
        operations: result.operations,
        seconds: result.seconds,
        per_second: result.per_second,
        cpu_us_per_operation: result.server_us_per_operation().unwrap_or(0.0),
        latency: result.reads.clone(),
        curve: result.curve.clone(),
        client: None,
    }
}
