//! Operations that wait for a flush.

/// A put whose record is written, and not flushed yet.
#[derive(Debug, Clone, Copy)]
pub(in crate::background) struct Unflushed {
    pub(in crate::background) waiter: u64,
    /// Where its record is.
    pub(in crate::background) segment: u32,
}

/// Those who wait for a flush.
#[derive(Debug, Default)]
pub(in crate::background) struct Flushes {
    /// Their records are written; the flush under way began before that.
    pub(in crate::background) next: Vec<Unflushed>,
    /// The flush under way: who waits for it, what is still in flight, and whether one failed.
    pub(in crate::background) now: Vec<Unflushed>,
    /// Removals that wait for the flush under way.
    pub(in crate::background) removals: Vec<u64>,
    pub(in crate::background) in_flight: u32,
    pub(in crate::background) failed: bool,
}

impl Flushes {
    /// Takes out those whose records are in this segment.
    pub(in crate::background) fn take_those_in(&mut self, segment: u32) -> Vec<u64> {
        let there = |put: &mut Unflushed| put.segment == segment;
        let next = self.next.extract_if(.., there);
        next.chain(self.now.extract_if(.., there)).map(|put| put.waiter).collect()
    }
}
