//! Whole sessions of a memcached client, over a server in memory.

use crate::Target;
use afterglow_memcache as memcache;

#[allow(dead_code)]
#[path = "../../memcache/src/tests/server.rs"]
mod server;

use server::Server;

/// These targets.
pub const TARGETS: &[Target] = &[
    Target { name: "memcache", run: anyone, seeds, mutations: 20_000 },
    Target { name: "memcache-auth", run: only_known, seeds, mutations: 5_000 },
];

/// Conversations that were had with memcached itself, a line what is sent at once.
const CONVERSATIONS: &str = include_str!("../../memcache/golden/conversations.txt");

fn anyone(data: &[u8]) {
    session(data, None);
}

fn only_known(data: &[u8]) {
    session(data, Some("a:b\n"));
}

/// The first byte says in what pieces the rest comes. Whatever comes there is no panic, and the answers are those to all of it at once.
fn session(data: &[u8], users: Option<&str>) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let mut whole = Server::new(users);
    let expected = whole.send(bytes);
    let mut pieces = Server::new(users);
    let mut answers = Vec::new();
    for piece in bytes.chunks(usize::from(*cut) + 1) {
        // A line that is too long is only known to be so by what came of it at once.
        answers.extend(pieces.send(piece));
    }
    if longest_line(bytes) < memcache::MAX_LINE {
        assert!(answers == expected, "in pieces of {}: other answers than at once", usize::from(*cut) + 1);
        assert_eq!(pieces.closed, whole.closed);
    }
}

fn longest_line(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0)
}

/// The short ones among the conversations, each in pieces of its own length; and a session of the binary protocol.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![255], binary()];
    let mut session = Vec::new();
    for line in CONVERSATIONS.lines() {
        if line.starts_with('#') {
            if !session.is_empty() {
                seeds.push([&[(seeds.len() * 7) as u8], &session[..]].concat());
            }
            session.clear();
        } else if !line.contains('{') {
            session.extend(line.replace("\\r", "\r").replace("\\n", "\n").bytes());
        }
    }
    seeds
}

/// set, getq, incr with a default, noop, quit.
fn binary() -> Vec<u8> {
    let mut out = vec![17];
    for (opcode, extras, key, value) in [
        (1u8, &[0u8; 8][..], &b"k"[..], &b"12"[..]),
        (9, &[], b"k", b""),
        (5, &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0], b"n", b""),
        (10, &[], b"", b""),
        (7, &[], b"", b""),
    ] {
        let body = (extras.len() + key.len() + value.len()) as u32;
        out.extend([0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0]);
        out.extend(body.to_be_bytes());
        out.extend([0; 12]);
        out.extend([extras, key, value].concat());
    }
    out
}
