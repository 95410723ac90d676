//! Databases that ask clients for a login.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use afterglow::config::HostPort;
use afterglow::frontend::cql::{ControlState, Later, PassThrough, Request, Router, try_database};
use afterglow::reactor::{Driver, build_runtime};
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Opcode, Version};
use afterglow_cql::message::AuthResponse;
use afterglow_cql::response::ErrorBody;
use afterglow_testkit::fake_backend::{Ask, FakeBackend};

use crate::client::{Client, error_of, wait_until};
use crate::database::{echo, scripted};
use crate::proxy::Proxy;

/// Answers STARTUP with an authenticator whose tokens Afterglow does not understand.
fn wants_a_ticket(ask: &Ask) -> bool {
    let mut body = Vec::new();
    afterglow_cql::response::encode_authenticate("com.example.TicketAuthenticator", &mut body);
    ask.reply(Opcode::Authenticate, &body);
    true
}

/// Connects as a user; the answer to the password, and the client.
fn log_in(proxy: &Proxy, user: &str, password: &str, version: Version) -> (Envelope, Client) {
    log_in_with(proxy, &AuthResponse::plain(user, password), version)
}

fn log_in_with(proxy: &Proxy, token: &[u8], version: Version) -> (Envelope, Client) {
    let mut client = Client::connect(proxy.front_end.address(), version);
    assert_eq!(client.startup().header.opcode, Opcode::Authenticate);
    let mut body = Vec::new();
    AuthResponse { token: Some(token) }.encode(&mut body);
    client.send(1, Opcode::AuthResponse, &body);
    (client.receive(), client)
}

/// Whoever takes the place of a server asks first. Members of a ring have connections of their own.
#[test]
fn a_database_that_wants_a_login_is_tried_with_what_there_is() {
    let fake = scripted(Version::V3, |ask| match ask.opcode() {
        Opcode::Startup => wants_a_ticket(ask),
        Opcode::AuthResponse => {
            match ask.envelope.body.ends_with(b"secret") {
                true => ask.reply(Opcode::AuthSuccess, &[0xff; 4]),
                false => ask.error(&ErrorBody::new(ErrorCode::BadCredentials, "wrong")),
            }
            true
        }
        _ => echo(ask),
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    let nodes: [HostPort; 2] = ["127.0.0.1:1", &fake.address().to_string()].map(|address| {
        let (host, port) = address.rsplit_once(':').unwrap();
        HostPort { host: host.into(), port: port.parse().unwrap() }
    });
    let runtime = build_runtime(Driver::Auto, false).unwrap();
    let try_it = |nodes: &[HostPort], password: Option<&str>, clients_log_in| {
        if let Some(password) = password {
            let text = format!("username = \"alice\"\npassword = \"{password}\"\n");
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        }
        let credentials = password.map(|_| &*file);
        let tried = runtime.block_on(try_database(nodes, credentials, None, clients_log_in));
        tried.map_err(|error| error.to_string())
    };
    for (password, clients_log_in, says) in [
        (None, true, None),
        (None, false, Some("requires authentication")),
        (Some("secret"), false, None),
        (Some("guess"), true, Some("wrong")),
    ] {
        match (try_it(&nodes, password, clients_log_in), says) {
            (Ok(()), None) => {}
            (Err(why), Some(says)) => assert!(why.contains(says), "{why}"),
            (other, _) => panic!("{password:?}, {clients_log_in}: {other:?}"),
        }
    }
    assert!(try_it(&nodes[..1], None, true).unwrap_err().contains("127.0.0.1:1"));
}

#[test]
fn what_is_no_password_is_relayed_over_a_connection_of_the_clients_own() {
    let users = Arc::new(Mutex::new(Vec::new()));
    let log = users.clone();
    let fake = scripted(Version::V5, move |ask| match ask.opcode() {
        Opcode::Startup => wants_a_ticket(ask),
        Opcode::AuthResponse => {
            let good = ask.envelope.body.ends_with(b"secret");
            log.lock().unwrap().push(ask.connection);
            match good {
                true => ask.reply(Opcode::AuthSuccess, &[0xff; 4]),
                false => ask.error(&ErrorBody::new(ErrorCode::BadCredentials, "wrong")),
            }
            true
        }
        _ => echo(ask),
    });
    let proxy = Proxy::before(fake.address());
    for &version in Version::ALL {
        let (answer, mut alice) = log_in(&proxy, "alice", "secret", version);
        assert_eq!(answer.header.opcode, Opcode::AuthSuccess);
        assert_eq!(alice.ask("SELECT v FROM ks.hers"), "SELECT v FROM ks.hers");
        assert_eq!(alice.ask("SELECT cluster_name FROM system.local"), "Fake Cluster");
        let (answer, mut mallory) = log_in(&proxy, "mallory", "guess", version);
        assert_eq!(error_of(&answer).0, ErrorCode::BadCredentials);
        mallory.query(2, "SELECT v FROM ks.hers");
        assert_eq!(error_of(&mallory.receive()).0, ErrorCode::Protocol);
    }
    let mut connections = users.lock().unwrap().clone();
    connections.dedup();
    assert_eq!(connections.len(), 6, "each client has its own connection");
}

#[test]
fn a_use_on_a_clients_own_connection_meets_no_other_request() {
    // What the database was asked, in which order, and the requests that it has not answered yet.
    let (asked, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (log, kept) = (asked.clone(), open.clone());
    let fake = scripted(Version::V5, move |ask| match ask.opcode() {
        Opcode::Startup => wants_a_ticket(ask),
        Opcode::AuthResponse => {
            ask.reply(Opcode::AuthSuccess, &[0xff; 4]);
            true
        }
        Opcode::Query if ask.text.contains("mine") => {
            log.lock().unwrap().push(ask.text.clone());
            kept.lock().unwrap().push(ask.clone());
            true
        }
        _ => echo(ask),
    });
    let proxy = Proxy::before(fake.address());
    let (_, mut client) = log_in(&proxy, "alice", "secret", Version::V4);
    let texts = ["SELECT v FROM mine.a", "USE mine", "INSERT INTO mine (k) VALUES (1)"];
    for (stream, text) in (2..).zip(texts) {
        client.query(stream, text);
    }
    // Each comes only when the one before has its answer.
    for (nth, text) in (1..).zip(texts) {
        wait_until("the database was asked", || !open.lock().unwrap().is_empty());
        assert_eq!(asked.lock().unwrap()[nth - 1..], [text.to_owned()]);
        let ask = open.lock().unwrap().remove(0);
        match text.starts_with("USE") {
            true => {
                let mut body = Vec::new();
                afterglow_cql::response::encode_set_keyspace("mine", &mut body);
                ask.reply(Opcode::Result, &body);
            }
            false => ask.text_row("done"),
        }
        assert_eq!(client.receive().header.stream, nth as i16 + 1);
    }
}

/// A database that asks for a password, any, for as long as `asks`.
fn with_passwords(asks: &Arc<AtomicBool>) -> FakeBackend {
    let asks = asks.clone();
    scripted(Version::V5, move |ask| match ask.opcode() {
        Opcode::Startup if asks.load(Ordering::SeqCst) => {
            let mut body = Vec::new();
            let class = "org.apache.cassandra.auth.PasswordAuthenticator";
            afterglow_cql::response::encode_authenticate(class, &mut body);
            ask.reply(Opcode::Authenticate, &body);
            true
        }
        Opcode::AuthResponse => {
            ask.reply(Opcode::AuthSuccess, &[0xff; 4]);
            true
        }
        _ => echo(ask),
    })
}

/// Counts what it is asked about, and waits, when it is told that the control connection is there,
/// until the test goes on.
struct Opening {
    asked: AtomicUsize,
    opens: Mutex<mpsc::Sender<()>>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl Router for Opening {
    fn route(&self, request: Request) -> Option<Later> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        PassThrough.route(request)
    }

    fn control(&self, state: ControlState) {
        if matches!(state, ControlState::Connected { .. }) {
            self.opens.lock().unwrap().send(()).unwrap();
            // It ends with the test, however that ends.
            let _ = self.goes_on.lock().unwrap().recv();
        }
    }
}

#[test]
fn no_request_goes_past_the_cache_from_the_moment_in_which_it_opens() {
    let asks = Arc::new(AtomicBool::new(true));
    let fake = with_passwords(&asks);
    let (opens, opening) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let router = Arc::new(Opening {
        asked: AtomicUsize::new(0),
        opens: Mutex::new(opens),
        goes_on: Mutex::new(goes_on),
    });
    let proxy = Proxy::routed(fake.address(), Driver::Auto, router.clone());
    // Some of them on the reactor that has no control connection to wait for.
    let mut clients: Vec<_> = (0..4)
        .map(|n| {
            let (answer, mut client) = log_in(&proxy, &format!("user{n}"), "secret", Version::V4);
            assert_eq!(answer.header.opcode, Opcode::AuthSuccess);
            client.ask("SELECT v FROM ks.t");
            client
        })
        .collect();
    assert_eq!(
        router.asked.load(Ordering::SeqCst),
        0,
        "nothing is cached while nobody tells of schemas"
    );
    asks.store(false, Ordering::SeqCst);
    opening.recv().unwrap();
    clients.iter_mut().for_each(|client| client.query(1, "INSERT INTO ks.t (k) VALUES (1)"));
    let is_answered = |client: &Client| client.stream.peek(&mut [0]).is_ok();
    clients.iter().for_each(|client| client.stream.set_nonblocking(true).unwrap());
    wait_until("one of them is answered", || clients.iter().any(is_answered));
    let (asked, answered) = (
        router.asked.load(Ordering::SeqCst),
        clients.iter().filter(|client| is_answered(client)).count(),
    );
    clients.iter().for_each(|client| client.stream.set_nonblocking(false).unwrap());
    drop(go_on);
    clients.iter_mut().for_each(|client| drop(client.receive()));
    assert!(asked > 0, "{answered} writes went past the cache");
}

#[test]
fn logins_do_not_go_to_a_node_that_was_not_reached_a_moment_ago() {
    let asks = Arc::new(AtomicBool::new(true));
    let nodes = [with_passwords(&asks), with_passwords(&asks)];
    nodes[0].set_down(true);
    let contacts = nodes.each_ref().map(|node| node.address());
    let began = Instant::now();
    let proxy = Proxy::with_contacts(&contacts, Driver::Auto, Arc::new(PassThrough));
    const LOGINS: usize = 40;
    for n in 0..LOGINS {
        let (answer, _client) = log_in(&proxy, &format!("user{n}"), "secret", Version::V4);
        assert_eq!(answer.header.opcode, Opcode::AuthSuccess);
    }
    // Each of two reactors finds out every ten seconds, and the control connection every five: less
    // than one in a second.
    let at_most = 4 + began.elapsed().as_secs();
    let refused = nodes[0].refused();
    assert!(
        (1..=at_most).contains(&refused),
        "{refused} attempts at a node that is down, of {LOGINS} logins"
    );
}

/// How often a login is made in vain for others.
const LOGINS: usize = 40;

#[test]
fn a_token_that_asks_to_be_let_in_as_another_leaves_nothing_behind() {
    let fake = with_passwords(&Arc::new(AtomicBool::new(true)));
    let proxy = Proxy::before(fake.address());
    let (_, mut alice) = log_in(&proxy, "alice", "secret", Version::V4);
    alice.ask("SELECT v FROM ks.hers");
    let live = fake.live();
    for n in 0..LOGINS {
        let token = format!("{n}\0eve\0hers");
        let (answer, mut eve) = log_in_with(&proxy, token.as_bytes(), Version::V5);
        assert_eq!(answer.header.opcode, Opcode::AuthSuccess);
        assert_eq!(eve.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
        assert_eq!(eve.ask("SELECT cluster_name FROM system.local"), "Fake Cluster");
    }
    // Her clients are gone, and their connections with them.
    wait_until("the database has nobody but alice", || fake.live() <= live);
    alice.ask("SELECT v FROM ks.hers");
    assert_eq!(fake.live(), live);
}

/// Nothing can take its place, and a driver whose connection stays does not connect anew.
#[test]
fn a_client_ends_with_the_connection_that_is_its_own() {
    let fake = with_passwords(&Arc::new(AtomicBool::new(true)));
    let proxy = Proxy::before(fake.address());
    let (_, mut eve) = log_in_with(&proxy, b"x\0eve\0hers", Version::V5);
    assert_eq!(eve.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
    fake.hang_up();
    assert!(eve.try_receive().is_none(), "it is told nothing, and ended");
    let (_, mut eve) = log_in_with(&proxy, b"x\0eve\0hers", Version::V5);
    assert_eq!(eve.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}

#[test]
fn a_user_whom_no_client_has_keeps_no_connections() {
    let fake = with_passwords(&Arc::new(AtomicBool::new(true)));
    let idle = Duration::from_millis(400);
    let proxy = Proxy::forgetting_users(fake.address(), idle);
    let (_, mut alice) = log_in(&proxy, "alice", "secret", Version::V4);
    alice.ask("SELECT v FROM ks.hers");
    let live = fake.live();
    let visit = || {
        for n in 0..LOGINS {
            let (_, mut bob) = log_in(&proxy, &format!("bob{}", n / 2), "secret", Version::V5);
            bob.ask("SELECT v FROM ks.his");
        }
    };
    visit();
    wait_until("all but alice are gone", || fake.live() <= live);
    let made = fake.connections();
    std::thread::sleep(4 * idle);
    alice.ask("SELECT v FROM ks.hers");
    assert_eq!((fake.connections(), fake.live()), (made, live), "a client has her");
    visit();
    wait_until("all but alice are gone again", || fake.live() <= live);
}

#[test]
fn a_clients_own_connection_is_in_the_keyspace_that_the_database_says() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let fake = scripted(Version::V5, move |ask| match ask.opcode() {
        Opcode::Startup => wants_a_ticket(ask),
        Opcode::AuthResponse => {
            ask.reply(Opcode::AuthSuccess, &[0xff; 4]);
            true
        }
        Opcode::Query if ask.text.contains("USE") || ask.text.contains("moves") => {
            count.fetch_add(1, Ordering::SeqCst);
            let mut body = Vec::new();
            afterglow_cql::response::encode_set_keyspace("system", &mut body);
            ask.reply(Opcode::Result, &body);
            true
        }
        _ => echo(ask),
    });
    let proxy = Proxy::before(fake.address());
    let (_, mut client) = log_in(&proxy, "alice", "secret", Version::V4);
    client.query(2, &format!("USE system{}", ";".repeat(200_000)));
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Invalid);
    assert_eq!(told.load(Ordering::SeqCst), 0, "the database has not seen it");
    // Whatever else a server may take for USE.
    client.query(3, "SELECT moves FROM ks.t");
    assert_eq!(client.receive().header.opcode, Opcode::Result);
    assert_eq!(client.ask("SELECT cluster_name FROM local"), "Fake Cluster");
}
