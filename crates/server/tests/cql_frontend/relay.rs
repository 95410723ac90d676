//! Requests and answers find each other, whatever clients and the database do meanwhile.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use afterglow::reactor::Driver;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Compression, Flags, Opcode, Version};
use afterglow_testkit::fake_backend::Ask;

use crate::client::{Client, error_of, text_of};
use crate::database::{a_keyspace, echo, scripted};
use crate::proxy::Proxy;

#[test]
fn requests_may_be_cut_anywhere_or_come_many_at_once() {
    let fake = scripted(Version::V5, echo);
    for driver in [Driver::Auto, Driver::Readiness] {
        let proxy = Proxy::with(fake.address(), driver);
        for &version in Version::ALL {
            let mut client = proxy.client(version);
            let body = client.query_body("SELECT v FROM ks.cut");
            for byte in client.encode(3, Opcode::Query, &body) {
                client.stream.write_all(&[byte]).unwrap();
            }
            assert_eq!(text_of(&client.receive()), "SELECT v FROM ks.cut");

            let mut burst = Vec::new();
            for stream in 0..50 {
                let body = client.query_body(&format!("SELECT v FROM ks.burst{stream}"));
                burst.extend(client.encode(stream, Opcode::Query, &body));
            }
            client.stream.write_all(&burst).unwrap();
            let mut seen: Vec<_> = (0..50).map(|_| client.receive()).collect();
            seen.sort_by_key(|answer| answer.header.stream);
            for (stream, answer) in seen.iter().enumerate() {
                assert_eq!(text_of(answer), format!("SELECT v FROM ks.burst{stream}"));
            }
        }
    }
}

#[test]
fn an_answer_larger_than_a_segment_arrives_whole_in_v5() {
    let long = "x".repeat(1_000_000);
    let text = long.clone();
    let fake = scripted(Version::V5, move |ask| {
        let large = ask.text.contains("FROM ks.large");
        if large {
            ask.text_row(&text);
        }
        large || echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V5);
    assert_eq!(client.ask("SELECT v FROM ks.large"), long);
    let query = format!("SELECT v FROM ks.t WHERE k = '{long}'");
    assert_eq!(client.ask(&query), query);
}

#[test]
fn a_client_may_compress_and_the_database_hears_nothing_of_it() {
    let fake = scripted(Version::V5, |ask| {
        assert!(!ask.envelope.header.flags.contains(Flags::COMPRESSED));
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let long = "x".repeat(400_000);
    for (version, compression) in [
        (Version::V3, Compression::Snappy),
        (Version::V4, Compression::Snappy),
        (Version::V4, Compression::Lz4),
        (Version::V5, Compression::Lz4),
    ] {
        let mut client = Client::connect(proxy.front_end.address(), version);
        assert_eq!(client.startup_with(Some(compression)).header.opcode, Opcode::Ready);
        let query = format!("SELECT v FROM ks.t WHERE k = '{long}'");
        let before = client.received;
        assert_eq!(client.ask(&query), query);
        assert!(client.received - before < 40_000, "the answer is compressed");
        assert_eq!(client.ask("SELECT v FROM ks.short"), "SELECT v FROM ks.short");
    }
    let mut client = Client::connect(proxy.front_end.address(), Version::V5);
    let refused = client.startup_with(Some(Compression::Snappy));
    assert_eq!(
        error_of(&refused),
        (ErrorCode::Protocol, "Snappy compression is not supported in protocol V5".into())
    );
}

#[test]
fn answers_find_their_clients_in_any_order_over_one_connection() {
    let held = Arc::new(Mutex::new(Vec::<Arc<Ask>>::new()));
    let (holder, (full, wait)) = (held.clone(), mpsc::channel());
    let fake = scripted(Version::V5, move |ask| {
        let hold = ask.text.contains("FROM ks.");
        if hold {
            let mut held = holder.lock().unwrap();
            held.push(ask.clone());
            if held.len() == 8 {
                full.send(()).unwrap();
            }
        }
        hold
    });
    let proxy = Proxy::before(fake.address());
    let mut clients: Vec<_> = (0..4).map(|_| proxy.client(Version::V4)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        // All use the same two streams.
        client.query(1, &format!("SELECT v FROM ks.client{number}a"));
        client.query(2, &format!("SELECT v FROM ks.client{number}b"));
    }
    wait.recv().unwrap();
    let held = std::mem::take(&mut *held.lock().unwrap());
    held.iter().rev().for_each(|ask| ask.text_row(&ask.text));
    for (number, client) in clients.iter_mut().enumerate() {
        let mut answers = [client.receive(), client.receive()];
        answers.sort_by_key(|answer| answer.header.stream);
        assert_eq!(
            answers.each_ref().map(text_of),
            [
                format!("SELECT v FROM ks.client{number}a"),
                format!("SELECT v FROM ks.client{number}b")
            ]
        );
    }
    // Four clients on two reactors: one connection each, beside the control connection.
    let used: std::collections::HashSet<_> = held.iter().map(|ask| ask.connection).collect();
    assert_eq!((used.len(), fake.connections()), (2, 3));
}

#[test]
fn a_lost_backend_costs_errors_and_not_the_clients_connection() {
    let (asked, hears) = mpsc::channel();
    let asked = Mutex::new(asked);
    let silent = Arc::new(AtomicBool::new(true));
    let gone = silent.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.text.contains("ks.lost") && gone.load(Ordering::SeqCst) {
            asked.lock().unwrap().send(()).unwrap();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V5);
    // A read would be sent again.
    client.query(1, "UPDATE ks.lost SET v = 1 WHERE k = 1");
    hears.recv().unwrap();
    fake.hang_up();
    let (code, text) = error_of(&client.receive());
    assert_eq!(code, ErrorCode::Server, "{text}");
    silent.store(false, Ordering::SeqCst);
    assert_eq!(client.ask("SELECT v FROM ks.again"), "SELECT v FROM ks.again");
}

#[test]
fn a_database_that_is_down_is_unavailable_until_it_is_back() {
    let refuse = Arc::new(AtomicBool::new(false));
    let refusing = refuse.clone();
    let fake = scripted(Version::V5, move |ask| {
        if refusing.load(Ordering::SeqCst) {
            ask.hang_up();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V5);
    client.ask("SELECT v FROM ks.up");
    refuse.store(true, Ordering::SeqCst);
    fake.hang_up();
    // The first may still have been on its way; then nothing can be sent.
    loop {
        client.query(1, "SELECT v FROM ks.down");
        match error_of(&client.receive()) {
            (ErrorCode::Unavailable, _) => break,
            (ErrorCode::Server, _) => {}
            other => panic!("{other:?}"),
        }
    }
    // Drivers that come now find the cluster described as it was.
    let mut late = proxy.client(Version::V5);
    assert_eq!(late.ask("SELECT cluster_name FROM system.local"), "Fake Cluster");
    refuse.store(false, Ordering::SeqCst);
    loop {
        client.query(1, "SELECT v FROM ks.back");
        let answer = client.receive();
        if answer.header.opcode == Opcode::Result {
            break assert_eq!(text_of(&answer), "SELECT v FROM ks.back");
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_does_not_read_is_bounded_and_in_nobodys_way() {
    const ANSWER: usize = 64 * 1024;
    const REQUESTS: usize = 4000;
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.text.contains("FROM ks.big") {
            counter.fetch_add(1, Ordering::SeqCst);
            ask.text_row(&"y".repeat(ANSWER));
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut slow = proxy.client(Version::V4);
    let body = slow.query_body("SELECT v FROM ks.big");
    let mut requests = Vec::new();
    for request in 0..REQUESTS {
        requests.extend(slow.encode((request % 30_000) as i16, Opcode::Query, &body));
    }
    let mut sending = slow.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || sending.write_all(&requests).unwrap());
    // Others on both reactors are served all the while.
    for _ in 0..4 {
        let mut other = proxy.client(Version::V4);
        assert_eq!(other.ask("SELECT v FROM ks.other"), "SELECT v FROM ks.other");
    }
    assert!(
        asked.load(Ordering::SeqCst) < REQUESTS,
        "reading went on although nobody took the answers"
    );
    for _ in 0..REQUESTS {
        assert_eq!(text_of(&slow.receive()).len(), ANSWER);
    }
    sender.join().unwrap();
}

#[test]
fn a_client_slow_in_the_database_does_not_hold_up_others() {
    let held = Arc::new(Mutex::new(None));
    let (holder, (holds, wait)) = (held.clone(), mpsc::channel());
    let fake = scripted(Version::V5, move |ask| {
        if ask.text.contains("FROM ks.slow") {
            holder.lock().unwrap().replace(ask.clone());
            holds.send(()).unwrap();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V5);
    client.query(1, "SELECT v FROM ks.slow");
    wait.recv().unwrap();
    assert_eq!(client.ask("SELECT v FROM ks.quick"), "SELECT v FROM ks.quick");
    held.lock().unwrap().take().unwrap().text_row("slow");
    assert_eq!(client.receive().header.stream, 1);
}

#[test]
fn use_moves_the_session_and_no_shared_connection() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.text.contains("FROM t") || ask.text.starts_with("USE") {
            log.lock().unwrap().push((ask.connection, ask.text.clone()));
        }
        if ask.text.contains("FROM t") {
            ask.text_row("row");
            return true;
        }
        false
    });
    fake.run(&a_keyspace("ks1"));
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    assert_eq!(client.ask("SELECT v FROM t"), "row");
    client.query(1, "USE Ks1");
    assert_eq!(client.receive().header.opcode, Opcode::Result);
    assert_eq!(client.ask("SELECT v FROM t"), "row");
    client.query(1, "USE missing");
    assert_eq!(
        error_of(&client.receive()),
        (ErrorCode::Invalid, "Keyspace 'missing' does not exist".into())
    );
    assert_eq!(client.ask("SELECT v FROM t"), "row");
    let seen = seen.lock().unwrap();
    let connections: Vec<_> =
        seen.iter().filter(|(_, text)| text.contains("FROM")).map(|(c, _)| *c).collect();
    let moved: Vec<_> =
        seen.iter().filter(|(_, text)| text.starts_with("USE")).map(|(c, _)| *c).collect();
    assert_ne!(connections[0], connections[1], "another keyspace, another connection");
    assert_eq!(connections[1], connections[2], "a refused USE changes nothing");
    assert!(!moved.contains(&connections[0]), "the connection without keyspace stays so: {seen:?}");
}

#[test]
fn draining_finishes_what_is_under_way() {
    let held = Arc::new(Mutex::new(None));
    let (holder, (holds, wait)) = (held.clone(), mpsc::channel());
    let fake = scripted(Version::V5, move |ask| {
        let hold = ask.text.contains("FROM ks.held");
        if hold {
            holder.lock().unwrap().replace(ask.clone());
            holds.send(()).unwrap();
        }
        hold
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V5);
    client.query(3, "SELECT v FROM ks.held");
    wait.recv().unwrap();
    let address = proxy.front_end.address();
    let draining =
        std::thread::spawn(move || (proxy.front_end.drain(Duration::from_secs(20)), proxy));
    while std::net::TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
    held.lock().unwrap().take().unwrap().text_row("done");
    assert_eq!(text_of(&client.receive()), "done");
    assert!(client.try_receive().is_none(), "closed after the last answer");
    assert!(draining.join().unwrap().0, "nothing had to be cut off");
}
