//! The superblock: what a device is and how it is divided. One block at 0, a copy at 4096; written
//! once, when the cache is created, so it cannot be torn by later changes.
//!
//! ```text
//!  0        8        12      14      16      32       36      40          48     56        60        64       72       80     88
//! +--------+--------+-------+-------+-------+--------+-------+-----------+------+---------+---------+--------+--------+------+----------+
//! | magic  | format | cipher| 0     | uuid  | device | count | set epoch | size | segment | segments| check- | area   | hash | checksum |
//! |        | u32    | u16   |       |       | u32    | u32   | u64       | u64  | size    | here    | points | bytes  | seed | u64      |
//! +--------+--------+-------+-------+-------+--------+-------+-----------+------+---------+---------+--------+--------+------+----------+
//!
//! device:
//!  0         8192 = checkpoints                              first_segment                                size
//! +-----------+--------------------+--------------------+ - +-----------+-----------+-- ... --+-----------+
//! | superblock| checkpoint area A  | checkpoint area B  |   | segment 0 | segment 1 |         | segment n |
//! +-----------+--------------------+--------------------+ - +-----------+-----------+-- ... --+-----------+
//! ```
//! Areas exist on the homes of checkpoints only; `area bytes` is 0 elsewhere. Cipher 0 means plain;
//! the field is reserved.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK, FORMAT_VERSION, MAX_SEGMENT, checksum, is_read, round_up};

/// Bytes both copies take; what follows starts here.
pub const RESERVED: u64 = 2 * BLOCK as u64;

const MAGIC: [u8; 8] = *b"aglowDEV";

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    cipher: U16,
    reserved: U16,
    uuid: [u8; 16],
    device: U32,
    devices: U32,
    set_epoch: U64,
    size: U64,
    segment_size: U32,
    segments: U32,
    checkpoints: U64,
    area: U64,
    hash_seed: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<Raw>() == 96);

/// A device's superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The cache it belongs to.
    pub uuid: [u8; 16],
    /// Its position in the list of devices.
    pub device: u32,
    /// How many devices the cache has.
    pub devices: u32,
    /// Incarnation of the set of devices.
    pub set_epoch: u64,
    /// Bytes used on this device.
    pub size: u64,
    /// Bytes per segment.
    pub segment_size: u32,
    /// Segments on this device.
    pub segments: u32,
    /// Bytes per checkpoint area (two of them), 0 when there are none on this device.
    pub area: u64,
    /// Key of all hashes.
    pub hash_seed: u64,
}

/// What the first block of a device turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A superblock of this format.
    Ours(Superblock),
    /// Nothing but zeros: a new device.
    Blank,
    /// A superblock of another format version.
    OtherFormat(u32),
    /// Something else: a file that is not ours, or damage.
    Foreign,
}

impl Superblock {
    /// Offset of checkpoint area `which` (0 or 1).
    #[must_use]
    pub fn area_at(&self, which: u32) -> u64 {
        RESERVED + u64::from(which) * self.area
    }

    /// Offset of the first segment.
    #[must_use]
    pub fn first_segment(&self) -> u64 {
        round_up(RESERVED + 2 * self.area, u64::from(BLOCK))
    }

    /// Both copies, [`RESERVED`] bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = Raw {
            magic: MAGIC,
            format: FORMAT_VERSION.into(),
            cipher: 0.into(),
            reserved: 0.into(),
            uuid: self.uuid,
            device: self.device.into(),
            devices: self.devices.into(),
            set_epoch: self.set_epoch.into(),
            size: self.size.into(),
            segment_size: self.segment_size.into(),
            segments: self.segments.into(),
            checkpoints: RESERVED.into(),
            area: self.area.into(),
            hash_seed: self.hash_seed.into(),
            checksum: 0.into(),
        };
        raw.checksum = checksum(0, &raw.as_bytes()[..88]).into();
        let mut out = vec![0; RESERVED as usize];
        for at in [0, BLOCK as usize] {
            out[at..at + 96].copy_from_slice(raw.as_bytes());
        }
        out
    }

    /// What the first [`RESERVED`] bytes of a device say.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Found {
        let copies = bytes.chunks_exact(BLOCK as usize).take(2).map(Self::decode_copy);
        // A sound copy wins; else the first one that is not blank says what is wrong.
        let mut found = Found::Blank;
        for copy in copies {
            match copy {
                Found::Ours(_) => return copy,
                other if found == Found::Blank => found = other,
                _ => {}
            }
        }
        found
    }

    fn decode_copy(bytes: &[u8]) -> Found {
        if bytes.iter().all(|&b| b == 0) {
            return Found::Blank;
        }
        let Ok((raw, _)) = Raw::read_from_prefix(bytes) else { return Found::Foreign };
        if raw.magic != MAGIC {
            return Found::Foreign;
        }
        if !is_read(raw.format.get()) {
            return Found::OtherFormat(raw.format.get());
        }
        if raw.cipher.get() != 0 || checksum(0, &raw.as_bytes()[..88]) != raw.checksum.get() {
            return Found::Foreign;
        }
        let block = Self {
            uuid: raw.uuid,
            device: raw.device.get(),
            devices: raw.devices.get(),
            set_epoch: raw.set_epoch.get(),
            size: raw.size.get(),
            segment_size: raw.segment_size.get(),
            segments: raw.segments.get(),
            area: raw.area.get(),
            hash_seed: raw.hash_seed.get(),
        };
        if block.is_possible() { Found::Ours(block) } else { Found::Foreign }
    }

    /// Whether areas and segments lie within the device, so that whoever computes with them need
    /// not look again.
    fn is_possible(&self) -> bool {
        let segments = u64::from(self.segments) * u64::from(self.segment_size);
        let end = self
            .area
            .checked_mul(2)
            .and_then(|areas| areas.checked_add(segments + RESERVED + u64::from(BLOCK)));
        self.device < self.devices
            && self.segment_size.is_power_of_two()
            && (BLOCK..=MAX_SEGMENT).contains(&self.segment_size)
            // A write to an area starts at a block.
            && self.area.is_multiple_of(BLOCK.into())
            && end.is_some()
            && self.first_segment() + segments <= self.size
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Superblock {
        Superblock {
            uuid: [3; 16],
            device: 0,
            devices: 1,
            set_epoch: 1,
            size: 1 << 30,
            segment_size: 1 << 20,
            segments: 1000,
            area: 1 << 16,
            hash_seed: 42,
        }
    }

    #[test]
    fn one_damaged_copy_is_survived_two_are_foreign() {
        let mut bytes = sample().encode();
        bytes[20] ^= 1;
        assert_eq!(Superblock::decode(&bytes), Found::Ours(sample()));
        bytes[4096 + 20] ^= 1;
        assert_eq!(Superblock::decode(&bytes), Found::Foreign);
    }

    #[test]
    fn another_format_and_a_blank_device_are_told_apart() {
        let mut bytes = sample().encode();
        bytes[8] = 9;
        bytes[4096 + 8] = 9;
        assert_eq!(Superblock::decode(&bytes), Found::OtherFormat(9));
        assert_eq!(Superblock::decode(&[0; 8192]), Found::Blank);
    }

    #[test]
    fn places_that_cannot_be_are_refused_whatever_the_checksum_says() {
        let impossible = [
            Superblock { segments: u32::MAX, ..sample() },
            Superblock { area: u64::MAX / 2, ..sample() },
            Superblock { area: 1 << 30, ..sample() },
            Superblock { area: (1 << 16) + 512, ..sample() },
            Superblock { size: 1 << 20, ..sample() },
            Superblock { segment_size: 0, ..sample() },
            Superblock { segment_size: 3 << 20, ..sample() },
            Superblock { segment_size: 32 << 20, segments: 1, ..sample() },
            Superblock { device: 1, ..sample() },
        ];
        for block in impossible {
            assert_eq!(Superblock::decode(&block.encode()), Found::Foreign, "{block:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert!(!matches!(Superblock::decode(&bytes), Found::Ours(_)));
        }
    }
}
