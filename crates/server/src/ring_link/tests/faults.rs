//! Whoever breaks the rules loses the link, and is told apart.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use afterglow_ring::Frame;

use super::stranger::{Heard, Stranger};
use super::*;
use crate::ring_link::Role;
use crate::ring_link::lanes::Waiting;
use crate::ring_link::live::LiveLink;
use crate::ring_link::payload::Payload;
use crate::ring_link::registry::{Registered, Registry};

/// `one` dials `two`, in vain: what both count, and what the dialler says.
fn fails(one: TransportConfig, two: TransportConfig, reason: &str, says: &str) {
    let one = node_with(one, patient(), Driver::Auto);
    let two = node_with(two, patient(), Driver::Auto);
    let peer = (MemberId(2), two.at());
    one.transport.set_peers(vec![peer]);
    holds("the dialler has failed", || one.failures(reason) > 0);
    // Whom the dialler did not mean hears nothing of it.
    let at_two = if reason == "member" { "lost" } else { reason };
    holds("the dialled has failed", || two.failures(at_two) > 0);
    let error = one.last_error(MemberId(2)).expect("it failed");
    assert!(error.contains(says), "{error}");
    assert_eq!((one.transport.open_links(), two.transport.open_links()), (0, 0));
    let heard: Vec<_> = one.events.try_iter().collect();
    assert_eq!(heard.is_empty(), reason != "secret");
    assert!(heard.iter().all(|event| *event == Event::Refused(MemberId(2))), "{heard:?}");
    assert!(two.events.try_recv().is_err());
}

#[test]
fn whoever_may_not_be_together_is_told_why() {
    let other = Secrets::of([Secret::of(b"another secret of the tests, also long enough")]);
    let says = "it has another --ring-secret: give all members of the ring the same file";
    fails(config(1), TransportConfig { secrets: other, ..config(2) }, "secret", says);
    let green = TransportConfig { ring: "green".into(), ..config(2) };
    fails(config(1), green, "ring", "it is of the ring `green` and this instance of `ring`");
    let newer = TransportConfig { hello: Hello { versions: (2, 3), ..hello(2) }, ..config(2) };
    let says = "this instance speaks versions 1 to 1 of the ring's protocol and the other 2 to 3: \
                upgrade the older one";
    fails(config(1), newer, "version", says);
    let shards = TransportConfig { hello: Hello { shards: 8, ..hello(2) }, ..config(2) };
    fails(config(1), shards, "version", "a ring with 8 shards");
    fails(config(1), config(3), "member", "it is 0000000000000003 in place of 0000000000000002");
    let twin = TransportConfig { hello: Hello { life: Incarnation(9), ..hello(1) }, ..config(1) };
    fails(config(1), twin, "member", "another process with this instance's id, 0000000000000001");
}

#[test]
fn an_instance_that_dials_itself_says_so() {
    let one = node(1);
    one.transport.set_peers(vec![(MemberId(2), one.at())]);
    holds("it has failed", || one.failures("member") > 0);
    let error = until("an error", || one.last_error(MemberId(2)));
    assert!(error.contains("it is this instance itself: its address member-1.example:9"));
}

#[test]
fn whoever_asks_more_than_it_may_is_cut_off() {
    let one = node(1);
    for many in [false, true] {
        let mut stranger = Stranger::enter(one.transport.address(), hello(2));
        assert_eq!(one.next(), Event::Up(MemberId(2)));
        assert_eq!(stranger.hear(), Some(Heard::Hello));
        match many {
            true => (0..5).for_each(|_| drop(stranger.try_say(&Payload::Request(b"?")))),
            false => stranger.say(&Payload::Request(&[0; 1025])),
        }
        for _ in 0..if many { 4 } else { 0 } {
            assert_eq!(one.next(), Event::Message(MemberId(2), b"?".to_vec()));
        }
        assert_eq!(one.next(), Event::Down(MemberId(2)));
        stranger.is_closed();
        assert_eq!(one.closed("overdrawn"), 1 + u64::from(many));
    }
}

#[test]
fn credit_is_told_as_answers_are_given() {
    let one = node(1);
    let mut stranger = Stranger::enter(one.transport.address(), hello(2));
    assert_eq!(stranger.hear(), Some(Heard::Hello));
    for number in 0..100u64 {
        let bytes = vec![1; (number % 200) as usize];
        stranger.say(&Payload::Request(&bytes));
        assert_eq!(one.next_message(), (MemberId(2), bytes.clone()));
        drop(one.request(bytes.len()));
        let Some(Heard::Credit(credit)) = stranger.hear() else { panic!("no credit") };
        assert_eq!(credit.requests, number + 1 + 4);
    }
    assert!(one.transport.send(MemberId(2), MessageKind::Request, b"mine".to_vec()));
    assert_eq!(stranger.hear(), Some(Heard::Request(b"mine".to_vec())));
}

#[test]
fn a_frame_that_is_changed_repeated_or_unknown_ends_the_link() {
    type Breaks = fn(&mut Stranger) -> Vec<u8>;
    let breaks: [(&str, Breaks); 7] = [
        ("forged", |stranger| {
            let mut frame = stranger.sealed(&Payload::Message(b"m"));
            *frame.last_mut().unwrap() ^= 1;
            frame
        }),
        ("forged", |stranger| {
            let frame = stranger.sealed(&Payload::Message(b"m"));
            [frame.clone(), frame].concat()
        }),
        ("forged", |stranger| {
            drop(stranger.sealed(&Payload::Message(b"left out")));
            stranger.sealed(&Payload::Message(b"m"))
        }),
        ("forged", |_| 3u32.to_le_bytes().iter().chain(b"abc").copied().collect()),
        ("malformed", |_| u32::MAX.to_le_bytes().to_vec()),
        ("malformed", |stranger| stranger.sealed(&Payload::Control(Frame::Hello(hello(2))))),
        ("malformed", |stranger| stranger.sealed(&Payload::Control(Frame::Message(vec![1])))),
    ];
    let one = node(1);
    for (number, (reason, broken)) in breaks.into_iter().enumerate() {
        let before = one.closed(reason);
        let mut stranger = Stranger::enter(one.transport.address(), hello(2));
        assert_eq!(one.next(), Event::Up(MemberId(2)));
        let bytes = broken(&mut stranger);
        stranger.stream.write_all(&bytes).unwrap();
        if number == 1 {
            assert_eq!(one.next(), Event::Message(MemberId(2), b"m".to_vec()));
        }
        assert_eq!(one.next(), Event::Down(MemberId(2)), "case {number}");
        stranger.is_closed();
        assert_eq!(one.closed(reason), before + 1, "case {number}");
    }
}

#[test]
fn whoever_begins_without_hello_is_not_let_in() {
    let one = node(1);
    let mut stranger = Stranger::dial(one.transport.address());
    stranger.shake_hands(Role::Initiator, secret());
    stranger.say(&Payload::Message(b"hello"));
    stranger.is_closed();
    holds("it is counted", || one.failures("malformed") == 1);
    assert!(one.events.try_recv().is_err());
}

#[test]
fn strangers_hold_no_more_than_their_places_and_members_still_meet() {
    let tuning = Tuning { unproven: 8, handshake: Duration::from_millis(500), ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let address = one.transport.address();
    // One sends too little, the next nothing, the third what is no link, the fourth a byte at a
    // time.
    let mut strangers: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (number, stranger) in strangers.iter_mut().enumerate() {
        let _ = match number % 4 {
            0 => stranger.write_all(b"aglring\x01"),
            2 => stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
            3 => stranger.write_all(b"a"),
            _ => Ok(()),
        };
    }
    let two = node(2);
    one.dial(&[&two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    for stranger in strangers {
        Stranger::on(stranger).is_closed();
    }
    holds("their places are free", || one.metric("afterglow_ring_link_unproven") == 0);
    let reasons = ["crowded", "timeout", "garbage", "lost"];
    assert_eq!(reasons.iter().map(|reason| one.failures(reason)).sum::<u64>(), 40);
    assert!(one.failures("garbage") > 0 || one.failures("crowded") > 0);
    // And now one that has the secret is let in.
    let three = node(3);
    three.dial(&[&one]);
    assert_eq!(one.next(), Event::Up(MemberId(3)));
}

#[test]
fn a_slow_stranger_is_cut_off_though_it_goes_on_talking() {
    let tuning = Tuning { handshake: Duration::from_millis(300), ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let mut stranger = TcpStream::connect(one.transport.address()).unwrap();
    let opening = [&b"aglring\x01"[..], &[7; 32], &[0; 3]].concat();
    for byte in opening {
        let _ = stranger.write_all(&[byte]);
        std::thread::sleep(Duration::from_millis(20));
    }
    Stranger::on(stranger).is_closed();
    holds("it is counted", || one.failures("timeout") == 1);
}

#[test]
fn a_peer_that_answers_nothing_is_dialled_again() {
    let tuning = Tuning { handshake: Duration::from_millis(50), ..patient() };
    let one = node_with(config(1), tuning, Driver::Auto);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap().to_string();
    one.transport.set_peers(vec![(MemberId(2), address)]);
    holds("several attempts", || one.failures("timeout") >= 3);
    let error = until("an error", || one.last_error(MemberId(2)));
    assert!(error.contains("did not finish the handshake in time"), "{error}");
    drop(mute);
    holds("now nobody listens", || one.failures("unreachable") > 0);
}

#[test]
fn a_member_has_only_so_many_links_and_the_newest_stay() {
    let one = node(1);
    let mut links = Vec::new();
    for entered in 1..=6 {
        links.push(Stranger::enter(one.transport.address(), hello(2)));
        holds("it is open", || one.metric("afterglow_ring_link_opened_total") == entered);
    }
    holds("two are closed", || one.closed("replaced") == 2);
    assert_eq!(one.transport.open_links(), 4);
    assert!(one.transport.send(MemberId(2), MessageKind::Control, b"m".to_vec()));
    for link in &links[2..] {
        link.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    }
    holds("one of those that are left has it", || {
        let message = Some(Heard::Message(b"m".to_vec()));
        links[2..].iter_mut().any(|link| link.hear_any() == message)
    });
}

#[test]
fn links_are_replaced_though_none_of_them_has_ended_yet() {
    let (tell, _events) = mpsc::channel();
    let registry = Registry::new(
        config(1),
        patient(),
        Arc::new(EventSender(tell, Requests::default())),
        Default::default(),
    );
    let registry = Arc::new(registry);
    let record = registry.record(MemberId(2), "127.0.0.1");
    let registered: Vec<_> = (0..7)
        .map(|_| {
            let (link, _) = afterglow_ring::Link::open(hello(1));
            let other = (MemberId(2), hello(2).life);
            let link = LiveLink::new(other, link, record.clone(), &registry.tuning);
            registry.register(Arc::new(link)).unwrap()
        })
        .collect();
    let open = |one: &Registered| {
        one.link.offer(Waiting::new(MessageKind::Control, b"m".to_vec())).is_ok()
    };
    let open: Vec<_> = registered.iter().map(open).collect();
    assert_eq!(open, [false, false, false, true, true, true, true]);
}
