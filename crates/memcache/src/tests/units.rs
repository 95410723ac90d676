//! Behaviour that the recordings do not show: time, and commands of later versions of memcached
//! than the recorded one.

use super::server::Server;
use crate::action::{Action, Delete, Get};
use crate::decide::{Change, Outcome, decide};
use crate::decoder::{Decoded, Decoder, Parting};
use crate::request::Request;
use crate::text;

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
    assert_eq!(
        say(&mut server, "touch a 100\r\nget a\r\n"),
        "TOUCHED\r\nVALUE a 0 1\r\n1\r\nEND\r\n"
    );
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
fn dumps_name_every_object_that_is_there() {
    let mut server = Server::new(None);
    let now = server.now;
    say(
        &mut server,
        "set plain 0 0 2\r\nhi\r\nset a%b!\u{e9}=~ 7 100 1\r\n1\r\nms AAH/ 0 b\r\n\r\n",
    );
    say(&mut server, "set gone 0 1 1\r\n1\r\nget plain\r\n");
    server.now += 5;
    say(&mut server, "get plain\r\n");
    assert_eq!(
        say(&mut server, "lru_crawler metadump all\r\n"),
        format!(
            "key=%00%01%FF exp=-1 la={now} cas=3 fetch=no cls=1 size=62\n\
             key=a%25b%21%C3%A9%3D~ exp={} la={now} cas=2 fetch=no cls=1 size=72\n\
             key=plain exp=-1 la={} cas=1 fetch=yes cls=1 size=66\nEND\r\n",
            now + 100,
            now + 5
        )
    );
    let dump = say(&mut server, "lru_crawler mgdump 1\r\n");
    assert_eq!(dump, "mg AAH/ b\r\nmg a%b!\u{e9}=~\r\nmg plain\r\nEN\r\n");
    let dump = say(&mut server, "stats cachedump 1 0\r\n");
    assert_eq!(
        dump,
        format!("ITEM a%b!\u{e9}=~ [1 b; {} s]\r\nITEM plain [2 b; 0 s]\r\nEND\r\n", now + 100)
    );
    assert_eq!(
        say(&mut server, "lru_crawler mgdump 2,3\r\nlru_crawler metadump 5\r\n"),
        "EN\r\nEND\r\n"
    );
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

#[test]
fn a_web_page_reaches_no_command() {
    for users in [None, Some("ada:a")] {
        for method in [
            "POST",
            "PUT",
            "GET",
            "OPTIONS",
            "flush_all",
            "set",
            "mn",
            "gets",
            "ms",
            "delete",
            "incr",
            "x",
        ] {
            for page in [
                format!("{method} / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"),
                format!("{method} /a?b HTTP/1.0\nhost:  127.0.0.1:11211\nOrigin: null\n\n"),
            ] {
                let login = if users.is_some() { "set x 0 0 5\r\nada a\r\n" } else { "" };
                let mut server = Server::new(users);
                say(&mut server, &format!("{page}{login}set a 0 0 1\r\n1\r\nflush_all\r\n"));
                assert!(server.closed, "{page}");
                assert_eq!(server.len(), 0, "{page}");
            }
        }
    }
    let mut server = Server::new(None);
    say(&mut server, "set HTTP/1.1 0 0 1\r\n1\r\n");
    assert_eq!(say(&mut server, "get HTTP/1.1\r\n"), "VALUE HTTP/1.1 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn a_tls_handshake_where_none_is_spoken_ends_the_connection_with_all_it_carries() {
    for users in [None, Some("ada:a")] {
        for cut in [1, 7, 64] {
            let mut server = Server::new(users);
            let login = if users.is_some() { "set x 0 0 5\r\nada a\r\n" } else { "" };
            let hello = format!("\x16\x03\x01\0\x42\x01\r\n{login}set a 0 0 1\r\n1\r\n");
            hello.as_bytes().chunks(cut).for_each(|piece| drop(server.send(piece)));
            assert!(server.closed && server.len() == 0, "cut every {cut} bytes");
        }
    }
    let mut server = Server::new(None);
    assert_eq!(
        say(&mut server, "mn\r\n\x16\r\nmn\r\n"),
        "MN\r\nERROR\r\nMN\r\n",
        "only what comes first"
    );
}

#[test]
fn who_has_not_said_who_it_is_may_not_begin_a_long_line() {
    let line = [&b"get "[..], &[b'k'; crate::MAX_LINE]].concat();
    let mut known = Server::new(None);
    known.send(&line);
    assert!(!known.closed);
    let mut unknown = Server::new(Some("ada:a"));
    unknown.send(&line);
    assert!(unknown.closed);
}

/// memcached 1.6.18 cut these to 32 bits. It took the first for a value of no bytes, and what
/// followed for commands.
#[test]
fn a_number_that_does_not_fit_is_refused_and_never_cut() {
    const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
    const EXPIRY: &str = "CLIENT_ERROR invalid exptime argument\r\n";
    let mut server = Server::new(None);
    say(&mut server, "set k 0 0 1\r\na\r\n");
    // Nobody knows how much follows: it is read as commands, as behind any line that is none.
    for len in ["4294967296", "4294967297", "2147483647", "-1", "99999999999999999999"] {
        for line in [format!("set k 0 0 {len}"), format!("ms k {len}")] {
            let told = say(&mut server, &format!("{line}\r\n\r\nmn\r\n"));
            assert_eq!(told, format!("{FORMAT}ERROR\r\nMN\r\n"), "{line}");
        }
    }
    // The length is known, so the value is dropped.
    let told = say(&mut server, "ms k 8 F4294967296\r\nquit\r\nmn\r\nmn\r\n");
    assert_eq!(told, format!("{FORMAT}MN\r\n"));
    for line in ["touch k 4294967296", "gat 4294967296 k", "gats -2147483649 k"] {
        assert_eq!(say(&mut server, &format!("{line}\r\n")), EXPIRY, "{line}");
    }
    let told = say(&mut server, "mg k T4294967296\r\nms k 2 T2147483648\r\nmn\r\nmn\r\n");
    let token = "CLIENT_ERROR bad token in command line format\r\n";
    assert_eq!(told, format!("{token}{token}MN\r\n"));
    let told = say(&mut server, "cache_memlimit 10737418240\r\nverbosity 4294967296\r\n");
    assert_eq!(told, "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\nOK\r\n");
    assert_eq!(say(&mut server, "get k\r\n"), "VALUE k 0 1\r\na\r\nEND\r\n", "nothing changed it");
}

#[test]
fn a_login_of_a_length_that_does_not_fit_ends_the_connection() {
    let mut server = Server::new(Some("a:b"));
    say(&mut server, "set auth 0 0 4294967299\r\na b\r\n");
    assert!(server.closed);
}

#[test]
fn a_touch_has_no_value_so_that_nobody_has_one_kept_for_it() {
    for opcode in [0x1c, 0x1d, 0x1e, 0x23, 0x24] {
        let mut server = Server::new(None);
        let mut packet = vec![0x80, opcode, 0, 1, 4, 0, 0, 0];
        packet.extend_from_slice(&(5 + 900_000_u32).to_be_bytes());
        packet.extend_from_slice(&[0; 12]);
        let answer = server.send(&packet);
        assert_eq!(answer.get(6..8), Some(&[0, 4][..]), "{opcode:#x}: it waits for the value");
        assert!(server.closed, "{opcode:#x}");
    }
}

/// There may be hundreds of thousands, and a line comes again whenever its answers wait for room.
#[test]
fn the_keys_of_a_line_that_comes_again_are_not_looked_at_again() {
    let line = format!("get{} last\r\nget {}\r\n", " key".repeat(1000), "k".repeat(251));
    let mut decoder = Decoder::new(1 << 20, false);
    text::take_looked_at();
    let mut len = 0;
    for n in 0..50 {
        let Decoded::Request(whole, Request::Retrieve { keys, .. }) = decoder.next(line.as_bytes())
        else {
            panic!("a get, try {n}")
        };
        // As far as it was answered.
        let end = 4 * n;
        let behind: Vec<(usize, &[u8])> = keys.behind(end).collect();
        assert_eq!((behind.len(), behind[0]), (1001 - n, (end + 4, &b"key"[..])));
        assert_eq!(behind.last(), Some(&(4005, &b"last"[..])));
        len = whole;
        decoder.undo();
    }
    assert_eq!(text::take_looked_at(), 1001);
    assert!(matches!(decoder.next(line.as_bytes()), Decoded::Request(..)));
    // The next line is another. Its answer may have to wait too.
    for _ in 0..2 {
        let next = decoder.next(&line.as_bytes()[len..]);
        let Decoded::Request(_, Request::Answer { bytes, .. }) = next else {
            panic!("a key that is too long")
        };
        assert_eq!(&*bytes, b"CLIENT_ERROR bad command line format\r\n");
        decoder.undo();
    }
}

/// What comes behind a value in parts begins a line of its own.
#[test]
fn a_part_that_comes_again_hides_no_line_behind_it() {
    let input = b"set k 0 0 4\r\nabcd\r\nmn\r\nget a\r\n";
    let parting = Parting { above: 0, part: 2 };
    let mut decoder = Decoder::new(1 << 20, false).parting(parting);
    let (mut at, mut requests) = (0, Vec::new());
    while at < input.len() {
        let decoded = decoder.next(&input[at..]);
        let text = format!("{decoded:?}");
        // Each comes twice.
        decoder.undo();
        assert_eq!(format!("{:?}", decoder.next(&input[at..])), text);
        at += match decoded {
            Decoded::Request(len, _) | Decoded::Begin(len, ..) | Decoded::End(len, _) => len,
            Decoded::Part(part) => part.len(),
            other => panic!("{other:?}"),
        };
        requests.push(text.split('(').next().unwrap().to_owned());
    }
    assert_eq!(requests, ["Begin", "Part", "Part", "End", "Request", "Request"]);
}

/// What is not found may be on flash all the same.
#[test]
fn what_is_not_found_is_removed_by_whatever_takes_it_away() {
    let delete = |delete| Action::Delete(delete);
    let touch = |ttl| Action::Get(Get { touch: Some(ttl), ..Get::default() });
    let removals = [
        delete(Delete::default()),
        delete(Delete { cas: Some(1), ..Delete::default() }),
        delete(Delete { mark_stale: true, touch: Some(30), ..Delete::default() }),
        touch(-1),
    ];
    for action in removals {
        let decision = decide(&action, None, 1_800_000_000);
        assert_eq!((decision.change, decision.outcome), (Change::Remove, Outcome::Missing));
    }
    let action = touch(30);
    let decision = decide(&action, None, 1_800_000_000);
    assert_eq!((decision.change, decision.outcome), (Change::None, Outcome::Missing));
}
