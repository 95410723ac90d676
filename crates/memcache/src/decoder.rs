//! Decodes requests from bytes, in whatever pieces they arrive.

use std::borrow::Cow;

use crate::action::Action;
use crate::binary::{self, Header, Plan};
use crate::limits::{MAX_GET_LINE, MAX_LINE};
use crate::line::{Line, answer};
use crate::packet::HEADER;
use crate::reply::Reply;
use crate::request::{Operation, Request};
use crate::tokens::Tokens;
use crate::{number, text};

/// What the bytes so far come to.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// Not a whole request yet: ask again when there are at least so many bytes, counted from the
    /// first of these.
    More(usize),
    /// So many bytes are of no use: drop them and ask again.
    Skip(usize),
    /// A request of so many bytes: drop them when it is done with.
    Request(usize, Request<'a>),
    /// What no server would take: end the connection.
    Close,
}

/// What TLS begins with. A browser that was given the address as HTTPS sends bytes of a web page's
/// choice in the handshake (session tickets, names). These could contain lines with commands. So
/// nothing behind that byte is read.
const TLS_HANDSHAKE: u8 = 0x16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Text,
    Binary,
}

/// Finds requests in the bytes of one connection. The first byte decides which protocol it speaks.
///
/// It keeps no bytes: the caller hands in all that have come and not been dropped yet. What comes
/// out does not depend on how the bytes were cut on their way.
#[derive(Debug)]
pub struct Decoder {
    protocol: Option<Protocol>,
    /// Bytes still to be dropped.
    skip: u64,
    /// Before this byte there is no line end.
    scanned: usize,
    max_item: usize,
    /// There are users, and the client must say which it is.
    sasl: bool,
    authenticated: bool,
}

impl Decoder {
    /// For a connection whose objects may count `max_item` bytes, and whose client must say who it
    /// is if `sasl`.
    #[must_use]
    pub fn new(max_item: usize, sasl: bool) -> Self {
        Decoder { protocol: None, skip: 0, scanned: 0, max_item, sasl, authenticated: !sasl }
    }

    /// The client is who it says it is.
    pub fn set_authenticated(&mut self) {
        self.authenticated = true;
    }

    /// The request that came last is not carried out yet: it will come again.
    pub fn undo(&mut self) {
        self.skip = 0;
    }

    /// Whether the connection speaks the binary protocol.
    #[must_use]
    pub fn is_binary(&self) -> bool {
        self.protocol == Some(Protocol::Binary)
    }

    /// The first request in `input`.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        if self.skip > 0 && !input.is_empty() {
            let dropped =
                usize::try_from(self.skip).map_or(input.len(), |skip| skip.min(input.len()));
            self.skip -= dropped as u64;
            return Decoded::Skip(dropped);
        }
        let Some(first) = input.first() else { return Decoded::More(1) };
        if self.protocol.is_none() && *first == TLS_HANDSHAKE {
            return Decoded::Close;
        }
        let of_first = if *first == binary::REQUEST { Protocol::Binary } else { Protocol::Text };
        match self.protocol.get_or_insert(of_first) {
            Protocol::Binary => self.packet(input),
            Protocol::Text => self.line(input),
        }
    }

    fn packet<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Some(header) = input.first_chunk::<HEADER>() else { return Decoded::More(HEADER) };
        let Some(header) = Header::read(header) else { return Decoded::Close };
        match header.plan(self.authenticated, self.sasl, self.max_item) {
            Plan::Whole(len) if input.len() < len => Decoded::More(len),
            Plan::Whole(len) => Decoded::Request(len, binary::parse(&header, &input[..len])),
            Plan::Refuse(request, skip) => {
                self.skip = skip;
                Decoded::Request(0, request)
            }
            Plan::RefuseTooLarge if input.len() < header.head_len() => {
                Decoded::More(header.head_len())
            }
            Plan::RefuseTooLarge => {
                self.skip = header.value_len() as u64;
                let head = &input[..header.head_len()];
                Decoded::Request(head.len(), header.refuse_too_large(head))
            }
        }
    }

    fn line<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        if !self.authenticated && input.len() < 2 {
            return Decoded::More(2);
        }
        let scanned = self.scanned.min(input.len());
        let found = memchr::memchr(b'\n', &input[scanned..]).map(|at| scanned + at);
        let may_be_long = self.authenticated && is_long_lawfully(input, found);
        if found.unwrap_or(input.len()) > MAX_LINE && !may_be_long {
            return Decoded::Close;
        }
        let Some(end) = found else {
            self.scanned = input.len();
            return Decoded::More(input.len() + 1);
        };
        self.scanned = end;
        let line = without_end(&input[..end]);
        if !self.authenticated {
            return self.authenticate(line, end + 1, input);
        }
        match text::parse(line, self.max_item) {
            Line::Whole(request) => self.whole(end + 1, request),
            Line::Close => Decoded::Close,
            Line::Refused(request, skip) => {
                self.skip = skip;
                self.whole(end + 1, request)
            }
            Line::Value(len, operation) => {
                let total = end + 1 + len + 2;
                match input.get(end + 1..total) {
                    None => Decoded::More(total),
                    Some(data) => self.whole(total, with_value(operation, data)),
                }
            }
        }
    }

    fn whole<'a>(&mut self, len: usize, request: Request<'a>) -> Decoded<'a> {
        self.scanned = 0;
        Decoded::Request(len, request)
    }

    /// A client that may not ask anything yet says who it is by a `set` of whatever key, with name
    /// and password as value.
    fn authenticate<'a>(&mut self, line: &'a [u8], start: usize, input: &'a [u8]) -> Decoded<'a> {
        let words = Tokens::of(line);
        let len =
            (words.len() >= 5 && words.get(0) == b"set").then(|| number::unsigned_32(words.get(4)));
        let Some(len) = len.flatten() else {
            if text::is_http(&words) {
                return Decoded::Close;
            }
            return self.whole(start, answer("CLIENT_ERROR unauthenticated\r\n"));
        };
        let len = len as usize;
        if len > MAX_LINE {
            return Decoded::Close;
        }
        let total = start + len + 2;
        let Some(data) = input.get(start..total) else { return Decoded::More(total) };
        let Some(data) = data.strip_suffix(b"\r\n") else {
            return self.whole(total, answer("CLIENT_ERROR bad command line termination\r\n"));
        };
        let words = Tokens::of(data);
        if words.len() < 2 {
            return self.whole(total, answer("CLIENT_ERROR bad authentication token format\r\n"));
        }
        let (user, password) = (words.get(0), words.get(1));
        self.whole(
            total,
            Request::Authenticate { user, password, reply: Reply::Text { quiet: false } },
        )
    }
}

/// A retrieval may name many keys.
fn is_long_lawfully(input: &[u8], end: Option<usize>) -> bool {
    let start = input.iter().take_while(|b| **b == b' ').count();
    let names_keys = [&b"get "[..], b"gets ", b"gat ", b"gats "]
        .iter()
        .any(|name| input[start..].starts_with(name));
    start <= 100 && names_keys && end.unwrap_or(input.len()) <= MAX_GET_LINE
}

/// A line without its carriage return (unless it is nothing else), up to the first zero byte.
fn without_end(line: &[u8]) -> &[u8] {
    let line = if line.len() > 1 { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
    memchr::memchr(0, line).map_or(line, |zero| &line[..zero])
}

fn with_value<'a>(mut operation: Operation<'a>, data: &'a [u8]) -> Request<'a> {
    let Some(value) = data.strip_suffix(b"\r\n") else {
        let quiet = matches!(operation.reply, Reply::Text { quiet: true });
        return answer(if quiet { "" } else { text::BAD_CHUNK });
    };
    if let Action::Store(store) = &mut operation.action {
        store.value = Cow::Borrowed(value);
    }
    Request::Operation(operation)
}
