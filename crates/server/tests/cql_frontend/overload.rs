//! What a client gets while all of them together hold as much memory as they may: it waits, or is
//! told so where it has asked for that.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Compression, Opcode, Version};
use afterglow_testkit::fake_backend::Ask;

use crate::bounds::{HELD, REFUSED, announced, metric};
use crate::client::{Client, error_of, text_of, wait_until};
use crate::database::{echo, scripted};
use crate::proxy::Proxy;

/// How an overload is told.
const WORDS: &str = "Request breached limit on bytes in flight. (Endpoint: ";

/// A client that says so in STARTUP of what is to be done about an overload.
pub fn throwing(proxy: &Proxy, version: Version, value: &str) -> Client {
    let mut client = Client::connect(proxy.front_end.address(), version);
    let answer = client.startup_saying(None, &[("throw_on_overload", value)]);
    assert_eq!(answer.header.opcode, Opcode::Ready);
    client
}

/// One whose request takes all that there is, and does not come.
fn taking_all(proxy: &Proxy) -> Client {
    let mut greedy = proxy.client(Version::V4);
    let mut header = greedy.encode(3, Opcode::Query, &[]);
    // The longest that is taken, in memory twice.
    let length = (256_i32 << 20) - header.len() as i32;
    header[5..].copy_from_slice(&length.to_be_bytes());
    greedy.stream.write_all(&header).unwrap();
    wait_until("it is admitted", || metric(proxy, HELD) >= 511 << 20);
    greedy
}

fn large() -> String {
    format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(1_000_000))
}

#[test]
fn a_client_that_asks_for_it_is_told_of_the_overload_and_its_connection_goes_on() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let greedy = taking_all(&proxy);
    for version in [Version::V3, Version::V4, Version::V5] {
        let mut other = throwing(&proxy, version, "1");
        for _ in 0..3 {
            other.query(9, &large());
            other.query(10, "SELECT v FROM ks.next");
            let refused = other.receive();
            assert_eq!(refused.header.stream, 9);
            let (code, text) = error_of(&refused);
            assert_eq!(code, ErrorCode::Overloaded);
            assert!(text.starts_with(WORDS), "{text}");
            assert_eq!(text_of(&other.receive()), "SELECT v FROM ks.next");
        }
    }
    assert_eq!(metric(&proxy, REFUSED), 9);
    drop(greedy);
}

#[test]
fn a_client_that_does_not_ask_for_it_waits_for_room() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let greedy = taking_all(&proxy);
    let mut waiting: Vec<_> =
        [Version::V3, Version::V4, Version::V5].map(|version| proxy.client(version)).into();
    // The database takes nothing else for a yes.
    waiting.extend(["true", "0", ""].map(|value| throwing(&proxy, Version::V4, value)));
    for client in &mut waiting {
        client.query(9, &large());
    }
    thread::sleep(Duration::from_secs(2));
    assert_eq!(proxy.client(Version::V5).ask("SELECT v FROM ks.small"), "SELECT v FROM ks.small");
    assert_eq!(metric(&proxy, REFUSED), 0);
    drop(greedy);
    for client in &mut waiting {
        let answer = client.receive();
        assert_eq!((answer.header.stream, text_of(&answer)), (9, large()));
    }
    assert_eq!(metric(&proxy, REFUSED), 0);
}

#[test]
fn who_has_waited_for_some_seconds_is_told_all_the_same_and_its_connection_goes_on() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let greedy = taking_all(&proxy);
    let mut other = proxy.client(Version::V5);
    other.query(9, &large());
    other.query(10, "SELECT v FROM ks.next");
    let refused = other.receive();
    assert_eq!(refused.header.stream, 9);
    let (code, text) = error_of(&refused);
    assert_eq!(code, ErrorCode::Overloaded);
    assert!(text.starts_with(WORDS), "{text}");
    assert_eq!(text_of(&other.receive()), "SELECT v FROM ks.next");
    drop(greedy);
}

#[test]
fn clients_that_wait_keep_nothing_that_others_wait_for() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    // As it comes each takes a part, and they fit; as it was before they do not.
    let mut pair: Vec<_> = (0..2)
        .map(|_| {
            let mut client = Client::connect(proxy.front_end.address(), Version::V4);
            assert_eq!(client.startup_with(Some(Compression::Lz4)).header.opcode, Opcode::Ready);
            client
        })
        .collect();
    let heads: Vec<_> =
        pair.iter_mut().map(|client| announced(client, 100 << 20, 200 << 20)).collect();
    for (client, head) in pair.iter_mut().zip(&heads) {
        client.stream.write_all(&head[..9]).unwrap();
    }
    wait_until("both are admitted as they come", || metric(&proxy, HELD) >= 399 << 20);
    for (client, head) in pair.iter_mut().zip(&heads) {
        client.stream.write_all(&head[9..]).unwrap();
    }
    wait_until("one has all", || metric(&proxy, HELD) > 512 << 20);
    assert_eq!(metric(&proxy, REFUSED), 0, "none of them has waited in vain for the other");
}

#[test]
fn small_requests_of_whoever_holds_much_wait_for_its_own_answers_or_are_refused_too() {
    let held = Arc::new(Mutex::new(Vec::<Arc<Ask>>::new()));
    let holder = held.clone();
    let fake = scripted(Version::V5, move |ask| {
        let keeps = ask.text.contains("FROM ks.kept");
        if keeps {
            holder.lock().unwrap().push(ask.clone());
        }
        keeps || echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let greedy = taking_all(&proxy);
    // Not long enough to be asked about, and more than is free.
    let kept = format!("SELECT v FROM ks.kept WHERE k = '{}'", "x".repeat(60_000));
    let (mut told, mut waits) = (throwing(&proxy, Version::V4, "1"), proxy.client(Version::V4));
    // What the large one has left two others take.
    let mut others = [(); 2].map(|()| proxy.client(Version::V4));
    let [first, second] = &mut others;
    for (client, asked) in [(first, 1), (second, 2), (&mut told, 3), (&mut waits, 4)] {
        client.query(1, &kept);
        wait_until("its request is under way", || held.lock().unwrap().len() == asked);
    }
    for stream in [2, 3] {
        told.query(stream, "SELECT v FROM ks.small");
        let refused = told.receive();
        assert_eq!(refused.header.stream, stream);
        let (code, text) = error_of(&refused);
        assert!(code == ErrorCode::Overloaded && text.starts_with(WORDS), "{text}");
    }
    waits.query(2, "SELECT v FROM ks.small");
    assert_eq!(proxy.client(Version::V5).ask("SELECT v FROM ks.other"), "SELECT v FROM ks.other");
    held.lock().unwrap().drain(2..).for_each(|ask| ask.text_row("one"));
    assert_eq!((told.receive().header.stream, waits.receive().header.stream), (1, 1));
    // All is still taken by others: it needs nothing but its own answers.
    assert_eq!(text_of(&waits.receive()), "SELECT v FROM ks.small");
    assert_eq!(told.ask("SELECT v FROM ks.small"), "SELECT v FROM ks.small");
    assert!(metric(&proxy, HELD) >= 512 << 20);
    drop((greedy, others));
}
