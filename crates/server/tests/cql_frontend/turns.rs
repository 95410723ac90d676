//! A client that asks very much at once, and the others of its reactor.

use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use afterglow::frontend::cql::{Later, Operation, PassThrough, Request, Router};
use afterglow::metrics::Path;
use afterglow_cql::frame::notation::Put;
use afterglow_cql::frame::{Compression, Flags, Opcode, Version};
use afterglow_cql::response::ResultKind;

use crate::client::Client;
use crate::database::{echo, scripted};
use crate::proxy::Proxy;

const REQUESTS: usize = 20_000;

/// Answers everything in place, as a hit is answered, and notes in which order. At `ks.hold` it has
/// the reactor stand still.
pub struct InPlace {
    pub order: Mutex<Vec<&'static str>>,
    stands: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl InPlace {
    /// With what hears that the reactor stands still, and what has it go on.
    pub fn new() -> (Arc<Self>, Receiver<()>, Sender<()>) {
        let (stands, has_stopped) = channel();
        let (release, go_on) = channel();
        let (order, go_on) = (Mutex::default(), Mutex::new(go_on));
        (Arc::new(Self { order, stands, go_on }), has_stopped, release)
    }
}

impl Router for InPlace {
    fn route(&self, request: Request) -> Option<Later> {
        let Operation::Query(_) = request.asked else { return PassThrough.route(request) };
        let tables = ["ks.many", "ks.one", "ks.hold"];
        let is_in_body =
            |table: &&str| request.body.windows(table.len()).any(|part| part == table.as_bytes());
        let table = tables.into_iter().find(is_in_body).expect("nothing else is asked");
        if table == "ks.hold" {
            self.stands.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        self.order.lock().unwrap().push(table);
        request.into_responder().reply_with(Opcode::Result, Flags::NONE, Path::Local, |out| {
            out.put_int(ResultKind::Void as i32);
        });
        None
    }
}

#[test]
fn others_have_their_turn_among_the_requests_that_one_write_brings() {
    let fake = scripted(Version::V5, echo);
    let (router, has_stopped, release) = InPlace::new();
    let proxy = Proxy::routed_on_one_reactor(fake.address(), router.clone());
    let mut greedy = Client::connect(proxy.front_end.address(), Version::V5);
    assert_eq!(greedy.startup_with(Some(Compression::Lz4)).header.opcode, Opcode::Ready);
    let (mut other, mut holder) = (proxy.client(Version::V5), proxy.client(Version::V5));
    let body = greedy.query_body("SELECT v FROM ks.many");
    let burst = greedy.encode_all(Opcode::Query, (0..REQUESTS).map(|_| (7, &body[..])));

    holder.query(1, "SELECT v FROM ks.hold");
    has_stopped.recv().unwrap();
    greedy.stream.write_all(&burst).unwrap();
    other.query(1, "SELECT v FROM ks.one");
    release.send(()).unwrap();
    assert_eq!(other.receive().header.opcode, Opcode::Result);
    for _ in 0..REQUESTS {
        assert_eq!(greedy.receive().header.opcode, Opcode::Result);
    }
    // A test that fails while a reactor runs ends without a word.
    drop((greedy, other, holder, proxy));
    let order = router.order.lock().unwrap();
    let before = order.iter().position(|table| *table == "ks.one").unwrap();
    assert!(before < 1_000, "{before} requests of the one came before one of the other");
}
