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
//! Entry, 40 bytes:
//! ```text
//!  0       8          16        20       24        28       32            36     38         40
//! +-------+----------+---------+--------+---------+--------+-------------+------+----------+
//! | hash  | version  | offset  | length | expiry  | group  | epoch slot  | ns   | reserved |
//! +-------+----------+---------+--------+---------+--------+-------------+------+----------+
//! ```
//! Header and trailer, 64 bytes each:
//! ```text
//!  0        8           16            24        28        32              48                 56           64
//! +--------+-----------+-------------+---------+---------+---------------+------------------+------------+
//! | magic  | format u32| generation  | segment | entries | uuid          | entries checksum | checksum   |
//! |        | + reserved| u64         | u32     | u32     | 16 bytes      | u64              | u64        |
//! +--------+-----------+-------------+---------+---------+---------------+------------------+------------+
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::record::{self, Meta};
use super::{BLOCK, FORMAT_VERSION, UNIT, checksum, round_up};

/// Bytes of a segment's header: its first record starts behind it.
pub const HEADER: u32 = 64;
/// Bytes of a footer's trailer.
pub const TRAILER: u32 = 64;
/// Bytes of an entry.
pub const ENTRY: u32 = 40;

const HEADER_MAGIC: [u8; 8] = *b"aglowSEG";
const TRAILER_MAGIC: [u8; 8] = *b"aglowFTR";

/// One record, as its segment's footer tells it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct FooterEntry {
    /// Keyed 64-bit hash of namespace and key.
    pub hash: U64,
    /// Version of the put.
    pub version: U64,
    /// Start in the segment, a multiple of 64.
    pub offset: U32,
    /// Bytes without padding.
    pub len: U32,
    /// Unix seconds, 0 for never.
    pub expiry: U32,
    /// Group, 0 for none.
    pub group: U32,
    /// Slot of the partition epoch.
    pub epoch_slot: U32,
    /// Namespace id.
    pub ns: U16,
    /// Zero.
    pub reserved: U16,
}

impl FooterEntry {
    /// What is stored with the record.
    #[must_use]
    pub fn meta(&self) -> Meta {
        Meta {
            ns: self.ns.get(),
            version: self.version.get(),
            expiry: self.expiry.get(),
            group: self.group.get(),
            epoch_slot: self.epoch_slot.get(),
        }
    }

    /// The entry of a record of `len` bytes at `offset` of its segment.
    #[must_use]
    pub fn new(hash: u64, meta: &Meta, offset: u32, len: u32) -> Self {
        Self {
            hash: hash.into(),
            version: meta.version.into(),
            offset: offset.into(),
            len: len.into(),
            expiry: meta.expiry.into(),
            group: meta.group.into(),
            epoch_slot: meta.epoch_slot.into(),
            ns: meta.ns.into(),
            reserved: 0.into(),
        }
    }

    /// Whether a segment of `segment_size` bytes can have such a record.
    fn is_possible(&self, segment_size: u32) -> bool {
        let (offset, len) = (self.offset.get(), self.len.get());
        offset.is_multiple_of(UNIT)
            && offset >= HEADER
            && len >= record::HEADER as u32
            && len <= segment_size / 4
            && offset.checked_add(len).is_some_and(|end| end <= segment_size)
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Mark {
    magic: [u8; 8],
    format: U32,
    reserved: U32,
    generation: U64,
    segment: U32,
    entries: U32,
    uuid: [u8; 16],
    entries_checksum: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<FooterEntry>() == ENTRY as usize);
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
}

impl Mark {
    fn new(magic: [u8; 8], id: &SegmentId, entries: &[FooterEntry]) -> Self {
        let mut mark = Self {
            magic,
            format: FORMAT_VERSION.into(),
            reserved: 0.into(),
            generation: id.generation.into(),
            segment: id.segment.into(),
            entries: (entries.len() as u32).into(),
            uuid: id.uuid,
            entries_checksum: checksum(id.generation, entries.as_bytes()).into(),
            checksum: 0.into(),
        };
        mark.checksum = mark.sum().into();
        mark
    }

    fn sum(&self) -> u64 {
        checksum(u64::from(FORMAT_VERSION), &self.as_bytes()[..56])
    }

    fn parse(bytes: &[u8], magic: [u8; 8], uuid: &[u8; 16], segment: u32) -> Option<Self> {
        let mark = Self::read_from_bytes(bytes).ok()?;
        let whole = mark.magic == magic
            && mark.format.get() == FORMAT_VERSION
            && mark.sum() == mark.checksum.get();
        (whole && mark.uuid == *uuid && mark.segment.get() == segment).then_some(mark)
    }
}

/// Bytes of a footer of `entries`, a multiple of 4096.
#[must_use]
pub fn footer_len(entries: usize) -> u32 {
    round_up(entries as u64 * u64::from(ENTRY) + u64::from(TRAILER), u64::from(BLOCK)) as u32
}

/// Writes the header of a segment.
pub fn encode_header(out: &mut [u8], id: &SegmentId) {
    out[..HEADER as usize].copy_from_slice(Mark::new(HEADER_MAGIC, id, &[]).as_bytes());
}

/// The generation in a segment's header, if it is whole and belongs to this segment of this cache.
#[must_use]
pub fn decode_header(bytes: &[u8], uuid: &[u8; 16], segment: u32) -> Option<u64> {
    let mark = Mark::parse(bytes.get(..HEADER as usize)?, HEADER_MAGIC, uuid, segment)?;
    Some(mark.generation.get())
}

/// Writes a footer of exactly [`footer_len`] bytes.
pub fn encode_footer(out: &mut [u8], id: &SegmentId, entries: &[FooterEntry]) {
    assert_eq!(out.len(), footer_len(entries.len()) as usize);
    let bytes = entries.as_bytes();
    out[..bytes.len()].copy_from_slice(bytes);
    let trailer = out.len() - TRAILER as usize;
    out[bytes.len()..trailer].fill(0);
    out[trailer..].copy_from_slice(Mark::new(TRAILER_MAGIC, id, entries).as_bytes());
}

/// Generation and number of entries in a trailer (the last 64 bytes of a segment), if it is whole.
#[must_use]
pub fn decode_trailer(bytes: &[u8], uuid: &[u8; 16], segment: u32) -> Option<(u64, usize)> {
    let mark = Mark::parse(bytes, TRAILER_MAGIC, uuid, segment)?;
    Some((mark.generation.get(), mark.entries.get() as usize))
}

/// Generation and entries of a whole footer, given its [`footer_len`] bytes and those of its
/// segment. Every entry names a place that a record can have there.
#[must_use]
pub fn decode_footer<'a>(
    bytes: &'a [u8],
    uuid: &[u8; 16],
    segment: u32,
    segment_size: u32,
) -> Option<(u64, &'a [FooterEntry])> {
    let trailer = bytes.len().checked_sub(TRAILER as usize)?;
    let mark = Mark::parse(&bytes[trailer..], TRAILER_MAGIC, uuid, segment)?;
    let len = (mark.entries.get() as usize).checked_mul(ENTRY as usize)?;
    let entries = bytes[..trailer].get(..len)?;
    if checksum(mark.generation.get(), entries) != mark.entries_checksum.get() {
        return None;
    }
    let entries = <[FooterEntry]>::ref_from_bytes(entries).ok()?;
    let possible = entries.iter().all(|entry| entry.is_possible(segment_size));
    possible.then_some((mark.generation.get(), entries))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u32 = 1 << 16;

    fn entry(n: u64) -> FooterEntry {
        FooterEntry {
            hash: (n * 7).into(),
            version: n.into(),
            offset: (HEADER + n as u32 * 64).into(),
            len: 60.into(),
            expiry: 0.into(),
            group: 1.into(),
            epoch_slot: 2.into(),
            ns: 3.into(),
            reserved: 0.into(),
        }
    }

    proptest! {
        #[test]
        fn a_footer_reads_back_and_every_flipped_bit_is_noticed(
            n in 0u64..300,
            flip: prop::sample::Index,
        ) {
            let id = SegmentId { uuid: [9; 16], segment: 5, generation: 77 };
            let entries: Vec<_> = (0..n).map(entry).collect();
            let mut out = vec![1; footer_len(entries.len()) as usize];
            encode_footer(&mut out, &id, &entries);
            prop_assert_eq!(decode_footer(&out, &id.uuid, 5, SIZE), Some((77, &entries[..])));
            let trailer = &out[out.len() - 64..];
            prop_assert_eq!(decode_trailer(trailer, &id.uuid, 5), Some((77, entries.len())));
            prop_assert_eq!(decode_footer(&out, &[8; 16], 5, SIZE), None);
            prop_assert_eq!(decode_footer(&out, &id.uuid, 6, SIZE), None);
            let covered = entries.len() * 40;
            let bit = flip.index((covered + 64) * 8);
            let byte = if bit / 8 < covered { bit / 8 } else { out.len() - 64 + bit / 8 - covered };
            out[byte] ^= 1 << (bit % 8);
            prop_assert_eq!(decode_footer(&out, &id.uuid, 5, SIZE), None);
        }

        #[test]
        fn records_that_cannot_be_are_refused_whatever_the_checksum_says(
            offset in prop_oneof![Just(0), Just(65), 64u32..SIZE, Just(SIZE - 64), any::<u32>()],
            len in prop_oneof![
                Just(31), Just(32), Just(SIZE / 4), Just(SIZE / 4 + 1), any::<u32>()
            ],
        ) {
            let id = SegmentId { uuid: [9; 16], segment: 5, generation: 77 };
            let odd = FooterEntry { offset: offset.into(), len: len.into(), ..entry(2) };
            let entries = [entry(1), odd];
            let mut out = vec![0; footer_len(2) as usize];
            encode_footer(&mut out, &id, &entries);
            let end = u64::from(offset) + u64::from(len);
            let possible = offset % 64 == 0
                && offset >= 64
                && (32..=SIZE / 4).contains(&len)
                && end <= SIZE.into();
            prop_assert_eq!(decode_footer(&out, &id.uuid, 5, SIZE).is_some(), possible);
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!(decode_footer(&bytes, &[0; 16], 0, SIZE), None);
            prop_assert_eq!(decode_header(&bytes, &[0; 16], 0), None);
        }
    }
}
