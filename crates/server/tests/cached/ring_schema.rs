//! Changes of the schema of which the members of a ring hear each at its own time.

use std::time::Duration;

use afterglow_cql::message::Consistency;
use afterglow_testkit::fake_backend::COPIES;

use crate::node::{Client, one_text, wait_until};
use crate::ring_world::{FILLS, World};

const KEYS: usize = 20;
/// Copies that a quorum is found of: two that lack what the first one had alone.
const NEW: [bool; COPIES] = [false, true, true];

/// `v` of a row, if there is an answer.
fn value(client: &mut Client, n: usize) -> Option<String> {
    let text = format!("SELECT v FROM ks.t WHERE k = 'k{n}'");
    client.try_run(&text).ok().and_then(one_text)
}

/// A ring of one. The keyspace has one copy, which has what was written last, and gets two more.
/// `is_told`: the ring hears of it.
fn grown(is_told: bool) -> (World, Vec<Client>) {
    let mut world = World::new(2);
    for setup in &mut world.setups {
        setup.hold = Duration::from_secs(60);
        setup.times.weak_max_age = Duration::from_secs(2);
        setup.ring.as_mut().unwrap().protocol.hold = 60_000_000;
    }
    world.database.replicate();
    world.start(0);
    world.settle();
    let mut client = world.client(0);
    (0..KEYS).for_each(|n| client.put(&format!("k{n}"), "one"));
    // Copies stand for what the keyspace's replication promises: that is one at first.
    world.database.set_copies([true, false, false]);
    for n in 0..KEYS {
        let text = format!("INSERT INTO ks.t (k, v) VALUES ('k{n}', 'two')");
        client.raw().query(&text, Consistency::One).unwrap();
    }
    world.database.set_copies([true; COPIES]);
    let replication = "{'class': 'SimpleStrategy', 'replication_factor': 3}";
    let text = format!("ALTER KEYSPACE ks WITH replication = {replication}");
    match is_told {
        true => drop(client.run(&text)),
        false => world.database.run(&text),
    }
    (world, vec![client])
}

/// Who joins after that has not heard of it. Nor has, in the second case, the owner that hands its
/// shards over: the news has not reached it yet.
#[test]
fn no_row_that_new_copies_lack_is_stale_for_good_at_an_owner_that_has_come_since() {
    for is_told in [true, false] {
        let (mut world, mut clients) = grown(is_told);
        world.database.set_copies(NEW);
        world.start(1);
        world.settle();
        clients.push(world.client(1));
        wait_until("the new owner has filled rows", || {
            for n in 0..KEYS {
                clients.iter_mut().for_each(|client| drop(value(client, n)));
            }
            world.node(1).count(&FILLS) >= 8
        });
        if !is_told {
            // The old owner hears of it at last, when it connects again.
            world.database.hang_up();
        }
        world.database.set_copies([true; COPIES]);
        world.database.deliver_hints();
        for n in 0..KEYS {
            for client in &mut clients {
                let read_again = || value(client, n).as_deref() == Some("two");
                wait_until(&format!("k{n} is read again, told: {is_told}"), read_again);
            }
        }
    }
}

/// A ring of one caches rows of `ks.t`, and starts again at a node that has not heard of the table.
/// Then they are written.
fn written_unknown() -> World {
    let mut world = World::new(2);
    world.start(0);
    world.settle();
    let mut client = world.client(0);
    (0..KEYS).for_each(|n| client.put(&format!("k{n}"), "one"));
    wait_until("all are cached", || {
        let reads = world.database.reads();
        (0..KEYS).for_each(|n| assert_eq!(value(&mut client, n).as_deref(), Some("one")));
        world.database.reads() == reads
    });
    drop(client);
    world.database.lack_table(Some("ks.t"));
    start_again(&mut world);
    let mut client = world.client(0);
    wait_until("the schema is known", || {
        let reads = world.database.reads();
        client.run("SELECT v FROM ks.other WHERE k = 'a'");
        world.database.reads() == reads
    });
    (0..KEYS).for_each(|n| client.put(&format!("k{n}"), "two"));
    world
}

fn start_again(world: &mut World) {
    world.nodes[0].take().unwrap().stop();
    world.start(0);
    world.settle();
}

#[test]
fn in_a_ring_no_row_is_stale_after_a_run_whose_node_had_not_heard_of_its_table() {
    let mut world = written_unknown();
    world.database.lack_table(None);
    start_again(&mut world);
    let mut client = world.client(0);
    for n in 0..KEYS {
        assert_eq!(value(&mut client, n).as_deref(), Some("two"), "k{n}");
    }
}

#[test]
fn an_old_owner_gives_away_no_row_of_a_table_that_it_has_not_heard_of() {
    for again in [false, true] {
        let mut world = written_unknown();
        if again {
            // What has been written since a shard came is known to one run.
            start_again(&mut world);
        }
        world.database.lack_table(None);
        world.start(1);
        world.settle();
        let mut clients = [0, 1].map(|member| world.client(member));
        for n in 0..KEYS {
            for client in &mut clients {
                assert_eq!(value(client, n).as_deref(), Some("two"), "k{n}, again: {again}");
            }
        }
    }
}
