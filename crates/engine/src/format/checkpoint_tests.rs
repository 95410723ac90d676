//! Checkpoints read back, and what is none is refused.

use super::checkpoint::*;
use super::record::RecordFormat;
use proptest::prelude::*;

#[test]
fn a_header_reads_back_and_must_fit_its_area() {
    let header = Header {
        uuid: [1; 16],
        sequence: 2,
        version_floor: 3,
        journal_position: 4,
        time: 5,
        journal_epoch: 9,
        shards: 2,
        lines: 1500,
        base: 1500,
        grown: false,
        packing: SlotPacking::Format2,
        segments: 6,
        tables_len: 7,
        tables_checksum: 8,
    };
    let area = area_len(2, 1500, 7);
    assert_eq!(area, 4096 + 4 * 65536 + 4096);
    assert_eq!(Header::decode(&header.encode(), &[1; 16], area), Some(header));
    assert_eq!(Header::decode(&header.encode(), &[1; 16], area - 1), None);
    assert_eq!(Header::decode(&header.encode(), &[2; 16], area), None);
    let impossible = [
        Header { lines: 0, base: 0, ..header },
        Header { shards: 0, ..header },
        Header { shards: 3, ..header },
        Header { lines: u64::MAX, base: u64::MAX, ..header },
        Header { tables_len: u64::MAX, ..header },
    ];
    for header in impossible {
        assert_eq!(Header::decode(&header.encode(), &[1; 16], u64::MAX), None, "{header:?}");
    }
}

#[test]
fn of_a_grown_index_blocks_beyond_the_area_lie_in_segments() {
    let (area, segment) = (area_len(2, 1500, 7), 128 << 10);
    let header = Header {
        uuid: [1; 16],
        sequence: 2,
        version_floor: 3,
        journal_position: 4,
        time: 5,
        journal_epoch: 9,
        shards: 2,
        lines: 4500,
        base: 1500,
        grown: true,
        packing: SlotPacking::Format2,
        segments: 6,
        tables_len: 7,
        tables_checksum: 8,
    };
    assert_eq!(Header::decode(&header.encode(), &[1; 16], area), Some(header));
    // Five blocks a shard, of which four fit the area behind the tables.
    assert_eq!(segments_needed(2, 4500, 7, area, segment), Some(3));
    assert!(header.fits(area, 3, segment) && !header.fits(area, 2, segment));
    let place = |shard, block| header.block_at(shard, block, area, segment);
    assert_eq!(header.tables_at(), 4096);
    assert_eq!(place(0, 0), BlockPlace::Area(8192));
    assert_eq!(place(0, 3), BlockPlace::Area(8192 + 3 * 65536));
    assert_eq!(place(0, 4), BlockPlace::Segment(0, 0));
    assert_eq!(place(1, 0), BlockPlace::Segment(0, 65536));
    assert_eq!(place(1, 4), BlockPlace::Segment(2, 65536));
    let impossible = [
        Header { base: 0, ..header },
        Header { base: 4501, ..header },
        Header { base: 281, ..header },
        Header { tables_len: area - 4095, ..header },
    ];
    for header in impossible {
        assert_eq!(Header::decode(&header.encode(), &[1; 16], area), None, "{header:?}");
    }
    assert_eq!(segments_needed(2, 4500, 7, area, 32 << 10), None, "no block fits a segment");
}

proptest! {
    #[test]
    fn a_block_reads_back_in_its_place_only(
        lines in proptest::collection::vec(any::<[u64; 8]>(), 0..20),
        bit in 0usize..512,
    ) {
        let mut out = vec![0; stride(lines.len() as u64) as usize];
        encode_block(&mut out, &[1; 16], 9, 3, 1023, &lines);
        prop_assert_eq!(decode_block(&out, &[1; 16], 9, 3, 1023), Some(lines));
        prop_assert_eq!(decode_block(&out, &[1; 16], 8, 3, 1023), None);
        prop_assert_eq!(decode_block(&out, &[1; 16], 9, 2, 1023), None);
        prop_assert_eq!(decode_block(&out, &[1; 16], 9, 3, 0), None);
        out[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(decode_block(&out, &[1; 16], 9, 3, 1023), None);
    }

    #[test]
    fn tables_read_back(
        groups in proptest::collection::vec(any::<(u32, u64)>(), 0..9),
        kill: u64,
        n in 0u32..5,
        areas in any::<[Vec<u32>; 2]>(),
        second in any::<[Vec<u32>; 2]>(),
    ) {
        let segment = SegmentEntry {
            generation: 1,
            min_version: 2,
            max_expiry: 3,
            records: 4,
            bytes: 5,
            state: 2,
            format: RecordFormat::Compact,
            footer: 8192,
        };
        let kills = NamespaceKills { id: 7, kill, groups: groups.clone(), epochs: groups };
        let namespaces = vec![kills];
        let tables = Tables { segments: vec![segment; n as usize], namespaces, areas, second };
        let bytes = tables.encode();
        prop_assert_eq!(bytes.len(), tables.encoded_len());
        prop_assert_eq!(Tables::decode(&bytes, n), Some(tables));
        prop_assert_eq!(Tables::decode(&bytes[..bytes.len() - 1], n), None);
    }

    #[test]
    fn garbage_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        n in 0u32..9,
    ) {
        prop_assert_eq!(Header::decode(&bytes, &[0; 16], 1 << 40), None);
        prop_assert_eq!(decode_block(&bytes, &[0; 16], 0, 0, 0), None);
        let _ = Tables::decode(&bytes, n);
    }
}
