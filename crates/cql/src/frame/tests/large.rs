//! Envelopes that are too large, or wait to be admitted.

use super::*;

#[test]
fn envelopes_over_the_limit_are_skipped_without_being_kept() {
    for (segments, body) in [(false, 5000), (true, 5000), (true, 300_000)] {
        let sent = [
            envelope(Version::V5, 6, Opcode::Query, &vec![0; body]),
            envelope(Version::V5, 7, Opcode::Options, b""),
        ];
        let mut decoder = server(segments).with_max_envelope(4096);
        let mut got = Vec::new();
        for chunk in encode(segments, &sent).chunks(1000) {
            decoder.feed(chunk);
            got.extend(drain(&mut decoder));
            // Never more than the segment that is still incomplete.
            assert!(decoder.buffered() <= if segments { MAX_PAYLOAD + 1010 } else { 4096 });
        }
        let [Err(error), Ok(after)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!((error.stream, error.fatal), (6, false));
        assert_eq!(error.error.code, ErrorCode::Invalid);
        let text = if segments {
            format!("CQL Message of size {body} bytes exceeds allowed maximum of 4096 bytes")
        } else {
            format!("Request is too big: length {} exceeds maximum allowed length 4096.", body + 9)
        };
        assert_eq!(error.error.message, text);
        assert_eq!(*after, sent[1]);
    }
}

/// A large envelope with a small one behind it, in each way in which they may travel; what the
/// large one takes.
fn large_ones() -> Vec<(Vec<u8>, Decoder, usize)> {
    let body = vec![7; 300_000];
    let ways = [(Version::V4, None), (Version::V5, None)].into_iter();
    let ways = ways.chain(AGREED.map(|(version, compression)| (version, Some(compression))));
    ways.map(|(version, compression)| {
        let mut encoder = Encoder::new();
        let mut decoder = server(version.has_segments());
        if let Some(compression) = compression {
            (encoder, decoder) = compressed(version, compression);
        } else if version.has_segments() {
            encoder.switch_to_segments();
        }
        encoder.push(&Header::new(version, 6, Opcode::Query), &body);
        let packed = encoder.len();
        encoder.push(&Header::new(version, 7, Opcode::Options), b"");
        decoder.hold_above(10_000);
        let unpacked = compression.is_some() && !version.has_segments();
        let takes = if unpacked { packed + body.len() } else { HEADER_LEN + body.len() };
        (encoder.take(), decoder, takes)
    })
    .collect()
}

#[test]
fn a_large_envelope_waits_to_be_admitted_before_anything_of_it_is_kept() {
    for (wire, mut decoder, takes) in large_ones() {
        let (mut fed, mut got) = (0, Vec::new());
        for piece in wire.chunks(500) {
            decoder.feed(piece);
            fed += piece.len();
            got.extend(good(drain(&mut decoder)));
            if decoder.held().is_some() {
                break;
            }
        }
        assert_eq!((decoder.held(), got.len()), (Some(takes), 0));
        assert!(
            fed <= MAX_PAYLOAD + 1010 && decoder.buffered() <= 2 * MAX_PAYLOAD,
            "{fed} were fed"
        );
        decoder.feed(&wire[fed..]);
        assert_eq!(good(drain(&mut decoder)), [], "whatever comes");
        decoder.admit();
        let got = good(drain(&mut decoder));
        assert_eq!(got.iter().map(|e| e.body.len()).collect::<Vec<_>>(), [300_000, 0]);
        assert_eq!((decoder.held(), decoder.buffered()), (None, 0));
    }
}

#[test]
fn each_large_envelope_is_admitted_for_itself() {
    for (wire, mut decoder, takes) in large_ones() {
        decoder.feed(&wire.repeat(2));
        for round in 0..2 {
            assert_eq!(good(drain(&mut decoder)).len(), round, "the small one of before");
            assert_eq!(decoder.held(), Some(takes));
            decoder.admit();
            assert_eq!(decoder.next_envelope().unwrap().unwrap().header.stream, 6);
        }
    }
}

#[test]
fn a_large_envelope_that_is_refused_is_skipped_and_costs_nothing() {
    for (wire, mut decoder, _) in large_ones() {
        let mut got = Vec::new();
        for piece in wire.chunks(500) {
            decoder.feed(piece);
            got.extend(drain(&mut decoder));
            if decoder.held().is_some() {
                decoder.refuse(ProtocolError::overloaded("later"));
            }
            got.extend(drain(&mut decoder));
            assert!(decoder.buffered() <= MAX_PAYLOAD + 1010);
        }
        let [Err(error), Ok(after)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(
            (error.stream, error.fatal, error.error.code),
            (6, false, ErrorCode::Overloaded)
        );
        assert_eq!(after.header.stream, 7);
    }
}

/// The parts of an envelope of v5 that spans segments, with a self-contained segment between any
/// two.
fn interleaved(large: &Envelope, between: &Envelope) -> Vec<u8> {
    // Header and trailer of an uncompressed segment.
    const AROUND: usize = 6 + 4;
    let (wire, small) =
        (encode(true, std::slice::from_ref(large)), encode(true, std::slice::from_ref(between)));
    wire.chunks(MAX_PAYLOAD + AROUND).collect::<Vec<_>>().join(&small[..])
}

#[test]
fn a_large_envelope_is_admitted_once_whatever_comes_between_its_parts() {
    let large = envelope(Version::V5, 6, Opcode::Query, &vec![7; 400_000]);
    let small = envelope(Version::V5, 7, Opcode::Options, b"");
    let answer = envelope(Version::V5, 8, Opcode::Ready, b"");
    for (between, is_good) in [(&small, true), (&answer, false)] {
        let mut decoder = server(true);
        decoder.hold_above(10_000);
        let (mut got, mut admitted) = (Vec::new(), 0);
        for piece in interleaved(&large, between).chunks(500) {
            decoder.feed(piece);
            got.extend(drain(&mut decoder));
            if decoder.held().is_some() {
                decoder.admit();
                admitted += 1;
                got.extend(drain(&mut decoder));
            }
            let is_whole = got.iter().any(|got| got.as_ref() == Ok(&large));
            assert_eq!(decoder.is_receiving(), admitted > 0 && !is_whole, "{between:?}");
        }
        assert_eq!(admitted, 1, "{between:?}");
        assert_eq!(got.iter().filter(|got| got.is_ok()).count(), if is_good { 4 } else { 1 });
        assert_eq!(got.last().unwrap().as_ref(), Ok(&large));
    }
}

#[test]
fn a_small_request_keeps_nothing_of_what_came_with_it() {
    for segments in [false, true] {
        let sent: Vec<_> =
            (0..100).map(|n| envelope(Version::V5, n, Opcode::Query, &[n as u8; 1000])).collect();
        let mut decoder = server(segments);
        decoder.feed(&encode(segments, &sent));
        let got = good(drain(&mut decoder));
        assert_eq!(got, sent);
        // Slices of one buffer lie one behind the other.
        let gap =
            |pair: &[Envelope]| pair[1].body.as_ptr().addr().abs_diff(pair[0].body.as_ptr().addr());
        assert!(got[..50].windows(2).any(|pair| gap(pair) != 1000 + HEADER_LEN));
    }
}

#[test]
fn the_limit_itself_is_allowed() {
    let sent = [envelope(Version::V4, 6, Opcode::Query, &[0; 4087])];
    let mut decoder = server(false).with_max_envelope(4096);
    decoder.feed(&encode(false, &sent));
    assert_eq!(good(drain(&mut decoder)), sent);
}
