//! Framing, both ways: golden bytes, arbitrary fragmentation, corruption, and limits.

mod compressed;
mod large;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::error::{ErrorCode, ProtocolError};

fn envelope(version: Version, stream: i16, opcode: Opcode, body: &[u8]) -> Envelope {
    Envelope { header: Header::new(version, stream, opcode), body: Bytes::copy_from_slice(body) }
}

fn encode(segments: bool, envelopes: &[Envelope]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    if segments {
        encoder.switch_to_segments();
    }
    for e in envelopes {
        encoder.push(&e.header, &e.body);
    }
    encoder.take()
}

fn server(segments: bool) -> Decoder {
    let mut decoder = Decoder::for_requests();
    if segments {
        decoder.switch_to_segments();
    }
    decoder
}

/// Both sides of a connection after a STARTUP of that version that asked for `compression`.
fn compressed(version: Version, compression: Compression) -> (Encoder, Decoder) {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::for_requests());
    encoder.set_compression(compression);
    decoder.set_compression(compression);
    if version.has_segments() {
        encoder.switch_to_segments();
        decoder.switch_to_segments();
    }
    (encoder, decoder)
}

const AGREED: [(Version, Compression); 5] = [
    (Version::V3, Compression::Lz4),
    (Version::V3, Compression::Snappy),
    (Version::V4, Compression::Lz4),
    (Version::V4, Compression::Snappy),
    (Version::V5, Compression::Lz4),
];

/// Everything a decoder gives until it wants more bytes or fails for good.
fn drain(decoder: &mut Decoder) -> Vec<Result<Envelope, FrameError>> {
    let mut all = Vec::new();
    loop {
        match decoder.next_envelope() {
            Ok(None) => return all,
            Ok(Some(envelope)) => all.push(Ok(envelope)),
            Err(error) => {
                let fatal = error.fatal;
                all.push(Err(error));
                if fatal {
                    return all;
                }
            }
        }
    }
}

fn good(all: Vec<Result<Envelope, FrameError>>) -> Vec<Envelope> {
    all.into_iter().map(|e| e.expect("an envelope")).collect()
}

fn only_error(all: Vec<Result<Envelope, FrameError>>) -> FrameError {
    let [Err(error)] = all.as_slice() else { panic!("not one error: {all:?}") };
    error.clone()
}

#[test]
fn envelope_bytes_are_those_of_the_specification() {
    let out = encode(false, &[envelope(Version::V4, 0x0102, Opcode::Query, b"xyz")]);
    assert_eq!(out, b"\x04\x00\x01\x02\x07\x00\x00\x00\x03xyz");
    let mut header = Header::new(Version::V5, -1, Opcode::Event);
    header.flags = Flags::WARNING;
    assert_eq!(header.encode(258), *b"\x85\x08\xff\xff\x0c\x00\x00\x01\x02");
}

#[test]
fn segment_bytes_are_those_of_the_specification() {
    // An independent computation of both checksums. CRC24 is polynomial division, bit by bit, most
    // significant bit first. CRC32 is zlib's reflected one over the seed and the payload.
    fn crc24_by_division(bytes: &[u8]) -> u32 {
        let mut register = 0x87_5060u64;
        for bit in bytes.iter().flat_map(|b| (0..8).rev().map(move |i| (b >> i) & 1)) {
            let top = (register >> 23) & 1;
            register = (register << 1) & 0xff_ffff;
            if top ^ u64::from(bit) == 1 {
                register ^= 0x97_4f0b;
            }
        }
        register as u32
    }
    fn crc32_by_division(bytes: &[u8]) -> u32 {
        let mut register = !0u32;
        for &byte in [0xfa, 0x2d, 0x55, 0xca].iter().chain(bytes) {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register =
                    if register & 1 == 1 { (register >> 1) ^ 0xedb8_8320 } else { register >> 1 };
            }
        }
        !register
    }
    let options = [5, 0, 0, 9, 5, 0, 0, 0, 0];
    let out = encode(true, &[envelope(Version::V5, 9, Opcode::Options, b"")]);
    // 9 bytes, self-contained: 0x020009 in little-endian order.
    let header = [0x09, 0x00, 0x02];
    let crc24 = crc24_by_division(&header).to_le_bytes();
    let crc32 = crc32_by_division(&options).to_le_bytes();
    assert_eq!(out, [&header[..], &crc24[..3], &options, &crc32].concat());
    // Written by the Python driver 3.30.
    assert_eq!(segment(true, b"abc"), b"\x03\x00\x02\x42\x96\x7cabc\x08\x7a\x36\xc5");
}

#[test]
fn small_envelopes_share_a_segment_and_large_ones_have_their_own() {
    let small = envelope(Version::V5, 1, Opcode::Query, &[7; 100]);
    let large = envelope(Version::V5, 2, Opcode::Query, &vec![8; MAX_PAYLOAD + 1]);
    let sent = [large.clone(), small.clone(), small.clone(), large, small];
    let out = encode(true, &sent);
    let mut lengths = Vec::new();
    let mut rest = &out[..];
    while let Some((head, tail)) = rest.split_first_chunk::<6>() {
        let header = SegmentHeader::decode(head).unwrap();
        lengths.push((header.payload_len, header.self_contained));
        rest = &tail[header.payload_len + 4..];
    }
    let parts = [(MAX_PAYLOAD, false), (10, false)];
    assert_eq!(lengths, [&parts[..], &[(218, true)], &parts, &[(109, true)]].concat());
    let mut decoder = server(true);
    decoder.feed(&out);
    assert_eq!(good(drain(&mut decoder)), sent);
}

#[test]
fn all_ways_to_push_give_the_same_bytes() {
    for (segments, len) in
        [(false, 10), (true, 10), (true, MAX_PAYLOAD - 20), (true, 3 * MAX_PAYLOAD)]
    {
        let header = Header::new(Version::V5, 3, Opcode::Result);
        let body = vec![9; len];
        let mut encoders = [Encoder::new(), Encoder::new(), Encoder::new(), Encoder::new()];
        for encoder in &mut encoders {
            if segments {
                encoder.switch_to_segments();
            }
            encoder.push(&header, b"first");
        }
        encoders[0].push(&header, &body);
        encoders[1].push_parts(&header, &[&body[..4], b"", &body[4..]]);
        encoders[2].push_with(&header, |out| out.extend_from_slice(&body));
        encoders[3].push_encoded(&[&header.encode(len)[..], &body].concat());
        let [a, b, c, d] = encoders.map(|mut e| e.take());
        assert!(a == b && b == c && c == d, "body of {len}");
    }
}

#[test]
fn what_was_pushed_before_the_switch_travels_bare() {
    let ready = envelope(Version::V5, 0, Opcode::Ready, b"");
    let next = envelope(Version::V5, 1, Opcode::Supported, b"\0\0");
    let mut encoder = Encoder::new();
    encoder.push(&ready.header, &ready.body);
    encoder.switch_to_segments();
    encoder.push(&next.header, &next.body);
    let mut decoder = Decoder::for_responses();
    decoder.feed(&encoder.take());
    assert_eq!(decoder.next_envelope(), Ok(Some(ready)));
    decoder.switch_to_segments();
    assert_eq!(decoder.next_envelope(), Ok(Some(next)));
    assert_eq!(decoder.next_envelope(), Ok(None));
}

#[test]
fn any_fragmentation_gives_the_same_envelopes() {
    let sent = [
        envelope(Version::V5, 1, Opcode::Query, b"one"),
        envelope(Version::V5, 2, Opcode::Options, b""),
        envelope(Version::V5, 3, Opcode::Execute, &[5; 30]),
    ];
    for segments in [false, true] {
        let bytes = encode(segments, &sent);
        for cut in 0..=bytes.len() {
            let mut decoder = server(segments);
            decoder.feed(&bytes[..cut]);
            let mut got = good(drain(&mut decoder));
            decoder.feed(&bytes[cut..]);
            got.extend(good(drain(&mut decoder)));
            assert_eq!(got, sent, "cut at {cut}");
            assert_eq!(decoder.buffered(), 0);
        }
        let mut decoder = server(segments);
        let one_by_one = bytes.iter().flat_map(|&byte| {
            decoder.feed(&[byte]);
            good(drain(&mut decoder))
        });
        assert_eq!(one_by_one.collect::<Vec<_>>(), sent);
    }
}

#[test]
fn an_envelope_over_several_segments_survives_cuts_around_every_seam() {
    let sent = [envelope(Version::V5, 4, Opcode::Query, &vec![3; 2 * MAX_PAYLOAD + 5])];
    let bytes = encode(true, &sent);
    let segment = MAX_PAYLOAD + 10;
    for seam in [0, segment, 2 * segment, bytes.len()] {
        for cut in seam.saturating_sub(12)..=(seam + 20).min(bytes.len()) {
            let mut decoder = server(true);
            decoder.feed(&bytes[..cut]);
            let mut got = good(drain(&mut decoder));
            decoder.feed(&bytes[cut..]);
            got.extend(good(drain(&mut decoder)));
            assert_eq!(got, sent, "cut at {cut}");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_segment_is_noticed() {
    let bytes = encode(true, &[envelope(Version::V5, 1, Opcode::Query, b"select")]);
    for bit in 0..bytes.len() * 8 {
        let mut corrupt = bytes.clone();
        corrupt[bit / 8] ^= 1 << (bit % 8);
        let mut decoder = server(true);
        decoder.feed(&corrupt);
        let error = only_error(drain(&mut decoder));
        assert!(error.fatal && error.error.code == ErrorCode::Protocol, "bit {bit}: {error}");
        assert!(error.error.message.contains("CRC mismatch"), "bit {bit}: {error}");
        decoder.feed(&bytes);
        assert_eq!(decoder.next_envelope(), Err(error), "nothing is believed after corruption");
    }
}

#[test]
fn a_corrupt_later_part_of_a_large_envelope_is_noticed() {
    let mut bytes =
        encode(true, &[envelope(Version::V5, 1, Opcode::Query, &vec![1; 2 * MAX_PAYLOAD])]);
    let middle = bytes.len() - 100;
    bytes[middle] ^= 0x40;
    let mut decoder = server(true);
    decoder.feed(&bytes);
    assert!(only_error(drain(&mut decoder)).fatal);
}

#[test]
fn unspoken_versions_are_answered_from_their_first_byte() {
    let cases: [(u8, &[u8]); 5] = [
        (0x42, b"\x85\0\0\0\0"),
        (7, b"\x85\0\0\0\0"),
        (0, b"\x85\0\0\0\0"),
        (2, b"\x82\0\0\0"),
        (1, b"\x81\0\0\0"),
    ];
    for (version, reply_head) in cases {
        let mut decoder = server(false);
        decoder.feed(&[version]);
        let error = only_error(drain(&mut decoder));
        let text = format!(
            "Invalid or unsupported protocol version ({version}); supported versions are (3/v3, 4/v4, 5/v5, 6/v6-beta)"
        );
        let mut reply = reply_head.to_vec();
        reply.extend_from_slice(&(6 + text.len() as u32).to_be_bytes());
        reply.extend_from_slice(&[0, 0, 0, 10, 0, text.len() as u8]);
        reply.extend_from_slice(text.as_bytes());
        assert_eq!(error.reply(), reply, "version {version}");
        // Seen with Cassandra: the client may go on with another version.
        decoder.feed(b"\x04\0\0\x05\x05\0\0\0\0");
        assert_eq!(good(drain(&mut decoder)).len(), 1);
    }
}

#[test]
fn the_version_in_the_making_is_answered_once_its_flags_are_here() {
    for (flags, version, text) in [
        (0, 6, "Beta version of the protocol used (6/v6-beta), but USE_BETA flag is unset"),
        (
            0x10,
            5,
            "Invalid or unsupported protocol version (6); supported versions are (3/v3, 4/v4, 5/v5, 6/v6-beta)",
        ),
    ] {
        let mut decoder = server(false);
        decoder.feed(&[6, flags, 0, 7]);
        assert!(drain(&mut decoder).is_empty());
        decoder.feed(&[5, 0, 0, 0, 0]);
        let error = only_error(drain(&mut decoder));
        assert_eq!((error.version, error.stream, &*error.error.message), (version, 0, text));
        decoder.feed(b"\x05\0\0\x05\x05\0\0\0\0");
        assert_eq!(good(drain(&mut decoder)).len(), 1, "it may go on with another one");
    }
}

#[test]
fn what_came_with_an_unspoken_version_is_dropped() {
    let mut decoder = server(false);
    decoder.feed(b"\x42\0\0\x05\x05\0\0\0\0\x04\0\0\x05\x05\0\0\0\0");
    only_error(drain(&mut decoder));
    assert_eq!(decoder.buffered(), 0);
}

#[test]
fn refused_envelopes_are_skipped_and_answered_on_their_stream() {
    let options = b"\x04\0\0\x05\x05\0\0\0\0";
    let refused: [(&[u8], &str); 4] = [
        (b"\x04\0\0\x07\x04\0\0\0\x02xx", "Unknown opcode 4"),
        (b"\x04\0\0\x07\xf0\0\0\0\0", "Unknown opcode -16"),
        (
            b"\x04\0\0\x07\x08\0\0\0\x01x",
            "Wrong protocol direction (expected RESPONSE, got REQUEST) for opcode 8 (RESULT)",
        ),
        (
            b"\x84\0\0\x07\x08\0\0\0\x01x",
            "Wrong protocol direction (expected RESPONSE, got REQUEST) for opcode 8 (RESULT)",
        ),
    ];
    for (bytes, text) in refused {
        let all = [bytes, options].concat();
        for cut in 0..all.len() {
            let mut decoder = server(false);
            if cut % 2 == 0 {
                decoder.pin_version(Version::V4);
            }
            decoder.feed(&all[..cut]);
            let mut got = drain(&mut decoder);
            decoder.feed(&all[cut..]);
            got.extend(drain(&mut decoder));
            let [Err(error), Ok(after)] = got.as_slice() else { panic!("{got:?}") };
            // A connection without a version is answered in the highest.
            let version = if cut % 2 == 0 { 4 } else { 5 };
            assert_eq!((error.stream, error.version, error.fatal), (7, version, false));
            assert_eq!(error.error.message, text);
            assert_eq!(after.header.opcode, Opcode::Options);
        }
    }
}

#[test]
fn the_compression_flag_is_ignored_in_requests_and_in_v5_but_not_in_v4_responses() {
    for bytes in [b"\x04\x01\0\x07\x05\0\0\0\0", b"\x05\x01\0\x07\x05\0\0\0\0"] {
        let mut decoder = server(false);
        decoder.feed(bytes);
        // Nothing is compressed, so nobody must be told it were; in v5 the bit is no longer looked
        // at.
        let kept = if bytes[0] == 4 { Flags::NONE } else { Flags::COMPRESSED };
        assert_eq!(good(drain(&mut decoder))[0].header.flags, kept);
    }
    let mut decoder = Decoder::for_responses();
    decoder.feed(b"\x84\x01\0\x07\x08\0\0\0\x01x");
    let error = only_error(drain(&mut decoder));
    assert_eq!(
        error.error.message,
        "Received a compressed response, but no compression was negotiated"
    );
    decoder.feed(b"\x85\x01\0\x07\x08\0\0\0\x01x");
    assert_eq!(good(drain(&mut decoder)).len(), 1);
}

#[test]
fn another_version_than_agreed_is_refused() {
    let mut decoder = server(false);
    decoder.pin_version(Version::V4);
    decoder.feed(b"\x05\0\0\x07\x05\0\0\0\0");
    let error = only_error(drain(&mut decoder));
    assert!(!error.fatal);
    assert_eq!(
        error.error.message,
        "Invalid message version. Got 5/v5 but previous messages on this connection had version 4/v4"
    );
}

fn segment(self_contained: bool, payload: &[u8]) -> Vec<u8> {
    let header = SegmentHeader { payload_len: payload.len(), self_contained };
    [&header.encode()[..], payload, &crc32(payload).to_le_bytes()].concat()
}

#[test]
fn one_refused_envelope_in_a_segment_is_skipped_and_two_in_a_row_are_fatal() {
    let unknown = b"\x05\0\0\x07\x04\0\0\0\x01x".as_slice();
    let version = b"\x07\0\0\x08\x05\0\0\0\0".as_slice();
    let options = b"\x05\0\0\x09\x05\0\0\0\0".as_slice();
    let mut decoder = server(true);
    decoder.feed(&segment(true, &[unknown, options, version, options].concat()));
    decoder.feed(&segment(true, unknown));
    decoder.feed(&segment(true, unknown));
    let streams: Vec<_> = drain(&mut decoder)
        .into_iter()
        .map(|e| e.map(|e| e.header.stream).map_err(|e| (e.stream, e.fatal)))
        .collect();
    assert_eq!(
        streams,
        [Err((7, false)), Ok(9), Err((8, false)), Ok(9), Err((7, false)), Err((7, false))]
    );
    decoder.feed(&segment(true, &[unknown, unknown, options].concat()));
    let got = drain(&mut decoder);
    assert!(matches!(got.as_slice(), [Err(a), Err(b)] if !a.fatal && b.fatal), "{got:?}");
}

#[test]
fn malformed_segments_are_fatal() {
    let cases: [(&str, Vec<u8>); 6] = [
        ("ends within an envelope header", segment(true, b"\x05\0\0")),
        ("ends within an envelope", segment(true, b"\x05\0\0\x07\x07\0\0\0\x05abc")),
        ("body length field: -1", segment(true, b"\x05\0\0\x07\x07\xff\xff\xff\xff")),
        ("goes on after the end", segment(false, b"\x05\0\0\x07\x05\0\0\0\0more")),
        ("Unknown opcode", segment(false, b"\x05\0\0\x07\x04\0\0\0\x05a")),
        ("unsupported protocol version", segment(false, b"\x07\0\0\x07\x07\0\0\0\x05a")),
    ];
    for (text, bytes) in cases {
        let mut decoder = server(true);
        decoder.feed(&bytes);
        let error = only_error(drain(&mut decoder));
        assert!(error.fatal && error.error.message.contains(text), "{text}: {error}");
    }
}

#[test]
fn empty_segments_and_parts_of_any_size_are_fine() {
    let mut decoder = server(true);
    let whole = b"\x05\0\0\x07\x07\0\0\0\x05abcde";
    decoder.feed(&segment(true, b""));
    decoder.feed(&segment(false, b""));
    for byte in whole {
        decoder.feed(&segment(false, &[*byte]));
    }
    assert_eq!(good(drain(&mut decoder)), [envelope(Version::V5, 7, Opcode::Query, b"abcde")]);
}

#[test]
fn a_client_takes_responses_only() {
    let mut decoder = Decoder::for_responses();
    decoder.feed(b"\x04\0\0\x07\x05\0\0\0\0");
    assert!(only_error(drain(&mut decoder)).error.message.contains("Wrong protocol direction"));
}

#[test]
fn range_of_finds_the_slice() {
    let outer = b"0123456789";
    assert_eq!(notation::range_of(outer, &outer[3..7]), 3..7);
    assert_eq!(notation::range_of(outer, &outer[10..]), 10..10);
}

fn arb_envelope() -> impl Strategy<Value = Envelope> {
    let requests: Vec<Opcode> =
        Opcode::ALL.iter().copied().filter(|o| o.direction() == Direction::Request).collect();
    let len = prop_oneof![8 => 0..300usize, 1 => 0..3 * MAX_PAYLOAD];
    (any::<i16>(), prop::sample::select(requests), 0..32u8, len, any::<u8>()).prop_map(
        |(stream, opcode, flags, len, byte)| {
            let mut sent = envelope(Version::V5, stream, opcode, &vec![byte; len]);
            sent.header.flags = Flags(flags);
            sent
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_encoded_is_decoded(
        sent in prop::collection::vec(arb_envelope(), 0..12),
        cuts in prop::collection::vec(1..200_000usize, 0..6),
        segments: bool,
    ) {
        let bytes = encode(segments, &sent);
        let mut decoder = server(segments);
        let mut got = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            decoder.feed(now);
            got.extend(good(drain(&mut decoder)));
            rest = later;
        }
        decoder.feed(rest);
        got.extend(good(drain(&mut decoder)));
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn garbage_ends_in_errors_at_worst(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        segments: bool,
    ) {
        let mut decoder = server(segments).with_max_envelope(1000);
        for chunk in bytes.chunks(97) {
            decoder.feed(chunk);
            drain(&mut decoder);
            prop_assert!(decoder.buffered() <= 200_000);
        }
    }

    #[test]
    fn garbage_inside_good_segments_ends_in_errors_at_worst(
        payloads in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(0..12u8, 0..60)),
            0..20,
        ),
    ) {
        let mut decoder = server(true).with_max_envelope(1000);
        for (self_contained, payload) in payloads {
            decoder.feed(&segment(self_contained, &payload));
            drain(&mut decoder);
        }
    }
}
