//! Random TLS sessions: requests cut into records, and records into writes, anywhere; and an end of
//! any kind anywhere.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use super::tls::Tls;
use super::{Opened, Other, until_closed};

const SESSIONS: u64 = 150;

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 29) % bound as u64) as usize
    }

    /// Some bytes in pieces.
    fn pieces<'a>(&mut self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        while !bytes.is_empty() {
            let most = if self.below(4) == 0 { 4 } else { bytes.len() };
            let (piece, rest) = bytes.split_at(self.below(most.min(bytes.len())) + 1);
            pieces.push(piece);
            bytes = rest;
        }
        pieces
    }
}

/// How a session ends. What comes with the end reaches the server in the same writes as what is
/// before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// As TLS has it.
    Notified,
    /// As TLS has it, and then something comes all the same.
    GoesOn,
    /// With bytes that are no TLS.
    Plain,
    /// With the end of the client's half, and no word of it.
    Silent,
}

/// Requests, of which some change objects, and what is to be seen of them.
struct Session {
    requests: Vec<u8>,
    answers: Vec<u8>,
    gone: Vec<String>,
}

fn session(dice: &mut Dice, seed: u64, other: &mut Other) -> Session {
    let mut session = Session { requests: Vec::new(), answers: Vec::new(), gone: Vec::new() };
    for n in 0..dice.below(9) {
        let key = format!("k{seed}-{n}");
        // Together some requests and answers are larger than a record.
        let value = "v".repeat([1, 300, 15_000][dice.below(3)]);
        other.set(&key, &value);
        let (request, answer) = match dice.below(4) {
            0 => (format!("delete {key} noreply\r\n"), String::new()),
            1 => (format!("delete {key}\r\n"), "DELETED\r\n".into()),
            2 => (
                format!("get {key}\r\n"),
                format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()),
            ),
            _ => (format!("append {key} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n".into()),
        };
        if request.starts_with("delete") {
            session.gone.push(key);
        }
        session.requests.extend(request.into_bytes());
        session.answers.extend(answer.into_bytes());
    }
    session
}

/// Says it all, and gives what is answered where the end is such that an answer can be given.
fn say(dice: &mut Dice, stream: &mut TcpStream, session: &Session, end: End) -> Option<Vec<u8>> {
    let mut tls = Tls::over(stream);
    let mut wire: Vec<u8> =
        dice.pieces(&session.requests).into_iter().flat_map(|piece| tls.seal(piece)).collect();
    let told = wire.len();
    match end {
        End::Notified => wire.extend(tls.close_notify()),
        End::GoesOn => {
            wire.extend(tls.close_notify());
            wire.extend(vec![dice.below(256) as u8; dice.below(6_000) + 1]);
        }
        // No record begins like this.
        End::Plain => wire.extend(b"delete kept noreply\r\n".repeat(dice.below(300) + 1)),
        End::Silent => {}
    }
    let mut written = 0;
    for piece in dice.pieces(&wire) {
        let outcome = stream.write_all(piece);
        written += piece.len();
        // Who goes on after the end may be cut off.
        assert!(outcome.is_ok() || written > told, "{outcome:?} after {written} of {told} bytes");
    }
    if end == End::Silent || dice.below(2) == 0 {
        let _ = stream.shutdown(Shutdown::Write);
    }
    match end {
        End::Notified | End::Silent => Some(tls.read_to_end(stream).unwrap()),
        End::GoesOn | End::Plain => {
            until_closed(stream);
            None
        }
    }
}

#[test]
fn whatever_a_tls_client_says_is_done_up_to_its_end_and_hangs_nobody() {
    let opened = Opened::with_tls();
    let mut other = opened.other();
    other.set("kept", "1");
    for seed in 0..SESSIONS {
        let mut dice = Dice(seed);
        let session = session(&mut dice, seed, &mut other);
        let end = [End::Notified, End::GoesOn, End::Plain, End::Silent][dice.below(4)];
        let mut stream = opened.connect();
        let said = say(&mut dice, &mut stream, &session, end);
        assert_eq!(other.ask("mn\r\n"), "MN", "seed {seed}, {end:?}");
        if let Some(said) = said {
            assert!(
                said == session.answers,
                "seed {seed}, {end:?}: {} bytes of {}",
                said.len(),
                session.answers.len()
            );
        }
        for key in &session.gone {
            assert!(!other.has(key), "seed {seed}, {end:?}: {key} was deleted");
        }
        assert!(other.has("kept"), "seed {seed}: what came outside of TLS was carried out");
    }
}
