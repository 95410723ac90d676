//! Reassembles envelopes from the payloads of segments.

use bytes::{Buf, Bytes, BytesMut};

use super::copying::is_to_be_copied;
use super::error::FrameError;
use super::header::{Envelope, HEADER_LEN};
use super::refusal::{Head, Rules, Skipping};
use crate::error::ProtocolError;

/// The segment layer's state: the rest of one self-contained segment, and the parts of one envelope
/// that spans segments.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    contained: Bytes,
    /// How long `contained` was at first.
    segment_len: usize,
    /// How many envelopes of `contained` were refused since the last good one.
    refused_in_a_row: u32,
    spanning: BytesMut,
    skipping: Option<Skipping>,
    /// The envelope in `spanning` is to be skipped, with this error.
    refused: Option<ProtocolError>,
}

/// What there is of an envelope that spans segments.
pub(super) enum Assembled {
    /// All of it.
    Whole(Envelope),
    /// Its header, which says that it takes so much memory.
    Held(usize),
    /// Not enough, or nothing.
    Partly,
}

const BEYOND_END: &str = "Segment goes on after the end of the envelope it is a part of";

impl Reassembly {
    /// How many bytes wait here.
    pub fn len(&self) -> usize {
        self.contained.len() + self.spanning.len()
    }

    /// Whether there is a part of an envelope that spans segments.
    pub fn is_spanning(&self) -> bool {
        !self.spanning.is_empty()
    }

    /// Takes in the payload of a self-contained segment, once
    /// [`next_contained`](Self::next_contained) gave everything of the one before.
    pub fn contain(&mut self, payload: Bytes) {
        self.segment_len = payload.len();
        self.contained = payload;
        self.refused_in_a_row = 0;
    }

    /// The next envelope of the current self-contained segment.
    pub fn next_contained(&mut self, rules: &Rules) -> Result<Option<Envelope>, FrameError> {
        if self.contained.is_empty() {
            return Ok(None);
        }
        let Some(bytes) = self.contained.first_chunk::<HEADER_LEN>() else {
            return Err(rules.fatal("Segment ends within an envelope header"));
        };
        let head = Head::read(bytes);
        rules.check_sign(&head)?;
        let mut body = self.contained.split_to(head.total().min(self.contained.len()));
        let header = rules.accept(&head).map_err(|refusal| self.refuse(refusal))?;
        if body.len() < head.total() {
            return Err(rules.fatal("Self-contained segment ends within an envelope"));
        }
        self.refused_in_a_row = 0;
        body.advance(HEADER_LEN);
        if is_to_be_copied(head.total(), self.segment_len) {
            body = Bytes::copy_from_slice(&body);
        }
        Ok(Some(Envelope { header, body }))
    }

    /// An envelope that is not acceptable is skipped; after two in a row the rest of the segment
    /// must be garbage too (Cassandra's `consecutive_message_errors_threshold`).
    fn refuse(&mut self, refusal: FrameError) -> FrameError {
        self.refused_in_a_row += 1;
        FrameError { fatal: self.refused_in_a_row > 1, ..refusal }
    }

    /// Takes in a part of an envelope that spans segments.
    pub fn span(&mut self, part: &[u8], rules: &Rules) -> Result<(), FrameError> {
        match self.skipping.take() {
            Some(skipping) => self.skip(skipping, part.len(), rules),
            None => {
                self.spanning.extend_from_slice(part);
                Ok(())
            }
        }
    }

    /// The envelope that spans segments, when it is whole.
    pub fn assemble(&mut self, rules: &Rules) -> Result<Assembled, FrameError> {
        let have = self.spanning.len();
        let Some(bytes) = self.spanning.first_chunk::<HEADER_LEN>() else {
            return Ok(Assembled::Partly);
        };
        let head = Head::read(bytes);
        rules.check_sign(&head)?;
        if let Some(error) = self.refused.take() {
            return self.skip_spanning(&head, rules.refuse(&head, error), rules);
        }
        let header = match rules.accept(&head) {
            Ok(header) => header,
            Err(then) if rules.is_too_long(&head) => return self.skip_spanning(&head, then, rules),
            // The parts that follow a header like that cannot be trusted to belong to it.
            Err(refusal) => return Err(refusal.fatal()),
        };
        if rules.holds(head.total()) {
            return Ok(Assembled::Held(head.total()));
        }
        if have < head.total() {
            self.spanning.reserve(head.total() - have);
            return Ok(Assembled::Partly);
        }
        if have > head.total() {
            return Err(rules.fatal(BEYOND_END));
        }
        let mut body = std::mem::take(&mut self.spanning).freeze();
        body.advance(HEADER_LEN);
        Ok(Assembled::Whole(Envelope { header, body }))
    }

    /// Has the envelope that spans segments skipped, with that error.
    pub fn refuse_spanning(&mut self, error: ProtocolError) {
        self.refused = Some(error);
    }

    /// Drops what there is of an envelope and skips the rest.
    fn skip_spanning(
        &mut self,
        head: &Head,
        then: FrameError,
        rules: &Rules,
    ) -> Result<Assembled, FrameError> {
        let have = std::mem::take(&mut self.spanning).len();
        self.skip(Skipping { left: head.total(), then }, have, rules)?;
        Ok(Assembled::Partly)
    }

    fn skip(
        &mut self,
        mut skipping: Skipping,
        part: usize,
        rules: &Rules,
    ) -> Result<(), FrameError> {
        if skipping.skip(part) < part {
            return Err(rules.fatal(BEYOND_END));
        }
        if skipping.left == 0 {
            return Err(skipping.then);
        }
        self.skipping = Some(skipping);
        Ok(())
    }
}
