//! Requests that are encoded once. For each operation only the stream id, the key and the values
//! are written into a copy.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::SystemTime,
};

use afterglow_cql::{
    frame::{Encoder, Header, Opcode, Version, notation::Value},
    message::{Consistency, QueryParams, ValuesBuilder},
};

use super::Prepared;

/// Fills the placeholders of values: a byte that occurs in no protocol field next to it.
const PLACEHOLDER: u8 = 0xA5;
/// Where the stream id is in a v4 and v5 envelope.
const STREAM: std::ops::Range<usize> = 2..4;

/// An EXECUTE envelope with places for its values, whose lengths are fixed.
#[derive(Clone, Debug)]
pub struct Template {
    envelope: Vec<u8>,
    /// Position of each value.
    places: Vec<std::ops::Range<usize>>,
    /// Position of the timestamp of a write.
    timestamp: Option<std::ops::Range<usize>>,
}

/// The last timestamp that was given out.
static LAST: AtomicI64 = AtomicI64::new(0);

/// Microseconds since 1970, later than any before: what drivers give to writes.
fn timestamp() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = now.as_micros() as i64;
    let later = |last: i64| Some(now.max(last + 1));
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    last.map_or(now, |last| now.max(last + 1))
}

impl Template {
    /// An EXECUTE of `prepared` with values of these lengths; answers come without metadata.
    pub fn new(
        version: Version,
        prepared: &Prepared,
        lengths: &[usize],
        consistency: Consistency,
    ) -> Self {
        Self::made(version, prepared, lengths, consistency, false)
    }

    /// The same of a write: each request has a timestamp, later than those before, as drivers give
    /// it.
    pub fn of_write(
        version: Version,
        prepared: &Prepared,
        lengths: &[usize],
        consistency: Consistency,
    ) -> Self {
        Self::made(version, prepared, lengths, consistency, true)
    }

    fn made(
        version: Version,
        prepared: &Prepared,
        lengths: &[usize],
        consistency: Consistency,
        timestamped: bool,
    ) -> Self {
        let encode = |fill: u8| {
            let mut values = ValuesBuilder::positional();
            for &length in lengths {
                values.push(Value::Bytes(&vec![fill; length]));
            }
            let params = QueryParams {
                skip_metadata: true,
                values: values.view(),
                // Positive, and another in each byte.
                timestamp: timestamped.then(|| i64::from_be_bytes([fill & 0x7F; 8])),
                ..QueryParams::new(consistency)
            };
            let mut encoder = Encoder::new();
            let header = Header::new(version, 0, Opcode::Execute);
            encoder.push_with(&header, |out| prepared.encode(version, &params, out));
            encoder.take()
        };
        // Where two encodings that differ only in the values differ, there the values are: no
        // knowledge of the layout needed.
        let (envelope, other) = (encode(PLACEHOLDER), encode(!PLACEHOLDER));
        let mut places = Vec::new();
        let mut position = 0;
        for &length in lengths {
            let found =
                (position..envelope.len()).find(|&i| envelope[i] != other[i]).unwrap_or(position);
            places.push(found..found + length);
            position = found + length;
        }
        let timestamp = timestamped.then(|| {
            let found = (position..envelope.len()).find(|&i| envelope[i] != other[i]);
            let start = found.unwrap_or(position);
            start..start + size_of::<i64>()
        });
        Self { envelope, places, timestamp }
    }

    /// Appends the envelope with this stream id to `out` and returns it for [`place`](Self::place)s
    /// to be written.
    #[inline]
    pub fn append<'o>(&self, stream: u16, out: &'o mut Vec<u8>) -> &'o mut [u8] {
        let start = out.len();
        out.extend_from_slice(&self.envelope);
        let envelope = &mut out[start..];
        envelope[STREAM].copy_from_slice(&stream.to_be_bytes());
        if let Some(place) = &self.timestamp {
            envelope[place.clone()].copy_from_slice(&timestamp().to_be_bytes());
        }
        envelope
    }

    /// Where value `i` belongs in the envelope.
    #[inline]
    pub fn place(&self, i: usize) -> std::ops::Range<usize> {
        self.places[i].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterglow_cql::{frame::Decoder, message};

    #[test]
    fn a_patched_template_is_the_request_it_should_be() {
        for version in [Version::V4, Version::V5] {
            let prepared =
                Prepared { id: vec![PLACEHOLDER; 16], result_metadata_id: Some(vec![1, 2]) };
            let template = Template::new(version, &prepared, &[3, 5], Consistency::One);
            let mut out = Vec::new();
            for stream in [7u16, 300] {
                let envelope = template.append(stream, &mut out);
                envelope[template.place(0)].copy_from_slice(b"abc");
                envelope[template.place(1)].copy_from_slice(b"defgh");
            }
            let mut decoder = Decoder::for_requests();
            decoder.feed(&out);
            for stream in [7, 300] {
                let envelope = decoder.next_envelope().unwrap().unwrap();
                assert_eq!(envelope.header.stream, stream);
                let (_, request) = message::parse(&envelope.header, &envelope.body).unwrap();
                let message::Request::Execute(execute) = request else { panic!("{request:?}") };
                assert_eq!(execute.id, prepared.id);
                assert!(execute.params.skip_metadata);
                assert_eq!(execute.params.values.get(0), Some(Value::Bytes(b"abc")));
                assert_eq!(execute.params.values.get(1), Some(Value::Bytes(b"defgh")));
            }
        }
    }

    #[test]
    fn writes_have_timestamps_that_grow() {
        for version in [Version::V4, Version::V5] {
            let prepared =
                Prepared { id: vec![PLACEHOLDER; 16], result_metadata_id: Some(vec![1, 2]) };
            let template = Template::of_write(version, &prepared, &[3], Consistency::One);
            let mut out = Vec::new();
            for stream in 0..3 {
                let envelope = template.append(stream, &mut out);
                envelope[template.place(0)].copy_from_slice(b"abc");
            }
            let mut decoder = Decoder::for_requests();
            decoder.feed(&out);
            let mut last = 1_700_000_000_000_000;
            for _ in 0..3 {
                let envelope = decoder.next_envelope().unwrap().unwrap();
                let (_, request) = message::parse(&envelope.header, &envelope.body).unwrap();
                let message::Request::Execute(execute) = request else { panic!("{request:?}") };
                assert_eq!(execute.params.values.get(0), Some(Value::Bytes(b"abc")));
                let now = execute.params.timestamp.unwrap();
                assert!(now > last, "{now}");
                last = now;
            }
        }
    }
}
