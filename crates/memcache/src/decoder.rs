//! Decodes requests from bytes, in whatever pieces they arrive.

use std::borrow::Cow;

use crate::action::Action;
use crate::binary::{self, Header, Plan};
use crate::limits::{ITEM_OVERHEAD, MAX_GET_LINE, MAX_LINE};
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
    /// A store whose value comes in parts: of so many bytes up to that value, and of a value of so
    /// many. Drop the former when it is begun; its parts come next.
    Begin(usize, Operation<'a>, usize),
    /// A part of that value: drop it when it is done with.
    Part(&'a [u8]),
    /// The end of that value, of so many bytes, and whether the line ends there that should. Drop
    /// them when it is done with.
    End(usize, bool),
    /// What no server would take: end the connection.
    Close,
}

/// A value that comes in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Body {
    /// Bytes that are still to come.
    left: usize,
    /// The end of a line that comes behind it.
    tail: &'static [u8],
}

/// How values come in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parting {
    /// Objects that count more bytes, key and [`ITEM_OVERHEAD`] included, come in parts.
    pub above: usize,
    /// Bytes of each part but the last.
    pub part: usize,
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
    /// Where the line ended that came last; 0 if something else came.
    line_end: usize,
    /// It comes again.
    again: bool,
    max_item: usize,
    parting: Option<Parting>,
    /// The value that comes in parts now, and what it was before the last answer.
    body: Option<Body>,
    before: Option<Body>,
    /// There are users, and the client must say which it is.
    sasl: bool,
    authenticated: bool,
}

impl Decoder {
    /// For a connection whose objects may count `max_item` bytes, and whose client must say who it
    /// is if `sasl`.
    #[must_use]
    pub fn new(max_item: usize, sasl: bool) -> Self {
        Decoder {
            protocol: None,
            skip: 0,
            scanned: 0,
            line_end: 0,
            again: false,
            max_item,
            parting: None,
            body: None,
            before: None,
            sasl,
            authenticated: !sasl,
        }
    }

    /// Has values of large objects come in parts. Otherwise each comes whole with its request.
    ///
    /// # Panics
    /// When a part has no bytes.
    #[must_use]
    pub fn parting(self, parting: Parting) -> Self {
        assert!(parting.part > 0);
        Decoder { parting: Some(parting), ..self }
    }

    /// The client is who it says it is.
    pub fn set_authenticated(&mut self) {
        self.authenticated = true;
    }

    /// The request, or the part of a value, that came last is not carried out yet: it will come
    /// again.
    pub fn undo(&mut self) {
        self.skip = 0;
        self.body = self.before;
        // The whole of a long line is not looked at again.
        (self.scanned, self.again) = (self.line_end, self.line_end > 0);
    }

    /// Whether a value comes in parts now.
    #[must_use]
    pub fn is_parting(&self) -> bool {
        self.body.is_some()
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
        self.before = self.body;
        self.line_end = 0;
        if let Some(body) = self.body {
            return self.part(body, input);
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

    /// The next part of a value, or its end.
    fn part<'a>(&mut self, body: Body, input: &'a [u8]) -> Decoded<'a> {
        if body.left == 0 {
            let tail = body.tail.len();
            let Some(found) = input.get(..tail) else { return Decoded::More(tail) };
            self.body = None;
            return Decoded::End(tail, found == body.tail);
        }
        let parting = self.parting.expect("nothing else begins a value in parts");
        let len = parting.part.min(body.left);
        let Some(part) = input.get(..len) else { return Decoded::More(len) };
        self.body = Some(Body { left: body.left - len, ..body });
        Decoded::Part(part)
    }

    /// Whether the value of an object that counts so much comes in parts.
    fn parts(&self, counted: usize) -> bool {
        self.parting.is_some_and(|parting| counted > parting.above)
    }

    fn packet<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Some(header) = input.first_chunk::<HEADER>() else { return Decoded::More(HEADER) };
        let Some(header) = Header::read(header) else { return Decoded::Close };
        match header.plan(self.authenticated, self.sasl, self.max_item) {
            Plan::Whole(_) if header.stores() && self.parts(header.counted()) => {
                let Some(head) = input.get(..header.head_len()) else {
                    return Decoded::More(header.head_len());
                };
                let Request::Operation(operation) = binary::parse(&header, head) else {
                    unreachable!("a store is an operation")
                };
                self.body = Some(Body { left: header.value_len(), tail: b"" });
                Decoded::Begin(head.len(), operation, header.value_len())
            }
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
        let again = std::mem::take(&mut self.again);
        let line = without_end(&input[..end]);
        if !self.authenticated {
            return self.authenticate(line, end + 1, input);
        }
        let line = text::parse(line, self.max_item, again);
        // Only the keys of a `get` that may be carried out need not be looked at again.
        let is_get = matches!(line, Line::Whole(Request::Retrieve { .. }));
        self.line_end = if is_get { end } else { 0 };
        match line {
            Line::Whole(request) => self.whole(end + 1, request),
            Line::Close => Decoded::Close,
            Line::Refused(request, skip) => {
                self.skip = skip;
                self.whole(end + 1, request)
            }
            Line::Value(len, operation)
                if self.parts(operation.key.len() + len + ITEM_OVERHEAD) =>
            {
                self.scanned = 0;
                self.body = Some(Body { left: len, tail: b"\r\n" });
                Decoded::Begin(end + 1, operation, len)
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
            (words.len() >= 5 && words.get(0) == b"set").then(|| number::unsigned(words.get(4)));
        let Some(len) = len.flatten() else {
            if text::is_http(&words) {
                return Decoded::Close;
            }
            return self.whole(start, answer("CLIENT_ERROR unauthenticated\r\n"));
        };
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= MAX_LINE) else {
            return Decoded::Close;
        };
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

/// What is said of a value behind which no line ends.
#[must_use]
pub fn bad_chunk(reply: &Reply<'_>) -> &'static str {
    if matches!(reply, Reply::Text { quiet: true }) { "" } else { text::BAD_CHUNK }
}

fn with_value<'a>(mut operation: Operation<'a>, data: &'a [u8]) -> Request<'a> {
    let Some(value) = data.strip_suffix(b"\r\n") else {
        return answer(bad_chunk(&operation.reply));
    };
    if let Action::Store(store) = &mut operation.action {
        store.value = Cow::Borrowed(value);
    }
    Request::Operation(operation)
}
