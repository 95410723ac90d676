//! YCSB's workloads and a feed: directly and through Afterglow in one run, over sizes of the DRAM
//! tier.
//!
//! ```text
//!   core 0: database and Afterglow      what both together may use is what the database has alone
//!   core 1: load client
//! ```
//!
//! 1. Two tables with the same rows are loaded, and the database is warmed.
//! 2. For each size of memory Afterglow starts over the same data directory, and is filled: all
//!    that is read is a hit, from DRAM or from flash.
//! 3. Pairs of runs at full speed; with the least memory also at half of the database's rate.
//! 4. Writes alone, directly. With reads for nothing A and F would reach twice what updates reach,
//!    and D twenty times what inserts reach.

use std::time::Duration;

use afterglow_loadgen::{cql::table::TableSpec, ycsb::Workload};

use super::super::{
    BenchError, progress,
    report::{Check, Grid, Plot},
};
use super::{
    CqlBench,
    pairs::{Mixed, Pairs, Tables, errors, grid, middle},
    server::CqlServer,
};

/// Throughput to that of the database, with the least memory.
const GAIN: f64 = 3.0;
/// Mean latency at half of the database's highest rate, microseconds.
const MEAN: f64 = 300.0;
/// Most that the share of hits from DRAM may be with the least memory: above it the row says too
/// little of flash.
const LITTLE_DRAM: f64 = 0.7;

/// What the database does of writes alone, a second: a ceiling where reads cost it nothing.
#[derive(Clone, Copy, Default)]
struct WritesAlone {
    updates: Option<f64>,
    inserts: Option<f64>,
}

/// What was measured of one workload with one size of memory.
struct Compared {
    workload: Workload,
    memory: u64,
    pairs: Pairs,
    /// At half of the database's rate, with the least memory.
    medium: Option<Pairs>,
}

impl CqlBench<'_> {
    /// Measures the workloads asked for.
    ///
    /// # Errors
    /// The database takes no rows.
    pub(super) fn ycsb(&mut self, workloads: &[Workload]) -> Result<(), BenchError> {
        let (mut points, mut alone) = (Vec::new(), WritesAlone::default());
        let rows: Vec<Workload> =
            workloads.iter().copied().filter(|workload| !workload.is_clustered()).collect();
        if !rows.is_empty() {
            let mut tables = self.tables("rows", 10, 0, self.options.records);
            self.load_both(&tables)?;
            self.warm(Workload::A, &mut tables);
            if rows.iter().any(|workload| matches!(workload, Workload::A | Workload::F)) {
                alone.updates = self.alone(None, &mut tables);
            }
            if rows.contains(&Workload::D) {
                alone.inserts = self.alone(Some(Workload::Inserts), &mut tables);
            }
            points.extend(self.sweep(&rows, &mut tables));
        }
        for (workload, fields, rows) in [(Workload::E, 10, 128), (Workload::Feed, 1, 1000)] {
            if !workloads.contains(&workload) {
                continue;
            }
            let name = workload.to_string().replace(' ', "_").to_lowercase();
            let mut tables = self.tables(&name, fields, rows, self.options.records);
            self.load_both(&tables)?;
            self.warm(workload, &mut tables);
            points.extend(self.sweep(&[workload], &mut tables));
        }
        self.tell_ycsb(&points, alone);
        Ok(())
    }

    fn tables(&self, name: &str, fields: u32, partition_rows: u32, records: u64) -> Tables {
        let table = |side: &str| TableSpec {
            fields,
            partition_rows,
            newest_first: name == "feed",
            ..self.table(&format!("{name}_{side}"), records, 100)
        };
        Tables { direct: table("direct"), cached: table("cached") }
    }

    pub(super) fn load_both(&self, tables: &Tables) -> Result<(), BenchError> {
        self.load(&tables.direct)?;
        self.load(&tables.cached)
    }

    /// Until a JVM has compiled what the load needs.
    pub(super) fn warm(&mut self, workload: Workload, tables: &mut Tables) {
        let warm = Duration::from_secs_f64(self.options.warm);
        progress(format_args!("warming the database for {} s", warm.as_secs()));
        let load = Mixed { workload: Some(workload), rate: None, warm };
        if let Err(error) = self.mixed(&load, &mut tables.direct, None, false) {
            self.reject("Warming the database", error);
        }
        self.rest(&workload.to_string());
    }

    /// Writes alone, directly. `workload`: as for [`Mixed`].
    fn alone(&mut self, workload: Option<Workload>, tables: &mut Tables) -> Option<f64> {
        let mut runs = Vec::new();
        for _ in 0..self.options.runs {
            let load = Mixed { workload, rate: None, warm: self.short() };
            match self.mixed(&load, &mut tables.direct, None, false) {
                Ok(result) => runs.push(result),
                Err(error) => self.reject("Writes alone", error),
            }
        }
        (!runs.is_empty()).then(|| middle(&runs, |r| r.per_second))
    }

    /// The warm-up of one run.
    pub(super) fn short(&self) -> Duration {
        Duration::from_secs_f64(self.options.seconds / 4.0)
    }

    fn sweep(&mut self, workloads: &[Workload], tables: &mut Tables) -> Vec<Compared> {
        let mut points = Vec::new();
        let sizes = self.options.memory.clone();
        let least = sizes.iter().copied().min();
        for memory in sizes {
            let server = match self.cache("ycsb", memory) {
                Ok(server) => server,
                Err(error) => {
                    self.reject(&format!("{} MiB of memory", memory >> 20), error);
                    continue;
                }
            };
            if self.ready(workloads, tables, &server) {
                for &workload in workloads {
                    let medium = Some(memory) == least;
                    points.push(self.point(workload, memory, tables, &server, medium));
                }
            }
            if let Err(error) = server.stop() {
                self.reject("the end of Afterglow", error);
            }
        }
        points
    }

    /// Fills the cache, and its DRAM tier with what these workloads read most.
    fn ready(&mut self, of: &[Workload], tables: &mut Tables, server: &CqlServer) -> bool {
        let Some(&first) = of.first() else { return false };
        if !first.is_clustered() && !self.fill(server, &tables.cached) {
            return false;
        }
        // Others have the same hot rows, or soon their own.
        let warm = Duration::from_secs_f64(self.options.warm / 5.0);
        let load = Mixed { workload: Some(first), rate: None, warm };
        let warmed = self.mixed(&load, &mut tables.cached, Some(server), true);
        warmed.map_err(|error| self.reject(&format!("warming {first}"), error)).is_ok()
    }

    fn point(
        &mut self,
        workload: Workload,
        memory: u64,
        tables: &mut Tables,
        server: &CqlServer,
        medium: bool,
    ) -> Compared {
        let name = name_of(workload, memory);
        let full = Mixed { workload: Some(workload), rate: None, warm: self.short() };
        let pairs = self.pairs(&name, &full, tables, server);
        let highest = middle(&pairs.direct, |r| r.per_second);
        // Not where nothing was answered in the time.
        let medium = (medium && highest >= 1.0).then(|| {
            let rate = Some(highest / 2.0);
            self.pairs(&format!("{name}, half"), &Mixed { rate, ..full }, tables, server)
        });
        Compared { workload, memory, pairs, medium }
    }

    fn tell_ycsb(&mut self, points: &[Compared], alone: WritesAlone) {
        let o = self.options;
        let note = format!(
            "medians of {} pairs of {} s; {} records of each table; latency of reads and writes \
             together; database and Afterglow on one core, the client on another; every read \
             verified byte for byte",
            o.runs, o.seconds, o.records
        );
        let mut full = grid("Full speed", &format!("4 connections, 32 in flight on each; {note}"));
        let mut half = grid("Half of the database's highest rate", &format!("open loop; {note}"));
        for point in points {
            let name = name_of(point.workload, point.memory);
            self.tell(&mut full, &name, "full speed", &point.pairs);
            if let Some(medium) = &point.medium {
                let name = format!("{name}, half");
                self.tell(&mut half, &name, "half of the database's highest rate", medium);
            }
        }
        self.report.grids.extend([full, half].into_iter().filter(|g: &Grid| !g.rows.is_empty()));
        self.judge_ycsb(points, alone);
        self.draw(points);
    }

    fn judge_ycsb(&mut self, points: &[Compared], alone: WritesAlone) {
        for (name, rate) in [("updates", alone.updates), ("inserts", alone.inserts)] {
            if let Some(rate) = rate {
                self.report.figure(format!("{name} alone, directly"), rate, "/s");
            }
        }
        let all = points.iter().flat_map(|p| {
            let medium = p.medium.iter().flat_map(|m| m.direct.iter().chain(&m.through));
            p.pairs.direct.iter().chain(&p.pairs.through).chain(medium)
        });
        let wrong: u64 = all.map(errors).sum();
        self.report.checks.push(Check::at_most("operations that failed", wrong as f64, 0.0));
        for least in points.iter().filter(|p| p.medium.is_some()) {
            let most = points.iter().filter(|p| p.workload == least.workload);
            let most = most.max_by_key(|p| p.memory).filter(|p| p.memory > least.memory);
            self.judge_workload(least, most, alone);
        }
    }

    fn judge_workload(&mut self, least: &Compared, most: Option<&Compared>, alone: WritesAlone) {
        let (workload, pairs) = (least.workload, &least.pairs);
        let speed = pairs.ratio(|r| r.per_second);
        let share = pairs.dram_share();
        let from = format!("{:.0} % of the hits from DRAM", 100.0 * share);
        let through = middle(&pairs.through, |r| r.per_second);
        let mut checks = Vec::new();
        match workload {
            Workload::A | Workload::F => {
                if let Some(updates) = alone.updates {
                    let name =
                        format!("{workload}: throughput to its ceiling, updates alone twice");
                    self.report.figure(name, through / (2.0 * updates), "");
                }
                self.report.figure(format!("{workload}: throughput to direct"), speed, "");
            }
            Workload::E | Workload::Inserts => {
                self.report.figure(format!("{workload}: throughput to direct"), speed, "");
            }
            Workload::Feed => {
                let name = format!("{workload}: throughput to direct");
                checks.push(Check::at_least(name, speed, GAIN).from(from.clone()));
                let p99 = pairs.ratio(|r| r.reads.p99_us);
                let name = format!("{workload}: p99 of reads to direct, full speed");
                checks.push(Check::at_most(name, p99, 1.0));
            }
            Workload::B | Workload::C | Workload::D => {
                if let (Workload::D, Some(inserts)) = (workload, alone.inserts) {
                    let name = "YCSB D: throughput to its ceiling, inserts alone 20 times";
                    self.report.figure(name, through / (20.0 * inserts), "");
                }
                let name = format!("{workload}: throughput to direct, least memory");
                checks.push(Check::at_least(name, speed, GAIN).from(from.clone()));
            }
        }
        let falls = match workload {
            Workload::A => Some(1.85),
            Workload::B | Workload::D => Some(2.5),
            Workload::C => Some(3.2),
            _ => None,
        };
        if let (Some(bound), Some(most)) = (falls, most) {
            let fall = middle(&most.pairs.through, |r| r.per_second) / through.max(1e-9);
            let name = format!("{workload}: most memory to least, throughput");
            let all = format!("{:.0} and {from}", 100.0 * most.pairs.dram_share());
            checks.push(Check::at_most(name, fall, bound).from(all));
        }
        if let Some(medium) = &least.medium {
            let mean = middle(&medium.through, |r| r.all.mean_us);
            let name = format!("{workload}: mean at half of the database's rate, us");
            checks.push(Check::at_most(name, mean, MEAN));
        }
        if share > LITTLE_DRAM {
            let told = format!("{workload}, {} MiB", least.memory >> 20);
            let why = format!("{from}: give less --memory, or more --records, for fewer");
            self.report.missing.push(format!("{told}: {why}"));
        }
        self.report.checks.extend(checks);
    }

    fn draw(&mut self, points: &[Compared]) {
        for (title, y, figure) in [
            (
                "Throughput to direct, by hits from DRAM",
                "times the database's",
                (|p| p.ratio(|r| r.per_second)) as fn(&Pairs) -> f64,
            ),
            ("Throughput through Afterglow, by hits from DRAM", "op/s", |p| {
                middle(&p.through, |r| r.per_second)
            }),
        ] {
            let mut plot = Plot {
                title: title.into(),
                x: "hits from DRAM, %".into(),
                y: y.into(),
                linear: true,
                lines: Vec::new(),
            };
            for point in points.iter().filter(|p| !p.pairs.through.is_empty()) {
                let name = point.workload.to_string();
                let at = (100.0 * point.pairs.dram_share(), figure(&point.pairs));
                match plot.lines.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, line)) => line.push(at),
                    None => plot.lines.push((name, vec![at])),
                }
            }
            for (_, line) in &mut plot.lines {
                line.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            self.report.plots.push(plot);
        }
    }
}

fn name_of(workload: Workload, memory: u64) -> String {
    format!("{workload}, {} MiB", memory >> 20)
}
