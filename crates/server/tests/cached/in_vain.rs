//! Statements over whole tables that the database refuses, one after the other.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::response::ErrorBody;
use afterglow_loadgen::cql::CqlError;
use afterglow_testkit::fake_backend::{Ask, FakeBackend};
use tempfile::TempDir;

use crate::accounts::own_credentials;
use crate::node::{Client, House, Setup, furnished, wait_until};
use crate::pipelined::Pipelined;
use crate::ring_remade::{self, Cable};

const MS: Duration = Duration::from_millis(1);
const UNAUTHORIZED: i32 = 0x2100;
const OVERLOADED: i32 = 0x1001;

/// What came that is to be refused, and when.
type Asked = Mutex<Vec<(Arc<Ask>, Instant)>>;

fn house() -> (House, Arc<Asked>) {
    house_of(&[])
}

/// A house whose database knows these users, if any, each by its name as the password.
fn house_of(users: &[&str]) -> (House, Arc<Asked>) {
    let asked = Arc::<Asked>::default();
    let kept = asked.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let takes = ["TRUNCATE ks.t", "DROP TABLE ks.t"].contains(&&*ask.text)
            || ask.text.starts_with("BEGIN BATCH INSERT INTO ks.t")
            || ask.text.starts_with("DROP INDEX")
            || ask.text.starts_with("DROP KEYSPACE no");
        if takes {
            kept.lock().unwrap().push((ask.clone(), Instant::now()));
        }
        takes
    });
    let (database, directory) = (furnished(database.unwrap()), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    if !users.is_empty() {
        database.add_user("afterglow", "own");
        users.iter().for_each(|user| database.add_user(user, user));
        setup.credentials = Some(own_credentials(&directory));
    }
    (House { node: setup.start(), database, directory }, asked)
}

/// Takes the next statement that comes. It, and when it came.
fn next(asked: &Asked) -> (Arc<Ask>, Instant) {
    wait_until("the next is sent", || !asked.lock().unwrap().is_empty());
    asked.lock().unwrap().remove(0)
}

/// Refuses the next statement that comes after so long at least. When it came, and the moment
/// before it was refused.
fn refuse(asked: &Asked, takes: Duration) -> (Instant, Instant) {
    let (ask, came) = next(asked);
    thread::sleep(takes);
    let refused = Instant::now();
    ask.error(&ErrorBody::new(ErrorCode::Unauthorized, "may not"));
    (came, refused)
}

/// Sends it until it is not turned away, and is refused. On a machine that halts for a moment a
/// refusal takes so long that what follows would be held for too long.
fn run_in_vain(client: &mut Client, text: &str) {
    loop {
        match client.try_run(text) {
            Err(CqlError::Server(error)) if error.code == OVERLOADED => thread::sleep(10 * MS),
            Err(CqlError::Server(error)) => {
                assert_eq!(error.code, UNAUTHORIZED, "{error}");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_asks_for_whole_tables_in_vain_waits_before_the_next_is_sent() {
    waits_before_the_next_is_sent(["TRUNCATE ks.t", "DROP TABLE ks.t", "TRUNCATE ks.t"]);
}

/// It has no rows to drop, and closes the gates of all tables.
#[test]
fn who_asks_in_vain_for_a_keyspace_that_is_not_there_waits_too() {
    waits_before_the_next_is_sent(["DROP KEYSPACE nowhere"; 3]);
}

/// A row besides makes it no write of that row alone.
#[test]
fn who_asks_in_vain_for_a_row_and_a_whole_table_waits_too() {
    let batch = "BEGIN BATCH INSERT INTO ks.t (k, v) VALUES ('b', '1'); \
                 DELETE FROM ks.t WHERE v = '1'; APPLY BATCH";
    waits_before_the_next_is_sent([batch; 3]);
}

fn waits_before_the_next_is_sent(texts: [&str; 3]) {
    const TAKES: Duration = Duration::from_millis(30);
    let (house, asked) = house();
    let mut reader = house.node.client(Version::V5);
    reader.put("a", "1");
    assert_eq!(reader.value("a").as_deref(), Some("1"));
    let mut before: Option<Instant> = None;
    thread::scope(|scope| {
        let vain = scope.spawn(|| {
            let mut client = house.node.client(Version::V4);
            texts.iter().for_each(|text| run_in_vain(&mut client, text));
        });
        for times in [0, 10, 10] {
            let (came, refused) = refuse(&asked, TAKES);
            let waited = before.map_or(Duration::ZERO, |before| came - before);
            assert!(waited >= TAKES * times, "{waited:?} after the last was refused");
            before = Some(refused);
        }
        vain.join().unwrap();
    });
    let (reads, value) = house.reads(|| reader.value("a"));
    assert_eq!((reads, value.as_deref()), (0, Some("1")), "nothing was dropped");
}

/// They may need no right to anything.
#[test]
fn who_changes_nothing_over_and_over_waits_before_the_next_is_sent() {
    const TAKES: Duration = Duration::from_millis(30);
    for text in ["DROP INDEX IF EXISTS ks.none", "DROP INDEX IF EXISTS nowhere.none"] {
        let (house, asked) = house();
        let mut before: Option<Instant> = None;
        thread::scope(|scope| {
            let idle = scope.spawn(|| {
                let mut client = house.node.client(Version::V4);
                (0..4).for_each(|_| drop(client.run(text)));
            });
            for _ in 0..4 {
                let (ask, came) = next(&asked);
                let waited = before.map_or(TAKES, |before| came - before);
                assert!(waited >= TAKES, "{text}: {waited:?} after the last was answered");
                thread::sleep(TAKES);
                before = Some(Instant::now());
                ask.reply(Opcode::Result, &[0, 0, 0, 1]);
            }
            idle.join().unwrap();
        });
    }
}

/// Tools send many, and not each after the answer to the one before.
#[test]
fn what_changes_nothing_is_sent_one_after_the_other_and_never_turned_away() {
    const TEXT: &str = "DROP INDEX IF EXISTS ks.none";
    let (house, asked) = house();
    let mut client = Pipelined::open(house.node.address);
    let end = |(ask, _): (Arc<Ask>, Instant)| {
        // The last one is held for more than a second.
        thread::sleep(200 * MS);
        assert!(asked.lock().unwrap().is_empty(), "no other is under way");
        ask.reply(Opcode::Result, &[0, 0, 0, 1]);
    };
    client.ask(0, TEXT);
    end(next(&asked));
    assert_eq!(client.receive().header.opcode, Opcode::Result);
    client.ask_all(1..6, TEXT);
    for _ in 1..6 {
        end(next(&asked));
        assert_eq!(client.receive().header.opcode, Opcode::Result);
    }
}

/// Meanwhile the gates of the owners that are reached are closed.
#[test]
fn in_a_ring_what_cannot_be_sent_waits_before_owners_are_asked_again() {
    let (world, cables, _) = ring_remade::world();
    let mut client = world.client(0);
    cables.iter().for_each(Cable::cut);
    for held in [Duration::ZERO, ring_remade::WRITE] {
        let began = Instant::now();
        match client.try_run("TRUNCATE ks.t") {
            Err(CqlError::Server(error)) => assert_eq!(error.code, OVERLOADED, "{error}"),
            other => panic!("{other:?}"),
        }
        let took = began.elapsed();
        assert!(took * 10 >= (held + ring_remade::WRITE) * 9, "{took:?}, held for {held:?}");
    }
}

#[test]
fn a_user_who_connects_anew_is_held_all_the_same() {
    const TAKES: Duration = Duration::from_millis(30);
    let (house, asked) = house_of(&["eve"]);
    let in_vain = || {
        let mut client = house.node.log_in(Version::V4, "eve", "eve").unwrap();
        run_in_vain(&mut client, "TRUNCATE ks.t");
    };
    thread::scope(|scope| {
        let mut last = None;
        for times in [0, 10, 10] {
            let eve = scope.spawn(in_vain);
            let (came, refused) = refuse(&asked, TAKES);
            let waited = last.map_or(Duration::ZERO, |last| came - last);
            assert!(waited >= TAKES * times, "{waited:?} after the last was refused");
            eve.join().unwrap();
            last = Some(refused);
        }
    });
}

/// The code and the body of the next answer, which is an error.
fn error(client: &mut Pipelined) -> (i32, String) {
    let answer = client.receive();
    assert_eq!(answer.header.opcode, Opcode::Error, "{answer:?}");
    let code = i32::from_be_bytes(answer.body[..4].try_into().unwrap());
    (code, String::from_utf8_lossy(&answer.body[6..]).into_owned())
}

/// A connection of which one statement was refused, which took so long at least, and less than
/// that. Nobody logs in, so a new connection is not held for what was refused to others.
fn refused(house: &House, asked: &Asked, takes: Range<Duration>) -> Pipelined {
    loop {
        let mut client = Pipelined::open(house.node.address);
        let began = Instant::now();
        client.ask(0, "TRUNCATE ks.t");
        refuse(asked, takes.start);
        assert_eq!(error(&mut client).0, UNAUTHORIZED);
        if began.elapsed() < takes.end {
            return client;
        }
    }
}

/// What follows a refusal that took longer is held for more than a second: it is turned away.
const TOO_LONG: Duration = Duration::from_millis(100);

const READ: &str = "SELECT v FROM ks.t WHERE k = 'a'";

#[test]
fn of_statements_that_come_at_once_in_vain_one_is_sent_and_no_other_closes_a_gate() {
    let (house, asked) = house();
    let mut reader = house.node.client(Version::V5);
    reader.put("a", "1");
    assert_eq!(reader.value("a").as_deref(), Some("1"));
    // It is forgotten 5 s after it, or later.
    let mut vain = refused(&house, &asked, 50 * MS..TOO_LONG);
    vain.ask_all(1..21, "TRUNCATE ks.t");
    // Behind them on their connection: it shows that they have been taken.
    let (reads, answer) = house.reads(|| {
        vain.ask(99, READ);
        vain.receive()
    });
    assert_eq!((answer.header.stream, answer.header.opcode), (99, Opcode::Result));
    let is_sent = !asked.lock().unwrap().is_empty();
    assert!(reads == 0 || is_sent, "what is held closes no gate");
    // The one that is sent is not answered.
    for _ in 1..20 {
        assert_eq!(error(&mut vain).0, OVERLOADED);
    }
    next(&asked);
    assert!(asked.lock().unwrap().is_empty(), "no other is sent");
    // Nobody else is held.
    let mut other = Pipelined::open(house.node.address);
    other.ask(0, "TRUNCATE ks.t");
    refuse(&asked, Duration::ZERO);
    assert_eq!(error(&mut other).0, UNAUTHORIZED);
}

#[test]
fn statements_that_come_at_once_are_all_sent_once_one_is_taken() {
    let (house, asked) = house();
    // It is forgotten before any of them has been held for a second, so all are sent even if the
    // answer comes late.
    let mut client = refused(&house, &asked, Duration::ZERO..10 * MS);
    client.ask_all(1..21, "TRUNCATE ks.t");
    for _ in 1..21 {
        let (ask, _) = next(&asked);
        ask.reply(Opcode::Result, &[0, 0, 0, 1]);
        assert_eq!(client.receive().header.opcode, Opcode::Result);
    }
}

#[test]
fn what_is_held_is_not_sent_at_the_end() {
    // Its turn may come before the end does.
    let told = (0..10).find_map(|_| held_at_the_end()).expect("it is held at the end");
    assert!(told.contains("try again at another one"), "{told}");
}

/// What a client is told whose statement is held when its node stops; none if it was sent.
fn held_at_the_end() -> Option<String> {
    let (house, asked) = house();
    let mut vain = refused(&house, &asked, 50 * MS..TOO_LONG);
    vain.ask(1, "TRUNCATE ks.t");
    // Behind it on its connection: it shows that it has been taken.
    vain.ask(99, READ);
    assert_eq!(vain.receive().header.stream, 99);
    let House { node, database, directory } = house;
    thread::scope(|scope| {
        let stop = scope.spawn(move || node.stop());
        wait_until("it stops", || stop.is_finished() || !asked.lock().unwrap().is_empty());
        let sent = asked.lock().unwrap().pop();
        if let Some((ask, _)) = sent {
            ask.error(&ErrorBody::new(ErrorCode::Unauthorized, "may not"));
            return None;
        }
        let (code, text) = error(&mut vain);
        drop((database, directory));
        assert_eq!(code, OVERLOADED);
        Some(text)
    })
}
