//! Handshake and seals without sockets.

use super::*;
use crate::ring_link::seal::{LENGTH, TAG};
use crate::ring_link::{Handshake, Inbox, LinkFault, NONCE, Opener, Role, Sealed};

type Shaken = Result<Option<Sealed>, LinkFault>;

struct Side {
    handshake: Handshake,
    inbox: Inbox,
    /// All that it has said.
    said: Vec<u8>,
    result: Shaken,
}

impl Side {
    fn new(secret: &Secrets, ring: &str, role: Role, nonce: u8) -> Self {
        let handshake = Handshake::new(secret, ring, role, [nonce; NONCE]);
        let mut said = Vec::new();
        handshake.begin(&mut said);
        Self { handshake, inbox: Inbox::default(), said, result: Ok(None) }
    }

    fn initiator() -> Self {
        Self::new(&secret(), RING, Role::Initiator, 1)
    }

    fn responder() -> Self {
        Self::new(&secret(), RING, Role::Responder, 2)
    }

    fn hear(&mut self, bytes: &[u8]) {
        if matches!(self.result, Ok(None)) {
            self.inbox.feed(bytes);
            self.result = self.handshake.advance(&mut self.inbox, &mut self.said);
        }
    }

    fn fault(&self) -> &LinkFault {
        self.result.as_ref().expect_err("there is a fault")
    }

    fn is_open(&self) -> bool {
        matches!(self.result, Ok(Some(_)))
    }

    fn keys(self) -> Sealed {
        self.result.expect("no fault").expect("the handshake is over")
    }
}

/// Has both speak until neither has more to say; `tamper` changes all that a side has said so far,
/// and is told how much of it the other has heard.
fn converse(one: &mut Side, two: &mut Side, tamper: impl Fn(Role, &mut Vec<u8>)) {
    let mut heard = (0, 0);
    for _ in 0..4 {
        let mut said = one.said.clone();
        tamper(Role::Initiator, &mut said);
        two.hear(&said[heard.0..]);
        heard.0 = said.len();
        let mut said = two.said.clone();
        tamper(Role::Responder, &mut said);
        one.hear(&said[heard.1..]);
        heard.1 = said.len();
    }
}

fn opened() -> (Sealed, Sealed) {
    let (mut one, mut two) = (Side::initiator(), Side::responder());
    converse(&mut one, &mut two, |_, _| ());
    (one.keys(), two.keys())
}

fn seal(keys: &mut Sealed, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    keys.sealer.seal(&mut out, |out| out.extend_from_slice(payload));
    out
}

/// What the frame holds, if it is the next one.
fn open(opener: &mut Opener, frame: &[u8]) -> Result<Vec<u8>, LinkFault> {
    let mut inbox = Inbox::default();
    inbox.feed(frame);
    let sealed = inbox.frame(1 << 20)?.ok_or(LinkFault::Forged)?;
    opener.open(sealed).map(|payload| payload.to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Made by another implementation of RFC 5869 and RFC 8439.
#[test]
fn the_bytes_of_a_link_are_what_they_were() {
    let bytes: Vec<u8> = (0..32).collect();
    let secret = Secrets::of([Secret::of(&bytes)]);
    let mut one = Side::new(&secret, "blue", Role::Initiator, 0x11);
    let mut two = Side::new(&secret, "blue", Role::Responder, 0x22);
    converse(&mut one, &mut two, |_, _| ());
    for (side, nonce, head, tail) in [
        (&one, 0x11, "61e4637f15faac389ec6ac4b8573afb0", "1bdb983bad49b777175c5a57da3ed7ae"),
        (&two, 0x22, "92a3b237112b2389097081a890221116", "902f2c2f3ce650c13218e1c5487b12ad"),
    ] {
        let (opening, proof) = side.said.split_at(40);
        assert_eq!(opening, [&b"aglring\x01"[..], &[nonce; 32]].concat());
        assert_eq!((hex(&proof[..4]), proof.len()), ("10010000".to_owned(), 276));
        assert_eq!((hex(&proof[4..20]), hex(&proof[260..])), (head.to_owned(), tail.to_owned()));
    }
    let mut keys = [one.keys(), two.keys()];
    for (side, payload, expected) in [
        (0, &b"\x03"[..], "11000000754d4da66ea95c5a1eac1eaa9139486c84"),
        (0, b"\x01message", "18000000d7b86548f6af8ec1bad6d7b0a9546de7e9653812b491cea1"),
        (1, b"\x01message", "18000000c803587ae567f3423a82eaab05ecf082fe031990777297d7"),
    ] {
        assert_eq!(hex(&seal(&mut keys[side], payload)), expected);
    }
}

#[test]
fn bytes_may_come_one_by_one_and_a_beginning_is_never_enough() {
    let (mut one, mut two) = (Side::initiator(), Side::responder());
    let (mut heard_one, mut heard_two) = (0, 0);
    while !one.is_open() {
        assert!(!two.is_open() || heard_two == two.said.len() || heard_one == one.said.len());
        if heard_one < one.said.len() {
            let byte = one.said[heard_one];
            two.hear(&[byte]);
            heard_one += 1;
            assert_eq!(two.is_open(), heard_one == 40 + 276);
        } else {
            let byte = two.said[heard_two];
            one.hear(&[byte]);
            heard_two += 1;
            assert_eq!(one.is_open(), heard_two == 40 + 276);
        }
    }
}

#[test]
fn no_changed_byte_leaves_a_link() {
    for role in [Role::Initiator, Role::Responder] {
        for at in 0..40 + 276 {
            for bit in [1, 0x80] {
                let (mut one, mut two) = (Side::initiator(), Side::responder());
                converse(&mut one, &mut two, |who, said| {
                    if who == role && at < said.len() {
                        said[at] ^= bit;
                    }
                });
                assert!(!(one.is_open() && two.is_open()), "byte {at} of the {role:?}");
                // Whoever heard the changed byte has no link.
                let heard = if role == Role::Initiator { &two } else { &one };
                assert!(!heard.is_open(), "byte {at} of the {role:?}");
            }
        }
    }
}

fn other_secret() -> Secrets {
    Secrets::of([Secret::of(b"another secret of the tests, also long enough")])
}

#[test]
fn a_secret_is_changed_in_one_member_after_the_other() {
    let (old, new) = (secret(), other_secret());
    let both = |first: &Secrets, second: &Secrets| {
        Secrets::of([first.all()[0].clone(), second.all()[0].clone()])
    };
    // All accept the new one, then all show it, then all forget the old one.
    let steps = [old.clone(), both(&old, &new), both(&new, &old), new.clone()];
    for pair in steps.windows(2) {
        for (ones, twos) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let mut one = Side::new(ones, RING, Role::Initiator, 1);
            let mut two = Side::new(twos, RING, Role::Responder, 2);
            converse(&mut one, &mut two, |_, _| ());
            assert!(one.is_open() && two.is_open());
        }
    }
    // Who skips a step is told so.
    let mut one = Side::new(&new, RING, Role::Initiator, 1);
    let mut two = Side::new(&old, RING, Role::Responder, 2);
    converse(&mut one, &mut two, |_, _| ());
    assert_eq!((one.fault(), two.fault()), (&LinkFault::Secret, &LinkFault::Secret));
}

#[test]
fn another_secret_and_another_ring_are_called_so_on_both_sides() {
    let other = other_secret();
    for (ones, twos) in [(secret(), other.clone()), (other, secret())] {
        let mut one = Side::new(&ones, RING, Role::Initiator, 1);
        let mut two = Side::new(&twos, RING, Role::Responder, 2);
        converse(&mut one, &mut two, |_, _| ());
        assert_eq!((one.fault(), two.fault()), (&LinkFault::Secret, &LinkFault::Secret));
        assert_eq!(two.said.len(), 40 + LENGTH, "the responder has told nothing of itself");
        assert!(one.fault().to_string().contains("another --ring-secret: give all members"));
    }
    let mut one = Side::new(&secret(), "blue", Role::Initiator, 1);
    let mut two = Side::new(&secret(), "green", Role::Responder, 2);
    converse(&mut one, &mut two, |_, _| ());
    let fault = |theirs: &str, ours: &str| LinkFault::Ring(theirs.into(), ours.into());
    assert_eq!(one.fault(), &fault("green", "blue"));
    assert_eq!(two.fault(), &fault("blue", "green"));
}

#[test]
fn a_proof_tells_not_even_how_long_the_name_is() {
    let said = |ring: &str| {
        let (mut one, mut two) =
            (Side::initiator(), Side::new(&secret(), ring, Role::Responder, 2));
        converse(&mut one, &mut two, |_, _| ());
        two.said.len()
    };
    assert_eq!(said("r"), said(&"r".repeat(255)));
    let long = "r".repeat(255);
    let mut one = Side::new(&secret(), &long, Role::Initiator, 1);
    let mut two = Side::new(&secret(), &long, Role::Responder, 2);
    converse(&mut one, &mut two, |_, _| ());
    assert!(one.is_open() && two.is_open());
}

#[test]
fn what_was_said_on_one_link_opens_no_other() {
    let (mut one, mut two) = (Side::initiator(), Side::responder());
    converse(&mut one, &mut two, |_, _| ());
    let mut later = Side::new(&secret(), RING, Role::Responder, 3);
    later.hear(&one.said);
    assert_eq!(later.fault(), &LinkFault::Secret);
    let mut later = Side::new(&secret(), RING, Role::Initiator, 3);
    later.hear(&two.said);
    assert_eq!(later.fault(), &LinkFault::Secret);
}

#[test]
fn who_mirrors_gets_no_link() {
    let mut one = Side::initiator();
    let opening = one.said.clone();
    one.hear(&opening);
    assert_eq!(one.fault(), &LinkFault::Reflected);
    // With an opening of its own, and our proof sent back.
    let mut one = Side::initiator();
    one.hear(&[&b"aglring\x01"[..], &[9; NONCE]].concat());
    let proof = one.said[40..].to_vec();
    one.hear(&proof);
    assert_eq!(one.fault(), &LinkFault::Secret);
    let mut two = Side::responder();
    two.hear(&[&b"aglring\x01"[..], &[2; NONCE]].concat());
    assert_eq!(two.fault(), &LinkFault::Reflected);
    assert!(two.said.is_empty());
}

#[test]
fn a_stranger_is_told_nothing() {
    for (bytes, fault) in [
        (&b"GET / HTTP/1.1\r\n"[..], LinkFault::Garbage),
        (b"aglrinG", LinkFault::Garbage),
        (b"\x16\x03\x01", LinkFault::Garbage),
        (b"aglring\x02", LinkFault::Format(2, 1)),
    ] {
        let mut two = Side::responder();
        two.hear(bytes);
        assert_eq!((two.fault(), two.said.len()), (&fault, 0));
    }
    let mut two = Side::responder();
    two.hear(&[&b"aglring\x01"[..], &[9; NONCE], &1025u32.to_le_bytes()].concat());
    assert_eq!(two.fault(), &LinkFault::TooLong { length: 1025, limit: 1024 });
}

#[test]
fn only_the_next_frame_of_the_other_side_opens() {
    let (mut one, mut two) = opened();
    let frames: Vec<_> = [&b"first"[..], b"second", b""].map(|text| seal(&mut one, text)).into();
    let back = seal(&mut two, b"first");
    let fresh = || opened().1.opener;
    for at in 0..frames[0].len() {
        for bit in [1, 0x80] {
            let mut changed = frames[0].clone();
            changed[at] ^= bit;
            assert!(open(&mut fresh(), &changed).is_err(), "byte {at}");
        }
        assert!(open(&mut fresh(), &frames[0][..at]).is_err(), "{at} bytes");
        // Cut, with a length that says so.
        let cut = at.saturating_sub(LENGTH);
        let short = [&(cut as u32).to_le_bytes()[..], &frames[0][LENGTH..][..cut]].concat();
        assert_eq!(open(&mut fresh(), &short), Err(LinkFault::Forged), "{cut} bytes");
    }
    assert_eq!(open(&mut fresh(), &frames[1]), Err(LinkFault::Forged), "one was left out");
    assert_eq!(open(&mut fresh(), &back), Err(LinkFault::Forged), "our own");
    let mut opener = fresh();
    assert_eq!(open(&mut opener, &frames[0]).unwrap(), b"first");
    assert_eq!(open(&mut opener, &frames[0]), Err(LinkFault::Forged), "repeated");
    let mut opener = fresh();
    for (frame, text) in frames.iter().zip([&b"first"[..], b"second", b""]) {
        assert_eq!(frame.len(), LENGTH + text.len() + TAG);
        assert_eq!(open(&mut opener, frame).unwrap(), text);
    }
}
