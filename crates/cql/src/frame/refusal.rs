//! What makes an envelope acceptable, and what is said about one that is not.

use std::borrow::Cow;

use super::header::{Direction, Flags, HEADER_LEN, Header, Opcode, Version};
use crate::error::ProtocolError;
use crate::negotiate;

/// Why bytes are no envelope, and what a server answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct FrameError {
    /// Code and text of the answer.
    pub error: ProtocolError,
    /// Stream of the answer: that of the request where it is known, else 0.
    pub stream: i16,
    /// Version of the answer, a number that may be none of [`Version`]: an old client is answered in its own.
    pub version: u8,
    /// The stream of bytes cannot be followed any further: answer, then close. Otherwise the envelope was
    /// skipped and decoding goes on.
    pub fatal: bool,
}

impl FrameError {
    /// The whole ERROR envelope to send. Versions below 3 get their shorter header.
    pub fn reply(&self) -> Vec<u8> {
        negotiate::error_envelope(self.version, self.stream, &self.error)
    }

    pub(super) fn fatal(self) -> Self {
        Self { fatal: true, ..self }
    }
}

/// What an envelope's first nine bytes say, before anything but the version is believed.
pub(super) struct Head {
    version: Version,
    direction: Direction,
    flags: Flags,
    stream: i16,
    opcode: u8,
    length: u32,
}

impl Head {
    /// Reads a header whose version is one spoken here.
    pub fn read(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let [first, flags, s1, s2, opcode, ..] = *bytes;
        let stream = i16::from_be_bytes([s1, s2]);
        let number = first & 0x7f;
        let Some(version) = Version::from_u8(number) else {
            return Err(FrameError { stream, ..negotiate::unsupported_version(number) });
        };
        let (direction, length) = (Direction::of(first), length_of(bytes));
        Ok(Self { version, direction, flags: Flags(flags), stream, opcode, length })
    }

    /// Length of the whole envelope.
    pub fn total(&self) -> usize {
        HEADER_LEN.saturating_add(self.length as usize)
    }

    fn refuse(&self, error: ProtocolError) -> FrameError {
        FrameError { error, stream: self.stream, version: self.version.as_u8(), fatal: false }
    }
}

/// The body length of a header of any version since v3.
pub(super) fn length_of(&[.., a, b, c, d]: &[u8; HEADER_LEN]) -> u32 {
    u32::from_be_bytes([a, b, c, d])
}

/// What envelopes a decoder takes.
#[derive(Debug)]
pub(super) struct Rules {
    /// Who sends them.
    pub direction: Direction,
    /// How long they may be, header included.
    pub max_envelope: usize,
    /// The version they must have, once it is agreed upon.
    pub version: Option<Version>,
}

impl Rules {
    /// The header of an acceptable envelope, else a non-fatal error. Looks in the order in which a server
    /// does.
    pub fn accept(&self, head: &Head) -> Result<Header, FrameError> {
        let opcode = self.check(head).map_err(|error| head.refuse(error))?;
        Ok(Header { version: head.version, flags: head.flags, stream: head.stream, opcode })
    }

    /// Whether it is its length alone that makes an envelope unacceptable.
    pub fn is_too_long(&self, head: &Head) -> bool {
        head.total() > self.max_envelope
    }

    fn check(&self, head: &Head) -> Result<Opcode, ProtocolError> {
        let opcode = Opcode::decode(head.opcode, head.direction)?;
        if opcode.direction() != self.direction {
            return Err(opcode.wrong_direction(self.direction));
        }
        if self.is_too_long(head) {
            let (total, max) = (head.total(), self.max_envelope);
            return Err(ProtocolError::invalid(format!(
                "Request is too big: length {total} exceeds maximum allowed length {max}."
            )));
        }
        if let Some(agreed) = self.version.filter(|&agreed| agreed != head.version) {
            let got = head.version;
            return Err(ProtocolError::new(format!(
                "Invalid message version. Got {got} but previous messages on this connection had version {agreed}"
            )));
        }
        // In v5 it is segments that are compressed, and the flag means nothing.
        if !head.version.has_segments() && head.flags.contains(Flags::COMPRESSED) {
            return Err(ProtocolError::new("Received a compressed frame, but no compression was negotiated"));
        }
        Ok(opcode)
    }

    /// An error of the connection rather than of an envelope.
    pub fn fatal(&self, message: impl Into<Cow<'static, str>>) -> FrameError {
        let version = self.version.unwrap_or(Version::MAX).as_u8();
        FrameError { error: ProtocolError::new(message), stream: 0, version, fatal: true }
    }
}

/// An envelope that is being skipped, and what to say once it is.
#[derive(Debug)]
pub(super) struct Skipping {
    /// How many of its bytes are still to come.
    pub left: usize,
    /// The error to report then.
    pub then: FrameError,
}

impl Skipping {
    /// Skips as many of `available` bytes as are left to skip.
    pub fn skip(&mut self, available: usize) -> usize {
        let skipped = self.left.min(available);
        self.left -= skipped;
        skipped
    }
}
