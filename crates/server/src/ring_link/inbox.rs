//! Bytes that have come, until a whole frame is there.

use super::fault::LinkFault;
use super::seal::LENGTH;

/// A buffer larger than this is given back once it is empty.
const KEEP_BUFFER: usize = 256 * 1024;

/// What has come and is not taken yet. It grows by what comes, never by what is announced.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// These bytes have come.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEEP_BUFFER);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes so many bytes, once all of them are there.
    pub fn take(&mut self, count: usize) -> Option<&mut [u8]> {
        let from = self.taken;
        let end = from.checked_add(count).filter(|end| *end <= self.bytes.len())?;
        self.taken = end;
        Some(&mut self.bytes[from..end])
    }

    /// Takes a frame, without its length, once all of it is there.
    ///
    /// # Errors
    /// [`LinkFault::TooLong`]: it says that it has more than `limit` bytes.
    pub fn frame(&mut self, limit: usize) -> Result<Option<&mut [u8]>, LinkFault> {
        let there = &self.bytes[self.taken..];
        let Some(length) = there.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > limit {
            return Err(LinkFault::TooLong { length, limit });
        }
        if there.len() - LENGTH < length {
            return Ok(None);
        }
        self.taken += LENGTH;
        Ok(self.take(length))
    }

    /// What is not taken yet.
    pub fn peek(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Bytes that are not taken yet.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether all is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_whole_however_the_bytes_come() {
        let frames = [&b"one"[..], b"", b"three"];
        let mut bytes = Vec::new();
        for frame in frames {
            bytes.extend((frame.len() as u32).to_le_bytes());
            bytes.extend(frame);
        }
        for step in 1..=bytes.len() {
            let (mut inbox, mut read) = (Inbox::default(), Vec::new());
            for part in bytes.chunks(step) {
                inbox.feed(part);
                while let Some(frame) = inbox.frame(5).unwrap() {
                    read.push(frame.to_vec());
                }
            }
            assert_eq!(read, frames);
            assert!(inbox.is_empty());
        }
    }

    #[test]
    fn a_length_alone_costs_no_memory_and_one_above_the_limit_is_refused() {
        let mut inbox = Inbox::default();
        inbox.feed(&(1u32 << 23).to_le_bytes());
        assert!(inbox.frame(1 << 23).unwrap().is_none());
        assert!(inbox.bytes.capacity() < 1024);
        let error = inbox.frame(1024).unwrap_err();
        assert!(error.to_string().contains("8388608 bytes where at most 1024"), "{error}");
    }
}
