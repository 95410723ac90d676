//! Many clients at once, faults, crashes: no read is ever older than what was acknowledged.

use std::time::{Duration, Instant};

use afterglow_workload::fake_backend::Faults;
use afterglow_workload::history::{History, HistoryOptions, check};
use tempfile::TempDir;

use crate::node::{Setup, database};

/// What a run left. Reads of flash that are cut off keep their file, and its lock, as long as the process lives; a run that is killed takes
/// its process with it.
fn copy_of(directory: &TempDir) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[test]
fn no_read_is_stale_across_faults_and_crashes() {
    let (database, mut directory) = (database(), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "history.*=exclusive");
    setup.hold = Duration::from_millis(20);
    let mut node = setup.start();
    // Clients come back to the same address.
    setup.listen = node.address;
    let options = HistoryOptions {
        hosts: vec![node.address.to_string()],
        keys: 12,
        readers: 4,
        writers: 2,
        deletes: 0.1,
        value_bytes: (8, 300),
        ..HistoryOptions::default()
    };
    options.create_table().unwrap();
    database.set_faults(Faults {
        delay: Duration::from_micros(200),
        write_timeouts: 0.01,
        drops: 0.002,
        seed: 7,
        ..Faults::default()
    });
    let history = History::start(options);
    let give_up = Instant::now() + Duration::from_secs(40);
    let mut hits = 0;
    for part in 1..=3u64 {
        while history.reads().min(4 * history.writes()) < part * 1_500 {
            assert!(Instant::now() < give_up, "stuck at {} reads", history.reads());
            std::thread::sleep(Duration::from_millis(5));
        }
        hits += node.hits();
        if part == 1 {
            node.crash();
            directory = copy_of(&directory);
            setup.directory = directory.path().to_owned();
            node = setup.start();
        } else if part == 2 {
            node.stop();
            directory = copy_of(&directory);
            setup.directory = directory.path().to_owned();
            node = setup.start();
        }
    }
    database.set_faults(Faults::default());
    let events = history.finish().unwrap();
    let verdict = check(&events).unwrap();
    assert!(verdict.violations.is_empty(), "{:?}", &verdict.violations[..1]);
    assert!(verdict.reads >= 4_500 && verdict.unknown > 0, "{verdict:?}");
    assert!(hits > 500, "only {hits} hits: nothing was put to the test");
}
