//! Links over real sockets. Whoever waits does so for what it says, for a minute at most.

use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use afterglow_ring::{Credit, Hello, Incarnation, MemberId};
use parking_lot::Mutex;

use super::{
    MessageKind, OpenRequest, Receiver, Secret, Secrets, Transport, TransportConfig, Tuning,
};
use crate::metrics::{Metrics, TextFormat};
use crate::reactor::{Driver, Reactors, ReactorsConfig};

mod faults;
mod frozen;
mod handshake;
mod lanes;
mod links;
mod nearness;
mod stranger;

/// Far more than anything takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A message that makes the receiver panic.
const BUG: &[u8] = b"a bug";
const RING: &str = "ring";

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Message(MemberId, Vec<u8>),
    Up(MemberId),
    Down(MemberId),
    Refused(MemberId),
}

/// Requests that are not answered, by their length.
type Requests = Arc<Mutex<Vec<(usize, OpenRequest)>>>;

struct EventSender(mpsc::Sender<Event>, Requests);

impl Receiver for EventSender {
    fn message(&self, from: MemberId, bytes: &[u8], request: Option<OpenRequest>) {
        assert!(bytes != BUG, "a bug of whoever receives");
        self.1.lock().extend(request.map(|request| (bytes.len(), request)));
        // The test may be over.
        let _ = self.0.send(Event::Message(from, bytes.to_vec()));
    }

    fn link(&self, peer: MemberId, up: bool) {
        let _ = self.0.send(if up { Event::Up(peer) } else { Event::Down(peer) });
    }

    fn refused(&self, peer: MemberId) {
        let _ = self.0.send(Event::Refused(peer));
    }
}

/// An instance of a ring.
struct Node {
    transport: ManuallyDrop<Transport>,
    reactors: Reactors,
    metrics: Metrics,
    events: mpsc::Receiver<Event>,
    requests: Requests,
}

fn secret() -> Secrets {
    Secrets::of([Secret::of(b"a secret of the tests, which is long enough")])
}

fn hello(id: u64) -> Hello {
    let window = Credit { requests: 4, bytes: 1024 };
    let life = Incarnation(u128::from(id) << 64 | 7);
    Hello { member: MemberId(id), life, versions: (1, 1), shards: 4096, window }
}

/// What an instance is unless a test says otherwise: member `id` on any port.
fn config(id: u64) -> TransportConfig {
    let (address, ring) = (format!("member-{id}.example:9"), RING.to_owned());
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    TransportConfig { listen, secrets: secret(), hello: hello(id), address, ring }
}

fn node_with(config: TransportConfig, tuning: Tuning, driver: Driver) -> Node {
    let reactors = Reactors::start(&ReactorsConfig { threads: Some(2), driver }).unwrap();
    let (metrics, (tell, events)) = (Metrics::default(), mpsc::channel());
    let requests = Requests::default();
    let receiver = Arc::new(EventSender(tell, requests.clone()));
    let transport =
        Transport::start_with(config, tuning, &reactors, receiver, &metrics).expect("it listens");
    let transport = ManuallyDrop::new(transport);
    Node { transport, reactors, metrics, events, requests }
}

/// Times that no machine is too slow for, and one link dialled to each peer.
fn patient() -> Tuning {
    let dialled = 1;
    Tuning { handshake: TIMEOUT, silence: TIMEOUT, stall: TIMEOUT, dialled, ..Tuning::default() }
}

fn node(id: u64) -> Node {
    node_with(config(id), patient(), Driver::Auto)
}

impl Node {
    fn id(&self) -> MemberId {
        self.transport.registry().config.hello.member
    }

    fn at(&self) -> String {
        self.transport.address().to_string()
    }

    fn dial(&self, peers: &[&Node]) {
        let peers = peers.iter().map(|peer| (peer.id(), peer.at())).collect();
        self.transport.set_peers(peers);
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(TIMEOUT).expect("something happens")
    }

    /// The next message, whatever links do meanwhile.
    fn next_message(&self) -> (MemberId, Vec<u8>) {
        loop {
            if let Event::Message(from, bytes) = self.next() {
                return (from, bytes);
            }
        }
    }

    /// A request of so many bytes that has come and is not answered.
    fn request(&self, bytes: usize) -> OpenRequest {
        let mut requests = self.requests.lock();
        let found = requests.iter().position(|(length, _)| *length == bytes);
        requests.swap_remove(found.expect("it has come")).1
    }

    /// The value of a metric, with its labels.
    fn metric(&self, name: &str) -> u64 {
        let text = self.metrics.render(TextFormat::Prometheus);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
    }

    fn failures(&self, reason: &str) -> u64 {
        let name = "afterglow_ring_link_handshakes_failed_total";
        self.metric(&format!("{name}{{reason=\"{reason}\"}}"))
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.metric(&format!("afterglow_ring_link_dropped_total{{reason=\"{reason}\"}}"))
    }

    fn closed(&self, reason: &str) -> u64 {
        self.metric(&format!("afterglow_ring_link_closed_total{{reason=\"{reason}\"}}"))
    }

    fn last_error(&self, peer: MemberId) -> Option<String> {
        self.transport.peers().into_iter().find(|state| state.id == peer)?.last_error
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The runtime ends the process when a thread that panics wakes a task, and what failed
        // would not be shown.
        if !std::thread::panicking() {
            self.transport.stop();
            assert!(self.transport.wait_stopped(TIMEOUT));
            self.reactors.shutdown();
        }
    }
}

/// Waits until that gives something.
fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(std::time::Instant::now() < end, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn holds(what: &str, mut ready: impl FnMut() -> bool) {
    until(what, || ready().then_some(()));
}
