//! The benchmarks in their shortest forms: what they report, and the figures that do not depend on
//! the machine.

use std::path::Path;

use afterglow_bench::{Report, device, engine};

fn check<'r>(report: &'r Report, name: &str) -> &'r afterglow_bench::Check {
    let found = report.checks.iter().find(|c| c.name.contains(name));
    found.unwrap_or_else(|| panic!("no check is named {name}: {}", report.text()))
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn the_device_is_read_at_every_size_and_depth_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = device::LimitOptions {
        path: dir.path().into(),
        size: 1 << 20,
        blocks: vec![4096, 65536],
        depths: vec![1, 8],
        seconds: 0.02,
        runs: 2,
        fio: None,
    };
    let report = device::limit(&options).unwrap();
    assert_eq!(report.sections.len(), 2);
    for series in report.sections.iter().flat_map(|s| &s.series) {
        assert_eq!(series.runs.len(), 2);
        assert!(
            series.runs.iter().all(|r| r.operations > 0 && r.latency.p50_us > 0.0),
            "{series:?}"
        );
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn gets_are_measured_beside_the_device_and_each_hit_is_one_read() {
    let dir = tempfile::tempdir().unwrap();
    let options = engine::EngineOptions {
        dir: dir.path().into(),
        size: 64 << 20,
        memory: 32 << 20,
        values: vec![1000],
        depth: 8,
        threads: vec![2],
        seconds: 0.05,
        runs: 2,
    };
    let report = engine::engine(&options).unwrap();
    let names: Vec<_> = report.sections.iter().map(|s| (s.name.as_str(), s.series.len())).collect();
    assert_eq!(
        names,
        [("1000 B, submitted", 3), ("1000 B, blocking", 2), ("1000 B, DRAM hits", 1)]
    );
    assert!(
        report
            .sections
            .iter()
            .flat_map(|s| &s.series)
            .flat_map(|s| &s.runs)
            .all(|r| r.operations > 0)
    );
    assert!(check(&report, "device reads per hit").holds, "{}", report.text());
    assert!(is_empty(dir.path()));
}
