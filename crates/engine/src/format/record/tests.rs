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
