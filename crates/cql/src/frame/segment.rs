//! Segments of v5, section 2 of `native_protocol_v5.spec`:
//!
//! ```text
//! 17 bits payload length | 1 bit self-contained | 6 bits zero | CRC24 of these 3 bytes    (little-endian, 6 bytes)
//! payload
//! CRC32 of the payload                                                                   (little-endian, 4 bytes)
//! ```
//!
//! Where LZ4 was agreed upon, the header is this one, of 8 bytes, and the payload an LZ4 block:
//!
//! ```text
//! 17 bits length of the block | 17 bits length of what is in it | 1 bit self-contained | 5 bits zero | CRC24 of these 5 bytes
//! ```
//!
//! A length of 0 in the second place says that the payload is not compressed after all.

use super::crc::{crc24, crc32};
use crate::error::ProtocolError;

/// The longest payload of a segment.
pub const MAX_PAYLOAD: usize = (1 << 17) - 1;

/// Length of a segment's header.
pub(super) const SEGMENT_HEADER_LEN: usize = 6;

/// Length of the CRC32 behind the payload.
pub(super) const TRAILER_LEN: usize = 4;

const SELF_CONTAINED: u32 = 1 << 17;
const LENGTH: u64 = (1 << 17) - 1;

/// Length of the header of a segment that may be compressed.
const LZ4_HEADER_LEN: usize = 8;
/// The longest header.
pub(super) const MAX_HEADER_LEN: usize = LZ4_HEADER_LEN;

/// How segments of a connection are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Format {
    /// As they are.
    #[default]
    Plain,
    /// As LZ4 blocks.
    Lz4,
}

/// Header of a segment of either format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wrapped {
    /// Length of the payload on the wire.
    pub wire_len: usize,
    /// Length of what is compressed in it; `None`: nothing is.
    pub packs: Option<usize>,
    /// As in [`SegmentHeader`].
    pub self_contained: bool,
}

impl Format {
    /// Length of a header.
    pub fn header_len(self) -> usize {
        match self {
            Format::Plain => SEGMENT_HEADER_LEN,
            Format::Lz4 => LZ4_HEADER_LEN,
        }
    }

    /// Writes a header to the first [`header_len`](Self::header_len) bytes of `out`.
    pub fn encode(self, header: Wrapped, out: &mut [u8]) {
        match self {
            Format::Plain => {
                let Wrapped { wire_len, self_contained, .. } = header;
                out.copy_from_slice(
                    &SegmentHeader { payload_len: wire_len, self_contained }.encode(),
                );
            }
            Format::Lz4 => {
                let contained = u64::from(header.self_contained) << 34;
                let word =
                    header.wire_len as u64 | (header.packs.unwrap_or(0) as u64) << 17 | contained;
                out[..5].copy_from_slice(&word.to_le_bytes()[..5]);
                let crc = crc24(&out[..5]);
                out[5..].copy_from_slice(&crc.to_le_bytes()[..3]);
            }
        }
    }

    /// Reads the header that `input` starts with and checks its CRC; `None`: there is not enough.
    pub fn decode(self, input: &[u8]) -> Result<Option<Wrapped>, ProtocolError> {
        match self {
            Format::Plain => match input.first_chunk() {
                None => Ok(None),
                Some(bytes) => SegmentHeader::decode(bytes).map(|header| {
                    let SegmentHeader { payload_len: wire_len, self_contained } = header;
                    Some(Wrapped { wire_len, packs: None, self_contained })
                }),
            },
            Format::Lz4 => input.first_chunk().map(decode_lz4).transpose(),
        }
    }
}

fn decode_lz4(bytes: &[u8; LZ4_HEADER_LEN]) -> Result<Wrapped, ProtocolError> {
    let [a, b, c, d, e, f, g, h] = *bytes;
    let word = u64::from_le_bytes([a, b, c, d, e, 0, 0, 0]);
    let read = u32::from_le_bytes([f, g, h, 0]);
    let computed = crc24(&bytes[..5]);
    if read != computed {
        return Err(mismatch("header", read, computed));
    }
    let packs = (word >> 17 & LENGTH) as usize;
    Ok(Wrapped {
        wire_len: (word & LENGTH) as usize,
        packs: (packs != 0).then_some(packs),
        self_contained: word >> 34 & 1 == 1,
    })
}

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
pub(super) fn check_payload(
    payload: &[u8],
    trailer: [u8; TRAILER_LEN],
) -> Result<(), ProtocolError> {
    let (read, computed) = (u32::from_le_bytes(trailer), crc32(payload));
    if read == computed { Ok(()) } else { Err(mismatch("body", read, computed)) }
}

fn mismatch(part: &str, read: u32, computed: u32) -> ProtocolError {
    ProtocolError::new(format!(
        "unrecoverable CRC mismatch detected in frame {part}. Read {read}, Computed {computed}"
    ))
}
