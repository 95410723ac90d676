//! What is on its way to the device: closed chunks, and footers.

use std::sync::Arc;

use crate::device::AlignedBuf;

/// Number of a job that writes a footer.
pub(super) const FOOTER: u64 = u64::MAX;

/// A closed chunk or a footer on its way to the device.
#[derive(Debug, Clone)]
pub struct WriteJob {
    /// Its segment.
    pub segment: u32,
    /// Where it starts in the segment.
    pub start: u32,
    /// Its bytes.
    pub data: Arc<AlignedBuf>,
    /// Operations that wait for it.
    pub awaited: Vec<u64>,
    /// When its first record came, in milliseconds.
    pub(super) since: u64,
    /// Chunks are counted in the order in which they were closed; [`FOOTER`] for footers.
    pub(super) number: u64,
}

impl WriteJob {
    /// As how many chunks of `chunk_size` bytes its memory counts.
    pub(super) fn weight(&self, chunk_size: u32) -> u32 {
        (self.data.capacity() as u32).div_ceil(chunk_size)
    }
}
