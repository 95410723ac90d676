//! The report as one HTML file without anything from elsewhere.

use std::fmt::Write;

use super::{
    chart::{Chart, Line},
    figures::{Scenario, comparison, summary},
    table::escape,
};
use afterglow_loadgen::result::RunResult;

pub(crate) const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
h1{font-size:1.5em}h2{margin-top:2em;border-bottom:1px solid #ddd}\
table{border-collapse:collapse;margin:1em 0;font-variant-numeric:tabular-nums}\
th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #eee}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;max-width:860px;height:auto;display:block;margin:1em 0}\
svg{fill:#444}svg text{font:11px system-ui,sans-serif}\
svg .title{font-size:13px;font-weight:600}svg .grid{stroke:#e4e4e4}\
svg .end{text-anchor:end}svg .middle{text-anchor:middle}\
code{font-size:12px;background:#f5f5f5;padding:.1em .3em;word-break:break-all}li{margin:.3em 0}";

/// Tables, latency curves, throughput over time, and the command behind every run.
pub fn html(title: &str, scenarios: &[Scenario<'_>]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body><h1>{0}</h1>",
        escape(title)
    );
    for scenario in scenarios {
        let _ = write!(out, "<h2>{}</h2>{}", escape(scenario.name), load(scenario));
        out += &summary(scenario).html();
        if let Some(table) = comparison(scenario) {
            out += "<p>Ratios of paired runs: median (lowest-highest).</p>";
            out += &table.html();
        }
        out += &curves(scenario).svg();
        out += &over_time(scenario, "Operations a second", "op/s", |s| s.operations as f64).svg();
        out += &over_time(scenario, "99th percentile of each second", "us", |s| s.p99_us).svg();
    }
    out += "<h2>Commands</h2><ul>";
    for run in scenarios.iter().flat_map(|s| &s.series).flat_map(|s| &s.runs) {
        let _ = write!(
            out,
            "<li>{}, {}: <code>{}</code></li>",
            escape(&run.scenario),
            escape(&run.label),
            escape(&run.command)
        );
    }
    out + "</ul></body></html>\n"
}

/// One sentence about the load.
fn load(scenario: &Scenario<'_>) -> String {
    let Some(run) = scenario.series.first().and_then(|s| s.runs.first()) else {
        return String::new();
    };
    let load = &run.load;
    let pace = match load.rate {
        Some(rate) => {
            format!("open loop at {rate:.0} operations a second, latency from the intended start")
        }
        None => "closed loop".to_owned(),
    };
    format!(
        "<p>{} records of {} x {} bytes, {:?}, {:.0} % reads, {} connections with {} requests in flight each, {pace}.</p>",
        load.table.records,
        load.table.fields,
        load.table.field_size,
        load.distribution,
        100.0 * load.read_ratio,
        load.connections,
        load.in_flight
    )
}

/// Name and run of every line: of several runs of a label the middle one by throughput, as its
/// curve is a real one.
fn lines<'r>(scenario: &'r Scenario<'_>) -> impl Iterator<Item = (String, &'r RunResult)> {
    scenario.series.iter().filter_map(|series| {
        let mut runs = series.runs.clone();
        runs.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        runs.get(runs.len() / 2).map(|run| (series.label.to_owned(), *run))
    })
}

fn curves<'s>(scenario: &Scenario<'_>) -> Chart<'s> {
    Chart::of_latencies("Latency of reads", lines(scenario).map(|(name, run)| (name, &*run.curve)))
}

fn over_time<'s>(
    scenario: &Scenario<'_>,
    title: &'s str,
    y_label: &'s str,
    figure: fn(&afterglow_loadgen::result::Second) -> f64,
) -> Chart<'s> {
    let seconds = lines(scenario).map(|(_, r)| r.timeline.len()).max().unwrap_or(0);
    let step = (seconds / 10).max(1);
    Chart {
        title,
        x_label: "seconds",
        y_label,
        logarithmic: false,
        x_ticks: (0..=seconds).step_by(step).map(|s| (s as f64, s.to_string())).collect(),
        lines: lines(scenario)
            .map(|(name, run)| {
                // The last second is seldom a whole one.
                let whole = run.timeline.len().saturating_sub(1).max(1);
                let points = run.timeline.iter().take(whole).enumerate();
                Line { name, points: points.map(|(i, s)| (i as f64 + 1.0, figure(s))).collect() }
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use crate::comparison::figures::{group, tests::result};

    #[test]
    fn the_page_holds_everything_and_loads_nothing() {
        let results = [result("direct", 1, 100.0, 900.0), result("cached", 2, 300.0, 90.0)];
        let page = super::html("A <title>", &group(&results, None).unwrap());
        assert!(
            page.contains("<h1>A &lt;title&gt;</h1>") && page.contains("run-cql &lt;&amp;&gt;")
        );
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("3.00x") && page.contains("0.10x"));
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("NaN"));
    }
}
