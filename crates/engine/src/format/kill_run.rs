//! A run of the kill log: the entries of a part of the journal, in less space and sorted, so that
//! the journal need not have them any more.
//!
//! ```text
//!  0        80                          80 + 64 * 32
//! +--------+--------+-- ... --+---------+------------------+--------+-- ... --+---------+
//! | header | part 0 |         | part 63 | other entries    | kills  |         | kills   |
//! |        | 32     |         | 32      | 32 each          | of 0   |         | of 63   |
//! +--------+--------+-- ... --+---------+------------------+--------+-- ... --+---------+
//! ```
//! Header, 80 bytes:
//! ```text
//! magic 8 | format u32 | parts u32 (64) | uuid 16 | journal epoch u64 | from u64 | to u64 |
//! others u32 | kills u32 | checksum of parts and other entries u64 | checksum of bytes 0 to 72 u64
//! ```
//! `from` and `to` are the journal positions whose entries it has. Part n has the puts and removes
//! whose hashes have n in their lowest 6 bits: a shard's are in a part, or in several whole ones.
//! Part, 32 bytes:
//! ```text
//! offset u32 | kills u32 | lowest version u64 | bits of a step u8 | bits of a version u8 | 0 u48 |
//! checksum of its kills u64
//! ```
//! Kills are sorted by the hash without its lowest 6 bits, each hash once with its highest version.
//! A kill is the step to that from the one before, then its version less the part's lowest. Both
//! are numbers of so many bits, one behind the other from the lowest bit of each byte on. Other
//! entries are as in the journal, with lap 0.
//!
//! All checksums are seeded with the journal's seed and `from`, so that no run passes for another.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::journal::{ENTRY, JournalEntry, seed};
use super::{checksum, mix};

const MAGIC: [u8; 8] = *b"aglowKIL";
const FORMAT: u32 = 1;

/// Parts of a run, by the lowest bits of the hash.
pub const PARTS: usize = 64;
/// How many these bits are.
const PART_BITS: u32 = PARTS.ilog2();
/// Bytes of a run before its other entries.
pub const HEAD: usize = size_of::<RawHeader>() + PARTS * size_of::<RawPart>();

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    format: U32,
    parts: U32,
    uuid: [u8; 16],
    epoch: U64,
    from: U64,
    to: U64,
    others: U32,
    kills: U32,
    tables: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<RawHeader>() == 80);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPart {
    offset: U32,
    kills: U32,
    lowest: U64,
    step_bits: u8,
    version_bits: u8,
    reserved: [u8; 6],
    checksum: U64,
}

const _: () = assert!(size_of::<RawPart>() == 32);

/// What a run is called by the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillRun {
    /// Which file of the data directory it is: see [`name`].
    pub slot: u32,
    /// The first of the journal's positions that it stands for.
    pub from: u64,
    /// One past the last of them.
    pub to: u64,
    /// Puts and removes in it.
    pub kills: u32,
    /// Checksum of its header.
    pub checksum: u64,
}

/// The name of the file of a slot.
#[must_use]
pub fn name(slot: u32) -> String {
    format!("kills.{slot}")
}

/// Where the kills of a part lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPart {
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// Its bytes.
    pub len: usize,
    kills: usize,
    lowest: u64,
    step_bits: u32,
    version_bits: u32,
    checksum: u64,
    seed: u64,
}

/// The part of a hash.
#[must_use]
pub fn part_of(hash: u64) -> usize {
    hash as usize % PARTS
}

fn run_seed(uuid: &[u8; 16], epoch: u64, from: u64) -> u64 {
    mix(seed(uuid, epoch) ^ mix(from ^ u64::from_le_bytes(MAGIC)))
}

/// Builds a run part by part.
#[derive(Debug)]
pub struct RunEncoder {
    header: RawHeader,
    seed: u64,
    parts: Vec<RawPart>,
    others: Vec<u8>,
    kills: Vec<u8>,
}

impl RunEncoder {
    /// A run for these positions of the journal, with its entries that are no puts and removes.
    #[must_use]
    pub fn new(
        uuid: &[u8; 16],
        epoch: u64,
        positions: &std::ops::Range<u64>,
        others: &[JournalEntry],
    ) -> Self {
        let header = RawHeader {
            magic: MAGIC,
            format: FORMAT.into(),
            parts: (PARTS as u32).into(),
            uuid: *uuid,
            epoch: epoch.into(),
            from: positions.start.into(),
            to: positions.end.into(),
            others: (others.len() as u32).into(),
            kills: 0.into(),
            tables: 0.into(),
            checksum: 0.into(),
        };
        let seed = run_seed(uuid, epoch, positions.start);
        let encode = |entry: &JournalEntry| JournalEntry { lap: 0, ..*entry }.encode(seed);
        let others = others.iter().flat_map(encode).collect();
        Self { header, seed, parts: Vec::new(), others, kills: Vec::new() }
    }

    /// Adds the next part: the hashes and versions of its kills, in any order.
    pub fn add_part(&mut self, kills: &mut Vec<(u64, u64)>) {
        debug_assert!(self.parts.len() < PARTS, "{} parts", self.parts.len());
        debug_assert!(kills.iter().all(|kill| part_of(kill.0) == self.parts.len()));
        kills.iter_mut().for_each(|kill| kill.0 >>= PART_BITS);
        // The highest version of each hash comes first, and stays.
        kills.sort_unstable_by_key(|&(hash, version)| (hash, std::cmp::Reverse(version)));
        kills.dedup_by_key(|kill| kill.0);
        let lowest = kills.iter().map(|kill| kill.1).min().unwrap_or(0);
        let highest = kills.iter().map(|kill| kill.1).max().unwrap_or(0);
        let bits = |most: u64| u64::BITS - most.leading_zeros();
        let before = std::iter::once(0).chain(kills.iter().map(|kill| kill.0));
        let steps = kills.iter().zip(before).map(|(kill, before)| kill.0 - before);
        let step_bits = bits(steps.clone().max().unwrap_or(0));
        let version_bits = bits(highest - lowest);
        let mut out = BitWriter::default();
        for (step, (_, version)) in steps.zip(kills.iter()) {
            out.put(step, step_bits);
            out.put(version - lowest, version_bits);
        }
        let bytes = out.finish();
        let offset = HEAD + self.others.len() + self.kills.len();
        self.parts.push(RawPart {
            offset: (offset as u32).into(),
            kills: (kills.len() as u32).into(),
            lowest: lowest.into(),
            step_bits: step_bits as u8,
            version_bits: version_bits as u8,
            reserved: [0; 6],
            checksum: checksum(self.seed, &bytes).into(),
        });
        self.header.kills = (self.header.kills.get() + kills.len() as u32).into();
        self.kills.extend_from_slice(&bytes);
    }

    /// The bytes of the run, and what the state file says of it in this slot.
    ///
    /// # Panics
    /// When not all parts were added.
    #[must_use]
    pub fn finish(mut self, slot: u32) -> (Vec<u8>, KillRun) {
        assert_eq!(self.parts.len(), PARTS, "all parts were added");
        let tables = [self.parts.as_bytes(), &self.others].concat();
        self.header.tables = checksum(self.seed, &tables).into();
        let sum = checksum(self.seed, &self.header.as_bytes()[..72]);
        self.header.checksum = sum.into();
        let run = KillRun {
            slot,
            from: self.header.from.get(),
            to: self.header.to.get(),
            kills: self.header.kills.get(),
            checksum: sum,
        };
        ([self.header.as_bytes(), &tables, &self.kills].concat(), run)
    }
}

/// What a run has besides puts and removes, and where those are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunHead {
    /// The file's slot.
    pub slot: u32,
    /// Other entries of the journal.
    pub others: Vec<JournalEntry>,
    /// By part.
    pub parts: Vec<RunPart>,
}

/// Bytes of the part of a run that [`RunHead::decode`] needs, as its first [`HEAD`] bytes say.
#[must_use]
pub fn head_len(bytes: &[u8]) -> Option<usize> {
    let (raw, _) = RawHeader::read_from_prefix(bytes).ok()?;
    (raw.others.get() as usize).checked_mul(ENTRY as usize)?.checked_add(HEAD)
}

impl RunHead {
    /// Puts and removes in the run.
    #[must_use]
    pub fn kills(&self) -> u64 {
        self.parts.iter().map(|part| part.kills as u64).sum()
    }

    /// Reads the head of the run that the state file means. `read` returns as many bytes from the
    /// beginning of its file as it is asked for, or all there are.
    pub fn read(
        run: &KillRun,
        uuid: &[u8; 16],
        epoch: u64,
        read: impl Fn(usize) -> Option<Vec<u8>>,
    ) -> Option<Self> {
        let head = read(HEAD)?;
        // A run has no more entries than positions. What a damaged header asks for is not read.
        let most = run.to.checked_sub(run.from)?.saturating_mul(ENTRY).saturating_add(HEAD as u64);
        let len = head_len(&head).filter(|len| *len as u64 <= most)?;
        let head = if len > HEAD { read(len)? } else { head };
        Self::decode(&head, uuid, epoch, run)
    }

    /// The head of the run that the state file means, if `bytes` begin with it.
    #[must_use]
    pub fn decode(bytes: &[u8], uuid: &[u8; 16], epoch: u64, run: &KillRun) -> Option<Self> {
        let (raw, rest) = RawHeader::read_from_prefix(bytes).ok()?;
        let seed = run_seed(uuid, epoch, run.from);
        let others =
            rest.get(PARTS * size_of::<RawPart>()..head_len(bytes)? - size_of_val(&raw))?;
        let tables = &rest[..PARTS * size_of::<RawPart>() + others.len()];
        let whole = raw.magic == MAGIC
            && raw.format.get() == FORMAT
            && raw.parts.get() as usize == PARTS
            && raw.uuid == *uuid
            && (raw.from.get(), raw.to.get()) == (run.from, run.to)
            && raw.checksum.get() == run.checksum
            && checksum(seed, &raw.as_bytes()[..72]) == run.checksum
            && checksum(seed, tables) == raw.tables.get();
        if !whole {
            return None;
        }
        let (parts, _) = <[RawPart; PARTS]>::read_from_prefix(rest).ok()?;
        let decode = |bytes: &[u8]| JournalEntry::decode(bytes, seed);
        let others = others.chunks_exact(ENTRY as usize).map(decode).collect::<Option<_>>()?;
        let parts: Vec<_> = parts.iter().map(|part| RunPart::of(part, seed)).collect();
        let possible = |part: &RunPart| part.step_bits <= 64 && part.version_bits <= 64;
        if !parts.iter().all(possible) {
            return None;
        }
        Some(Self { slot: run.slot, others, parts })
    }
}

impl RunPart {
    fn of(raw: &RawPart, seed: u64) -> Self {
        let (kills, step_bits) = (raw.kills.get() as usize, u32::from(raw.step_bits));
        let version_bits = u32::from(raw.version_bits);
        Self {
            offset: raw.offset.get().into(),
            len: (kills * (step_bits + version_bits) as usize).div_ceil(8),
            kills,
            lowest: raw.lowest.get(),
            step_bits,
            version_bits,
            checksum: raw.checksum.get(),
            seed,
        }
    }

    /// Hashes and versions of the kills of the `number`th part, whose bytes these are; `None` where
    /// they are not whole.
    #[must_use]
    pub fn decode(&self, number: usize, bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
        if bytes.len() != self.len || checksum(self.seed, bytes) != self.checksum {
            return None;
        }
        let (mut hash, mut bits) = (0u64, BitReader { bytes, at: 0 });
        let mut kill = || {
            hash = hash.wrapping_add(bits.take(self.step_bits));
            let version = self.lowest.wrapping_add(bits.take(self.version_bits));
            (hash << PART_BITS | number as u64, version)
        };
        Some((0..self.kills).map(|_| kill()).collect())
    }
}

/// Puts numbers of any width behind one another.
#[derive(Debug, Default)]
struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that are not yet a whole byte, and how many.
    rest: u128,
    len: u32,
}

impl BitWriter {
    fn put(&mut self, number: u64, bits: u32) {
        self.rest |= u128::from(number) << self.len;
        self.len += bits;
        while self.len >= 8 {
            self.bytes.push(self.rest as u8);
            (self.rest, self.len) = (self.rest >> 8, self.len - 8);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        if self.len > 0 {
            self.bytes.push(self.rest as u8);
        }
        self.bytes
    }
}

/// Reads what a [`BitWriter`] has written; zeros behind its end.
struct BitReader<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: usize,
}

impl BitReader<'_> {
    fn take(&mut self, bits: u32) -> u64 {
        let from = self.at / 8;
        let mut word = [0; 16];
        let behind = self.bytes.get(from..).unwrap_or(&[]);
        let n = behind.len().min(9);
        word[..n].copy_from_slice(&behind[..n]);
        let shifted = u128::from_le_bytes(word) >> (self.at % 8);
        self.at += bits as usize;
        (shifted & ((1u128 << bits) - 1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::journal::Event;
    use std::collections::BTreeMap;

    const UUID: [u8; 16] = [7; 16];

    fn encode(kills: &[(u64, u64)], others: &[JournalEntry]) -> (Vec<u8>, KillRun) {
        let mut run = RunEncoder::new(&UUID, 3, &(10..90), others);
        for part in 0..PARTS {
            let mut mine: Vec<_> =
                kills.iter().copied().filter(|kill| part_of(kill.0) == part).collect();
            run.add_part(&mut mine);
        }
        run.finish(5)
    }

    fn decode(bytes: &[u8], run: &KillRun) -> Option<(BTreeMap<u64, u64>, Vec<JournalEntry>)> {
        let head = RunHead::decode(bytes.get(..head_len(bytes)?)?, &UUID, 3, run)?;
        let mut kills = BTreeMap::new();
        for (number, part) in head.parts.iter().enumerate() {
            let bytes = bytes.get(part.offset as usize..)?.get(..part.len)?;
            kills.extend(part.decode(number, bytes)?);
        }
        Some((kills, head.others))
    }

    proptest! {
        #[test]
        fn a_run_reads_back_and_every_flipped_bit_is_noticed(
            kills in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..200),
            near in proptest::collection::vec((0u64..500, 1000u64..1100), 0..200),
            groups in proptest::collection::vec(any::<u32>(), 0..4),
            flip: prop::sample::Index,
        ) {
            let kills: Vec<_> = kills.into_iter().chain(near).collect();
            let entry = |group| {
                JournalEntry { event: Event::Group { ns: 1, group }, version: 9, lap: 0 }
            };
            let others: Vec<_> = groups.into_iter().map(entry).collect();
            let mut newest = BTreeMap::new();
            for &(hash, version) in &kills {
                let known: &mut u64 = newest.entry(hash).or_default();
                *known = version.max(*known);
            }
            let (mut bytes, run) = encode(&kills, &others);
            prop_assert_eq!(run.kills as usize, newest.len());
            prop_assert_eq!(decode(&bytes, &run), Some((newest, others)));
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(&bytes, &run), None);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let run = KillRun { slot: 0, from: 10, to: 90, kills: 0, checksum: 0 };
            prop_assert_eq!(decode(&bytes, &run), None);
        }
    }

    #[test]
    fn a_run_passes_for_no_other() {
        let (bytes, run) = encode(&[(1, 2)], &[]);
        assert!(decode(&bytes, &run).is_some());
        for other in [
            KillRun { from: 11, ..run },
            KillRun { to: 91, ..run },
            KillRun { checksum: run.checksum ^ 1, ..run },
        ] {
            assert_eq!(decode(&bytes, &other), None);
        }
        assert_eq!(RunHead::decode(&bytes, &UUID, 4, &run), None, "of another epoch");
        assert_eq!(RunHead::decode(&bytes, &[8; 16], 3, &run), None, "of another cache");
    }

    /// What a kill costs, as the documentation has it.
    #[test]
    fn a_kill_of_a_usual_run_takes_less_than_nine_bytes() {
        let n = 1 << 18;
        let kills: Vec<_> = (0..n).map(|n| (mix(n), 1_000_000 + n * 3)).collect();
        let (bytes, run) = encode(&kills, &[]);
        let each = bytes.len() as f64 / n as f64;
        assert!(u64::from(run.kills) == n && (8.0..9.0).contains(&each), "{each} bytes");
    }
}
