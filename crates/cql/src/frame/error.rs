//! Why bytes are not an envelope.

use super::header::{Direction, Flags, Opcode};
use super::notation::Put;
use crate::error::ProtocolError;
use crate::response::ErrorBody;

/// Why bytes are no envelope, and what a server answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct FrameError {
    /// Code and text of the answer.
    pub error: ProtocolError,
    /// Stream of the answer: that of the request where it is known, else 0.
    pub stream: i16,
    /// Version of the answer, a number that may be none of [`Version`](super::Version): an old
    /// client is answered in its own.
    pub version: u8,
    /// Flags of the answer's header.
    pub flags: Flags,
    /// The stream of bytes cannot be followed any further: answer, then close. Otherwise the
    /// envelope was skipped and decoding goes on.
    pub fatal: bool,
}

impl FrameError {
    /// The whole ERROR envelope to send. Versions below 3 get their shorter header.
    pub fn reply(&self) -> Vec<u8> {
        error_envelope(self.version, self.flags, self.stream, &self.error)
    }

    pub(super) fn fatal(self) -> Self {
        Self { fatal: true, ..self }
    }
}

/// A whole ERROR envelope for any version number, with the eight-byte header of v1 and v2 for
/// these.
fn error_envelope(version: u8, flags: Flags, stream: i16, error: &ProtocolError) -> Vec<u8> {
    let mut body = Vec::new();
    ErrorBody::from(error).encode(&mut body);
    let mut envelope = vec![version | Direction::Response.bit(), flags.0];
    if version < 3 {
        envelope.put_byte(stream as u8);
    } else {
        envelope.put_raw(&stream.to_be_bytes());
    }
    envelope.put_byte(Opcode::Error as u8);
    envelope.put_int_len(body.len());
    envelope.put_raw(&body);
    envelope
}
