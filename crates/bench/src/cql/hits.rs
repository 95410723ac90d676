//! How soon hits are answered from DRAM and from flash, and how many of them a core answers.

use std::{thread::sleep, time::Duration};

use afterglow_loadgen::{
    cql::{run::Warm, table::TableSpec},
    result::{RunResult, VOID_ABOVE},
    ycsb::Distribution,
};

use super::super::{
    progress,
    report::{Check, Run, Section, Series},
};
use super::{CqlBench, ReadLoad, as_run, server::CqlServer};
use crate::comparison::median;

/// DRAM hits under light load, p50 and p99.
const DRAM: (f64, f64) = (60.0, 200.0);
/// Flash hits under light load, p50 and p99.
const FLASH: (f64, f64) = (200.0, 600.0);
/// DRAM hits a second of one core.
const HITS: f64 = 150_000.0;
/// What the DRAM tier has while hits are measured: all small rows, and few of the large ones.
const MEMORY: u64 = 64 << 20;
/// A row with a lower hit ratio says nothing of hits.
const HIT_RATIO: f64 = 0.999;
/// Nor one of which fewer came from where they were to come from.
const SHARE: f64 = 0.8;

impl CqlBench<'_> {
    /// How soon hits are answered, and how many of them a core answers.
    pub(super) fn hits(&mut self) {
        let o = self.options;
        let series = |name: &str| Series { name: name.to_owned(), runs: Vec::new() };
        let (mut dram, mut flat_out) =
            (series("DRAM, rows of 100 B"), series("DRAM, rows of 100 B"));
        let mut from_flash = series("flash, rows of 4 KB");
        match self.cache("hits", MEMORY) {
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
            for (which, bound, figure) in [
                ("p50", p50, (|r| r.latency.p50_us) as fn(&Run) -> f64),
                ("p99", p99, |r| r.latency.p99_us),
            ] {
                let name = format!("{name} hit under light load, {which}, us");
                let check =
                    check_of(hits, figure, |value| Check::at_most(name.as_str(), value, bound));
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
    pub(super) fn fill(&mut self, server: &CqlServer, table: &TableSpec) -> bool {
        progress(format_args!(
            "filling the cache with {} rows of {} B",
            table.records, table.field_size
        ));
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
            format!(
                "the load client used {client:.2} of its core, and may have been what limited it"
            )
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
