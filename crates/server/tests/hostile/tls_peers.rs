//! Peers that speak TLS, and end it at any point.

use std::io::Write;

use super::tls::Tls;
use super::{Opened, until_closed};

/// Whatever comes behind the client's last word.
const REST: [&[u8]; 4] = [b"", b"x", &[0; 5000], &[23, 3, 3, 0, 40]];

#[test]
fn who_goes_on_after_the_end_of_tls_is_ended_and_hangs_nobody() {
    let opened = Opened::with_tls();
    let mut other = opened.other();
    for rest in REST {
        let mut stream = opened.connect();
        let mut tls = Tls::over(&mut stream);
        let bytes = [tls.close_notify(), rest.to_vec()].concat();
        stream.write_all(&bytes).unwrap();
        assert_eq!(other.ask("mn\r\n"), "MN", "{} bytes more", rest.len());
        // Also when it comes in a piece of its own.
        let _ = stream.write_all(b"and more");
        assert_eq!(other.ask("mn\r\n"), "MN", "{} bytes more", rest.len());
        until_closed(&mut stream);
    }
}

#[test]
fn requests_that_come_with_the_end_of_tls_are_carried_out_and_answered() {
    let opened = Opened::with_tls();
    let mut other = opened.other();
    for rest in REST {
        other.set("stale", "old");
        other.set("here", "1");
        let mut stream = opened.connect();
        let mut tls = Tls::over(&mut stream);
        let requests =
            [tls.seal(b"delete stale noreply\r\nget he"), tls.seal(b"re\r\nmn\r\n")].concat();
        stream.write_all(&[requests, tls.close_notify(), rest.to_vec()].concat()).unwrap();
        if rest.is_empty() {
            let said = tls.read_to_end(&mut stream).unwrap();
            assert_eq!(said, b"VALUE here 0 1\r\n1\r\nEND\r\nMN\r\n");
        } else {
            until_closed(&mut stream);
        }
        assert!(!other.has("stale"), "deleted, and {} bytes more", rest.len());
    }
}

#[test]
fn what_comes_before_what_is_no_tls_is_carried_out() {
    let opened = Opened::with_tls();
    let mut other = opened.other();
    other.set("stale", "old");
    let mut stream = opened.connect();
    let mut tls = Tls::over(&mut stream);
    let requests = tls.seal(b"delete stale noreply\r\n");
    stream.write_all(&[&requests, &b"delete kept noreply\r\n"[..]].concat()).unwrap();
    until_closed(&mut stream);
    assert!(!other.has("stale"));
}
