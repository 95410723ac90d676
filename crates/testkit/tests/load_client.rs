//! The load client against the fake backend: it loads what it should, measures, and notices what is
//! wrong.

use std::time::Duration;

use afterglow_cql::{frame::Version, message::Consistency};
use afterglow_loadgen::{
    cql::{
        ConnectOptions, Connection,
        load::{LoadOptions, load},
        owned,
        run::{RunOptions, Verify, Warm, run},
        table::TableSpec,
    },
    result::{LoadShape, RunResult},
    ycsb::{Distribution, Workload},
};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};

const RECORDS: u64 = 500;

fn backend(faults: Faults) -> FakeBackend {
    FakeBackend::start("127.0.0.1:0".parse().unwrap(), faults).unwrap()
}

fn table() -> TableSpec {
    TableSpec {
        keyspace: "ycsb".into(),
        table: "usertable".into(),
        records: RECORDS,
        fields: 3,
        field_size: 100,
        zeros: 40,
        partition_rows: 0,
        newest_first: false,
    }
}

fn connect(version: Version) -> ConnectOptions {
    ConnectOptions { version, ..ConnectOptions::default() }
}

fn load_all(backend: &FakeBackend) {
    load_table(backend, &table());
}

fn load_table(backend: &FakeBackend, table: &TableSpec) {
    let options = LoadOptions {
        table: table.clone(),
        hosts: vec![backend.address().to_string()],
        connect: connect(Version::V4),
        create: true,
        consistency: Consistency::One,
        threads: 2,
        connections: 2,
        in_flight: 8,
        attempts: 20,
    };
    assert_eq!(load(&options, |_| ()).unwrap().records, table.records);
}

fn options(backend: &FakeBackend, version: Version) -> RunOptions {
    RunOptions {
        label: "test".into(),
        scenario: "test".into(),
        load: LoadShape {
            table: table(),
            distribution: Distribution::Sequential,
            hot_set: 0.2,
            read_ratio: 1.0,
            workload: None,
            threads: 1,
            connections: 2,
            in_flight: 8,
            rate: None,
            seed: 1,
        },
        hosts: vec![backend.address().to_string()],
        owned: false,
        connect: connect(version),
        consistency: Consistency::One,
        reconnect: false,
        poisson: false,
        polls: false,
        warm: Warm::For(Duration::ZERO),
        duration: Duration::from_secs(60),
        operations: Some(2 * RECORDS),
        verify: Verify::All,
        watch: Vec::new(),
        metrics: None,
    }
}

/// An open loop on a loaded backend whose answers take 4 ms on average.
fn slow_open_loop(rate: f64) -> (FakeBackend, RunOptions) {
    let backend = backend(Faults::default());
    load_all(&backend);
    backend.set_faults(Faults { delay: Duration::from_millis(4), ..Faults::default() });
    let mut settings = options(&backend, Version::V4);
    settings.load.rate = Some(rate);
    settings.operations = None;
    (backend, settings)
}

fn measure(options: &RunOptions) -> RunResult {
    run(options, |_| ()).unwrap()
}

#[test]
fn every_record_loaded_is_read_back_and_verified_in_both_versions() {
    let backend = backend(Faults::default());
    load_all(&backend);
    for version in [Version::V4, Version::V5] {
        let result = measure(&options(&backend, version));
        assert!(result.is_clean(), "{:?}", result.errors);
        assert_eq!((result.operations, result.verified), (2 * RECORDS, 2 * RECORDS));
        assert_eq!(result.reads.count, 2 * RECORDS);
        assert_eq!(result.timeline.iter().map(|s| s.operations).sum::<u64>(), 2 * RECORDS);
        assert!(result.reads.p50_us > 0.0 && result.reads.max_us >= result.reads.p50_us);
    }
}

#[test]
fn a_load_repeats_what_timed_out_until_all_is_there() {
    let backend = backend(Faults { write_timeouts: 0.2, seed: 3, ..Faults::default() });
    load_all(&backend);
    assert!(backend.statements() > RECORDS + 50, "nothing was repeated");
    backend.set_faults(Faults::default());
    assert!(measure(&options(&backend, Version::V4)).is_clean());
}

#[test]
fn updates_keep_records_verifiable() {
    let backend = backend(Faults::default());
    load_all(&backend);
    let mut mixed = options(&backend, Version::V4);
    mixed.load.read_ratio = 0.5;
    mixed.load.distribution = Distribution::Zipfian;
    let result = measure(&mixed);
    assert!(result.is_clean(), "{:?}", result.errors);
    assert!(result.writes.count > RECORDS / 2 && result.reads.count > RECORDS / 2);
    assert!(measure(&options(&backend, Version::V4)).is_clean());
}

/// A run of a workload on records that it may add to, and how many there are then.
fn workload(backend: &FakeBackend, table: &TableSpec, which: Workload) -> RunResult {
    let mut settings = options(backend, Version::V4);
    settings.load.workload = Some(which);
    settings.load.distribution = which.distribution();
    settings.load.table = table.clone();
    settings.load.threads = 2;
    measure(&settings)
}

#[test]
fn every_workload_of_rows_is_done_and_verified() {
    let backend = backend(Faults::default());
    load_all(&backend);
    let mut table = table();
    use Workload::{A, B, C, D, F, Inserts};
    for which in [A, B, C, D, F, Inserts] {
        let before = backend.statements();
        let result = workload(&backend, &table, which);
        assert!(result.is_clean(), "{which}: {:?}", result.errors);
        assert_eq!((result.operations, result.all.count), (2 * RECORDS, 2 * RECORDS), "{which}");
        let (reads, writes) = (result.reads.count, result.writes.count);
        // A read-modify-write reads first, and is one operation.
        let read_first = if which == F { writes } else { 0 };
        assert_eq!(result.verified, reads + read_first, "{which}");
        assert!(backend.statements() >= before + 2 * RECORDS + read_first, "{which}");
        let few = 2 * RECORDS / 10;
        match which {
            A | F => assert!(writes > 3 * few && reads > 3 * few, "{writes}"),
            C => assert_eq!(writes, 0),
            Inserts => assert_eq!(reads, 0),
            _ => assert!((1..few).contains(&writes), "{which}: {writes}"),
        }
        let added = if matches!(which, D | Inserts) { writes } else { 0 };
        assert_eq!(result.records, table.records + added, "{which}");
        table.records = result.records;
    }
}

/// Records in partitions of several rows, loaded.
fn clustered(backend: &FakeBackend, newest_first: bool) -> TableSpec {
    let table = TableSpec {
        table: if newest_first { "feeds" } else { "scans" }.into(),
        records: 600,
        fields: 1,
        field_size: 20,
        partition_rows: if newest_first { 60 } else { 128 },
        newest_first,
        ..table()
    };
    load_table(backend, &table);
    table
}

#[test]
fn every_row_of_a_slice_is_verified_and_that_none_is_missing() {
    let backend = backend(Faults::default());
    for (which, newest_first) in [(Workload::E, false), (Workload::Feed, true)] {
        let mut table = clustered(&backend, newest_first);
        for _ in 0..2 {
            let result = workload(&backend, &table, which);
            assert!(result.is_clean(), "{which}: {:?}", result.errors);
            assert_eq!(result.verified, result.reads.count, "{which}");
            assert!(result.writes.count > 0 && result.reads.count > result.writes.count);
            assert_eq!(result.records, table.records + result.writes.count, "{which}");
            if which == Workload::E {
                table.records = result.records;
            } else {
                // Feeds are asked how long they are.
                let again = workload(&backend, &table, which);
                assert_eq!(again.records, result.records + again.writes.count);
                break;
            }
        }
        let mut connection =
            Connection::open(&backend.address().to_string(), &connect(Version::V4)).unwrap();
        let gone = format!("ycsb.{} WHERE y_id = 'user6284781860667377211'", table.table);
        for row in 40..60 {
            let text = format!("DELETE FROM {gone} AND c = {row}");
            connection.query(&text, Consistency::One).unwrap();
        }
        let errors = workload(&backend, &table, which).errors;
        assert!(errors.wrong > 0, "{which}: {errors:?}");
    }
}

#[test]
fn one_wrong_byte_and_one_missing_row_are_found() {
    let backend = backend(Faults::default());
    load_all(&backend);
    let mut connection =
        Connection::open(&backend.address().to_string(), &connect(Version::V4)).unwrap();
    let rows =
        connection.query("SELECT y_id, field1 FROM ycsb.usertable", Consistency::One).unwrap();
    let key = |i: usize| String::from_utf8(rows[i][0].clone().unwrap()).unwrap();
    let mut value = rows[7][1].clone().unwrap();
    value[50] ^= 1;
    let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
    let damage = format!("UPDATE ycsb.usertable SET field1 = 0x{hex} WHERE y_id = '{}'", key(7));
    connection.query(&damage, Consistency::One).unwrap();
    connection
        .query(&format!("DELETE FROM ycsb.usertable WHERE y_id = '{}'", key(8)), Consistency::One)
        .unwrap();
    let result = measure(&options(&backend, Version::V4));
    assert_eq!((result.errors.wrong, result.errors.not_found), (2, 2), "each record is read twice");
    assert!(!result.is_clean());
}

#[test]
fn broken_connections_end_a_run_unless_told_to_go_on() {
    let backend = backend(Faults::default());
    load_all(&backend);
    backend.set_faults(Faults { drops: 0.01, seed: 5, ..Faults::default() });
    let mut settings = options(&backend, Version::V4);
    assert!(run(&settings, |_| ()).unwrap_err().to_string().contains("lost"));
    settings.reconnect = true;
    let result = measure(&settings);
    assert!(result.errors.lost > 0 && result.errors.reconnects > 0, "{:?}", result.errors);
    assert_eq!(result.errors.wrong, 0);
    assert!(result.operations > RECORDS);
}

#[test]
fn an_open_loop_sends_at_its_rate_and_says_what_it_could_not_send() {
    // One request at a time that takes 4 ms on average cannot be done 2000 times a second.
    let (_backend, mut settings) = slow_open_loop(2000.0);
    (settings.load.connections, settings.load.in_flight) = (1, 1);
    settings.duration = Duration::from_millis(500);
    let result = measure(&settings);
    assert!(result.errors.unsent > 100, "{:?}", result.errors);
    assert!(
        result.reads.p99_us > 4.0 * result.service.p50_us,
        "latency counts from the intended start"
    );
}

#[test]
fn an_open_loop_counts_nothing_that_its_warm_up_had_under_way() {
    let (_backend, mut settings) = slow_open_loop(1.0);
    (settings.warm, settings.duration) =
        (Warm::For(Duration::from_millis(50)), Duration::from_millis(100));
    let result = measure(&settings);
    let due = 1 + result.seconds as u64;
    assert!((1..=due).contains(&result.operations), "{} of {due}", result.operations);
}

#[test]
fn errors_say_what_to_do() {
    let closed = "127.0.0.1:1";
    let error = Connection::open(closed, &connect(Version::V4)).unwrap_err().to_string();
    assert!(error.contains(closed) && error.contains("is the server up"), "{error}");
    let backend = backend(Faults::default());
    let error = run(&options(&backend, Version::V4), |_| ()).unwrap_err().to_string();
    assert!(error.contains("usertable does not exist"), "{error}");
}

#[test]
fn each_record_is_asked_of_the_node_that_owns_it() {
    let first = backend(Faults::default());
    let second = first.join().unwrap();
    load_all(&first);
    let mut all = Vec::new();
    for node in [&first, &second] {
        let mut connection =
            Connection::open(&node.address().to_string(), &connect(Version::V4)).unwrap();
        let numbers = owned(&mut connection, RECORDS).unwrap();
        assert!(numbers.len() > 10, "each has some: {}", numbers.len());
        // Each of them once: `judge` knows which row belongs to which key.
        let operations = Some(numbers.len() as u64);
        let settings = RunOptions { owned: true, operations, ..options(node, Version::V4) };
        let before = node.reads();
        let result = measure(&settings);
        assert!(result.is_clean(), "{:?}", result.errors);
        assert_eq!((result.operations, result.verified), (numbers.len() as u64, result.operations));
        assert!(node.reads() >= before + result.operations);
        all.extend(numbers);
    }
    all.sort_unstable();
    assert_eq!(all, (0..RECORDS).collect::<Vec<_>>(), "each record has one owner");
}
