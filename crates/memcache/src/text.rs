//! The classic text commands.

use std::borrow::Cow;

use crate::action::{Action, Arithmetic, Delete, Get, Mode, Store};
use crate::limits::{ITEM_OVERHEAD, MAX_KEY};
use crate::line::{BAD_FORMAT, Line, answer};
use crate::reply::{BAD_EXPTIME, Reply};
use crate::request::{Keys, Operation, Request};
use crate::tokens::{self, Tokens};
use crate::{crawl, meta, number, watch};

/// Levels above this are this one, as in memcached.
const MAX_VERBOSITY: u32 = 2;
const ERROR: &str = "ERROR\r\n";
pub const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";

/// What can be told in a quiet request is not.
fn told(text: &'static str, quiet: bool) -> Line<'static> {
    Line::Whole(if quiet { answer("") } else { answer(text) })
}

#[cfg(test)]
thread_local! {
    /// Keys of retrievals whose length was looked at on this thread.
    static LOOKED_AT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many keys of retrievals were looked at on this thread since the last call.
#[cfg(test)]
pub fn take_looked_at() -> usize {
    LOOKED_AT.take()
}

/// Understands a line, without its end. `again` says that it has come before, all of it.
pub fn parse(line: &[u8], max_item: usize, again: bool) -> Line<'_> {
    let words = Tokens::of(line);
    let count = words.len();
    let wrong = || if is_http(&words) { Line::Close } else { Line::Whole(answer(ERROR)) };
    let store = |mode, counts: [usize; 2]| match counts.contains(&count) {
        true => store(&words, mode, max_item),
        false => wrong(),
    };
    match words.get(0) {
        b"get" | b"bget" if count > 1 => retrieve(line, false, None, again),
        b"gets" if count > 1 => retrieve(line, true, None, again),
        b"gat" if count > 1 => touching(line, &words, false, again),
        b"gats" if count > 1 => touching(line, &words, true, again),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => meta::parse(line, &words, max_item),
        b"mn" => Line::Whole(answer("MN\r\n")),
        b"set" => store(Mode::Set, [5, 6]),
        b"add" => store(Mode::Add, [5, 6]),
        b"replace" => store(Mode::Replace, [5, 6]),
        b"append" => store(Mode::Append, [5, 6]),
        b"prepend" => store(Mode::Prepend, [5, 6]),
        b"cas" => store(Mode::Cas, [6, 7]),
        b"incr" if matches!(count, 3 | 4) => arithmetic(&words, false),
        b"decr" if matches!(count, 3 | 4) => arithmetic(&words, true),
        b"delete" if matches!(count, 2..=4) => delete(&words),
        b"touch" if matches!(count, 3 | 4) => touch(&words),
        b"flush_all" if matches!(count, 1..=3) => flush(&words),
        b"verbosity" if matches!(count, 2 | 3) => verbosity(&words),
        b"version" => Line::Whole(Request::Version(Reply::Text { quiet: false })),
        b"quit" => Line::Whole(close()),
        b"stats" if words.get(1) == b"cachedump" => crawl::cached(&words),
        b"stats" => Line::Whole(Request::Stats {
            argument: tokens::after(line, 1).trim_ascii(),
            reply: Reply::Text { quiet: false },
        }),
        b"watch" => watch::parse(&words).unwrap_or_else(wrong),
        b"refresh_certs" => Line::Whole(Request::RefreshCertificates),
        b"slabs" if words.get(1) == b"automove" && count > 2 => automove(&words),
        b"cache_memlimit" if matches!(count, 2 | 3) => memory_limit(&words),
        b"lru_crawler"
            if count == 3
                && let Some(line) = crawl::crawl(&words) =>
        {
            line
        }
        name => unsupported(name, &words).map_or_else(wrong, |text| Line::Whole(answer(text))),
    }
}

/// There is nothing to move: as where reassignment is off, the setting is taken and changes
/// nothing.
fn automove(words: &Tokens<'_>) -> Line<'static> {
    let text = match (words.get(2), number::unsigned_32(words.get(2))) {
        (b"ratio", _) if number::is_float(words.get(3)) => "OK\r\n",
        (_, Some(0..=2)) => "OK\r\n",
        (b"ratio", _) | (_, Some(_)) => ERROR,
        (_, None) => BAD_FORMAT,
    };
    told(text, is_quiet(words))
}

fn memory_limit(words: &Tokens<'_>) -> Line<'static> {
    let quiet = is_quiet(words);
    let text = match number::unsigned(words.get(1)) {
        None => ERROR,
        Some(..8) => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        Some(megabytes @ 8..=1_000_000_000) => {
            let megabytes = megabytes as u32;
            return Line::Whole(Request::MemoryLimit { megabytes, quiet });
        }
        Some(_) => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
    };
    told(text, quiet)
}

/// The client wants no more: the connection ends without a word.
fn close() -> Request<'static> {
    Request::Answer { bytes: Cow::Borrowed(b""), close: true }
}

/// Whether a line that is no command is one of HTTP. A web page can have a browser send a request
/// here, and what follows in it would be commands. As memcached does, the connection is ended at a
/// request line, unless its method begins like a command. The `Host` line in the head of each
/// request catches the others.
pub fn is_http(words: &Tokens<'_>) -> bool {
    words.last().starts_with(b"HTTP/") || words.get(0).eq_ignore_ascii_case(b"host:")
}

/// memcached's own answer where what a command is for has been switched off.
fn unsupported(name: &[u8], words: &Tokens<'_>) -> Option<&'static str> {
    Some(match (name, words.get(1)) {
        (b"shutdown", _) => "ERROR: shutdown not enabled\r\n",
        (b"lru_crawler", b"crawl") => "CLIENT_ERROR lru crawler disabled\r\n",
        (b"slabs", b"reassign") => "CLIENT_ERROR slab reassignment disabled\r\n",
        _ => return None,
    })
}

fn retrieve(line: &[u8], cas: bool, touch: Option<i64>, again: bool) -> Line<'_> {
    let keys = Keys(tokens::after(line, if touch.is_some() { 2 } else { 1 }));
    // There may be hundreds of thousands, and the line comes again whenever its answers wait.
    if !again && !keys.iter().all(is_lawful) {
        return Line::Whole(answer(BAD_FORMAT));
    }
    let get = Get { touch, ..Get::default() };
    Line::Whole(Request::Retrieve { keys, get, reply: Reply::Value { cas } })
}

fn is_lawful(key: &[u8]) -> bool {
    #[cfg(test)]
    LOOKED_AT.set(LOOKED_AT.get() + 1);
    key.len() <= MAX_KEY
}

fn touching<'a>(line: &'a [u8], words: &Tokens<'a>, cas: bool, again: bool) -> Line<'a> {
    match number::signed_32(words.get(1)) {
        Some(ttl) => retrieve(line, cas, Some(ttl.into()), again),
        None => Line::Whole(answer(BAD_EXPTIME)),
    }
}

fn is_quiet(words: &Tokens<'_>) -> bool {
    words.last() == b"noreply"
}

fn store<'a>(words: &Tokens<'a>, mode: Mode, max_item: usize) -> Line<'a> {
    let quiet = is_quiet(words);
    let key = words.get(1);
    let numbers = (
        number::cut_unsigned_32(words.get(2)),
        number::cut_signed_32(words.get(3)),
        number::signed_32(words.get(4)),
        if mode == Mode::Cas { number::unsigned(words.get(5)) } else { Some(0) },
    );
    let (Some(flags), Some(ttl), Some(len), Some(cas)) = numbers else {
        return told(BAD_FORMAT, quiet);
    };
    let Some(len) =
        usize::try_from(len).ok().filter(|_| len <= i32::MAX - 2 && key.len() <= MAX_KEY)
    else {
        return told(BAD_FORMAT, quiet);
    };
    let (key, reply) = (Cow::Borrowed(key), Reply::Text { quiet });
    if key.len() + len + ITEM_OVERHEAD > max_item {
        let remove = mode == Mode::Set;
        return Line::Refused(Request::TooLarge { key, mode, remove, reply }, len as u64 + 2);
    }
    let action = Action::Store(Store {
        mode,
        flags,
        ttl: ttl.into(),
        cas,
        new_cas: None,
        stale: false,
        binary_key: false,
        value: Cow::Borrowed(&[]),
        in_parts: None,
    });
    Line::Value(len, Operation { key, action, reply })
}

fn operation<'a>(key: &'a [u8], action: Action<'a>, quiet: bool) -> Line<'a> {
    let key = Cow::Borrowed(key);
    Line::Whole(Request::Operation(Operation { key, action, reply: Reply::Text { quiet } }))
}

fn arithmetic<'a>(words: &Tokens<'a>, down: bool) -> Line<'a> {
    let (quiet, key) = (is_quiet(words), words.get(1));
    if key.len() > MAX_KEY {
        return told(BAD_FORMAT, quiet);
    }
    let Some(delta) = number::unsigned(words.get(2)) else { return told(BAD_DELTA, quiet) };
    operation(key, Action::Arithmetic(Arithmetic { down, delta, ..Arithmetic::default() }), quiet)
}

fn touch<'a>(words: &Tokens<'a>) -> Line<'a> {
    let (quiet, key) = (is_quiet(words), words.get(1));
    if key.len() > MAX_KEY {
        return told(BAD_FORMAT, quiet);
    }
    let Some(ttl) = number::signed_32(words.get(2)) else { return told(BAD_EXPTIME, quiet) };
    operation(key, Action::Get(Get { touch: Some(ttl.into()), ..Get::default() }), quiet)
}

fn delete<'a>(words: &Tokens<'a>) -> Line<'a> {
    let count = words.len();
    let quiet = count > 2 && is_quiet(words);
    // Old clients send a time, which must be 0.
    let zero = words.get(2) == b"0";
    let valid = match count {
        2 => true,
        3 => zero || quiet,
        _ => zero && quiet,
    };
    if !valid {
        return told(BAD_DELETE, quiet);
    }
    if words.get(1).len() > MAX_KEY {
        return told(BAD_FORMAT, quiet);
    }
    operation(words.get(1), Action::Delete(Delete::default()), quiet)
}

fn flush<'a>(words: &Tokens<'a>) -> Line<'a> {
    let quiet = is_quiet(words);
    let delay = match words.len() == if quiet { 2 } else { 1 } {
        true => Some(0),
        false => number::signed_32(words.get(1)),
    };
    Line::Whole(Request::Flush { delay: delay.map(i64::from), reply: Reply::Text { quiet } })
}

fn verbosity<'a>(words: &Tokens<'a>) -> Line<'a> {
    let quiet = is_quiet(words);
    match number::unsigned(words.get(1)) {
        Some(level) => {
            let level = level.min(MAX_VERBOSITY.into()) as u32;
            Line::Whole(Request::Verbosity { level, quiet })
        }
        None => told(BAD_FORMAT, quiet),
    }
}
