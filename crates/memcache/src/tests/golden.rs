//! Conversations recorded from memcached 1.6.18 (`tools/record-memcached` says how), each on a
//! server of its own.

use super::server::Server;

const RECORDED: &str = include_str!("../../golden/memcached-1.6.18.txt");

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.bytes();
    while let Some(byte) = chars.next() {
        bytes.push(match (byte, byte == b'\\') {
            (_, true) => match chars.next().unwrap() {
                b'r' => b'\r',
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => {
                    let hex = [chars.next().unwrap(), chars.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
                }
                other => other,
            },
            (byte, _) => byte,
        });
    }
    bytes
}

/// A run of one byte is written as `{count*byte}`.
fn expand(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (run, after) = after.split_once('}').unwrap();
        let (count, byte) = run.split_once('*').unwrap();
        bytes.extend(unescape(before));
        bytes.extend(byte.as_bytes().repeat(count.parse().unwrap()));
        rest = after;
    }
    bytes.extend(unescape(rest));
    bytes
}

#[test]
fn every_recorded_conversation_goes_as_with_memcached() {
    let mut conversations = 0;
    let mut server = Server::new(None);
    let mut wrong = Vec::new();
    for (number, line) in (1..).zip(RECORDED.lines()) {
        let Some((kind, text)) = line.split_once(' ') else { continue };
        match kind {
            "#" => {
                conversations += 1;
                server = Server::new(text.ends_with("(users)").then_some("ada:secret\n"));
            }
            ">" => {
                let (sent, expected) = text.split_once(" < ").unwrap();
                let answer = server.send(&expand(sent));
                let (expected, closed) = match expected.strip_suffix("<closed>") {
                    Some(expected) => (expected, true),
                    None => (expected, false),
                };
                let shown = String::from_utf8_lossy(&answer).into_owned();
                if answer != expand(expected) || server.closed != closed {
                    wrong.push(format!(
                        "line {number}: {sent}\n  memcached: {text}\n  we: {shown:?}, closed: {}",
                        server.closed
                    ));
                }
            }
            _ => panic!("line {number}: {line}"),
        }
    }
    assert!(conversations > 25, "{conversations}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
