//! Peers that speak TLS, and end it at any point.

use std::io::{ErrorKind, Write};
use std::time::Duration;

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

#[test]
fn requests_that_come_with_the_last_message_of_the_handshake_are_answered() {
    let opened = Opened::with_tls();
    let mut other = opened.other();
    other.set("here", "1");
    // The client goes on, says with them that it is done, or ends TLS with what is none.
    let mut stream = opened.connect();
    let mut tls = Tls::nearly_over(&mut stream);
    let requests = [tls.seal(b"get here\r\nmn"), tls.seal(b"\r\n")].concat();
    stream.write_all(&requests).unwrap();
    let answers = b"VALUE here 0 1\r\n1\r\nEND\r\nMN\r\n";
    assert_eq!(tls.read(&mut stream, answers.len()).unwrap(), answers);
    let quits = tls.seal(b"quit\r\n");
    stream.write_all(&quits).unwrap();
    assert_eq!(tls.read_to_end(&mut stream).unwrap(), b"");
    for rest in REST {
        other.set("stale", "old");
        let mut stream = opened.connect();
        let mut tls = Tls::nearly_over(&mut stream);
        let requests = [tls.seal(b"delete stale noreply\r\nget he"), tls.seal(b"re\r\n")].concat();
        stream.write_all(&[requests, tls.close_notify(), rest.to_vec()].concat()).unwrap();
        if rest.is_empty() {
            let said = tls.read_to_end(&mut stream).unwrap();
            assert_eq!(said, b"VALUE here 0 1\r\n1\r\nEND\r\n");
        } else {
            until_closed(&mut stream);
        }
        assert!(!other.has("stale"), "deleted, and {} bytes more", rest.len());
    }
    other.set("stale", "old");
    let mut stream = opened.connect();
    let mut tls = Tls::nearly_over(&mut stream);
    let requests = tls.seal(b"delete stale noreply\r\n");
    stream.write_all(&[&requests, &b"delete here noreply\r\n"[..]].concat()).unwrap();
    until_closed(&mut stream);
    assert!(!other.has("stale") && other.has("here"));
    assert_eq!(opened.failed_handshakes(), [("plain", 0), ("late", 0), ("other", 0)]);
}

#[test]
fn clients_that_are_silent_in_their_handshake_are_ended_and_counted() {
    let opened = Opened::with_tls();
    let mut silent: Vec<_> = (0..20).map(|_| opened.connect()).collect();
    // Of some, half a message comes; others have the server's answer.
    silent[..8].iter_mut().for_each(|stream| stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap());
    silent[8..12].iter_mut().for_each(|stream| drop(Tls::nearly_over(stream)));
    // Others are served meanwhile.
    let mut stream = opened.connect();
    let mut tls = Tls::over(&mut stream);
    let requests = tls.seal(b"mn\r\nquit\r\n");
    stream.write_all(&requests).unwrap();
    assert_eq!(tls.read_to_end(&mut stream).unwrap(), b"MN\r\n");
    silent.iter_mut().for_each(|stream| drop(until_closed(stream)));
    assert_eq!(opened.failed_handshakes(), [("plain", 0), ("late", 20), ("other", 0)]);
    // They were no clients.
    assert_eq!(opened.other().stat("total_connections"), 2);
}

#[test]
fn a_client_without_tls_is_turned_away_and_counted() {
    let opened = Opened::with_tls();
    let mut other = opened.other();
    other.set("here", "1");
    // As text, and in binary.
    let binary = [&[0x80, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4][..], &[0; 12], b"here"].concat();
    for request in [&b"get here\r\n"[..], &binary] {
        let mut stream = opened.connect();
        stream.write_all(request).unwrap();
        // What comes is an alert and the end, and no answer.
        let said = until_closed(&mut stream);
        assert!(said.first().is_none_or(|first| *first == 21), "{said:?}");
    }
    assert_eq!(opened.failed_handshakes(), [("plain", 2), ("late", 0), ("other", 0)]);
    assert!(other.has("here"));
}

#[test]
fn a_drain_waits_for_no_handshake_and_who_ends_one_then_is_turned_away() {
    let opened = Opened::with_tls();
    let _silent = opened.connect();
    let mut stream = opened.connect();
    let mut tls = Tls::nearly_over(&mut stream);
    assert!(opened.front_end.drain(Duration::ZERO), "a handshake is waited for");
    let request = tls.seal(b"mn\r\n");
    stream.write_all(&request).unwrap();
    match tls.read_to_end(&mut stream) {
        Ok(said) => assert_eq!(said, b"", "it is no client any more"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}
