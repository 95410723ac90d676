//! One load on the database and through Afterglow in turn, and how it is told.
//!
//! Either side has a table of its own with the same rows: what a client writes past Afterglow would
//! break the promise of `exclusive`.

use std::time::Duration;

use afterglow_cql::message::Consistency;
use afterglow_loadgen::{
    cql::{
        run::{self, RunOptions, Verify, Warm},
        table::TableSpec,
    },
    result::{LoadShape, RunResult},
    ycsb::{Distribution, HOT_SET, Workload},
};

use super::super::{
    BenchError, pin, progress,
    report::{ClientSide, Grid, Run, Section, Series},
};
use super::{CLIENT_CORE, CqlBench, FLAT_OUT, server::CqlServer};
use crate::comparison::median;

/// Names of the watched processes.
const DATABASE: &str = "database";
const AFTERGLOW: &str = "afterglow";

/// What the report says of each side.
const COLUMNS: [&str; 13] = [
    "op/s",
    "to direct",
    "CPU of database, us/op",
    "CPU of Afterglow, us/op",
    "client's cores",
    "mean us",
    "p50",
    "p99",
    "p99.9",
    "DRAM hits %",
    "flash hits %",
    "misses %",
    "errors",
];

/// The same rows twice.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    /// Read and written directly.
    pub(super) direct: TableSpec,
    /// Read and written through Afterglow only.
    pub(super) cached: TableSpec,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixed {
    /// Its operations; `None`: updates alone.
    pub(super) workload: Option<Workload>,
    /// Operations a second; `None`: as many as it goes.
    pub(super) rate: Option<f64>,
    /// Before each run.
    pub(super) warm: Duration,
}

/// Runs of both sides; the n-th of each are a pair.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) direct: Vec<RunResult>,
    pub(super) through: Vec<RunResult>,
}

impl Pairs {
    /// The median of a figure over the pairs, Afterglow's to the direct one.
    pub(super) fn ratio(&self, figure: impl Fn(&RunResult) -> f64) -> f64 {
        let pairs = self.direct.iter().zip(&self.through);
        median(pairs.map(|(direct, through)| figure(through) / figure(direct).max(1e-9)))
    }

    /// The share of the hits that came from DRAM.
    pub(super) fn dram_share(&self) -> f64 {
        median(self.through.iter().map(|result| {
            let cache = result.cache.unwrap_or_default();
            cache.dram_hits as f64 / (cache.dram_hits + cache.flash_hits).max(1) as f64
        }))
    }
}

/// The median of a figure.
pub(super) fn middle(runs: &[RunResult], figure: impl Fn(&RunResult) -> f64) -> f64 {
    median(runs.iter().map(figure))
}

/// Operations that failed in any way.
pub(super) fn errors(result: &RunResult) -> u64 {
    let e = &result.errors;
    e.wrong + e.not_found + e.lost + e.refused.iter().map(|(_, count, _)| count).sum::<u64>()
}

impl CqlBench<'_> {
    /// One run, directly or through `server`. A table that the load adds to grows by as much.
    pub(super) fn mixed(
        &self,
        load: &Mixed,
        table: &mut TableSpec,
        server: Option<&CqlServer>,
        through: bool,
    ) -> Result<RunResult, BenchError> {
        let (o, host) = (self.options, if through { server } else { None });
        let processes = [(DATABASE, o.backend_pid), (AFTERGLOW, server.map(CqlServer::pid))];
        let watch = processes.into_iter().filter_map(|(name, pid)| Some((name.to_owned(), pid?)));
        let distribution = load.workload.map_or(Distribution::Zipfian, Workload::distribution);
        let options = RunOptions {
            label: String::new(),
            scenario: String::new(),
            load: LoadShape {
                table: table.clone(),
                distribution,
                hot_set: HOT_SET,
                read_ratio: 0.0,
                workload: load.workload,
                threads: 1,
                connections: FLAT_OUT.0,
                in_flight: FLAT_OUT.1,
                rate: load.rate,
                seed: self.seeds.replace(self.seeds.get() + 1),
            },
            hosts: vec![host.map_or(&o.backend, |server| &server.address).clone()],
            owned: false,
            connect: self.connect(),
            consistency: Consistency::LocalQuorum,
            reconnect: false,
            poisson: false,
            polls: false,
            warm: Warm::For(load.warm),
            duration: Duration::from_secs_f64(o.seconds),
            operations: None,
            verify: Verify::All,
            watch: watch.collect(),
            metrics: host.map(|server| server.admin.clone()),
        };
        let _pinned =
            pin::Pinned::to(CLIENT_CORE).map_err(BenchError::io("keep the client on one core"))?;
        let result = run::run(&options, |_| ()).map_err(|e| BenchError::Void(e.to_string()))?;
        if matches!(load.workload, Some(Workload::D | Workload::E | Workload::Inserts)) {
            table.records = result.records;
        }
        Ok(result)
    }

    /// As many pairs as asked for, in alternating order. Of a pair both runs count, or none.
    pub(super) fn pairs(
        &mut self,
        name: &str,
        load: &Mixed,
        tables: &mut Tables,
        server: &CqlServer,
    ) -> Pairs {
        let mut pairs = Pairs::default();
        for round in 1..=self.options.runs {
            progress(format_args!("{name}: round {round} of {}", self.options.runs));
            let mut of = |through: bool| {
                let table = if through { &mut tables.cached } else { &mut tables.direct };
                self.mixed(load, table, Some(server), through)
            };
            let (direct, through) = if round % 2 == 1 {
                let direct = of(false);
                (direct, of(true))
            } else {
                let through = of(true);
                (of(false), through)
            };
            match (direct, through) {
                (Ok(direct), Ok(through)) => {
                    pairs.direct.push(direct);
                    pairs.through.push(through);
                }
                (direct, through) => {
                    for error in [direct.err(), through.err()].into_iter().flatten() {
                        self.reject(&format!("{name}, round {round}"), error);
                    }
                }
            }
        }
        pairs
    }

    /// Tells of pairs: two rows of the table, and their runs with the curves of latency.
    pub(super) fn tell(&mut self, grid: &mut Grid, name: &str, note: &str, pairs: &Pairs) {
        let throughput = pairs.ratio(|r| r.per_second);
        grid.row(format!("{name}: directly"), cells(&pairs.direct, None));
        grid.row(format!("{name}: Afterglow"), cells(&pairs.through, Some(throughput)));
        let mut section = Section::new(name, note);
        let sides = [("directly", &pairs.direct), ("through Afterglow", &pairs.through)];
        section.series = sides
            .into_iter()
            .map(|(name, runs)| Series {
                name: name.into(),
                runs: runs.iter().map(as_mixed_run).collect(),
            })
            .collect();
        self.report.sections.push(section);
    }
}

/// An empty table of such rows.
pub(super) fn grid(name: &str, note: &str) -> Grid {
    Grid::new(name, note, &COLUMNS)
}

/// Medians, in the order of [`COLUMNS`].
fn cells(runs: &[RunResult], ratio: Option<f64>) -> Vec<Option<f64>> {
    if runs.is_empty() {
        return vec![None; COLUMNS.len()];
    }
    let of = |figure: fn(&RunResult) -> f64| Some(middle(runs, figure));
    let cpu = |name: &str| {
        let each = runs
            .iter()
            .filter_map(|r| r.servers.iter().find(|s| s.name == name).map(|s| s.us_per_operation));
        let each: Vec<f64> = each.collect();
        (!each.is_empty()).then(|| median(each))
    };
    let percent = |figure: fn(&afterglow_loadgen::metrics::CacheCounters) -> u64| {
        let each = runs.iter().filter_map(|r| r.cache.as_ref()).map(|cache| {
            let all = cache.dram_hits + cache.flash_hits + cache.misses;
            100.0 * figure(cache) as f64 / all.max(1) as f64
        });
        let each: Vec<f64> = each.collect();
        (!each.is_empty()).then(|| median(each))
    };
    vec![
        of(|r| r.per_second),
        ratio,
        cpu(DATABASE),
        cpu(AFTERGLOW).filter(|_| ratio.is_some()),
        of(|r| r.client.busiest_thread),
        of(|r| r.all.mean_us),
        of(|r| r.all.p50_us),
        of(|r| r.all.p99_us),
        of(|r| r.all.p999_us),
        percent(|c| c.dram_hits),
        percent(|c| c.flash_hits),
        percent(|c| c.misses),
        Some(runs.iter().map(errors).sum::<u64>() as f64),
    ]
}

/// Reads and writes together.
fn as_mixed_run(result: &RunResult) -> Run {
    let cache = result.cache.unwrap_or_default();
    let hits = (cache.dram_hits + cache.flash_hits).max(1) as f64;
    Run {
        operations: result.operations,
        seconds: result.seconds,
        per_second: result.per_second,
        cpu_us_per_operation: result.server_us_per_operation().unwrap_or(0.0),
        latency: result.all.clone(),
        curve: result.all_curve.clone(),
        client: Some(ClientSide {
            cores: result.client.busiest_thread,
            hit_ratio: cache.hit_ratio(),
            from_flash: result.cache.map(|cache| cache.flash_hits as f64 / hits),
            refused: errors(result),
            polls: false,
        }),
    }
}
