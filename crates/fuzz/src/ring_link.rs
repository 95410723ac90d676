//! What comes on a link between two instances: before it is opened and after.

use afterglow::ring_link::{Handshake, Inbox, NONCE, Payload, Role, Sealed, Secret, Secrets};
use afterglow_ring::{Credit, Frame, Hello, Incarnation, MemberId};

use crate::target::Target;

/// These targets.
pub const TARGETS: &[Target] = &[
    Target { name: "ring-link-wire", run: wire, seeds: wires, mutations: 5_000 },
    Target { name: "ring-link-payload", run: payload, seeds: payloads, mutations: 10_000 },
];

/// Longest frame of an open link.
const LONGEST: usize = (8 << 20) + 17;

/// A side of a handshake whose random numbers are known, so that seeds are whole conversations.
fn side(role: Role) -> Handshake {
    let [old, new] = [&b"a secret of the fuzzer, which is long enough"[..], b"the next one of it"];
    // They are in the middle of a change: what one shows first the other has second.
    let secrets = match role {
        Role::Initiator => [old, new],
        Role::Responder => [new, old],
    };
    Handshake::new(&Secrets::of(secrets.map(Secret::of)), "ring", role, [1 + role as u8; NONCE])
}

/// A byte for the side that hears, one for the size of the pieces, and what comes. Nothing makes a
/// side panic, wait for more than a frame, or take other bytes than those of the true other side.
fn wire(data: &[u8]) {
    let [role, piece, bytes @ ..] = data else { return };
    let role = if role % 2 == 0 { Role::Initiator } else { Role::Responder };
    let truth = said(role.other());
    let (mut handshake, mut inbox, mut out) = (side(role), Inbox::default(), Vec::new());
    handshake.begin(&mut out);
    let mut keys: Option<Sealed> = None;
    let mut fed = 0;
    for part in bytes.chunks(usize::from(*piece) + 1) {
        inbox.feed(part);
        fed += part.len();
        let keys = match &mut keys {
            Some(keys) => keys,
            None => match handshake.advance(&mut inbox, &mut out) {
                Err(_) => return,
                Ok(None) => {
                    assert!(inbox.len() <= 40 + 4 + 1024, "more is held than may come");
                    continue;
                }
                Ok(Some(opened)) => keys.insert(opened),
            },
        };
        assert!(out.len() <= 40 + 276, "a stranger makes it say more than it may");
        loop {
            let Ok(next) = inbox.frame(LONGEST) else { return };
            let Some(frame) = next else { break };
            let Ok(payload) = keys.opener.open(frame) else { return };
            let _ = Payload::read(payload);
        }
        let taken = fed - inbox.len();
        assert_eq!(bytes[..taken], truth[..taken], "what the other side did not say is taken");
    }
}

/// Payloads one after the other, each behind its length of two bytes: the other side opens what was
/// sealed, and what is read is written as something that reads the same.
fn payload(data: &[u8]) {
    let (mut one, mut two) = opened();
    let mut rest = data;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (text, next) = after.split_at(length);
        rest = next;
        let mut frame = Vec::new();
        one.sealer.seal(&mut frame, |out| out.extend_from_slice(text));
        let mut inbox = Inbox::default();
        inbox.feed(&frame);
        let sealed = inbox.frame(LONGEST).expect("not too long").expect("whole");
        assert_eq!(two.opener.open(sealed).expect("it is the next one"), text);
        if let Ok(read) = Payload::read(text) {
            let mut again = Vec::new();
            read.put(&mut again);
            assert_eq!(Payload::read(&again).as_ref(), Ok(&read));
        }
    }
}

/// A true handshake: what both have said, and their keys.
fn conversation() -> [(Vec<u8>, Sealed); 2] {
    let (mut one, mut two) = (side(Role::Initiator), side(Role::Responder));
    let (mut to_one, mut to_two) = (Inbox::default(), Inbox::default());
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    one.begin(&mut ones);
    let (mut heard_one, mut heard_two) = (0, 0);
    let mut keys = (None, None);
    while keys.0.is_none() {
        to_two.feed(&ones[heard_one..]);
        heard_one = ones.len();
        let opened = two.advance(&mut to_two, &mut twos).expect("it is true");
        keys.1 = keys.1.or(opened);
        to_one.feed(&twos[heard_two..]);
        heard_two = twos.len();
        keys.0 = one.advance(&mut to_one, &mut ones).expect("it is true");
    }
    let (Some(one), Some(two)) = keys else { unreachable!("the responder has them first") };
    [(ones, one), (twos, two)]
}

fn opened() -> (Sealed, Sealed) {
    let [(_, one), (_, two)] = conversation();
    (one, two)
}

/// All that a side says: handshake, HELLO and some frames.
fn said(role: Role) -> Vec<u8> {
    let [one, two] = conversation();
    let (mut bytes, mut keys) = if role == Role::Initiator { one } else { two };
    for payload in samples() {
        keys.sealer.seal(&mut bytes, |out| payload.put(out));
    }
    bytes
}

fn samples() -> Vec<Payload<'static>> {
    let window = Credit { requests: 4, bytes: 4_096 };
    let (member, life) = (MemberId(7), Incarnation(8));
    let hello = Hello { member, life, versions: (1, 2), shards: 4_096, window };
    vec![
        Payload::Control(Frame::Hello(hello)),
        Payload::Message(b"message"),
        Payload::Alive,
        Payload::Request(b"asked"),
        Payload::Control(Frame::Credit(window)),
        Payload::Message(b""),
    ]
}

fn wires() -> Vec<Vec<u8>> {
    let whole = |hears: Role, piece: u8| [vec![hears as u8, piece], said(hears.other())].concat();
    let mut seeds: Vec<_> = [0, 100, 255]
        .into_iter()
        .flat_map(|piece| [whole(Role::Initiator, piece), whole(Role::Responder, piece)])
        .collect();
    // Each side hears itself.
    seeds.push([vec![0, 50], said(Role::Initiator)].concat());
    seeds.push([vec![1, 50], said(Role::Responder)].concat());
    seeds
}

fn payloads() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for payload in samples() {
        let mut bytes = Vec::new();
        payload.put(&mut bytes);
        all.extend((bytes.len() as u16).to_le_bytes());
        all.extend(bytes);
    }
    vec![all, vec![1, 0, 9, 0, 0]]
}
