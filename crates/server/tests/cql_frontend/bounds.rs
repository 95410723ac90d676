//! What one client can make the front end hold, and others wait for.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Compression, Opcode, Version};
use afterglow_testkit::fake_backend::{Ask, FakeBackend};

use crate::client::{Client, error_of, text_of, wait_until};
use crate::database::{echo, scripted};
use crate::overload::throwing;
use crate::proxy::Proxy;

/// Requests that one client may have without an answer.
const IN_FLIGHT: usize = 1024;

/// A client of v5 that compresses.
pub fn compressing(proxy: &Proxy) -> Client {
    let mut client = Client::connect(proxy.front_end.address(), Version::V5);
    assert_eq!(client.startup_with(Some(Compression::Lz4)).header.opcode, Opcode::Ready);
    client
}

#[test]
fn what_one_write_brings_compressed_is_bounded_like_anything_else() {
    const REQUESTS: usize = 20_000;
    let asked = Arc::new(AtomicUsize::new(0));
    let held = Arc::new(Mutex::new(Vec::<Arc<Ask>>::new()));
    let holding = Arc::new(AtomicBool::new(true));
    let (counter, holder, holds) = (asked.clone(), held.clone(), holding.clone());
    let fake = scripted(Version::V5, move |ask| {
        if !ask.text.contains("FROM ks.many") {
            return echo(ask);
        }
        counter.fetch_add(1, Ordering::SeqCst);
        let mut held = holder.lock().unwrap();
        match holds.load(Ordering::SeqCst) {
            true => held.push(ask.clone()),
            false => ask.text_row("one"),
        }
        true
    });
    let proxy = Proxy::before(fake.address());
    let mut greedy = compressing(&proxy);
    let body = greedy.query_body("SELECT v FROM ks.many");
    let burst = greedy.encode_all(Opcode::Query, (0..REQUESTS).map(|_| (7, &body[..])));
    assert!(burst.len() < 64 * 1024, "one write of {} bytes", burst.len());
    greedy.stream.write_all(&burst).unwrap();
    wait_until("the client has all that it may have", || asked.load(Ordering::SeqCst) >= IN_FLIGHT);
    // What more the front end would send goes before the answers to these, on both reactors.
    for _ in 0..4 {
        let mut other = proxy.client(Version::V5);
        assert_eq!(other.ask("SELECT v FROM ks.other"), "SELECT v FROM ks.other");
    }
    assert_eq!(asked.load(Ordering::SeqCst), IN_FLIGHT);
    {
        let mut held = held.lock().unwrap();
        holding.store(false, Ordering::SeqCst);
        held.drain(..).for_each(|ask| ask.text_row("one"));
    }
    for _ in 0..REQUESTS {
        assert_eq!(text_of(&greedy.receive()), "one");
    }
}

/// Requests that a connection to the database takes at once.
const STREAMS: usize = 32 * 1024 - 1;
/// So many clients, of one reactor, ask more than that.
const CROWD: usize = STREAMS / IN_FLIGHT + 2;

/// A database that keeps its answers to `ks.many` until it is told otherwise.
struct Full {
    fake: FakeBackend,
    held: Arc<Mutex<Vec<Arc<Ask>>>>,
    holding: Arc<AtomicBool>,
}

impl Full {
    /// With a crowd of clients that have asked all that they may, until a connection has no stream
    /// left.
    fn of_crowd() -> (Self, Proxy, Vec<Client>) {
        let held = Arc::new(Mutex::new(Vec::<Arc<Ask>>::new()));
        let holding = Arc::new(AtomicBool::new(true));
        let (holder, holds) = (held.clone(), holding.clone());
        let fake = scripted(Version::V5, move |ask| {
            if !ask.text.contains("ks.many") {
                return echo(ask);
            }
            let mut held = holder.lock().unwrap();
            match holds.load(Ordering::SeqCst) {
                true => held.push(ask.clone()),
                false => ask.text_row("one"),
            }
            true
        });
        let proxy = Proxy::on_one_reactor(fake.address());
        let mut crowd: Vec<_> = (0..CROWD).map(|_| compressing(&proxy)).collect();
        for client in &mut crowd {
            // Reads would be sent again when the connection is lost.
            let body = client.query_body("UPDATE ks.many SET v = 1 WHERE k = 1");
            let burst = client.encode_all(Opcode::Query, (0..IN_FLIGHT).map(|_| (7, &body[..])));
            client.stream.write_all(&burst).unwrap();
        }
        wait_until("a connection has no stream left", || held.lock().unwrap().len() >= STREAMS);
        (Self { fake, held, holding }, proxy, crowd)
    }
}

#[test]
fn requests_beyond_a_connections_streams_wait_until_there_are_answers() {
    let (full, _proxy, mut crowd) = Full::of_crowd();
    {
        let mut held = full.held.lock().unwrap();
        full.holding.store(false, Ordering::SeqCst);
        held.drain(..).for_each(|ask| ask.text_row("one"));
    }
    for client in &mut crowd {
        (0..IN_FLIGHT).for_each(|_| assert_eq!(text_of(&client.receive()), "one"));
    }
}

#[test]
fn requests_that_wait_for_a_stream_are_answered_when_the_connection_is_lost() {
    let (full, proxy, mut crowd) = Full::of_crowd();
    full.fake.hang_up();
    let mut unsent = 0;
    for client in &mut crowd {
        for _ in 0..IN_FLIGHT {
            let (code, text) = error_of(&client.receive());
            assert!(matches!(code, ErrorCode::Server | ErrorCode::Unavailable), "{text}");
            unsent += usize::from(code == ErrorCode::Unavailable);
        }
    }
    assert!(unsent > 0, "those that nobody has sent may be sent again");
    assert_eq!(proxy.client(Version::V5).ask("SELECT v FROM ks.other"), "SELECT v FROM ks.other");
}

#[test]
fn before_it_has_logged_in_a_client_sends_small_things_only() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut stranger = Client::connect(proxy.front_end.address(), Version::V4);
    stranger.send(3, Opcode::AuthResponse, &vec![0; 200_000]);
    let (code, text) = error_of(&stranger.receive());
    assert_eq!(code, ErrorCode::Invalid);
    assert!(text.contains("exceeds maximum allowed length 131072"), "{text}");
    assert_eq!(stranger.startup().header.opcode, Opcode::Ready);
    let long = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(200_000));
    assert_eq!(stranger.ask(&long), long);
}

/// A number of `/metrics`.
pub fn metric(proxy: &Proxy, name: &str) -> usize {
    let text = proxy.front_end.front_end().config.metrics.render(Default::default());
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim().parse().unwrap()
}

/// What clients hold.
pub const HELD: &str = r#"afterglow_client_held_bytes{frontend="cql"}"#;
pub const REFUSED: &str = r#"afterglow_client_large_requests_refused_total{frontend="cql"}"#;
const UNREAD: &str =
    r#"afterglow_client_connections_cut_total{frontend="cql",reason="unread_answers"}"#;

/// Memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn clients_that_announce_large_requests_share_one_budget() {
    let this = std::env::current_exe().unwrap();
    let alone = ["--exact", "bounds::large_requests_share_one_budget", "--ignored", "--nocapture"];
    let done = Command::new(this).args(alone).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{done:?}");
}

#[test]
#[ignore = "it measures its process, which must have no other test; the one above runs it"]
fn large_requests_share_one_budget() {
    const CLIENTS: usize = 20;
    const SENT: usize = 100 * 1024 * 1024;
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut header = proxy.client(Version::V4).encode(3, Opcode::Query, &[]);
    header[5..].copy_from_slice(&(250_i32 << 20).to_be_bytes());
    let greedy: Vec<_> = (0..CLIENTS).map(|_| throwing(&proxy, Version::V4, "1")).collect();
    let writers: Vec<_> = greedy.iter().map(|client| client.stream.try_clone().unwrap()).collect();
    let sending: Vec<_> = writers
        .into_iter()
        .map(|mut stream| {
            let header = header.clone();
            std::thread::spawn(move || {
                stream.write_all(&header).unwrap();
                let block = vec![7; 1024 * 1024];
                // The one that was admitted keeps what it was sent; of others nothing is kept.
                (0..SENT / block.len()).for_each(|_| stream.write_all(&block).unwrap());
            })
        })
        .collect();
    wait_until("one of them is admitted", || metric(&proxy, HELD) >= 499 << 20);
    // All the while small requests are answered, and those for which there is room.
    for length in [10, 1_000_000] {
        let long = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(length));
        assert_eq!(proxy.client(Version::V5).ask(&long), long);
    }
    wait_until("the others are refused", || metric(&proxy, REFUSED) == CLIENTS - 1);
    sending.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(metric(&proxy, HELD) <= 512 << 20);
    assert!(resident() < 1 << 30, "{} bytes are resident of {} sent", resident(), CLIENTS * SENT);
    drop(greedy);
    wait_until("what they held is given back", || metric(&proxy, HELD) == 0);
    let large = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(20_000_000));
    assert_eq!(proxy.client(Version::V5).ask(&large), large);
}

/// Bytes of what `ks.big` is answered with.
pub const ANSWER: usize = 8 << 20;

/// A database with a table of big rows.
pub fn with_big_answers() -> FakeBackend {
    scripted(Version::V5, |ask| {
        let big = ask.text.contains("FROM ks.big");
        if big {
            ask.text_row(&"y".repeat(ANSWER));
        }
        big || echo(ask)
    })
}

#[test]
fn a_client_that_leaves_very_much_unread_is_cut_off() {
    let fake = with_big_answers();
    let proxy = Proxy::before(fake.address());
    let mut slow = proxy.client(Version::V4);
    let body = slow.query_body("SELECT v FROM ks.big");
    let burst = slow.encode_all(Opcode::Query, (0..40).map(|_| (7, &body[..])));
    slow.stream.write_all(&burst).unwrap();
    wait_until("it is cut off", || metric(&proxy, UNREAD) == 1);
    wait_until("what it held is given back", || metric(&proxy, HELD) == 0);
    assert_eq!(proxy.client(Version::V4).ask("SELECT v FROM ks.other"), "SELECT v FROM ks.other");
}

#[test]
fn a_large_request_that_does_not_come_loses_its_room() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut idle = proxy.client(Version::V4);
    let mut header = idle.encode(3, Opcode::Query, &[]);
    header[5..].copy_from_slice(&200_000_i32.to_be_bytes());
    idle.stream.write_all(&header).unwrap();
    wait_until("it is admitted", || metric(&proxy, HELD) > 0);
    assert!(idle.try_receive().is_none(), "the connection ends");
    wait_until("its room is given back", || metric(&proxy, HELD) == 0);
}

#[test]
fn what_comes_between_the_parts_of_a_large_request_gives_it_no_more_time() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut slow = proxy.client(Version::V5);
    let large = slow.encode(3, Opcode::Query, &[7; 400_000]);
    slow.stream.write_all(&large[..140_000]).unwrap();
    wait_until("it is admitted", || metric(&proxy, HELD) > 400_000);
    let rest = slow.encode(4, Opcode::Options, &[]);
    // The second part is whole, so that others may come.
    slow.stream.write_all(&large[140_000..2 * 131_081]).unwrap();
    let began = Instant::now();
    let mut answered = 0;
    loop {
        // Read before an answer proves that the connection lived on: its end may come at any time.
        let held = metric(&proxy, HELD);
        if slow.stream.write_all(&rest).is_err() || slow.try_receive().is_none() {
            break;
        }
        answered += 1;
        assert!(held > 400_000, "its room is kept for it");
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "after {answered} others it may still arrive"
        );
        // Else both ends would be busy for ten seconds.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(answered > 0);
    wait_until("its room is given back", || metric(&proxy, HELD) == 0);
}

/// A request of v4 that says that it was so long before it was compressed, up to its first bytes.
pub fn announced(client: &mut Client, length: i32, unpacked: i32) -> Vec<u8> {
    const COMPRESSED: u8 = 1;
    let mut head = client.encode(3, Opcode::Query, &[]);
    head.truncate(9);
    head[1] |= COMPRESSED;
    head[5..9].copy_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&unpacked.to_be_bytes());
    head
}

#[test]
fn a_request_that_takes_more_than_the_whole_budget_is_read_and_given_up_like_any_other() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut greedy = Client::connect(proxy.front_end.address(), Version::V4);
    assert_eq!(greedy.startup_with(Some(Compression::Lz4)).header.opcode, Opcode::Ready);
    let head = announced(&mut greedy, 100 << 20, 250 << 20);
    greedy.stream.write_all(&head).unwrap();
    wait_until("it is admitted", || metric(&proxy, HELD) > 512 << 20);
    // The front end still reads what comes, and so sees that nothing more does.
    drop(greedy);
    wait_until("what it held is given back", || metric(&proxy, HELD) == 0);
    let large = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(1_000_000));
    assert_eq!(proxy.client(Version::V5).ask(&large), large);
}

#[test]
fn what_is_admitted_in_two_steps_is_counted_once() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut greedy = Client::connect(proxy.front_end.address(), Version::V4);
    assert_eq!(greedy.startup_with(Some(Compression::Lz4)).header.opcode, Opcode::Ready);
    let head = announced(&mut greedy, 100 << 20, 50 << 20);
    greedy.stream.write_all(&head[..9]).unwrap();
    wait_until("it is admitted as it comes", || metric(&proxy, HELD) >= 199 << 20);
    greedy.stream.write_all(&head[9..]).unwrap();
    wait_until("and as it was before", || metric(&proxy, HELD) >= 299 << 20);
    assert!(metric(&proxy, HELD) <= 300 << 20, "{} bytes", metric(&proxy, HELD));
    drop(greedy);
    wait_until("what it held is given back", || metric(&proxy, HELD) == 0);
}

/// Clients whose answers hold most of what there is, unless one of them is cut off before.
fn clients_that_take_nothing(proxy: &Proxy) -> Option<Vec<Client>> {
    let cut = metric(proxy, UNREAD);
    // None of them leaves so much unread that it is cut off for that, nor all together: sockets
    // hold some of it.
    let mut idle: Vec<_> = (0..5).map(|_| proxy.client(Version::V4)).collect();
    for client in &mut idle {
        let body = client.query_body("SELECT v FROM ks.big");
        let burst = client.encode_all(Opcode::Query, (0..13).map(|_| (7, &body[..])));
        client.stream.write_all(&burst).unwrap();
    }
    let held = || metric(proxy, HELD) >= 450 << 20;
    wait_until("they hold most of what there is", || held() || metric(proxy, UNREAD) > cut);
    held().then_some(idle)
}

#[test]
fn answers_that_nobody_takes_keep_large_requests_out_for_a_while_only() {
    let fake = with_big_answers();
    let proxy = Proxy::before(fake.address());
    // Whoever takes nothing for ten seconds is cut off. A machine that stands still meanwhile may
    // get no further, so it is given several goes.
    let idle = (0..20).find_map(|_| clients_that_take_nothing(&proxy));
    let idle = idle.expect("they hold most of what there is");
    let large = format!("SELECT v FROM ks.t WHERE k = '{}'", "x".repeat(40_000_000));
    let mut other = proxy.client(Version::V4);
    // It waits for them to be cut off; on a machine that stands still perhaps in vain.
    let refused = (0..20).take_while(|_| {
        other.query(9, &large);
        other.receive().header.opcode == Opcode::Error
    });
    assert!(refused.count() < 20);
    assert!(metric(&proxy, UNREAD) > 0);
    drop(idle);
}
