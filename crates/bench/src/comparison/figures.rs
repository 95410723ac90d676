//! Runs by label and load, their medians, and the ratios of paired runs.

use super::table::Table;
use afterglow_loadgen::result::{FORMAT, RunResult};

/// Runs of one label under one scenario.
#[derive(Debug)]
pub struct LabelledRuns<'a> {
    /// The label.
    pub label: &'a str,
    /// Its runs in the order they were made.
    pub runs: Vec<&'a RunResult>,
}

/// All runs under one load.
#[derive(Debug)]
pub struct Scenario<'a> {
    /// Its name.
    pub name: &'a str,
    /// The labels; the first is what the others are compared with.
    pub series: Vec<LabelledRuns<'a>>,
}

/// Results that cannot be compared.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ReportError {
    /// Nothing to report.
    #[error("no results given")]
    Empty,
    /// A file of another version.
    #[error(
        "a result of `{label}` has format {found}, this program reads {FORMAT}: measure it again"
    )]
    Format {
        /// Its label.
        label: String,
        /// Its format.
        found: u32,
    },
    /// Runs that were not made under the same load.
    #[error(
        "scenario `{scenario}`: `{label}` was not measured under the load of the others ({what}); name the scenarios apart"
    )]
    Load {
        /// The scenario.
        scenario: String,
        /// The label that differs.
        label: String,
        /// What differs.
        what: &'static str,
    },
    /// The label to compare with is not there.
    #[error("no result has the label `{0}` to compare with")]
    Baseline(String),
}

/// Sorts results into scenarios and labels, both in the order in which they first ran; `baseline`
/// comes first if given.
pub fn group<'a>(
    results: &'a [RunResult],
    baseline: Option<&str>,
) -> Result<Vec<Scenario<'a>>, ReportError> {
    let mut sorted: Vec<&RunResult> = results.iter().collect();
    sorted.sort_by_key(|r| r.started_unix);
    let Some(_) = sorted.first() else { return Err(ReportError::Empty) };
    if let Some(name) = baseline
        && !sorted.iter().any(|r| r.label == name)
    {
        return Err(ReportError::Baseline(name.to_owned()));
    }
    let mut scenarios: Vec<Scenario<'a>> = Vec::new();
    for run in sorted {
        if run.format != FORMAT {
            return Err(ReportError::Format { label: run.label.clone(), found: run.format });
        }
        let at = scenarios.iter().position(|s| s.name == run.scenario).unwrap_or_else(|| {
            scenarios.push(Scenario { name: &run.scenario, series: Vec::new() });
            scenarios.len() - 1
        });
        let series = &mut scenarios[at].series;
        if let Some(what) = series.first().and_then(|first| difference(first.runs[0], run)) {
            let (scenario, label) = (run.scenario.clone(), run.label.clone());
            return Err(ReportError::Load { scenario, label, what });
        }
        match series.iter_mut().find(|s| s.label == run.label) {
            Some(found) => found.runs.push(run),
            None => series.push(LabelledRuns { label: &run.label, runs: vec![run] }),
        }
    }
    for scenario in &mut scenarios {
        scenario.series.sort_by_key(|s| Some(s.label) != baseline);
    }
    Ok(scenarios)
}

/// What in the load makes two runs incomparable. The seed may differ.
fn difference(a: &RunResult, b: &RunResult) -> Option<&'static str> {
    let (a, b) = (&a.load, &b.load);
    let shape = |l: &afterglow_loadgen::result::LoadShape| {
        (l.table.records, l.table.fields, l.table.field_size)
    };
    let differences = [
        (shape(a) != shape(b), "another table"),
        (a.distribution != b.distribution, "another distribution"),
        (a.read_ratio != b.read_ratio, "another share of reads"),
        (a.rate != b.rate, "another rate"),
        (
            (a.connections, a.in_flight) != (b.connections, b.in_flight),
            "another number of requests in flight",
        ),
    ];
    differences.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
}

/// The median; of an even number the mean of the two in the middle. 0 of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

impl LabelledRuns<'_> {
    /// The median of a figure over the runs.
    pub fn median(&self, figure: impl Fn(&RunResult) -> f64) -> f64 {
        median(self.runs.iter().map(|r| figure(r)))
    }

    /// Why the row must not be believed, if so.
    pub fn doubt(&self) -> Option<&'static str> {
        let any = |test: fn(&RunResult) -> bool| self.runs.iter().any(|r| test(r));
        if any(|r| r.errors.wrong > 0) {
            Some("WRONG VALUES")
        } else if any(|r| r.client.void) {
            Some("void: client saturated")
        } else if any(|r| !r.is_clean()) {
            Some("errors")
        } else if any(|r| r.errors.unsent > 0) {
            Some("rate not reached")
        } else if any(|r| r.warmup.flat == Some(false)) {
            Some("not warm")
        } else {
            None
        }
    }
}

/// The ratios of `figure`, run by run, of `series` to `baseline`: median, lowest, highest. `None`
/// without a pair.
pub fn paired(
    series: &LabelledRuns<'_>,
    baseline: &LabelledRuns<'_>,
    figure: impl Fn(&RunResult) -> f64,
) -> Option<(f64, f64, f64)> {
    let ratios: Vec<f64> = series
        .runs
        .iter()
        .zip(&baseline.runs)
        .map(|(run, base)| (figure(run), figure(base)))
        .filter(|(_, base)| *base > 0.0)
        .map(|(run, base)| run / base)
        .collect();
    let lowest = ratios.iter().copied().reduce(f64::min)?;
    let highest = ratios.iter().copied().reduce(f64::max)?;
    Some((median(ratios), lowest, highest))
}

/// The medians, a row per label.
pub fn summary(scenario: &Scenario<'_>) -> Table {
    let reading =
        |r: &RunResult| if r.reads.count > 0 { r.reads.clone() } else { r.writes.clone() };
    let mut table = Table::new(&[
        "",
        "runs",
        "op/s",
        "mean us",
        "p50",
        "p95",
        "p99",
        "p99.9",
        "CPU us/op",
        "DRAM hits",
        "flash hits",
        "remarks",
    ]);
    for series in &scenario.series {
        let us = |figure: fn(&afterglow_loadgen::latency::Summary) -> f64| {
            format!("{:.0}", series.median(|r| figure(&reading(r))))
        };
        let watched = series.runs.iter().all(|r| r.server_us_per_operation().is_some());
        let cached = series.runs.iter().all(|r| r.cache.is_some());
        let share = |part: fn(&afterglow_loadgen::metrics::CacheCounters) -> u64| {
            let of = |r: &RunResult| {
                r.cache.map_or(0.0, |c| {
                    part(&c) as f64 / (c.dram_hits + c.flash_hits + c.misses).max(1) as f64
                })
            };
            if cached { format!("{:.1} %", 100.0 * series.median(of)) } else { "-".to_owned() }
        };
        table.row(vec![
            series.label.to_owned(),
            series.runs.len().to_string(),
            thousands(series.median(|r| r.per_second)),
            us(|s| s.mean_us),
            us(|s| s.p50_us),
            us(|s| s.p95_us),
            us(|s| s.p99_us),
            us(|s| s.p999_us),
            if watched {
                format!("{:.1}", series.median(|r| r.server_us_per_operation().unwrap_or(0.0)))
            } else {
                "-".to_owned()
            },
            share(|c| c.dram_hits),
            share(|c| c.flash_hits),
            series.doubt().unwrap_or("").to_owned(),
        ]);
    }
    table
}

/// The ratios to the first label, a row per other label: median of the pairs, and their range.
/// `None` if there is only one label.
pub fn comparison(scenario: &Scenario<'_>) -> Option<Table> {
    let (baseline, others) =
        scenario.series.split_first().filter(|(_, others)| !others.is_empty())?;
    let title = format!("to {}", baseline.label);
    let mut table =
        Table::new(&[&title, "pairs", "op/s", "mean", "p50", "p95", "p99", "p99.9", "CPU/op"]);
    for series in others {
        let ratio = |figure: fn(&RunResult) -> f64| match paired(series, baseline, figure) {
            None => "-".to_owned(),
            Some((middle, lowest, highest)) if lowest == highest => format!("{middle:.2}x"),
            Some((middle, lowest, highest)) => format!("{middle:.2}x ({lowest:.2}-{highest:.2})"),
        };
        table.row(vec![
            series.label.to_owned(),
            series.runs.len().min(baseline.runs.len()).to_string(),
            ratio(|r| r.per_second),
            ratio(|r| r.reads.mean_us),
            ratio(|r| r.reads.p50_us),
            ratio(|r| r.reads.p95_us),
            ratio(|r| r.reads.p99_us),
            ratio(|r| r.reads.p999_us),
            ratio(|r| r.server_us_per_operation().unwrap_or(0.0)),
        ]);
    }
    Some(table)
}

/// `12345.6` as `12,346`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use afterglow_loadgen::{
        cql::table::TableSpec,
        latency::Summary,
        result::{ClientCpu, Errors, LoadShape, Second, ServerCpu, Warmup},
        ycsb::Distribution,
    };

    pub(crate) fn result(
        label: &str,
        started_unix: u64,
        per_second: f64,
        p99_us: f64,
    ) -> RunResult {
        let reads = Summary {
            count: 1000,
            mean_us: 100.0,
            p50_us: 90.0,
            p95_us: 150.0,
            p99_us,
            p999_us: 900.0,
            max_us: 999.0,
        };
        RunResult {
            format: FORMAT,
            label: label.to_owned(),
            scenario: "flat out".to_owned(),
            command: "run-cql <&>".to_owned(),
            started_unix,
            load: LoadShape {
                table: TableSpec {
                    keyspace: "k".into(),
                    table: "t".into(),
                    records: 10,
                    fields: 1,
                    field_size: 8,
                    zeros: 0,
                    partition_rows: 0,
                    newest_first: false,
                },
                distribution: Distribution::Zipfian,
                hot_set: 0.2,
                read_ratio: 1.0,
                workload: None,
                threads: 1,
                connections: 4,
                in_flight: 16,
                rate: None,
                seed: started_unix,
            },
            warmup: Warmup::default(),
            seconds: 10.0,
            operations: 1000,
            per_second,
            service: reads.clone(),
            reads,
            writes: Summary::default(),
            curve: vec![(0.0, 50.0), (50.0, 90.0), (99.0, p99_us)],
            all: Summary::default(),
            all_curve: Vec::new(),
            records: 10,
            errors: Errors::default(),
            verified: 10,
            client: ClientCpu::default(),
            servers: vec![ServerCpu { name: "s".into(), cores: 1.0, us_per_operation: 30.0 }],
            other_cores: Some(0.1),
            cache: None,
            timeline: vec![Second { operations: 100, failures: 0, p50_us: 90.0, p99_us }; 3],
        }
    }

    #[test]
    fn ratios_are_those_of_pairs_not_of_medians() {
        // The machine got slower by the run; within each pair the second label is twice as fast.
        let results = [
            result("direct", 1, 100.0, 10.0),
            result("cached", 2, 200.0, 5.0),
            result("cached", 3, 80.0, 50.0),
            result("direct", 4, 40.0, 100.0),
            result("direct", 5, 10.0, 400.0),
            result("cached", 6, 22.0, 200.0),
        ];
        let scenarios = group(&results, None).unwrap();
        let [baseline, cached] = &scenarios[0].series[..] else { panic!() };
        assert_eq!((baseline.label, baseline.median(|r| r.per_second)), ("direct", 40.0));
        let (middle, lowest, highest) = paired(cached, baseline, |r| r.per_second).unwrap();
        assert_eq!((middle, lowest, highest), (2.0, 2.0, 2.2));
        let text = comparison(&scenarios[0]).unwrap().text();
        assert!(text.contains("2.00x (2.00-2.20)") && text.contains("0.50x"), "{text}");
    }

    #[test]
    fn rows_that_must_not_be_believed_say_so() {
        let mut void = result("a", 1, 1.0, 1.0);
        void.client.void = true;
        let mut wrong = void.clone();
        wrong.errors.wrong = 1;
        for (run, remark) in [(void, "void: client saturated"), (wrong, "WRONG VALUES")] {
            let results = [run];
            assert!(summary(&group(&results, None).unwrap()[0]).text().contains(remark));
        }
    }

    #[test]
    fn incomparable_runs_are_refused() {
        let mut other = result("b", 2, 1.0, 1.0);
        other.load.rate = Some(5.0);
        let results = [result("a", 1, 1.0, 1.0), other];
        assert!(matches!(
            group(&results, None),
            Err(ReportError::Load { what: "another rate", .. })
        ));
        assert_eq!(
            group(&results[..1], Some("zz")).unwrap_err(),
            ReportError::Baseline("zz".into())
        );
        assert_eq!(group(&[], None).unwrap_err(), ReportError::Empty);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(thousands(1234567.4), "1,234,567");
        assert_eq!(thousands(999.0), "999");
    }
}
