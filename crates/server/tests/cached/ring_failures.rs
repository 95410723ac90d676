//! What goes wrong in a ring, and what its operator is told: nodes of the database that are away, a
//! map that cannot be read, addresses that lead nowhere, instances of other rings. And what an
//! operator sees of shards that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use afterglow::frontend::cql::cached::MoveStatus;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::Version;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::message::{Consistency, QueryParams, ValuesBuilder};
use afterglow_cql::response::{ErrorBody, ErrorDetail};
use afterglow_loadgen::cql::{ConnectOptions, Connection, CqlError};
use afterglow_ring::Map;
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use crate::logged::{keep_log, logged};
use crate::node::{
    Client, Node, Setup, database, database_that_may_be_mute, direct, furnished, wait_until,
};
use crate::ring_world::{World, set_policy};

const WRITE: &str = "INSERT INTO ks.t (k, v) VALUES ('k0', 'two')";
const OVERLOADED: i32 = 0x1001;

/// One whose lease ends 3 s after the map was last read, and whose writes give up after 1 s.
fn hasty(world: &mut World) {
    for setup in &mut world.setups {
        let protocol = &mut setup.ring.as_mut().unwrap().protocol;
        (protocol.confirm, protocol.write) = (3_000_000, 1_000_000);
    }
}

/// Writes 'one' and waits until it is a hit.
fn fill(client: &mut Client, node: &Node) {
    client.put("k0", "one");
    wait_for_a_hit(client, node);
}

fn wait_for_a_hit(client: &mut Client, node: &Node) {
    wait_until("it is a hit", || {
        let before = node.hits();
        client.value("k0");
        node.hits() > before
    });
}

/// What was a hit is asked of the database, and writes are refused.
fn has_no_lease(client: &mut Client, world: &World) {
    let (node, passed) = (world.node(0), |node: &Node| node.count(&["afterglow_passes_total"]));
    wait_until("its lease ends", || node.ring().status().lease_ms == 0);
    let before = (node.hits(), passed(node));
    direct(&world.database, "INSERT INTO ks.t (k, v) VALUES ('k0', 'past the ring')");
    assert_eq!(client.value("k0").as_deref(), Some("past the ring"), "the database answers");
    assert!(node.hits() == before.0 && passed(node) > before.1);
    match client.try_run(WRITE) {
        Err(CqlError::Server(error)) => assert_eq!(error.code, OVERLOADED, "{error}"),
        other => panic!("it was not refused: {other:?}"),
    }
    direct(&world.database, "INSERT INTO ks.t (k, v) VALUES ('k0', 'one')");
}

/// A database that answers requests about its keyspace `afterglow` so while that is set.
fn lacking(nodes: &'static str, lacks: &Arc<AtomicBool>) -> FakeBackend {
    let lacks = lacks.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let fails = lacks.load(Ordering::SeqCst) && ask.text.contains("afterglow.");
        if fails {
            let consistency = ask.consistency().unwrap_or(Consistency::Serial);
            let detail = ErrorDetail::Unavailable { consistency, required: 2, alive: 1 };
            let code = ErrorCode::Unavailable;
            ask.error(&ErrorBody { code, message: nodes, detail });
        }
        fails
    });
    furnished(database.unwrap())
}

#[test]
fn a_member_whose_database_lacks_nodes_says_what_to_do_and_goes_on_when_they_are_back() {
    keep_log();
    let lacks = Arc::<AtomicBool>::default();
    let mut world = World::over(lacking("no two of a member", &lacks), 1);
    hasty(&mut world);
    world.start(0);
    world.settle();
    let mut client = world.client(0);
    fill(&mut client, world.node(0));
    lacks.store(true, Ordering::SeqCst);
    has_no_lease(&mut client, &world);
    let trouble = world.node(0).ring().status().trouble.unwrap();
    assert!(trouble.contains("no two of a member") && trouble.contains("ALTER"), "{trouble}");
    let said = |first| logged(&[first, "no two of a member", "ALTER KEYSPACE"]);
    wait_until("it says that soon", || said("has not shown the ring's map for some seconds") == 1);
    wait_until("it says that it has no lease", || said("has no lease of its ring") == 1);
    lacks.store(false, Ordering::SeqCst);
    wait_for_a_hit(&mut client, world.node(0));
    assert_eq!(client.value("k0").as_deref(), Some("one"));
    assert_eq!(world.node(0).ring().status().trouble, None);
    wait_until("it takes writes", || client.try_run(WRITE).is_ok());
    assert_eq!(client.value("k0").as_deref(), Some("two"));
}

/// As where the cluster has grown since the keyspace was made.
#[test]
fn a_member_says_that_its_map_is_on_fewer_nodes_than_it_could_be() {
    keep_log();
    let database = database();
    let _others: Vec<FakeBackend> = (0..4).map(|_| database.join().unwrap()).collect();
    let mut world = World::over(database, 1);
    world.start(0);
    world.settle();
    let said = ["has replicas on 1 of 5 nodes", "'datacenter1': 2}", "nodetool repair --full"];
    wait_until("it says that", || logged(&said) == 1);
    let status = || world.node(0).ring().status().lack;
    wait_until("its status says so", || status().is_some_and(|lack| says(&lack, &said)));
    let afterglow = "ALTER KEYSPACE afterglow WITH replication = \
                     {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}";
    direct(&world.database, afterglow);
    wait_until("it lacks nothing then", || status().is_none());
}

/// As where an instance without a ring was there before its cluster grew.
#[test]
fn an_instance_alone_says_that_its_lease_is_on_fewer_nodes_than_it_could_be() {
    keep_log();
    let database = database();
    let _others: Vec<FakeBackend> = (0..5).map(|_| database.join().unwrap()).collect();
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let said = ["has replicas on 1 of 6 nodes", "the lease ends", "nodetool repair --full"];
    wait_until("it says that", || logged(&said) == 1);
    node.stop();
}

fn says(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

/// As where the keyspace is to have more replicas than there are nodes.
#[test]
fn an_instance_that_starts_while_the_database_lacks_nodes_says_what_to_do() {
    keep_log();
    let lacks = Arc::new(AtomicBool::new(false));
    let mut world = World::over(lacking("no two of a starter", &lacks), 1);
    lacks.store(true, Ordering::SeqCst);
    hasty(&mut world);
    world.nodes[0] = Some(world.setups[0].start_without_lease());
    let said = |first| logged(&[first, "no two of a starter", "ALTER KEYSPACE"]) > 0;
    wait_until("it says so of the map", || said("has not shown the ring's map"));
    wait_until("it says so of the lease", || said("the ring cannot take the lease"));
    lacks.store(false, Ordering::SeqCst);
    world.settle();
    wait_until("it takes writes", || world.client(0).try_run(WRITE).is_ok());
}

/// The map in the database's row.
fn map_of(world: &World) -> Vec<u8> {
    let mut past = past(world);
    let text = "SELECT map FROM afterglow.ring WHERE data_center = 'datacenter1' AND name = 'test'";
    let mut rows = past.query(text, Consistency::One).unwrap();
    rows.pop().unwrap().pop().unwrap().unwrap()
}

fn past(world: &World) -> Connection {
    let address = world.database.address().to_string();
    Connection::open(&address, &ConnectOptions::default()).unwrap()
}

/// Puts it there, past the ring.
fn set_map(world: &World, map: &[u8]) {
    let mut past = past(world);
    let text =
        "UPDATE afterglow.ring SET map = ? WHERE data_center = 'datacenter1' AND name = 'test'";
    let prepared = past.prepare(text).unwrap();
    let mut bound = ValuesBuilder::positional();
    bound.push(Value::Bytes(map));
    let params = QueryParams { values: bound.view(), ..QueryParams::new(Consistency::One) };
    past.execute(&prepared, &params).unwrap();
}

/// As another release may have written it, or nobody.
#[test]
fn a_map_that_cannot_be_read_is_told_with_what_to_do_and_reads_pass_through() {
    keep_log();
    let mut world = World::new(2);
    hasty(&mut world);
    world.start(0);
    world.settle();
    let mut client = world.client(0);
    fill(&mut client, world.node(0));
    let map = map_of(&world);
    let later = [&[99], &map[1..]].concat();
    let said = |why, remedy| logged(&["cannot be a member of its ring", why, remedy]);
    for (unread, why, remedy) in [
        (later, "a newer format", "Upgrade this instance"),
        (map[..map.len() / 2].to_vec(), "the bytes end too early", "TRUNCATE afterglow.ring"),
        (Map::empty(16).encode(), "the ring has 16 shards", "--ring-name"),
    ] {
        set_map(&world, &unread);
        has_no_lease(&mut client, &world);
        let trouble = world.node(0).ring().status().trouble.unwrap();
        assert!(trouble.contains(why) && trouble.contains(remedy), "{trouble}");
        assert_eq!(said(why, remedy), 1);
        // One that starts now hears the same at once, and answers reads.
        world.nodes[1] = Some(world.setups[1].start_without_lease());
        wait_until("it says so", || said(why, remedy) == 2);
        assert_eq!(world.client(1).value("k0").as_deref(), Some("one"));
        world.nodes[1].take().unwrap().stop();
        set_map(&world, &map);
        wait_for_a_hit(&mut client, world.node(0));
    }
    assert!(client.try_run(WRITE).is_ok());
}

/// Its links lead to the members, and none of theirs to it. One that comes after it finds no way to
/// it either, and needs its promise.
#[test]
fn an_instance_that_others_cannot_reach_is_told_of_with_what_to_do() {
    keep_log();
    let mut world = World::new(3);
    let nowhere = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    world.setups[1].ring.as_mut().unwrap().advertised = nowhere.clone();
    (0..2).for_each(|member| world.start(member));
    world.settle();
    let told = ["no link of the ring with the peer at", &nowhere, "its --ring-advertise must lead"];
    wait_until("a member says so", || logged(&told) > 0);
    world.nodes[2] = Some(world.setups[2].start_without_lease());
    let link_error = || {
        let status = world.node(2).ring().status();
        let member = status.members.into_iter().find(|member| member.address == nowhere);
        member.and_then(|member| member.link_error)
    };
    wait_until("the next one says so too", || {
        link_error().is_some_and(|why| why.contains("its --ring-advertise must lead"))
    });
    // For longer than who is let in waits.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(world.node(0).ring().status().members.len(), 2, "it stays outside");
    assert!(world.client(2).try_run("SELECT v FROM ks.t WHERE k = 'k0'").is_ok());
}

/// It is started over another database, under its address and name of before: the members of its
/// old ring find it there.
#[test]
fn an_instance_that_has_gone_to_another_ring_is_told_of_what_its_old_one_says() {
    keep_log();
    let mut old = World::new(2);
    for setup in &mut old.setups {
        // It is not put out before it is back.
        setup.ring.as_mut().unwrap().protocol.silence = 60_000_000;
    }
    (0..2).for_each(|member| old.start(member));
    old.settle();
    let mut new = World::new(1);
    new.start(0);
    new.settle();
    old.nodes[1].take().unwrap().crash();
    old.setups[1].database = new.database.address();
    old.nodes[1] = Some(old.setups[1].start_without_lease());
    let me = old.node(0).ring().status().me;
    let said = [me.as_str(), "are of two rings", "Look at this one's --backend first"];
    wait_until("it says so", || logged(&said) == 1);
    wait_until("it is in the other ring", || {
        let status = old.node(1).ring().status();
        status.members.iter().any(|member| member.id == new.node(0).ring().status().me)
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(logged(&said), 1, "once a minute");
}

/// Moves of a step, as one member sees them: from whom to whom, and how many shards.
fn moves(node: &Node, step: &str) -> Vec<(Option<String>, String, usize)> {
    let moves = node.ring().status().moves.into_iter();
    let of_step = moves.filter(|moved| moved.step == step);
    of_step.map(|MoveStatus { from, to, shards, .. }| (from, to, shards)).collect()
}

#[test]
fn an_operator_sees_shards_that_move_leases_and_who_owns_what() {
    let mute = Arc::<AtomicBool>::default();
    let database = database_that_may_be_mute("UPDATE afterglow.ring SET", &mute);
    let mut world = World::over(database, 2);
    // Long enough after it has joined.
    world.setups[1].ring.as_mut().unwrap().protocol.stable = 40_000_000;
    world.start(0);
    world.settle();
    let alone = world.node(0).ring().status_with_ranges();
    assert_eq!((alone.ranges.len(), alone.moves.len()), (1, 0));
    assert_eq!(alone.ranges[0].owner.as_ref(), Some(&alone.me));
    let joiner = world.setups[1].start_without_lease();
    wait_until("it is a member", || joiner.ring().status().lease_ms > 0);
    mute.store(true, Ordering::SeqCst);
    world.nodes[1] = Some(joiner);
    let me = [0, 1].map(|member| world.node(member).ring().status().me);
    let one_way = |shards| vec![(Some(me[0].clone()), me[1].clone(), shards)];
    for node in world.running() {
        wait_until("it is to come", || moves(node, "to come") == one_way(2_048));
    }
    wait_until("the new owner has asked", || moves(world.node(1), "asked for") == one_way(64));
    wait_until("the old one hands over", || moves(world.node(0), "handed over") == one_way(64));
    mute.store(false, Ordering::SeqCst);
    world.settle();
    let status = [0, 1].map(|member| world.node(member).ring().status_with_ranges());
    assert_eq!(moves(world.node(0), "to come"), []);
    assert_eq!(moves(world.node(1), "pulled"), one_way(2_048));
    for status in &status {
        let of = |owner| {
            let ranges = status.ranges.iter().filter(|range| range.owner.as_ref() == Some(owner));
            ranges.map(|range| range.last_shard + 1 - range.first_shard).sum::<usize>()
        };
        assert_eq!([&me[0], &me[1]].map(of), [2_048, 2_048]);
        assert!(status.members.iter().all(|member| member.ranges > 1), "they are scattered");
        let other = status.members.iter().find(|member| member.id != status.me).unwrap();
        assert!(other.lease.answered_ms.is_some_and(|ms| ms < 60_000), "{other:?}");
        assert!(other.lease.database_ms.is_some(), "{other:?}");
    }
    wait_until("each knows of the other's promise", || {
        world.running().all(|node| {
            let members = node.ring().status().members;
            members.iter().all(|member| member.lease.bound_ms > Some(0))
                && members.iter().any(|member| member.lease.promises_ms.is_some_and(|ms| ms > 0))
        })
    });
}

/// A restart would find the claim of before. Whoever sees in the map that nothing is cached may
/// write past the ring until then.
#[test]
fn others_do_not_hear_that_nothing_is_cached_while_a_restart_would_cache() {
    keep_log();
    let mut world = World::new(2);
    world.start(0);
    world.start(1);
    world.settle();
    let says_others = || {
        let members = world.node(0).ring().status().members;
        members.iter().any(|member| member.differs == ["table-policy"])
    };
    // It is written beside its last version, also while this looks.
    let beside = world.setups[1].directory.join("instance.toml.new");
    wait_until("nothing can be written there", || {
        std::fs::remove_file(&beside).unwrap();
        std::fs::create_dir(&beside).is_ok()
    });
    set_policy(world.node(1), "ks.*=off");
    wait_until("the file cannot be written", || {
        logged(&["the instance file cannot be written"]) == 1
    });
    let mut client = world.client(1);
    for _ in 0..200 {
        client.value("k0");
        assert!(!says_others());
    }
    std::fs::remove_dir(&beside).unwrap();
    wait_until("the map says it", says_others);
}
