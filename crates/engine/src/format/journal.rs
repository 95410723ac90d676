//! The journal: a ring of fixed-size entries behind one header block.
//!
//! ```text
//!  0            4096                                          size
//! +------------+---------+---------+-- ... --+---------+
//! | header     | entry 0 | entry 1 |         | entry n |
//! +------------+---------+---------+-- ... --+---------+
//! ```
//! Position p (counted from the creation of the journal) lives in slot p mod n; `lap` is p div n.
//! Entries are independent. Each carries its own checksum, seeded with the cache's uuid and the
//! journal's epoch. So reading goes on behind a hole that a dead writer left. Entry, 32 bytes:
//! ```text
//!  0       8          16     20      22       23        24     28           32
//! +-------+----------+------+-------+--------+---------+------+------------+
//! | hash  | version  | arg  | ns    | kind   | reserved| lap  | checksum   |
//! | u64   | u64      | u32  | u16   | u8     | u8      | u32  | u32        |
//! +-------+----------+------+-------+--------+---------+------+------------+
//! ```
//! Header: magic 8, format u32, reserved u32, uuid 16, checksum u64 (fixed at creation). At 64 is
//! the poison flag (u64, 0 when sound), at 72 the highest Unix time seen (u64). At 80 is a position
//! (u64). Below it entries may be missing although the poison was lifted, because a checkpoint made
//! up for them. These are single words, stored whole.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{checksum, mix};

/// Version of the journal: the same since format 1.
const FORMAT: u32 = 1;
/// Bytes before the first entry.
pub const HEADER: u64 = 4096;
/// Bytes of an entry.
pub const ENTRY: u64 = 32;
/// Where the poison flag lives.
pub const POISON_AT: u64 = 64;
/// Where the position lives below which entries may be missing: a checkpoint has made up for them.
pub const SOUND_FROM_AT: u64 = 80;
/// Where the highest Unix time seen lives.
pub const TIME_AT: u64 = 72;

const MAGIC: [u8; 8] = *b"aglowJNL";

/// What an entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A put or remove: kills lower versions of the hash.
    Kill {
        /// Hash of namespace and key.
        hash: u64,
        /// Namespace id.
        ns: u16,
    },
    /// A group was removed: kills lower versions in it.
    Group {
        /// Namespace id.
        ns: u16,
        /// The group.
        group: u32,
    },
    /// A partition epoch was bumped: kills lower versions in its slot.
    Epoch {
        /// Namespace id.
        ns: u16,
        /// Slot, below 2^20.
        slot: u32,
    },
    /// A namespace was cleared.
    Clear {
        /// Namespace id.
        ns: u16,
    },
    /// A segment was opened; its generation is the entry's version.
    Open {
        /// Logical segment.
        segment: u32,
    },
}

impl Event {
    /// The namespace it removes something from.
    #[must_use]
    pub fn namespace(&self) -> Option<u16> {
        match *self {
            Self::Kill { ns, .. }
            | Self::Group { ns, .. }
            | Self::Epoch { ns, .. }
            | Self::Clear { ns } => Some(ns),
            Self::Open { .. } => None,
        }
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    hash: U64,
    version: U64,
    arg: U32,
    ns: U16,
    kind: u8,
    reserved: u8,
    lap: U32,
    checksum: U32,
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY as usize);

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalEntry {
    /// What happened.
    pub event: Event,
    /// Version of what happened.
    pub version: u64,
    /// Low 32 bits of the lap.
    pub lap: u32,
}

impl JournalEntry {
    /// The bytes of the entry.
    #[must_use]
    pub fn encode(&self, seed: u64) -> [u8; ENTRY as usize] {
        let (kind, hash, ns, arg) = match self.event {
            Event::Kill { hash, ns } => (1, hash, ns, 0),
            Event::Group { ns, group } => (2, 0, ns, group),
            Event::Epoch { ns, slot } => (3, 0, ns, slot),
            Event::Clear { ns } => (4, 0, ns, 0),
            Event::Open { segment } => (5, 0, 0, segment),
        };
        let mut raw = RawEntry {
            hash: hash.into(),
            version: self.version.into(),
            arg: arg.into(),
            ns: ns.into(),
            kind,
            reserved: 0,
            lap: self.lap.into(),
            checksum: 0.into(),
        };
        raw.checksum = (checksum(seed, &raw.as_bytes()[..28]) as u32).into();
        zerocopy::transmute!(raw)
    }

    /// The entry in `bytes`, if it is whole and of this journal.
    #[must_use]
    pub fn decode(bytes: &[u8], seed: u64) -> Option<Self> {
        let raw = RawEntry::ref_from_bytes(bytes).ok()?;
        if raw.kind == 0 || checksum(seed, &bytes[..28]) as u32 != raw.checksum.get() {
            return None;
        }
        let (ns, arg) = (raw.ns.get(), raw.arg.get());
        let event = match raw.kind {
            1 => Event::Kill { hash: raw.hash.get(), ns },
            2 => Event::Group { ns, group: arg },
            3 => Event::Epoch { ns, slot: arg },
            4 => Event::Clear { ns },
            5 => Event::Open { segment: arg },
            _ => return None,
        };
        Some(Self { event, version: raw.version.get(), lap: raw.lap.get() })
    }
}

/// The lap an entry claims, not verified; `None` where nothing was ever written. For skipping
/// quickly over old ones.
#[must_use]
pub fn claimed_lap(bytes: &[u8]) -> Option<u32> {
    let raw = RawEntry::ref_from_bytes(bytes).ok()?;
    (raw.kind != 0).then(|| raw.lap.get())
}

/// Seed of the entries' checksums: entries of another cache or of an earlier epoch of the journal
/// are not believed.
#[must_use]
pub fn seed(uuid: &[u8; 16], epoch: u64) -> u64 {
    checksum(mix(epoch), uuid)
}

/// The fixed part of the header.
#[must_use]
pub fn encode_header(uuid: &[u8; 16]) -> [u8; 40] {
    let mut out = [0; 40];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    out[16..32].copy_from_slice(uuid);
    let sum = checksum(0, &out[..32]);
    out[32..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Whether `bytes` is the header of the journal of this cache.
#[must_use]
pub fn is_header(bytes: &[u8], uuid: &[u8; 16]) -> bool {
    bytes == encode_header(uuid)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (any::<u64>(), any::<u16>()).prop_map(|(hash, ns)| Event::Kill { hash, ns }),
            (any::<u16>(), any::<u32>()).prop_map(|(ns, group)| Event::Group { ns, group }),
            (any::<u16>(), any::<u32>()).prop_map(|(ns, slot)| Event::Epoch { ns, slot }),
            any::<u16>().prop_map(|ns| Event::Clear { ns }),
            any::<u32>().prop_map(|segment| Event::Open { segment }),
        ]
    }

    proptest! {
        #[test]
        fn an_entry_reads_back_and_every_flipped_bit_is_noticed(
            event in event(), version: u64, lap: u32, seed: u64, bit in 0usize..256,
        ) {
            let entry = JournalEntry { event, version, lap };
            let mut bytes = entry.encode(seed);
            prop_assert_eq!(JournalEntry::decode(&bytes, seed), Some(entry));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(JournalEntry::decode(&bytes, seed), None);
        }
    }

    #[test]
    fn a_hole_is_no_entry() {
        assert_eq!(JournalEntry::decode(&[0; 32], 0), None);
    }
}
