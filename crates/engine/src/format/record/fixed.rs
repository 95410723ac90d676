//! Records of format 1: a header of 32 bytes, at multiples of 64 bytes. They are only read.
//!
//! ```text
//!  0                   6       8              16         20        24          27          30      32
//! +-------------------+-------+--------------+----------+---------+-----------+-----------+-------+-----+-------+
//! | checksum (48 bit) | ns    | version      | expiry   | group   | value len | epoch slot| key   | key | value |
//! |                   | u16   | u64          | u32      | u32     | u24       | u24       | len16 |     |       |
//! +-------------------+-------+--------------+----------+---------+-----------+-----------+-------+-----+-------+
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Meta;

/// Records start at multiples of it.
pub(super) const UNIT: u32 = 64;
/// Bytes of a record's header.
const HEADER: usize = 32;

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

fn from_u24(b: [u8; 3]) -> u32 {
    u32::from_le_bytes([b[0], b[1], b[2], 0])
}

/// What a header says, and the bytes of header, key and value.
pub(super) fn read(bytes: &[u8]) -> Option<(Meta, [usize; 3])> {
    let (header, _) = RawRecordHeader::ref_from_prefix(bytes).ok()?;
    let meta = Meta {
        ns: header.ns.get(),
        version: header.version.get(),
        expiry: header.expiry.get(),
        group: header.group.get(),
        epoch_slot: from_u24(header.epoch_slot),
    };
    let (key, value) = (usize::from(header.key_len.get()), from_u24(header.value_len) as usize);
    Some((meta, [HEADER, key, value]))
}

/// Writes a record, as format 1 did: for tests of reading it.
#[cfg(test)]
pub(super) fn encode(out: &mut [u8], seed: u64, meta: &Meta, key: &[u8], value: &[u8]) -> usize {
    let u24 = |n: u32| {
        let [a, b, c, top] = n.to_le_bytes();
        assert!(top == 0, "{n} does not fit 24 bits");
        [a, b, c]
    };
    let len = HEADER + key.len() + value.len();
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
    out[HEADER + key.len()..len].copy_from_slice(value);
    let sum = super::checksum(seed, &out[6..len]).to_le_bytes();
    out[..6].copy_from_slice(&sum[..6]);
    len
}
