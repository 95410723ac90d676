//! A member that starts, until clients may come. One that stops while writes wait: for owners that
//! do not come, or to hear who else caches. What members ask of a database that does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterglow::metrics::RingEntry;
use afterglow::ring_link::{Secret, Secrets};
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Consistency;
use afterglow_cql::response::ErrorBody;
use afterglow_testkit::fake_backend::FakeBackend;

use crate::node::{database_that_may_be_mute, furnished, wait_until};
use crate::pipelined::Pipelined;
use crate::ring_world::World;

const WRITE: &str = "INSERT INTO ks.t (k, v) VALUES ('k0', 'waits')";

/// Has a client write, and stops the first member while the write waits. What the client hears.
fn stop_while_a_write_waits(world: &mut World, write: &str) -> String {
    let node = world.nodes[0].take().expect("it runs");
    let mut client = Pipelined::open(node.address);
    client.ask(1, write);
    // Once this is answered, what came before it has been taken.
    client.ask(2, "SELECT v FROM ks.other WHERE k = 'none'");
    assert_eq!(client.receive().header.stream, 2, "the write waits");
    node.stop();
    let answer = client.receive();
    assert_eq!((answer.header.stream, answer.header.opcode), (1, Opcode::Error));
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn a_member_that_stops_after_all_have_left_answers_writes_that_wait_for_an_owner() {
    let mut world = World::new(1);
    // Longer than a stop may take.
    world.setups[0].ring.as_mut().unwrap().protocol.write = 60_000_000;
    world.start(0);
    world.settle();
    world.node(0).ring().leave();
    wait_until("it has left", || world.node(0).ring().status().has_left());
    let heard = stop_while_a_write_waits(&mut world, WRITE);
    assert!(heard.contains("about to stop"), "{heard}");
}

/// An owner that has granted a write keeps its gates closed until it hears how that has ended, or
/// for longer than a hold.
#[test]
fn owners_of_a_write_that_was_refused_at_a_stop_cache_its_rows_again() {
    let mut world = World::new(3);
    for setup in &mut world.setups {
        setup.hold = Duration::from_secs(600);
        setup.ring.as_mut().unwrap().protocol.hold = 600_000_000;
    }
    (0..3).for_each(|member| world.start(member));
    world.settle();
    // One of the owners is not there to grant it.
    world.nodes[2].take().unwrap().crash();
    let heard = stop_while_a_write_waits(&mut world, "TRUNCATE ks.t");
    assert!(heard.contains("about to stop"), "{heard}");
    let mut client = world.client(1);
    let hits = ["afterglow_hits_total"];
    wait_until("a row is cached", || {
        client.value("k0");
        world.node(1).count(&hits) > 0
    });
}

#[test]
fn a_member_that_stops_before_it_knows_who_else_caches_answers_writes_that_wait() {
    let mute = Arc::new(AtomicBool::new(true));
    let mut world = World::over(database_that_may_be_mute("FROM afterglow.lease", &mute), 1);
    world.nodes[0] = Some(world.setups[0].start_without_lease());
    let heard = stop_while_a_write_waits(&mut world, WRITE);
    assert!(heard.contains("about to stop"), "{heard}");
}

/// It knows the ring's owners and who has the lease, and reaches none of them.
#[test]
fn an_instance_with_another_secret_is_not_ready_while_its_writes_would_wait() {
    let mut world = World::new(2);
    world.start(0);
    world.settle();
    let theirs = world.setups[1].ring.as_mut().unwrap();
    theirs.secrets = Secrets::of([Secret::of(b"another one, which is as long")]);
    theirs.protocol.write = 400_000;
    world.nodes[1] = Some(world.setups[1].start_without_lease());
    wait_until("it has read the map", || world.node(1).ring().status().version > 0);
    let mut client = world.client(1);
    wait_until("its writes wait for the owners, in vain", || {
        let heard = client.try_run(WRITE).expect_err("nobody grants it").to_string();
        heard.contains("cannot be reached")
    });
    assert_ne!(world.node(1).ring_entry(), RingEntry::Done);
}

/// It is ready once a write is answered without a wait, and stays so: all members would be taken
/// out of a load balancer at once when the ring is lost.
#[test]
fn clients_may_come_once_nothing_waits_for_the_ring_and_whatever_becomes_of_it() {
    let mute = Arc::<AtomicBool>::default();
    let mut world = World::over(database_that_may_be_mute("afterglow.", &mute), 1);
    mute.store(true, Ordering::SeqCst);
    world.setups[0].ring.as_mut().unwrap().protocol.confirm = 3_000_000;
    world.nodes[0] = Some(world.setups[0].start_without_lease());
    // A client that comes at the start has waited for it.
    drop(world.client(0));
    assert_ne!(world.node(0).ring_entry(), RingEntry::Done);
    mute.store(false, Ordering::SeqCst);
    wait_until("clients may come", || world.node(0).ring_entry() == RingEntry::Done);
    world.client(0).put("k0", "at once");
    world.settle();
    mute.store(true, Ordering::SeqCst);
    wait_until("its lease ends", || world.node(0).ring().status().lease_ms == 0);
    assert_eq!(world.node(0).ring_entry(), RingEntry::Done);
}

const LATE: [&str; 2] = ["afterglow_fills_total", "\"late\""];

/// Sends these reads to a member at one time, and waits for all answers.
fn read_together(world: &World, member: usize, reads: &[String]) {
    let mut client = Pipelined::open(world.node(member).address);
    for (stream, read) in reads.iter().enumerate() {
        client.ask(stream as i16, read);
    }
    for _ in reads {
        assert_eq!(client.receive().header.opcode, Opcode::Result);
    }
}

/// A fill that comes late costs the member that asks for it the whole wait.
#[test]
fn an_owner_passes_rows_of_a_table_that_the_database_is_late_with_and_fills_others() {
    // Statements of fills quote names, those of clients do not.
    let mute = Arc::<AtomicBool>::default();
    let mut world = World::over(database_that_may_be_mute("\"ks\".\"t\"", &mute), 2);
    (0..2).for_each(|member| world.start(member));
    world.settle();
    let mut client = world.client(1);
    let by_ring = ["afterglow_hits_total", "tier=\"ring\""];
    let is_the_other_s = |n: &i32| {
        let before = world.node(1).count(&by_ring);
        client.run(&format!("SELECT v FROM ks.other WHERE k = 'k{n}'"));
        world.node(1).count(&by_ring) > before
    };
    let keys: Vec<_> = (0..400).filter(is_the_other_s).take(30).collect();
    assert_eq!(keys.len(), 30);
    mute.store(true, Ordering::SeqCst);
    let read = |n: &i32| format!("SELECT v FROM ks.t WHERE k = 'k{n}'");
    let read_t = |keys: &[i32]| {
        read_together(&world, 1, &keys.iter().map(read).collect::<Vec<_>>());
    };
    let late = || world.node(0).count(&LATE);
    read_t(&keys[..14]);
    // Who asks may give up before the owner does.
    wait_until("fills are late", || late() >= 3);
    read_t(&keys[14..28]);
    // While one is tried.
    let installed = ["afterglow_fills_total", "installed"];
    let filled = world.node(0).count(&installed);
    let other = format!("SELECT v FROM ks.wide WHERE k = 'k{}' AND c = 1", keys[29]);
    read_together(&world, 1, &[read(&keys[28]), other]);
    assert_eq!(world.node(0).count(&installed), filled + 1, "another table is filled");
    assert!(late() < 28, "not all are tried");
}

#[test]
fn a_member_that_may_not_take_the_lease_asks_ever_more_rarely() {
    let asked = Arc::<Mutex<Vec<Instant>>>::default();
    let noted = asked.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let is_about = ask.text.contains("FROM afterglow.lease");
        if is_about && ask.consistency() == Some(Consistency::Serial) {
            noted.lock().unwrap().push(Instant::now());
        }
        if is_about {
            ask.error(&ErrorBody::new(ErrorCode::Unauthorized, "User x has no SELECT permission"));
        }
        is_about
    });
    let mut world = World::over(furnished(database.unwrap()), 1);
    world.nodes[0] = Some(world.setups[0].start_without_lease());
    wait_until("it has asked", || asked.lock().unwrap().len() >= 4);
    let asked = asked.lock().unwrap();
    let pauses: Vec<_> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[2] >= Duration::from_secs(2), "{pauses:?}");
}
