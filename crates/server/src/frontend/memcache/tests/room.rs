//! Clients that stand still beside others that want the memory which they hold.

use std::sync::atomic::AtomicBool;

use super::super::budget::FREE;
use super::super::joining;
use super::super::parts;
use super::super::reactor_state::STALL;
use super::super::watch;
use super::large::{Large, lines};
use super::*;
use crate::tls::{ClientFiles, ClientTls, ServerFiles, ServerTls, TlsSession};

/// Room for three parts at a time.
fn narrow() -> Large {
    let mut large = Large::unopened(Durability::WriteBack);
    (large.segment, large.max_item) = (1 << 20, 16 << 20);
    large.part = parts::part_len(1 << 20);
    large.start();
    large
}

/// Has the reactor say something of its state.
fn ask<T: Send + 'static>(
    large: &Large,
    ask: impl FnOnce(&MemcacheReactorState) -> T + Send + 'static,
) -> T {
    let (_, front_end, reactors) = large.open.as_ref().unwrap();
    let front_end = front_end.front_end.clone();
    let ask = move || async move { ask(&MemcacheReactorState::of(&front_end)) };
    reactors.block_on(0, ask).expect("the reactor runs")
}

fn wait_for(
    large: &Large,
    what: &str,
    is_so: impl Fn(&MemcacheReactorState) -> bool + Copy + Send + 'static,
) {
    let until = Instant::now() + TIMEOUT;
    while !ask(large, is_so) {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn who_announces_much_and_sends_nothing_holds_nothing() {
    let large = narrow();
    let silent: Vec<Client> = (0..40)
        .map(|n| {
            let mut client = large.connect();
            client.send(&format!("mn\r\nset s{n} 0 0 1000000\r\n"));
            assert_eq!(client.line(), "MN");
            client
        })
        .collect();
    let used = |state: &MemcacheReactorState| state.budget.used();
    assert_eq!(ask(&large, used), 0, "what is announced alone is held for nobody");
    let (mut client, value) = (large.connect(), lines(60_000));
    for _ in 0..5 {
        assert_eq!(client.set("set k 0 0 960000", &value), "STORED");
        assert!(client.get("k").as_ref() == Some(&value));
    }
    let held = |state: &MemcacheReactorState| (state.budget.is_short(), state.budget.used());
    assert_eq!(ask(&large, held), (false, 0));
    drop(silent);
}

#[test]
fn a_join_that_waits_for_room_has_allocated_nothing() {
    const JOINS: usize = 12;
    let large = narrow();
    let value = lines(700_000);
    assert_eq!(large.connect().set("set k 0 0 11200000", &value), "STORED");
    let send = |request: &str| {
        let mut client = large.connect();
        client.send(&format!("mn\r\n{request}"));
        assert_eq!(client.line(), "MN");
        client
    };
    // They hold all the room there is, and read nothing.
    let silent: Vec<Client> = (0..6).map(|_| send("get k\r\n")).collect();
    let until = Instant::now() + TIMEOUT;
    let wait_for = |what: &str, is_so: fn(&MemcacheReactorState) -> bool| {
        while !ask(&large, is_so) {
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    };
    wait_for("the room is not used up", |state| state.budget.waiting() > 0);
    let joins: Vec<Client> = (0..JOINS).map(|_| send("append k 0 0 1\r\nx\r\n")).collect();
    wait_for("the joins do not wait", |state| state.budget.waiting() > JOINS);
    // Each needs two of three parts. One may have them, should a silent client be cut by now.
    let buffers = ask(&large, |_| joining::buffers());
    assert!(buffers <= 1, "{buffers} of {JOINS} joins have allocated what they wait for");
    drop((silent, joins));
}

#[test]
fn clients_that_read_nothing_lose_their_room_the_sooner_the_longer_others_wait() {
    let large = narrow();
    let value = lines(700_000);
    assert_eq!(large.connect().set("set k 0 0 11200000", &value), "STORED");
    // More than fits what the kernel keeps of a connection.
    let silent: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = large.connect();
            client.send("mn\r\nget k\r\n");
            assert_eq!(client.line(), "MN");
            client
        })
        .collect();
    let mut client = large.connect();
    let from = client.0.get_ref().local_addr().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let reading = std::thread::spawn({
        let done = done.clone();
        move || {
            let found = client.get("k");
            done.store(true, Ordering::Release);
            found
        }
    });
    let peer = FrontEndAddress::Tcp(from).to_string();
    // Who reads is never looked at while it has something to read: only others stand still.
    let look = move |state: &MemcacheReactorState, peer: &str| {
        let connections = state.connections();
        let reader = connections.iter().find(|info| info.peer == peer)?;
        let waits = state.budget.is_short() && reader.writing_since.get().is_none();
        let newest = connections.iter().map(|info| info.moved.get()).max()?;
        let (patience, before) = (state.patience.get(), state.counts.stalled_connections.get());
        if waits {
            watch::look(state, newest + patience);
        }
        (state.counts.stalled_connections.get() > before).then_some(patience)
    };
    let mut patience = Vec::new();
    while !done.load(Ordering::Acquire) {
        let peer = peer.clone();
        patience.extend(ask(&large, move |state| look(state, &peer)));
        std::thread::yield_now();
    }
    assert!(reading.join().unwrap().as_ref() == Some(&value));
    let shrinks = patience.windows(2).all(|two| two[1] <= (two[0] / 2).max(2));
    assert!(patience.len() > 2 && shrinks, "{patience:?}");
    drop(silent);
    let rests = |state: &MemcacheReactorState| {
        watch::look(state, state.front_end.seconds());
        state.patience.get()
    };
    let until = Instant::now() + TIMEOUT;
    while ask(&large, rests) != STALL {
        assert!(Instant::now() < until, "nobody waits any more");
        std::thread::yield_now();
    }
}

/// A client that speaks TLS, and says nothing else than it is told to.
struct TlsClient {
    stream: TcpStream,
    session: TlsSession,
}

impl TlsClient {
    fn new(large: &Large) -> Self {
        let files = ClientFiles { ca: certificate("ca.pem"), identity: None, verify_name: false };
        let session = ClientTls::open(files).unwrap().session("localhost").unwrap();
        let stream = TcpStream::connect(large.open.as_ref().unwrap().1.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut client = TlsClient { stream, session };
        while client.session.is_handshaking() {
            client.send(b"");
            let mut raw = [0; 8192];
            let read = std::io::Read::read(&mut client.stream, &mut raw).unwrap();
            assert!(client.session.open(&raw[..read], &mut Vec::new()));
        }
        client
    }

    fn send(&mut self, text: &[u8]) {
        let mut sealed = text.to_vec();
        self.session.seal(&mut sealed).unwrap();
        self.stream.write_all(&sealed).unwrap();
    }
}

fn certificate(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

#[test]
fn what_comes_over_tls_holds_no_more_than_it_asked_for() {
    const CLIENTS: usize = 20;
    let mut large = Large::unopened(Durability::WriteBack);
    (large.segment, large.max_item) = (1 << 20, 16 << 20);
    large.part = parts::part_len(1 << 20);
    let files = ServerFiles {
        certificates: certificate("server.pem"),
        key: certificate("server.key"),
        private_key: false,
        client_ca: None,
    };
    large.tls = Some(Arc::new(ServerTls::open(files).unwrap()));
    large.start();
    let part = large.part;
    // The second part has begun in what the first one came in.
    let mut one = TlsClient::new(&large);
    one.send(b"set k 0 0 960000\r\n");
    one.send(&vec![b'x'; part + 40_000]);
    let came = move |state: &MemcacheReactorState| state.metrics.bytes_received.get();
    wait_for(&large, "a part", move |state| came(state) as usize > part + 30_000);
    let used = ask(&large, |state| state.budget.used());
    assert!((1..=part).contains(&used), "{used} bytes for parts of {part}");
    drop(one);
    wait_for(&large, "the end", |state| state.connections().is_empty());
    let mut many: Vec<TlsClient> = (0..CLIENTS).map(|_| TlsClient::new(&large)).collect();
    for client in &mut many {
        client.send(b"set k 0 0 960000\r\n");
        client.send(&[b'x'; 70_000]);
    }
    wait_for(&large, "each holds what it asked for, or waits", |state| {
        let holding = |info: &&Rc<Info>| info.holding_since.get().is_some();
        state.connections().iter().filter(holding).count() + state.budget.waiting() >= CLIENTS
    });
    let used = ask(&large, |state| state.budget.used());
    assert!(used <= 4 * part, "{used} bytes where there is room for three parts");
}

/// Its only connection.
fn only(state: &MemcacheReactorState) -> Rc<Info> {
    state.connections().pop().expect("it is open")
}

/// Says that its last request, and what it sends now, began so long ago.
fn age(large: &Large, seconds: u64) {
    ask(large, move |state| {
        let (info, now) = (only(state), state.front_end.seconds());
        info.last_request.set(now - seconds);
        if info.holding_since.get().is_some() {
            info.holding_since.set(Some(now - seconds));
        }
    });
}

#[test]
fn a_client_has_its_time_for_each_mib_of_a_value_that_comes_whole() {
    let mut large = Large::unopened(Durability::WriteBack);
    (large.max_item, large.above) = (16 << 20, 16 << 20);
    large.start();
    let mut client = large.connect();
    let mut sent = 0;
    let mut send = |text: &[u8]| {
        client.0.get_mut().write_all(text).unwrap();
        sent += text.len() as u64;
        let all = sent;
        wait_for(&large, "bytes", move |state| state.metrics.bytes_received.get() >= all);
    };
    send(b"set k 0 0 4000000\r\n");
    send(&[b'x'; 200_000]);
    let age_of = |state: &MemcacheReactorState| {
        let since = only(state).holding_since.get().expect("it holds what came");
        state.front_end.seconds() - since
    };
    age(&large, STALL - 2);
    send(&[b'x'; 100_000]);
    assert!(ask(&large, age_of) >= STALL - 2, "a MiB takes it longer");
    send(&[b'x'; 1 << 20]);
    assert!(ask(&large, age_of) < STALL - 2, "a MiB has come since");
}

#[test]
fn who_is_in_the_middle_of_a_value_is_idle_only_once_no_byte_comes() {
    let mut large = Large::unopened(Durability::WriteBack);
    large.idle = Some(Duration::from_secs(5));
    large.start();
    let mut client = large.connect();
    client.send("mn\r\nset k 0 0 9000\r\nhalf of it");
    assert_eq!(client.line(), "MN");
    let look = |later: u64| {
        age(&large, 60);
        ask(&large, move |state| {
            watch::look(state, only(state).moved.get() + later);
            only(state).cut.get().is_some()
        })
    };
    assert!(!look(4), "bytes came four seconds ago");
    assert!(look(5));
}

#[test]
fn a_time_to_be_idle_that_is_no_whole_second_is_not_cut_short() {
    let mut large = Large::unopened(Durability::WriteBack);
    large.idle = Some(Duration::from_millis(1_500));
    large.start();
    let mut client = large.connect();
    client.send("mn\r\n");
    assert_eq!(client.line(), "MN");
    let look = |later: u64| {
        ask(&large, move |state| {
            let info = only(state);
            watch::look(state, info.moved.get().max(info.last_request.get()) + later);
            info.cut.get().is_some()
        })
    };
    assert!(!look(1));
    assert!(look(2));
}

#[test]
fn what_waits_to_be_durable_holds_no_value() {
    const LEN: usize = 20_000;
    let large = Large::new(Durability::Synced);
    let (_, front_end, reactors) = large.open.as_ref().unwrap();
    let front_end = front_end.front_end.clone();
    let (stored, waiting, used) = reactors
        .block_on(0, move || async move {
            let reactor_state = MemcacheReactorState::of(&front_end);
            let answers = answers::Answers::new(reactor_state.budget.share(), 0);
            let mut session = MemcacheSession::new(reactor_state.clone(), answers.clone());
            let mut store = |n| {
                let line = format!("set k{n} 0 0 {LEN}\r\n{}\r\n", "x".repeat(LEN));
                let mut decoder = Decoder::new(1 << 15, false);
                let Decoded::Request(_, request) = decoder.next(line.as_bytes()) else {
                    panic!("not a request: {line}");
                };
                matches!(session.perform(request), Performed::Done)
            };
            let stored = (0..100).take_while(|n| store(*n)).count();
            (stored, !answers.is_complete(), reactor_state.budget.used())
        })
        .expect("the reactor runs");
    assert!(stored * LEN > 2 * FREE, "no test: {stored} are stored");
    assert!(waiting, "nothing waits: no test");
    assert_eq!(used, 0, "bytes of values that the cache has");
}
