//! Footers are read as they were written, also those of format 1.

use proptest::prelude::*;

use super::footer::*;
use super::footer_entries::{EntryList, EntryPosition, FooterEntry};
use super::record::{Meta, RecordFormat};
use super::{UNIT, checksum};

const SIZE: u32 = 1 << 16;
const UUID: [u8; 16] = [9; 16];
const GENERATION: u64 = 77;

fn id() -> SegmentId {
    SegmentId { uuid: UUID, segment: 5, generation: GENERATION, records: RecordFormat::Compact }
}

/// Records of 60 bytes right behind one another, but for a gap behind each tenth.
fn entry(n: u64) -> FooterEntry {
    FooterEntry {
        hash: n * 7,
        meta: Meta { ns: 3, version: 70 + n, expiry: n as u32 % 3, group: 1, epoch_slot: 2 },
        offset: HEADER + n as u32 * 64 + n as u32 / 10 * UNIT,
        len: 60,
    }
}

fn encode(entries: &[FooterEntry]) -> (Vec<u8>, usize) {
    let mut list = EntryList::new(GENERATION, RecordFormat::Compact);
    entries.iter().for_each(|entry| list.push(entry));
    let mut out = vec![1; footer_len(&list) as usize];
    encode_footer(&mut out, &id(), &list);
    (out, list.bytes().len())
}

fn decode(bytes: &[u8]) -> Option<Vec<FooterEntry>> {
    let footer = decode_footer(bytes, &UUID, 5, SIZE)?;
    assert_eq!(footer.trailer.generation, GENERATION);
    Some(footer.entries)
}

proptest! {
    #[test]
    fn a_footer_reads_back_and_every_flipped_bit_is_noticed(
        n in 0u64..300,
        flip: prop::sample::Index,
    ) {
        let entries: Vec<_> = (0..n).map(entry).collect();
        let (mut out, covered) = encode(&entries);
        prop_assert_eq!(decode(&out), Some(entries.clone()));
        let longer = [vec![3; 4096], out.clone()].concat();
        prop_assert_eq!(decode(&longer), Some(entries.clone()));
        let trailer = decode_trailer(&out[out.len() - 64..], &UUID, 5).unwrap();
        prop_assert_eq!((trailer.entries, trailer.len as usize), (n as u32, out.len()));
        prop_assert_eq!(decode_footer(&out, &[8; 16], 5, SIZE), None);
        prop_assert_eq!(decode_footer(&out, &UUID, 6, SIZE), None);
        let bit = flip.index((covered + 64) * 8);
        let byte = if bit / 8 < covered { bit / 8 } else { out.len() - 64 + bit / 8 - covered };
        out[byte] ^= 1 << (bit % 8);
        prop_assert_eq!(decode_footer(&out, &UUID, 5, SIZE), None);
    }

    #[test]
    fn a_list_is_read_in_pieces(n in 0u64..100, most in 1usize..20) {
        let mut list = EntryList::new(GENERATION, RecordFormat::Compact);
        let entries: Vec<_> = (0..n).map(entry).collect();
        entries.iter().for_each(|entry| list.push(entry));
        let (mut position, mut found) = (EntryPosition::default(), Vec::new());
        loop {
            let some = list.read(&mut position, most);
            prop_assert!(some.len() <= most);
            if some.is_empty() {
                break;
            }
            found.extend(some);
        }
        prop_assert_eq!(found, entries);
    }

    /// Space is kept for the footer of what is written. It is enough for the one that recovery
    /// writes of what it finds of that.
    #[test]
    fn a_list_without_lost_records_is_no_longer(
        records in proptest::collection::vec(
            (prop_oneof![Just(0u16), Just(300)], any::<[bool; 4]>(), 15u32..70_000, 0u32..3),
            0..60,
        ),
        found in proptest::collection::vec(any::<bool>(), 60),
        fixed: bool,
    ) {
        let format = if fixed { RecordFormat::Fixed } else { RecordFormat::Compact };
        let mut lists = [(); 2].map(|()| EntryList::new(1 << 45, format));
        let mut at = HEADER;
        for ((ns, [far, expiry, group, epoch], len, gap), found) in records.into_iter().zip(found) {
            let field = |yes| if yes { 7 } else { 0 };
            let meta = Meta {
                ns,
                version: if far { 1 } else { 1 << 45 },
                expiry: field(expiry),
                group: field(group),
                epoch_slot: field(epoch),
            };
            let entry = FooterEntry { hash: 1, meta, offset: at + gap * 64, len };
            at = entry.offset + format.padded(len);
            lists[0].push(&entry);
            if found {
                lists[1].push(&entry);
            }
        }
        let [all, some] = lists.map(|list| list.bytes().len());
        prop_assert!(some <= all, "{some} bytes of some, {all} of all");
    }

    #[test]
    fn records_that_cannot_be_are_refused_whatever_the_checksum_says(
        offset in prop_oneof![Just(0), 4u32..SIZE / 16, Just(SIZE / 16 - 4), 0u32..1 << 20],
        len in prop_oneof![
            Just(14), Just(15), Just(SIZE / 4), Just(SIZE / 4 + 1), 1u32..1 << 24
        ],
    ) {
        let odd = FooterEntry { offset: offset * UNIT, len, ..entry(2) };
        let (out, _) = encode(&[entry(1), odd]);
        let end = u64::from(odd.offset) + u64::from(len);
        // Behind the record in front of it.
        let possible = odd.offset >= 192 && (15..=SIZE / 4).contains(&len) && end <= SIZE.into();
        prop_assert_eq!(decode_footer(&out, &UUID, 5, SIZE).is_some(), possible);
    }

    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        prop_assert_eq!(decode_footer(&bytes, &[0; 16], 0, SIZE), None);
        prop_assert_eq!(decode_header(&bytes, &[0; 16], 0), None);
    }
}

#[test]
fn an_entry_of_a_small_object_has_sixteen_bytes() {
    let meta = Meta { ns: 1, version: GENERATION + 5, ..Meta::default() };
    let (_, covered) = encode(&[FooterEntry { hash: 1, meta, offset: HEADER, len: 115 }]);
    assert_eq!((covered, super::footer_entries::usual_entry(115)), (16, 16));
}

/// A mark of format 1: neither the format of records nor the bytes of the entries are in it.
fn fixed_mark(magic: &[u8; 8], count: u32, entries: &[u8]) -> Vec<u8> {
    let mut mark = [&magic[..], &1u32.to_le_bytes(), &[0; 4]].concat();
    mark.extend_from_slice(&GENERATION.to_le_bytes());
    mark.extend_from_slice(&5u32.to_le_bytes());
    mark.extend_from_slice(&count.to_le_bytes());
    mark.extend_from_slice(&UUID);
    mark.extend_from_slice(&checksum(GENERATION, entries).to_le_bytes());
    let sum = checksum(1, &mark);
    [mark, sum.to_le_bytes().to_vec()].concat()
}

/// An entry of format 1, field by field.
fn raw_fixed(entry: &FooterEntry) -> Vec<u8> {
    let Meta { ns, version, expiry, group, epoch_slot } = entry.meta;
    let longs = [entry.hash, version].map(u64::to_le_bytes).concat();
    let shorts = [entry.offset, entry.len, expiry, group, epoch_slot].map(u32::to_le_bytes);
    [longs, shorts.concat(), ns.to_le_bytes().to_vec(), vec![0; 2]].concat()
}

#[test]
fn header_and_footer_of_format_1_are_read() {
    let at = |n: u64| FooterEntry { offset: HEADER + n as u32 * 64, ..entry(n) };
    let entries: Vec<_> = (0..150).map(at).collect();
    let id = SegmentId { records: RecordFormat::Fixed, ..id() };
    let out = encode_fixed_footer(&id, &entries);
    let listed = entries.iter().flat_map(raw_fixed).collect::<Vec<_>>();
    let trailer = fixed_mark(b"aglowFTR", 150, &listed);
    assert_eq!((&out[..150 * 40], &out[out.len() - 64..]), (&listed[..], &trailer[..]));
    assert_eq!(out.len(), fixed_footer_len(150) as usize);
    let footer = decode_footer(&out, &UUID, 5, SIZE).unwrap();
    assert_eq!((footer.trailer.records, footer.entries), (RecordFormat::Fixed, entries));
    let (header, mut made) = (fixed_mark(b"aglowSEG", 0, &[]), [0; 64]);
    encode_header(&mut made, &id);
    assert_eq!(header, made);
    assert_eq!(decode_header(&header, &UUID, 5), Some((GENERATION, RecordFormat::Fixed)));
}
