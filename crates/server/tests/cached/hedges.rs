//! Fills that a second node of the database is asked too, because the first is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Consistency;
use afterglow_cql::response::ErrorBody;
use afterglow_testkit::fake_backend::{Ask, FakeBackend, StatementKind};
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, database, wait_until};

/// Two nodes, each with one replica of half of the rows, and an Afterglow before them.
struct Pair {
    node: Node,
    /// The node that is asked for the keys of [`Pair::keys`].
    first: FakeBackend,
    /// The one that is left for a hedge.
    second: FakeBackend,
    _directory: TempDir,
}

impl Pair {
    fn new(hedge: &str) -> Self {
        Self::with(hedge, |_| false)
    }

    /// `script` is shown every request that the second node gets.
    fn with(hedge: &str, script: impl Fn(&Arc<Ask>) -> bool + Send + Sync + 'static) -> Self {
        let (first, directory) = (database(), TempDir::new().unwrap());
        let second = first.join_scripted(script).unwrap();
        let mut setup = Setup::new(directory.path(), &first, "ks.*=exclusive");
        setup.fill_hedge = hedge.parse().unwrap();
        let node = setup.start();
        Pair { node, first, second, _directory: directory }
    }

    /// Keys of rows that the first node has.
    fn keys(&self) -> impl Iterator<Item = String> {
        let keys = (0..).map(|n| format!("k{n}"));
        keys.filter(|key| self.first.owner(key.as_bytes()) == self.first.address())
    }

    fn key(&self) -> String {
        self.keys().next().unwrap()
    }

    /// A client whose reactor has connections to both nodes. No fill is made for that.
    fn client(&self, version: Version) -> Client {
        let mut client = self.node.client(version);
        for node in [&self.first, &self.second] {
            let asked = node.reads();
            let mut keys = (0..).map(|n| format!("warm{n}"));
            let key = keys.find(|key| self.first.owner(key.as_bytes()) == node.address());
            let read = format!("SELECT v FROM ks.t WHERE k = '{}'", key.unwrap());
            wait_until("the node is asked", || {
                client.raw().query(&read, Consistency::All).unwrap();
                node.reads() > asked
            });
        }
        client
    }

    /// Writes a row past Afterglow, before it is cached.
    fn put(&self, key: &str, value: &str) {
        self.first.run(&format!("INSERT INTO ks.t (k, v) VALUES ('{key}', '{value}')"));
    }

    fn hedged(&self) -> (u64, u64) {
        let count = |name| self.node.count(&[name]);
        (count("afterglow_hedged_fills_total"), count("afterglow_hedges_won_total"))
    }

    fn fills(&self, outcome: &str) -> u64 {
        self.node.count(&["afterglow_fills_total", &format!("\"{outcome}\"")])
    }
}

/// A script that answers every EXECUTE with this error while it is on, and how many it has so
/// answered.
fn refusing(
    code: ErrorCode,
) -> (Arc<AtomicBool>, Arc<AtomicU64>, impl Fn(&Arc<Ask>) -> bool + Send + Sync + 'static) {
    let (on, refused) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (is_on, count) = (on.clone(), refused.clone());
    let script = move |ask: &Arc<Ask>| {
        if ask.opcode() != Opcode::Execute || !is_on.load(Ordering::SeqCst) {
            return false;
        }
        match code {
            // Once: it is prepared again then.
            ErrorCode::Unprepared => {
                is_on.store(false, Ordering::SeqCst);
                ask.error(&ErrorBody::unprepared("forgotten", &[7; 16]));
            }
            code => ask.error(&ErrorBody::new(code, "too much to do")),
        }
        count.fetch_add(1, Ordering::SeqCst);
        true
    };
    (on, refused, script)
}

#[test]
fn a_fill_that_one_node_does_not_answer_is_answered_by_another() {
    let pair = Pair::new("1ms");
    let (mut client, key) = (pair.client(Version::V5), pair.key());
    pair.put(&key, "v");
    let (asked, made) = (pair.second.reads(), pair.first.connections());
    let held = pair.first.hold(StatementKind::Read);
    assert_eq!(client.value(&key).as_deref(), Some("v"));
    held.wait_for(1);
    assert_eq!((pair.hedged(), pair.second.reads() - asked), ((1, 1), 1));
    assert_eq!(pair.fills("installed"), 1);
    let hits = pair.node.hits();
    assert_eq!(client.value(&key).as_deref(), Some("v"));
    assert_eq!(pair.node.hits() - hits, 1);
    // The late answer comes before those of later requests on its connection. None takes it for its
    // own.
    drop(held);
    for key in pair.keys().skip(1).take(20) {
        pair.put(&key, &key);
        assert_eq!(client.value(&key), Some(key));
    }
    assert_eq!(pair.first.connections(), made, "the connection was kept");
    assert_eq!(pair.node.count(&["afterglow_backend_connection_failures_total"]), 0);
    assert_eq!(pair.node.count(&["afterglow_errors_total"]), 0);
}

#[test]
fn a_slice_that_one_node_does_not_answer_is_answered_by_another() {
    let pair = Pair::new("1ms");
    let (mut client, key) = (pair.client(Version::V5), pair.key());
    pair.first.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('{key}', 1, 'v')"));
    let held = pair.first.hold(StatementKind::Read);
    let slice = format!("SELECT v FROM ks.wide WHERE k = '{key}' LIMIT 5");
    assert_eq!(client.run(&slice), [[Some(b"v".to_vec())]]);
    held.wait_for(1);
    assert_eq!((pair.hedged(), pair.fills("installed")), ((1, 1), 1));
}

/// The hedge is sent after the first read, and after the fill's stamp was taken, so a write that
/// begins later overtakes it too.
#[test]
fn neither_answer_of_a_hedged_fill_is_installed_after_a_write() {
    let pair = Pair::new("1ms");
    let (mut writer, mut reader) = (pair.client(Version::V4), pair.client(Version::V5));
    let key = pair.key();
    pair.put(&key, "old");
    let late = pair.first.hold(StatementKind::Read);
    let hedge = pair.second.hold(StatementKind::Read);
    thread::scope(|scope| {
        let read = scope.spawn(|| reader.value(&key));
        late.wait_for(1);
        hedge.wait_for(1);
        writer.put(&key, "new");
        drop(hedge);
        // It began before the write, so the old value is right.
        assert_eq!(read.join().unwrap().as_deref(), Some("old"));
    });
    assert_eq!((pair.hedged(), pair.fills("overtaken")), ((1, 1), 1));
    drop(late);
    assert_eq!(reader.value(&key).as_deref(), Some("new"));
    assert_eq!(writer.value(&key).as_deref(), Some("new"));
}

#[test]
fn the_late_answer_of_the_first_node_replaces_nothing() {
    let pair = Pair::new("1ms");
    let (mut writer, mut reader) = (pair.client(Version::V4), pair.client(Version::V5));
    let (key, other) = (pair.key(), pair.keys().nth(1).unwrap());
    pair.put(&key, "old");
    let late = pair.first.hold(StatementKind::Read);
    assert_eq!(reader.value(&key).as_deref(), Some("old"));
    late.wait_for(1);
    writer.put(&key, "new");
    assert_eq!(writer.value(&key).as_deref(), Some("new"));
    drop(late);
    // What comes on that connection now comes behind the late answer.
    assert_eq!(reader.value(&other), None);
    let hits = pair.node.hits();
    assert_eq!(reader.value(&key).as_deref(), Some("new"));
    assert_eq!(pair.node.hits() - hits, 1);
}

#[test]
fn a_second_node_that_has_forgotten_the_statement_is_told_it_again() {
    let (on, refused, script) = refusing(ErrorCode::Unprepared);
    let pair = Pair::with("1ms", script);
    let (mut client, key) = (pair.client(Version::V5), pair.key());
    pair.put(&key, "v");
    let held = pair.first.hold(StatementKind::Read);
    on.store(true, Ordering::SeqCst);
    assert_eq!(client.value(&key).as_deref(), Some("v"));
    held.wait_for(1);
    assert_eq!((pair.hedged(), refused.load(Ordering::SeqCst)), ((1, 1), 1));
}

#[test]
fn an_overloaded_second_node_loses_no_answer_and_ends_hedges() {
    let (on, refused, script) = refusing(ErrorCode::Overloaded);
    let pair = Pair::with("1ms", script);
    let mut client = pair.client(Version::V5);
    let keys: Vec<_> = pair.keys().take(2).collect();
    keys.iter().for_each(|key| pair.put(key, key));
    on.store(true, Ordering::SeqCst);
    for (key, asked) in keys.iter().zip(1..) {
        let held = pair.first.hold(StatementKind::Read);
        thread::scope(|scope| {
            let read = scope.spawn(|| client.value(key));
            held.wait_for(1);
            // The second time because the first node is silent.
            wait_until("the second has refused", || refused.load(Ordering::SeqCst) == asked);
            drop(held);
            assert_eq!(read.join().unwrap().as_ref(), Some(key));
        });
        assert_eq!(pair.hedged(), (1, 0), "one hedge was told that the database is overloaded");
    }
    assert_eq!(pair.fills("installed"), 2);
}

#[test]
fn a_second_node_whose_connection_ends_loses_no_answer() {
    let pair = Pair::new("1ms");
    let (mut client, key) = (pair.client(Version::V5), pair.key());
    pair.put(&key, "v");
    let held = pair.first.hold(StatementKind::Read);
    let lost = pair.second.hold(StatementKind::Read);
    thread::scope(|scope| {
        let read = scope.spawn(|| client.value(&key));
        held.wait_for(1);
        lost.wait_for(1);
        pair.second.hang_up();
        wait_until("the hedge has failed", || {
            pair.node.count(&["afterglow_backend_unanswered_total"]) > 0
        });
        drop(held);
        assert_eq!(read.join().unwrap().as_deref(), Some("v"));
    });
    assert_eq!((pair.hedged(), pair.fills("installed")), ((1, 0), 1));
}

#[test]
fn hedges_keep_to_their_budget() {
    let pair = Pair::new("1ms");
    let keys: Vec<_> = pair.keys().take(60).collect();
    let mut clients: Vec<_> = keys.iter().map(|_| pair.client(Version::V5)).collect();
    keys.iter().for_each(|key| pair.put(key, key));
    let held = pair.first.hold(StatementKind::Read);
    thread::scope(|scope| {
        for (client, key) in clients.iter_mut().zip(&keys) {
            scope.spawn(move || assert_eq!(client.value(key).as_ref(), Some(key)));
        }
        held.wait_for(1);
    });
    // Ten are saved up on each of two reactors.
    let (hedged, won) = pair.hedged();
    assert!(hedged > 0 && hedged <= 20 + 60 / 20, "{hedged} of 60 fills were hedged");
    assert!(won <= hedged);
}

#[test]
fn a_percentile_is_that_of_the_fills_before() {
    let pair = Pair::new("p50");
    let (mut client, key) = (pair.client(Version::V5), pair.key());
    pair.put(&key, "v");
    // From 128 fills of a reactor on there is one.
    (0..130).for_each(|n| assert_eq!(client.value(&format!("absent{n}")), None));
    let (before, _) = pair.hedged();
    let held = pair.first.hold(StatementKind::Read);
    assert_eq!(client.value(&key).as_deref(), Some("v"));
    held.wait_for(1);
    assert_eq!(pair.hedged().0 - before, 1);
}

#[test]
fn without_hedges_a_fill_waits_until_its_node_is_silent() {
    for hedge in ["off", "p99"] {
        // Of so few fills no percentile is known.
        let pair = Pair::new(hedge);
        let (mut client, key) = (pair.client(Version::V5), pair.key());
        pair.put(&key, "v");
        let held = pair.first.hold(StatementKind::Read);
        assert_eq!(client.value(&key).as_deref(), Some("v"));
        held.wait_for(1);
        assert_eq!((pair.hedged(), pair.fills("installed")), ((0, 0), 1), "{hedge}");
    }
}
