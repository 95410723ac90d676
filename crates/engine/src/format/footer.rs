//! A segment: header, records, footer.
//!
//! ```text
//!  0          64                                                  size-footer                 size-64       size
//! +----------+--------+--------+-- ... --+--------+ - - - - - - -+-----------+-- ... --+-----+-------------+
//! | header   | record | record |         | record |   unused     | entry 0   |         | pad | trailer     |
//! +----------+--------+--------+-- ... --+--------+ - - - - - - -+-----------+-- ... --+-----+-------------+
//! ```
//! The footer starts at a multiple of 4096 and ends the segment. It is written once, when the
//! segment is sealed, so that recovery reads footers and not data. A segment without a footer was
//! open when the process died: its records are found by their own checksums.
//!
//! Header and trailer, 64 bytes each:
//! ```text
//!  0        8            10           12             16           24        28        32        48                 56           64
//! +--------+------------+------------+--------------+------------+---------+---------+---------+------------------+------------+
//! | magic  | format u16 | format of  | bytes of the | generation | segment | entries | uuid    | entries checksum | checksum   |
//! |        |            | records u16| entries u32  | u64        | u32     | u32     | 16 bytes| u64              | u64        |
//! +--------+------------+------------+--------------+------------+---------+---------+---------+------------------+------------+
//! ```
//! In a mark of format 1 the third and the fourth field are 0. Its entries and its records are
//! those of format 1. A footer of today may list records of format 1.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::footer_entries::{self, EntryList, FooterEntry, MAX_ENTRY, SEGMENT_HEADER};
use super::record::RecordFormat;
use super::{BLOCK, FORMAT_VERSION, checksum, round_up};

/// Bytes of a segment's header: its first record starts behind it.
pub const HEADER: u32 = SEGMENT_HEADER;
/// Bytes of a footer's trailer.
pub const TRAILER: u32 = 64;

const HEADER_MAGIC: [u8; 8] = *b"aglowSEG";
const TRAILER_MAGIC: [u8; 8] = *b"aglowFTR";

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Mark {
    magic: [u8; 8],
    format: U16,
    records: U16,
    bytes: U32,
    generation: U64,
    segment: U32,
    entries: U32,
    uuid: [u8; 16],
    entries_checksum: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<Mark>() == HEADER as usize && HEADER == TRAILER);

/// Names a segment's incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentId {
    /// The cache.
    pub uuid: [u8; 16],
    /// Logical segment.
    pub segment: u32,
    /// Which use of the segment: the version taken when it was opened, unique for the life of the
    /// cache.
    pub generation: u64,
    /// How its records are written.
    pub records: RecordFormat,
}

/// What a trailer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Generation of the segment.
    pub generation: u64,
    /// How its records are written.
    pub records: RecordFormat,
    /// Number of its entries.
    pub entries: u32,
    /// Bytes of the footer, a multiple of 4096.
    pub len: u32,
}

/// A whole footer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// What its trailer says.
    pub trailer: Trailer,
    /// The segment's records.
    pub entries: Vec<FooterEntry>,
}

impl Mark {
    fn new(magic: [u8; 8], id: &SegmentId, count: u32, entries: &[u8]) -> Self {
        let mut mark = Self {
            magic,
            format: (FORMAT_VERSION as u16).into(),
            records: (id.records as u16).into(),
            bytes: (entries.len() as u32).into(),
            generation: id.generation.into(),
            segment: id.segment.into(),
            entries: count.into(),
            uuid: id.uuid,
            entries_checksum: checksum(id.generation, entries).into(),
            checksum: 0.into(),
        };
        mark.checksum = mark.sum().into();
        mark
    }

    /// The same as format 1 wrote it: for tests of reading it.
    #[cfg(test)]
    fn of_format_1(self) -> Self {
        let mut mark = Self { format: 1.into(), records: 0.into(), bytes: 0.into(), ..self };
        mark.checksum = mark.sum().into();
        mark
    }

    fn sum(&self) -> u64 {
        checksum(self.format.get().into(), &self.as_bytes()[..56])
    }

    fn parse(bytes: &[u8], magic: [u8; 8], uuid: &[u8; 16], segment: u32) -> Option<Self> {
        let mark = Self::read_from_bytes(bytes).ok()?;
        let whole = mark.magic == magic && mark.sum() == mark.checksum.get();
        (whole && mark.uuid == *uuid && mark.segment.get() == segment).then_some(mark)
    }

    /// Format of the records, and bytes of the entries; `None` for a format that is not known.
    fn contents(&self) -> Option<(RecordFormat, usize)> {
        match u32::from(self.format.get()) {
            1 => {
                let bytes = (self.entries.get() as usize).checked_mul(footer_entries::FIXED)?;
                (self.records.get() == 0).then_some((RecordFormat::Fixed, bytes))
            }
            FORMAT_VERSION => {
                let records = RecordFormat::from_number(self.records.get().try_into().ok()?)?;
                Some((records, self.bytes.get() as usize))
            }
            _ => None,
        }
    }

    /// What it says as a trailer, and the bytes of the entries.
    fn trailer(&self) -> Option<(Trailer, usize)> {
        let (records, bytes) = self.contents()?;
        // No segment is as long.
        if bytes > super::MAX_SEGMENT as usize {
            return None;
        }
        let (generation, entries) = (self.generation.get(), self.entries.get());
        Some((Trailer { generation, records, entries, len: len_with(bytes) }, bytes))
    }
}

/// Bytes of a footer with so many bytes of entries, a multiple of 4096.
#[must_use]
pub fn len_with(entries: usize) -> u32 {
    round_up(entries as u64 + u64::from(TRAILER), BLOCK.into()) as u32
}

/// Bytes of a footer of these entries.
#[must_use]
pub fn footer_len(entries: &EntryList) -> u32 {
    len_with(entries.bytes().len())
}

/// Bytes of a footer of these entries and one more, whatever that is.
#[must_use]
pub fn next_footer_len(entries: &EntryList) -> u32 {
    #[cfg(test)]
    if entries.records() == RecordFormat::Fixed {
        return fixed_footer_len(entries.len() + 1);
    }
    len_with(entries.bytes().len() + MAX_ENTRY)
}

/// Bytes of a footer of format 1 with so many entries.
#[must_use]
pub fn fixed_footer_len(entries: u32) -> u32 {
    len_with(entries as usize * footer_entries::FIXED)
}

/// Writes the header of a segment.
pub fn encode_header(out: &mut [u8], id: &SegmentId) {
    let mark = Mark::new(HEADER_MAGIC, id, 0, &[]);
    #[cfg(test)]
    let mark = if id.records == RecordFormat::Fixed { mark.of_format_1() } else { mark };
    out[..HEADER as usize].copy_from_slice(mark.as_bytes());
}

/// The generation in a segment's header and the format of its records, if it is whole and belongs
/// to this segment of this cache.
#[must_use]
pub fn decode_header(bytes: &[u8], uuid: &[u8; 16], segment: u32) -> Option<(u64, RecordFormat)> {
    let mark = Mark::parse(bytes.get(..HEADER as usize)?, HEADER_MAGIC, uuid, segment)?;
    Some((mark.generation.get(), mark.contents()?.0))
}

/// Writes a footer of exactly [`footer_len`] bytes.
///
/// # Panics
/// When `out` has another length.
pub fn encode_footer(out: &mut [u8], id: &SegmentId, entries: &EntryList) {
    assert_eq!(out.len(), footer_len(entries) as usize);
    let (count, entries) = (entries.len(), entries.bytes());
    out[..entries.len()].copy_from_slice(entries);
    let trailer = out.len() - TRAILER as usize;
    out[entries.len()..trailer].fill(0);
    out[trailer..].copy_from_slice(Mark::new(TRAILER_MAGIC, id, count, entries).as_bytes());
}

/// A footer as format 1 wrote it: for tests of reading it.
#[cfg(test)]
pub fn encode_fixed_footer(id: &SegmentId, entries: &[FooterEntry]) -> Vec<u8> {
    let mut out = footer_entries::encode_fixed(entries);
    let mark = Mark::new(TRAILER_MAGIC, id, entries.len() as u32, &out).of_format_1();
    out.resize((fixed_footer_len(entries.len() as u32) - TRAILER) as usize, 0);
    out.extend_from_slice(mark.as_bytes());
    out
}

/// What the last 64 bytes of a segment say, if they are a whole trailer.
#[must_use]
pub fn decode_trailer(bytes: &[u8], uuid: &[u8; 16], segment: u32) -> Option<Trailer> {
    Some(Mark::parse(bytes, TRAILER_MAGIC, uuid, segment)?.trailer()?.0)
}

/// The footer in `bytes`, its last [`Trailer::len`] bytes or more, if it is whole. Every entry
/// names a place that a record can have in a segment of `segment_size` bytes, behind those before.
#[must_use]
pub fn decode_footer(
    bytes: &[u8],
    uuid: &[u8; 16],
    segment: u32,
    segment_size: u32,
) -> Option<Footer> {
    let at = bytes.len().checked_sub(TRAILER as usize)?;
    let mark = Mark::parse(&bytes[at..], TRAILER_MAGIC, uuid, segment)?;
    let (trailer, len) = mark.trailer()?;
    let start = bytes.len().checked_sub(trailer.len as usize)?;
    let entries = bytes[start..at].get(..len)?;
    if checksum(trailer.generation, entries) != mark.entries_checksum.get() {
        return None;
    }
    let entries = match mark.format.get() {
        1 => footer_entries::decode_fixed(entries)?,
        _ => footer_entries::decode(entries, trailer.generation, trailer.records)?,
    };
    let end = |entry: &FooterEntry| entry.offset + trailer.records.padded(entry.len);
    let possible = entries.len() == trailer.entries as usize
        && entries.iter().all(|entry| entry.is_possible(segment_size))
        && entries.windows(2).all(|pair| end(&pair[0]) <= pair[1].offset);
    possible.then_some(Footer { trailer, entries })
}
