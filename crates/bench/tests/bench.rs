//! `afterglow-bench` as a person at a terminal meets it: tiny runs, judged by their form and not by
//! their speed.

use std::process::{Command, Output};

use afterglow_testkit::fake_backend::{FakeBackend, Faults};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_afterglow-bench")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_killed_and_a_closed_cache_are_found_again_and_reported_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let output = bench(&[
        "recovery",
        "--dir",
        at,
        "--objects",
        "20000",
        "--memory",
        "64MiB",
        "--updates",
        "10000",
        "--runs",
        "1",
        "--json",
        "-",
    ]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    assert_eq!(report["bench"], "recovery");
    let checks = report["checks"].as_array().unwrap();
    for how in ["after clean stop", "after kill -9"] {
        let name = format!("{how}: share found again");
        let found = checks.iter().find(|c| c["name"] == name.as_str()).unwrap();
        assert_eq!(found["holds"], true, "{report:#}");
        assert!(
            checks.iter().any(|c| c["name"] == format!("{how}: first hit, ms").as_str()),
            "{report:#}"
        );
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what it made is gone");
}

#[test]
fn reports_are_written_where_asked_and_flags_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (at, html) = (dir.path().to_str().unwrap(), dir.path().join("report.html"));
    let flags = [
        "--path",
        at,
        "--size",
        "1MiB",
        "--block",
        "4KiB",
        "--depth",
        "2",
        "--seconds",
        "0.02",
        "--runs",
        "1",
    ];
    let output = bench(&[&["device-limit", "--html", html.to_str().unwrap()], &flags[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("2 in flight"), "{}", text(&output.stdout));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && !page.contains("src="), "{page}");

    let output = bench(&["device-limit", "--path", at, "--block", "1000B"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("multiple of 512"), "{}", text(&output.stderr));
}

/// Whether loop devices and a control group that throttles are there, for root alone.
fn may_throttle() -> bool {
    let there = |path: &str| std::path::Path::new(path).exists();
    let throttles = there("/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device")
        || std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
            .is_ok_and(|controllers| controllers.split_whitespace().any(|c| c == "io"));
    let may_write = std::fs::OpenOptions::new().write(true).open("/dev/loop-control").is_ok();
    throttles && may_write
}

#[test]
fn devices_are_measured_and_nothing_is_left_of_them() {
    if !may_throttle() {
        eprintln!("skipped: needs root, loop devices and a control group that throttles");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let flags = ["--size", "64MiB,64MiB", "--iops", "5000,20000", "--fill", "40"];
    let short = ["--seconds", "0.3", "--balance", "0", "--outage", "0", "--json", "-"];
    let output = bench(&[&["devices", "--dir", at], &flags[..], &short[..]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    let set = &report["sections"][1]["series"][0];
    assert_eq!(set["name"], "uniform, at first");
    assert!(set["runs"][0]["operations"].as_u64().unwrap() > 0, "{report:#}");
    let columns = report["grids"][0]["columns"].as_array().unwrap();
    let last = ["free on device 1", "free on device 2", "moved so far, MiB"];
    assert!(columns.len() == 8 && columns[5..] == last, "{report:#}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what it made is gone");
}

/// A tiny run of a benchmark that prints its report, and the report.
fn report(arguments: &[&str]) -> (serde_json::Value, Output) {
    let output = bench(arguments);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    (report, output)
}

/// A tiny run of some parts of the memcached front end's benchmark: its report, and its page, whose
/// folder is otherwise empty again.
fn memcache(parts: &str) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let (at, html) = (dir.path().to_str().unwrap(), dir.path().join("report.html"));
    let sizes =
        ["--size", "8MiB", "--memory", "64MiB", "--dram-memory", "128MiB", "--value", "1KiB"];
    // Sets are measured until they are on flash, which a quick run waits seconds for: one size is
    // enough.
    let few = [
        "--dram-value",
        "100B",
        "--sweep-value",
        "100B",
        "--sweep-connections",
        "2",
        "--connections",
        "4",
        "--extstore-threads",
        "2",
    ];
    let short =
        ["--seconds", "0.1", "--runs", "1", "--json", "-", "--html", html.to_str().unwrap()];
    let arguments =
        [&["memcache", "--parts", parts, "--dir", at][..], &sizes, &few, &short].concat();
    let output = bench(&arguments);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(!page.contains("src="), "{page}");
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "what it made is gone, but for the page"
    );
    (report, page)
}

/// What does not depend on the machine's speed holds, and everything else is there.
fn judge(report: &serde_json::Value, holds: &str, checks: &[&str], sections: &[&str]) {
    let list = |what: &str| report[what].as_array().unwrap().clone();
    let has = |what: &str, name: &str| list(what).iter().any(|item| item["name"] == name);
    let check = list("checks").into_iter().find(|check| check["name"] == holds);
    assert_eq!(
        check.unwrap_or_else(|| panic!("no {holds}: {report:#}"))["holds"],
        true,
        "{report:#}"
    );
    checks.iter().for_each(|name| assert!(has("checks", name), "no {name}: {report:#}"));
    sections.iter().for_each(|name| assert!(has("sections", name), "no {name}: {report:#}"));
}

#[test]
fn the_memcache_front_end_is_measured_on_flash() {
    let (report, _) = memcache("flash");
    let checks = [
        "filling, 1024 B: sets/s until on flash",
        "flash, 1024 B, one outstanding: CPU us per get",
    ];
    judge(&report, "flash, 1024 B, 16 outstanding: hit ratio", &checks, &["filling, 1024 B"]);
}

#[test]
fn the_memcache_front_end_is_measured_under_sets() {
    let (report, _) = memcache("sets");
    judge(&report, "sets sustained: refused", &[], &["sets sustained", "reads beside sets"]);
}

#[test]
fn the_memcache_front_end_is_measured_in_memory_and_what_is_missing_is_said() {
    let (report, _) = memcache("dram");
    let sections = ["DRAM, 100 B, sets of new keys"];
    judge(&report, "DRAM, 100 B, 16-key gets: hit ratio", &[], &sections);
    let checks = report["checks"].as_array().unwrap();
    let peers =
        checks.iter().any(|c| c["name"].as_str().unwrap().ends_with("CPU per get to memcached"));
    let missing = report["missing"].as_array().unwrap();
    let said = missing.iter().any(|m| m.as_str().unwrap().contains("memcached is missing"));
    assert!(
        peers != said,
        "either there is a memcached or it is said that there is none: {report:#}"
    );
}

#[test]
fn the_memcache_front_end_is_measured_in_sweeps() {
    let (report, page) = memcache("sweep");
    let names = report["sections"].as_array().unwrap();
    assert!(
        names.iter().any(|section| section["name"] == "sweep over sizes of values"),
        "{report:#}"
    );
    assert_eq!(report["plots"].as_array().unwrap().len(), 8);
    for plot in ["Throughput over sizes of values", "CPU of the server over sizes of values"] {
        assert!(page.contains(plot), "{page}");
    }
}

#[test]
fn what_counts_of_the_cql_front_end_is_reported_and_what_does_not_is_told_with_the_reason() {
    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (at, contact) = (dir.path().to_str().unwrap(), database.address().to_string());
    let sizes = ["--rows", "50", "--large-rows", "50", "--size", "64MiB", "--light", "100"];
    let short = ["--seconds", "0.2", "--runs", "2", "--json", "-"];
    let output =
        bench(&[&["cql", "--backend", &contact, "--dir", at][..], &sizes, &short].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    let runs = |section: &str, at: usize| {
        let found = report["sections"].as_array().unwrap().iter().find(|s| s["name"] == section);
        let found = found.unwrap_or_else(|| panic!("no {section}: {report:#}"));
        found["series"][at]["runs"].as_array().unwrap().len()
    };
    for at in [0, 1, 2] {
        assert_eq!(runs("Passing through, at half of the database's maximum", at), 2);
        assert_eq!(runs("Passing through, flat out", at), 2);
    }
    assert_eq!(runs("Hits under light load", 0), 2, "{report:#}");
    // So few large rows fit into DRAM.
    assert_eq!(runs("Hits under light load", 1), 0);
    assert_eq!(runs("Rejected", 0), 1);
    let told = report["missing"].as_array().unwrap().iter().map(|m| m.as_str().unwrap());
    assert!(
        told.clone().any(|m| m.contains("flash") && m.contains("what was read was not that")),
        "{report:#}"
    );
    let checks = report["checks"].as_array().unwrap();
    let flash = checks.iter().find(|c| c["name"] == "flash hit under light load, p50, us").unwrap();
    assert_eq!(
        (&flash["holds"], &flash["from"]),
        (&false.into(), &"not measured: no run counts".into())
    );
    assert_eq!(checks.len(), 7);
    assert_eq!(output.status.code(), Some(1), "a target was missed");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what it made is gone");
}

/// Loads on a fake database and through Afterglow: the report, and its page.
fn loads(names: &str) -> (serde_json::Value, String) {
    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (at, html) = (dir.path().to_str().unwrap(), dir.path().join("report.html"));
    let contact = database.address().to_string();
    let arguments = ["cql", "--backend", &contact, "--dir", at, "--workload", names];
    let sizes = ["--records", "2000", "--large-rows", "200", "--memory", "64MiB,128MiB"];
    let short = ["--size", "64MiB", "--seconds", "0.2", "--runs", "1", "--warm", "0.4"];
    let out = ["--json", "-", "--html", html.to_str().unwrap()];
    let (report, output) = report(&[&arguments[..], &sizes, &short, &out].concat());
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(&html).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "all but the page is gone");
    (report, page)
}

/// The figures of a row of a table, by the names of their columns.
fn row(report: &serde_json::Value, name: &str, row: &str) -> impl Fn(&str) -> Option<f64> + use<> {
    let grids = report["grids"].as_array().unwrap();
    let grid = grids.iter().find(|grid| grid["name"] == name);
    let grid = grid.unwrap_or_else(|| panic!("no {name}: {report:#}")).clone();
    let rows = grid["rows"].as_array().unwrap();
    let cells = rows.iter().find(|r| r[0] == row).unwrap_or_else(|| panic!("no {row}: {grid:#}"));
    let cells = cells[1].clone();
    move |column| {
        let columns = grid["columns"].as_array().unwrap();
        let at = columns.iter().position(|c| c == column);
        cells[at.unwrap_or_else(|| panic!("no {column}: {grid:#}"))].as_f64()
    }
}

#[test]
fn workloads_are_measured_directly_and_through_afterglow_and_every_read_is_right() {
    let (report, page) = loads("a,b,c,d,f");
    // A fake database reads slices too slowly.
    let workloads = ["YCSB A", "YCSB B", "YCSB C", "YCSB D", "YCSB F"];
    for workload in workloads {
        for memory in ["64 MiB", "128 MiB"] {
            let name = format!("{workload}, {memory}");
            let direct = row(&report, "Full speed", &format!("{name}: directly"));
            let through = row(&report, "Full speed", &format!("{name}: Afterglow"));
            for side in [&direct, &through] {
                assert!(side("op/s").unwrap() > 0.0 && side("p99").unwrap() > 0.0, "{name}");
                assert_eq!(side("errors"), Some(0.0), "{name}: {report:#}");
            }
            let ratio = through("op/s").unwrap() / direct("op/s").unwrap();
            assert!((through("to direct").unwrap() / ratio - 1.0).abs() < 0.01, "{name}");
            let hits = through("DRAM hits %").unwrap() + through("flash hits %").unwrap();
            assert!(hits > 10.0 && direct("DRAM hits %").is_none(), "{name}: {hits}");
            assert!(through("CPU of Afterglow, us/op").unwrap() > 0.0);
        }
        let half = format!("{workload}, 64 MiB, half: Afterglow");
        assert!(row(&report, "Half of the database's highest rate", &half)("mean us").is_some());
    }
    judge(
        &report,
        "operations that failed",
        &["YCSB C: throughput to direct, least memory"],
        &["YCSB C, 64 MiB"],
    );
    let plots = report["plots"].as_array().unwrap();
    assert_eq!(plots.len(), 2);
    assert!(plots.iter().all(|plot| plot["lines"].as_array().unwrap().len() == workloads.len()));
    assert!(page.contains("by hits from DRAM") && !page.contains("NaN"), "{page}");
}

#[test]
fn large_rows_are_measured_in_an_open_loop() {
    let (report, _) = loads("large");
    let through = row(&report, "Rows of 4 KB", "4 KB, 64 MiB, own core: Afterglow");
    assert_eq!(through("errors"), Some(0.0), "{report:#}");
    let name = "4 KB, 128 MiB, own core: p99.9 to direct";
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == name), "{report:#}");
}
