//! The two ways to compress: of an envelope's body in v3 and v4, and (LZ4 only) of a segment's
//! payload in v5.
//!
//! Source: "Compression" in `native_protocol_v4.spec` and section 2.2 of `native_protocol_v5.spec`;
//! the block formats of LZ4 and Snappy, without their frame formats.

use super::header::Version;
use crate::error::ProtocolError;

/// Shorter bodies travel as they are: nothing is gained.
const WORTH_IT: usize = 128;
/// Neither format packs more into a byte than this, so a longer claim is a lie.
const BEST_RATIO: usize = 256;

/// An algorithm that a STARTUP can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// `lz4`: the length as four bytes, big endian, and a block. In segments the block alone.
    Lz4,
    /// `snappy`: a block, which begins with its length. Not in v5.
    Snappy,
}

impl Compression {
    /// The algorithms of a version, by the names in SUPPORTED, in the order of a server.
    pub const NAMES: &[&str] = &["snappy", "lz4"];

    /// The algorithm of a name, in any case.
    ///
    /// # Errors
    /// Unknown, or not in that version; in a server's words.
    pub fn named(name: &str, version: Version) -> Result<Self, ProtocolError> {
        match name.to_lowercase().as_str() {
            "lz4" => Ok(Compression::Lz4),
            "snappy" if version.has_segments() => {
                Err(ProtocolError::new("Snappy compression is not supported in protocol V5"))
            }
            "snappy" => Ok(Compression::Snappy),
            other => Err(ProtocolError::new(format!("Unknown compression algorithm: {other}"))),
        }
    }

    /// The body in compressed form; `None` when it is better sent as it is.
    pub(super) fn body(self, body: &[u8]) -> Option<Vec<u8>> {
        if body.len() < WORTH_IT {
            return None;
        }
        let packed = match self {
            Compression::Lz4 => {
                let length = u32::try_from(body.len()).ok()?;
                let mut packed = vec![0; 4 + lz4_flex::block::get_maximum_output_size(body.len())];
                packed[..4].copy_from_slice(&length.to_be_bytes());
                let written = lz4_flex::block::compress_into(body, &mut packed[4..]).ok()?;
                packed.truncate(4 + written);
                packed
            }
            Compression::Snappy => snap::raw::Encoder::new().compress_vec(body).ok()?,
        };
        (packed.len() < body.len()).then_some(packed)
    }

    /// How long a compressed body says it was, as soon as its first bytes are there.
    pub(super) fn claimed(self, packed: &[u8]) -> Option<usize> {
        match self {
            Compression::Lz4 => {
                packed.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
            }
            Compression::Snappy => snap::raw::decompress_len(packed).ok(),
        }
    }

    /// A compressed body as it was, which must be no longer than `max`.
    pub(super) fn unpack(self, packed: &[u8], max: usize) -> Result<Vec<u8>, ProtocolError> {
        match self {
            Compression::Lz4 => {
                let (length, block) = packed.split_first_chunk::<4>().ok_or_else(damaged)?;
                unpack_block(block, u32::from_be_bytes(*length) as usize, max)
            }
            Compression::Snappy => {
                let length = snap::raw::decompress_len(packed).map_err(|_| damaged())?;
                check_claim(packed.len(), length, max)?;
                let mut body = vec![0; length];
                let written = snap::raw::Decoder::new().decompress(packed, &mut body);
                if written == Ok(length) { Ok(body) } else { Err(damaged()) }
            }
        }
    }
}

/// The payload of a segment as an LZ4 block, in `scratch`; its length, or `None` when it is better
/// sent as it is.
pub(super) fn pack_block(payload: &[u8], scratch: &mut Vec<u8>) -> Option<usize> {
    if payload.len() < WORTH_IT {
        return None;
    }
    scratch.resize(lz4_flex::block::get_maximum_output_size(payload.len()), 0);
    let written = lz4_flex::block::compress_into(payload, scratch).ok()?;
    (written < payload.len()).then_some(written)
}

/// An LZ4 block that says it was `length` bytes long.
pub(super) fn unpack_block(
    block: &[u8],
    length: usize,
    max: usize,
) -> Result<Vec<u8>, ProtocolError> {
    check_claim(block.len(), length, max)?;
    let mut plain = vec![0; length];
    let written = lz4_flex::block::decompress_into(block, &mut plain).map_err(|_| damaged())?;
    if written == length { Ok(plain) } else { Err(damaged()) }
}

/// Before memory is taken for it.
fn check_claim(packed: usize, length: usize, max: usize) -> Result<(), ProtocolError> {
    if length > max {
        return Err(ProtocolError::invalid(format!(
            "Request is too big: length {length} exceeds maximum allowed length {max}."
        )));
    }
    if length / BEST_RATIO > packed { Err(damaged()) } else { Ok(()) }
}

fn damaged() -> ProtocolError {
    ProtocolError::new("The compressed bytes are damaged")
}
