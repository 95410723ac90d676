//! What goes out first, how much may wait, and when credit comes back. No socket is needed.

use std::task::{Context, Waker};

use afterglow_ring::Frame;

use super::*;
use crate::metrics::LinkDrop;
use crate::ring_link::lanes::Waiting;
use crate::ring_link::live::{Batch, LiveLink};
use crate::ring_link::registry::{Registered, Registry};

const PEER: MemberId = MemberId(2);
/// What may wait in each lane.
const ROOM: usize = 1 << 20;

fn registry() -> Arc<Registry> {
    let tuning = Tuning { queue_bytes: ROOM, dialled: 4, ..patient() };
    let receiver = Arc::new(EventSender(mpsc::channel().0, Requests::default()));
    Arc::new(Registry::new(config(1), tuning, receiver, Default::default()))
}

/// A link to that process of the peer.
fn link_to(registry: &Arc<Registry>, life: u128) -> Registered {
    let (link, _) = afterglow_ring::Link::open(hello(1));
    let record = registry.record(PEER, "127.0.0.1");
    let link = LiveLink::new((PEER, Incarnation(life)), link, record, &registry.tuning);
    registry.register(Arc::new(link)).unwrap()
}

/// What the next write takes.
fn batch(link: &Registered) -> Batch {
    let mut batch = Batch::default();
    let _ = link.link.poll_batch(&Context::from_waker(Waker::noop()), &mut batch);
    batch
}

fn kinds(batch: &Batch) -> Vec<MessageKind> {
    batch.messages.iter().map(|message| message.kind).collect()
}

fn send(registry: &Registry, kind: MessageKind, length: usize) -> bool {
    registry.send(PEER, Waiting::new(kind, vec![7; length])).is_ok()
}

/// How much may have been asked, if the other side is told now.
fn told(batch: &Batch) -> Option<u64> {
    match batch.credit {
        Some(Frame::Credit(credit)) => Some(credit.requests),
        _ => None,
    }
}

#[test]
fn control_goes_before_what_reads_wait_for() {
    let registry = registry();
    let link = link_to(&registry, 7);
    for kind in [
        MessageKind::Row,
        MessageKind::Bulk,
        MessageKind::Control,
        MessageKind::Row,
        MessageKind::Probe,
    ] {
        assert!(send(&registry, kind, 100));
    }
    let order = [
        MessageKind::Control,
        MessageKind::Probe,
        MessageKind::Row,
        MessageKind::Bulk,
        MessageKind::Row,
    ];
    assert_eq!(kinds(&batch(&link)), order);
}

#[test]
fn neither_lane_stops_the_other() {
    const LONG: usize = 300_000;
    let registry = registry();
    let link = link_to(&registry, 7);
    assert!(send(&registry, MessageKind::Row, LONG) && send(&registry, MessageKind::Row, LONG));
    for _ in 0..5 {
        // Control comes faster than it can be written.
        for _ in 0..40 {
            let _ = send(&registry, MessageKind::Control, 10_000);
        }
        let taken = kinds(&batch(&link));
        let control = taken.iter().filter(|kind| **kind == MessageKind::Control).count();
        assert_eq!(control, 26, "a batch of it");
        let rows = taken.len() - control;
        assert!(rows <= 1, "a row that is longer than a batch goes, and others wait");
    }
    assert!(send(&registry, MessageKind::Row, LONG), "both rows are gone");
    assert!(kinds(&batch(&link)).contains(&MessageKind::Row));
}

#[test]
fn what_waits_for_a_peer_is_limited_over_all_its_links() {
    const LENGTH: usize = 10_000;
    let registry = registry();
    let links = [link_to(&registry, 7), link_to(&registry, 7)];
    let fill = |kind| (0..1000).take_while(|_| send(&registry, kind, LENGTH)).count();
    let fits = |room: usize| room / (LENGTH + 64);
    assert_eq!(fill(MessageKind::Row), fits(ROOM - ROOM / 4));
    assert!(send(&registry, MessageKind::Bulk, 60), "an answer without a row");
    assert!(fill(MessageKind::Bulk) > fits(ROOM / 4) - 2, "what rows leave");
    assert_eq!(fill(MessageKind::Control), fits(ROOM), "the other lane has room of its own");
    assert!(registry.metrics.dropped.of(LinkDrop::QueueFull).get() >= 3);
    // What is written makes room, and so does a link that ends.
    let [_other, link] = links;
    assert_eq!(batch(&link).messages.len(), 26 + 1);
    assert_eq!(fill(MessageKind::Control), 26);
    drop(link);
    assert_eq!(fill(MessageKind::Row), fits(ROOM - ROOM / 4));
}

#[test]
fn credit_comes_back_once_the_answer_has_left_the_queue() {
    let registry = registry();
    let link = link_to(&registry, 7);
    let request = link.link.take(10).expect("there is credit");
    let answer = Waiting { kind: MessageKind::Row, bytes: vec![7; 1000], request: Some(request) };
    assert!(registry.send(PEER, answer).is_ok());
    let answered = batch(&link);
    assert_eq!((answered.messages.len(), told(&answered)), (1, None), "it was in the queue");
    drop(answered);
    assert_eq!(told(&batch(&link)), Some(4 + 1));
}

#[test]
fn credit_comes_back_whatever_becomes_of_a_request() {
    let registry = registry();
    let link = link_to(&registry, 7);
    let take = || link.link.take(10).expect("there is credit");
    // It was not understood.
    drop(take());
    assert_eq!(told(&batch(&link)), Some(4 + 1));
    // There is no room for the answer: it comes back, for a shorter one.
    let answer = |length, request| {
        registry.send(PEER, Waiting { kind: MessageKind::Row, bytes: vec![7; length], request })
    };
    let request = answer(ROOM, Some(take())).expect_err("it is too long");
    assert_eq!(told(&batch(&link)), None);
    assert!(answer(10, request).is_ok());
    drop(batch(&link));
    assert_eq!(told(&batch(&link)), Some(4 + 2));
    // The link ends on which the answer waits.
    let other = link_to(&registry, 7);
    assert!(answer(10, Some(take())).is_ok());
    drop(other);
    assert_eq!(told(&batch(&link)), Some(4 + 3));
}

#[test]
fn a_probe_after_one_without_an_answer_takes_another_link() {
    let registry = registry();
    let _old = link_to(&registry, 6);
    let links = [link_to(&registry, 7), link_to(&registry, 7), link_to(&registry, 7)];
    let by = |kind| {
        assert!(send(&registry, kind, 50));
        let taken = links.each_ref().map(|link| batch(link).messages.len());
        taken.iter().position(|count| *count == 1).expect("not to a process that has ended")
    };
    assert_eq!(by(MessageKind::Control), 2, "the newest");
    assert_eq!([0; 4].map(|_| by(MessageKind::Probe)), [2, 1, 0, 2], "none is answered");
    assert_eq!(by(MessageKind::Control), 2, "none is better");
    assert_eq!(by(MessageKind::Probe), 1);
    registry.probe_answered(PEER);
    for _ in 0..3 {
        assert_eq!(by(MessageKind::Probe), 1, "it goes on by the link that was answered");
        registry.probe_answered(PEER);
    }
}

/// Writes would be asked for by it, again and again, until their owner counts as one that hangs.
#[test]
fn a_link_whose_probe_was_not_answered_is_left_until_something_comes_by_it() {
    let registry = registry();
    let links = [link_to(&registry, 7), link_to(&registry, 7)];
    let by = |kind| {
        assert!(send(&registry, kind, 50));
        let taken = links.each_ref().map(|link| batch(link).messages.len());
        taken.iter().position(|count| *count == 1).expect("one takes it")
    };
    assert_eq!([MessageKind::Control, MessageKind::Probe].map(by), [1, 1], "the newest");
    assert_eq!(by(MessageKind::Probe), 0, "it was not answered");
    registry.probe_answered(PEER);
    assert_eq!([MessageKind::Control, MessageKind::Bulk].map(by), [0, 0]);
    // The clock of a link counts milliseconds.
    while links[1].link.is_left() {
        links[1].link.heard();
    }
    assert_eq!([MessageKind::Control, MessageKind::Probe].map(by), [1, 0]);
}
