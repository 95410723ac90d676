//! Rows of which few fit into memory: those that are written are on flash most of the time.

use std::thread;
use std::time::{Duration, Instant};

use afterglow_testkit::fake_backend::Faults;
use afterglow_testkit::history::{History, HistoryOptions, check};
use tempfile::TempDir;

use crate::node::{Setup, database, direct};

#[test]
fn no_read_is_stale_where_rows_on_flash_follow_their_writes() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "history.*=exclusive");
    (setup.hold, setup.memory) = (Duration::from_millis(20), 1 << 20);
    let node = setup.start();
    let options = HistoryOptions {
        hosts: vec![node.address.to_string()],
        keys: 400,
        readers: 4,
        writers: 3,
        deletes: 0.02,
        value_bytes: (4_000, 9_000),
        ..HistoryOptions::default()
    };
    let keyspace = "CREATE KEYSPACE history WITH replication = \
                    {'class': 'SimpleStrategy', 'replication_factor': 1}";
    direct(&database, keyspace);
    options.create_table().unwrap();
    database.set_faults(Faults {
        delay: Duration::from_micros(500),
        write_timeouts: 0.005,
        seed: 11,
        ..Faults::default()
    });
    let history = History::start(options);
    let give_up = Instant::now() + Duration::from_secs(600);
    while history.reads().min(3 * history.writes()) < 9_000 {
        assert!(Instant::now() < give_up, "stuck at {} reads", history.reads());
        thread::sleep(Duration::from_millis(5));
    }
    let from_flash = node.count(&["afterglow_hits_total", "tier=\"flash\""]);
    let updated = node.count(&["write_outcomes_total", "updated"]);
    // What was read for writes were no hits.
    let for_writes = node.device_reads().saturating_sub(from_flash);
    let verdict = check(&history.finish().unwrap()).unwrap();
    assert!(verdict.violations.is_empty(), "{:?}", &verdict.violations[..1]);
    assert!(verdict.unknown > 0, "{verdict:?}");
    let shown = from_flash > 500 && for_writes > 100 && updated > 300;
    assert!(shown, "{from_flash} hits of flash, {for_writes} reads for writes, {updated} updates");
    node.stop();
}
