//! What a record on flash and its entry in a footer have in common, in as few bytes as it takes.
//!
//! A byte of flags says which fields there are, and how long they are. Then come:
//! ```text
//! +------------------+-----------+-----------+-----------+------------+
//! | version          | namespace | expiry    | group     | epoch slot |
//! | 5 or 8 bytes     | 1 or 2    | 0 or 4    | 0 or 4    | 0 or 3     |
//! +------------------+-----------+-----------+-----------+------------+
//! ```
//! A version is close to the generation of its segment: both are taken from the same counter. So
//! five bytes hold the difference, unless the record has lived for half a billion changes.
//!
//! | bit | meaning |
//! |---|---|
//! | 0-1 | bytes of the length, less one |
//! | 2 | free for the structure: a long key, or an offset |
//! | 3 | the namespace has two bytes |
//! | 4 | the version has eight bytes |
//! | 5 | there is an expiry |
//! | 6 | there is a group |
//! | 7 | there is a partition epoch |

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

/// Most bytes of the fields.
pub(super) const MAX_FIELDS: usize = 8 + 2 + 4 + 4 + 3;
/// Bytes of the fields of an object without expiry, group and partition.
pub(super) const USUAL_FIELDS: usize = 5 + 1;

/// Bytes of a version as the difference to the generation.
const NEAR: usize = 5;
/// Differences below it, in both directions, have [`NEAR`] bytes.
const NEAR_VERSIONS: i64 = 1 << 39;

const STRUCTURE: u8 = 1 << 2;
const WIDE_NAMESPACE: u8 = 1 << 3;
const WHOLE_VERSION: u8 = 1 << 4;
const EXPIRY: u8 = 1 << 5;
const GROUP: u8 = 1 << 6;
const EPOCH: u8 = 1 << 7;

/// The byte in front of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flags(pub(super) u8);

impl Flags {
    /// Those of an object in a segment of `generation`, with a length that is below 2^24.
    pub(super) fn of(meta: &Meta, generation: u64, len: u32, structure: bool) -> Self {
        let when = |yes: bool, flag: u8| if yes { flag } else { 0 };
        Self(
            (bytes_of(len) as u8 - 1)
                | when(structure, STRUCTURE)
                | when(meta.ns > 0xff, WIDE_NAMESPACE)
                | when(!is_near(meta.version, generation), WHOLE_VERSION)
                | when(meta.expiry != 0, EXPIRY)
                | when(meta.group != 0, GROUP)
                | when(meta.epoch_slot != 0, EPOCH),
        )
    }

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// The bit that means something else in each structure.
    pub(super) fn has_structure(self) -> bool {
        self.has(STRUCTURE)
    }

    /// Bytes of the length.
    pub(super) fn len_bytes(self) -> usize {
        usize::from(self.0 & 3) + 1
    }
}

/// Bytes that a length below 2^24 takes, at least one.
pub(super) fn bytes_of(len: u32) -> usize {
    match len {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 3,
    }
}

fn is_near(version: u64, generation: u64) -> bool {
    (-NEAR_VERSIONS..NEAR_VERSIONS).contains(&(version.wrapping_sub(generation) as i64))
}

/// Writes fields one behind the other. Each is stored with eight bytes, of which the next one
/// takes back what is too many: a copy of a length that is not known takes longer.
pub(super) struct FieldWriter {
    out: [u8; ROOM],
    at: usize,
}

/// More than the fields of any structure, and what the last store has too many.
const ROOM: usize = 64;

impl FieldWriter {
    pub(super) fn new() -> Self {
        Self { out: [0; ROOM], at: 0 }
    }

    /// What was written.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.out[..self.at]
    }

    /// The low bytes of a number, at most eight.
    pub(super) fn put(&mut self, n: u64, bytes: usize) {
        debug_assert!(bytes == 8 || n >> (8 * bytes) == 0 || bytes == NEAR, "{n} in {bytes}");
        self.out[self.at..self.at + 8].copy_from_slice(&n.to_le_bytes());
        self.at += bytes;
    }

    /// The fields that `flags` says there are.
    pub(super) fn put_fields(&mut self, flags: Flags, meta: &Meta, generation: u64) {
        match flags.has(WHOLE_VERSION) {
            true => self.put(meta.version, 8),
            false => self.put(meta.version.wrapping_sub(generation), NEAR),
        }
        self.put(meta.ns.into(), if flags.has(WIDE_NAMESPACE) { 2 } else { 1 });
        if flags.has(EXPIRY) {
            self.put(meta.expiry.into(), 4);
        }
        if flags.has(GROUP) {
            self.put(meta.group.into(), 4);
        }
        if flags.has(EPOCH) {
            assert!(meta.epoch_slot < 1 << 24, "{} does not fit 24 bits", meta.epoch_slot);
            self.put(meta.epoch_slot.into(), 3);
        }
    }
}

/// Reads fields one behind the other.
pub(super) struct FieldCursor<'a> {
    bytes: &'a [u8],
    /// Bytes read.
    pub(super) at: usize,
}

impl<'a> FieldCursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A number of so many bytes, one to eight; `None` at the end.
    pub(super) fn take(&mut self, bytes: usize) -> Option<u64> {
        let rest = self.bytes.get(self.at..)?;
        let word = match rest.first_chunk() {
            // One load, and what is too many is cut off.
            Some(word) => u64::from_le_bytes(*word) & (u64::MAX >> (64 - 8 * bytes)),
            None => {
                let mut word = [0; 8];
                word[..bytes].copy_from_slice(rest.get(..bytes)?);
                u64::from_le_bytes(word)
            }
        };
        self.at += bytes;
        Some(word)
    }

    /// The byte of flags.
    pub(super) fn take_flags(&mut self) -> Option<Flags> {
        Some(Flags(self.take(1)? as u8))
    }

    /// The fields that `flags` says there are.
    pub(super) fn take_fields(&mut self, flags: Flags, generation: u64) -> Option<Meta> {
        let version = match flags.has(WHOLE_VERSION) {
            true => self.take(8)?,
            false => {
                let unused = 64 - 8 * NEAR as u32;
                let difference = ((self.take(NEAR)? << unused) as i64) >> unused;
                generation.wrapping_add_signed(difference)
            }
        };
        let ns = self.take(if flags.has(WIDE_NAMESPACE) { 2 } else { 1 })? as u16;
        let mut optional = |flag, bytes| match flags.has(flag) {
            true => Some(self.take(bytes)? as u32),
            false => Some(0),
        };
        let (expiry, group) = (optional(EXPIRY, 4)?, optional(GROUP, 4)?);
        Some(Meta { ns, version, expiry, group, epoch_slot: optional(EPOCH, 3)? })
    }
}
