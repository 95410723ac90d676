//! The entries of a footer: one for each record of its segment, in the order of their places.
//!
//! ```text
//!  0       1        9         22 at most    1 to 3    0 or 3
//! +-------+--------+---------+-------------+---------+----------+
//! | flags | hash   | fields  |             | length  | offset   |
//! +-------+--------+---------+-------------+---------+----------+
//! ```
//! Flags and fields are those of [`super::fields`], with the length of the record without padding.
//! The structure's own flag says that there is an offset, in units of 16 bytes. Without one the
//! record starts right behind the one before, padded. The first starts behind the header.
//!
//! Format 1 had entries of 40 bytes:
//! ```text
//!  0       8          16        20       24        28       32            36     38         40
//! +-------+----------+---------+--------+---------+--------+-------------+------+----------+
//! | hash  | version  | offset  | length | expiry  | group  | epoch slot  | ns   | reserved |
//! +-------+----------+---------+--------+---------+--------+-------------+------+----------+
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::UNIT;
use super::fields::{FieldCursor, FieldWriter, Flags, MAX_FIELDS, USUAL_FIELDS, bytes_of};
use super::record::{self, Meta, RecordFormat};

/// Bytes in front of a segment's first record.
pub(super) const SEGMENT_HEADER: u32 = 64;
/// Most bytes of an entry.
pub const MAX_ENTRY: usize = 1 + 8 + MAX_FIELDS + 3 + OFFSET;
/// Bytes of an entry of format 1.
pub(super) const FIXED: usize = 40;

const OFFSET: usize = 3;

/// One record, as its segment's footer tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FooterEntry {
    /// Keyed 64-bit hash of namespace and key.
    pub hash: u64,
    /// What is stored with the record.
    pub meta: Meta,
    /// Start in the segment, a multiple of 16.
    pub offset: u32,
    /// Bytes without padding.
    pub len: u32,
}

impl FooterEntry {
    /// Whether a segment of `segment_size` bytes can have such a record.
    pub(super) fn is_possible(&self, segment_size: u32) -> bool {
        self.offset.is_multiple_of(UNIT)
            && self.offset >= SEGMENT_HEADER
            && self.len >= record::MIN_RECORD as u32
            && self.len <= segment_size / 4
            && self.offset.checked_add(self.len).is_some_and(|end| end <= segment_size)
    }
}

/// Bytes of the entry of a record of `len` bytes, if its object has no expiry, group and partition.
#[must_use]
pub fn usual_entry(len: u32) -> usize {
    1 + 8 + USUAL_FIELDS + bytes_of(len)
}

/// The entries of a segment, encoded as they come.
#[derive(Debug, Clone)]
pub struct EntryList {
    generation: u64,
    records: RecordFormat,
    bytes: Vec<u8>,
    count: u32,
    /// Where a record starts that is right behind the last.
    next: u32,
}

/// A place among the entries of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPosition {
    at: usize,
    next: u32,
}

impl Default for EntryPosition {
    fn default() -> Self {
        Self { at: 0, next: SEGMENT_HEADER }
    }
}

impl EntryList {
    /// Of a segment of `generation`, whose records have this format.
    #[must_use]
    pub fn new(generation: u64, records: RecordFormat) -> Self {
        Self { generation, records, bytes: Vec::new(), count: 0, next: SEGMENT_HEADER }
    }

    /// Adds the entry of the next record.
    pub fn push(&mut self, entry: &FooterEntry) {
        let moved = entry.offset != self.next;
        let flags = Flags::of(&entry.meta, self.generation, entry.len, moved);
        let mut fields = FieldWriter::new();
        fields.put(flags.0.into(), 1);
        fields.put(entry.hash, 8);
        fields.put_fields(flags, &entry.meta, self.generation);
        fields.put(entry.len.into(), flags.len_bytes());
        if moved {
            fields.put((entry.offset / UNIT).into(), OFFSET);
        }
        self.bytes.extend_from_slice(fields.bytes());
        self.count += 1;
        self.next = entry.offset + self.records.padded(entry.len);
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// How its records are written.
    #[cfg(test)]
    pub(super) fn records(&self) -> RecordFormat {
        self.records
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// At most so many entries from a position on, which moves behind them.
    pub fn read(&self, position: &mut EntryPosition, most: usize) -> Vec<FooterEntry> {
        let mut cursor = FieldCursor::new(&self.bytes[position.at..]);
        let mut found = Vec::new();
        while found.len() < most && position.at + cursor.at < self.bytes.len() {
            let entry = take(&mut cursor, self.generation, self.records, &mut position.next);
            found.push(entry.expect("as it was written"));
        }
        position.at += cursor.at;
        found
    }
}

/// Reads an entry. `next` is where its record starts if it is right behind the one before, and then
/// where one starts behind it. `None` where there is no entry.
fn take(
    cursor: &mut FieldCursor<'_>,
    generation: u64,
    records: RecordFormat,
    next: &mut u32,
) -> Option<FooterEntry> {
    let flags = cursor.take_flags()?;
    let hash = cursor.take(8)?;
    let meta = cursor.take_fields(flags, generation)?;
    let len = cursor.take(flags.len_bytes())? as u32;
    let offset = match flags.has_structure() {
        true => cursor.take(OFFSET)? as u32 * UNIT,
        false => *next,
    };
    if len > super::MAX_SEGMENT {
        return None;
    }
    *next = offset.checked_add(records.padded(len))?;
    Some(FooterEntry { hash, meta, offset, len })
}

/// The entries in `bytes`; `None` where they are none.
pub(super) fn decode(
    bytes: &[u8],
    generation: u64,
    records: RecordFormat,
) -> Option<Vec<FooterEntry>> {
    let (mut cursor, mut entries) = (FieldCursor::new(bytes), Vec::new());
    let mut next = SEGMENT_HEADER;
    while cursor.at < bytes.len() {
        entries.push(take(&mut cursor, generation, records, &mut next)?);
    }
    Some(entries)
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawFixedEntry {
    hash: U64,
    version: U64,
    offset: U32,
    len: U32,
    expiry: U32,
    group: U32,
    epoch_slot: U32,
    ns: U16,
    reserved: U16,
}

const _: () = assert!(size_of::<RawFixedEntry>() == FIXED);
/// What recovery writes for a segment of format 1 fits the space that format 1 has kept.
const _: () = assert!(MAX_ENTRY <= FIXED);

/// The entries of a footer of format 1.
pub(super) fn decode_fixed(bytes: &[u8]) -> Option<Vec<FooterEntry>> {
    let entry = |raw: &RawFixedEntry| FooterEntry {
        hash: raw.hash.get(),
        meta: Meta {
            ns: raw.ns.get(),
            version: raw.version.get(),
            expiry: raw.expiry.get(),
            group: raw.group.get(),
            epoch_slot: raw.epoch_slot.get(),
        },
        offset: raw.offset.get(),
        len: raw.len.get(),
    };
    Some(<[RawFixedEntry]>::ref_from_bytes(bytes).ok()?.iter().map(entry).collect())
}

/// The entries as format 1 wrote them: for tests of reading them.
#[cfg(test)]
pub(super) fn encode_fixed(entries: &[FooterEntry]) -> Vec<u8> {
    let raw = |entry: &FooterEntry| RawFixedEntry {
        hash: entry.hash.into(),
        version: entry.meta.version.into(),
        offset: entry.offset.into(),
        len: entry.len.into(),
        expiry: entry.meta.expiry.into(),
        group: entry.meta.group.into(),
        epoch_slot: entry.meta.epoch_slot.into(),
        ns: entry.meta.ns.into(),
        reserved: 0.into(),
    };
    entries.iter().map(raw).flat_map(|raw| raw.as_bytes().to_vec()).collect()
}
