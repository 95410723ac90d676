//! A checkpoint: the index, the segment table and the kill tables, in one of two areas of each home
//! (a device that has areas). Where the index has grown beyond what the areas were made for, each
//! has segments besides.
//!
//! ```text
//!  0         4096                                         tables_at                      area
//! +---------+---------+---------+-- ... --+-------------+----------------------+ - - - -+
//! | header  | block 0 | block 1 |         | block n     | tables               | unused |
//! +---------+---------+---------+-- ... --+-------------+----------------------+ - - - -+
//! ```
//! Blocks and tables are written and flushed first, the header last: a header that is whole means
//! that everything was. Blocks and tables carry the checkpoint's sequence number in their
//! checksum's seed, so that an area written over halfway is noticed. A block that does not hold
//! costs its lines and nothing else.
//!
//! Of an index that has grown, tables come before the blocks, and blocks that the area has no room
//! for lie in the area's segments, as many in each as fit:
//!
//! ```text
//!  0         4096                       area          segment            segment
//! +---------+--------+---------+- ... -+     +---------+- ... -+---+    +---------+- ... -+---+
//! | header  | tables | block 0 |       |     | block k |       |   |    | block m |       |   |
//! +---------+--------+---------+- ... -+     +---------+- ... -+---+    +---------+- ... -+---+
//! ```
//!
//! Header, 112 bytes:
//! ```text
//! magic 8 | format u32 | shards u32 | uuid 16 | sequence u64 | version floor u64 | journal position u64 | time u64 |
//! journal epoch u64 | lines per shard u64 | segments u32 | block stride u32 | tables length u64 | tables checksum u64 | checksum u64
//! ```
//! Of an index that has grown, `base lines u64` comes before the checksum. The format says so, and
//! how slots are packed: 3 and 4 are today's, 1 and 2 those of format 1.
//!
//! Block: a header of 64 bytes, then 64-byte index lines. Header: magic 8, sequence u64, shard u32,
//! lines u32, first line u64, reserved 24, checksum u64. The checksum is over the header's first 56
//! bytes and all lines.
//!
//! Tables: for each segment `generation u64 | min version u64 | max expiry u32 | records u32 |
//! bytes u32 | state u8 | format of records u8 | blocks of the footer u16`; then namespaces u32,
//! for each `id u16 | reserved u16 | groups u32 | epochs u32 | kill version u64`, its groups
//! `group u32, version u64` and epochs `slot u32, version u64`. In formats 2 and 4 follow the
//! segments of both areas, for each `count u32, segment u32...`, and those of the second home's
//! areas where it has some.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use super::block_lines::BLOCK_LINES;
use super::block_lines::block_lines;
use super::footer::fixed_footer_len;
use super::record::RecordFormat;
use super::state::FieldReader;
use super::{BLOCK, checksum, mix, round_up};
use crate::index::MAX_GROUP;

/// Bytes of a block's header.
pub const BLOCK_HEADER: usize = 64;
/// Offset of the first block.
pub const BLOCKS_AT: u64 = BLOCK as u64;
/// More records of format 1 than a segment can have, each in 64 bytes at least.
const MOST_FIXED: u32 = super::MAX_SEGMENT / 64;
/// Bytes of a segment in the tables.
pub const SEGMENT_ENTRY: usize = 32;

/// Formats of checkpoints: two with slots as format 1 packed them, two with those of today. The
/// second of each is that of an index that has grown, or whose areas have segments.
const FORMATS: [(u32, SlotPacking, bool); 4] = [
    (1, SlotPacking::Format1, false),
    (2, SlotPacking::Format1, true),
    (3, SlotPacking::Format2, false),
    (4, SlotPacking::Format2, true),
];

const MAGIC: [u8; 8] = *b"aglowCKP";
const BLOCK_MAGIC: [u8; 8] = *b"aglowIDX";

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCheckpointHeader {
    magic: [u8; 8],
    format: U32,
    shards: U32,
    uuid: [u8; 16],
    sequence: U64,
    version_floor: U64,
    journal_position: U64,
    time: U64,
    journal_epoch: U64,
    lines: U64,
    segments: U32,
    stride: U32,
    tables_len: U64,
    tables_checksum: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<RawCheckpointHeader>() == 112);

/// Behind the fields of a header up to its checksum.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawGrownHeader {
    head: [u8; HEADER_FIELDS],
    base: U64,
    checksum: U64,
}

/// Bytes of a header before its checksum.
const HEADER_FIELDS: usize = 104;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBlock {
    magic: [u8; 8],
    sequence: U64,
    shard: U32,
    lines: U32,
    first: U64,
    reserved: [u8; 24],
    checksum: U64,
}

const _: () = assert!(size_of::<RawBlock>() == BLOCK_HEADER);

/// How the slots in a checkpoint's blocks are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotPacking {
    /// With offsets in units of 64 bytes.
    Format1,
    /// As in the index today.
    Format2,
}

/// A checkpoint's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The cache.
    pub uuid: [u8; 16],
    /// A version taken when it was begun: unique, and of two checkpoints the higher is newer.
    pub sequence: u64,
    /// Everything with a lower version had taken effect when the first line was captured.
    pub version_floor: u64,
    /// The journal must reach back to here for the checkpoint to be of use to Mutable namespaces.
    pub journal_position: u64,
    /// Highest Unix time seen.
    pub time: u64,
    /// Incarnation of the journal that goes with it.
    pub journal_epoch: u64,
    /// Shards of the index.
    pub shards: u32,
    /// Index lines of each shard; fewer in some shards, where the index has grown.
    pub lines: u64,
    /// Lines that each shard's index was made with. Less than [`lines`](Self::lines) where it has
    /// grown.
    pub base: u64,
    /// Whether it is laid out as that of an index that has grown.
    pub grown: bool,
    /// How the slots in its blocks are packed.
    pub packing: SlotPacking,
    /// Segments in the tables.
    pub segments: u32,
    /// Length of the tables.
    pub tables_len: u64,
    /// Their checksum.
    pub tables_checksum: u64,
}

impl Header {
    /// Blocks of each shard.
    #[must_use]
    pub fn blocks_per_shard(&self) -> u64 {
        self.lines.div_ceil(block_lines())
    }

    /// Where block `block` of `shard` lies, with an area of `area` bytes and segments of `segment`
    /// bytes.
    #[must_use]
    pub fn block_at(&self, shard: u32, block: u64, area: u64, segment: u32) -> BlockPlace {
        let number = u64::from(shard) * self.blocks_per_shard() + block;
        let stride = stride(self.lines);
        let first = if self.grown { blocks_at(self.tables_len) } else { BLOCKS_AT };
        match number.checked_sub(blocks_in_area(area, first, stride)).filter(|_| self.grown) {
            None => BlockPlace::Area(first + number * stride),
            Some(beyond) => {
                let each = u64::from(segment) / stride;
                BlockPlace::Segment((beyond / each) as usize, beyond % each * stride)
            }
        }
    }

    /// Offset in the area of the tables.
    #[must_use]
    pub fn tables_at(&self) -> u64 {
        let blocks = u64::from(self.shards) * self.blocks_per_shard();
        BLOCKS_AT + if self.grown { 0 } else { blocks * stride(self.lines) }
    }

    /// Whether it fits an area of `area` bytes with `segments` segments of `segment` bytes each.
    #[must_use]
    pub fn fits(&self, area: u64, segments: usize, segment: u32) -> bool {
        if !self.grown {
            return area_len(self.shards, self.lines, self.tables_len) <= area;
        }
        blocks_at(self.tables_len) <= area
            && segments_needed(self.shards, self.lines, self.tables_len, area, segment)
                .is_some_and(|needed| needed <= segments as u64)
    }

    fn format(&self) -> u32 {
        let is_mine = |(_, packing, grown): &(u32, SlotPacking, bool)| {
            (*packing, *grown) == (self.packing, self.grown)
        };
        FORMATS.iter().find(|format| is_mine(format)).expect("one for each").0
    }

    /// The header's block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawCheckpointHeader {
            magic: MAGIC,
            format: self.format().into(),
            shards: self.shards.into(),
            uuid: self.uuid,
            sequence: self.sequence.into(),
            version_floor: self.version_floor.into(),
            journal_position: self.journal_position.into(),
            time: self.time.into(),
            journal_epoch: self.journal_epoch.into(),
            lines: self.lines.into(),
            segments: self.segments.into(),
            stride: (stride(self.lines) as u32).into(),
            tables_len: self.tables_len.into(),
            tables_checksum: self.tables_checksum.into(),
            checksum: 0.into(),
        };
        let mut out = vec![0; BLOCK as usize];
        if self.grown {
            let head = raw.as_bytes()[..HEADER_FIELDS].try_into().expect("as long as the fields");
            let mut grown = RawGrownHeader { head, base: self.base.into(), checksum: 0.into() };
            grown.checksum = checksum(0, &grown.as_bytes()[..HEADER_FIELDS + 8]).into();
            out[..size_of::<RawGrownHeader>()].copy_from_slice(grown.as_bytes());
        } else {
            raw.checksum = checksum(0, &raw.as_bytes()[..HEADER_FIELDS]).into();
            out[..size_of::<RawCheckpointHeader>()].copy_from_slice(raw.as_bytes());
        }
        out
    }

    /// The header in `bytes`, if it is whole, of this cache and fits an area of `area` bytes.
    #[must_use]
    pub fn decode(bytes: &[u8], uuid: &[u8; 16], area: u64) -> Option<Self> {
        let (raw, _) = RawCheckpointHeader::read_from_prefix(bytes).ok()?;
        let (more, _) = RawGrownHeader::read_from_prefix(bytes).ok()?;
        let (_, packing, grown) = FORMATS.into_iter().find(|f| f.0 == raw.format.get())?;
        let (summed, sum) = match grown {
            false => (HEADER_FIELDS, raw.checksum.get()),
            true => (HEADER_FIELDS + 8, more.checksum.get()),
        };
        let whole = raw.magic == MAGIC && raw.uuid == *uuid && checksum(0, &bytes[..summed]) == sum;
        let header = Self {
            uuid: raw.uuid,
            sequence: raw.sequence.get(),
            version_floor: raw.version_floor.get(),
            journal_position: raw.journal_position.get(),
            time: raw.time.get(),
            journal_epoch: raw.journal_epoch.get(),
            shards: raw.shards.get(),
            lines: raw.lines.get(),
            base: if grown { more.base.get() } else { raw.lines.get() },
            grown,
            packing,
            segments: raw.segments.get(),
            tables_len: raw.tables_len.get(),
            tables_checksum: raw.tables_checksum.get(),
        };
        let area = area.min(i64::MAX as u64);
        let lines = header.base..=header.base.saturating_mul(MAX_GROUP as u64);
        let possible = header.shards.is_power_of_two()
            && header.base > 0
            && lines.contains(&header.lines)
            // Whether the blocks fit is seen once the tables are read.
            && if grown {
                blocks_at(header.tables_len) <= area
            } else {
                area_len(header.shards, header.lines, header.tables_len) <= area
            };
        (whole && possible).then_some(header)
    }
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockPlace {
    /// At this offset of the area.
    Area(u64),
    /// In the area's so manieth segment, at this offset.
    Segment(usize, u64),
}

/// Offset of the first block behind tables of `tables` bytes.
fn blocks_at(tables: u64) -> u64 {
    BLOCKS_AT.saturating_add(tables.div_ceil(u64::from(BLOCK)).saturating_mul(u64::from(BLOCK)))
}

fn blocks_in_area(area: u64, first: u64, stride: u64) -> u64 {
    area.saturating_sub(first) / stride
}

/// Segments of `segment` bytes that an area of `area` bytes needs besides, for shards of `lines`
/// lines that have grown and tables of `tables` bytes. `None` where no block fits a segment.
#[must_use]
pub fn segments_needed(
    shards: u32,
    lines: u64,
    tables: u64,
    area: u64,
    segment: u32,
) -> Option<u64> {
    let stride = stride(lines);
    let blocks = u64::from(shards).saturating_mul(lines.div_ceil(block_lines()));
    match blocks.saturating_sub(blocks_in_area(area, blocks_at(tables), stride)) {
        0 => Some(0),
        beyond => {
            let each = u64::from(segment) / stride;
            (each > 0).then(|| beyond.div_ceil(each))
        }
    }
}

/// Bytes between the starts of two blocks, for shards of `lines` lines.
#[must_use]
pub fn stride(lines: u64) -> u64 {
    round_up(BLOCK_HEADER as u64 + lines.min(block_lines()) * 64, u64::from(BLOCK))
}

/// Bytes a checkpoint takes in its area.
#[must_use]
pub fn area_len(shards: u32, lines: u64, tables: u64) -> u64 {
    let blocks = u64::from(shards).saturating_mul(lines.div_ceil(block_lines()));
    blocks
        .saturating_mul(stride(lines))
        .saturating_add(BLOCKS_AT)
        .saturating_add(tables.div_ceil(u64::from(BLOCK)).saturating_mul(u64::from(BLOCK)))
}

fn block_seed(uuid: &[u8; 16], sequence: u64) -> u64 {
    mix(sequence ^ checksum(1, uuid))
}

/// Writes a block of `lines` into `out`, a zeroed buffer of a stride.
pub fn encode_block(
    out: &mut [u8],
    uuid: &[u8; 16],
    sequence: u64,
    shard: u32,
    first: u64,
    lines: &[[u64; 8]],
) {
    let mut raw = RawBlock {
        magic: BLOCK_MAGIC,
        sequence: sequence.into(),
        shard: shard.into(),
        lines: (lines.len() as u32).into(),
        first: first.into(),
        reserved: [0; 24],
        checksum: 0.into(),
    };
    let (head, body) = out.split_at_mut(BLOCK_HEADER);
    for (word, to) in lines.as_flattened().iter().zip(body.chunks_exact_mut(8)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    raw.checksum = block_sum(&raw, uuid, sequence, &body[..lines.len() * 64]).into();
    head.copy_from_slice(raw.as_bytes());
}

fn block_sum(raw: &RawBlock, uuid: &[u8; 16], sequence: u64, lines: &[u8]) -> u64 {
    checksum(checksum(block_seed(uuid, sequence), &raw.as_bytes()[..56]), lines)
}

/// The lines of a whole block that is where it belongs.
#[must_use]
pub fn decode_block(
    bytes: &[u8],
    uuid: &[u8; 16],
    sequence: u64,
    shard: u32,
    first: u64,
) -> Option<Vec<[u64; 8]>> {
    let (raw, body) = RawBlock::read_from_prefix(bytes).ok()?;
    let lines = body.get(..(raw.lines.get() as usize).checked_mul(64)?)?;
    let placed = raw.magic == BLOCK_MAGIC
        && raw.sequence.get() == sequence
        && raw.shard.get() == shard
        && raw.first.get() == first;
    if !placed || block_sum(&raw, uuid, sequence, lines) != raw.checksum.get() {
        return None;
    }
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("chunks of 8"));
    Some(
        lines
            .chunks_exact(64)
            .map(|l| std::array::from_fn(|i| word(&l[i * 8..i * 8 + 8])))
            .collect(),
    )
}

/// A segment in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentEntry {
    /// Its generation; 0 when it was never used.
    pub generation: u64,
    /// Lowest version of its records.
    pub min_version: u64,
    /// Latest expiry of its records; `u32::MAX` when one never expires.
    pub max_expiry: u32,
    /// Records in it.
    pub records: u32,
    /// Bytes of records in it.
    pub bytes: u32,
    /// State: 0 free, 1 open, 2 sealed, 3 retired.
    pub state: u8,
    /// How its records are written.
    pub format: RecordFormat,
    /// Bytes of its footer, a multiple of 4096; 0 before it has one.
    pub footer: u32,
}

impl SegmentEntry {
    /// The last word of an entry: state, format of the records, and blocks of the footer. Format 1
    /// had the state alone.
    fn last_word(&self) -> u32 {
        u32::from(self.state) | (self.format as u32) << 8 | (self.footer / BLOCK) << 16
    }

    /// Takes the last word apart.
    fn with_last_word(self, word: u32) -> Self {
        let format = RecordFormat::from_number((word >> 8) as u8);
        let footer = match format {
            Some(_) => (word >> 16) * BLOCK,
            None if self.records < MOST_FIXED => fixed_footer_len(self.records),
            None => 0,
        };
        let format = format.unwrap_or(RecordFormat::Fixed);
        Self { state: word as u8, format, footer, ..self }
    }
}

/// What kills objects of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamespaceKills {
    /// Namespace id.
    pub id: u16,
    /// Lower versions of the whole namespace are dead.
    pub kill: u64,
    /// Removed groups and their versions.
    pub groups: Vec<(u32, u64)>,
    /// Bumped partition epochs and their versions.
    pub epochs: Vec<(u32, u64)>,
}

/// The tables of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    /// By logical segment.
    pub segments: Vec<SegmentEntry>,
    /// By namespace.
    pub namespaces: Vec<NamespaceKills>,
    /// Segments that hold blocks of each area; none where the index has not grown.
    pub areas: [Vec<u32>; 2],
    /// Those of the second home's areas.
    pub second: [Vec<u32>; 2],
}

impl Tables {
    /// Length of [`Tables::encode`].
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let kills = |n: &NamespaceKills| 20 + 12 * (n.groups.len() + n.epochs.len());
        let areas: usize = self.lists().map(|segments| 4 + 4 * segments.len()).sum();
        let namespaces = 4 + self.namespaces.iter().map(kills).sum::<usize>();
        self.segments.len() * SEGMENT_ENTRY + namespaces + areas
    }

    /// Whether areas have segments.
    #[must_use]
    pub fn has_segments(&self) -> bool {
        self.areas.iter().chain(&self.second).any(|segments| !segments.is_empty())
    }

    /// The lists of segments that are written: those of both homes where the second has some.
    fn lists(&self) -> impl Iterator<Item = &Vec<u32>> {
        let has_second = self.second.iter().any(|segments| !segments.is_empty());
        let first = self.areas.iter().filter(|_| self.has_segments());
        first.chain(self.second.iter().filter(move |_| has_second))
    }

    /// The bytes of the tables.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        for s in &self.segments {
            out.extend_from_slice(&s.generation.to_le_bytes());
            out.extend_from_slice(&s.min_version.to_le_bytes());
            for n in [s.max_expiry, s.records, s.bytes, s.last_word()] {
                out.extend_from_slice(&n.to_le_bytes());
            }
        }
        out.extend_from_slice(&(self.namespaces.len() as u32).to_le_bytes());
        for ns in &self.namespaces {
            out.extend_from_slice(&u32::from(ns.id).to_le_bytes());
            out.extend_from_slice(&(ns.groups.len() as u32).to_le_bytes());
            out.extend_from_slice(&(ns.epochs.len() as u32).to_le_bytes());
            out.extend_from_slice(&ns.kill.to_le_bytes());
            for (what, version) in ns.groups.iter().chain(&ns.epochs) {
                out.extend_from_slice(&what.to_le_bytes());
                out.extend_from_slice(&version.to_le_bytes());
            }
        }
        for segments in self.lists() {
            out.extend_from_slice(&(segments.len() as u32).to_le_bytes());
            segments.iter().for_each(|segment| out.extend_from_slice(&segment.to_le_bytes()));
        }
        out
    }

    /// Seed-bound checksum of encoded tables.
    #[must_use]
    pub fn sum(bytes: &[u8], uuid: &[u8; 16], sequence: u64) -> u64 {
        checksum(block_seed(uuid, sequence) ^ 1, bytes)
    }

    /// The tables in `bytes`, for `segments` segments. The caller has compared their checksum.
    #[must_use]
    pub fn decode(bytes: &[u8], segments: u32) -> Option<Self> {
        let mut r = FieldReader::new(bytes);
        let mut tables = Self::default();
        for _ in 0..segments {
            let entry = SegmentEntry {
                generation: r.u64()?,
                min_version: r.u64()?,
                max_expiry: r.u32()?,
                records: r.u32()?,
                bytes: r.u32()?,
                ..SegmentEntry::default()
            };
            tables.segments.push(entry.with_last_word(r.u32()?));
        }
        for _ in 0..r.u32()? {
            let (id, groups, epochs, kill) = (r.u32()? as u16, r.u32()?, r.u32()?, r.u64()?);
            let mut pairs =
                |n: u32| (0..n).map(|_| Some((r.u32()?, r.u64()?))).collect::<Option<Vec<_>>>();
            tables.namespaces.push(NamespaceKills {
                id,
                kill,
                groups: pairs(groups)?,
                epochs: pairs(epochs)?,
            });
        }
        if !r.is_empty() {
            for area in &mut tables.areas {
                *area = (0..r.u32()?).map(|_| r.u32()).collect::<Option<_>>()?;
            }
        }
        if !r.is_empty() {
            for area in &mut tables.second {
                *area = (0..r.u32()?).map(|_| r.u32()).collect::<Option<_>>()?;
            }
        }
        Some(tables)
    }
}
