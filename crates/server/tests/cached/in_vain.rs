//! Statements over whole tables that the database refuses, one after the other.

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
use crate::node::{House, Setup, furnished, wait_until};
use crate::pipelined::Pipelined;

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
        let takes = ask.text == "TRUNCATE ks.t" || ask.text == "DROP TABLE ks.t";
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

#[test]
fn who_asks_for_whole_tables_in_vain_waits_before_the_next_is_sent() {
    const TAKES: Duration = Duration::from_millis(30);
    let (house, asked) = house();
    let mut reader = house.node.client(Version::V5);
    reader.put("a", "1");
    assert_eq!(reader.value("a").as_deref(), Some("1"));
    let mut before: Option<Instant> = None;
    thread::scope(|scope| {
        let vain = scope.spawn(|| {
            let mut client = house.node.client(Version::V4);
            for text in ["TRUNCATE ks.t", "DROP TABLE ks.t", "TRUNCATE ks.t"] {
                match client.try_run(text) {
                    Err(CqlError::Server(error)) => assert_eq!(error.code, 0x2100, "{error}"),
                    other => panic!("{other:?}"),
                }
            }
        });
        for times in [0, 10, 11] {
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

#[test]
fn a_user_who_connects_anew_is_held_all_the_same() {
    const TAKES: Duration = Duration::from_millis(30);
    let (house, asked) = house_of(&["eve"]);
    let in_vain = || {
        let mut client = house.node.log_in(Version::V4, "eve", "eve").unwrap();
        let answer = client.try_run("TRUNCATE ks.t");
        assert!(matches!(&answer, Err(CqlError::Server(error)) if error.code == UNAUTHORIZED));
    };
    thread::scope(|scope| {
        let mut last = None;
        for times in [0, 10, 11] {
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

/// A connection of which one statement was refused, which took so long at least.
fn refused(house: &House, asked: &Asked, takes: Duration) -> Pipelined {
    let mut client = Pipelined::open(house.node.address);
    client.ask(0, "TRUNCATE ks.t");
    refuse(asked, takes);
    assert_eq!(error(&mut client).0, UNAUTHORIZED);
    client
}

const READ: &str = "SELECT v FROM ks.t WHERE k = 'a'";

#[test]
fn of_statements_that_come_at_once_in_vain_one_is_sent_and_no_other_closes_a_gate() {
    let (house, asked) = house();
    let mut reader = house.node.client(Version::V5);
    reader.put("a", "1");
    assert_eq!(reader.value("a").as_deref(), Some("1"));
    // It is forgotten 6 s after it.
    let mut vain = refused(&house, &asked, 60 * MS);
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
    let mut client = refused(&house, &asked, 2 * MS);
    client.ask_all(1..21, "TRUNCATE ks.t");
    for _ in 1..21 {
        let (ask, _) = next(&asked);
        ask.reply(Opcode::Result, &[0, 0, 0, 1]);
        assert_eq!(client.receive().header.opcode, Opcode::Result);
    }
}

#[test]
fn what_is_held_is_not_sent_at_the_end() {
    let (house, asked) = house();
    let mut vain = refused(&house, &asked, 90 * MS);
    vain.ask(1, "TRUNCATE ks.t");
    // Behind it on its connection: it shows that it has been taken.
    vain.ask(99, READ);
    assert_eq!(vain.receive().header.stream, 99);
    let began = Instant::now();
    let House { node, database, directory } = house;
    thread::scope(|scope| {
        let stop = scope.spawn(move || node.stop());
        wait_until("it stops", || stop.is_finished() || !asked.lock().unwrap().is_empty());
        let sent = asked.lock().unwrap().pop();
        if let Some((ask, came)) = sent {
            assert!(came < began, "it was sent while others are not taken any more");
            return ask.error(&ErrorBody::new(ErrorCode::Unauthorized, "may not"));
        }
        let (code, text) = error(&mut vain);
        assert_eq!(code, OVERLOADED);
        assert!(text.contains("try again at another one"), "{text}");
    });
    drop((database, directory));
}
