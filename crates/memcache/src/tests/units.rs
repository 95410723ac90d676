//! What the recordings do not show: time, and what later versions of memcached than the recorded one can do.

use super::server::Server;

fn say(server: &mut Server, text: &str) -> String {
    String::from_utf8(server.send(text.as_bytes())).unwrap()
}

#[test]
fn expiry_is_exact_to_the_second() {
    let mut server = Server::new(None);
    let moment = server.now + 40 * 86_400;
    say(&mut server, "set a 0 2 1\r\n1\r\n");
    say(&mut server, &format!("set b 0 {moment} 1\r\n1\r\n"));
    assert_eq!(say(&mut server, "set c 0 -1 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!(say(&mut server, "get c\r\n"), "END\r\n");
    server.now += 1;
    assert_eq!(say(&mut server, "mg a t\r\n"), "HD t1\r\n");
    server.now += 1;
    assert_eq!(say(&mut server, "mg a t\r\n"), "EN\r\n");
    server.now = moment - 1;
    assert_eq!(say(&mut server, "mg b t\r\n"), "HD t1\r\n");
    assert_eq!(say(&mut server, "mg b T100\r\nmg b t\r\n"), "HD\r\nHD t100\r\n");
    server.now = moment + 99;
    assert_eq!(say(&mut server, "mg b t\r\n"), "EN\r\n");
}

#[test]
fn a_later_flush_takes_what_is_there_then_and_the_last_one_counts() {
    let mut server = Server::new(None);
    say(&mut server, "set a 0 0 1\r\n1\r\nflush_all 10\r\nflush_all 20\r\n");
    server.now += 19;
    say(&mut server, "set b 0 0 1\r\n1\r\n");
    assert_eq!(say(&mut server, "get a\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
    server.now += 1;
    assert_eq!(say(&mut server, "get a b\r\n"), "END\r\n");
    say(&mut server, "set b 0 0 1\r\n1\r\n");
    assert_eq!(say(&mut server, "get b\r\n"), "VALUE b 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn idle_time_and_reads_are_told() {
    let mut server = Server::new(None);
    say(&mut server, "set a 0 0 1\r\n1\r\n");
    server.now += 5;
    assert_eq!(say(&mut server, "mg a h l u\r\n"), "HD h0 l5\r\n");
    assert_eq!(say(&mut server, "mg a h l\r\n"), "HD h0 l5\r\n");
    assert_eq!(say(&mut server, "mg a h l\r\n"), "HD h1 l0\r\n");
}

#[test]
fn only_a_client_that_can_be_told_is_told_to_make_a_stale_object_anew() {
    let mut server = Server::new(None);
    say(&mut server, "set a 0 0 1\r\n1\r\nmd a I T30\r\n");
    assert_eq!(say(&mut server, "touch a 100\r\nget a\r\n"), "TOUCHED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
    assert_eq!(say(&mut server, "gat 50 a\r\nme zz\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\nEN\r\n");
    assert_eq!(say(&mut server, "mg a t\r\nmg a t\r\n"), "HD t50 X W\r\nHD t50 Z X\r\n");
}

#[test]
fn clients_may_choose_cas_tokens_and_empty_objects() {
    let mut server = Server::new(None);
    assert_eq!(say(&mut server, "ms a 2 E77 c s F3\r\nhi\r\n"), "HD c77 s2\r\n");
    assert_eq!(say(&mut server, "md a I E78\r\nmg a c\r\n"), "HD\r\nHD c78 X W\r\n");
    assert_eq!(say(&mut server, "md a x\r\nmg a v f\r\n"), "HD\r\nVA 0 f0 Z X\r\n\r\n");
    assert_eq!(say(&mut server, "ma n N0 J7 E99 c\r\n"), "HD c99\r\n");
}

#[test]
fn sasl_lets_a_known_client_in() {
    let packet = |opcode: u8, key: &[u8], value: &[u8]| {
        let mut bytes = vec![0x80, opcode, 0, key.len() as u8];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, (key.len() + value.len()) as u8]);
        bytes.extend([0; 12]);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        bytes
    };
    let mut server = Server::new(Some("ada:secret"));
    assert!(server.send(&packet(0x20, b"", b"")).ends_with(b"PLAIN"));
    assert_eq!(server.send(&packet(0x21, b"PLAIN", b"\0ada\0wrong"))[7], 0x20);
    assert_eq!(server.send(&packet(0x21, b"CRAM-MD5", b"\0ada\0secret"))[7], 0x20);
    assert!(server.send(&packet(0x21, b"PLAIN", b"\0ada\0secret")).ends_with(b"Authenticated"));
    assert_eq!(server.send(&packet(0x00, b"a", b""))[7], 0x01);
    assert!(!server.closed);
    let mut server = Server::new(Some("ada:secret"));
    assert_eq!(server.send(&packet(0x00, b"a", b""))[7], 0x20);
    assert!(server.closed, "who does not say who it is first is cut off");
}
