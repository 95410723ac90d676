//! A record: one object on flash. It starts at a multiple of 64 bytes and never spans segments.
//!
//! ```text
//!  0                   6       8              16         20        24          27          30      32
//! +-------------------+-------+--------------+----------+---------+-----------+-----------+-------+-----+-------+
//! | checksum (48 bit) | ns    | version      | expiry   | group   | value len | epoch slot| key   | key | value |
//! |                   | u16   | u64          | u32      | u32     | u24       | u24       | len16 |     |       |
//! +-------------------+-------+--------------+----------+---------+-----------+-----------+-------+-----+-------+
//! ```
//! The checksum is the low 48 bits of XXH3-64 over everything behind it. Its seed is the cache's
//! hash seed, the segment's generation and the record's offset in the segment. So a record of an
//! earlier generation, of another cache or in a wrong place fails the check.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{UNIT, checksum, mix, round_up};

/// Bytes of a record's header.
pub const HEADER: usize = 32;
/// Longest key.
pub const MAX_KEY: usize = u16::MAX as usize;
/// Longest value the format can hold (the segment size bounds it further).
pub const MAX_VALUE: usize = (1 << 24) - 1;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecordHeader {
    checksum: [u8; 6],
    ns: U16,
    version: U64,
    expiry: U32,
    group: U32,
    value_len: [u8; 3],
    epoch_slot: [u8; 3],
    key_len: U16,
}

const _: () = assert!(size_of::<RawRecordHeader>() == HEADER);

/// What is stored with a key and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// Namespace id.
    pub ns: u16,
    /// Version of the put.
    pub version: u64,
    /// Unix seconds, 0 for never.
    pub expiry: u32,
    /// Group, 0 for none.
    pub group: u32,
    /// Slot of the partition epoch, below 2^20.
    pub epoch_slot: u32,
}

/// A record found to be whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// What is stored with it.
    pub meta: Meta,
    /// The full key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Seed of the checksum of a record at `offset` of a segment of `generation`.
#[must_use]
pub fn seed(hash_seed: u64, generation: u64, offset: u32) -> u64 {
    // Each input goes through the bijection of its own, so that no two places of a segment share a
    // seed.
    mix(mix(hash_seed ^ mix(generation)) ^ u64::from(offset))
}

/// Bytes of a record, without padding.
#[must_use]
pub fn len(key: usize, value: usize) -> usize {
    HEADER + key + value
}

/// Bytes a record takes in its segment.
#[must_use]
pub fn padded_len(key: usize, value: usize) -> u32 {
    round_up(len(key, value) as u64, u64::from(UNIT)) as u32
}

fn u24(n: u32) -> [u8; 3] {
    let [a, b, c, top] = n.to_le_bytes();
    assert!(top == 0, "{n} does not fit 24 bits");
    [a, b, c]
}

fn from_u24(b: [u8; 3]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], 0])
}

/// Writes a record to the start of `out` and returns its length without padding.
///
/// # Panics
/// When key or value exceed the format's bounds, or `out` is too short: the caller has checked
/// both.
pub fn encode(out: &mut [u8], seed: u64, meta: &Meta, key: &[u8], value: &[u8]) -> usize {
    assert!(key.len() <= MAX_KEY && value.len() <= MAX_VALUE);
    let len = len(key.len(), value.len());
    let out = &mut out[..len];
    let header = RawRecordHeader {
        checksum: [0; 6],
        ns: meta.ns.into(),
        version: meta.version.into(),
        expiry: meta.expiry.into(),
        group: meta.group.into(),
        value_len: u24(value.len() as u32),
        epoch_slot: u24(meta.epoch_slot),
        key_len: (key.len() as u16).into(),
    };
    out[..HEADER].copy_from_slice(header.as_bytes());
    out[HEADER..HEADER + key.len()].copy_from_slice(key);
    out[HEADER + key.len()..].copy_from_slice(value);
    let sum = checksum(seed, &out[6..]).to_le_bytes();
    out[..6].copy_from_slice(&sum[..6]);
    len
}

/// Namespace, version and length that a header claims, not verified: for skipping quickly over what
/// cannot be a record.
#[must_use]
pub fn claims(bytes: &[u8]) -> Option<(u16, u64, usize)> {
    let (header, _) = RawRecordHeader::ref_from_prefix(bytes).ok()?;
    let len = len(usize::from(header.key_len.get()), from_u24(header.value_len) as usize);
    Some((header.ns.get(), header.version.get(), len))
}

/// The record at the start of `bytes`, if it is whole under `seed`; bytes behind it are ignored.
#[must_use]
pub fn decode(bytes: &[u8], seed: u64) -> Option<Record<'_>> {
    let (header, rest) = RawRecordHeader::ref_from_prefix(bytes).ok()?;
    let (key_len, value_len) =
        (usize::from(header.key_len.get()), from_u24(header.value_len) as usize);
    let body = rest.get(..key_len + value_len)?;
    let sum = checksum(seed, &bytes[6..HEADER + body.len()]).to_le_bytes();
    if sum[..6] != header.checksum {
        return None;
    }
    let (key, value) = body.split_at(key_len);
    let meta = Meta {
        ns: header.ns.get(),
        version: header.version.get(),
        expiry: header.expiry.get(),
        group: header.group.get(),
        epoch_slot: from_u24(header.epoch_slot),
    };
    Some(Record { meta, key, value })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_record_reads_back_and_every_flipped_bit_is_noticed(
            ns: u16, version: u64, expiry: u32, group: u32, epoch_slot in 0u32..1 << 20,
            key in proptest::collection::vec(any::<u8>(), 0..80),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            s: u64, flip: prop::sample::Index,
        ) {
            let meta = Meta { ns, version, expiry, group, epoch_slot };
            let mut buf = vec![0xa5; padded_len(key.len(), value.len()) as usize];
            let len = encode(&mut buf, s, &meta, &key, &value);
            prop_assert_eq!(decode(&buf, s), Some(Record { meta, key: &key, value: &value }));
            prop_assert_eq!(decode(&buf, s ^ 1), None);
            let bit = flip.index(len * 8);
            buf[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(&buf, s), None);
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), s: u64) {
            prop_assert_eq!(decode(&bytes, s), None);
        }
    }

    #[test]
    fn seeds_differ_by_generation_and_place() {
        assert_ne!(seed(1, 2, 3), seed(1, 3, 3));
        assert_ne!(seed(1, 2, 3), seed(1, 2, 4));
        assert_ne!(seed(1, 2, 3), seed(2, 2, 3));
        // Places a whole number of chunks apart, as a misdirected chunk would put them.
        for chunk in 1..16 {
            assert_ne!(seed(1, 2, 64), seed(1, 2, 64 + (chunk << 20)), "chunk {chunk}");
        }
    }
}
