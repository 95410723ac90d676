//! What links are for.

use super::*;

#[test]
fn messages_arrive_in_order_in_both_directions_and_the_dialled_side_needs_no_address() {
    for driver in [Driver::Auto, Driver::Readiness] {
        let one = node_with(config(1), patient(), driver);
        let two = node_with(config(2), patient(), driver);
        one.dial(&[&two]);
        assert_eq!(one.next(), Event::Up(MemberId(2)));
        assert_eq!(two.next(), Event::Up(MemberId(1)));
        const COUNT: u32 = 10_000;
        for number in 0..COUNT {
            let body = vec![number as u8; (number % 300) as usize];
            let message = [&number.to_le_bytes()[..], &body].concat();
            assert!(one.transport.send(MemberId(2), MessageKind::Control, message.clone()));
            assert!(two.transport.send(MemberId(1), MessageKind::Control, message));
        }
        for (node, from) in [(&one, 2), (&two, 1)] {
            for number in 0..COUNT {
                let Event::Message(sender, bytes) = node.next() else { panic!("no message") };
                let body = vec![number as u8; (number % 300) as usize];
                assert_eq!((sender, &bytes[..4]), (MemberId(from), &number.to_le_bytes()[..]));
                assert_eq!(bytes[4..], body);
            }
        }
        let state = one.transport.peers().pop().expect("a peer");
        assert_eq!((state.id, state.address, state.links), (MemberId(2), two.at(), 1));
        assert_eq!((state.version, state.messages_in), (Some(1), u64::from(COUNT)));
        let messages = "afterglow_ring_link_messages_total{direction=\"in\"}";
        assert_eq!(two.metric(messages), u64::from(COUNT));
        assert_eq!(two.metric("afterglow_ring_link_up"), 1);
    }
}

#[test]
fn a_long_message_arrives_and_one_that_is_too_long_is_counted() {
    let (one, two) = (node(1), node(2));
    one.dial(&[&two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    let long: Vec<u8> = (0..8 << 20).map(|n: u32| (n % 251) as u8).collect();
    assert!(one.transport.send(MemberId(2), MessageKind::Control, long.clone()));
    assert_eq!(two.next(), Event::Up(MemberId(1)));
    assert_eq!(two.next(), Event::Message(MemberId(1), long));
    assert!(!one.transport.send(MemberId(2), MessageKind::Control, vec![0; (8 << 20) + 1]));
    assert_eq!(one.dropped("too_long"), 1);
    assert!(!one.transport.send(MemberId(3), MessageKind::Control, vec![1]));
    assert_eq!(one.dropped("no_link"), 1);
}

#[test]
fn who_asks_needs_credit_and_gets_it_back_with_answers() {
    let (one, two) = (node(1), node(2));
    one.dial(&[&two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    assert_eq!(two.next(), Event::Up(MemberId(1)));
    let ask = |size: usize| one.transport.send(MemberId(2), MessageKind::Request, vec![7; size]);
    assert!(!ask(1025), "more than the window has bytes");
    for size in [10, 20, 30, 40] {
        assert!(ask(size));
        assert_eq!(two.next(), Event::Message(MemberId(1), vec![7; size]));
    }
    assert!(!ask(1), "the window has four requests");
    assert_eq!(one.dropped("credit"), 2);
    assert_eq!(one.transport.peers()[0].refused, 2);
    assert!(
        one.transport.send(MemberId(2), MessageKind::Control, vec![1]),
        "other messages need none"
    );
    assert_eq!(two.next(), Event::Message(MemberId(1), vec![1]));
    drop(two.request(30));
    holds("credit comes back", || ask(5));
    assert_eq!(two.next(), Event::Message(MemberId(1), vec![7; 5]));
}

#[test]
fn both_sides_may_dial_at_once() {
    for _ in 0..20 {
        let (one, two) = (node(1), node(2));
        one.dial(&[&two]);
        two.dial(&[&one]);
        for (node, other) in [(&one, &two), (&two, &one)] {
            assert_eq!(node.next(), Event::Up(other.id()));
        }
        for (node, other) in [(&one, &two), (&two, &one)] {
            assert!(node.transport.send(other.id(), MessageKind::Control, b"hello".to_vec()));
            assert_eq!(other.next(), Event::Message(node.id(), b"hello".to_vec()));
        }
        holds("two links", || one.transport.open_links() == 2 && two.transport.open_links() == 2);
        assert!(one.transport.send(two.id(), MessageKind::Control, b"again".to_vec()));
        assert_eq!(two.next_message(), (one.id(), b"again".to_vec()));
        for node in [&one, &two] {
            assert!(node.events.try_recv().is_err(), "one link more is no news");
        }
    }
}

#[test]
fn a_peer_that_restarts_is_found_again() {
    let one = node(1);
    let mut two = node(2);
    let listen = two.transport.address();
    one.dial(&[&two]);
    for life in 1..4 {
        assert_eq!(one.next(), Event::Up(MemberId(2)));
        drop(two);
        assert_eq!(one.next(), Event::Down(MemberId(2)));
        let hello = Hello { life: Incarnation(life), ..hello(2) };
        let again = TransportConfig { listen, hello, ..config(2) };
        two = node_with(again, patient(), Driver::Auto);
    }
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    assert!(one.transport.send(MemberId(2), MessageKind::Control, b"back".to_vec()));
    assert_eq!(two.next_message(), (MemberId(1), b"back".to_vec()));
}

#[test]
fn links_follow_the_map() {
    let (one, two, three) = (node(1), node(2), node(3));
    one.dial(&[&one, &two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    // The second is gone; the third has the second's id in vain.
    one.dial(&[&three]);
    let mut events = vec![one.next(), one.next()];
    events.sort_by_key(|event| *event == Event::Up(MemberId(3)));
    assert_eq!(events, [Event::Down(MemberId(2)), Event::Up(MemberId(3))]);
    assert_eq!(one.closed("unwanted"), 1);
    let ids: Vec<_> = one.transport.peers().iter().map(|peer| peer.id).collect();
    assert_eq!(ids, [MemberId(3)]);
    // What others have dialled stays.
    two.dial(&[&one]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    one.dial(&[]);
    assert_eq!(one.next(), Event::Down(MemberId(3)));
    assert!(one.transport.send(MemberId(2), MessageKind::Control, b"still here".to_vec()));
    assert_eq!(two.next(), Event::Up(MemberId(1)));
    assert_eq!(two.next_message().1, b"still here");
}

#[test]
fn a_new_address_is_dialled_at_once() {
    let slow = Tuning { first_backoff: TIMEOUT * 60, ..patient() };
    let one = node_with(config(1), slow, Driver::Auto);
    let two = node(2);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    one.transport.set_peers(vec![(MemberId(2), nobody.to_string())]);
    holds("the first attempt has failed", || one.failures("unreachable") == 1);
    assert!(one.last_error(MemberId(2)).unwrap().contains("cannot be reached"));
    one.dial(&[&two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
}

#[test]
fn what_waits_is_written_before_a_stop_and_nobody_comes_after_it() {
    let (one, two) = (node(1), node(2));
    one.dial(&[&two]);
    assert_eq!(one.next(), Event::Up(MemberId(2)));
    for number in 0..100u8 {
        assert!(one.transport.send(MemberId(2), MessageKind::Control, vec![number; 10_000]));
    }
    one.transport.stop();
    assert!(!one.transport.send(MemberId(2), MessageKind::Control, vec![1]));
    for number in 0..100u8 {
        assert_eq!(two.next_message(), (MemberId(1), vec![number; 10_000]));
    }
    assert_eq!(two.next(), Event::Down(MemberId(1)));
    assert_eq!(one.next(), Event::Down(MemberId(2)));
    one.dial(&[&two]);
    assert_eq!(one.transport.open_links(), 0);
    assert_eq!(one.closed("stopped"), 1);
}

#[test]
fn a_receiver_that_panics_costs_its_link_alone() {
    let (one, two, three) = (node(1), node(2), node(3));
    one.dial(&[&two, &three]);
    let mut up = [one.next(), one.next()];
    up.sort_by_key(|event| *event == Event::Up(MemberId(3)));
    assert_eq!(up, [Event::Up(MemberId(2)), Event::Up(MemberId(3))]);
    assert_eq!(two.next(), Event::Up(MemberId(1)));
    assert_eq!(three.next(), Event::Up(MemberId(1)));
    assert!(two.transport.send(MemberId(1), MessageKind::Control, BUG.to_vec()));
    assert_eq!(one.next(), Event::Down(MemberId(2)));
    assert_eq!(two.next(), Event::Down(MemberId(1)));
    assert!(three.transport.send(MemberId(1), MessageKind::Control, b"hello".to_vec()));
    // The dialler goes on, before or after that.
    let mut events = [one.next(), one.next()];
    events.sort_by_key(|event| *event == Event::Up(MemberId(2)));
    let hello = Event::Message(MemberId(3), b"hello".to_vec());
    assert_eq!(events, [hello, Event::Up(MemberId(2))]);
}

#[test]
fn an_address_in_use_is_named() {
    let one = node(1);
    let taken = TransportConfig { listen: one.transport.address(), ..config(2) };
    let receiver = Arc::new(EventSender(mpsc::channel().0, Requests::default()));
    let error = Transport::start(taken, &one.reactors, receiver.clone(), &one.metrics).err();
    let error = error.expect("it is in use").to_string();
    assert!(error.contains(&one.at()) && error.contains("choose a free address"), "{error}");
    let nameless = TransportConfig { ring: String::new(), ..config(2) };
    let error = Transport::start(nameless, &one.reactors, receiver, &one.metrics).err();
    assert!(error.expect("no name").to_string().contains("1 to 255 bytes"));
}
