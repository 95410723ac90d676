//! Random sessions. Whatever bytes arrive, in whatever pieces, there is no panic and the answers
//! are the same.

use super::server::Server;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

const WORDS: &[&str] = &[
    "get",
    "gets",
    "gat",
    "gats",
    "set",
    "add",
    "replace",
    "append",
    "prepend",
    "cas",
    "incr",
    "decr",
    "delete",
    "touch",
    "flush_all",
    "mg",
    "ms",
    "md",
    "ma",
    "me",
    "mn",
    "stats",
    "version",
    "verbosity",
    "a",
    "b",
    "YQ==",
    "0",
    "1",
    "2",
    "5",
    "-1",
    "100",
    "noreply",
    "v",
    "k",
    "q",
    "t",
    "c",
    "s",
    "f",
    "h",
    "l",
    "b",
    "T30",
    "T0",
    "T-1",
    "N10",
    "R90",
    "I",
    "C1",
    "C2",
    "E7",
    "MA",
    "MP",
    "ME",
    "MD",
    "J3",
    "D2",
    "x",
    "O1",
    "u",
    "1048577",
    "4294967295",
    "",
];

fn text(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(12) {
        match random.below(12) {
            0 => bytes.extend((0..random.below(9)).map(|_| random.next() as u8)),
            1 | 2 => {
                let len = random.below(6);
                let verb = random.of(&["set", "add", "append", "prepend", "replace", "ms"]);
                let middle = if verb == "ms" { "" } else { " 3 0" };
                let short = random.below(10) == 0;
                bytes.extend(
                    format!(
                        "{verb} {}{middle} {}\r\n",
                        random.of(&["a", "b"]),
                        len + usize::from(short)
                    )
                    .bytes(),
                );
                bytes.extend(std::iter::repeat_n(random.of(b"17x "), len));
                bytes.extend(b"\r\n");
            }
            3 if random.below(4) == 0 => {
                bytes.extend(std::iter::repeat_n(b'k', random.below(2600)))
            }
            _ => {
                for _ in 0..=random.below(6) {
                    bytes.extend(random.of(WORDS).bytes());
                    bytes.push(b' ');
                }
                bytes.extend(random.of(&[&b"\r\n"[..], b"\n", b"\r\n", b"\r\n"]));
            }
        }
    }
    bytes
}

fn binary(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(8) {
        let opcode =
            if random.below(9) == 0 { random.next() as u8 } else { random.below(0x26) as u8 };
        let extras = match opcode {
            1 | 2 | 3 | 0x11..=0x13 => 8,
            5 | 6 | 0x15 | 0x16 => 20,
            0x1c..=0x1e | 0x23 | 0x24 => 4,
            _ => random.of(&[0, 0, 0, 4]),
        };
        let key = if random.below(40) == 0 { random.below(300) } else { random.below(3) };
        let value = random.of(&[0, 0, 1, 3, 9]);
        let body = if random.below(30) == 0 { random.below(64) } else { extras + key + value };
        bytes.extend([if random.below(60) == 0 { 0x81 } else { 0x80 }, opcode]);
        bytes.extend((key as u16).to_be_bytes());
        bytes.extend([extras as u8, 0, 0, 0]);
        bytes.extend((body as u32).to_be_bytes());
        bytes.extend([9; 4]);
        bytes.extend(random.of(&[0u64, 0, 0, 1, 2]).to_be_bytes());
        bytes.extend((0..body).map(|_| random.of(&[0, 0, 0, b'1', b'a', 0xff])));
    }
    bytes
}

fn pieces(random: &mut Random, server: &mut Server, bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let len = match random.below(3) {
            0 => 1,
            1 => 1 + random.below(rest.len().min(7)),
            _ => 1 + random.below(rest.len()),
        };
        out.extend(server.send(&rest[..len]));
        rest = &rest[len..];
    }
    out
}

fn campaign(
    seeds: std::ops::Range<u64>,
    users: Option<&str>,
    make: fn(&mut Random) -> Vec<u8>,
) -> usize {
    let mut answered = 0;
    for seed in seeds {
        let mut random = Random(seed);
        let mut bytes = make(&mut random);
        if users.is_some() && random.below(2) == 0 {
            bytes.splice(0..0, *b"set x 0 0 5\r\nada a\r\n");
        }
        let mut whole = Server::new(users);
        let answer = whole.send(&bytes);
        answered += usize::from(!answer.is_empty());
        for parts in [false, false, true] {
            let mut cut = if parts { Server::parting(users) } else { Server::new(users) };
            let again = pieces(&mut random, &mut cut, &bytes);
            let (answer, again) =
                (String::from_utf8_lossy(&answer), String::from_utf8_lossy(&again));
            assert_eq!(answer, again, "seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
            assert_eq!(whole.closed, cut.closed, "seed {seed}");
        }
    }
    answered
}

#[test]
fn text_sessions_do_not_depend_on_how_they_are_cut() {
    assert!(campaign(0..4000, None, text) > 3000);
    assert!(campaign(0..1000, Some("ada:a"), text) > 700);
}

#[test]
fn binary_sessions_do_not_depend_on_how_they_are_cut() {
    assert!(campaign(0..4000, None, binary) > 3000);
    assert!(campaign(0..500, Some("ada:a"), binary) > 300);
}

#[test]
fn noise_does_not_panic() {
    campaign(0..2000, None, |random| {
        let first = random.of(b"\x80\x80mgs");
        std::iter::once(first).chain((0..random.below(200)).map(|_| random.next() as u8)).collect()
    });
}
