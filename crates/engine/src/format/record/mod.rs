//! A record: one object on flash. It starts at a multiple of 16 bytes and never spans segments.
//!
//! ```text
//!  0                   6       7                 13 to 28  1 or 2    1 to 3
//! +-------------------+-------+-----------------+---------+---------+-----+-------+
//! | checksum (48 bit) | flags | fields          | key len | val len | key | value |
//! +-------------------+-------+-----------------+---------+---------+-----+-------+
//! ```
//! Flags and fields are those of [`super::fields`], with the length of the value. The structure's
//! own flag says that the length of the key has two bytes. The checksum is the low 48 bits of
//! XXH3-64 over everything behind it. Its seed is the cache's hash seed, the segment's generation,
//! the record's offset in the segment and its format. So a record of an earlier generation, of
//! another cache or in a wrong place fails the check.
//!
//! Segments that format 1 wrote have records of [`fixed`] length fields. They are read as they are,
//! until they are reclaimed. Both formats have their checksum in the same place and over the same
//! bytes. Without the format in its seed, a record of one could be whole in the other, with another
//! key: who puts values could see to that.

mod fixed;
#[cfg(test)]
mod tests;

pub use super::fields::Meta;
use super::fields::{FieldCursor, FieldWriter, Flags, MAX_FIELDS, USUAL_FIELDS, bytes_of};
use super::{UNIT, checksum, mix, round_up};

/// Longest key.
pub const MAX_KEY: usize = u16::MAX as usize;
/// Longest value the format can hold (the segment size bounds it further).
pub const MAX_VALUE: usize = (1 << 24) - 1;
/// Fewest bytes of a record.
pub const MIN_RECORD: usize = CHECKSUM + 1 + USUAL_FIELDS + 1 + 1;

const CHECKSUM: usize = 6;
/// Most bytes in front of the key.
const MAX_HEADER: usize = CHECKSUM + 1 + MAX_FIELDS + 2 + 3;

/// A record found to be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// What is stored with it.
    pub meta: Meta,
    /// The full key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Its bytes on flash, without padding.
    pub len: usize,
}

/// How the records of a segment are written: all of a segment alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum RecordFormat {
    /// With fields of fixed length, at multiples of 64 bytes: format 1.
    Fixed = 1,
    /// With as few bytes as it takes, at multiples of 16: what is written today.
    #[default]
    Compact = 2,
}

impl RecordFormat {
    /// The format of this number.
    #[must_use]
    pub fn from_number(n: u8) -> Option<Self> {
        [Self::Fixed, Self::Compact].into_iter().find(|format| *format as u8 == n)
    }

    /// Bytes that a record of `len` bytes takes in its segment.
    #[must_use]
    pub fn padded(self, len: u32) -> u32 {
        let unit = match self {
            Self::Fixed => fixed::UNIT,
            Self::Compact => UNIT,
        };
        round_up(len.into(), unit.into()) as u32
    }
}

/// What the bytes of a record depend on: its place, and the use of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordContext {
    seed: u64,
    generation: u64,
    format: RecordFormat,
}

impl RecordContext {
    /// That of a record at `offset` of a segment of `generation`, whose records have this format.
    #[must_use]
    pub fn new(hash_seed: u64, generation: u64, offset: u32, format: RecordFormat) -> Self {
        // Offsets have 24 bits. Format 1 had the offset alone.
        let place = u64::from(offset) | (format as u64 - RecordFormat::Fixed as u64) << 32;
        // Each input goes through the bijection of its own, so that no two places of a segment
        // share a seed.
        let seed = mix(mix(hash_seed ^ mix(generation)) ^ place);
        Self { seed, generation, format }
    }

    /// Seed of the record's checksum.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// Most bytes that a record takes in its segment, whatever is stored with it.
#[must_use]
pub fn most_padded(key: usize, value: usize) -> u32 {
    round_up((MAX_HEADER + key + value) as u64, UNIT.into()) as u32
}

/// Most bytes of a record without padding.
#[must_use]
pub fn most_len(key: usize, value: usize) -> usize {
    MAX_HEADER + key + value
}

/// Bytes that a record takes in its segment, if it has no expiry, group and partition.
#[must_use]
pub fn usual_padded(key: usize, value: usize) -> u32 {
    let header = CHECKSUM + 1 + USUAL_FIELDS + key_bytes(key) + bytes_of(value as u32);
    round_up((header + key + value) as u64, UNIT.into()) as u32
}

fn key_bytes(key: usize) -> usize {
    if key > 0xff { 2 } else { 1 }
}

/// Writes a record to the start of `out` and returns its length without padding.
///
/// # Panics
/// When key or value exceed the format's bounds, or `out` is too short: the caller has checked
/// both.
pub fn encode(
    out: &mut [u8],
    context: &RecordContext,
    meta: &Meta,
    key: &[u8],
    value: &[u8],
) -> usize {
    assert!(key.len() <= MAX_KEY && value.len() <= MAX_VALUE);
    #[cfg(test)]
    if context.format == RecordFormat::Fixed {
        return fixed::encode(out, context.seed, meta, key, value);
    }
    assert!(context.format == RecordFormat::Compact, "records of format 1 are only read");
    let key_bytes = key_bytes(key.len());
    let flags = Flags::of(meta, context.generation, value.len() as u32, key_bytes == 2);
    let mut header = FieldWriter::new();
    header.put(flags.0.into(), 1);
    header.put_fields(flags, meta, context.generation);
    header.put(key.len() as u64, key_bytes);
    header.put(value.len() as u64, flags.len_bytes());
    let at = CHECKSUM + header.bytes().len();
    let len = at + key.len() + value.len();
    out[CHECKSUM..at].copy_from_slice(header.bytes());
    out[at..at + key.len()].copy_from_slice(key);
    out[at + key.len()..len].copy_from_slice(value);
    let sum = checksum(context.seed, &out[CHECKSUM..len]).to_le_bytes();
    out[..CHECKSUM].copy_from_slice(&sum[..CHECKSUM]);
    len
}

/// What a header says, not verified.
struct ClaimedHeader {
    meta: Meta,
    /// Its bytes, those of the key and those of the value.
    lens: [usize; 3],
}

impl ClaimedHeader {
    fn read(bytes: &[u8], context: &RecordContext) -> Option<Self> {
        if context.format == RecordFormat::Fixed {
            let (meta, lens) = fixed::read(bytes)?;
            return Some(Self { meta, lens });
        }
        let mut header = FieldCursor::new(bytes.get(CHECKSUM..)?);
        let flags = header.take_flags()?;
        let meta = header.take_fields(flags, context.generation)?;
        let key = header.take(if flags.has_structure() { 2 } else { 1 })? as usize;
        let value = header.take(flags.len_bytes())? as usize;
        Some(Self { meta, lens: [CHECKSUM + header.at, key, value] })
    }

    fn len(&self) -> usize {
        self.lens.iter().sum()
    }
}

/// Namespace, version and length that a header claims, not verified: for skipping quickly over what
/// cannot be a record.
#[must_use]
pub fn claims(bytes: &[u8], context: &RecordContext) -> Option<(u16, u64, usize)> {
    let header = ClaimedHeader::read(bytes, context)?;
    Some((header.meta.ns, header.meta.version, header.len()))
}

/// The record at the start of `bytes`, if it is whole at this place; bytes behind it are ignored.
#[must_use]
pub fn decode<'a>(bytes: &'a [u8], context: &RecordContext) -> Option<Record<'a>> {
    let header = ClaimedHeader::read(bytes, context)?;
    let len = header.len();
    let bytes = bytes.get(..len)?;
    let sum = checksum(context.seed, &bytes[CHECKSUM..]).to_le_bytes();
    if sum[..CHECKSUM] != bytes[..CHECKSUM] {
        return None;
    }
    let [at, key_len, _] = header.lens;
    let (key, value) = bytes[at..].split_at(key_len);
    Some(Record { meta: header.meta, key, value, len })
}
