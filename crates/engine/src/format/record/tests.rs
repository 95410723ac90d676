//! Records are read as they were written, and nothing else is taken for one.

use proptest::prelude::*;

use super::*;

fn context(generation: u64, format: RecordFormat) -> RecordContext {
    RecordContext::new(7, generation, 4096, format)
}

fn metas() -> impl Strategy<Value = Meta> {
    let some = prop_oneof![Just(0u32), any::<u32>()];
    let versions = prop_oneof![any::<u64>(), 1u64 << 40..(1 << 40) + 1000];
    let epochs = prop_oneof![Just(0u32), 0u32..1 << 20];
    let namespaces = prop_oneof![0u16..4, any::<u16>()];
    (namespaces, versions, some.clone(), some, epochs).prop_map(
        |(ns, version, expiry, group, epoch_slot)| Meta { ns, version, expiry, group, epoch_slot },
    )
}

proptest! {
    #[test]
    fn a_record_reads_back_and_every_flipped_bit_is_noticed(
        meta in metas(),
        key in proptest::collection::vec(any::<u8>(), 0..600),
        value in proptest::collection::vec(any::<u8>(), 0..600),
        generation in prop_oneof![any::<u64>(), Just(1u64 << 40)],
        fixed: bool,
        flip: prop::sample::Index,
    ) {
        let format = if fixed { RecordFormat::Fixed } else { RecordFormat::Compact };
        let here = context(generation, format);
        let mut buf = vec![0xa5; most_len(key.len(), value.len())];
        let len = encode(&mut buf, &here, &meta, &key, &value);
        prop_assert!(len >= MIN_RECORD && format.padded(len as u32) >= len as u32);
        prop_assert_eq!(decode(&buf, &here), Some(Record { meta, key: &key, value: &value, len }));
        prop_assert_eq!(claims(&buf, &here), Some((meta.ns, meta.version, len)));
        prop_assert_eq!(decode(&buf, &context(generation ^ 1, format)), None);
        prop_assert_eq!(decode(&buf[..len - 1], &here), None);
        let bit = flip.index(len * 8);
        buf[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(decode(&buf, &here), None);
    }

    #[test]
    fn garbage_is_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        generation: u64,
    ) {
        for format in [RecordFormat::Fixed, RecordFormat::Compact] {
            prop_assert_eq!(decode(&bytes, &context(generation, format)), None);
        }
    }
}

#[test]
fn a_small_object_has_fifteen_bytes_in_front_of_its_key() {
    let mut buf = [0; 256];
    let meta = Meta { ns: 0, version: 1_000, ..Meta::default() };
    let here = context(900, RecordFormat::Compact);
    assert_eq!(encode(&mut buf, &here, &meta, &[1; 30], &[2; 70]), 115);
    assert_eq!(usual_padded(30, 70), 128);
    let long = Meta { ns: 300, version: 1 << 50, expiry: 1, group: 1, epoch_slot: 1 };
    let len = encode(&mut buf, &here, &long, &[1; 30], &[2; 70]);
    assert_eq!(len, 6 + 1 + 8 + 2 + 4 + 4 + 3 + 1 + 1 + 100);
    assert!(len <= most_len(30, 70));
}

#[test]
fn seeds_differ_by_generation_and_place() {
    let seed = |hash_seed, generation, offset| {
        RecordContext::new(hash_seed, generation, offset, RecordFormat::Compact).seed()
    };
    assert_ne!(seed(1, 2, 3), seed(1, 3, 3));
    assert_ne!(seed(1, 2, 3), seed(1, 2, 4));
    assert_ne!(seed(1, 2, 3), seed(2, 2, 3));
    // Places a whole number of chunks apart, as a misdirected chunk would put them.
    for chunk in 1..16 {
        assert_ne!(seed(1, 2, 64), seed(1, 2, 64 + (chunk << 20)), "chunk {chunk}");
    }
}

/// In both formats the checksum is in the same place and over the same bytes. Whoever puts a value
/// chooses its length and its expiry.
#[test]
fn a_record_of_format_1_is_none_of_another_key_in_todays() {
    let meta = Meta { ns: 2, version: 7, expiry: 0x7000_0001, ..Meta::default() };
    let [fixed, compact] =
        [RecordFormat::Fixed, RecordFormat::Compact].map(|format| context(1 << 20, format));
    let value = vec![b'x'; 17 + (1 << 16) - 32 - 3];
    let mut buf = vec![0; most_len(3, value.len())];
    let len = encode(&mut buf, &fixed, &meta, b"key", &value);
    let (ns, _, claimed) = claims(&buf, &compact).expect("a header");
    assert_eq!((ns, claimed), (0, len), "as many bytes, of another namespace, with no key");
    assert_eq!(decode(&buf, &compact), None);
}

#[test]
fn at_the_bounds_of_its_fields_a_record_reads_back() {
    let (generation, near) = (1u64 << 45, 1u64 << 39);
    let here = context(generation, RecordFormat::Compact);
    let reads_back = |meta: Meta, key: usize, value: usize| {
        let (key, value) = (vec![1; key], vec![2; value]);
        let mut buf = vec![0xa5; most_len(key.len(), value.len())];
        let len = encode(&mut buf, &here, &meta, &key, &value);
        assert_eq!(decode(&buf, &here), Some(Record { meta, key: &key, value: &value, len }));
        len - key.len() - value.len()
    };
    let versions = [
        (generation, 5),
        (generation + near - 1, 5),
        (generation + near, 8),
        (generation - near, 5),
        (generation - near - 1, 8),
        (0, 8),
        (u64::MAX, 8),
    ];
    for (version, bytes) in versions {
        for (ns, ns_bytes) in [(0, 1), (0xff, 1), (0x100, 2), (u16::MAX, 2)] {
            let meta = Meta { ns, version, ..Meta::default() };
            assert_eq!(reads_back(meta, 0, 0), 6 + 1 + bytes + ns_bytes + 1 + 1, "{meta:?}");
            let all = Meta { expiry: u32::MAX, group: u32::MAX, epoch_slot: (1 << 24) - 1, ..meta };
            assert!(reads_back(all, 256, 65_536) <= MAX_HEADER, "{all:?}");
        }
    }
    let meta = Meta { version: generation, ..Meta::default() };
    for (key, key_bytes) in [(0, 1), (0xff, 1), (0x100, 2), (MAX_KEY, 2)] {
        for (value, value_bytes) in [(0, 1), (0xff, 1), (0x100, 2), (0xffff, 2), (0x1_0000, 3)] {
            assert_eq!(reads_back(meta, key, value), 13 + key_bytes + value_bytes);
        }
    }
    assert_eq!(reads_back(meta, 1, MAX_VALUE), 13 + 1 + 3);
}
