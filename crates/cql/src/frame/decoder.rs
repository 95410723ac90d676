//! Bytes of a connection to envelopes.

use std::borrow::Cow;

use bytes::{Buf, Bytes, BytesMut};

use super::DEFAULT_MAX_ENVELOPE;
use super::header::{Direction, Envelope, Flags, HEADER_LEN, Header, Opcode, Version};
use super::segment::{SEGMENT_HEADER_LEN, SegmentHeader, TRAILER_LEN, check_payload};
use crate::error::{ErrorCode, ProtocolError};
use crate::negotiate;

/// Why bytes are no envelope, and what a server answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stream {stream}: {error}")]
pub struct FrameError {
    /// Code and text of the answer.
    pub error: ProtocolError,
    /// Stream of the answer: that of the request where it is known, else 0.
    pub stream: i16,
    /// Version of the answer, a number that may be none of [`Version`]: an old client is answered in its own.
    pub version: u8,
    /// The stream of bytes cannot be followed any further: answer, then close. Otherwise the envelope was skipped and decoding goes on.
    pub fatal: bool,
}

impl FrameError {
    /// The whole ERROR envelope to send. Versions below 3 get their shorter header.
    pub fn reply(&self) -> Vec<u8> {
        negotiate::error_envelope(self.version, self.stream, &self.error)
    }
}

/// Decodes one direction of a connection. Bounded: it holds no more than one envelope of the maximum length and what was fed last.
///
/// ```
/// # use afterglow_cql::frame::*;
/// let mut encoder = Encoder::new();
/// encoder.push(&Header::new(Version::V4, 7, Opcode::Options), b"");
/// let mut decoder = Decoder::for_requests();
/// decoder.feed(&encoder.take());
/// let envelope = decoder.next_envelope().unwrap().unwrap();
/// assert_eq!((envelope.header.opcode, envelope.header.stream), (Opcode::Options, 7));
/// assert_eq!(decoder.next_envelope(), Ok(None)); // feed more
/// ```
#[derive(Debug)]
pub struct Decoder {
    direction: Direction,
    max_envelope: usize,
    /// Bytes of the connection not looked at yet.
    input: BytesMut,
    /// The version every envelope must have, once the first is known.
    version: Option<Version>,
    /// Present once the connection travels in segments.
    segments: Option<Segments>,
    /// An envelope over the limit that is being skipped.
    skipping: Option<Skipping>,
    /// The error that ended this connection.
    failed: Option<FrameError>,
}

/// State inside the segment layer.
#[derive(Debug, Default)]
struct Segments {
    /// Rest of a self-contained segment's payload.
    contained: Bytes,
    /// Parts of an envelope that spans segments.
    spanning: BytesMut,
    /// How many envelopes of the current segment were refused since the last good one.
    refused_in_a_row: u32,
}

#[derive(Debug)]
struct Skipping {
    left: usize,
    then: FrameError,
}

/// What an envelope's first nine bytes say, before anything but the version is believed.
struct Head {
    version: Version,
    direction: Direction,
    flags: Flags,
    stream: i16,
    opcode: u8,
    length: u32,
}

impl Head {
    /// Reads a header whose version is one spoken here.
    fn read(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let [first, flags, s1, s2, opcode, l1, l2, l3, l4] = *bytes;
        let stream = i16::from_be_bytes([s1, s2]);
        let number = first & 0x7f;
        let Some(version) = Version::from_u8(number) else {
            return Err(FrameError { stream, ..negotiate::unsupported_version(number) });
        };
        let length = u32::from_be_bytes([l1, l2, l3, l4]);
        Ok(Self { version, direction: Direction::of(first), flags: Flags(flags), stream, opcode, length })
    }

    /// Length of the whole envelope.
    fn total(&self) -> usize {
        HEADER_LEN.saturating_add(self.length as usize)
    }

    fn refuse(&self, error: ProtocolError) -> FrameError {
        FrameError { error, stream: self.stream, version: self.version.as_u8(), fatal: false }
    }
}

impl Decoder {
    /// A server's decoder: what clients send.
    pub fn for_requests() -> Self {
        Self::new(Direction::Request)
    }

    /// A client's decoder: what servers send.
    pub fn for_responses() -> Self {
        Self::new(Direction::Response)
    }

    fn new(direction: Direction) -> Self {
        Self {
            direction,
            max_envelope: DEFAULT_MAX_ENVELOPE,
            input: BytesMut::new(),
            version: None,
            segments: None,
            skipping: None,
            failed: None,
        }
    }

    /// Sets how long an envelope, header included, may be. Longer ones are skipped, with a non-fatal error.
    pub fn with_max_envelope(mut self, bytes: usize) -> Self {
        self.max_envelope = bytes.max(HEADER_LEN);
        self
    }

    /// From the next byte not yet decoded on, the connection travels in segments: call it when the (v5) STARTUP was answered with READY or
    /// AUTHENTICATE, before decoding anything further.
    pub fn switch_to_segments(&mut self) {
        self.segments.get_or_insert_default();
    }

    /// The version of the connection, once it is known from its first envelope or from [`pin_version`](Self::pin_version).
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Refuses envelopes of any other version from now on, as a server does after STARTUP.
    pub fn pin_version(&mut self, version: Version) {
        self.version = Some(version);
    }

    /// Appends what the connection brought.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The buffer that [`feed`](Self::feed) appends to, to read from a socket straight into it. Only append.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// How many bytes wait, be it for decoding or for the rest of an envelope.
    pub fn buffered(&self) -> usize {
        self.input.len() + self.segments.as_ref().map_or(0, |s| s.contained.len() + s.spanning.len())
    }

    /// The next envelope; `None` when more bytes are needed. After a fatal error, the same error for ever.
    pub fn next_envelope(&mut self) -> Result<Option<Envelope>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = if self.segments.is_some() { self.next_in_segments() } else { self.next_bare() };
        if let Err(error) = &next
            && error.fatal
        {
            self.failed = Some(error.clone());
            self.input = BytesMut::new();
            self.segments = None;
        }
        next
    }

    fn next_bare(&mut self) -> Result<Option<Envelope>, FrameError> {
        if self.skipping.is_some() {
            let (skipped, done) = self.skip(self.input.len());
            self.input.advance(skipped);
            return done.map_or(Ok(None), Err);
        }
        let Some(&first) = self.input.first() else { return Ok(None) };
        // Version first: clients of v1 and v2 send shorter headers and would never be answered otherwise.
        if Version::from_u8(first & 0x7f).is_none() {
            return Err(negotiate::unsupported_version(first & 0x7f));
        }
        let Some(bytes) = self.input.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let head = Head::read(bytes)?;
        let header = match self.accept(&head) {
            Ok(header) => header,
            Err(refusal) => {
                self.skipping = Some(Skipping { left: head.total(), then: refusal });
                return self.next_bare();
            }
        };
        if self.input.len() < head.total() {
            return Ok(None);
        }
        let mut body = self.input.split_to(head.total()).freeze();
        body.advance(HEADER_LEN);
        Ok(Some(Envelope { header, body }))
    }

    /// What makes an envelope acceptable, in the order in which a server looks.
    fn accept(&self, head: &Head) -> Result<Header, FrameError> {
        let &Head { version, flags, stream, .. } = head;
        let opcode = Opcode::decode(head.opcode, head.direction).map_err(|e| head.refuse(e))?;
        if opcode.direction() != self.direction {
            return Err(head.refuse(Opcode::wrong_direction(opcode, self.direction)));
        }
        if head.total() > self.max_envelope {
            return Err(head.refuse(ProtocolError::invalid(format!(
                "Request is too big: length {} exceeds maximum allowed length {}.",
                head.total(),
                self.max_envelope
            ))));
        }
        if let Some(pinned) = self.version
            && version != pinned
        {
            return Err(head.refuse(ProtocolError::new(format!(
                "Invalid message version. Got {version} but previous messages on this connection had version {pinned}"
            ))));
        }
        if !version.has_segments() && flags.contains(Flags::COMPRESSED) {
            return Err(head.refuse(ProtocolError::new(
                "Compressed frame received but compression was not negotiated in STARTUP",
            )));
        }
        Ok(Header { version, flags, stream, opcode })
    }

    /// Skips as many of `available` bytes as are left to skip; with the error once there are no more.
    fn skip(&mut self, available: usize) -> (usize, Option<FrameError>) {
        let Some(mut skipping) = self.skipping.take() else { return (0, None) };
        let skipped = skipping.left.min(available);
        skipping.left -= skipped;
        if skipping.left == 0 {
            return (skipped, Some(skipping.then));
        }
        self.skipping = Some(skipping);
        (skipped, None)
    }
}

/// The segment layer.
impl Decoder {
    fn next_in_segments(&mut self) -> Result<Option<Envelope>, FrameError> {
        loop {
            if let Some(envelope) = self.next_contained()? {
                return Ok(Some(envelope));
            }
            let Some((header, payload)) = self.next_segment()? else { return Ok(None) };
            if header.self_contained {
                // The one before is used up, or there would have been an envelope or an error.
                self.segments().contained = payload;
                self.segments().refused_in_a_row = 0;
            } else if let Some(envelope) = self.span(&payload)? {
                return Ok(Some(envelope));
            }
        }
    }

    /// The next segment, its checksums verified.
    fn next_segment(&mut self) -> Result<Option<(SegmentHeader, Bytes)>, FrameError> {
        let Some(head) = self.input.first_chunk::<SEGMENT_HEADER_LEN>() else { return Ok(None) };
        let header = SegmentHeader::decode(head).map_err(|e| self.fatal(e.message))?;
        let end = SEGMENT_HEADER_LEN + header.payload_len;
        let Some(trailer) = self.input.get(end..).and_then(|rest| rest.first_chunk::<TRAILER_LEN>()) else {
            return Ok(None);
        };
        check_payload(&self.input[SEGMENT_HEADER_LEN..end], *trailer).map_err(|e| self.fatal(e.message))?;
        let mut segment = self.input.split_to(end + TRAILER_LEN).freeze();
        segment.advance(SEGMENT_HEADER_LEN);
        segment.truncate(header.payload_len);
        Ok(Some((header, segment)))
    }

    fn segments(&mut self) -> &mut Segments {
        self.segments.get_or_insert_default()
    }

    /// The next envelope of the current self-contained segment.
    fn next_contained(&mut self) -> Result<Option<Envelope>, FrameError> {
        let contained = self.segments().contained.clone();
        if contained.is_empty() {
            return Ok(None);
        }
        let Some(bytes) = contained.first_chunk::<HEADER_LEN>() else {
            return Err(self.fatal("Segment ends within an envelope header"));
        };
        let (head, header) = match Head::read(bytes) {
            Ok(head) => (Some(head.total()), self.accept(&head)),
            // Whatever the version, its length is where it has been since v3.
            Err(refusal) => (body_len(bytes).map(|n| HEADER_LEN + n), Err(refusal)),
        };
        let Some(total) = head.filter(|_| body_len(bytes).is_some()) else {
            let [.., a, b, c, d] = *bytes;
            let length = i32::from_be_bytes([a, b, c, d]);
            return Err(self.fatal(format!("Invalid value for envelope header body length field: {length}")));
        };
        self.segments().contained = contained.slice(total.min(contained.len())..);
        match header {
            Err(refusal) => Err(self.refuse_contained(refusal)),
            Ok(_) if total > contained.len() => {
                Err(self.fatal("Self-contained segment ends within an envelope"))
            }
            Ok(header) => {
                self.segments().refused_in_a_row = 0;
                Ok(Some(Envelope { header, body: contained.slice(HEADER_LEN..total) }))
            }
        }
    }

    /// An envelope that is not acceptable is skipped; after two in a row the rest of the segment must be garbage too (Cassandra's
    /// `consecutive_message_errors_threshold`).
    fn refuse_contained(&mut self, refusal: FrameError) -> FrameError {
        self.segments().refused_in_a_row += 1;
        FrameError { fatal: self.segments().refused_in_a_row > 1, ..refusal }
    }

    /// Takes in a part of an envelope that spans segments; gives the envelope when it is whole.
    fn span(&mut self, part: &[u8]) -> Result<Option<Envelope>, FrameError> {
        if self.skipping.is_some() {
            return self.skip_part(part.len());
        }
        self.segments().spanning.extend_from_slice(part);
        let have = self.segments().spanning.len();
        let Some(&bytes) = self.segments().spanning.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let head = Head::read(&bytes).map_err(|refusal| FrameError { fatal: true, ..refusal })?;
        let header = match self.accept(&head) {
            Ok(header) => header,
            Err(refusal) if refusal.error.code == ErrorCode::Invalid => {
                self.segments().spanning = BytesMut::new();
                self.skipping = Some(Skipping { left: head.total(), then: refusal });
                return self.skip_part(have);
            }
            // The parts that follow a header like that cannot be trusted to belong to it.
            Err(refusal) => return Err(FrameError { fatal: true, ..refusal }),
        };
        if have < head.total() {
            return Ok(None);
        }
        if have > head.total() {
            return Err(self.fatal("Segment goes on after the end of the envelope it is a part of"));
        }
        let mut body = std::mem::take(&mut self.segments().spanning).freeze();
        body.advance(HEADER_LEN);
        Ok(Some(Envelope { header, body }))
    }

    fn skip_part(&mut self, part_len: usize) -> Result<Option<Envelope>, FrameError> {
        match self.skip(part_len) {
            (skipped, _) if skipped < part_len => {
                Err(self.fatal("Segment goes on after the end of the envelope it is a part of"))
            }
            (_, Some(error)) => Err(error),
            (_, None) => Ok(None),
        }
    }

    /// An error of the connection rather than of an envelope.
    fn fatal(&self, message: impl Into<Cow<'static, str>>) -> FrameError {
        let version = self.version.unwrap_or(Version::MAX).as_u8();
        FrameError { error: ProtocolError::new(message), stream: 0, version, fatal: true }
    }
}

/// Length of the body behind a header, if it is none that only an unsigned number could be.
fn body_len(header: &[u8; HEADER_LEN]) -> Option<usize> {
    let [.., a, b, c, d] = *header;
    usize::try_from(i32::from_be_bytes([a, b, c, d])).ok()
}
