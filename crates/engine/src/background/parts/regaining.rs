//! How far the background is with objects in DRAM whose copy on flash was lost.

/// Objects in DRAM whose copies were in segments that were retired.
#[derive(Default)]
pub struct Regaining {
    /// Retired since the pass began: they are looked for in the next one.
    waiting: Vec<LostSegment>,
    pub(in crate::background) pass: Option<Pass>,
}

/// A segment that was retired.
struct LostSegment {
    segment: u32,
    /// Slots of the index that pointed there.
    live: u64,
    /// Objects that DRAM has, and that are copied again.
    regained: u64,
}

/// A pass over all of DRAM.
pub(in crate::background) struct Pass {
    segments: Vec<LostSegment>,
    /// Objects from this part of a shard on are still to be looked at.
    pub(in crate::background) shard: usize,
    pub(in crate::background) from: u64,
}

impl Regaining {
    /// A segment was retired to whose records so many slots of the index pointed.
    pub(in crate::background) fn add(&mut self, segment: u32, live: u64) {
        self.waiting.push(LostSegment { segment, live, regained: 0 });
    }

    /// Whether there is something to look for.
    pub(in crate::background) fn is_running(&self) -> bool {
        !self.waiting.is_empty() || self.pass.is_some()
    }

    /// The pass that is under way, or one that begins.
    pub(in crate::background) fn take_pass(&mut self) -> Pass {
        let begin = || Pass { segments: std::mem::take(&mut self.waiting), shard: 0, from: 0 };
        self.pass.take().unwrap_or_else(begin)
    }
}

impl Pass {
    /// Whether the segment is one of those that are looked for.
    pub(in crate::background) fn seeks(&self, segment: u32) -> bool {
        self.segments.iter().any(|lost| lost.segment == segment)
    }

    /// An object whose copy was there is copied again.
    pub(in crate::background) fn regained(&mut self, segment: u32) {
        let lost = self.segments.iter_mut().find(|lost| lost.segment == segment);
        lost.expect("it is looked for").regained += 1;
    }

    /// Objects that were there and are in DRAM no more.
    pub(in crate::background) fn lost(&self) -> u64 {
        self.segments.iter().map(|lost| lost.live.saturating_sub(lost.regained)).sum()
    }
}
