//! Uncompressed v5 segments, section 2 of `native_protocol_v5.spec`:
//!
//! ```text
//! 17 bits payload length | 1 bit self-contained | 6 bits zero | CRC24 of these 3 bytes    (little-endian, 6 bytes)
//! payload
//! CRC32 of the payload                                                                   (little-endian, 4 bytes)
//! ```

use super::crc::{crc24, crc32};
use crate::error::ProtocolError;

/// The longest payload of a segment.
pub const MAX_PAYLOAD: usize = (1 << 17) - 1;

/// Length of a segment's header.
pub(super) const SEGMENT_HEADER_LEN: usize = 6;

/// Length of the CRC32 behind the payload.
pub(super) const TRAILER_LEN: usize = 4;

const SELF_CONTAINED: u32 = 1 << 17;

/// Header of an uncompressed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Length of the payload, at most [`MAX_PAYLOAD`].
    pub payload_len: usize,
    /// Whether the payload is a run of whole envelopes; otherwise it is a part of a single one.
    pub self_contained: bool,
}

impl SegmentHeader {
    /// The header as it travels.
    ///
    /// # Panics
    /// When the payload is longer than [`MAX_PAYLOAD`].
    pub fn encode(self) -> [u8; SEGMENT_HEADER_LEN] {
        assert!(self.payload_len <= MAX_PAYLOAD, "payload of {} bytes", self.payload_len);
        let word = self.payload_len as u32 | if self.self_contained { SELF_CONTAINED } else { 0 };
        let mut bytes = [0; SEGMENT_HEADER_LEN];
        bytes[..3].copy_from_slice(&word.to_le_bytes()[..3]);
        let crc = crc24(&bytes[..3]);
        bytes[3..].copy_from_slice(&crc.to_le_bytes()[..3]);
        bytes
    }

    /// Reads a header and checks its CRC.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER_LEN]) -> Result<Self, ProtocolError> {
        let [a, b, c, d, e, f] = *bytes;
        let word = u32::from_le_bytes([a, b, c, 0]);
        let read = u32::from_le_bytes([d, e, f, 0]);
        let computed = crc24(&bytes[..3]);
        if read != computed {
            return Err(mismatch("header", read, computed));
        }
        Ok(Self {
            payload_len: (word & (SELF_CONTAINED - 1)) as usize,
            self_contained: word & SELF_CONTAINED != 0,
        })
    }
}

/// Checks a payload against the four bytes behind it.
pub(super) fn check_payload(payload: &[u8], trailer: [u8; TRAILER_LEN]) -> Result<(), ProtocolError> {
    let (read, computed) = (u32::from_le_bytes(trailer), crc32(payload));
    if read == computed { Ok(()) } else { Err(mismatch("body", read, computed)) }
}

fn mismatch(part: &str, read: u32, computed: u32) -> ProtocolError {
    ProtocolError::new(format!(
        "unrecoverable CRC mismatch detected in frame {part}. Read {read}, Computed {computed}"
    ))
}
