//! Peers that stand still cost bounded memory and are cut off.

use std::sync::atomic::{AtomicBool, Ordering};

use super::stranger::{Heard, Stranger};
use super::*;
use crate::ring_link::payload::Payload;

const SHORT: Duration = Duration::from_millis(300);
const NEVER: Duration = Duration::from_secs(3600);

/// Fills the link to member 2 until it takes no more; how much it took.
fn fill(one: &Node, message: usize) -> usize {
    let mut taken = 0;
    while one.transport.send(MemberId(2), MessageKind::Control, vec![9; message]) {
        taken += message;
        assert!(taken < 1 << 30, "nothing bounds it");
    }
    taken
}

#[test]
fn a_full_queue_refuses_and_counts_and_others_go_on() {
    let one = node(1);
    let three = node(3);
    one.dial(&[&three]);
    assert_eq!(one.next(), Event::Up(MemberId(3)));
    let _stranger = Stranger::enter(one.transport.address(), hello(2));
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    // 32 MiB may wait; what the kernel and one write hold comes to it.
    let taken = fill(&one, 100_000);
    assert!(taken < 64 << 20, "{taken} bytes");
    assert_eq!(one.dropped("queue_full"), 1);
    assert!(
        one.transport.send(MemberId(3), MessageKind::Control, b"hello".to_vec()),
        "others have queues of their own"
    );
    assert_eq!(three.next_message(), (MemberId(1), b"hello".to_vec()));
}

#[test]
fn what_a_lease_waits_for_overtakes_the_rows_that_wait() {
    const ROW: usize = 100_000;
    let one = node(1);
    let mut stranger = Stranger::enter(one.transport.address(), hello(2));
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    let send = |kind, message| one.transport.send(MemberId(2), kind, message);
    while send(MessageKind::Row, vec![9; ROW]) {}
    assert!(send(MessageKind::Control, b"ping".to_vec()));
    assert!(send(MessageKind::Bulk, b"pass".to_vec()), "rows leave room for answers without one");
    assert_eq!(stranger.hear(), Some(Heard::Hello));
    let mut heard = std::iter::from_fn(|| stranger.hear());
    let before = heard.position(|message| message == Heard::Message(b"ping".to_vec()));
    let after = heard.position(|message| message == Heard::Message(b"pass".to_vec()));
    // But for what was written before it came, and that is a few MiB.
    let after = after.expect("it comes last");
    assert!(after > (8 << 20) / ROW, "{before:?} rows overtook it, {after} did not");
}

#[test]
fn a_peer_that_takes_nothing_is_cut_off_and_what_waited_is_counted() {
    let tuning = Tuning { stall: SHORT, ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let mut stranger = Stranger::enter(one.transport.address(), hello(2));
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    // More than the kernel takes.
    holds("it takes no more", || {
        while one.transport.send(MemberId(2), MessageKind::Control, vec![9; 100_000]) {}
        one.closed("stalled") == 1
    });
    assert_eq!(one.next(), Event::Down(MemberId(2)));
    assert!(one.dropped("link_ended") > 0);
    assert!(one.last_error(MemberId(2)).is_none(), "nobody wants it: it is forgotten");
    stranger.is_closed();
}

#[test]
fn as_many_messages_wait_as_the_limit_says_and_none_is_lost() {
    const WAIT: usize = 200;
    let tuning = Tuning { queue_messages: WAIT, ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let mut stranger = Stranger::enter(one.transport.address(), hello(2));
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    // Others are with the kernel, which takes a few MiB. Once that is full nothing moves.
    let mut taken = 0;
    while one.metric("afterglow_ring_link_bytes_total{direction=\"out\"}") < 1 << 20 {
        taken += fill(&one, 10_000) / 10_000;
    }
    taken += fill(&one, 10_000) / 10_000;
    assert!(taken >= WAIT, "{taken}");
    // It reads again, and all of it is there.
    assert_eq!(stranger.hear(), Some(Heard::Hello));
    for _ in 0..taken {
        assert_eq!(stranger.hear(), Some(Heard::Message(vec![9; 10_000])));
    }
    holds("it takes more", || one.transport.send(MemberId(2), MessageKind::Control, vec![1]));
}

#[test]
fn a_silent_peer_is_cut_off_and_one_that_says_signs_of_life_is_not() {
    let tuning = Tuning { silence: SHORT, alive: Duration::from_millis(50), ..patient() };
    for driver in [Driver::Auto, Driver::Readiness] {
        let one = node_with(config(1), tuning, driver);
        let mut silent = Stranger::enter(one.transport.address(), hello(2));
        assert_eq!(one.next(), Event::Up(MemberId(2)));
        assert_eq!(one.next(), Event::Down(MemberId(2)));
        assert_eq!(one.closed("silent"), 1);
        silent.is_closed();
        // Nothing else is said on this link, for many times the silence that is allowed. A machine
        // that stands still in between may cut it, so it is given several goes.
        let idles = (0..20).any(|_| {
            let mut talks = Stranger::enter(one.transport.address(), hello(2));
            assert_eq!(one.next(), Event::Up(MemberId(2)));
            let stays = (0..50).all(|_| {
                std::thread::sleep(SHORT / 15);
                talks.try_say(&Payload::Alive).is_ok() && one.events.try_recv().is_err()
            });
            if stays {
                drop(talks);
            }
            stays || one.next() != Event::Down(MemberId(2))
        });
        assert!(idles, "signs of life keep a link");
    }
}

#[test]
fn a_message_takes_a_link_that_lives_before_a_newer_one_that_is_silent() {
    let tuning = Tuning { alive: Duration::from_millis(20), silence: NEVER, ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let mut old = Stranger::enter(one.transport.address(), hello(2));
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    let mut new = Stranger::enter(one.transport.address(), hello(2));
    holds("both are open", || one.transport.open_links() == 2);
    assert_eq!((old.hear(), new.hear()), (Some(Heard::Hello), Some(Heard::Hello)));
    let taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !taken.load(Ordering::Relaxed) {
                old.say(&Payload::Alive);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let bytes = "afterglow_ring_link_bytes_total{direction=\"in\"}";
        let start = one.metric(bytes);
        holds("the newer one has been silent for long", || one.metric(bytes) > start + 21 * 40);
        // It may be slow now and then; the older one has it in the end.
        let mut sent = 0;
        holds("the older one gets some", || {
            assert!(one.transport.send(MemberId(2), MessageKind::Control, vec![1]));
            sent += 1;
            sent > 20
        });
        taken.store(true, Ordering::Relaxed);
    });
    assert_eq!(old.hear(), Some(Heard::Message(vec![1])));
}

#[test]
fn idle_members_keep_their_link() {
    let tuning =
        Tuning { silence: Duration::from_secs(2), alive: Duration::from_millis(20), ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let two = node_with(config(2), tuning, Driver::Auto);
    one.dial(&[&two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    // Signs of life alone are bytes; a link that lives on them is not quiet.
    let bytes = || one.metric("afterglow_ring_link_bytes_total{direction=\"in\"}");
    let before = bytes();
    holds("signs of life come", || bytes() > before + 10 * 21);
    assert_eq!(one.metric("afterglow_ring_link_messages_total{direction=\"in\"}"), 0);
}
