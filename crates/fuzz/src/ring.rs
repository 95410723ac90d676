//! What one instance of a ring sends to another, and the map that it reads from the database.

use afterglow_ring::{Credit, Envelope, Frame, Hello, Link, Map, MemberId, Message, Profile};
use afterglow_ring::{Detail, Incarnation, RingId, RowKey, Scope, Setting};

use crate::target::Target;

/// These targets.
pub const TARGETS: &[Target] = &[
    Target { name: "ring-message", run: message, seeds: messages, mutations: 20_000 },
    Target { name: "ring-map", run: map, seeds: maps, mutations: 20_000 },
    Target { name: "ring-link", run: link, seeds: links, mutations: 20_000 },
];

/// What is read is written as something that reads the same.
fn message(data: &[u8]) {
    if let Ok(read) = Envelope::decode(data) {
        assert_eq!(Envelope::decode(&read.encode()).as_ref(), Ok(&read));
    }
}

fn map(data: &[u8]) {
    if let Ok(read) = Map::decode(data) {
        assert_eq!(Map::decode(&read.encode()).as_ref(), Ok(&read));
        for token in [i64::MIN, -1, 0, i64::MAX] {
            let _ = read.owner_of(token);
        }
    }
}

/// Frames one after the other, each behind its length of two bytes. Whatever the other side sends,
/// a link does not panic, and takes no more than its window.
fn link(data: &[u8]) {
    let ours = hello((1, 3));
    let (mut link, _) = Link::open(ours);
    let (mut rest, mut open) = (data, 0);
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (frame, next) = after.split_at(length);
        rest = next;
        let Ok(frame) = Frame::decode(frame) else { return };
        assert_eq!(Frame::decode(&frame.encode()).as_ref(), Ok(&frame));
        if link.receive(&frame).is_err() {
            return;
        }
        assert!(link.version().is_some_and(|version| (1..=3).contains(&version)));
        let _ = link.ask(length as u64);
        if let Frame::Message(bytes) = frame {
            message(&bytes);
            if link.take(bytes.len() as u64).is_err() {
                return;
            }
            open += 1;
            assert!(open <= ours.window.requests, "more than the window is open");
            if bytes.len() % 2 == 0 {
                let _ = link.answered(bytes.len() as u64);
                open -= 1;
            }
        }
    }
}

fn hello(versions: (u16, u16)) -> Hello {
    let window = Credit { requests: 4, bytes: 4_096 };
    Hello { member: MemberId(7), life: Incarnation(8), versions, shards: 4_096, window }
}

fn envelope(message: Message) -> Vec<u8> {
    let (life, incarnation) = (Incarnation(1), Incarnation(u128::MAX));
    Envelope { from: MemberId(3), life, incarnation, ring: RingId(9), version: 12, message }
        .encode()
}

/// One of every kind that has a shape of its own.
fn messages() -> Vec<Vec<u8>> {
    let (number, attempt) = (300, 2);
    let key = RowKey { token: -9, bytes: b"key".to_vec() };
    let scopes = vec![Scope::Token(5), Scope::All];
    let detail: Detail = b"rows".as_slice().into();
    [
        Message::Ping { hash: 1, sent: 2 },
        Message::MapWanted,
        Message::MapIs(std::sync::Arc::new(sample())),
        Message::Begin { number, attempt, scopes: scopes.clone(), detail: detail.clone() },
        Message::Drop { number, attempt, scopes, detail, weak: true },
        Message::Grant { to: Incarnation(1), number, attempt, duration: 1 << 20 },
        Message::Get { wanted: vec![(1, key.clone()), (2, key.clone())] },
        Message::Pull { number, key },
        Message::Pulled { to: Incarnation(1), number, cached: Some((3, Some(vec![1, 2]))) },
        Message::HandoverWanted { shards: vec![1, 9] },
    ]
    .map(envelope)
    .into()
}

fn sample() -> Map {
    let mut map = Map::empty(8);
    let profile = Profile {
        address: "a:1".into(),
        cql_address: "127.0.0.1:1".into(),
        host_id: 7,
        protocol: (1, 2),
        weight: 1,
        zone: "z".into(),
        settings: vec![Setting { name: "hold".into(), value: "1h".into() }],
    };
    map.put(MemberId(1), Incarnation(2), profile);
    (0..8).for_each(|shard| map.give(shard, Some(MemberId(1))));
    map
}

fn maps() -> Vec<Vec<u8>> {
    vec![Map::empty(1).encode(), sample().encode()]
}

fn links() -> Vec<Vec<u8>> {
    let framed = |frames: &[Frame]| {
        let bytes = frames.iter().map(Frame::encode);
        bytes.flat_map(|f| [&(f.len() as u16).to_le_bytes()[..], &f].concat()).collect()
    };
    let first = Frame::Hello(hello((2, 9)));
    let asks = messages().into_iter().map(Frame::Message);
    let total = Credit { requests: 9, bytes: 9_999 };
    vec![
        framed(std::slice::from_ref(&first)),
        framed(&[first.clone(), Frame::Credit(total), Frame::Credit(Credit::default())]),
        framed(&std::iter::once(first).chain(asks).collect::<Vec<_>>()),
    ]
}
