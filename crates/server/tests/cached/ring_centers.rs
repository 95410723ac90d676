//! Several rings over one database, one of which has the `exclusive` tables; and rings whose nodes
//! of the database, or those of other data centres, are away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use afterglow::frontend::cql::cached::MemberStatus;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::Version;
use afterglow_cql::message::Consistency;
use afterglow_cql::response::{ErrorBody, Event, SchemaChange, SchemaTarget};
use afterglow_testkit::fake_backend::FakeBackend;

use crate::node::{Client, Node, direct, furnished, wait_until};
use crate::ring_world::{FILLS, World, set_policy};

const BOUNDED: &str = "ks.*=max-staleness=60s";
const EXCLUSIVE: &str = "ks.*=exclusive";
const RELEASE: &str = "UPDATE afterglow.lease SET owner = null WHERE scope = 'cql' IF EXISTS";
const WRITE: &str = "INSERT INTO ks.t (k, v) VALUES ('k0', 'refused')";

/// A ring of one whose tables have a bound.
fn bounded(mut world: World) -> World {
    world.setups[0].policy = BOUNDED;
    world.start(0);
    world.settle();
    world
}

/// Says in which data centres the keyspace has replicas.
fn set_replicas(world: &World, centers: &str) {
    let class = "'class': 'NetworkTopologyStrategy'";
    let text = format!("ALTER KEYSPACE afterglow WITH replication = {{{class}, {centers}}}");
    direct(&world.database, &text);
}

/// A clean stop and a start: what was cached is written out.
fn come_back(world: &mut World) {
    world.nodes[0].take().unwrap().stop();
    world.start(0);
    world.settle();
}

/// Reads rows until they are hits; whatever they are.
fn fill(client: &mut Client, node: &Node) {
    wait_until("rows are hits", || {
        let before = node.hits();
        (0..10).for_each(|n| drop(client.value(&format!("k{n}"))));
        node.hits() >= before + 10
    });
}

/// Has the only member cache rows that outlast a restart, and stops it.
fn leave_rows(home: &mut World, client: &mut Client) {
    (0..10).for_each(|n| client.put(&format!("k{n}"), "one"));
    fill(client, home.node(0));
    come_back(home);
    fill(&mut home.client(0), home.node(0));
    assert_eq!(home.node(0).count(&FILLS), 0, "its rows outlast a restart");
    home.nodes[0].take().unwrap().stop();
}

#[test]
fn a_ring_without_exclusive_tables_leaves_the_lease_to_another_and_refuses_nobody() {
    let near = bounded(World::new(1));
    let mut home = near.beside("home", 1);
    home.start(0); // It has the lease.
    home.settle();
    let (mut here, mut there) = (near.client(0), home.client(0));
    for n in 0..10 {
        here.put(&format!("k{n}"), "one");
        there.put(&format!("k{n}"), "two");
        assert_eq!(there.value(&format!("k{n}")).as_deref(), Some("two"));
    }
    fill(&mut here, near.node(0));
    fill(&mut there, home.node(0));
}

#[test]
fn the_home_moves_to_another_ring_and_the_old_one_believes_nothing_of_before() {
    let home = World::settled(1);
    let next = bounded(home.beside("next", 1));
    let (mut old, mut new) = (home.client(0), next.client(0));
    (0..10).for_each(|n| old.put(&format!("k{n}"), "one"));
    fill(&mut old, home.node(0));

    set_policy(home.node(0), BOUNDED);
    home.node(0).wait_for_lease("not_needed");
    direct(&home.database, RELEASE);
    set_policy(next.node(0), EXCLUSIVE);
    next.node(0).wait_for_lease("held");
    (0..10).for_each(|n| new.put(&format!("k{n}"), "two"));
    fill(&mut new, next.node(0));

    // By mistake the old one says so too, with rows of before.
    set_policy(home.node(0), EXCLUSIVE);
    home.node(0).wait_for_lease("held_by_other");
    let refused = old.try_run(WRITE).unwrap_err().to_string();
    assert!(refused.contains("another ring"), "{refused}");
    let hits = home.node(0).hits();
    for n in 0..10 {
        new.put(&format!("k{n}"), "three");
        assert_eq!(old.value(&format!("k{n}")).as_deref(), Some("three"));
    }
    assert_eq!(home.node(0).hits(), hits);
    set_policy(home.node(0), BOUNDED);
    wait_until("the old one takes writes again", || old.try_run(WRITE).is_ok());
}

/// Its map and its shards are as they were, and it is back in time.
#[test]
fn a_member_that_was_away_while_another_ring_was_the_home_serves_nothing_of_before() {
    let mut home = World::settled(1);
    let next = bounded(home.beside("next", 1));
    let (mut old, mut new) = (home.client(0), next.client(0));
    leave_rows(&mut home, &mut old);
    direct(&home.database, RELEASE);
    set_policy(next.node(0), EXCLUSIVE);
    next.node(0).wait_for_lease("held");
    (0..10).for_each(|n| new.put(&format!("k{n}"), "two"));
    set_policy(next.node(0), BOUNDED);
    next.node(0).wait_for_lease("not_needed");
    direct(&home.database, RELEASE);
    home.start(0);
    home.settle();
    let mut old = home.client(0);
    for n in 0..10 {
        assert_eq!(old.value(&format!("k{n}")).as_deref(), Some("two"), "k{n}");
    }
    fill(&mut old, home.node(0));
}

/// An operator has given it away too early.
#[test]
fn a_ring_that_loses_the_lease_hears_of_it() {
    let mut home = World::new(1);
    home.setups[0].ring.as_mut().unwrap().protocol.confirm = 3_000_000;
    home.start(0);
    home.settle();
    let mut client = home.client(0);
    (0..10).for_each(|n| client.put(&format!("k{n}"), "one"));
    fill(&mut client, home.node(0));
    let other = "00000000-0000-4000-8000-000000000001";
    let give = format!("UPDATE afterglow.lease SET owner = {other}, epoch = 9 WHERE scope = 'cql'");
    direct(&home.database, &give);
    home.node(0).wait_for_lease("held_by_other");
    assert!(client.try_run(WRITE).is_err());
    let hits = home.node(0).hits();
    for n in 0..10 {
        direct(&home.database, &format!("INSERT INTO ks.t (k, v) VALUES ('k{n}', 'two')"));
        assert_eq!(client.value(&format!("k{n}")).as_deref(), Some("two"));
    }
    assert_eq!(home.node(0).hits(), hits);
    direct(&home.database, RELEASE);
    home.node(0).wait_for_lease("held");
    fill(&mut client, home.node(0));
    assert_eq!(client.value("k3").as_deref(), Some("two"));
}

/// The row's epochs begin anew then, and come to be those that rows were cached under.
#[test]
fn a_lease_that_was_deleted_meanwhile_is_another_one() {
    let mut home = World::settled(1);
    let next = bounded(home.beside("next", 1));
    let (mut old, mut new) = (home.client(0), next.client(0));
    leave_rows(&mut home, &mut old);
    direct(&home.database, "TRUNCATE afterglow.lease");
    set_policy(next.node(0), EXCLUSIVE);
    next.node(0).wait_for_lease("held");
    (0..10).for_each(|n| new.put(&format!("k{n}"), "two"));
    set_policy(next.node(0), BOUNDED);
    next.node(0).wait_for_lease("not_needed");
    direct(&home.database, "TRUNCATE afterglow.lease");
    home.start(0);
    home.settle();
    let mut old = home.client(0);
    for n in 0..10 {
        assert_eq!(old.value(&format!("k{n}")).as_deref(), Some("two"), "k{n}");
    }
    fill(&mut old, home.node(0));
}

/// Whoever came first has made the keyspace for its own data centre alone.
#[test]
fn a_ring_forms_only_where_its_keyspace_has_replicas() {
    let asked = Arc::<AtomicU64>::default();
    let counted = asked.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let is_of_map = ask.text.contains("FROM afterglow.ring");
        counted.fetch_add(u64::from(is_of_map), Ordering::SeqCst);
        false
    });
    let mut world = World::over(furnished(database.unwrap()), 1);
    set_replicas(&world, "'elsewhere': 1");
    world.nodes[0] = Some(world.setups[0].start_without_lease());
    // Clients wait at the start for what may come.
    let mut client = world.client(0);
    assert_eq!(client.value("k0"), None);
    assert_eq!(asked.load(Ordering::SeqCst), 0, "no transaction is tried that cannot be");
    set_replicas(&world, "'elsewhere': 1, 'datacenter1': 1");
    world.settle();
    wait_until("it takes writes", || client.try_run(WRITE).is_ok());
}

/// The lease's row is asked for at SERIAL, of a majority of all data centres.
#[test]
fn a_member_restarts_while_other_data_centers_are_away_and_no_other_ring_takes_the_lease() {
    let away = Arc::<AtomicBool>::default();
    let is_away = away.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let near = ask.consistency() == Some(Consistency::LocalQuorum);
        let fails = is_away.load(Ordering::SeqCst) && ask.text.contains("afterglow.lease") && !near;
        if fails {
            ask.error(&ErrorBody::new(ErrorCode::Overloaded, "too few replicas"));
        }
        fails
    });
    let mut world = World::over(furnished(database.unwrap()), 1);
    world.start(0);
    world.settle();
    away.store(true, Ordering::SeqCst);
    world.nodes[0].take().unwrap().crash();
    world.start(0); // It has the lease.
    world.settle();
    let mut client = world.client(0);
    wait_until("it takes writes", || client.try_run(WRITE).is_ok());
    let mut other = world.beside("other", 1);
    other.nodes[0] = Some(other.setups[0].start_without_lease());
    assert!(other.client(0).try_run(WRITE).is_err(), "clients have waited for it");
}

/// As when somebody has dropped the keyspace: it says so, and not only that nothing is confirmed.
#[test]
fn a_member_that_the_database_does_not_confirm_says_why() {
    let dropped = Arc::<AtomicBool>::default();
    let is_dropped = dropped.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let fails = is_dropped.load(Ordering::SeqCst) && ask.text.contains("afterglow.ring");
        if fails {
            ask.error(&ErrorBody::new(ErrorCode::Invalid, "unconfigured table ring"));
        }
        fails
    });
    let mut world = World::over(furnished(database.unwrap()), 1);
    world.setups[0].ring.as_mut().unwrap().protocol.confirm = 3_000_000;
    world.start(0);
    world.settle();
    let trouble = |world: &World| world.node(0).ring().status().trouble;
    assert_eq!(trouble(&world), None);
    dropped.store(true, Ordering::SeqCst);
    let says = |world: &World| trouble(world).is_some_and(|why| why.contains("unconfigured table"));
    wait_until("it says why", || says(&world));
    wait_until("its lease ends", || {
        assert!(says(&world), "all the time: {:?}", trouble(&world));
        world.node(0).ring().status().lease_ms == 0
    });
    dropped.store(false, Ordering::SeqCst);
    wait_until("it has a lease again", || world.node(0).ring().status().lease_ms > 0);
    assert_eq!(trouble(&world), None);
}

/// The lease's row is gone with the keyspace, and whoever comes founds another ring at once. A
/// member that hears of it has no lease then, though it read the map a moment ago.
#[test]
fn a_member_that_hears_that_the_map_was_dropped_has_no_lease_until_it_reads_it_again() {
    let hangs = Arc::<AtomicBool>::default();
    let is_hanging = hangs.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        is_hanging.load(Ordering::SeqCst) && ask.text.contains("afterglow.ring")
    });
    let mut world = World::over(furnished(database.unwrap()), 1);
    world.setups[0].ring.as_mut().unwrap().protocol.confirm = 600_000_000;
    world.start(0);
    world.settle();
    let lease = |world: &World| world.node(0).ring().status().lease_ms;
    hangs.store(true, Ordering::SeqCst);
    let keyspace = |change, keyspace| {
        let target = SchemaTarget::Keyspace;
        Event::Schema(SchemaChange { change, target, keyspace })
    };
    world.database.announce(&keyspace("DROPPED", "ks2"));
    world.database.announce(&keyspace("UPDATED", "afterglow"));
    assert!(lease(&world) > 0);
    world.database.announce(&keyspace("DROPPED", "afterglow"));
    wait_until("its lease ends", || lease(&world) == 0);
    hangs.store(false, Ordering::SeqCst);
    wait_until("it has a lease again", || lease(&world) > 0);
}

/// Its user has no right to change the map, as after a mistake of the operator. What it is told
/// comes and goes with the refusal.
#[test]
fn a_member_whose_changes_of_the_map_are_refused_says_why_and_goes_on_when_they_no_longer_are() {
    let refused = Arc::<AtomicBool>::default();
    let is_refused = refused.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let changes = ask.text.starts_with("UPDATE afterglow.ring");
        let fails = is_refused.load(Ordering::SeqCst) && changes;
        if fails {
            ask.error(&ErrorBody::new(ErrorCode::Unauthorized, "User x has no MODIFY permission"));
        }
        fails
    });
    let mut world = World::over(furnished(database.unwrap()), 4);
    (0..4).for_each(|member| world.start(member));
    world.settle();
    refused.store(true, Ordering::SeqCst);
    world.nodes[3].take().unwrap().crash();
    let status = |member: usize| world.node(member).ring().status();
    let why = |member| status(member).refusal.unwrap_or_default();
    for member in 0..3 {
        wait_until("it says why", || why(member).contains("no MODIFY permission"));
        assert_eq!(world.node(member).count(&["afterglow_ring_changes_refused"]), 1);
        assert_eq!(status(member).members.len(), 4);
    }
    refused.store(false, Ordering::SeqCst);
    // One of them changes the map. The others have nothing to change, and know it all the same.
    for member in 0..3 {
        wait_until("the dead member is gone", || status(member).members.len() == 3);
        wait_until("it says nothing more", || status(member).refusal.is_none());
        assert_eq!(world.node(member).count(&["afterglow_ring_changes_refused"]), 0);
    }
}

/// Its address is another node's by now, or a name of several nodes. Transactions at LOCAL_SERIAL
/// of two data centres know nothing of each other.
#[test]
fn a_node_that_is_in_another_data_center_is_not_asked_for_the_map() {
    let (maps, looks) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (of_maps, of_looks) = (maps.clone(), looks.clone());
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let is_of_map = ask.text.contains("afterglow.ring");
        of_maps.fetch_add(u64::from(is_of_map), Ordering::SeqCst);
        // The control connection asks so too.
        let looks = ask.text.contains("data_center") && ask.text.contains("FROM system.local");
        of_looks.fetch_add(u64::from(looks), Ordering::SeqCst);
        false
    });
    let mut world = World::over(furnished(database.unwrap()), 1);
    world.setups[0].ring.as_mut().unwrap().protocol.confirm = 3_000_000;
    world.start(0);
    world.settle();
    world.database.set_down(true);
    world.database.set_data_center("elsewhere");
    let refused = world.database.refused();
    wait_until("its connections have ended", || world.database.refused() > refused);
    let (asked, looked) = (maps.load(Ordering::SeqCst), looks.load(Ordering::SeqCst));
    world.database.set_down(false);
    wait_until("it has looked", || looks.load(Ordering::SeqCst) >= looked + 6);
    assert_eq!(maps.load(Ordering::SeqCst), asked);
    world.database.set_data_center("datacenter1");
    wait_until("it reads the map again", || maps.load(Ordering::SeqCst) > asked);
}

/// For so long what the holder before has written may be missing on a replica. The database's clock
/// is behind ours, which is the same as ours ahead of it.
#[test]
fn a_clock_that_is_ahead_makes_no_lease_older() {
    let mut world = World::new(1);
    world.database.set_behind(Duration::from_secs(3_600));
    direct(&world.database, "INSERT INTO afterglow.lease (scope, epoch) VALUES ('cql', 7)");
    let setup = &mut world.setups[0];
    setup.times.weak_max_age = Duration::from_secs(2);
    setup.hold = Duration::from_secs(60);
    setup.ring.as_mut().unwrap().protocol.hold = 60_000_000;
    world.start(0);
    world.settle();
    let mut client = world.client(0);
    (0..10).for_each(|n| client.put(&format!("k{n}"), "one"));
    fill(&mut client, world.node(0));
    let fills = world.node(0).count(&FILLS);
    wait_until("its rows have lived for a short time", || {
        (0..10).for_each(|n| drop(client.value(&format!("k{n}"))));
        world.node(0).count(&FILLS) >= fills + 10
    });
}

/// Both have the same name and secret: only their data centre tells them apart.
#[test]
fn a_ring_whose_data_center_is_away_stays_out_of_the_others() {
    let world = World::new(1);
    let elsewhere = world.database.join().unwrap();
    elsewhere.set_data_center("elsewhere");
    set_replicas(&world, "'elsewhere': 1, 'datacenter1': 1");
    let mut far = world.beside("test", 1);
    far.setups[0].database = elsewhere.address();
    let (world, far) = (bounded(world), bounded(far));
    let ring = |world: &World| {
        let status = world.node(0).ring().status();
        let member = |member: MemberStatus| (member.id, member.state, member.shards);
        (status.version, status.members.into_iter().map(member).collect::<Vec<_>>())
    };
    let before = ring(&far);
    world.database.set_down(true);
    let refused = world.database.refused();
    wait_until("it has looked for its nodes", || world.database.refused() >= refused + 5);
    assert_eq!(ring(&far), before);
    let mut client = far.client(0);
    client.put("k1", "one");
    world.database.set_down(false);
    world.settle();
    let mut client = world.client(0);
    wait_until("it serves its own again", || client.value("k1").as_deref() == Some("one"));
}
