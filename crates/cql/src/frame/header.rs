//! The envelope: a header of nine bytes, unchanged since v3, and a body.

use bytes::Bytes;

use crate::error::ProtocolError;

/// Length of [`Header`] on the wire.
pub const HEADER_LEN: usize = 9;

/// A protocol version this crate speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 3/v3
    V3,
    /// 4/v4
    V4,
    /// 5/v5
    V5,
}

impl Version {
    /// Every version spoken, ascending.
    pub const ALL: &[Version] = &[Version::V3, Version::V4, Version::V5];

    /// The highest version spoken.
    pub const MAX: Version = Version::V5;

    /// The version for a number (without direction bit), if it is spoken here.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|v| v.as_u8() == number)
    }

    /// The number on the wire, without direction bit.
    pub fn as_u8(self) -> u8 {
        match self {
            Version::V3 => 3,
            Version::V4 => 4,
            Version::V5 => 5,
        }
    }

    /// The name in SUPPORTED and in error texts.
    pub fn name(self) -> &'static str {
        match self {
            Version::V3 => "3/v3",
            Version::V4 => "4/v4",
            Version::V5 => "5/v5",
        }
    }

    /// Whether connections of this version put envelopes into segments once STARTUP was answered.
    pub fn has_segments(self) -> bool {
        self >= Version::V5
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Who sends an envelope: the high bit of its version byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From client to server.
    Request,
    /// From server to client.
    Response,
}

impl Direction {
    /// The direction bit of a version byte.
    pub fn of(version_byte: u8) -> Self {
        if version_byte & 0x80 == 0 { Direction::Request } else { Direction::Response }
    }

    /// The bit to add to a version number.
    pub fn bit(self) -> u8 {
        match self {
            Direction::Request => 0,
            Direction::Response => 0x80,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Direction::Request => "REQUEST",
            Direction::Response => "RESPONSE",
        }
    }
}

/// Flags of an envelope. Unknown bits are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// The body is compressed, if that was negotiated (v3, v4; without meaning in v5).
    pub const COMPRESSED: Flags = Flags(0x01);
    /// Request: trace it. Response: a tracing id precedes the message.
    pub const TRACING: Flags = Flags(0x02);
    /// A custom payload precedes the message.
    pub const CUSTOM_PAYLOAD: Flags = Flags(0x04);
    /// Response: warnings precede the message.
    pub const WARNING: Flags = Flags(0x08);
    /// The sender agrees to speak a version that is still in beta.
    pub const USE_BETA: Flags = Flags(0x10);

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of flags.
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// These flags but for `other`.
    pub fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

macro_rules! opcodes {
    ($($name:ident = $code:literal, $text:literal, $direction:ident;)*) => {
        /// What an envelope's body is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Opcode {
            $(#[doc = $text] $name = $code,)*
        }

        impl Opcode {
            /// Every opcode, ascending.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The opcode for a number.
            pub fn from_u8(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// The name used by the specification and in error texts.
            pub fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => $text,)*
                }
            }

            /// Who sends it.
            pub fn direction(self) -> Direction {
                match self {
                    $(Opcode::$name => Direction::$direction,)*
                }
            }
        }
    };
}

opcodes! {
    Error = 0x00, "ERROR", Response;
    Startup = 0x01, "STARTUP", Request;
    Ready = 0x02, "READY", Response;
    Authenticate = 0x03, "AUTHENTICATE", Response;
    Options = 0x05, "OPTIONS", Request;
    Supported = 0x06, "SUPPORTED", Response;
    Query = 0x07, "QUERY", Request;
    Result = 0x08, "RESULT", Response;
    Prepare = 0x09, "PREPARE", Request;
    Execute = 0x0A, "EXECUTE", Request;
    Register = 0x0B, "REGISTER", Request;
    Event = 0x0C, "EVENT", Response;
    Batch = 0x0D, "BATCH", Request;
    AuthChallenge = 0x0E, "AUTH_CHALLENGE", Response;
    AuthResponse = 0x0F, "AUTH_RESPONSE", Request;
    AuthSuccess = 0x10, "AUTH_SUCCESS", Response;
}

impl std::fmt::Display for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Opcode {
    /// The opcode for a number of a sender in `direction`; the error has Cassandra's text.
    pub fn decode(code: u8, direction: Direction) -> Result<Self, ProtocolError> {
        // The number is printed signed, as the server does.
        let signed = code as i8;
        let opcode = Self::from_u8(code)
            .ok_or_else(|| ProtocolError::new(format!("Unknown opcode {signed}")))?;
        if opcode.direction() == direction {
            Ok(opcode)
        } else {
            Err(opcode.wrong_direction(direction))
        }
    }

    /// The error for this opcode where a message of `direction` was due.
    pub(super) fn wrong_direction(self, direction: Direction) -> ProtocolError {
        ProtocolError::new(format!(
            "Wrong protocol direction (expected {}, got {}) for opcode {} ({self})",
            self.direction().name(),
            direction.name(),
            self as u8,
        ))
    }
}

/// Header of an envelope but for the body's length, which is the body's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// The protocol version of the connection.
    pub version: Version,
    /// Flags.
    pub flags: Flags,
    /// Pairs a response with its request; negative for events (-1).
    pub stream: i16,
    /// What the body is; also tells the direction.
    pub opcode: Opcode,
}

impl Header {
    /// A header without flags.
    pub fn new(version: Version, stream: i16, opcode: Opcode) -> Self {
        Self { version, flags: Flags::NONE, stream, opcode }
    }

    /// The same header for another stream.
    pub fn with_stream(self, stream: i16) -> Self {
        Self { stream, ..self }
    }

    /// The header as it travels in front of a body of `body_len` bytes.
    ///
    /// # Panics
    /// When the body is longer than an \[int\] can tell.
    pub fn encode(&self, body_len: usize) -> [u8; HEADER_LEN] {
        let length = i32::try_from(body_len).expect("an envelope's body fits an [int]");
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.version.as_u8() | self.opcode.direction().bit();
        bytes[1] = self.flags.0;
        bytes[2..4].copy_from_slice(&self.stream.to_be_bytes());
        bytes[4] = self.opcode as u8;
        bytes[5..9].copy_from_slice(&length.to_be_bytes());
        bytes
    }
}

/// A whole envelope. The body shares the decoder's buffer: keep a copy, not the slice, of what must
/// live long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The header.
    pub header: Header,
    /// The body.
    pub body: Bytes,
}

impl Envelope {
    /// How many bytes it takes on the wire, segments aside.
    pub fn wire_len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }
}
