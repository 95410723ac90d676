//! A segment being freed.

use crate::format::footer_entries::FooterEntry;
use std::collections::VecDeque;

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
    /// So many bytes of what lives in DRAM move on.
    pub(in crate::background) fn take(&mut self, len: u32) {
        self.room -= len;
        self.left -= len;
    }
}
