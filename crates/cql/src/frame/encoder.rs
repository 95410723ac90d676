//! Encodes envelopes to the bytes of a connection.

use super::compression::{Compression, pack_block};
use super::header::{Flags, HEADER_LEN, Header, Opcode};
use super::segment::{Format, MAX_HEADER_LEN, MAX_PAYLOAD, TRAILER_LEN, Wrapped};

/// Collects outgoing envelopes of one connection: as they are at first, in v5 segments after
/// [`switch_to_segments`](Encoder::switch_to_segments).
///
/// Small envelopes pushed between two [`take`](Encoder::take)s share segments, as the servers' own
/// flushers do; an envelope that fills more than one segment gets its own. Nothing is bounded here:
/// stop pushing while [`len`](Encoder::len) is more than the peer keeps up with.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
    segments: bool,
    compression: Option<Compression>,
    /// Where the payload of the segment being filled starts; its header is a gap before it.
    open: Option<usize>,
}

impl Encoder {
    /// An encoder for the start of a connection: envelopes travel bare.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the next envelope on, bodies are compressed where that pays, and in v5 the segments
    /// that follow [`switch_to_segments`](Self::switch_to_segments). Call this first.
    pub fn set_compression(&mut self, compression: Compression) {
        self.compression = Some(compression);
    }

    /// From the next envelope on, everything travels in segments. What was pushed before stays as
    /// it is.
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
        self.out.extend_from_slice(&[0; HEADER_LEN]);
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        self.head(header, start);
        self.end(start);
    }

    /// Appends an envelope whose body `write` appends to the buffer it is given. It must only
    /// append.
    pub fn push_with(&mut self, header: &Header, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.begin(0);
        self.out.extend_from_slice(&[0; HEADER_LEN]);
        write(&mut self.out);
        self.head(header, start);
        self.end(start);
    }

    /// Writes the header before the body that is there, which is compressed where that pays.
    fn head(&mut self, header: &Header, start: usize) {
        let (mut header, body) = (*header, start + HEADER_LEN);
        if let (Some(compression), false) = (self.compression, header.version.has_segments())
            && header.opcode != Opcode::Startup
            && let Some(packed) = compression.body(&self.out[body..])
        {
            self.out.truncate(body);
            self.out.extend_from_slice(&packed);
            header.flags = header.flags.with(Flags::COMPRESSED);
        }
        let body_len = self.out.len() - body;
        self.out[start..body].copy_from_slice(&header.encode(body_len));
    }

    /// Appends an envelope that is bytes already, such as
    /// [`FrameError::reply`](super::FrameError::reply).
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

    /// Moves everything pushed since the last call to the end of `buffer`; keeps its own buffer for
    /// the next round.
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
        self.out.reserve(len + MAX_HEADER_LEN + TRAILER_LEN);
        if self.segments && self.open.is_none() {
            self.out.extend_from_slice(&[0; MAX_HEADER_LEN][..self.format().header_len()]);
            self.open = Some(self.out.len());
        }
        self.out.len()
    }

    /// The envelope that starts at `start` is whole: see that the open segment is no longer than
    /// allowed.
    fn end(&mut self, start: usize) {
        let Some(payload) = self.open else { return };
        if self.out.len() - payload <= MAX_PAYLOAD {
            return;
        }
        let envelope = self.out.split_off(start);
        if start == payload {
            self.out.truncate(payload - self.format().header_len());
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
        let per_segment = MAX_HEADER_LEN + TRAILER_LEN;
        self.out.reserve(envelope.len() + per_segment * (envelope.len() / MAX_PAYLOAD + 1));
        for part in envelope.chunks(MAX_PAYLOAD) {
            self.out.extend_from_slice(&[0; MAX_HEADER_LEN][..self.format().header_len()]);
            let payload = self.out.len();
            self.out.extend_from_slice(part);
            self.seal(payload, false);
        }
    }

    /// Writes header and checksum of the open segment.
    fn close(&mut self) {
        if let Some(payload) = self.open.take() {
            self.seal(payload, true);
        }
    }

    /// Makes a segment of what follows `payload` and the gap for a header before it.
    fn seal(&mut self, payload: usize, self_contained: bool) {
        let (format, mut packs) = (self.format(), None);
        if format == Format::Lz4 {
            let mut scratch = Vec::new();
            if let Some(packed) = pack_block(&self.out[payload..], &mut scratch) {
                packs = Some(self.out.len() - payload);
                self.out.truncate(payload);
                self.out.extend_from_slice(&scratch[..packed]);
            }
        }
        let header = Wrapped { wire_len: self.out.len() - payload, packs, self_contained };
        format.encode(header, &mut self.out[payload - format.header_len()..payload]);
        let crc = super::crc32(&self.out[payload..]);
        self.out.extend_from_slice(&crc.to_le_bytes());
    }

    fn format(&self) -> Format {
        if self.compression == Some(Compression::Lz4) { Format::Lz4 } else { Format::Plain }
    }
}
