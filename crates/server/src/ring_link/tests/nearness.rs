//! Messages take the link that costs the fewest wake-ups.

use std::sync::OnceLock;
use std::task::{Context, Waker};
use std::thread::{self, ThreadId};

use super::*;
use crate::ring_link::lanes::Waiting;
use crate::ring_link::live::{Batch, LiveLink};
use crate::ring_link::registry::{Registered, Registry};

/// Sends back whatever comes.
#[derive(Default)]
struct Echo(OnceLock<Transport>);

impl Receiver for Echo {
    fn message(&self, from: MemberId, bytes: &[u8], _: Option<OpenRequest>) {
        let transport = self.0.get().expect("it listens before anybody knows where");
        assert!(transport.send(from, MessageKind::Control, bytes.to_vec()));
    }

    fn link(&self, _: MemberId, _: bool) {}

    fn refused(&self, _: MemberId) {}
}

/// Tells on which thread a message comes.
struct Threads(mpsc::Sender<(Vec<u8>, ThreadId)>);

impl Receiver for Threads {
    fn message(&self, _: MemberId, bytes: &[u8], _: Option<OpenRequest>) {
        let _ = self.0.send((bytes.to_vec(), thread::current().id()));
    }

    fn link(&self, _: MemberId, _: bool) {}

    fn refused(&self, _: MemberId) {}
}

#[test]
fn an_answer_comes_on_the_reactor_that_has_asked() {
    const REACTORS: usize = 3;
    let tuning = Tuning { dialled: REACTORS, ..patient() };
    let threads = || {
        let config = ReactorsConfig { threads: Some(REACTORS), driver: Driver::Auto };
        Reactors::start(&config).unwrap()
    };
    let (asking, answering) = (threads(), threads());
    let start = |id, reactors, receiver| {
        let metrics = Metrics::default();
        Transport::start_with(config(id), tuning, reactors, receiver, &metrics).unwrap()
    };
    let echo = Arc::new(Echo::default());
    let answers = start(2, &answering, echo.clone());
    let address = answers.address().to_string();
    assert!(echo.0.set(answers).is_ok());
    let (tell, heard) = mpsc::channel();
    let asks = Arc::new(start(1, &asking, Arc::new(Threads(tell))));
    asks.set_peers(vec![(MemberId(2), address)]);
    holds("each reactor has a link", || asks.open_links() == REACTORS);
    for reactor in 0..REACTORS {
        for number in 0..20 {
            let (asks, (tell, told)) = (asks.clone(), mpsc::channel());
            asking.spawn_on(reactor, move || async move {
                assert!(asks.send(MemberId(2), MessageKind::Control, vec![number]));
                tell.send(thread::current().id()).unwrap();
            });
            let asked = told.recv_timeout(TIMEOUT).unwrap();
            assert_eq!(heard.recv_timeout(TIMEOUT).unwrap(), (vec![number], asked));
        }
    }
    for (transport, reactors) in [(&*asks, &asking), (echo.0.get().unwrap(), &answering)] {
        transport.stop();
        assert!(transport.wait_stopped(TIMEOUT));
        reactors.shutdown();
    }
}

/// A link to a process of member 2, made on this thread.
fn link_to(registry: &Arc<Registry>, life: u128) -> Registered {
    let (link, _) = afterglow_ring::Link::open(hello(1));
    let record = registry.record(MemberId(2), "127.0.0.1");
    let link = LiveLink::new((MemberId(2), Incarnation(life)), link, record, &registry.tuning);
    registry.register(Arc::new(link)).unwrap()
}

fn send(registry: &Registry) {
    assert!(registry.send(MemberId(2), Waiting::new(MessageKind::Control, vec![1])).is_ok());
}

fn waiting(link: &Registered) -> usize {
    let (mut batch, context) = (Batch::default(), Context::from_waker(Waker::noop()));
    let _ = link.link.poll_batch(&context, &mut batch);
    batch.messages.len()
}

#[test]
fn links_to_a_process_that_was_replaced_come_after_those_to_the_new_one() {
    let (tell, _events) = mpsc::channel();
    let registry = Registry::new(
        config(1),
        patient(),
        Arc::new(EventSender(tell, Requests::default())),
        Default::default(),
    );
    let registry = Arc::new(registry);
    let near_but_old = link_to(&registry, 1);
    let elsewhere = |life| {
        let registry = &registry;
        thread::scope(|scope| scope.spawn(|| link_to(registry, life)).join().unwrap())
    };
    let far = elsewhere(2);
    send(&registry);
    assert_eq!((waiting(&near_but_old), waiting(&far)), (0, 1));
    // Of two links to the same process the nearer is taken, though the other is newer.
    let near = link_to(&registry, 2);
    let far = (far, elsewhere(2));
    send(&registry);
    assert_eq!([&near, &far.0, &far.1].map(waiting), [1, 0, 0]);
}
