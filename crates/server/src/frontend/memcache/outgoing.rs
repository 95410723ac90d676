//! Bytes on their way to a client: text that was written for it, and in between long values, which
//! are not copied. They are shared with the DRAM tier, or lie where they were read from flash.

use afterglow_memcache::Sink;
use bytes::Bytes;
use compio::buf::IoVectoredBuf;

/// Values from this length on are shared. A shorter one costs less to copy than one more piece of
/// a write.
pub const SHARED_FROM: usize = 16 * 1024;
/// Most values of one write: with the text between them they are what the kernel takes at once.
const MOST_SHARED: usize = 500;

/// Answers, or pieces of them, one behind the other.
#[derive(Debug, Default)]
pub struct Outgoing {
    text: Vec<u8>,
    /// Long values, each before this byte of the text.
    shared: Vec<(usize, Bytes)>,
    /// Bytes of memory that the values hold.
    holds: usize,
    /// Where in the text a value in parts belongs.
    gap: Option<usize>,
}

impl Outgoing {
    /// All in one piece, without values that are shared.
    pub fn of_text(text: Vec<u8>) -> Self {
        Outgoing { text, ..Outgoing::default() }
    }

    /// What text is appended to.
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.shared.is_empty()
    }

    /// Whether it has values that are not copied.
    pub fn is_sharing(&self) -> bool {
        !self.shared.is_empty()
    }

    /// How many values are not copied.
    pub fn shared(&self) -> usize {
        self.shared.len()
    }

    /// Bytes of memory that it holds until it is sent.
    pub fn held(&self) -> usize {
        self.text.len() + self.holds
    }

    /// Counts so many bytes as held by its values besides their own: the rest of the buffers that
    /// they were read into.
    pub fn holds_more(&mut self, bytes: usize) {
        debug_assert!(self.is_sharing());
        self.holds += bytes;
    }

    /// Bytes of memory in use, or kept, for text.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.text.capacity()
    }

    /// Takes a value, which is copied if that is less work.
    fn push_value(&mut self, value: &[u8], whole: &Bytes) {
        if value.len() < SHARED_FROM || self.shared.len() >= MOST_SHARED {
            self.text.reserve(value.len() + 2);
            return self.text.extend_from_slice(value);
        }
        self.holds += value.len();
        self.shared.push((self.text.len(), whole.slice_ref(value)));
    }

    /// Takes a value that lies alone in its memory.
    pub fn push_whole(&mut self, whole: &Bytes) {
        self.push_value(whole, whole);
    }

    /// The text before and behind the value in parts that belongs into it.
    ///
    /// # Errors
    /// All of it, if no such value belongs into it.
    pub fn around_gap(mut self) -> Result<(Vec<u8>, Vec<u8>), Self> {
        let Some(gap) = self.gap else { return Err(self) };
        debug_assert!(!self.is_sharing());
        let after = self.text.split_off(gap);
        Ok((self.text, after))
    }

    /// Takes what comes behind.
    pub fn append(&mut self, behind: &mut Outgoing) {
        if behind.shared.len() + self.shared.len() > MOST_SHARED {
            // Rare: many values of two requests at once. What they held stays counted.
            let held = behind.held();
            let bytes = std::mem::take(behind).into_text();
            self.holds += held - bytes.len();
            return self.text.extend_from_slice(&bytes);
        }
        let before = self.text.len();
        self.text.extend_from_slice(&behind.text);
        self.shared.extend(behind.shared.drain(..).map(|(at, value)| (before + at, value)));
        self.holds += std::mem::take(&mut behind.holds);
    }

    /// Lets go of what was sent. Returns the memory of its text.
    pub fn into_sent(self) -> Vec<u8> {
        self.text
    }

    /// All of it in one piece, which copies what is shared.
    pub fn into_text(self) -> Vec<u8> {
        match self.is_sharing() {
            true => self.pieces().flatten().copied().collect(),
            false => self.text,
        }
    }

    /// What is to be sent, in order.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.shared.iter().map(|(at, _)| *at));
        let ends = self.shared.iter().map(|(at, value)| (*at, &value[..]));
        let ends = ends.chain(std::iter::once((self.text.len(), &[][..])));
        let pieces = starts.zip(ends);
        pieces
            .flat_map(|(start, (end, value))| [&self.text[start..end], value])
            .filter(|piece| !piece.is_empty())
    }
}

impl IoVectoredBuf for Outgoing {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces()
    }
}

/// Where an answer with the value of one object is written. A long value is not copied.
pub struct SharingSink<'a> {
    out: &'a mut Outgoing,
    whole: &'a Bytes,
    in_parts: bool,
}

impl<'a> SharingSink<'a> {
    /// For an object whose stored value is `whole`.
    pub fn new(out: &'a mut Outgoing, whole: &'a Bytes) -> Self {
        SharingSink { out, whole, in_parts: false }
    }

    /// For an object with a value in parts: a gap is left where that belongs.
    pub fn with_gap(self, in_parts: bool) -> Self {
        SharingSink { in_parts, ..self }
    }
}

impl Sink for SharingSink<'_> {
    fn text(&mut self) -> &mut Vec<u8> {
        &mut self.out.text
    }

    fn value(&mut self, value: &[u8]) {
        match self.in_parts {
            true => self.out.gap = Some(self.out.text.len()),
            false => self.out.push_value(value, self.whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(byte: u8, len: usize) -> Bytes {
        vec![byte; len].into()
    }

    fn push(out: &mut Outgoing, value: &Bytes) {
        let mut sink = SharingSink::new(out, value);
        sink.text().extend_from_slice(b"<");
        sink.value(value);
        sink.text().extend_from_slice(b">");
    }

    #[test]
    fn long_values_are_sent_from_where_they_are_and_short_ones_are_copied() {
        let (short, long) = (value(b's', SHARED_FROM - 1), value(b'l', SHARED_FROM));
        let mut out = Outgoing::default();
        for value in [&short, &long, &short, &long, &long] {
            push(&mut out, value);
        }
        let pieces: Vec<&[u8]> = out.iter_slice().collect();
        assert_eq!(pieces.len(), 7);
        assert!([1, 3, 5].iter().all(|&n| pieces[n].as_ptr() == long.as_ptr()));
        let mut expected = Vec::new();
        for value in [&short, &long, &short, &long, &long] {
            [&b"<"[..], value, b">"].iter().for_each(|part| expected.extend_from_slice(part));
        }
        assert_eq!(out.held(), expected.len());
        assert_eq!(out.total_len(), expected.len());
        assert!(out.into_text() == expected);
    }

    #[test]
    fn what_is_appended_comes_behind_with_its_values_in_their_places() {
        let (a, b) = (value(b'a', SHARED_FROM), value(b'b', SHARED_FROM));
        let (mut first, mut second) = (Outgoing::default(), Outgoing::default());
        push(&mut first, &a);
        push(&mut second, &b);
        second.holds_more(100);
        first.append(&mut second);
        assert_eq!(first.held(), 2 * SHARED_FROM + 4 + 100);
        let text = first.into_text();
        let (head, tail) = text.split_at(SHARED_FROM + 2);
        assert!(head == [b"<", &a[..], b">"].concat() && tail == [b"<", &b[..], b">"].concat());
    }

    #[test]
    fn one_write_has_no_more_pieces_than_the_kernel_takes() {
        let long = value(b'x', SHARED_FROM);
        let (mut first, mut second) = (Outgoing::default(), Outgoing::default());
        (0..MOST_SHARED + 1).for_each(|_| push(&mut first, &long));
        push(&mut second, &long);
        second.holds_more(100);
        first.append(&mut second);
        assert!(first.iter_slice().count() <= 1024);
        let len = (MOST_SHARED + 2) * (SHARED_FROM + 2);
        assert_eq!((first.total_len(), first.held()), (len, len + 100));
    }
}
