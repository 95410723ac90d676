//! Instances without a ring, beside one: while a single instance is replaced by a ring, and by
//! mistake. They hear of no write through the ring, and it of none through them.

use std::time::Duration;

use afterglow::metrics::RingEntry;
use afterglow_cql::frame::Version;
use afterglow_loadgen::rng::Rng;
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, one_text, wait_until};
use crate::ring_world::World;

const KEYS: usize = 12;

/// How to run an instance without a ring on the data directory of a member.
fn alone(world: &World, member: usize) -> Setup {
    let mut setup = world.setups[member].clone();
    setup.ring = None;
    setup.times.lease = Duration::from_secs(2);
    setup.times.margin = Duration::from_millis(500);
    setup
}

/// Whether a write was acknowledged.
fn write(client: &mut Client, key: usize, value: u64) -> bool {
    let text = format!("INSERT INTO ks.t (k, v) VALUES ('k{key}', '{value:06}')");
    client.try_run(&text).is_ok()
}

fn read(client: &mut Client, key: usize) -> u64 {
    let value = one_text(client.run(&format!("SELECT v FROM ks.t WHERE k = 'k{key}'")));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Reads and writes through some instances, and what was acknowledged.
struct Work {
    random: Rng,
    next: u64,
    newest: [u64; KEYS],
}

impl Work {
    fn new(seed: u64) -> Work {
        Work { random: Rng::new(seed), next: 1, newest: [0; KEYS] }
    }

    /// So many random requests. Each read must be as new as what was acknowledged. Returns how many
    /// writes through each were acknowledged.
    fn run(&mut self, clients: &mut [&mut Client], steps: u32, context: &str) -> Vec<u32> {
        let mut acknowledged = vec![0; clients.len()];
        for _ in 0..steps {
            let key = self.random.below(KEYS as u64) as usize;
            let at = self.random.below(clients.len() as u64) as usize;
            if self.random.below(3) == 0 {
                if write(clients[at], key, self.next) {
                    self.newest[key] = self.next;
                    acknowledged[at] += 1;
                }
                self.next += 1;
            } else {
                let (found, newest) = (read(clients[at], key), self.newest[key]);
                assert!(found >= newest, "{context}: k{key} through {at} is {found}, not {newest}");
            }
        }
        acknowledged
    }
}

/// Waits until a client may write through this instance.
fn writes(node: &Node, work: &mut Work) -> Client {
    let mut client = node.client(Version::V4);
    wait_until("it takes writes", || {
        let value = work.next;
        work.next += 1;
        let done = write(&mut client, 0, value);
        if done {
            work.newest[0] = value;
        }
        done
    });
    client
}

/// The first holds the lease, the second passes reads through. Each is replaced by a member of the
/// ring, in its data directory.
fn replaced_one_after_the_other(seed: u64, dies: bool) {
    let mut work = Work::new(seed);
    let mut world = World::new(2);
    let context = format!("seed {seed}, dies: {dies}");
    let [old, second] = [0, 1].map(|member| alone(&world, member));
    let old = old.start();
    let second = second.start_without_lease();
    second.wait_for_lease("held_by_other");
    let mut holder = old.client(Version::V4);
    work.run(&mut [&mut holder], 120, &context);
    assert!(old.hits() > 20, "{context}: the holder has hits");
    second.stop();

    // A member that is there before the holder is gone caches nothing, and takes no write.
    world.nodes[1] = Some(world.setups[1].start_without_lease());
    world.node(1).wait_for_lease("held_by_other");
    wait_until("it is a member", || world.node(1).ring().status().lease_ms > 0);
    let mut early = world.client(1);
    let done = work.run(&mut [&mut holder, &mut early], 300, &context);
    assert!(done[0] > 0 && done[1] == 0, "{context}: {done:?}");
    assert_eq!(world.node(1).hits(), 0, "{context}");
    assert_eq!(world.node(1).ring_entry(), RingEntry::KeptOut, "{context}");

    drop(holder);
    if dies {
        old.crash()
    } else {
        old.stop()
    }
    world.node(1).wait_for_lease("held");
    let mut early = writes(world.node(1), &mut work);
    work.run(&mut [&mut early], 120, &context);
    world.start(0);
    world.settle();
    let mut late = writes(world.node(0), &mut work);
    let before: Vec<_> = world.running().map(Node::hits).collect();
    let done = work.run(&mut [&mut late, &mut early], 300, &context);
    assert!(done.iter().all(|done| *done > 0), "{context}: {done:?}");
    for (node, before) in world.running().zip(before) {
        assert!(node.hits() > before, "{context}: each answers from its cache");
    }
}

#[test]
fn nothing_stale_is_read_while_instances_without_a_ring_are_replaced_by_one() {
    let run = |dies| std::thread::spawn(move || replaced_one_after_the_other(1, dies));
    [false, true].map(run).into_iter().for_each(|run| run.join().unwrap());
}

/// Somebody has started it without `--ring-address`.
#[test]
fn an_instance_without_a_ring_beside_one_caches_nothing_and_takes_no_write() {
    let world = World::settled(2);
    let mut work = Work::new(7);
    let (mut one, mut other) = (world.client(0), world.client(1));
    work.run(&mut [&mut one, &mut other], 200, "the ring alone");
    let directory = TempDir::new().unwrap();
    let mut setup = alone(&world, 0);
    setup.directory = directory.path().to_owned();
    let beside = setup.start_without_lease();
    beside.wait_for_lease("held_by_other");
    let mut client = beside.client(Version::V4);
    let error = client.try_run("INSERT INTO ks.t (k, v) VALUES ('k0', '9')").unwrap_err();
    assert!(error.to_string().contains("--ring-address"), "{error}");
    let done = work.run(&mut [&mut one, &mut other, &mut client], 400, "beside");
    assert!(done[0] > 0 && done[1] > 0 && done[2] == 0, "{done:?}");
    assert_eq!(beside.hits(), 0);
}
