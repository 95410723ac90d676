//! Payloads of segments to envelopes.

use bytes::{Buf, Bytes, BytesMut};

use super::header::{Envelope, HEADER_LEN};
use super::refusal::{FrameError, Head, Rules, Skipping};

/// The segment layer's state: the rest of one self-contained segment, and the parts of one envelope that
/// spans segments.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    contained: Bytes,
    /// How many envelopes of `contained` were refused since the last good one.
    refused_in_a_row: u32,
    spanning: BytesMut,
    skipping: Option<Skipping>,
}

const BEYOND_END: &str = "Segment goes on after the end of the envelope it is a part of";

impl Reassembly {
    /// How many bytes wait here.
    pub fn len(&self) -> usize {
        self.contained.len() + self.spanning.len()
    }

    /// Takes in the payload of a self-contained segment, once [`next_contained`](Self::next_contained) gave
    /// everything of the one before.
    pub fn contain(&mut self, payload: Bytes) {
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
        Ok(Some(Envelope { header, body }))
    }

    /// An envelope that is not acceptable is skipped; after two in a row the rest of the segment must be
    /// garbage too (Cassandra's `consecutive_message_errors_threshold`).
    fn refuse(&mut self, refusal: FrameError) -> FrameError {
        self.refused_in_a_row += 1;
        FrameError { fatal: self.refused_in_a_row > 1, ..refusal }
    }

    /// Takes in a part of an envelope that spans segments; gives the envelope when it is whole.
    pub fn span(&mut self, part: &[u8], rules: &Rules) -> Result<Option<Envelope>, FrameError> {
        if let Some(skipping) = self.skipping.take() {
            return self.skip(skipping, part.len(), rules);
        }
        self.spanning.extend_from_slice(part);
        let have = self.spanning.len();
        let Some(bytes) = self.spanning.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let head = Head::read(bytes);
        rules.check_sign(&head)?;
        let header = match rules.accept(&head) {
            Ok(header) => header,
            Err(then) if rules.is_too_long(&head) => {
                self.spanning = BytesMut::new();
                return self.skip(Skipping { left: head.total(), then }, have, rules);
            }
            // The parts that follow a header like that cannot be trusted to belong to it.
            Err(refusal) => return Err(refusal.fatal()),
        };
        if have < head.total() {
            return Ok(None);
        }
        if have > head.total() {
            return Err(rules.fatal(BEYOND_END));
        }
        let mut body = std::mem::take(&mut self.spanning).freeze();
        body.advance(HEADER_LEN);
        Ok(Some(Envelope { header, body }))
    }

    fn skip(
        &mut self,
        mut skipping: Skipping,
        part: usize,
        rules: &Rules,
    ) -> Result<Option<Envelope>, FrameError> {
        if skipping.skip(part) < part {
            return Err(rules.fatal(BEYOND_END));
        }
        if skipping.left == 0 {
            return Err(skipping.then);
        }
        self.skipping = Some(skipping);
        Ok(None)
    }
}
