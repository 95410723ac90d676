//! `afterglow-bench traces` over small traces made here: what it reports, and what it says of
//! traces that are missing or damaged.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output},
};

use afterglow_bench::{
    Grid,
    traces::{TracesOptions, traces},
};
use afterglow_loadgen::rng::Rng;

/// A trace of 30,000 requests, popular objects asked for more often, in the format of adapt-size.
fn write_trace(dir: &Path) {
    let mut rng = Rng::new(5);
    let options = lzma_rust2::XzOptions::with_preset(1);
    let file = std::fs::File::create(dir.join("adapt-size.trace.xz")).unwrap();
    let mut writer = lzma_rust2::XzWriter::new(file, options).unwrap();
    for time in 0..30_000 {
        let key = (rng.next_f64().powi(3) * 3000.0) as u64;
        writeln!(writer, "{time} {key} {}", 500 + key % 7 * 400).unwrap();
    }
    writer.finish().unwrap();
}

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_afterglow-bench"));
    command.env_remove("AFTERGLOW_TRACES").arg("traces").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn figure(grid: &Grid, row: &str, column: usize) -> f64 {
    let found = grid.rows.iter().find(|(name, _)| name == row);
    found.unwrap_or_else(|| panic!("no {row}: {grid:?}")).1[column].unwrap()
}

#[test]
fn every_policy_has_a_row_and_the_engine_is_measured_by_its_counters() {
    let (dir, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_trace(dir.path());
    let options = TracesOptions {
        traces: Some(dir.path().into()),
        names: Vec::new(),
        dir: at.path().into(),
        ratios: vec![10, 50],
        share: 40.0,
        object: 4096,
    };
    let report = traces(&options).unwrap();
    let [grid] = &report.grids[..] else { panic!("one trace is there: {}", report.text()) };
    assert_eq!((grid.name.as_str(), grid.rows.len()), ("adapt-size", 2 * 7));
    assert_eq!(report.missing.len(), 5, "{:?}", report.missing);
    for ratio in [10, 50] {
        let of = |policy: &str, column| figure(grid, &format!("{ratio}x {policy}"), column);
        for policy in
            ["ours", "admit-all FIFO", "S3-FIFO admission", "TinyLFU admission", "reject-first"]
        {
            let [dram, both] = [0, 1].map(|column| of(policy, column));
            assert!(dram > 0.0 && dram < both && both < 100.0, "{policy}: {}", report.text());
            assert!(both <= of("offline bound", 1), "{policy}: {}", report.text());
            assert!(of(policy, 4) > 0.0, "{policy}: {}", report.text());
        }
        assert!(of("ours", 1) > of("admit-all FIFO", 1) - 10.0, "{}", report.text());
        let lost = format!("adapt-size, {ratio}x: ours, lost for other reasons");
        let lost = report.figures.iter().find(|figure| figure.name == lost).unwrap();
        assert_eq!(lost.value, 0.0, "{}", report.text());
    }
    assert_eq!(report.checks.len(), 2 * 3);
    assert_eq!(std::fs::read_dir(at.path()).unwrap().count(), 0, "what it made is gone");
}

#[test]
fn without_traces_it_says_what_it_leaves_out() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().to_str().unwrap();
    let output = bench(&["--dir", dir, "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = report["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 6, "{report:#}");
    assert!(missing.iter().all(|m| m.as_str().unwrap().contains("AFTERGLOW_TRACES")));
}

#[test]
fn a_trace_that_is_named_and_missing_or_damaged_is_an_error_that_names_it() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().to_str().unwrap();
    let failed = |arguments: &[&str], words: &[&str]| {
        let output = bench(&[&["--dir", dir][..], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "no {word}: {said}"));
    };
    failed(&["--traces", dir, "--trace", "web07"], &["web07", "is not in"]);
    failed(&["--traces", dir, "--trace", "web08"], &["web08", "choose from", "web07"]);
    failed(&["--traces", "/nowhere/at/all"], &["/nowhere/at/all", "no folder"]);
    std::fs::write(at.path().join("w106.trace.xz"), "no archive").unwrap();
    failed(&["--traces", dir], &["w106.trace.xz", "cannot read trace"]);
    let output = bench(&["--share", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
