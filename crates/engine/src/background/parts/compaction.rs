//! When the journal is compacted, and the compaction under way.

use std::ops::Range;

use crate::format::journal::{Event, JournalEntry};
use crate::format::kill_run::{PARTS, RunEncoder, part_of};

/// When the journal is compacted, and how the index is loaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct CompactionRules {
    /// Changes between two checkpoints, whatever the size of the index.
    pub far: Option<u64>,
    /// Parts in which the index is loaded.
    pub passes: Option<u32>,
}

/// A compaction under way.
pub(in crate::background) struct CompactionRun {
    /// The positions that are to leave the journal, from its tail on.
    pub(in crate::background) positions: Range<u64>,
    /// Those below this one have been read.
    pub(in crate::background) read: u64,
    /// Puts and removes read so far: hashes and versions, by part.
    kills: Vec<Vec<(u64, u64)>>,
    /// All other entries read so far.
    others: Vec<JournalEntry>,
    /// What of it is encoded, and the next part to be.
    pub(in crate::background) encoder: Option<RunEncoder>,
    next: usize,
}

impl CompactionRun {
    pub(in crate::background) fn new(positions: Range<u64>) -> Self {
        let (read, kills) = (positions.start, vec![Vec::new(); PARTS]);
        Self { positions, read, kills, others: Vec::new(), encoder: None, next: 0 }
    }

    /// Takes the next entries, all below this position.
    pub(in crate::background) fn take(&mut self, entries: Vec<JournalEntry>, below: u64) {
        self.read = below;
        for entry in entries {
            match entry.event {
                Event::Kill { hash, .. } => self.kills[part_of(hash)].push((hash, entry.version)),
                _ => self.others.push(entry),
            }
        }
    }

    /// Encodes so many parts more. Says whether that were all.
    pub(in crate::background) fn encode(
        &mut self,
        parts: usize,
        uuid: &[u8; 16],
        epoch: u64,
    ) -> bool {
        let encoder = self
            .encoder
            .get_or_insert_with(|| RunEncoder::new(uuid, epoch, &self.positions, &self.others));
        for kills in self.kills.iter_mut().skip(self.next).take(parts) {
            encoder.add_part(kills);
            (*kills, self.next) = (Vec::new(), self.next + 1);
        }
        self.next == PARTS
    }
}

/// The kill log of an open cache, and what is done for it.
pub struct Compaction {
    pub(in crate::background) rules: CompactionRules,
    pub(in crate::background) run: Option<CompactionRun>,
    /// Slots whose files count no more and are to be removed.
    pub(in crate::background) stale: Vec<u32>,
    /// A file could not be removed in this life.
    pub(in crate::background) unremoved: bool,
    /// When the last one failed, in milliseconds.
    pub(in crate::background) failed: Option<u64>,
    /// It was said that one failed.
    pub(in crate::background) warned: bool,
}

impl Compaction {
    /// Of a kill log that has runs in the slots `used`, and files perhaps in all below `slots`.
    pub(in crate::background) fn new(
        rules: CompactionRules,
        slots: u32,
        used: impl Iterator<Item = u32>,
    ) -> Self {
        let used: Vec<u32> = used.collect();
        let stale = (0..slots).filter(|slot| !used.contains(slot)).collect();
        Self { rules, run: None, stale, unremoved: false, failed: None, warned: false }
    }
}
