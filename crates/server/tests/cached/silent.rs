//! A silent node of the database: it keeps its connections and answers nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use afterglow_cql::frame::Version;
use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::{ConnectOptions, Connection};
use afterglow_testkit::fake_backend::{FakeBackend, StatementKind};
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, database, database_that_may_be_mute, one_text, wait_until};

const CLIENTS: usize = 8;

/// Each client reads rows that nobody has read before; one that is not answered panics long before
/// the connection would be given up.
fn read_cold(clients: &mut [Client], part: &str) {
    thread::scope(|threads| {
        for (number, client) in clients.iter_mut().enumerate() {
            threads.spawn(move || {
                for n in 0..8 {
                    let key = format!("{part}-{number}-{n}");
                    let read = format!("SELECT v FROM two.t WHERE k = '{key}'");
                    assert_eq!(one_text(client.run(&read)), Some(key));
                }
            });
        }
    });
}

fn put(database: &FakeBackend, part: &str) {
    let options = ConnectOptions::default();
    let mut direct = Connection::open(&database.address().to_string(), &options).unwrap();
    for key in (0..CLIENTS).flat_map(|number| (0..8).map(move |n| format!("{part}-{number}-{n}"))) {
        let insert = format!("INSERT INTO two.t (k, v) VALUES ('{key}', '{key}')");
        direct.query(&insert, Consistency::One).unwrap();
    }
}

#[test]
fn reads_are_answered_and_cached_while_a_node_stands_still() {
    let directory = TempDir::new().unwrap();
    let (database, other, node, mut clients) = two_nodes(&directory);
    for (part, still) in [("first", &other), ("second", &database)] {
        let (asked, fills) =
            (still.reads(), node.count(&["afterglow_fills_total", "\"installed\""]));
        let frozen = still.freeze();
        read_cold(&mut clients, part);
        let rows = 8 * CLIENTS as u64;
        assert_eq!(node.count(&["afterglow_fills_total", "\"installed\""]) - fills, rows, "{part}");
        let hits = node.hits();
        read_cold(&mut clients, part);
        assert_eq!(node.hits() - hits, rows, "{part}");
        drop(frozen);
        wait_until("it is seen to have been asked", || still.reads() > asked);
    }
}

/// A database of two nodes with a table that both have, an Afterglow before it, and clients whose
/// requests have gone to both.
fn two_nodes(directory: &TempDir) -> (FakeBackend, FakeBackend, Node, Vec<Client>) {
    let database = database();
    let other = database.join().unwrap();
    let mut direct =
        Connection::open(&database.address().to_string(), &ConnectOptions::default()).unwrap();
    for text in [
        "CREATE KEYSPACE two WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}",
        "CREATE TABLE two.t (k text PRIMARY KEY, v text)",
    ] {
        direct.query(text, Consistency::One).unwrap();
    }
    ["calm", "first", "second"].iter().for_each(|part| put(&database, part));
    let node = Setup::new(directory.path(), &database, "two.*=max-staleness=1h").start();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| node.client(Version::V5)).collect();
    read_cold(&mut clients, "calm");
    assert!(database.reads() > 0 && other.reads() > 0, "both nodes are asked");
    (database, other, node, clients)
}

#[test]
fn a_driver_learns_the_cluster_while_the_first_node_stands_still() {
    let directory = TempDir::new().unwrap();
    let (database, _other, node, mut clients) = two_nodes(&directory);
    let client = &mut clients[0];
    let local = "SELECT cluster_name FROM system.local";
    let before = one_text(client.run(local));
    let _frozen = database.freeze();
    for table in ["system.local", "system.peers", "system.local"] {
        client.run(&format!("SELECT * FROM {table}"));
    }
    assert_eq!(one_text(client.run(local)), before);
    assert_eq!(one_text(node.client(Version::V5).run(local)), before, "and one that comes anew");
}

/// Nobody knows that it stands still: a PREPARE is the first that it does not answer.
#[test]
fn a_statement_is_prepared_by_another_node_while_one_stands_still() {
    let directory = TempDir::new().unwrap();
    let (_database, other, node, mut clients) = two_nodes(&directory);
    let frozen = other.freeze();
    for n in 0..4 {
        clients[0].prepare(&format!("SELECT v FROM two.t WHERE k ={:n$}?", ""));
    }
    // A refusal is told too, though the other node might have taken it.
    for n in 0..4 {
        let text = format!("SELECT nothing FROM two.t WHERE k ={:n$}?", "");
        assert!(clients[0].raw().prepare(&text).is_err(), "{text}");
    }
    // No connection was given up for that.
    assert_eq!(node.count(&["afterglow_repeated_reads_total"]), 0);
    drop(frozen);
}

#[test]
fn what_has_no_partition_goes_past_a_node_that_is_known_to_stand_still() {
    let directory = TempDir::new().unwrap();
    let (database, other, _node, mut clients) = two_nodes(&directory);
    for (part, still) in [("first", &other), ("second", &database)] {
        let asked = still.reads();
        let frozen = still.freeze();
        // It is asked, and silent when these reads have been answered by the other one.
        read_cold(&mut clients, part);
        let client = &mut clients[0];
        for n in 0..8 {
            let prepared = client.prepare(&format!("SELECT v FROM two.t WHERE k ={:n$}?", ""));
            let key = format!("{part}-0-0");
            assert_eq!(one_text(client.execute(&prepared, &[&key])), Some(key));
            assert!(!client.run("SELECT v FROM two.t").is_empty());
            client.run(["USE two", "USE ks"][n % 2]);
        }
        drop(frozen);
        wait_until("it is seen to have been asked", || still.reads() > asked);
    }
}

#[test]
fn the_lease_is_kept_while_the_first_node_answers_no_transaction() {
    let (mute, directory) = (Arc::<AtomicBool>::default(), TempDir::new().unwrap());
    let database = database_that_may_be_mute("afterglow.lease", &mute);
    let _other = database.join().unwrap();
    let mut setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    (setup.times.lease, setup.times.margin) = (Duration::from_secs(9), Duration::from_millis(500));
    let node = setup.start();
    let renewed = || node.count(&["afterglow_lease_events_total", "\"renewed\""]);
    let before = renewed();
    mute.store(true, Ordering::SeqCst);
    wait_until("the lease is renewed through the other node", || renewed() > before + 1);
}

#[test]
fn a_write_that_comes_late_to_a_table_made_again_with_other_keys_is_seen() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let other = database.join().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let (mut writer, mut reader) = (node.client(Version::V5), node.client(Version::V5));
    reader.run("CREATE TABLE ks.pair (a text, b text, v text, PRIMARY KEY (a, b))");
    let of = |node: &FakeBackend| {
        let mut keys = (0..).map(|n| format!("k{n}"));
        keys.find(|key| database.owner(key.as_bytes()) == node.address()).unwrap()
    };
    let (a, b) = (of(&other), of(&database));
    let insert = |v| format!("INSERT INTO ks.pair (a, b, v) VALUES ('{a}', '{b}', '{v}')");
    // Its connection to that node is there from now on.
    writer.run(&insert("old"));
    let writes = ["afterglow_writes_total"];
    let begun = node.count(&writes);
    let frozen = other.freeze();
    let read = format!("SELECT v FROM ks.pair WHERE a = '{a}' AND b = '{b}'");
    thread::scope(|threads| {
        let write = threads.spawn(|| writer.run(&insert("new")));
        wait_until("the write is on its way", || node.count(&writes) > begun);
        reader.run("DROP TABLE ks.pair");
        reader.run("CREATE TABLE ks.pair (a text, b text, v text, PRIMARY KEY (b, a))");
        assert_eq!(one_text(reader.run(&read)), None);
        drop(frozen);
        write.join().unwrap();
    });
    assert_eq!(one_text(reader.run(&read)).as_deref(), Some("new"));
}

#[test]
fn a_read_that_was_passed_on_is_sent_again_when_its_node_is_lost_and_a_write_is_not() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let mut writer = node.client(Version::V4);
    writer.put("a", "v");
    // Each version has a connection to the database of its own.
    for version in [Version::V3, Version::V4, Version::V5] {
        let mut client = node.client(version);
        let scan = client.prepare("SELECT v FROM ks.t WHERE v = ? ALLOW FILTERING");
        for prepared in [false, true] {
            let (asked, held) = (database.reads(), database.hold(StatementKind::Read));
            thread::scope(|threads| {
                let client = &mut client;
                let scan = &scan;
                let read = threads.spawn(move || match prepared {
                    true => client.execute(scan, &["v"]),
                    false => client.run("SELECT v FROM ks.t"),
                });
                held.wait_for(1);
                database.hang_up();
                held.wait_for(2);
                drop(held);
                assert_eq!(one_text(read.join().unwrap()).as_deref(), Some("v"), "{version:?}");
            });
            assert_eq!(database.reads() - asked, 2, "{version:?}");
        }
    }
    let repeated = || node.count(&["afterglow_repeated_reads_total"]);
    assert_eq!(repeated(), 6);
    let held = database.hold(StatementKind::Write);
    thread::scope(|threads| {
        let write = threads.spawn(|| writer.try_run("INSERT INTO ks.t (k, v) VALUES ('b', 'w')"));
        held.wait_for(1);
        database.hang_up();
        assert!(write.join().unwrap().is_err(), "its outcome is not known");
    });
    assert_eq!(repeated(), 6);
}
