//! Several instances over one database as one cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use afterglow_loadgen::rng::Rng;
use afterglow_testkit::fake_backend::StatementKind;

use crate::node::{Client, Node, database_that_may_be_mute, direct, wait_until};
use crate::ring_world::{FILLS, World, carried, read_all, set_policy};

#[test]
fn a_row_is_cached_by_its_owner_and_answered_by_all() {
    let world = World::settled(2);
    let mut clients = [world.client(0), world.client(1)];
    for n in 0..40 {
        let key = format!("k{n}");
        clients[n % 2].put(&key, "one");
        for client in &mut clients {
            assert_eq!(client.value(&key).as_deref(), Some("one"), "{key}");
        }
    }
    assert_eq!(world.count(&FILLS), 40, "each row is filled once");
    for n in 0..40 {
        for client in &mut clients {
            assert_eq!(client.value(&format!("k{n}")).as_deref(), Some("one"));
        }
    }
    assert_eq!(world.count(&FILLS), 40, "nobody asked the database again");
    for member in 0..2 {
        let by_ring = world.node(member).count(&["afterglow_hits_total", "tier=\"ring\""]);
        assert!(by_ring > 0, "{member} asked the other");
    }
    // A write through either is seen through both.
    for n in 0..40 {
        let key = format!("k{n}");
        clients[(n + 1) % 2].put(&key, "two");
        for client in &mut clients {
            assert_eq!(client.value(&key).as_deref(), Some("two"), "{key}");
        }
    }
}

#[test]
fn slices_are_cached_by_the_owner_alone_and_a_write_through_any_member_drops_them() {
    let world = World::settled(2);
    let mut clients = [world.client(0), world.client(1)];
    let read = |client: &mut Client, n: usize| {
        let key = format!("k = 'k{n}'");
        client.run(&format!("SELECT v FROM ks.wide WHERE {key} ORDER BY c DESC LIMIT 5")).len()
    };
    for rows in 0..4 {
        for n in 0..20 {
            clients.iter_mut().for_each(|client| assert_eq!(read(client, n), rows, "k{n}"));
        }
        let hits = world.count(&["afterglow_hits_total"]);
        for n in 0..20 {
            clients.iter_mut().for_each(|client| assert_eq!(read(client, n), rows, "k{n}"));
        }
        assert_eq!(world.count(&["afterglow_hits_total"]) - hits, 20, "each has one owner");
        for n in 0..20 {
            let row = format!("INSERT INTO ks.wide (k, c, v) VALUES ('k{n}', {rows}, 'x')");
            clients[(n + rows) % 2].run(&row);
        }
    }
}

#[test]
fn a_member_that_dies_is_replaced_and_one_that_leaves_hands_over() {
    let mut world = World::settled(3);
    let mut client = world.client(0);
    for n in 0..60 {
        client.put(&format!("k{n}"), "one");
    }
    world.nodes[1].take().unwrap().crash();
    for n in 0..60 {
        // Those of the dead member wait until its shards are others'.
        client.put(&format!("k{n}"), "two");
        assert_eq!(client.value(&format!("k{n}")).as_deref(), Some("two"));
    }
    let members = |world: &World| world.node(0).ring().status().members.len();
    wait_until("the dead member is gone from the map", || members(&world) == 2);
    world.node(2).ring().leave();
    wait_until("the other one has left", || members(&world) == 1);
    let mut left = world.client(2);
    for n in 0..60 {
        assert_eq!(left.value(&format!("k{n}")).as_deref(), Some("two"));
        left.put(&format!("k{n}"), "three");
        assert_eq!(client.value(&format!("k{n}")).as_deref(), Some("three"));
    }
}

/// One hands over to the other, which goes as the last one does.
#[test]
fn all_members_may_leave_at_once() {
    let world = World::settled(2);
    let mut clients = [world.client(0), world.client(1)];
    for n in 0..20 {
        clients[n % 2].put(&format!("k{n}"), "one");
    }
    world.running().for_each(|node| node.ring().leave());
    wait_until("both have left", || world.running().all(|node| node.ring().status().has_left()));
    read_all(&mut clients, &["one"; 20]);
}

#[test]
fn rows_move_with_their_shards() {
    let mut world = World::new(3);
    world.start(0);
    world.settle();
    let mut clients = vec![world.client(0)];
    let mut values = ["one"; 60];
    for n in 0..values.len() {
        clients[0].put(&format!("k{n}"), "one");
    }
    read_all(&mut clients, &values);
    assert_eq!(world.count(&FILLS), 60);
    for member in 1..3 {
        world.start(member);
        world.settle();
        clients.push(world.client(member));
        // Written under the new owners, and not read since: what the old ones have does not count.
        for n in (member..values.len()).step_by(6) {
            values[n] = ["two", "three"][member - 1];
            clients[n % (member + 1)].put(&format!("k{n}"), values[n]);
        }
        let before = world.count(&FILLS);
        read_all(&mut clients, &values);
        let asked = world.count(&FILLS) - before;
        assert!(asked <= 12, "the database was asked for {asked} rows, 10 were written");
    }
    let pulled = world.count(&carried("old_owner"));
    assert!(pulled >= 20, "rows were pulled");
    // Whoever leaves runs on, and gives what it has.
    world.node(0).ring().leave();
    wait_until("it has left", || world.node(1).ring().status().members.len() == 2);
    let before = world.count(&FILLS);
    read_all(&mut clients[1..], &values);
    let (asked, more) = (world.count(&FILLS) - before, world.count(&carried("old_owner")) - pulled);
    assert!(asked <= 2, "the database was asked for {asked} rows, and {more} were pulled");
    assert!(more >= 10, "{more} rows were pulled");
}

#[test]
fn an_instance_that_comes_back_finds_its_rows_and_none_that_was_written_meanwhile() {
    let mut world = World::settled(2);
    let mut clients = vec![world.client(0), world.client(1)];
    let mut values = ["one"; 60];
    for n in 0..values.len() {
        clients[0].put(&format!("k{n}"), "one");
    }
    read_all(&mut clients, &values);
    clients.pop();
    world.without_the_second();
    for n in (0..values.len()).step_by(5) {
        values[n] = "two";
        clients[0].put(&format!("k{n}"), "two");
    }
    world.start(1);
    world.settle();
    clients.push(world.client(1));
    let before = world.count(&FILLS);
    // For a moment the shards are not filled at all, because it is not known what their first owner
    // had granted.
    wait_until("rows are found where they were", || {
        read_all(&mut clients[1..], &values[..40]);
        world.count(&carried("here")) >= 8
    });
    // The first client is of the other member, which asks for the rest.
    read_all(&mut clients, &values);
    let asked = world.count(&FILLS) - before;
    assert!(asked <= 14, "the database was asked for {asked} rows, 12 were written");
    let hits = world.node(1).count(&["afterglow_hits_total", "flash"]);
    assert_eq!(hits, world.count(&carried("here")), "what was there is a hit");
}

/// Whoever takes shards over fills them for a short time only: for hours, in which an instance may
/// be away again.
#[test]
fn an_instance_that_is_away_again_finds_the_rows_that_it_had_found() {
    let mut world = World::settled(2);
    let keys: Vec<_> = (0..40).map(|n| format!("k{n}")).collect();
    keys.iter().for_each(|key| world.client(0).put(key, "one"));
    read_all(&mut [world.client(1)], &["one"; 40]);
    for _ in 0..3 {
        world.without_the_second();
        world.start(1);
        world.settle();
        wait_until("rows are found where they were", || {
            read_all(&mut [world.client(1)], &["one"; 40]);
            world.node(1).count(&carried("here")) >= 8
        });
    }
}

/// Others may write past the ring while no member caches a table as `exclusive`. An instance that
/// is away then has the policy of before when it comes back, and the rows of before.
#[test]
fn an_instance_that_was_away_while_the_policy_was_another_serves_no_row_of_before() {
    let mut world = World::settled(2);
    let mut clients = vec![world.client(0), world.client(1)];
    for n in 0..40 {
        clients[0].put(&format!("k{n}"), "one");
    }
    read_all(&mut clients, &["one"; 40]);
    clients.pop();
    world.without_the_second();
    world.write_past((0..40).map(|n| (format!("k{n}"), "two".to_owned())));
    world.settle();
    read_all(&mut clients, &["two"; 40]);
    world.start(1);
    world.settle();
    clients.push(world.client(1));
    let owns = |world: &World| world.node(1).count(&FILLS) + world.count(&carried("here"));
    wait_until("rows of it are filled or found", || {
        read_all(&mut clients, &["two"; 40]);
        owns(&world) > 0
    });
    read_all(&mut clients, &["two"; 40]);
}

/// The ring goes on, which needs transactions: a member dies, and others get its shards.
fn goes_on_without_one(mut world: World) {
    world.nodes[1].take().unwrap().crash();
    for node in world.running() {
        wait_until("others have the dead member's shards", || {
            let status = node.ring().status();
            status.members.len() == 2 && status.lease_ms > 0
        });
    }
}

/// It stands still: it lets nobody in, and answers nobody who was.
#[test]
fn a_ring_goes_on_while_the_first_node_of_the_database_stands_still() {
    let mut world = World::new(3);
    let (database, _other) = (world.database.clone(), world.database.join().unwrap());
    (0..3).for_each(|member| world.start(member));
    world.settle();
    let frozen = database.freeze();
    goes_on_without_one(world);
    drop(frozen);
}

#[test]
fn a_ring_goes_on_while_the_first_node_of_the_database_answers_no_transaction() {
    let mute = Arc::<AtomicBool>::default();
    let mut world = World::over(database_that_may_be_mute("afterglow.ring", &mute), 3);
    let _other = world.database.join().unwrap();
    (0..3).for_each(|member| world.start(member));
    world.settle();
    mute.store(true, Ordering::SeqCst);
    goes_on_without_one(world);
}

/// The settings in which an instance differs from its ring.
fn differs(node: &Node) -> Vec<String> {
    node.ring().status().differs.into_iter().map(|difference| difference.setting).collect()
}

#[test]
fn an_instance_with_other_settings_is_refused_and_passes_reads_through() {
    let mut world = World::new(2);
    world.setups[1].policy = "ks.*=max-staleness=60s";
    world.setups[1].hold = Duration::from_secs(9);
    world.setups[1].ring.as_mut().unwrap().protocol.hold = 9_000_000;
    world.start(0);
    world.start(1);
    wait_until("the other knows that it differs", || !differs(world.node(1)).is_empty());
    assert_eq!(differs(world.node(1)), ["table-policy", "unknown-outcome-hold"]);
    let (mut member, mut refused) = (world.client(0), world.client(1));
    for value in ["one", "two", "three"] {
        for n in 0..10 {
            // A write through either is seen through both, at once.
            let key = format!("k{n}");
            let writer = if n % 2 == 0 { &mut member } else { &mut refused };
            writer.put(&key, value);
            for client in [&mut member, &mut refused] {
                assert_eq!(client.value(&key).as_deref(), Some(value), "{key}");
                assert_eq!(client.value(&key).as_deref(), Some(value), "{key}");
            }
        }
    }
    assert!(world.node(0).hits() > 0 && world.node(1).hits() == 0, "it caches nothing");
    assert!(world.node(1).count(&["afterglow_passes_total", "reason=\"ring_settings\""]) >= 60);
    assert_eq!(world.node(1).count(&["afterglow_ring_settings_differ"]), 1);
    assert_eq!(world.node(0).ring().status().members.len(), 1, "it is no member");
}

#[test]
fn a_policy_is_changed_in_one_member_after_the_other() {
    let (bounded, exclusive) = ("ks.*=max-staleness=60s", "ks.*=exclusive");
    let mut world = World::new(2);
    world.setups.iter_mut().for_each(|setup| setup.policy = bounded);
    world.start(0);
    world.start(1);
    world.settle();
    let mut clients = [world.client(0), world.client(1)];
    for n in 0..20 {
        clients[n % 2].put(&format!("k{n}"), "one");
        for client in &mut clients {
            assert_eq!(client.value(&format!("k{n}")).as_deref(), Some("one"));
        }
    }
    set_policy(world.node(1), exclusive);
    wait_until("it differs", || differs(world.node(1)) == ["table-policy"]);
    let theirs = |world: &World| {
        let status = world.node(0).ring().status();
        status.members.iter().filter(|member| member.differs == ["table-policy"]).count()
    };
    wait_until("the other sees it", || theirs(&world) == 1);
    let hits = world.node(1).hits();
    for n in 0..20 {
        // It grants writes for its rows, and answers no read from its cache.
        clients[0].put(&format!("k{n}"), "two");
        assert_eq!(clients[1].value(&format!("k{n}")).as_deref(), Some("two"));
    }
    assert_eq!(world.node(1).hits(), hits);
    set_policy(world.node(0), exclusive);
    wait_until("all have the same", || {
        theirs(&world) == 0 && world.running().all(|node| differs(node).is_empty())
    });
    world.settle();
    // What was cached under the bound does not count any more.
    for n in 0..20 {
        clients[1].put(&format!("k{n}"), "three");
        for client in &mut clients {
            assert_eq!(client.value(&format!("k{n}")).as_deref(), Some("three"));
        }
    }
    wait_until("rows are cached again", || {
        let before = world.node(0).hits() + world.node(1).hits();
        clients.iter_mut().for_each(|client| drop(client.value("k1")));
        world.node(0).hits() + world.node(1).hits() > before
    });
}

/// Each member has copies of its own then. Those of the other one live on for their bound.
#[test]
fn under_a_bound_a_write_is_seen_at_once_through_the_member_that_took_it() {
    let mut world = World::new(2);
    world.setups.iter_mut().for_each(|setup| setup.policy = "ks.*=max-staleness=60s");
    world.start(0);
    world.start(1);
    world.settle();
    let mut clients = [world.client(0), world.client(1)];
    for n in 0..20 {
        let key = format!("k{n}");
        clients[0].put(&key, "one");
        for client in [0, 1, 0, 1] {
            assert_eq!(clients[client].value(&key).as_deref(), Some("one"));
        }
        let writer = &mut clients[n / 2 % 2];
        let hits = world.node(n / 2 % 2).hits();
        assert_eq!(writer.value(&key).as_deref(), Some("one"));
        assert_eq!(world.node(n / 2 % 2).hits(), hits + 1, "whoever owns it");
        match n % 2 {
            0 => writer.put(&key, "two"),
            _ => drop(
                writer.run(&format!("UPDATE ks.t SET v = 'two' WHERE k = '{key}' IF v = 'one'")),
            ),
        }
        assert_eq!(writer.value(&key).as_deref(), Some("two"), "{key}");
    }
    clients[1].run("TRUNCATE ks.t");
    assert!((0..20).all(|n| clients[1].value(&format!("k{n}")).is_none()));
}

/// No gate was closed here for such a write when it began, and a read fills the row of before.
#[test]
fn a_write_under_way_while_its_table_comes_under_a_bound_is_seen_through_the_member_that_took_it() {
    let world = World::settled(2);
    let (mut reader, mut writer) = (world.client(0), world.client(0));
    // Of its own rows a member closes the gates as their owner.
    let by_ring = || world.node(0).count(&["afterglow_hits_total", "tier=\"ring\""]);
    let mut is_of_other = |key: &String| {
        reader.put(key, "one");
        reader.value(key);
        let before = by_ring();
        reader.value(key);
        by_ring() > before
    };
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).filter(&mut is_of_other).collect();
    assert!(!keys.is_empty());
    let all = |value: &str| {
        let insert = |key| format!("INSERT INTO ks.t (k, v) VALUES ('{key}', '{value}'); ");
        let inserts: String = keys.iter().map(insert).collect();
        format!("BEGIN UNLOGGED BATCH {inserts} APPLY BATCH")
    };
    // What a held statement does is done at once; its answer waits.
    let held = world.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        scope.spawn(|| writer.run(&all("two")));
        held.wait_for(1);
        world.running().for_each(|node| set_policy(node, "ks.*=max-staleness=60s"));
        scope.spawn(|| direct(&world.database, &all("one")));
        held.wait_for(2);
        wait_until("this member has a copy of each row as it was", || {
            let before = world.node(0).hits();
            for key in &keys {
                assert_eq!(reader.value(key).as_deref(), Some("one"), "{key}");
            }
            world.node(0).hits() - before == keys.len() as u64
        });
        scope.spawn(|| direct(&world.database, &all("two")));
        held.wait_for(3);
        drop(held);
    });
    for key in &keys {
        assert_eq!(reader.value(key).as_deref(), Some("two"), "{key}");
    }
}

/// How a member ends in the middle of a round.
fn end(world: &mut World, victim: usize, how: u64) {
    let node = world.nodes[victim].take().expect("it runs");
    match how {
        0 => node.crash(),
        1 => node.stop(),
        _ => {
            node.crash();
            world.start(victim);
        }
    }
}

/// Clients of all members read and write the same rows while members die and come back.
#[test]
fn nothing_stale_is_read_while_members_die_and_return() {
    let mut world = World::settled(3);
    let seed = std::env::var("RING_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut random = Rng::new(seed);
    let mut below = move |n: usize| (random.next_u64() % n as u64) as usize;
    let mut clients: Vec<Client> = (0..3).map(|member| world.client(member)).collect();
    // What was acknowledged last of each row.
    let mut newest = [0_u64; 24];
    let mut next = 1;
    for round in 0..6 {
        let (victim, how) = (below(3), below(3) as u64);
        for step in 0..240 {
            let (row, member) = (below(newest.len()), below(3));
            if world.nodes[member].is_none() {
                continue;
            }
            let (key, client) = (format!("r{row}"), &mut clients[member]);
            if below(4) == 0 {
                let text = format!("INSERT INTO ks.t (k, v) VALUES ('{key}', '{next:06}')");
                if client.try_run(&text).is_ok() {
                    newest[row] = next;
                }
                next += 1;
            } else {
                let value = client.value(&key).map_or(0, |value| value.parse().unwrap());
                assert!(
                    value >= newest[row],
                    "seed {seed}, round {round}, step {step}: {key} through {member} is {value}, \
                     older than {}",
                    newest[row]
                );
            }
            if step == 80 {
                end(&mut world, victim, how);
                if world.nodes[victim].is_some() {
                    clients[victim] = world.client(victim);
                }
            }
            // The one that is away will come back with the policy and the rows of before.
            if step == 200 && world.nodes[victim].is_none() && below(2) == 0 {
                let rows = (0..newest.len()).step_by(3).zip(next..);
                rows.clone().for_each(|(row, value)| newest[row] = value);
                next += newest.len() as u64;
                world.write_past(
                    rows.map(|(row, value)| (format!("r{row}"), format!("{value:06}"))),
                );
            }
        }
        if world.nodes[victim].is_none() {
            world.start(victim);
            clients[victim] = world.client(victim);
        }
    }
    let hits: u64 = world.running().map(Node::hits).sum();
    assert!(hits > 100, "{hits} hits: too few to show anything");
}
