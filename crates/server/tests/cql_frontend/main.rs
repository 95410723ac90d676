//! The CQL front end between a client that sees every byte and a database that does what a test says.

mod bounds;
mod fake;
mod keyspaces;
mod logins;
mod nodes;
mod prepared;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use afterglow::config::HostPort;
use afterglow::frontend::cql::{
    CqlFrontEnd, CqlFrontEndConfig, Later, Operation, PassThrough, Request, Router,
};
use afterglow::metrics::{Metrics, Path};
use afterglow::reactor::{Driver, Reactors, ReactorsConfig};
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Compression, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams, Register};
use afterglow_cql::response::{ErrorBody, Event, SchemaChange, SchemaTarget};
use fake::{Ask, Client, Fake, TEXT, error_of, rows, text_of};

/// A front end on its own reactors; drained at the end.
struct Proxy {
    front_end: CqlFrontEnd,
    reactors: Reactors,
}

impl Proxy {
    fn before(backend: SocketAddr) -> Self {
        Self::with(backend, Driver::Auto)
    }

    fn with(backend: SocketAddr, driver: Driver) -> Self {
        Self::routed(backend, driver, Arc::new(PassThrough))
    }

    fn keeping(backend: SocketAddr, plans: PathBuf) -> Self {
        Self::whole(&[backend], 2, Driver::Auto, Arc::new(PassThrough), Some(plans))
    }

    fn routed(backend: SocketAddr, driver: Driver, router: Arc<dyn Router>) -> Self {
        Self::whole(&[backend], 2, driver, router, None)
    }

    fn with_contacts(backends: &[SocketAddr], driver: Driver, router: Arc<dyn Router>) -> Self {
        Self::whole(backends, 2, driver, router, None)
    }

    fn on_one_reactor(backend: SocketAddr) -> Self {
        Self::whole(&[backend], 1, Driver::Auto, Arc::new(PassThrough), None)
    }

    fn whole(
        backends: &[SocketAddr],
        reactors: usize,
        driver: Driver,
        router: Arc<dyn Router>,
        plans: Option<PathBuf>,
    ) -> Self {
        let reactors = Reactors::start(&ReactorsConfig { threads: Some(reactors), driver }).unwrap();
        let config = CqlFrontEndConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            backends: backends
                .iter()
                .map(|at| HostPort { host: at.ip().to_string(), port: at.port() })
                .collect(),
            credentials: None,
            advertise: None,
            host_id: Some(uuid::Uuid::from_u128(42)),
            plans,
            metrics: Arc::<Metrics>::default(),
            router,
        };
        let front_end = CqlFrontEnd::start(config, &reactors).unwrap();
        Self { front_end, reactors }
    }

    fn client(&self, version: Version) -> Client {
        Client::start(self.front_end.address(), version)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The runtime ends the process when a panicking thread wakes a task, and the message would be lost.
            return;
        }
        self.front_end.drain(Duration::from_secs(1));
        self.reactors.shutdown();
    }
}

/// Echoes the text of queries of tables of users.
fn echo(ask: &Arc<Ask>) -> bool {
    let echoes = ask.opcode() == Opcode::Query && ask.text.contains("FROM ks.");
    if echoes {
        ask.text_row(&ask.text);
    }
    echoes
}

#[test]
fn requests_may_be_cut_anywhere_or_come_many_at_once() {
    let fake = Fake::start(Version::V5, echo);
    for driver in [Driver::Auto, Driver::Readiness] {
        let proxy = Proxy::with(fake.address, driver);
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
    let fake = Fake::start(Version::V5, move |ask| {
        let large = ask.text.contains("FROM ks.large");
        if large {
            ask.text_row(&text);
        }
        large || echo(ask)
    });
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V5);
    assert_eq!(client.ask("SELECT v FROM ks.large"), long);
    let query = format!("SELECT v FROM ks.t WHERE k = '{long}'");
    assert_eq!(client.ask(&query), query);
}

#[test]
fn a_client_may_compress_and_the_database_hears_nothing_of_it() {
    let fake = Fake::start(Version::V5, |ask| {
        assert!(!ask.envelope.header.flags.contains(Flags::COMPRESSED));
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
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
    let fake = Fake::start(Version::V5, move |ask| {
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
    let proxy = Proxy::before(fake.address);
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
            [format!("SELECT v FROM ks.client{number}a"), format!("SELECT v FROM ks.client{number}b")]
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
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.text.contains("FROM ks.") && gone.load(Ordering::SeqCst) {
            asked.lock().unwrap().send(()).unwrap();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V5);
    client.query(1, "SELECT v FROM ks.lost");
    hears.recv().unwrap();
    fake.cut();
    let (code, text) = error_of(&client.receive());
    assert_eq!(code, ErrorCode::Server, "{text}");
    silent.store(false, Ordering::SeqCst);
    assert_eq!(client.ask("SELECT v FROM ks.again"), "SELECT v FROM ks.again");
}

#[test]
fn a_database_that_is_down_is_unavailable_until_it_is_back() {
    let refuse = Arc::new(AtomicBool::new(false));
    let refusing = refuse.clone();
    let fake = Fake::start(Version::V5, move |ask| {
        if refusing.load(Ordering::SeqCst) {
            ask.hang_up();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V5);
    client.ask("SELECT v FROM ks.up");
    refuse.store(true, Ordering::SeqCst);
    fake.cut();
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
    assert_eq!(late.ask("SELECT cluster_name FROM system.local"), "fake");
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
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.text.contains("FROM ks.big") {
            counter.fetch_add(1, Ordering::SeqCst);
            ask.text_row(&"y".repeat(ANSWER));
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
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
    assert!(asked.load(Ordering::SeqCst) < REQUESTS, "reading went on although nobody took the answers");
    for _ in 0..REQUESTS {
        assert_eq!(text_of(&slow.receive()).len(), ANSWER);
    }
    sender.join().unwrap();
}

#[test]
fn a_client_slow_in_the_database_does_not_hold_up_others() {
    let held = Arc::new(Mutex::new(None));
    let (holder, (holds, wait)) = (held.clone(), mpsc::channel());
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.text.contains("FROM ks.slow") {
            holder.lock().unwrap().replace(ask.clone());
            holds.send(()).unwrap();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
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
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.text.contains("\"missing\"") || ask.text.contains("USE missing") {
            ask.error(&ErrorBody::new(ErrorCode::Invalid, "Keyspace 'missing' does not exist"));
            return true;
        }
        if ask.text.contains("FROM t") || ask.text.starts_with("USE") {
            log.lock().unwrap().push((ask.connection, ask.text.clone()));
        }
        if ask.text.contains("FROM t") {
            ask.text_row("row");
            return true;
        }
        false
    });
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V4);
    assert_eq!(client.ask("SELECT v FROM t"), "row");
    client.query(1, "USE Ks1");
    assert_eq!(client.receive().header.opcode, Opcode::Result);
    assert_eq!(client.ask("SELECT v FROM t"), "row");
    client.query(1, "USE missing");
    assert_eq!(error_of(&client.receive()), (ErrorCode::Invalid, "Keyspace 'missing' does not exist".into()));
    assert_eq!(client.ask("SELECT v FROM t"), "row");
    let seen = seen.lock().unwrap();
    let connections: Vec<_> =
        seen.iter().filter(|(_, text)| text.contains("FROM")).map(|(c, _)| *c).collect();
    let moved: Vec<_> = seen.iter().filter(|(_, text)| text.starts_with("USE")).map(|(c, _)| *c).collect();
    assert_ne!(connections[0], connections[1], "another keyspace, another connection");
    assert_eq!(connections[1], connections[2], "a refused USE changes nothing");
    assert!(!moved.contains(&connections[0]), "the connection without keyspace stays so: {seen:?}");
}

#[test]
fn a_schema_change_is_told_although_the_control_connection_is_lost_over_it() {
    let control = Arc::new(Mutex::new(None));
    let cut = Arc::new(AtomicBool::new(false));
    let (keeper, knife) = (control.clone(), cut.clone());
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Register {
            keeper.lock().unwrap().replace(ask.clone());
        }
        if ask.text.contains("system_schema.") && knife.swap(false, Ordering::SeqCst) {
            ask.hang_up();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V4);
    let mut body = Vec::new();
    Register::encode(&["SCHEMA_CHANGE"], &mut body);
    client.send(1, Opcode::Register, &body);
    assert_eq!(client.receive().header.opcode, Opcode::Ready);
    let mut event = Vec::new();
    let change = SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    Event::Schema(change).encode(&mut event);
    cut.store(true, Ordering::SeqCst);
    control.lock().unwrap().take().unwrap().event(&event);
    assert_eq!(client.receive().body, event[..]);
    assert!(!cut.load(Ordering::SeqCst), "the connection was lost");
}

#[test]
fn the_control_connection_outlives_an_attempt_that_failed() {
    let broken = Fake::start(Version::V5, |ask| {
        ask.hang_up();
        true
    });
    // Of a database that speaks v4 alone the attempt in v5 fails.
    for (highest, contact) in [(Version::V5, Some(broken.address)), (Version::V4, None)] {
        let listener = Arc::new(Mutex::new(None));
        let first = listener.clone();
        let fake = Fake::start(highest, move |ask| {
            if ask.opcode() == Opcode::Register {
                first.lock().unwrap().get_or_insert_with(|| ask.clone());
            }
            echo(ask)
        });
        let contacts: Vec<_> = contact.into_iter().chain([fake.address]).collect();
        let proxy = Proxy::with_contacts(&contacts, Driver::Auto, Arc::new(PassThrough));
        let mut client = proxy.client(Version::V4);
        let mut body = Vec::new();
        Register::encode(&["SCHEMA_CHANGE"], &mut body);
        client.send(1, Opcode::Register, &body);
        assert_eq!(client.receive().header.opcode, Opcode::Ready);
        let change = SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
        let mut event = Vec::new();
        Event::Schema(change).encode(&mut event);
        // Told on the first connection that was listened on, and on no other.
        listener.lock().unwrap().as_ref().unwrap().event(&event);
        assert_eq!(client.receive().header.opcode, Opcode::Event, "{highest}");
    }
}

#[test]
fn schema_events_reach_those_who_registered_and_node_events_nobody() {
    let control = Arc::new(Mutex::new(None));
    let keeper = control.clone();
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Register {
            keeper.lock().unwrap().replace(ask.clone());
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address);
    let mut listening = proxy.client(Version::V4);
    let mut deaf = proxy.client(Version::V5);
    let mut body = Vec::new();
    Register::encode(&["SCHEMA_CHANGE", "STATUS_CHANGE"], &mut body);
    let mut old = proxy.client(Version::V3);
    for client in [&mut listening, &mut old] {
        client.send(1, Opcode::Register, &body);
        assert_eq!(client.receive().header.opcode, Opcode::Ready);
    }
    let control = control.lock().unwrap().take().unwrap();
    let (mut status, mut schema) = (Vec::new(), Vec::new());
    Event::Status { change: "DOWN", address: "10.0.0.1".parse().unwrap(), port: 9042 }.encode(&mut status);
    let change = SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    Event::Schema(change).encode(&mut schema);
    control.event(&status);
    control.event(&schema);
    let change = SchemaChange {
        change: "CREATED",
        keyspace: "ks",
        target: SchemaTarget::Function("f", afterglow_cql::frame::notation::StringList::default()),
    };
    let mut function = Vec::new();
    Event::Schema(change.clone()).encode(&mut function);
    control.event(&function);
    let updated = SchemaChange { change: "UPDATED", target: SchemaTarget::Keyspace, ..change };
    let mut keyspace = Vec::new();
    Event::Schema(updated).encode(&mut keyspace);
    for expected in [&schema, &keyspace] {
        assert_eq!(old.receive().body, expected[..], "v3 knows no functions");
    }
    let event = listening.receive();
    assert_eq!((event.header.stream, event.header.opcode, &event.body[..]), (-1, Opcode::Event, &schema[..]));
    assert_eq!(deaf.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}

#[test]
fn drivers_are_shown_this_proxy_and_no_other_node() {
    let fake = Fake::start(Version::V5, |_| false);
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V4);
    client.query(1, "SELECT rpc_address, rpc_port, host_id FROM system.local WHERE key='local'");
    let answer = client.receive();
    let port = u32::from(proxy.front_end.address().port()).to_be_bytes();
    let cells = [&[0, 0, 0, 4, 127, 0, 0, 1, 0, 0, 0, 4][..], &port, &[0, 0, 0, 16], &42u128.to_be_bytes()];
    assert!(answer.body.ends_with(&cells.concat()), "{:?}", answer.body);
    for table in ["peers", "peers_v2"] {
        client.query(1, &format!("SELECT peer FROM system.{table}"));
        assert!(client.receive().body.ends_with(&[0; 4]), "no rows in {table}");
    }
}

#[test]
fn a_traced_query_of_a_system_table_has_a_trace_and_the_rows_that_drivers_are_shown() {
    const TRACE: [u8; 16] = [9; 16];
    let fake = Fake::start(Version::V5, |ask| {
        let traced = ask.envelope.header.flags.contains(Flags::TRACING);
        if traced && ask.text.contains("system.local") {
            // Of a row that no driver may see.
            ask.reply_traced(TRACE, Opcode::Result, &rows(ask.version(), &[("v", TEXT)], &[&[b"theirs"]]));
        } else if traced {
            let mut error = Vec::new();
            ErrorBody::new(ErrorCode::Overloaded, "not now").encode(&mut error);
            ask.reply_traced(TRACE, Opcode::Error, &error);
        }
        traced
    });
    let proxy = Proxy::before(fake.address);
    for version in [Version::V4, Version::V5] {
        let mut client = proxy.client(version);
        let mut ask = |text: &str| {
            let body = client.query_body(text);
            client.send_flagged(1, Flags::TRACING, Opcode::Query, &body);
            let answer = client.receive();
            assert!(answer.header.flags.contains(Flags::TRACING) && answer.body.starts_with(&TRACE));
            answer
        };
        assert_eq!(text_of(&ask("SELECT cluster_name FROM system.local")), "fake");
        assert_eq!(error_of(&ask("SELECT peer FROM system.peers")).1, "not now");
    }
}

#[test]
fn versions_beyond_the_database_are_refused_in_its_words() {
    let fake = Fake::start(Version::V4, echo);
    let proxy = Proxy::before(fake.address);
    // Started after the database is known.
    let mut old = proxy.client(Version::V4);
    assert_eq!(old.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
    let mut new = Client::connect(proxy.front_end.address(), Version::V5);
    let (code, text) = error_of(&new.startup());
    assert_eq!(code, ErrorCode::Protocol);
    assert_eq!(text, "Beta version of the protocol used (5/v5-beta), but USE_BETA flag is unset");
    // The connection lives on, as a server's does.
    new.version = Version::V4;
    assert_eq!(new.startup().header.opcode, Opcode::Ready);
    assert_eq!(new.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}

#[test]
fn node_local_is_refused_in_the_databases_words_also_where_we_would_answer() {
    let dangerous = "NODE_LOCAL consistency level is highly dangerous";
    let unknown = "Unknown code 11 for a consistency level";
    let of_versions = [
        (Version::V4, true, Some((ErrorCode::Protocol, unknown))),
        (Version::V5, false, Some((ErrorCode::Invalid, dangerous))),
        (Version::V5, true, None),
    ];
    for (highest, allowed, refusal) in of_versions {
        let fake = Fake::start(highest, move |ask| {
            let refuses = !allowed && ask.consistency() == Some(Consistency::NodeLocal);
            if refuses {
                ask.error(&ErrorBody::new(ErrorCode::Invalid, dangerous));
            }
            refuses || echo(ask)
        });
        let proxy = Proxy::before(fake.address);
        let mut client = proxy.client(Version::V4);
        for text in ["SELECT cluster_name FROM system.local", "SELECT v FROM ks.t"] {
            let mut body = Vec::new();
            let params = QueryParams::new(Consistency::NodeLocal);
            Query { text, params }.encode(Version::V4, &mut body);
            client.send(1, Opcode::Query, &body);
            let answer = client.receive();
            match &refusal {
                None => assert_eq!(answer.header.opcode, Opcode::Result, "{text}"),
                Some((code, words)) => assert_eq!(error_of(&answer), (*code, (*words).into()), "{text}"),
            }
        }
    }
}

#[test]
fn misuse_is_answered_and_the_connection_lives() {
    let fake = Fake::start(Version::V5, echo);
    let proxy = Proxy::before(fake.address);
    let mut client = Client::connect(proxy.front_end.address(), Version::V4);
    client.query(1, "SELECT v FROM ks.early");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Protocol);
    assert_eq!(client.startup().header.opcode, Opcode::Ready);
    assert_eq!(error_of(&client.startup()).0, ErrorCode::Protocol);
    client.send(5, Opcode::Query, b"garbage");
    let answer = client.receive();
    assert_eq!((answer.header.stream, error_of(&answer).0), (5, ErrorCode::Protocol));
    let mut body = Vec::new();
    let params = QueryParams { page_size: Some(0), ..QueryParams::new(Consistency::One) };
    Query { text: "SELECT key FROM system.local", params }.encode(Version::V4, &mut body);
    client.send(6, Opcode::Query, &body);
    assert_eq!(error_of(&client.receive()), (ErrorCode::Protocol, "The page size cannot be 0".into()));
    assert_eq!(client.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}

#[test]
fn draining_finishes_what_is_under_way() {
    let held = Arc::new(Mutex::new(None));
    let (holder, (holds, wait)) = (held.clone(), mpsc::channel());
    let fake = Fake::start(Version::V5, move |ask| {
        let hold = ask.text.contains("FROM ks.held");
        if hold {
            holder.lock().unwrap().replace(ask.clone());
            holds.send(()).unwrap();
        }
        hold
    });
    let proxy = Proxy::before(fake.address);
    let mut client = proxy.client(Version::V5);
    client.query(3, "SELECT v FROM ks.held");
    wait.recv().unwrap();
    let address = proxy.front_end.address();
    let draining = std::thread::spawn(move || (proxy.front_end.drain(Duration::from_secs(20)), proxy));
    while std::net::TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
    held.lock().unwrap().take().unwrap().text_row("done");
    assert_eq!(text_of(&client.receive()), "done");
    assert!(client.try_receive().is_none(), "closed after the last answer");
    assert!(draining.join().unwrap().0, "nothing had to be cut off");
}

/// Panics where the cache would be.
struct Faulty;

impl Router for Faulty {
    fn route(&self, request: Request) -> Option<Later> {
        let Operation::Query(_) = request.asked else { return PassThrough.route(request) };
        if request.body.windows(4).any(|bytes| bytes == b"oops") {
            panic!("a bug, on purpose");
        }
        if request.body.windows(4).any(|bytes| bytes == b"torn") {
            request.into_responder().reply_with(Opcode::Result, Flags::NONE, Path::Local, |out| {
                out.push(1);
                panic!("a bug in the middle of an answer, on purpose");
            });
            return None;
        }
        if request.body.windows(5).any(|bytes| bytes == b"later") {
            return Some(Box::pin(async move {
                let mut request = request;
                let answer = request.call().await;
                panic!("a bug in a task, on purpose: {answer:?}");
            }));
        }
        PassThrough.route(request)
    }
}

#[test]
fn a_bug_costs_one_request_and_nobody_elses_connection() {
    let fake = Fake::start(Version::V5, echo);
    let proxy = Proxy::routed(fake.address, Driver::Auto, Arc::new(Faulty));
    let mut other = proxy.client(Version::V4);
    let mut client = proxy.client(Version::V4);
    client.query(1, "SELECT v FROM ks.later");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Server);
    client.query(2, "SELECT v FROM ks.oops");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Server);
    assert_eq!(client.ask("SELECT v FROM ks.fine"), "SELECT v FROM ks.fine");
    client.query(3, "SELECT v FROM ks.torn");
    assert!(client.try_receive().is_none(), "half an answer must not be followed by another");
    assert_eq!(other.ask("SELECT v FROM ks.fine"), "SELECT v FROM ks.fine");
}
