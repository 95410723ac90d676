//! What of the streams is only in memory.

use super::stream::Streams;

impl Streams {
    /// Bytes of records that are only in memory: in open chunks, and in closed ones not yet on
    /// flash.
    pub fn unwritten_bytes(&self) -> u64 {
        let open = self.open.iter().map(|stream| {
            let open = stream.lock();
            // Without a record there is nothing but the segment's header.
            open.as_ref().filter(|o| !o.entries.is_empty()).map_or(0, |o| u64::from(o.fill))
        });
        open.sum::<u64>() + self.closed.lock().iter().map(|job| job.data.len() as u64).sum::<u64>()
    }

    /// When the first record came of what is only in memory, in milliseconds.
    pub fn unwritten_since(&self) -> Option<u64> {
        let open = self.open.iter().filter_map(|stream| {
            let open = stream.lock();
            open.as_ref().filter(|o| o.fill > 0 && !o.entries.is_empty()).map(|o| o.since)
        });
        let open = open.min();
        open.into_iter().chain(self.closed.lock().iter().map(|job| job.since)).min()
    }
}
