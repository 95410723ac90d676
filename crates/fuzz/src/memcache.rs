//! Whole sessions of a memcached client, over a server in memory.

use crate::target::Target;
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

/// The first byte says in what pieces the rest comes. Whatever comes there is no panic, and the
/// answers are those to all of it at once.
fn session(data: &[u8], users: Option<&str>) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let mut whole = Server::new(users);
    let expected = whole.send(bytes);
    // The same, too, where values come in parts.
    let mut pieces = if cut % 2 == 0 { Server::new(users) } else { Server::parting(users) };
    let mut answers = Vec::new();
    for piece in bytes.chunks(usize::from(*cut) + 1) {
        // A line that is too long is only known to be so by what came of it at once.
        answers.extend(pieces.send(piece));
    }
    if longest_line(bytes) < memcache::MAX_LINE {
        assert!(
            answers == expected,
            "in pieces of {}: other answers than at once",
            usize::from(*cut) + 1
        );
        assert_eq!(pieces.closed, whole.closed);
    }
    if bytes.first() == Some(&0x16) {
        assert!(whole.closed && whole.len() == 0, "a TLS handshake got through");
    }
    if is_http(bytes) {
        assert!(whole.closed && whole.len() == 0, "a web page got through");
    }
}

/// Whether it begins as a browser's request does.
fn is_http(bytes: &[u8]) -> bool {
    let methods = [&b"GET "[..], b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"HEAD "];
    let Some(line) = bytes.split_inclusive(|byte| *byte == b'\n').next() else { return false };
    // No browser sends a zero byte, where a line of memcached ends.
    let words = if line.contains(&0) { 0 } else { line.split(|byte| *byte == b' ').count() };
    methods.iter().any(|method| line.starts_with(method))
        && words == 3
        && line.ends_with(b" HTTP/1.1\r\n")
}

/// A web page's request, with commands where its head or its body may be.
fn pages() -> impl Iterator<Item = Vec<u8>> {
    let commands = "set a 0 0 1\r\n1\r\nflush_all\r\n";
    ["GET", "POST", "PUT", "flush_all", "set"].into_iter().map(move |method| {
        format!("\x20{method} / HTTP/1.1\r\nHost: localhost:11211\r\nContent-Length: 34\r\n\r\n{commands}")
            .into()
    })
}

fn longest_line(bytes: &[u8]) -> usize {
    bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0)
}

/// The short ones among the conversations, each in pieces of its own length; and a session of the
/// binary protocol.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![255], binary()];
    seeds.extend(pages());
    seeds.push(b"\x20\x16\x03\x01\x02\0\x01\r\nset a 0 0 1\r\n1\r\nflush_all\r\n".into());
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
