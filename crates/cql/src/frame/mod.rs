//! Framing of the native protocol: envelopes (the "frames" of v4) and, in v5, the checksummed
//! segments around them.
//!
//! [`Decoder`] turns bytes of a connection into [`Envelope`]s, [`Encoder`] does the reverse;
//! neither knows a socket. What is inside an envelope's body is the business of [`crate::message`]
//! (requests) and [`crate::response`].
//!
//! Relaying costs nothing but the nine header bytes: change [`Header::stream`] and push header and
//! body into the other side's encoder.

mod compression;
mod copying;
mod crc;
mod decoder;
mod encoder;
mod error;
mod header;
pub mod notation;
mod reassembly;
mod refusal;
mod segment;
pub(crate) mod versions;

pub use compression::Compression;
pub use crc::{crc24, crc32};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::FrameError;
pub use header::{Direction, Envelope, Flags, HEADER_LEN, Header, Opcode, Version};
pub use segment::{MAX_PAYLOAD, SegmentHeader};

/// How much an envelope, header included, may measure unless configured otherwise: the highest
/// default of any database, Cassandra 3.11's. (5.0 refuses requests of more than 16 MiB; that is
/// its business.)
pub const DEFAULT_MAX_ENVELOPE: usize = 256 * 1024 * 1024;

#[cfg(test)]
mod tests;
