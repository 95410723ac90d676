//! The streams of one connection to the database: which request waits on which stream, and which
//! wait for a free one.

use std::collections::VecDeque;

use afterglow_cql::frame::{Flags, Opcode};
use bytes::Bytes;

/// Requests that may be under way on one connection: it has so many streams.
pub const MAX_STREAMS: usize = 32 * 1024;
/// The last stream is kept for the question whether the server is there.
pub const MAX_IN_FLIGHT: usize = MAX_STREAMS - 1;

/// A request that waits for a stream.
pub struct Queued<W> {
    /// What kind of request it is.
    pub opcode: Opcode,
    /// Its flags.
    pub flags: Flags,
    /// Its body.
    pub body: Bytes,
    /// Who waits for the answer.
    pub waiter: W,
}

/// Who waits on which stream, and who for one.
pub struct Waiters<W> {
    /// By stream.
    pub slots: Vec<Option<W>>,
    free: Vec<i16>,
    /// In the order in which they came.
    pub queued: VecDeque<Queued<W>>,
}

impl<W> Default for Waiters<W> {
    fn default() -> Self {
        Waiters { slots: Vec::new(), free: Vec::new(), queued: VecDeque::new() }
    }
}

impl<W> Waiters<W> {
    /// Requests that have a stream.
    pub fn sent(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A free stream, unless `most` are taken.
    pub fn reserve(&mut self, most: usize) -> Option<i16> {
        if self.sent() >= most {
            return None;
        }
        if let Some(stream) = self.free.pop() {
            return Some(stream);
        }
        self.slots.push(None);
        Some((self.slots.len() - 1) as i16)
    }

    /// Who waits on a stream, which is free then.
    pub fn take(&mut self, stream: i16) -> Option<W> {
        let waiter = self.slots.get_mut(usize::try_from(stream).ok()?)?.take()?;
        self.free.push(stream);
        Some(waiter)
    }
}
