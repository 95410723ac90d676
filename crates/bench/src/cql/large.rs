//! Rows of 4 KB in an open loop at half of the database's highest rate, while it compacts and at
//! rest: how late the slowest answers are.
//!
//! Afterglow is measured twice in each state: on the database's core, where it has to wait for
//! compaction, and on the client's, where only the client is in its way. Without the database's
//! process (a fake one, or one elsewhere) there is one state, and Afterglow has the first core.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use afterglow_cql::message::Consistency;
use afterglow_loadgen::{
    cql::{
        Connection,
        run::{self, RunOptions, Verify, Warm},
        table::TableSpec,
    },
    result::LoadShape,
    ycsb::{Distribution, HOT_SET, Workload},
};

use super::super::{BenchError, pin, progress, report::Check};
use super::{
    CLIENT_CORE, CqlBench, SERVER_CORE,
    pairs::{Mixed, Tables, grid, middle},
    server::CqlServer,
};

/// Percentiles to those of the database.
const SHARE: f64 = 0.1;
/// Rows of 4 KB written a second so that there is something to compact.
const CHURN: f64 = 1000.0;

impl CqlBench<'_> {
    /// Measures them.
    ///
    /// # Errors
    /// The database takes no rows.
    pub(super) fn large_rows(&mut self) -> Result<(), BenchError> {
        let o = self.options;
        let table =
            |name: &str, records| TableSpec { fields: 10, ..self.table(name, records, 400) };
        let mut tables = Tables {
            direct: table("large_direct", o.large_rows),
            cached: table("large_cached", o.large_rows),
        };
        let churn = table("churn", (o.large_rows / 5).max(2));
        self.load_both(&tables)?;
        self.warm(Workload::C, &mut tables);
        let Some(rate) = o.rate.or_else(|| self.half_of_highest(&mut tables)) else {
            return Ok(());
        };
        if o.backend_pid.is_some() {
            self.make_churn(&churn)?;
        }
        for &memory in &o.memory {
            match self.cache("ycsb", memory) {
                Ok(server) => {
                    if self.fill(&server, &tables.cached) {
                        self.states(rate, memory, &mut tables, &churn, &server);
                    }
                    if let Err(error) = server.stop() {
                        self.reject("the end of Afterglow", error);
                    }
                }
                Err(error) => self.reject(&format!("{} MiB of memory", memory >> 20), error),
            }
        }
        Ok(())
    }

    fn half_of_highest(&mut self, tables: &mut Tables) -> Option<f64> {
        let load = Mixed { workload: Some(Workload::C), rate: None, warm: self.short() };
        let mut runs = Vec::new();
        for _ in 0..self.options.runs {
            match self.mixed(&load, &mut tables.direct, None, false) {
                Ok(result) => runs.push(result),
                Err(error) => self.reject("Highest rate of the database", error),
            }
        }
        let highest = (!runs.is_empty()).then(|| middle(&runs, |r| r.per_second))?;
        self.report.figure("highest rate of the database, rows of 4 KB", highest, "/s");
        Some(highest / 2.0)
    }

    /// A table that is flushed each second, and compacted as soon as there are two files.
    fn make_churn(&self, table: &TableSpec) -> Result<(), BenchError> {
        self.load(table)?;
        let alter = || {
            let mut connection = Connection::open(&self.options.backend, &self.connect())?;
            let text = format!(
                "ALTER TABLE {}.{} WITH memtable_flush_period_in_ms = 1000 AND compaction = \
                 {{'class': 'SizeTieredCompactionStrategy', 'min_threshold': 2}}",
                table.keyspace, table.table
            );
            connection.query(&text, Consistency::Quorum)
        };
        alter().map(|_| ()).map_err(|e| BenchError::Void(e.to_string()))
    }

    /// Updates of the table in an open loop, a second long.
    fn churn_options(&self, table: &TableSpec) -> RunOptions {
        RunOptions {
            label: String::new(),
            scenario: String::new(),
            load: LoadShape {
                table: table.clone(),
                distribution: Distribution::Uniform,
                hot_set: HOT_SET,
                read_ratio: 0.0,
                workload: None,
                threads: 1,
                connections: 1,
                in_flight: 32,
                rate: Some(CHURN),
                seed: 1,
            },
            hosts: vec![self.options.backend.clone()],
            owned: false,
            connect: self.connect(),
            consistency: Consistency::One,
            reconnect: false,
            poisson: false,
            polls: false,
            warm: Warm::For(Duration::ZERO),
            duration: Duration::from_secs(1),
            operations: None,
            verify: Verify::None,
            watch: Vec::new(),
            metrics: None,
        }
    }

    fn states(
        &mut self,
        rate: f64,
        memory: u64,
        tables: &mut Tables,
        churn: &TableSpec,
        server: &CqlServer,
    ) {
        if self.options.backend_pid.is_none() {
            self.state("own core", (rate, memory), tables, server);
            return;
        }
        let stop = AtomicBool::new(false);
        let seen = (AtomicU64::new(0), AtomicU64::new(0));
        // The thread has what it needs by value: the benchmark goes on meanwhile.
        let load = self.churn_options(churn);
        thread::scope(|scope| {
            scope.spawn(|| keep_busy(&load, &stop, &seen));
            self.both_places("compacting", (rate, memory), tables, server);
            stop.store(true, Ordering::Release);
        });
        let (busy, asked) = (seen.0.into_inner(), seen.1.into_inner());
        let name = format!("share of time with a compaction under way, {} MiB", memory >> 20);
        self.report.figure(name, busy as f64 / asked.max(1) as f64, "");
        self.rest("rows of 4 KB at rest");
        self.both_places("at rest", (rate, memory), tables, server);
    }

    fn both_places(
        &mut self,
        state: &str,
        load: (f64, u64),
        tables: &mut Tables,
        server: &CqlServer,
    ) {
        for (place, core) in
            [("on the database's core", SERVER_CORE), ("on the client's core", CLIENT_CORE)]
        {
            match pin::process(server.pid(), core) {
                Ok(()) => self.state(&format!("{state}, {place}"), load, tables, server),
                Err(error) => self.reject(place, error),
            }
        }
    }

    fn state(
        &mut self,
        state: &str,
        (rate, memory): (f64, u64),
        tables: &mut Tables,
        server: &CqlServer,
    ) {
        let name = format!("4 KB, {} MiB, {state}", memory >> 20);
        let load = Mixed { workload: Some(Workload::C), rate: Some(rate), warm: self.short() };
        progress(format_args!("{name}"));
        let pairs = self.pairs(&name, &load, tables, server);
        let title = "Rows of 4 KB";
        let known = self.report.grids.iter().position(|grid| grid.name == title);
        let mut rows = known.map_or_else(
            || {
                let note = format!(
                    "10 columns of 400 B, {} rows, zipfian; an open loop of {rate:.0} reads/s",
                    self.options.large_rows
                );
                grid(title, &note)
            },
            |at| self.report.grids.remove(at),
        );
        self.tell(&mut rows, &name, "open loop", &pairs);
        self.report.grids.push(rows);
        let p99 = pairs.ratio(|r| r.all.p99_us);
        let p999 = pairs.ratio(|r| r.all.p999_us);
        for (which, ratio) in [("p99", p99), ("p99.9", p999)] {
            let name = format!("{name}: {which} to direct");
            let check = Check::at_most(name, ratio, SHARE);
            let empty = pairs.through.is_empty();
            self.report.checks.push(if empty { check.unmeasured() } else { check });
        }
    }
}

/// Updates rows on the database's core until told to stop; counts how often there was a compaction
/// under way of how often it asked.
fn keep_busy(load: &RunOptions, stop: &AtomicBool, (busy, asked): &(AtomicU64, AtomicU64)) {
    // Where it cannot be kept there it disturbs the client, on both sides alike.
    let _pinned = pin::Pinned::to(SERVER_CORE);
    let text = "SELECT kind FROM system_views.sstable_tasks";
    let mut seed = 0;
    while !stop.load(Ordering::Acquire) {
        seed += 1;
        let mut slice = load.clone();
        slice.load.seed = seed;
        // A refusal is an overload: the next second is another try.
        let _ = run::run(&slice, |_| ());
        let tasks = Connection::open(&load.hosts[0], &load.connect)
            .and_then(|mut connection| connection.query(text, Consistency::One));
        if let Ok(tasks) = tasks {
            asked.fetch_add(1, Ordering::Relaxed);
            busy.fetch_add(u64::from(!tasks.is_empty()), Ordering::Relaxed);
        }
    }
}
