//! Decodes envelopes from the bytes of a connection.

use bytes::{Buf, Bytes, BytesMut};

use super::DEFAULT_MAX_ENVELOPE;
use super::compression::{Compression, unpack_block};
use super::copying::{WORTH_A_COPY, is_to_be_copied};
use super::error::FrameError;
use super::header::{Direction, Envelope, Flags, HEADER_LEN, Header, Version};
use super::reassembly::{Assembled, Reassembly};
use super::refusal::{Head, Rules, Skipping, check_version};
use super::segment::{MAX_PAYLOAD, TRAILER_LEN, Wrapped, check_payload};
use crate::error::ProtocolError;

/// Decodes one direction of a connection. Bounded: it holds no more than one envelope of the
/// maximum length and what was fed last.
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
    rules: Rules,
    /// Bytes of the connection not looked at yet.
    input: BytesMut,
    /// Present once the connection travels in segments.
    segments: Option<Reassembly>,
    /// A bare envelope that is being skipped.
    skipping: Option<Skipping>,
    /// What the envelope that is held takes.
    held: Option<usize>,
    /// The error that ended this connection.
    failed: Option<FrameError>,
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
        let rules = Rules {
            direction,
            max_envelope: DEFAULT_MAX_ENVELOPE,
            unasked: usize::MAX,
            admitted: 0,
            highest: Version::MAX,
            version: None,
            segments: false,
            compression: None,
        };
        Self {
            rules,
            input: BytesMut::new(),
            segments: None,
            skipping: None,
            held: None,
            failed: None,
        }
    }

    /// Sets how long an envelope, header included, may be. Longer ones are skipped, with a
    /// non-fatal error.
    pub fn with_max_envelope(mut self, bytes: usize) -> Self {
        self.rules.max_envelope = bytes.max(HEADER_LEN);
        self
    }

    /// As [`with_max_envelope`](Self::with_max_envelope), for the envelopes to come.
    pub fn set_max_envelope(&mut self, bytes: usize) {
        self.rules.max_envelope = bytes.max(HEADER_LEN);
    }

    /// Holds envelopes that take more memory than that: [`next_envelope`](Self::next_envelope)
    /// gives `None`, whatever is fed, until the envelope is admitted or refused.
    pub fn hold_above(&mut self, bytes: usize) {
        self.rules.unasked = bytes;
    }

    /// How much memory the envelope that is held takes, as it came and as it was before it was
    /// compressed. It is known from the envelope's first bytes: next to nothing of it has been kept
    /// so far.
    pub fn held(&self) -> Option<usize> {
        self.held
    }

    /// Takes in the envelope that is held.
    pub fn admit(&mut self) {
        self.rules.admitted = self.held.take().unwrap_or(0);
    }

    /// Whether an envelope that was admitted is still on its way. In segments, others may come
    /// between its parts.
    pub fn is_receiving(&self) -> bool {
        self.rules.admitted > 0
    }

    /// Skips the envelope that is held. Once it is gone, `next_envelope` gives the error, which is
    /// not fatal.
    pub fn refuse(&mut self, error: ProtocolError) {
        if self.held.take().is_none() {
            return;
        }
        match &mut self.segments {
            Some(segments) => segments.refuse_spanning(error),
            None => {
                let Some(bytes) = self.input.first_chunk::<HEADER_LEN>() else { return };
                let head = Head::read(bytes);
                let then = self.rules.refuse(&head, error);
                self.skipping = Some(Skipping { left: head.total(), then });
            }
        }
    }

    /// The highest version that is spoken, for what is told to clients that come with a higher one.
    pub fn set_highest(&mut self, version: Version) {
        self.rules.highest = version;
    }

    /// Refuses envelopes of any other version from now on, as a server does once it got a STARTUP.
    pub fn pin_version(&mut self, version: Version) {
        self.rules.version = Some(version);
    }

    /// What a STARTUP that was accepted has asked for: envelopes that say so are compressed from
    /// now on, in v5 segments are.
    pub fn set_compression(&mut self, compression: Compression) {
        self.rules.compression = Some(compression);
    }

    /// From the next byte not yet decoded on, the connection travels in segments. Call it when a v5
    /// STARTUP was answered, before anything further is decoded. (Cassandra does so even when the
    /// answer is an error, as seen with 5.0.)
    pub fn switch_to_segments(&mut self) {
        self.segments.get_or_insert_default();
        self.rules.segments = true;
    }

    /// Appends what the connection brought.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The buffer that [`feed`](Self::feed) appends to, to read from a socket straight into it.
    /// Only append.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// How many bytes wait, be it for decoding or for the rest of an envelope.
    pub fn buffered(&self) -> usize {
        self.input.len() + self.segments.as_ref().map_or(0, Reassembly::len)
    }

    /// The next envelope; `None` when more bytes are needed. After a fatal error, the same error
    /// for ever.
    pub fn next_envelope(&mut self) -> Result<Option<Envelope>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.held.is_some() {
            return Ok(None);
        }
        let next = match &mut self.segments {
            Some(segments) => {
                next_in_segments(&mut self.input, segments, &self.rules, &mut self.held)
            }
            None => self.next_bare(),
        };
        // What came between the parts of the envelope that was admitted is not that one.
        let is_partly_here = self.segments.as_ref().is_some_and(Reassembly::is_spanning);
        if !matches!(next, Ok(None)) && !is_partly_here {
            self.rules.admitted = 0;
        }
        if let Err(error) = &next
            && error.fatal
        {
            *self = Self { failed: Some(error.clone()), ..Self::new(self.rules.direction) };
        }
        next
    }

    fn next_bare(&mut self) -> Result<Option<Envelope>, FrameError> {
        if let Some(skipping) = self.skipping.take() {
            return self.skip(skipping);
        }
        let Some(&first) = self.input.first() else { return Ok(None) };
        // Version first: clients of v1 and v2 send shorter headers and would never be answered
        // otherwise. Nobody knows how long such an envelope is, so everything that came with it
        // goes, and the connection stays, as in Cassandra.
        if let Err(unsupported) = check_version(first, self.rules.highest) {
            self.input.clear();
            return Err(unsupported);
        }
        let Some(bytes) = self.input.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let head = Head::read(bytes);
        if let Some(refused) = head.refused_version(self.rules.highest) {
            self.input.clear();
            return Err(refused);
        }
        let header = match self.rules.accept(&head) {
            Ok(header) => header,
            Err(then) => return self.skip(Skipping { left: head.total(), then }),
        };
        let takes = head.total() + self.claimed(&header);
        if self.rules.holds(takes) {
            self.held = Some(takes);
            return Ok(None);
        }
        if self.input.len() < head.total() {
            // At once and no more than that: a buffer that doubles would take twice as much.
            self.input.reserve(head.total() - self.input.len());
            return Ok(None);
        }
        let body = take_body(&mut self.input, &head);
        self.unpack(header, body).map(Some).map_err(|error| self.rules.refuse(&head, error))
    }

    /// How long the envelope that the input starts with says its body was before it was compressed.
    /// Nothing, where it would be refused for that.
    fn claimed(&self, header: &Header) -> usize {
        let compressed = header.flags.contains(Flags::COMPRESSED) && !header.version.has_segments();
        let claimed = match self.rules.compression {
            Some(compression) if compressed => compression.claimed(&self.input[HEADER_LEN..]),
            _ => None,
        };
        claimed.filter(|length| *length <= self.rules.max_envelope).unwrap_or(0)
    }

    /// The envelope as it was before its sender compressed it. Without an algorithm the flag means
    /// nothing.
    fn unpack(&self, mut header: Header, mut body: Bytes) -> Result<Envelope, ProtocolError> {
        if header.flags.contains(Flags::COMPRESSED) && !header.version.has_segments() {
            header.flags = header.flags.without(Flags::COMPRESSED);
            if let Some(compression) = self.rules.compression {
                body = compression.unpack(&body, self.rules.max_envelope - HEADER_LEN)?.into();
            }
        }
        Ok(Envelope { header, body })
    }

    fn skip(&mut self, mut skipping: Skipping) -> Result<Option<Envelope>, FrameError> {
        let skipped = skipping.skip(self.input.len());
        self.input.advance(skipped);
        if skipping.left == 0 {
            return Err(skipping.then);
        }
        self.skipping = Some(skipping);
        Ok(None)
    }
}

/// The body of the whole envelope that the input starts with.
fn take_body(input: &mut BytesMut, head: &Head) -> Bytes {
    let total = head.total();
    if is_to_be_copied(total, input.len()) {
        let body = Bytes::copy_from_slice(&input[HEADER_LEN..total]);
        input.advance(total);
        return body;
    }
    let mut body = input.split_to(total).freeze();
    if total > WORTH_A_COPY {
        // Or the room for a large envelope would be kept for the small ones that follow.
        *input = BytesMut::from(&input[..]);
    }
    body.advance(HEADER_LEN);
    body
}

fn next_in_segments(
    input: &mut BytesMut,
    segments: &mut Reassembly,
    rules: &Rules,
    held: &mut Option<usize>,
) -> Result<Option<Envelope>, FrameError> {
    loop {
        if let Some(envelope) = segments.next_contained(rules)? {
            return Ok(Some(envelope));
        }
        match segments.assemble(rules)? {
            Assembled::Whole(envelope) => return Ok(Some(envelope)),
            Assembled::Held(takes) => {
                *held = Some(takes);
                return Ok(None);
            }
            Assembled::Partly => {}
        }
        let Some((header, payload)) = next_segment(input, rules)? else { return Ok(None) };
        if header.self_contained {
            segments.contain(payload);
        } else {
            segments.span(&payload, rules)?;
        }
    }
}

/// The payload of the next whole segment, its checksums verified, as it was before it was
/// compressed.
fn next_segment(
    input: &mut BytesMut,
    rules: &Rules,
) -> Result<Option<(Wrapped, Bytes)>, FrameError> {
    let format = rules.segment_format();
    let fatal = |error: ProtocolError| rules.fatal(error.message);
    let Some(header) = format.decode(input).map_err(fatal)? else { return Ok(None) };
    let end = format.header_len() + header.wire_len;
    let Some(trailer) = input.get(end..).and_then(|rest| rest.first_chunk::<TRAILER_LEN>()) else {
        return Ok(None);
    };
    check_payload(&input[format.header_len()..end], *trailer).map_err(fatal)?;
    let mut segment = input.split_to(end + TRAILER_LEN).freeze();
    segment.advance(format.header_len());
    segment.truncate(header.wire_len);
    let payload = match header.packs {
        Some(length) => unpack_block(&segment, length, MAX_PAYLOAD).map_err(fatal)?.into(),
        None => segment,
    };
    Ok(Some((header, payload)))
}
