//! What else happens while a plain write of unknown outcome is sent again: TRUNCATE, the end of the
//! lease, the end of its client.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use afterglow::frontend::cql::cached::Times;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams};
use afterglow_cql::response::{ErrorBody, ErrorDetail};
use afterglow_testkit::fake_backend::{Ask, FakeBackend};
use tempfile::TempDir;

use crate::node::{Client, House, Setup, furnished, micros, one_text, wait_until};
use crate::pipelined::Pipelined;

/// What is about one of these is the write in doubt.
const IN_DOUBT: &str = "'in doubt'";
const REMOVAL: &str = "TRUNCATE ks.t";
/// Long enough for what must not happen to happen. What is right does not depend on it.
const A_WHILE: Duration = Duration::from_millis(500);

/// What the database does about the write in doubt.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Doing {
    /// Nothing, and says that it took too long.
    Refuses,
    /// Nothing yet.
    Keeps,
    /// What it is asked for.
    Takes,
}

/// The script of a database that has a write in doubt, and of the lease's row.
#[derive(Default)]
struct Script {
    doing: AtomicU8,
    lease_is_mute: AtomicU8,
    /// A removal is kept like what is in doubt.
    keeps_removals: AtomicU8,
    kept: Mutex<Vec<Arc<Ask>>>,
}

impl Script {
    fn set(&self, doing: Doing) {
        self.doing.store(doing as u8, Ordering::SeqCst);
    }

    fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    fn takes(&self, ask: &Arc<Ask>) -> bool {
        if ask.text.contains("afterglow.lease") {
            return self.lease_is_mute.load(Ordering::SeqCst) > 0;
        }
        if ask.text == REMOVAL && self.keeps_removals.load(Ordering::SeqCst) > 0 {
            self.kept.lock().unwrap().push(ask.clone());
            return true;
        }
        let doing = self.doing.load(Ordering::SeqCst);
        if !ask.text.contains(IN_DOUBT) || doing == Doing::Takes as u8 {
            return false;
        }
        if doing == Doing::Keeps as u8 {
            self.kept.lock().unwrap().push(ask.clone());
        } else {
            ask.error(&ErrorBody {
                code: ErrorCode::WriteTimeout,
                message: "too late",
                detail: ErrorDetail::WriteTimeout {
                    consistency: Consistency::LocalQuorum,
                    received: 0,
                    block_for: 1,
                    write_type: "SIMPLE",
                    contentions: None,
                },
            });
        }
        true
    }
}

fn house(change: impl FnOnce(&mut Setup)) -> (House, Arc<Script>) {
    let script = Arc::<Script>::default();
    let scripted = script.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| scripted.takes(ask)).unwrap();
    let (database, directory) = (furnished(database), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    change(&mut setup);
    (House { node: setup.start(), database, directory }, script)
}

fn in_doubt(client: &mut Client, script: &Script) {
    insert_in_doubt(client, script, "ks.t", "'a'");
}

fn insert_in_doubt(client: &mut Client, script: &Script, table: &str, key: &str) {
    script.set(Doing::Refuses);
    assert_eq!(try_in_doubt(client, table, key), Opcode::Error);
}

fn try_in_doubt(client: &mut Client, table: &str, key: &str) -> Opcode {
    let params =
        QueryParams { timestamp: Some(micros(10)), ..QueryParams::new(Consistency::LocalQuorum) };
    let text = format!("INSERT INTO {table} (k, v) VALUES ({key}, {IN_DOUBT})");
    client.query_with(Flags::NONE, &text, params, &[]).header.opcode
}

/// What the database has, seen past Afterglow.
fn stored(house: &House) -> Option<String> {
    one_text(house.past().query("SELECT v FROM ks.t WHERE k = 'a'", Consistency::One).unwrap())
}

fn counted(house: &House, name: &str) -> u64 {
    house.node.count(&[name])
}

/// A coordinator goes on with a write though the connection is lost that it came by.
#[test]
fn what_removes_the_table_waits_for_an_attempt_whose_connection_was_lost() {
    let (house, script) = house(|setup| setup.hold = Duration::from_secs(5));
    let mut client = house.node.client(Version::V5);
    in_doubt(&mut client, &script);
    script.set(Doing::Keeps);
    wait_until("it is sent again", || script.kept() == 1);
    house.database.hang_up();
    let attempt = script.kept.lock().unwrap().pop().unwrap();
    wait_until("the end of the connection is seen", || {
        house.node.client(Version::V4).value("c").is_none()
    });
    thread::scope(|scope| {
        let removal = scope.spawn(|| house.node.client(Version::V4).run(REMOVAL));
        thread::sleep(A_WHILE);
        let is_early = removal.is_finished();
        house.database.run(&attempt.text);
        script.set(Doing::Refuses);
        removal.join().unwrap();
        assert!(!is_early, "it is acknowledged");
    });
    assert_eq!(stored(&house), None);
}

#[test]
fn what_removes_the_table_waits_for_an_attempt_that_is_under_way() {
    for text in ["TRUNCATE ks.t", "DROP TABLE ks.t", "DROP KEYSPACE ks"] {
        let (house, script) = house(|_| ());
        let mut client = house.node.client(Version::V5);
        in_doubt(&mut client, &script);
        script.set(Doing::Keeps);
        wait_until("it is sent again", || script.kept() == 1);
        thread::scope(|scope| {
            // On another connection to the database.
            let removal = scope.spawn(|| house.node.client(Version::V4).run(text));
            thread::sleep(A_WHILE);
            assert!(!removal.is_finished(), "{text} is acknowledged");
            // Other writes wait for nobody, nor do those of whole tables.
            house.node.client(Version::V3).put("b", "1");
            house.node.client(Version::V3).run("TRUNCATE ks.other");
            let attempt = script.kept.lock().unwrap().pop().unwrap();
            house.database.run(&attempt.text);
            attempt.reply(Opcode::Result, &1_i32.to_be_bytes());
            removal.join().unwrap();
        });
        if text.starts_with("TRUNCATE") {
            assert_eq!(stored(&house), None);
            assert_eq!(client.value("a"), None);
        }
        // Or has ended before it was known whether the table would be removed.
        let ended = ["afterglow_unsettled_writes_total", "afterglow_settled_writes_total"];
        wait_until("it has ended", || {
            ended.iter().map(|name| counted(&house, name)).sum::<u64>() == 1
        });
        assert_eq!(script.kept(), 0, "it is sent no more");
    }
}

#[test]
fn a_write_that_is_there_before_its_table_is_emptied_is_settled() {
    let (house, script) = house(|_| ());
    in_doubt(&mut house.node.client(Version::V5), &script);
    script.set(Doing::Keeps);
    wait_until("it is sent again", || script.kept() == 1);
    let attempt = script.kept.lock().unwrap().remove(0);
    script.keeps_removals.store(1, Ordering::SeqCst);
    thread::scope(|scope| {
        let removal = scope.spawn(|| house.node.client(Version::V4).run(REMOVAL));
        wait_until("it has begun", || house.node.count(&["afterglow_writes_total", "table"]) == 1);
        house.database.run(&attempt.text);
        attempt.reply(Opcode::Result, &1_i32.to_be_bytes());
        wait_until("the removal is sent", || script.kept() == 1);
        wait_until("the write is settled", || {
            counted(&house, "afterglow_settled_writes_total") == 1
        });
        let removed = script.kept.lock().unwrap().remove(0);
        house.database.run(REMOVAL);
        removed.reply(Opcode::Result, &1_i32.to_be_bytes());
        removal.join().unwrap();
    });
    assert_eq!(counted(&house, "afterglow_unsettled_writes_total"), 0);
    assert_eq!((stored(&house), script.kept()), (None, 0));
}

#[test]
fn a_table_that_is_emptied_between_two_attempts_ends_the_repetition() {
    let (house, script) = house(|_| ());
    in_doubt(&mut house.node.client(Version::V5), &script);
    wait_until("it is sent again", || counted(&house, "afterglow_repeated_writes_total") > 0);
    house.node.client(Version::V4).run(REMOVAL);
    script.set(Doing::Takes);
    let unsettled = || counted(&house, "afterglow_unsettled_writes_total");
    wait_until("it is given up", || unsettled() == 1);
    assert_eq!(counted(&house, "afterglow_settled_writes_total"), 0);
    assert_eq!(stored(&house), None, "it came back");
}

#[test]
fn what_removes_nothing_ends_no_repetition() {
    let (house, script) = house(|_| ());
    let mut client = house.node.client(Version::V5);
    let key = "77777777-0000-4000-8000-000000000000";
    insert_in_doubt(&mut client, &script, "ks.ids", key);
    // They close the gate of the whole table, or of another, or of all tables.
    client.run("INSERT INTO ks.ids (k, v) VALUES (uuid(), '1')");
    client.run("TRUNCATE ks.other");
    assert!(client.try_run("REMOVE EVERYTHING FROM ks.ids").is_err());
    script.set(Doing::Takes);
    wait_until("it is there", || counted(&house, "afterglow_settled_writes_total") == 1);
    let text = format!("SELECT v FROM ks.ids WHERE k = {key}");
    assert_eq!(one_text(client.run(&text)).as_deref(), Some("in doubt"));
}

#[test]
fn a_node_that_cannot_write_does_not_keep_others_from_it() {
    let (script, refuses) = (Arc::<Script>::default(), Script::default());
    let scripted = script.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| scripted.takes(ask)).unwrap();
    let (database, directory) = (furnished(database), TempDir::new().unwrap());
    // It has the control connection.
    let first = database.join_scripted(move |ask| refuses.takes(ask)).unwrap();
    let node = Setup::new(directory.path(), &first, "ks.*=exclusive").start();
    in_doubt(&mut node.client(Version::V5), &script);
    script.set(Doing::Takes);
    wait_until("another one has taken it", || node.count(&["afterglow_settled_writes_total"]) == 1);
}

#[test]
fn a_lost_attempt_is_waited_for_no_longer_than_the_hold() {
    let (house, script) = house(|setup| setup.hold = Duration::from_secs(3));
    let mut client = house.node.client(Version::V5);
    script.set(Doing::Keeps);
    thread::scope(|scope| {
        let write = scope.spawn(|| try_in_doubt(&mut client, "ks.t", "'a'"));
        wait_until("the database has it", || script.kept() == 1);
        script.set(Doing::Takes);
        script.kept.lock().unwrap().pop().unwrap().hang_up();
        assert_eq!(write.join().unwrap(), Opcode::Error);
    });
    wait_until("it is settled", || counted(&house, "afterglow_settled_writes_total") == 1);
    wait_until("it is cached again", || {
        let hits = house.node.hits();
        assert_eq!(client.value("a").as_deref(), Some("in doubt"));
        house.node.hits() > hits
    });
}

/// So short that it runs out in a test.
const TIMES: Times = Times {
    lease: Duration::from_secs(2),
    margin: Duration::from_millis(500),
    weak_max_age: Duration::from_secs(2),
    fill: Duration::from_secs(6),
};

#[test]
fn without_the_lease_nothing_is_sent_again() {
    for other_holder in [false, true] {
        let (house, script) = house(|setup| setup.times = TIMES);
        let mut client = house.node.client(Version::V5);
        in_doubt(&mut client, &script);
        script.lease_is_mute.store(1, Ordering::SeqCst);
        house.node.wait_for_lease("waiting");
        script.set(Doing::Takes);
        thread::sleep(2 * A_WHILE);
        assert_eq!(stored(&house), None, "another instance may have the row cached");
        if other_holder {
            let other = "77777777-0000-4000-8000-000000000000";
            house.database.run(&format!(
                "UPDATE afterglow.lease SET owner = null, epoch = 100, last_owner = {other} \
                 WHERE scope = 'cql'"
            ));
        }
        script.lease_is_mute.store(0, Ordering::SeqCst);
        house.node.wait_for_lease("held");
        let end = if other_holder { "unsettled" } else { "settled" };
        wait_until("it has ended", || {
            counted(&house, &format!("afterglow_{end}_writes_total")) == 1
        });
        let expected = if other_holder { None } else { Some("in doubt") };
        assert_eq!(stored(&house).as_deref(), expected);
    }
}

#[test]
fn a_client_that_has_gone_leaves_nothing_behind_while_its_write_is_in_doubt() {
    let (house, script) = house(|_| ());
    script.set(Doing::Refuses);
    let mut writer = house.node.client(Version::V5);
    let large = "x".repeat(200_000);
    writer.put("large", &large);
    let mut client = Pipelined::open(house.node.address);
    client.ask_at(0, &format!("INSERT INTO ks.t (k, v) VALUES ('a', {IN_DOUBT})"), micros(10));
    assert_eq!(client.receive().header.opcode, Opcode::Error);
    // More than the socket takes, and nobody reads it.
    client.ask_all(0..100, "SELECT v FROM ks.t WHERE k = 'large'");
    let held = || counted(&house, "afterglow_client_held_bytes");
    wait_until("answers wait for the client", || held() > 0);
    drop(client);
    wait_until("what it held is given back", || held() == 0);
    assert_eq!(counted(&house, "afterglow_quarantined_partitions"), 1, "it is still in doubt");
}
