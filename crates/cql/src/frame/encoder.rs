//! Envelopes to bytes of a connection.

use super::header::{HEADER_LEN, Header};
use super::segment::{MAX_PAYLOAD, SEGMENT_HEADER_LEN, SegmentHeader, TRAILER_LEN};

/// Collects outgoing envelopes of one connection: as they are at first, in v5 segments after
/// [`switch_to_segments`](Encoder::switch_to_segments).
///
/// Small envelopes pushed between two [`take`](Encoder::take)s share segments, as the servers' own flushers
/// do; an envelope that fills more than one segment gets its own. Nothing is bounded here: stop pushing while
/// [`len`](Encoder::len) is more than the peer keeps up with.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
    segments: bool,
    /// Where the payload of the segment being filled starts; its header is a gap before it.
    open: Option<usize>,
}

impl Encoder {
    /// An encoder for the start of a connection: envelopes travel bare.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the next envelope on, everything travels in segments. What was pushed before stays as it is.
    pub fn switch_to_segments(&mut self) {
        self.segments = true;
    }

    /// Whether envelopes travel in segments.
    pub fn has_segments(&self) -> bool {
        self.segments
    }

    /// How many bytes [`take`](Encoder::take) would give, a few of checksums aside.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Appends an envelope.
    pub fn push(&mut self, header: &Header, body: &[u8]) {
        self.push_parts(header, &[body]);
    }

    /// Appends an envelope whose body is the parts in a row.
    pub fn push_parts(&mut self, header: &Header, parts: &[&[u8]]) {
        let body_len = parts.iter().map(|p| p.len()).sum::<usize>();
        let start = self.begin(HEADER_LEN + body_len);
        self.out.extend_from_slice(&header.encode(body_len));
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        self.end(start);
    }

    /// Appends an envelope whose body `write` appends to the buffer it is given. It must only append.
    pub fn push_with(&mut self, header: &Header, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.begin(0);
        self.out.extend_from_slice(&[0; HEADER_LEN]);
        write(&mut self.out);
        let body_len = self.out.len() - start - HEADER_LEN;
        self.out[start..start + HEADER_LEN].copy_from_slice(&header.encode(body_len));
        self.end(start);
    }

    /// Appends an envelope that is bytes already, such as [`FrameError::reply`](super::FrameError::reply).
    pub fn push_encoded(&mut self, envelope: &[u8]) {
        let start = self.begin(envelope.len());
        self.out.extend_from_slice(envelope);
        self.end(start);
    }

    /// Everything pushed since the last call, ready to be sent.
    pub fn take(&mut self) -> Vec<u8> {
        self.close();
        std::mem::take(&mut self.out)
    }

    /// Moves everything pushed since the last call to the end of `buffer`; keeps its own buffer for the next
    /// round.
    pub fn take_into(&mut self, buffer: &mut Vec<u8>) {
        self.close();
        if buffer.is_empty() {
            std::mem::swap(buffer, &mut self.out);
        } else {
            buffer.append(&mut self.out);
        }
    }

    /// Makes room for an envelope; returns where it starts.
    fn begin(&mut self, len: usize) -> usize {
        self.out.reserve(len + SEGMENT_HEADER_LEN + TRAILER_LEN);
        if self.segments && self.open.is_none() {
            self.out.extend_from_slice(&[0; SEGMENT_HEADER_LEN]);
            self.open = Some(self.out.len());
        }
        self.out.len()
    }

    /// The envelope that starts at `start` is whole: see that the open segment is no longer than allowed.
    fn end(&mut self, start: usize) {
        let Some(payload) = self.open else { return };
        if self.out.len() - payload <= MAX_PAYLOAD {
            return;
        }
        let envelope = self.out.split_off(start);
        if start == payload {
            self.out.truncate(payload - SEGMENT_HEADER_LEN);
            self.open = None;
        } else {
            self.close();
        }
        if envelope.len() <= MAX_PAYLOAD {
            self.begin(envelope.len());
            self.out.extend_from_slice(&envelope);
        } else {
            self.split(&envelope);
        }
    }

    /// Appends an envelope too long for one segment as parts.
    fn split(&mut self, envelope: &[u8]) {
        let per_segment = SEGMENT_HEADER_LEN + TRAILER_LEN;
        self.out.reserve(envelope.len() + per_segment * (envelope.len() / MAX_PAYLOAD + 1));
        for part in envelope.chunks(MAX_PAYLOAD) {
            let header = SegmentHeader { payload_len: part.len(), self_contained: false };
            self.out.extend_from_slice(&header.encode());
            self.out.extend_from_slice(part);
            self.out.extend_from_slice(&super::crc32(part).to_le_bytes());
        }
    }

    /// Writes header and checksum of the open segment.
    fn close(&mut self) {
        let Some(payload) = self.open.take() else { return };
        let header = SegmentHeader { payload_len: self.out.len() - payload, self_contained: true };
        self.out[payload - SEGMENT_HEADER_LEN..payload].copy_from_slice(&header.encode());
        let crc = super::crc32(&self.out[payload..]);
        self.out.extend_from_slice(&crc.to_le_bytes());
    }
}
