//! Packets of the binary protocol: their layout, and answers in them.

use crate::action::Mode;
use crate::decide::Outcome;
use crate::sink::Sink;

/// First byte of an answer.
const RESPONSE: u8 = 0x81;
/// Length of the header.
pub const HEADER: usize = 24;

/// Operations.
pub mod op {
    pub const GET: u8 = 0x00;
    pub const SET: u8 = 0x01;
    pub const ADD: u8 = 0x02;
    pub const REPLACE: u8 = 0x03;
    pub const DELETE: u8 = 0x04;
    pub const INCREMENT: u8 = 0x05;
    pub const DECREMENT: u8 = 0x06;
    pub const QUIT: u8 = 0x07;
    pub const FLUSH: u8 = 0x08;
    pub const GETQ: u8 = 0x09;
    pub const NOOP: u8 = 0x0a;
    pub const VERSION: u8 = 0x0b;
    pub const GETK: u8 = 0x0c;
    pub const GETKQ: u8 = 0x0d;
    pub const APPEND: u8 = 0x0e;
    pub const PREPEND: u8 = 0x0f;
    pub const STAT: u8 = 0x10;
    pub const FIRST_QUIET: u8 = 0x11;
    pub const LAST_QUIET: u8 = 0x1a;
    pub const TOUCH: u8 = 0x1c;
    pub const GAT: u8 = 0x1d;
    pub const GATQ: u8 = 0x1e;
    pub const SASL_LIST: u8 = 0x20;
    pub const SASL_AUTH: u8 = 0x21;
    pub const SASL_STEP: u8 = 0x22;
    pub const GATK: u8 = 0x23;
    pub const GATKQ: u8 = 0x24;
}

/// What an answer says of how it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Well.
    Ok = 0x00,
    /// No such object.
    NotFound = 0x01,
    /// There is one, or its cas token is another.
    Exists = 0x02,
    /// Too large.
    TooLarge = 0x03,
    /// The packet is not lawful.
    Invalid = 0x04,
    /// Not stored.
    NotStored = 0x05,
    /// What is there is no number.
    NotANumber = 0x06,
    /// Who are you?
    AuthError = 0x20,
    /// No such operation.
    Unknown = 0x81,
    /// Out of memory.
    NoMemory = 0x82,
}

impl Status {
    fn text(self) -> &'static [u8] {
        match self {
            Status::Ok => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::NotANumber => b"Non-numeric server-side value for incr or decr",
            Status::AuthError => b"Auth failure.",
            Status::Unknown => b"Unknown command",
            Status::NoMemory => b"Out of memory",
        }
    }
}

/// How a packet wants to be answered.
#[derive(Debug, Clone, Copy)]
pub struct Binary {
    /// The operation, as sent.
    pub opcode: u8,
    /// Comes back as it was.
    pub opaque: [u8; 4],
}

/// Whether success (or a miss) is not to be told.
pub fn is_quiet(opcode: u8) -> bool {
    matches!(opcode, op::GETQ | op::GETKQ | op::GATQ | op::GATKQ | op::FIRST_QUIET..=op::LAST_QUIET)
}

/// Whether the value of what is found is shown.
pub fn shows_value(opcode: u8) -> bool {
    matches!(plain(opcode), op::GET | op::GETK | op::GAT | op::GATK)
}

/// The operation without its quietness.
pub fn plain(opcode: u8) -> u8 {
    match opcode {
        0x11..=0x18 => opcode - 0x10,
        0x19 | 0x1a => opcode - 0x0b,
        op::GETQ => op::GET,
        op::GETKQ => op::GETK,
        op::GATQ => op::GAT,
        op::GATKQ => op::GATK,
        _ => opcode,
    }
}

/// Writes a packet.
pub fn packet(
    reply: &Binary,
    status: Status,
    cas: u64,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) {
    head(reply, status, cas, extras, key, value.len(), out);
    out.extend_from_slice(value);
}

/// Writes a packet up to its value of `len` bytes.
fn head(
    reply: &Binary,
    status: Status,
    cas: u64,
    extras: &[u8],
    key: &[u8],
    len: usize,
    out: &mut Vec<u8>,
) {
    let body = extras.len() + key.len() + len;
    out.reserve(HEADER + extras.len() + key.len());
    out.extend_from_slice(&[RESPONSE, reply.opcode]);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(&[extras.len() as u8, 0]);
    out.extend_from_slice(&(status as u16).to_be_bytes());
    out.extend_from_slice(&(body as u32).to_be_bytes());
    out.extend_from_slice(&reply.opaque);
    out.extend_from_slice(&cas.to_be_bytes());
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
}

/// Writes an error and its text.
pub fn error(reply: &Binary, status: Status, out: &mut Vec<u8>) {
    packet(reply, status, 0, &[], &[], status.text(), out);
}

/// Writes what came of an operation.
pub fn outcome(
    reply: &Binary,
    key: &[u8],
    outcome: &Outcome<'_>,
    mode: Option<Mode>,
    out: &mut impl Sink,
) {
    let quiet = is_quiet(reply.opcode);
    let opcode = plain(reply.opcode);
    let with_key = matches!(opcode, op::GETK | op::GATK);
    if let Outcome::Found { item, .. } = *outcome {
        let key = if with_key { key } else { &[] };
        let flags = item.flags.to_be_bytes();
        let len = if opcode == op::TOUCH { 0 } else { item.len() };
        head(reply, Status::Ok, item.cas, &flags, key, len, out.text());
        if opcode != op::TOUCH {
            out.value(item.value);
        }
        return;
    }
    let out = out.text();
    match *outcome {
        Outcome::Found { .. } => unreachable!("written above"),
        Outcome::Missing => match opcode {
            op::GET | op::GETK | op::GAT | op::GATK if quiet => {}
            _ if with_key => packet(reply, Status::NotFound, 0, &[], key, &[], out),
            _ => error(reply, Status::NotFound, out),
        },
        Outcome::Stored { .. } | Outcome::Deleted | Outcome::Number { .. } if quiet => {}
        Outcome::Stored { cas, .. } => packet(reply, Status::Ok, cas, &[], &[], &[], out),
        Outcome::Deleted => packet(reply, Status::Ok, 0, &[], &[], &[], out),
        Outcome::Number { value, cas, .. } => {
            packet(reply, Status::Ok, cas, &[], &[], &value.to_be_bytes(), out);
        }
        Outcome::NotStored => error(
            reply,
            match mode {
                Some(Mode::Add) => Status::Exists,
                Some(Mode::Replace) => Status::NotFound,
                _ => Status::NotStored,
            },
            out,
        ),
        Outcome::Exists => error(reply, Status::Exists, out),
        Outcome::NotANumber => error(reply, Status::NotANumber, out),
        Outcome::TooLarge => error(reply, Status::TooLarge, out),
        Outcome::Failed => error(reply, Status::NoMemory, out),
    }
}
