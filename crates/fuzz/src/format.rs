//! The structures of `docs/internals/formats.md`, one parser at a time.
//!
//! The first byte of an input says whether checksums are put right before parsing (odd) or not.
//! What was parsed is encoded again and must come out as it was.

use afterglow_engine::format::checkpoint::{
    self, BlockPlace, Header, NamespaceKills, SegmentEntry, SlotPacking, Tables,
};
use afterglow_engine::format::footer::{self, SegmentId};
use afterglow_engine::format::footer_entries::{EntryList, FooterEntry};
use afterglow_engine::format::journal::{self, Event};
use afterglow_engine::format::record::{self, Meta, RecordContext, RecordFormat};
use afterglow_engine::format::state::{DeviceRecord, KillLog, NamespaceRecord, StateFile};
use afterglow_engine::format::superblock::{Found, RESERVED, Superblock};
use afterglow_engine::{Durability, NamespaceOptions};

use crate::{seal, target::Target};

const UUID: [u8; 16] = [9; 16];
const SEGMENT: u32 = 5;
const SEGMENT_SIZE: u32 = 1 << 20;
const SEQUENCE: u64 = 77;
const SEED: u64 = 3;

/// These targets.
pub const TARGETS: &[Target] = &[
    Target { name: "record", run: record, seeds: record_seeds, mutations: 20_000 },
    Target { name: "footer", run: footer, seeds: footer_seeds, mutations: 20_000 },
    Target { name: "superblock", run: superblock, seeds: superblock_seeds, mutations: 10_000 },
    Target { name: "checkpoint", run: checkpoint, seeds: checkpoint_seeds, mutations: 10_000 },
    Target { name: "index_block", run: index_block, seeds: index_block_seeds, mutations: 10_000 },
    Target { name: "tables", run: tables, seeds: tables_seeds, mutations: 20_000 },
    Target {
        name: "journal_entry",
        run: journal_entry,
        seeds: journal_entry_seeds,
        mutations: 20_000,
    },
    Target { name: "state", run: state, seeds: state_seeds, mutations: 20_000 },
];

/// Whether to seal, and the rest.
fn split(data: &[u8]) -> Option<(bool, Vec<u8>)> {
    let (first, rest) = data.split_first()?;
    Some((first & 1 == 1, rest.to_vec()))
}

/// A seed as it is and one to be sealed.
fn both(bytes: &[u8]) -> [Vec<u8>; 2] {
    [0, 1].map(|first| [&[first], bytes].concat())
}

/// The place of records, in a segment of one format or the other.
fn context(format: RecordFormat) -> RecordContext {
    RecordContext::new(SEED, 1 << 40, 64, format)
}

fn record(data: &[u8]) {
    let Some((seal, bytes)) = split(data) else { return };
    for format in [RecordFormat::Compact, RecordFormat::Fixed] {
        let (context, mut bytes) = (context(format), bytes.clone());
        let sealed = seal && seal::record(&mut bytes, &context);
        let found = record::decode(&bytes, &context);
        assert!(!sealed || found.is_some(), "whole by its checksum, and refused");
        let Some(found) = found else { continue };
        let claimed = (found.meta.ns, found.meta.version, found.len);
        assert_eq!(record::claims(&bytes, &context), Some(claimed));
        // Written anew it may be shorter: a sealed record need not be in its shortest form.
        let here = self::context(RecordFormat::Compact);
        let meta = Meta { epoch_slot: found.meta.epoch_slot & 0xff_ffff, ..found.meta };
        let mut again = vec![0; record::most_len(found.key.len(), found.value.len())];
        let len = record::encode(&mut again, &here, &meta, found.key, found.value);
        let read = record::decode(&again, &here).expect("just written");
        assert_eq!((read.meta, read.key, read.value), (meta, found.key, found.value));
        assert_eq!(read.len, len);
    }
}

fn record_seeds() -> Vec<Vec<u8>> {
    let far =
        Meta { ns: 300, version: 1, expiry: 2_000_000_000, group: 7, epoch_slot: (1 << 20) - 1 };
    let near = Meta { ns: 1, version: (1 << 40) + 5, ..Meta::default() };
    let seed = |(meta, key, value): (&Meta, &[u8], &[u8])| {
        let mut bytes = vec![0; record::most_len(key.len(), value.len())];
        let here = context(RecordFormat::Compact);
        let len = record::encode(&mut bytes, &here, meta, key, value);
        both(&bytes[..len])
    };
    let values: [(&Meta, &[u8], &[u8]); 4] = [
        (&far, b"", b""),
        (&near, b"key", b"value"),
        (&far, &[1; 40], &[2; 300]),
        (&near, &[1; 300], &[2; 70]),
    ];
    values.into_iter().flat_map(seed).collect()
}

/// Inputs have entries and trailer right behind one another, so that they stay small.
fn pad(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(at) = bytes.len().checked_sub(64) else { return bytes };
    let trailer = bytes.split_off(at);
    bytes.resize(footer::len_with(at) as usize - 64, 0);
    [bytes, trailer].concat()
}

fn footer(data: &[u8]) {
    let Some((seal, bytes)) = split(data) else { return };
    let mut bytes = pad(bytes);
    if seal {
        seal::footer(&mut bytes, &UUID, SEGMENT);
    }
    if let Some(found) = footer::decode_footer(&bytes, &UUID, SEGMENT, SEGMENT_SIZE) {
        let ends = found.entries.iter().map(|e| u64::from(e.offset) + u64::from(e.len));
        assert!(ends.max().is_none_or(|end| end <= SEGMENT_SIZE.into()), "a record beyond the end");
        let trailer = &bytes[bytes.len() - 64..];
        assert_eq!(footer::decode_trailer(trailer, &UUID, SEGMENT), Some(found.trailer));
        let (generation, records) = (found.trailer.generation, found.trailer.records);
        let mut list = EntryList::new(generation, records);
        let narrow = |e: &FooterEntry| {
            let meta = Meta { epoch_slot: e.meta.epoch_slot & 0xff_ffff, ..e.meta };
            FooterEntry { meta, ..*e }
        };
        let entries: Vec<_> = found.entries.iter().map(narrow).collect();
        entries.iter().for_each(|entry| list.push(entry));
        let mut again = vec![0; footer::footer_len(&list) as usize];
        let id = SegmentId { uuid: UUID, segment: SEGMENT, generation, records };
        footer::encode_footer(&mut again, &id, &list);
        let read = footer::decode_footer(&again, &UUID, SEGMENT, SEGMENT_SIZE);
        assert_eq!(read.map(|footer| footer.entries), Some(entries));
    }
    if seal && bytes.len() >= 64 {
        seal::segment_header(&mut bytes, &UUID, SEGMENT);
    }
    let generation = footer::decode_header(&bytes, &UUID, SEGMENT);
    assert!(!seal || bytes.len() < 64 || generation.is_some());
}

fn footer_seeds() -> Vec<Vec<u8>> {
    let entry = |n: u32| {
        let meta = Meta { ns: 1, version: u64::from(n), expiry: n, group: n, epoch_slot: n };
        let offset = 64 * (n + 1) + n / 3 * 16;
        FooterEntry { hash: u64::from(n) << 40, meta, offset, len: 60 }
    };
    let seed = |n, records| {
        let mut list = EntryList::new(9, records);
        (0..n).for_each(|n| list.push(&entry(n)));
        let mut bytes = vec![0; footer::footer_len(&list) as usize];
        let id = SegmentId { uuid: UUID, segment: SEGMENT, generation: 9, records };
        footer::encode_footer(&mut bytes, &id, &list);
        let trailer = bytes.split_off(bytes.len() - 64);
        bytes.truncate(list.bytes().len());
        both(&[bytes, trailer].concat())
    };
    let of = |n| [RecordFormat::Compact, RecordFormat::Fixed].map(|records| seed(n, records));
    [0, 1, 6].into_iter().flat_map(of).flatten().collect()
}

fn superblock(data: &[u8]) {
    let Some((seal, mut bytes)) = split(data) else { return };
    bytes.resize(RESERVED as usize, 0);
    if seal {
        seal::superblock(&mut bytes);
    }
    let Found::Ours(block) = Superblock::decode(&bytes) else { return };
    assert_eq!(Superblock::decode(&block.encode()), Found::Ours(block));
    let areas = [0, 1].map(|which| block.area_at(which));
    assert!(areas[0] <= areas[1] && areas[1] + block.area <= block.first_segment());
    let end = block.first_segment() + u64::from(block.segments) * u64::from(block.segment_size);
    assert!(end <= block.size, "segments beyond the end");
}

fn superblock_seeds() -> Vec<Vec<u8>> {
    let block = Superblock {
        uuid: UUID,
        device: 0,
        devices: 1,
        set_epoch: 1,
        size: 1 << 20,
        segment_size: 1 << 16,
        segments: 12,
        area: 1 << 16,
        hash_seed: 4,
    };
    let bytes = block.encode();
    both(&bytes[..96]).into_iter().chain([vec![0], vec![1]]).collect()
}

fn checkpoint(data: &[u8]) {
    let Some((seal, mut bytes)) = split(data) else { return };
    if seal && bytes.len() >= 112 {
        seal::checkpoint_header(&mut bytes, &UUID);
    }
    for area in [1 << 16, 1 << 20, 1 << 40, u64::MAX] {
        let Some(header) = Header::decode(&bytes, &UUID, area) else { continue };
        assert_eq!(Header::decode(&header.encode(), &UUID, area), Some(header));
        assert!(header.shards > 0 && header.lines > 0, "an index without lines");
        assert!((1..=header.lines).contains(&header.base), "a base of no lines");
        let last = (header.shards - 1, header.blocks_per_shard() - 1);
        match header.block_at(last.0, last.1, area, SEGMENT_SIZE) {
            BlockPlace::Area(at) => {
                let end = if header.grown { area } else { header.tables_at() };
                assert!(at + checkpoint::stride(header.lines) <= end);
            }
            BlockPlace::Segment(_, at) => {
                assert!(
                    header.grown && at + checkpoint::stride(header.lines) <= SEGMENT_SIZE.into()
                );
            }
        }
        assert!(header.tables_at().checked_add(header.tables_len).is_some_and(|end| end <= area));
    }
}

fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let header = Header {
        uuid: UUID,
        sequence: SEQUENCE,
        version_floor: 70,
        journal_position: 4,
        time: 1_700_000_000,
        journal_epoch: 1,
        shards: 2,
        lines: 20,
        base: 20,
        grown: false,
        packing: SlotPacking::Format2,
        segments: 12,
        tables_len: 500,
        tables_checksum: 8,
    };
    let grown = Header { base: 5, grown: true, ..header };
    let old = Header { packing: SlotPacking::Format1, ..header };
    let seeds = [header, grown, old].map(|header| both(&header.encode()[..120]));
    seeds.concat()
}

fn index_block(data: &[u8]) {
    let Some((seal, mut bytes)) = split(data) else { return };
    let sealed = seal && bytes.len() >= 64 && seal::block(&mut bytes, &UUID, SEQUENCE, 1, 1023);
    let lines = checkpoint::decode_block(&bytes, &UUID, SEQUENCE, 1, 1023);
    assert!(!sealed || lines.is_some(), "whole by its checksum, and refused");
    let Some(lines) = lines else { return };
    let mut again = vec![0; 64 + lines.len() * 64];
    checkpoint::encode_block(&mut again, &UUID, SEQUENCE, 1, 1023, &lines);
    assert_eq!(checkpoint::decode_block(&again, &UUID, SEQUENCE, 1, 1023), Some(lines));
}

fn index_block_seeds() -> Vec<Vec<u8>> {
    let seed = |n: usize| {
        let mut bytes = vec![0; 64 + 64 * n];
        checkpoint::encode_block(
            &mut bytes,
            &UUID,
            SEQUENCE,
            1,
            1023,
            &vec![[1, 2, 3, 4, 5, 6, 7, 0]; n],
        );
        both(&bytes)
    };
    [0, 1, 4].into_iter().flat_map(seed).collect()
}

fn tables(data: &[u8]) {
    let Some((&segments, bytes)) = data.split_first() else { return };
    let Some(tables) = Tables::decode(bytes, segments.into()) else { return };
    let again = tables.encode();
    assert_eq!(again.len(), tables.encoded_len());
    assert_eq!(Tables::decode(&again, segments.into()), Some(tables));
}

fn tables_seeds() -> Vec<Vec<u8>> {
    let segment = SegmentEntry {
        generation: 1,
        min_version: 2,
        max_expiry: 3,
        records: 4,
        bytes: 5,
        state: 2,
        format: RecordFormat::Compact,
        footer: 4096,
    };
    let ns =
        |id, n| NamespaceKills { id, kill: 9, groups: vec![(1, 2); n], epochs: vec![(3, 4); n] };
    let seed = |n: u8| {
        let tables = Tables {
            segments: vec![segment; n.into()],
            namespaces: vec![ns(0, n.into()), ns(1, 0)],
            areas: [vec![4; n.into()], vec![]],
            second: [vec![], vec![4; (n / 2).into()]],
        };
        [vec![n], tables.encode()].concat()
    };
    [0, 1, 5].map(seed).to_vec()
}

fn journal_entry(data: &[u8]) {
    let Some((seal, mut bytes)) = split(data) else { return };
    bytes.truncate(journal::ENTRY as usize);
    if seal && bytes.len() == journal::ENTRY as usize {
        seal::journal_entry(&mut bytes, SEED);
    }
    let Some(entry) = journal::JournalEntry::decode(&bytes, SEED) else { return };
    assert_eq!(journal::JournalEntry::decode(&entry.encode(SEED), SEED), Some(entry));
}

fn journal_entry_seeds() -> Vec<Vec<u8>> {
    let events = [
        Event::Kill { hash: 1 << 50, ns: 1 },
        Event::Group { ns: 1, group: 2 },
        Event::Epoch { ns: 1, slot: 3 },
        Event::Clear { ns: 1 },
        Event::Open { segment: 4 },
    ];
    let seed = |event| both(&journal::JournalEntry { event, version: 5, lap: 6 }.encode(SEED));
    events.into_iter().flat_map(seed).collect()
}

fn state(data: &[u8]) {
    let Some((seal, mut bytes)) = split(data) else { return };
    if seal {
        seal::state(&mut bytes);
    }
    let Ok(state) = StateFile::decode(&bytes) else { return };
    assert_eq!(StateFile::decode(&state.encode()), Ok(state));
}

fn state_seeds() -> Vec<Vec<u8>> {
    let options =
        NamespaceOptions { durability: Durability::Synced, ..NamespaceOptions::default() };
    let ns = |id: u16| NamespaceRecord {
        id,
        name: format!("namespace-{id}"),
        options,
        kill: 7,
        journal_gaps: id == 1,
    };
    let device = |id: u16| DeviceRecord {
        id: id.into(),
        epoch: 1 + u64::from(id),
        base: u32::from(id) * 9,
        segments: 9,
        home: u32::from(id) % 3,
        path: "/dev/nvme0n1".into(),
    };
    let seed = |n| {
        let state = StateFile {
            clean: n == 0,
            uuid: UUID,
            generation: 3,
            boot_id: [2; 16],
            version_limit: 1 << 30,
            time: 5,
            hash_seed: 6,
            set_epoch: 1,
            checkpoint: 8,
            journal_epoch: 1,
            namespaces: (0..n).map(ns).collect(),
            devices: (0..n).map(device).collect(),
            kill_log: KillLog::default(),
        };
        both(&state.encode())
    };
    [0, 1, 3].into_iter().flat_map(seed).collect()
}
