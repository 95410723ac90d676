//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`.

use std::borrow::Cow;

use crate::action::{Action, Arithmetic, Delete, Get, Mode, Store};
use crate::limits::{ITEM_OVERHEAD, MAX_KEY};
use crate::line::{BAD_FORMAT, Line, answer};
use crate::reply::{Meta, Reply, Verb};
use crate::request::{Operation, Request};
use crate::tokens::{self, Tokens};
use crate::{base64, number};

/// More words than this are too many.
const MAX_WORDS: usize = 19;
/// Longest opaque flag.
const MAX_OPAQUE: usize = 32;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long\r\n";

/// All flags of all commands.
#[derive(Debug, Default)]
struct Flags {
    binary_key: bool,
    vivify: Option<i64>,
    touch: Option<i64>,
    recache: Option<i64>,
    value: bool,
    silent: bool,
    quiet: bool,
    client_flags: u32,
    cas: Option<u64>,
    new_cas: Option<u64>,
    mode: Option<u8>,
    initial: u64,
    delta: Option<u64>,
    stale: bool,
    value_only: bool,
    long_opaque: bool,
}

impl Flags {
    fn read(words: &[&[u8]]) -> Result<Self, &'static str> {
        let mut flags = Flags::default();
        let mut seen = 0u128;
        let mut wrong = None;
        for word in words {
            let letter = word[0];
            if letter >= 127 || seen & 1 << letter != 0 {
                return Err("CLIENT_ERROR duplicate flag\r\n");
            }
            seen |= 1 << letter;
            if let Err(text) = flags.take(letter, word) {
                if text == INVALID {
                    return Err(INVALID);
                }
                // The last one counts, as in memcached.
                wrong = Some(text);
            }
        }
        wrong.map_or(Ok(flags), Err)
    }

    fn take(&mut self, letter: u8, word: &[u8]) -> Result<(), &'static str> {
        let rest = &word[1..];
        let time = || number::signed_32(rest).map(i64::from).ok_or(BAD_TOKEN);
        match letter {
            b'b' => self.binary_key = true,
            b'N' => self.vivify = Some(time()?),
            b'T' => self.touch = Some(time()?),
            b'R' => self.recache = Some(time()?),
            b'v' => self.value = true,
            b'u' => self.silent = true,
            b'q' => self.quiet = true,
            b'F' => self.client_flags = number::unsigned_32(rest).ok_or(BAD_FORMAT)?,
            b'C' => self.cas = Some(number::unsigned(rest).ok_or(BAD_TOKEN)?),
            b'E' => self.new_cas = Some(number::unsigned(rest).ok_or(BAD_TOKEN)?),
            b'M' => match rest {
                [mode] => self.mode = Some(*mode),
                _ => return Err("CLIENT_ERROR incorrect length for M token\r\n"),
            },
            b'J' => {
                self.initial = number::unsigned(rest)
                    .ok_or("CLIENT_ERROR invalid numeric initial value\r\n")?;
            }
            b'D' => {
                let delta = number::unsigned(rest);
                self.delta = Some(delta.ok_or("CLIENT_ERROR invalid numeric delta value\r\n")?);
            }
            b'I' => self.stale = true,
            b'x' => self.value_only = true,
            b'O' => self.long_opaque = word.len() > MAX_OPAQUE,
            b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            _ => return Err(INVALID),
        }
        Ok(())
    }
}

const INVALID: &str = "CLIENT_ERROR invalid flag\r\n";

/// Understands a line that begins with a meta command.
pub fn parse<'a>(line: &'a [u8], words: &Tokens<'a>, max_item: usize) -> Line<'a> {
    let told = |text| Line::Whole(answer(text));
    let key = words.get(1);
    let verb = match words.get(0)[1] {
        b'g' => Verb::Get,
        b's' => Verb::Set,
        b'd' => Verb::Delete,
        b'a' => Verb::Arithmetic,
        _ => Verb::Debug,
    };
    if words.len() < 2 {
        return told(if verb == Verb::Debug { BAD_FORMAT } else { "ERROR\r\n" });
    }
    if key.len() > MAX_KEY || (verb == Verb::Set && words.len() == 2) {
        return told(BAD_FORMAT);
    }
    match verb {
        Verb::Debug => return debug(key, words),
        Verb::Get if words.len() > MAX_WORDS => {
            return told("CLIENT_ERROR options flags are too long\r\n");
        }
        _ if words.len() > MAX_WORDS => return told("CLIENT_ERROR options flags too long\r\n"),
        Verb::Set => return set(line, words, max_item),
        Verb::Get | Verb::Delete | Verb::Arithmetic => {}
    }
    let flags = match Flags::read(words.from(2)) {
        Ok(flags) => flags,
        Err(text) if verb == Verb::Get => return told(text),
        Err(_) => return told(BAD_FLAG),
    };
    let Some(key) = decoded(key, flags.binary_key) else {
        return told(if verb == Verb::Get { BAD_KEY } else { BAD_FLAG });
    };
    let action = match verb {
        Verb::Get => Action::Get(Get {
            touch: flags.touch,
            vivify: flags.vivify,
            recache: flags.recache,
            recache_first: stands_before(words, b'R', b'T'),
            vivify_last: stands_before(words, b'T', b'N'),
            can_win: true,
            silent: flags.silent,
            debug: false,
        }),
        Verb::Delete => Action::Delete(Delete {
            cas: flags.cas,
            new_cas: flags.new_cas,
            mark_stale: flags.stale,
            value_only: flags.value_only,
            touch: flags.touch,
        }),
        _ => match count(&flags, words) {
            Some(arithmetic) => Action::Arithmetic(arithmetic),
            None => return told("CLIENT_ERROR invalid mode for ma M token\r\n"),
        },
    };
    if flags.long_opaque {
        return told(LONG_OPAQUE);
    }
    let reply = reply(verb, &flags, tokens::after(line, 2));
    Line::Whole(Request::Operation(Operation { key, action, reply }))
}

/// Whether both flags are there, `first` before `second`: memcached carries flags out as it comes
/// by them.
fn stands_before(words: &Tokens<'_>, first: u8, second: u8) -> bool {
    let place = |letter| words.from(2).iter().position(|word| word[0] == letter);
    place(first).zip(place(second)).is_some_and(|(first, second)| first < second)
}

const BAD_KEY: &str = "CLIENT_ERROR error decoding key\r\n";

fn reply<'a>(verb: Verb, flags: &Flags, words: &'a [u8]) -> Reply<'a> {
    Reply::Meta(Meta {
        verb,
        flags: Cow::Borrowed(words),
        quiet: flags.quiet,
        value: flags.value,
        binary_key: flags.binary_key,
    })
}

fn decoded(key: &[u8], binary: bool) -> Option<Cow<'_, [u8]>> {
    if !binary {
        return Some(Cow::Borrowed(key));
    }
    let mut bytes = Vec::with_capacity(key.len());
    base64::decode(key, &mut bytes).map(|()| Cow::Owned(bytes))
}

fn count(flags: &Flags, words: &Tokens<'_>) -> Option<Arithmetic> {
    let down = match flags.mode {
        None | Some(b'I' | b'+' | b'i') => false,
        Some(b'D' | b'-' | b'd') => true,
        Some(_) => return None,
    };
    Some(Arithmetic {
        down,
        delta: flags.delta.unwrap_or(1),
        cas: flags.cas.unwrap_or(0),
        new_cas: flags.new_cas,
        initial: flags.vivify.map(|ttl| (flags.initial, ttl)),
        touch: flags.touch,
        initial_last: stands_before(words, b'T', b'N'),
    })
}

fn debug<'a>(key: &'a [u8], words: &Tokens<'a>) -> Line<'a> {
    let Some(key) = decoded(key, words.get(2) == b"b") else {
        return Line::Whole(answer(BAD_FORMAT));
    };
    let action = Action::Get(Get { silent: true, debug: true, ..Get::default() });
    let reply = reply(Verb::Debug, &Flags::default(), &[]);
    Line::Whole(Request::Operation(Operation { key, action, reply }))
}

fn set<'a>(line: &'a [u8], words: &Tokens<'a>, max_item: usize) -> Line<'a> {
    let len = number::signed_32(words.get(2)).filter(|len| (0..=i32::MAX - 2).contains(len));
    let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
        return Line::Whole(answer(BAD_FORMAT));
    };
    let refused = |text| Line::Refused(answer(text), len as u64 + 2);
    let flags = match Flags::read(words.from(3)) {
        Ok(flags) => flags,
        Err(text) => return refused(text),
    };
    let Some(key) = decoded(words.get(1), flags.binary_key) else { return refused(BAD_KEY) };
    let mode = match flags.mode {
        None | Some(b'S' | b's') if flags.cas.is_some() => Mode::Cas,
        Some(b'R' | b'r') if flags.cas.is_some() => Mode::Cas,
        None | Some(b'S' | b's') => Mode::Set,
        Some(b'E' | b'e') => Mode::Add,
        Some(b'A' | b'a') => Mode::Append,
        Some(b'P' | b'p') => Mode::Prepend,
        Some(b'R' | b'r') => Mode::Replace,
        Some(_) => return refused("CLIENT_ERROR invalid mode for ms M token\r\n"),
    };
    if flags.long_opaque {
        return refused(LONG_OPAQUE);
    }
    let reply = reply(Verb::Set, &flags, tokens::after(line, 3));
    if key.len() + len + ITEM_OVERHEAD > max_item {
        // memcached drops what is there whatever the mode, and so do we.
        let refused = Request::TooLarge { key, mode, remove: true, reply };
        return Line::Refused(refused, len as u64 + 2);
    }
    let action = Action::Store(Store {
        mode,
        flags: flags.client_flags,
        ttl: flags.touch.unwrap_or(0),
        cas: flags.cas.unwrap_or(0),
        new_cas: flags.new_cas,
        stale: flags.stale,
        binary_key: flags.binary_key,
        value: Cow::Borrowed(&[]),
        in_parts: None,
    });
    Line::Value(len, Operation { key, action, reply })
}
