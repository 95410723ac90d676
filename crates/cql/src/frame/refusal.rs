//! Which envelopes are accepted, and the error for one that is not.

use std::borrow::Cow;

use super::compression::Compression;
use super::error::FrameError;
use super::header::{Direction, Flags, HEADER_LEN, Header, Opcode, Version};
use super::segment::Format;
use super::versions;
use crate::error::ProtocolError;

/// What an envelope's first nine bytes say, before anything is believed.
pub(super) struct Head {
    /// The version byte: a number and the direction.
    first: u8,
    flags: Flags,
    stream: i16,
    opcode: u8,
    length: u32,
}

impl Head {
    /// Reads a header as it has been since v3.
    pub fn read(&[first, flags, s1, s2, opcode, l1, l2, l3, l4]: &[u8; HEADER_LEN]) -> Self {
        let stream = i16::from_be_bytes([s1, s2]);
        let length = u32::from_be_bytes([l1, l2, l3, l4]);
        Self { first, flags: Flags(flags), stream, opcode, length }
    }

    /// The answer to a version that is not spoken, on stream 0 as before any agreement.
    pub fn refused_version(&self, highest: Version) -> Option<FrameError> {
        let number = self.first & 0x7f;
        let spoken = Version::from_u8(number).is_some();
        (!spoken).then(|| versions::refused_version(number, self.flags, highest))
    }

    /// Length of the whole envelope.
    pub fn total(&self) -> usize {
        HEADER_LEN.saturating_add(self.length as usize)
    }
}

/// Whether a version byte tells of one that is spoken here; of the next one nothing can be said
/// before the flags are seen.
pub(super) fn check_version(first: u8, highest: Version) -> Result<(), FrameError> {
    let number = first & 0x7f;
    if Version::from_u8(number).is_some() || versions::is_beta(number, highest) {
        return Ok(());
    }
    Err(versions::unsupported_version(number, highest))
}

/// What envelopes a decoder takes.
#[derive(Debug)]
pub(super) struct Rules {
    /// Who sends them.
    pub direction: Direction,
    /// How long they may be, header included.
    pub max_envelope: usize,
    /// How much memory they may take without being admitted.
    pub unasked: usize,
    /// How much the next one may take: it was admitted.
    pub admitted: usize,
    /// The highest version that is spoken.
    pub highest: Version,
    /// The version they must have, once it is agreed upon.
    pub version: Option<Version>,
    /// Whether they travel in segments.
    pub segments: bool,
    /// How they, or their segments, are compressed.
    pub compression: Option<Compression>,
}

impl Rules {
    /// The header of an acceptable envelope, else a non-fatal error. Looks in the order in which a
    /// server does.
    pub fn accept(&self, head: &Head) -> Result<Header, FrameError> {
        let Some(version) = Version::from_u8(head.first & 0x7f) else {
            let refused = versions::refused_version(head.first & 0x7f, head.flags, self.highest);
            return Err(FrameError { stream: head.stream, ..refused });
        };
        let opcode = self.check(version, head).map_err(|error| self.refuse(head, error))?;
        Ok(Header { version, flags: head.flags, stream: head.stream, opcode })
    }

    /// How segments are written.
    pub fn segment_format(&self) -> Format {
        if self.compression == Some(Compression::Lz4) { Format::Lz4 } else { Format::Plain }
    }

    /// Whether an envelope that takes so much memory waits to be admitted.
    pub fn holds(&self, takes: usize) -> bool {
        takes > self.unasked.max(self.admitted)
    }

    /// Whether an envelope is longer than allowed.
    pub fn is_too_long(&self, head: &Head) -> bool {
        head.total() > self.max_envelope
    }

    /// In segments, a body length that is negative as an \[int\] ends the connection.
    pub fn check_sign(&self, head: &Head) -> Result<(), FrameError> {
        let signed = head.length as i32;
        if signed >= 0 {
            return Ok(());
        }
        let text = format!("Invalid value for envelope header body length field: {signed}");
        Err(self.refuse(head, ProtocolError::new(text)).fatal())
    }

    /// The error for an envelope that is skipped. A connection without a version answers in the
    /// highest.
    pub fn refuse(&self, head: &Head, error: ProtocolError) -> FrameError {
        let version = self.version.unwrap_or(Version::MAX).as_u8();
        FrameError { error, stream: head.stream, version, flags: Flags::NONE, fatal: false }
    }

    fn check(&self, version: Version, head: &Head) -> Result<Opcode, ProtocolError> {
        let direction = Direction::of(head.first);
        let opcode = Opcode::decode(head.opcode, direction)?;
        if direction != self.direction {
            return Err(opcode.wrong_direction(self.direction));
        }
        if self.is_too_long(head) {
            return Err(self.too_long(head));
        }
        if let Some(agreed) = self.version.filter(|&agreed| agreed != version) {
            return Err(ProtocolError::new(format!(
                "Invalid message version. Got {version} but previous messages on this connection had version {agreed}"
            )));
        }
        // Servers ignore the flag in requests as long as no compression was negotiated. In v5 it
        // means nothing.
        let compressed = head.flags.contains(Flags::COMPRESSED) && !version.has_segments();
        if compressed && direction == Direction::Response && self.compression.is_none() {
            return Err(ProtocolError::new(
                "Received a compressed response, but no compression was negotiated",
            ));
        }
        Ok(opcode)
    }

    fn too_long(&self, head: &Head) -> ProtocolError {
        let max = self.max_envelope;
        ProtocolError::invalid(if self.segments {
            format!(
                "CQL Message of size {} bytes exceeds allowed maximum of {max} bytes",
                head.length
            )
        } else {
            format!(
                "Request is too big: length {} exceeds maximum allowed length {max}.",
                head.total()
            )
        })
    }

    /// An error of the connection rather than of an envelope.
    pub fn fatal(&self, message: impl Into<Cow<'static, str>>) -> FrameError {
        let version = self.version.unwrap_or(Version::MAX).as_u8();
        FrameError {
            error: ProtocolError::new(message),
            stream: 0,
            version,
            flags: Flags::NONE,
            fatal: true,
        }
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
