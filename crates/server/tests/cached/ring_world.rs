//! A ring over one database, whose members come and go within a test's time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afterglow::config::TablePolicies;
use afterglow::frontend::cql::cached::RingConfig;
use afterglow::ring_link::{Secret, Secrets};
use afterglow_cql::frame::Version;
use afterglow_loadgen::port::free_port;
use afterglow_loadgen::rng::Rng;
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, database, direct, wait_until};

/// A ring whose members come and go within a test's time.
pub struct World {
    pub database: Arc<FakeBackend>,
    pub setups: Vec<Setup>,
    pub nodes: Vec<Option<Node>>,
    _directories: Vec<TempDir>,
}

/// An address of loopback that nobody listens on, and that the system gives to no client while a
/// member is away.
fn free_address() -> SocketAddr {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    let asked = ASKED.fetch_add(1, Ordering::Relaxed);
    let mut random = Rng::new(u64::from(std::process::id()) << 32 | asked);
    free_port(&mut random).unwrap().parse().unwrap()
}

fn ring_config(name: &str, hold: Duration) -> RingConfig {
    let listen = free_address();
    let mut protocol = RingConfig::protocol(hold);
    (protocol.stable, protocol.probe, protocol.deserted) = (200_000, 300_000, 1_500_000);
    RingConfig {
        listen,
        advertised: listen.to_string(),
        secrets: Secrets::of([Secret::of(b"only for this test, and long enough")]),
        name: name.into(),
        weight: 100,
        zone: "a".into(),
        protocol,
    }
}

impl World {
    pub fn new(members: usize) -> World {
        World::over(database(), members)
    }

    /// All of them run and have the same part of the shards.
    pub fn settled(members: usize) -> World {
        let mut world = World::new(members);
        (0..members).for_each(|member| world.start(member));
        world.settle();
        world
    }

    pub fn over(database: FakeBackend, members: usize) -> World {
        direct(
            &database,
            "CREATE TABLE afterglow.ring (data_center text, name text, version bigint, map blob, \
             PRIMARY KEY (data_center, name))",
        );
        World::named("test", database.into(), members)
    }

    /// Another ring over the same database.
    pub fn beside(&self, name: &str, members: usize) -> World {
        World::named(name, self.database.clone(), members)
    }

    fn named(name: &str, database: Arc<FakeBackend>, members: usize) -> World {
        let directories: Vec<TempDir> = (0..members).map(|_| TempDir::new().unwrap()).collect();
        let setup = |directory: &TempDir| {
            let mut setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
            setup.hold = Duration::from_secs(2);
            setup.ring = Some(ring_config(name, setup.hold));
            setup
        };
        let setups = directories.iter().map(setup).collect();
        let nodes = (0..members).map(|_| None).collect();
        World { database, setups, nodes, _directories: directories }
    }

    /// Starts a member, and waits until it may serve.
    pub fn start(&mut self, member: usize) {
        let node = self.setups[member].start();
        self.nodes[member] = Some(node);
    }

    pub fn node(&self, member: usize) -> &Node {
        self.nodes[member].as_ref().expect("it runs")
    }

    pub fn client(&self, member: usize) -> Client {
        self.node(member).client(Version::V4)
    }

    pub fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// Waits until all that run are members, have a lease, and own as many shards as the others.
    pub fn settle(&self) {
        let count = self.running().count();
        for node in self.running() {
            wait_until("all members have the same part of the shards", || {
                let status = node.ring().status();
                let even = status.members.iter().all(|member| {
                    member.state == "active" && member.shards.abs_diff(status.shards / count) <= 1
                });
                even && status.members.len() == count && status.lease_ms > 0
            });
        }
    }

    /// The second of two members is away, and the first has its shards.
    pub fn without_the_second(&mut self) {
        self.nodes[1].take().unwrap().stop();
        wait_until("it is gone from the map", || self.node(0).ring().status().members.len() == 1);
    }

    pub fn count(&self, parts: &[&str]) -> u64 {
        self.running().map(|node| node.count(parts)).sum()
    }

    /// Writes rows of `ks.t` past the ring, while no member that runs caches the table.
    pub fn write_past(&self, rows: impl Iterator<Item = (String, String)>) {
        let off = ["afterglow_passes_total", "reason=\"policy_off\""];
        let before: Vec<_> = self.running().map(|node| node.count(&off)).collect();
        self.running().for_each(|node| set_policy(node, "ks.*=off"));
        for (node, before) in self.running().zip(before) {
            let mut client = node.client(Version::V4);
            wait_until("nothing is cached", || {
                client.value("none");
                node.count(&off) > before
            });
        }
        for (key, value) in rows {
            let text = format!("INSERT INTO ks.t (k, v) VALUES ('{key}', '{value}')");
            direct(&self.database, &text);
        }
        self.running().for_each(|node| set_policy(node, "ks.*=exclusive"));
    }
}

pub const FILLS: [&str; 2] = ["afterglow_fills_total", "\"installed\""];

pub fn carried(from: &str) -> [&str; 2] {
    ["afterglow_carried_total", from]
}

/// Reads all of these rows through each client.
pub fn read_all(clients: &mut [Client], values: &[&str]) {
    for (n, value) in values.iter().enumerate() {
        for client in &mut *clients {
            assert_eq!(client.value(&format!("k{n}")).as_deref(), Some(*value), "k{n}");
        }
    }
}

/// Puts another policy in force, as SIGHUP does.
pub fn set_policy(node: &Node, policy: &str) {
    node.policies.replace(TablePolicies { rules: vec![policy.parse().unwrap()] });
}
