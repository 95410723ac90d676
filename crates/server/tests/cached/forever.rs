//! Many clients at once, faults, silent nodes, crashes, other holders of the lease. No read is ever
//! older than an acknowledged write, and none waits for a silent node.
//!
//! Holders that change while writes are missing on copies of a row: see `holders.rs`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use afterglow::frontend::cql::cached::Times;
use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::{ConnectOptions, Connection};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};
use afterglow_testkit::history::{History, HistoryOptions, check};
use tempfile::TempDir;

use crate::node::{Setup, database, direct, wait_until};

/// How long clients wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What a run left. Reads of flash that are cut off keep their file, and its lock, as long as the
/// process lives. In reality a run that is killed takes its process with it.
fn copy_of(directory: &TempDir) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Reads rows that nobody has read before, each until it is answered. A connection that owes
/// answers is given up after 30 s: a read that waits for that is found.
struct Cold {
    address: SocketAddr,
    name: String,
    client: Option<Connection>,
}

impl Cold {
    fn read(&mut self, number: u32) {
        let text = format!("SELECT v FROM history.history WHERE k = '{}-{number}'", self.name);
        let late = Instant::now() + Duration::from_secs(15);
        while !self.try_read(&text) {
            assert!(Instant::now() < late, "{text}: not answered while a node stands still");
        }
    }

    fn try_read(&mut self, text: &str) -> bool {
        if self.client.is_none() {
            let options = ConnectOptions { timeout: TIMEOUT, ..ConnectOptions::default() };
            self.client = Connection::open(&self.address.to_string(), &options).ok();
        }
        let read = self
            .client
            .as_mut()
            .is_some_and(|link| link.query(text, Consistency::LocalQuorum).is_ok());
        if !read {
            self.client = None;
        }
        read
    }
}

/// Has a node stand still while many read, and until each has read more.
fn stand_still(node: &FakeBackend, address: SocketAddr, part: u64) {
    let (read, is_frozen) = (AtomicU32::new(0), AtomicBool::new(false));
    let one = |reader: u32| {
        let mut cold = Cold { address, name: format!("cold-{part}-{reader}"), client: None };
        let (mut number, mut more) = (0, 10);
        while more > 0 {
            more -= u32::from(is_frozen.load(Ordering::SeqCst));
            cold.read(number);
            read.fetch_add(1, Ordering::SeqCst);
            number += 1;
        }
    };
    thread::scope(|threads| {
        let one = &one;
        let readers: Vec<_> = (0..8).map(|reader| threads.spawn(move || one(reader))).collect();
        wait_until("they read", || read.load(Ordering::SeqCst) > 40);
        let _frozen = node.freeze();
        is_frozen.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn no_read_is_stale_across_faults_and_crashes() {
    let (database, mut directory) = (database(), TempDir::new().unwrap());
    let other = database.join().unwrap();
    let mut setup = Setup::new(directory.path(), &database, "history.*=exclusive");
    setup.hold = Duration::from_millis(20);
    // Another holder has to wait for the end of the lease.
    setup.times = Times {
        lease: Duration::from_secs(2),
        margin: Duration::from_millis(500),
        weak_max_age: Duration::from_secs(2),
        ..Times::default()
    };
    let mut node = setup.start();
    // Clients come back to the same address.
    setup.listen = node.address;
    let options = HistoryOptions {
        hosts: vec![node.address.to_string()],
        connect: ConnectOptions { timeout: TIMEOUT, ..ConnectOptions::default() },
        keys: 12,
        readers: 4,
        writers: 2,
        deletes: 0.1,
        value_bytes: (8, 300),
        ..HistoryOptions::default()
    };
    // Each node has each row, so that there is another one to ask.
    let keyspace = "CREATE KEYSPACE history WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}";
    direct(&database, keyspace);
    options.create_table().unwrap();
    database.set_faults(Faults {
        delay: Duration::from_micros(200),
        write_timeouts: 0.01,
        drops: 0.002,
        seed: 7,
        ..Faults::default()
    });
    let history = History::start(options);
    let give_up = Instant::now() + Duration::from_secs(600);
    let (mut hits, mut updated) = (0, 0);
    for part in 1..=4u64 {
        while history.reads().min(4 * history.writes()) < part * 1_500 {
            assert!(Instant::now() < give_up, "stuck at {} reads", history.reads());
            std::thread::sleep(Duration::from_millis(5));
        }
        stand_still([&database, &other][part as usize % 2], node.address, part);
        hits += node.hits();
        updated += node.count(&["write_outcomes_total", "updated"]);
        match part {
            1 | 3 => node.crash(),
            2 => node.stop(),
            _ => break,
        }
        directory = match part {
            // Another instance, for all that the database can tell.
            3 => TempDir::new().unwrap(),
            _ => copy_of(&directory),
        };
        setup.directory = directory.path().to_owned();
        node = setup.start();
    }
    database.set_faults(Faults::default());
    let events = history.finish().unwrap();
    let verdict = check(&events).unwrap();
    assert!(verdict.violations.is_empty(), "{:?}", &verdict.violations[..1]);
    assert!(verdict.reads >= 6_000 && verdict.unknown > 0, "{verdict:?}");
    assert!(hits > 500, "only {hits} hits: nothing was put to the test");
    assert!(updated > 50, "only {updated} rows followed a write");
}
