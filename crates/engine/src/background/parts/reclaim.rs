//! A segment being freed.

use crate::format::footer_entries::FooterEntry;
use std::collections::VecDeque;

/// Reads of records to be reinserted in flight.
const READS: usize = 8;

/// A segment being freed.
#[derive(Debug)]
pub(in crate::background) struct Reclaim {
    pub(in crate::background) segment: u32,
    pub(in crate::background) generation: u64,
    /// Records not yet looked at; `None` until the footer is read.
    pub(in crate::background) entries: Option<VecDeque<FooterEntry>>,
    /// Records worth keeping, not yet read.
    pub(in crate::background) keep: VecDeque<FooterEntry>,
    pub(in crate::background) reading: usize,
    /// Bytes of them.
    pub(in crate::background) reading_bytes: u32,
    /// Copies of its records are in chunks closed before this number; `None` until all records are
    /// looked at.
    pub(in crate::background) copied_before: Option<u64>,
    /// Bytes of what lives in DRAM that may still be copied anew, now or from among the dirty. A
    /// reclaim must gain something, also where more lives in DRAM than fits flash: otherwise an
    /// idle cache would write for ever.
    pub(in crate::background) room: u32,
    /// Bytes of the whole segment that may move on, also by being written again. What lives in DRAM
    /// finds half of a segment left.
    pub(in crate::background) left: u32,
}

/// An I/O of a reclaim.
#[derive(Debug)]
pub(in crate::background) enum ReclaimIo {
    Footer,
    Record { entry: FooterEntry, skip: usize },
}

impl Reclaim {
    /// Whether so many bytes more may be read now, of at most so many at once. One record may
    /// always, however long it is.
    pub(in crate::background) fn may_read(&self, len: u32, most: u32) -> bool {
        self.reading == 0 || (self.reading < READS && self.reading_bytes + len <= most)
    }

    /// So many bytes of what lives in DRAM move on.
    pub(in crate::background) fn take(&mut self, len: u32) {
        self.room -= len;
        self.left -= len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_flight_take_bounded_memory() {
        const MOST: u32 = 2 << 20;
        for (len, at_once) in [(4096, 8), (300 << 10, 6), (1 << 20, 2), (3 << 20, 1)] {
            let mut reclaim = Reclaim {
                segment: 0,
                generation: 1,
                entries: None,
                keep: VecDeque::new(),
                reading: 0,
                reading_bytes: 0,
                copied_before: None,
                room: 0,
                left: 0,
            };
            while reclaim.may_read(len, MOST) {
                (reclaim.reading, reclaim.reading_bytes) =
                    (reclaim.reading + 1, reclaim.reading_bytes + len);
            }
            assert_eq!(reclaim.reading, at_once, "of {len} bytes");
        }
    }
}
