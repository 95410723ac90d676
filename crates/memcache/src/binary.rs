//! Requests of the binary protocol: packets of a fixed header, extras, key and value.

use std::borrow::Cow;

use crate::action::{Action, Arithmetic, Delete, Get, Mode, Store};
use crate::limits::{ITEM_OVERHEAD, MAX_KEY};
use crate::packet::{self, Binary, HEADER, Status, error, op, plain};
use crate::reply::Reply;
use crate::request::{Operation, Request};

/// First byte of a request.
pub const REQUEST: u8 = 0x80;
/// An increment with this expiry does not make what is missing.
const NO_INITIAL: u32 = u32::MAX;

/// A packet's header, and what may be said before its value has come.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    opcode: u8,
    extras: usize,
    key: usize,
    body: usize,
    opaque: [u8; 4],
    cas: u64,
}

/// What a header calls for.
pub enum Plan<'a> {
    /// The whole packet is this long; wait for it, then [`parse`].
    Whole(usize),
    /// Answer at once, then drop so many bytes.
    Refuse(Request<'a>, u64),
    /// Extras and key are needed to refuse it.
    RefuseTooLarge,
}

impl Header {
    /// Reads a header, when it is one of a request.
    pub fn read(bytes: &[u8; HEADER]) -> Option<Self> {
        (bytes[0] == REQUEST).then(|| Header {
            opcode: bytes[1],
            key: u16::from_be_bytes([bytes[2], bytes[3]]).into(),
            extras: bytes[4].into(),
            body: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize,
            opaque: [bytes[12], bytes[13], bytes[14], bytes[15]],
            cas: u64::from_be_bytes(bytes[16..24].try_into().expect("eight bytes")),
        })
    }

    /// Bytes of header, extras and key.
    pub fn head_len(&self) -> usize {
        HEADER + self.extras + self.key
    }

    /// Whether its value is to be stored.
    pub fn stores(&self) -> bool {
        matches!(plain(self.opcode), op::SET | op::ADD | op::REPLACE | op::APPEND | op::PREPEND)
    }

    /// What its key and value count against the largest item size.
    pub fn counted(&self) -> usize {
        self.key + self.value_len() + ITEM_OVERHEAD
    }

    /// Bytes of value.
    pub fn value_len(&self) -> usize {
        self.body - self.extras - self.key
    }

    fn reply(&self) -> Binary {
        Binary { opcode: self.opcode, opaque: self.opaque }
    }

    fn refusal(&self, status: Status, close: bool) -> Request<'static> {
        let mut bytes = Vec::new();
        error(&self.reply(), status, &mut bytes);
        Request::Answer { bytes: Cow::Owned(bytes), close }
    }

    /// What to do about it. `authenticated` says whether the client may ask for anything, `sasl`
    /// whether there is anything to say who one is to.
    pub fn plan(&self, authenticated: bool, sasl: bool, max_item: usize) -> Plan<'static> {
        if self.extras + self.key > self.body {
            return Plan::Refuse(self.refusal(Status::Unknown, true), 0);
        }
        let whole = (HEADER + self.body) as u64;
        let open =
            matches!(self.opcode, op::SASL_LIST | op::SASL_AUTH | op::SASL_STEP | op::VERSION);
        if !authenticated && !open {
            return Plan::Refuse(self.refusal(Status::AuthError, true), 0);
        }
        if !self.is_known() || (!sasl && matches!(self.opcode, op::SASL_LIST..=op::SASL_STEP)) {
            return Plan::Refuse(self.refusal(Status::Unknown, false), whole);
        }
        if self.key > MAX_KEY || !self.is_lawful() {
            return Plan::Refuse(self.refusal(Status::Invalid, true), 0);
        }
        let too_large = self.counted() > max_item;
        match self.opcode {
            op::SASL_AUTH | op::SASL_STEP if self.value_len() > MAX_SASL => {
                Plan::Refuse(self.refusal(Status::Invalid, false), whole)
            }
            op::STAT if self.value_len() > MAX_KEY => {
                Plan::Refuse(self.refusal(Status::Invalid, false), whole)
            }
            _ if too_large => Plan::RefuseTooLarge,
            _ => Plan::Whole(HEADER + self.body),
        }
    }

    fn is_known(&self) -> bool {
        self.opcode <= op::LAST_QUIET
            || matches!(self.opcode, op::TOUCH..=op::GATQ | op::SASL_LIST..=op::GATKQ)
    }

    /// Whether extras and key are as the operation has them.
    fn is_lawful(&self) -> bool {
        let (extras, key, value) = (self.extras, self.key, self.value_len());
        match plain(self.opcode) {
            op::GET | op::GETK | op::DELETE => extras == 0 && key > 0 && value == 0,
            op::SET | op::ADD | op::REPLACE => extras == 8 && key > 0,
            op::INCREMENT | op::DECREMENT => extras == 20 && key > 0 && value == 0,
            op::APPEND | op::PREPEND => extras == 0 && key > 0,
            op::FLUSH => key == 0 && value == 0 && (extras == 0 || extras == 4),
            op::QUIT | op::NOOP | op::VERSION | op::SASL_LIST => self.body == 0,
            op::STAT => extras == 0,
            op::SASL_AUTH | op::SASL_STEP => extras == 0 && key > 0,
            // What touches: memcached takes a value behind it for the next request.
            _ => extras == 4 && key > 0 && value == 0,
        }
    }

    /// Refuses a value that is too large; `head` is the packet up to its value.
    pub fn refuse_too_large<'a>(&self, head: &'a [u8]) -> Request<'a> {
        let key = Cow::Borrowed(&head[HEADER + self.extras..]);
        let mode = match plain(self.opcode) {
            op::ADD => Mode::Add,
            op::REPLACE => Mode::Replace,
            op::APPEND => Mode::Append,
            op::PREPEND => Mode::Prepend,
            _ => Mode::Set,
        };
        let remove = plain(self.opcode) == op::SET;
        Request::TooLarge { key, mode, remove, reply: Reply::Binary(self.reply()) }
    }
}

/// Longest thing a client may say of itself.
const MAX_SASL: usize = 1024;

/// Understands a whole packet that [`Header::plan`] found lawful.
pub fn parse<'a>(header: &Header, packet: &'a [u8]) -> Request<'a> {
    let (head, value) = packet.split_at(header.head_len());
    let (extras, key) = head[HEADER..].split_at(header.extras);
    let binary = header.reply();
    let reply = Reply::Binary(binary);
    let operation = |action| {
        Request::Operation(Operation { key: Cow::Borrowed(key), action, reply: reply.clone() })
    };
    let store = |mode| operation(Action::Store(store(header, mode, extras, value)));
    match plain(header.opcode) {
        op::GET | op::GETK => operation(Action::Get(Get::default())),
        op::TOUCH | op::GAT | op::GATK => {
            let touch = Some(word(extras, 0).into());
            operation(Action::Get(Get { touch, ..Get::default() }))
        }
        op::SET => store(Mode::Set),
        op::ADD => store(Mode::Add),
        op::REPLACE => store(Mode::Replace),
        op::APPEND => store(Mode::Append),
        op::PREPEND => store(Mode::Prepend),
        op::DELETE => {
            let cas = (header.cas != 0).then_some(header.cas);
            operation(Action::Delete(Delete { cas, ..Delete::default() }))
        }
        opcode @ (op::INCREMENT | op::DECREMENT) => {
            operation(Action::Arithmetic(arithmetic(header, opcode == op::DECREMENT, extras)))
        }
        op::FLUSH => {
            let delay = if extras.is_empty() { 0 } else { word(extras, 0).into() };
            Request::Flush { delay: Some(delay), reply }
        }
        op::STAT => Request::Stats { argument: key, reply },
        op::VERSION => Request::Version(reply),
        op::NOOP | op::QUIT => {
            let mut bytes = Vec::new();
            reply.done(&mut bytes);
            Request::Answer { bytes: Cow::Owned(bytes), close: plain(header.opcode) == op::QUIT }
        }
        op::SASL_LIST => {
            let mut bytes = Vec::new();
            packet::packet(&binary, Status::Ok, 0, &[], &[], b"PLAIN", &mut bytes);
            Request::Answer { bytes: Cow::Owned(bytes), close: false }
        }
        _ => match crate::auth::plain(value)
            .filter(|_| key == b"PLAIN" && header.opcode == op::SASL_AUTH)
        {
            Some((user, password)) => Request::Authenticate { user, password, reply },
            None => header.refusal(Status::AuthError, false),
        },
    }
}

/// With a CAS to compare with, only what joins values stays what it is.
fn store<'a>(header: &Header, mode: Mode, extras: &[u8], value: &'a [u8]) -> Store<'a> {
    let joins = matches!(mode, Mode::Append | Mode::Prepend);
    let (flags, ttl) = if extras.is_empty() { (0, 0) } else { (word(extras, 0), word(extras, 4)) };
    Store {
        mode: if header.cas != 0 && !joins { Mode::Cas } else { mode },
        flags,
        ttl: ttl.into(),
        cas: header.cas,
        new_cas: None,
        stale: false,
        binary_key: false,
        value: Cow::Borrowed(value),
        in_parts: None,
    }
}

fn arithmetic(header: &Header, down: bool, extras: &[u8]) -> Arithmetic {
    let ttl = word(extras, 16);
    Arithmetic {
        down,
        delta: long(extras, 0),
        cas: header.cas,
        initial: (ttl != NO_INITIAL).then(|| (long(extras, 8), ttl.into())),
        ..Arithmetic::default()
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
