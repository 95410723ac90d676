//! Compressed envelopes and segments.

use super::*;

#[test]
fn compressed_envelopes_are_smaller_and_the_same_again() {
    let noise: Vec<u8> =
        (0..70_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (version, compression) in AGREED {
        for body in
            [vec![], vec![7; 50], vec![7; 5000], vec![7; 300_000], noise.clone(), noise.repeat(5)]
        {
            let (mut encoder, mut decoder) = compressed(version, compression);
            let sent = [
                envelope(version, 1, Opcode::Query, &body),
                envelope(version, 2, Opcode::Options, b""),
                envelope(version, 3, Opcode::Query, &body),
            ];
            sent.iter().for_each(|e| encoder.push(&e.header, &e.body));
            let wire = encoder.take();
            let plain = encode(version.has_segments(), &sent).len();
            if body.iter().all(|byte| *byte == 7) && body.len() > 1000 {
                assert!(
                    wire.len() < plain / 10,
                    "{version} {compression:?}: {} of {plain}",
                    wire.len()
                );
            } else {
                assert!(
                    wire.len() <= plain + 2 * (plain / MAX_PAYLOAD + 3),
                    "{} of {plain}",
                    wire.len()
                );
            }
            // In pieces of any length.
            let mut received = Vec::new();
            for piece in wire.chunks(1 + body.len() / 7) {
                decoder.feed(piece);
                received.extend(good(drain(&mut decoder)));
            }
            assert!(received == sent, "{version} {compression:?} {}", body.len());
        }
    }
}

#[test]
fn a_compressed_segment_is_that_of_the_specification() {
    // Header: 3 bytes of block, 0 of them compressed, self-contained; all little-endian.
    let (mut encoder, _) = compressed(Version::V5, Compression::Lz4);
    encoder.push(&Header::new(Version::V5, 0, Opcode::Options), b"");
    let wire = encoder.take();
    assert_eq!(wire[..5], [9, 0, 0, 0, 4], "17 bits 9, 17 bits 0, the bit");
    assert_eq!(wire[5..8], crc24(&wire[..5]).to_le_bytes()[..3]);
    assert_eq!(wire[8..17], *b"\x05\0\0\0\x05\0\0\0\0");
    assert_eq!(wire[17..], crc32(&wire[8..17]).to_le_bytes());
}

#[test]
fn what_claims_to_be_compressed_and_is_not_costs_one_request() {
    for compression in [Compression::Lz4, Compression::Snappy] {
        // The last claims 2 GB: no memory is taken for it.
        for body in
            [&b""[..], b"\0\0\0\x40garbage", b"\xff\xff\x03garbage", b"\x7f\xff\xff\xff\x07x"]
        {
            let (_, mut decoder) = compressed(Version::V4, compression);
            let mut header = Header::new(Version::V4, 9, Opcode::Query);
            header.flags = Flags::COMPRESSED;
            decoder.feed(&header.encode(body.len()));
            decoder.feed(body);
            decoder.feed(b"\x04\0\0\x05\x05\0\0\0\0");
            let all = drain(&mut decoder);
            let [Err(error), Ok(next)] = &all[..] else {
                panic!("{compression:?} {body:?}: {all:?}")
            };
            assert_eq!((error.stream, error.fatal, next.header.stream), (9, false, 5));
        }
    }
}

proptest! {
    #[test]
    fn damaged_compressed_bytes_are_refused_at_worst(
        agreed in prop::sample::select(&AGREED[..]), body in prop::collection::vec(0..4u8, 0..600),
        at: prop::sample::Index, byte: u8,
    ) {
        let (mut encoder, mut decoder) = compressed(agreed.0, agreed.1);
        encoder.push(&Header::new(agreed.0, 1, Opcode::Query), &body);
        let mut wire = encoder.take();
        let at = at.index(wire.len());
        wire[at] = byte;
        decoder.feed(&wire);
        drain(&mut decoder);
    }
}
