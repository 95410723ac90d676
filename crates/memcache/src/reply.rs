//! Answers, written the way the request's protocol wants them.

use std::borrow::Cow;

use crate::action::Mode;
use crate::decide::{Item, Outcome};
use crate::limits::CLASS;
use crate::packet::{self, Binary, Status};
use crate::sink::Sink;
use crate::ttl::NEVER;
use crate::{base64, number, tokens};

/// An expiry that is no number.
pub const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";

/// How a client wants to be answered.
#[derive(Debug, Clone)]
pub enum Reply<'a> {
    /// A line, or nothing when the client said `noreply`.
    Text {
        /// The client said `noreply`.
        quiet: bool,
    },
    /// `VALUE` and the object.
    Value {
        /// With the cas token.
        cas: bool,
    },
    /// A meta command's.
    Meta(Meta<'a>),
    /// A packet.
    Binary(Binary),
}

/// How a meta command wants to be answered.
#[derive(Debug, Clone)]
pub struct Meta<'a> {
    /// What it was.
    pub verb: Verb,
    /// Its flags as the client wrote them, separated by spaces.
    pub flags: Cow<'a, [u8]>,
    /// The answer nobody needs is left out.
    pub quiet: bool,
    /// With the value.
    pub value: bool,
    /// The key came in base 64.
    pub binary_key: bool,
}

/// The meta commands that have flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// One line of statistics.
pub type Stat<'a> = (&'a str, &'a str);

impl Reply<'_> {
    /// Ends the answers to a retrieval.
    pub const END: &'static [u8] = b"END\r\n";

    /// The same, owning all it says.
    #[must_use]
    pub fn into_owned(self) -> Reply<'static> {
        match self {
            Reply::Text { quiet } => Reply::Text { quiet },
            Reply::Value { cas } => Reply::Value { cas },
            Reply::Meta(meta) => {
                Reply::Meta(Meta { flags: Cow::Owned(meta.flags.into_owned()), ..meta })
            }
            Reply::Binary(binary) => Reply::Binary(binary),
        }
    }

    /// Whether a value that is found is shown.
    #[must_use]
    pub fn shows_value(&self) -> bool {
        match self {
            Reply::Text { .. } => false,
            Reply::Value { .. } => true,
            Reply::Meta(meta) => meta.value && meta.verb == Verb::Get,
            Reply::Binary(binary) => packet::shows_value(binary.opcode),
        }
    }

    /// Writes what came of an operation on `key` at second `now`; `mode` is that of a store.
    pub fn outcome(
        &self,
        key: &[u8],
        outcome: &Outcome<'_>,
        mode: Option<Mode>,
        now: u64,
        out: &mut impl Sink,
    ) {
        match self {
            Reply::Text { quiet: true } => {}
            Reply::Text { quiet: false } => line(outcome, out.text()),
            Reply::Value { cas } => {
                if let Outcome::Found { item, .. } = outcome {
                    value(key, item, *cas, out);
                }
            }
            Reply::Meta(meta) => meta.outcome(key, outcome, now, out),
            Reply::Binary(binary) => packet::outcome(binary, key, outcome, mode, out),
        }
    }

    /// Writes that all went well.
    pub fn done(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(binary) if packet::is_quiet(binary.opcode) => {}
            Reply::Binary(binary) => packet::packet(binary, Status::Ok, 0, &[], &[], &[], out),
            Reply::Text { quiet: true } => {}
            _ => out.extend_from_slice(b"OK\r\n"),
        }
    }

    /// Writes that `flush_all` is switched off.
    pub fn no_flush(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(binary) => packet::error(binary, Status::AuthError, out),
            Reply::Text { quiet: true } => {}
            _ => out.extend_from_slice(b"CLIENT_ERROR flush_all not allowed\r\n"),
        }
    }

    /// Writes that an expiry is no number.
    pub fn bad_expiry(&self, out: &mut Vec<u8>) {
        if !matches!(self, Reply::Text { quiet: true }) {
            out.extend_from_slice(BAD_EXPTIME.as_bytes());
        }
    }

    /// Writes the version.
    pub fn version(&self, version: &str, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(binary) => {
                packet::packet(binary, Status::Ok, 0, &[], &[], version.as_bytes(), out);
            }
            _ => {
                out.extend_from_slice(b"VERSION ");
                out.extend_from_slice(version.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Writes one line of statistics.
    pub fn stat(&self, (name, value): Stat<'_>, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(binary) => {
                let (name, value) = (name.as_bytes(), value.as_bytes());
                packet::packet(binary, Status::Ok, 0, &[], name, value, out);
            }
            _ => {
                for part in ["STAT ", name, " ", value, "\r\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
    }

    /// Ends statistics.
    pub fn stats_end(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(binary) => packet::packet(binary, Status::Ok, 0, &[], &[], &[], out),
            _ => out.extend_from_slice(Self::END),
        }
    }

    /// Says that there are no such statistics.
    pub fn no_such_stats(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(binary) => packet::error(binary, Status::NotFound, out),
            _ => out.extend_from_slice(b"ERROR\r\n"),
        }
    }

    /// A line in the place of statistics (`RESET`, `OK`, an error); for packets, the empty end.
    pub fn instead_of_stats(&self, line: &str, out: &mut Vec<u8>) {
        match self {
            Reply::Binary(_) => self.stats_end(out),
            _ => {
                out.extend_from_slice(line.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Answers a client that said who it is.
    pub fn authenticated(&self, accepted: bool, out: &mut Vec<u8>) {
        match (self, accepted) {
            (Reply::Binary(binary), true) => {
                packet::packet(binary, Status::Ok, 0, &[], &[], b"Authenticated", out);
            }
            (Reply::Binary(binary), false) => packet::error(binary, Status::AuthError, out),
            (_, true) => out.extend_from_slice(b"STORED\r\n"),
            (_, false) => out.extend_from_slice(b"CLIENT_ERROR authentication failure\r\n"),
        }
    }
}

fn line(outcome: &Outcome<'_>, out: &mut Vec<u8>) {
    let text: &[u8] = match outcome {
        Outcome::Found { .. } => b"TOUCHED\r\n",
        Outcome::Missing => b"NOT_FOUND\r\n",
        Outcome::Stored { .. } => b"STORED\r\n",
        Outcome::NotStored => b"NOT_STORED\r\n",
        Outcome::Exists => b"EXISTS\r\n",
        Outcome::Deleted => b"DELETED\r\n",
        Outcome::NotANumber => NOT_A_NUMBER,
        Outcome::TooLarge => TOO_LARGE,
        Outcome::Failed => FAILED,
        Outcome::Number { value, .. } => {
            number::push(out, *value);
            b"\r\n"
        }
    };
    out.extend_from_slice(text);
}

const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const FAILED: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

fn value(key: &[u8], item: &Item<'_>, cas: bool, out: &mut impl Sink) {
    let text = out.text();
    text.reserve(key.len() + 64);
    text.extend_from_slice(b"VALUE ");
    text.extend_from_slice(key);
    text.push(b' ');
    number::push(text, item.flags.into());
    text.push(b' ');
    number::push(text, item.len() as u64);
    if cas {
        text.push(b' ');
        number::push(text, item.cas);
    }
    text.extend_from_slice(b"\r\n");
    out.value(item.value);
    out.text().extend_from_slice(b"\r\n");
}

impl Meta<'_> {
    fn outcome(&self, key: &[u8], outcome: &Outcome<'_>, now: u64, out: &mut impl Sink) {
        if let Outcome::Found { item, expiry, won } = *outcome
            && self.verb != Verb::Debug
        {
            return self.found(key, &item, (expiry, won), now, out);
        }
        let out = out.text();
        match *outcome {
            Outcome::Found { item, .. } => debug(key, &item, now, out),
            // Quiet is only who counts what is there, as in memcached.
            Outcome::Number { made: false, .. } if self.quiet => {}
            Outcome::Number { value, cas, made, before, expiry } => {
                self.number(key, (value, cas, made), (before, expiry), now, out);
            }
            Outcome::Stored { .. } | Outcome::Deleted if self.quiet => {}
            Outcome::Missing if self.quiet && self.verb == Verb::Get => {}
            Outcome::Missing if self.verb == Verb::Debug => out.extend_from_slice(b"EN\r\n"),
            Outcome::Missing if self.verb == Verb::Get => self.line(b"EN", key, None, out),
            Outcome::Missing => self.line(b"NF", key, None, out),
            Outcome::Stored { cas, size } => self.line(b"HD", key, Some((cas, size)), out),
            Outcome::Deleted => self.line(b"HD", key, None, out),
            Outcome::NotStored => self.line(b"NS", key, None, out),
            Outcome::Exists => self.line(b"EX", key, None, out),
            Outcome::NotANumber => out.extend_from_slice(NOT_A_NUMBER),
            Outcome::TooLarge => out.extend_from_slice(TOO_LARGE),
            Outcome::Failed => out.extend_from_slice(FAILED),
        }
    }

    /// A status, and what a client asked to have back with every answer.
    fn line(&self, status: &[u8], key: &[u8], stored: Option<(u64, usize)>, out: &mut Vec<u8>) {
        out.extend_from_slice(status);
        for flag in tokens::words(&self.flags) {
            match (flag[0], stored) {
                (b'c', Some((cas, _))) => field(b'c', cas, out),
                (b'c', None) if self.verb == Verb::Set => field(b'c', 0, out),
                (b's', Some((_, size))) => field(b's', size as u64, out),
                _ => self.echo(flag, key, self.binary_key, out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    fn echo(&self, flag: &[u8], key: &[u8], binary_key: bool, out: &mut Vec<u8>) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => {
                out.extend_from_slice(b" k");
                name(key, binary_key, out);
                if binary_key {
                    out.extend_from_slice(b" b");
                }
            }
            _ => {}
        }
    }

    fn found(
        &self,
        key: &[u8],
        item: &Item<'_>,
        (new, won): (u32, bool),
        now: u64,
        sink: &mut impl Sink,
    ) {
        let out = sink.text();
        if self.value {
            out.extend_from_slice(b"VA ");
            number::push(out, item.len() as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        let mut expiry = item.expiry;
        for flag in tokens::words(&self.flags) {
            match flag[0] {
                b'T' | b'N' => expiry = new,
                b's' => field(b's', item.len() as u64, out),
                b't' => remaining(expiry, now, out),
                b'c' => field(b'c', item.cas, out),
                b'f' => field(b'f', item.flags.into(), out),
                b'l' => field(b'l', item.idle.into(), out),
                b'h' => field(b'h', item.fetched.into(), out),
                _ => self.echo(flag, key, item.binary_key, out),
            }
        }
        for (letter, shown) in [(b'Z', item.token_sent), (b'X', item.stale), (b'W', won)] {
            if shown {
                out.extend_from_slice(&[b' ', letter]);
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.value {
            sink.value(item.value);
            sink.text().extend_from_slice(b"\r\n");
        }
    }

    fn number(
        &self,
        key: &[u8],
        (value, cas, made): (u64, u64, bool),
        (before, after): (u32, u32),
        now: u64,
        out: &mut Vec<u8>,
    ) {
        let mut digits = [0; 20];
        let digits = number::digits_of(value, &mut digits);
        if self.value {
            out.extend_from_slice(b"VA ");
            number::push(out, digits.len() as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        // What memcached makes has no expiry before it comes by the flags that give it one.
        let mut expiry = if made { NEVER } else { before };
        for flag in tokens::words(&self.flags) {
            match flag[0] {
                b'T' => expiry = after,
                b'N' if made => expiry = before,
                b'c' => field(b'c', cas, out),
                b't' => remaining(expiry, now, out),
                _ => self.echo(flag, key, self.binary_key, out),
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.value {
            out.extend_from_slice(digits);
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn field(letter: u8, value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    number::push(out, value);
}

fn remaining(expiry: u32, now: u64, out: &mut Vec<u8>) {
    match expiry {
        NEVER => out.extend_from_slice(b" t-1"),
        expiry => field(b't', u64::from(expiry).saturating_sub(now), out),
    }
}

fn name(key: &[u8], binary: bool, out: &mut Vec<u8>) {
    match binary {
        true => base64::encode(key, out),
        false => out.extend_from_slice(key),
    }
}

fn debug(key: &[u8], item: &Item<'_>, now: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ME ");
    name(key, item.binary_key, out);
    let exp = match item.expiry {
        NEVER => -1,
        // As memcached has it: how long ago it expired, which is negative while it lives.
        expiry => now as i64 - i64::from(expiry),
    };
    let fetch = if item.fetched { "yes" } else { "no" };
    let (idle, cas, size) = (item.idle, item.cas, item.counted_size(key));
    let text = format!(" exp={exp} la={idle} cas={cas} fetch={fetch} cls={CLASS} size={size}\r\n");
    out.extend_from_slice(text.as_bytes());
}
