//! When checkpoints are due, and the one being written.

use crate::checkpoint_areas::CheckpointAreas;
use crate::format::checkpoint::Header;
use std::collections::VecDeque;

/// An I/O of a checkpoint.
#[derive(Debug)]
pub(in crate::background) enum CheckpointIo {
    Write,
    Flush,
    ReadBlock { shard: u32, block: u64 },
    ReadTables,
    ReadHeader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::background) enum CheckpointPhase {
    Blocks,
    Flush,
    Header,
    FlushHeader,
    Verify,
}

pub(in crate::background) struct CheckpointRun {
    pub(in crate::background) header: Header,
    /// Its area.
    pub(in crate::background) which: u32,
    pub(in crate::background) tables: Vec<u8>,
    pub(in crate::background) phase: CheckpointPhase,
    /// The phase's I/Os not yet started.
    pub(in crate::background) todo: VecDeque<Todo>,
    pub(in crate::background) in_flight: usize,
    pub(in crate::background) failed: bool,
    /// The captured lines name only records of chunks closed before this number; `None` until all
    /// lines are captured.
    pub(in crate::background) named_before: Option<u64>,
}

pub(in crate::background) enum Todo {
    Block(u32, u64),
    Tables(usize),
    Header,
    Flush(u16),
    Check(CheckpointIo),
}

/// When checkpoints are due, and the one being written.
pub struct Checkpoints {
    pub(in crate::background) areas: CheckpointAreas,
    /// Sequence and area of the newest complete one.
    pub(in crate::background) last: Option<(u64, u32)>,
    pub(in crate::background) run: Option<CheckpointRun>,
    pub(in crate::background) ended: Option<u64>,
    /// What had happened when the newest was started.
    pub(in crate::background) head: u64,
    pub(in crate::background) opened: u64,
    pub(in crate::background) appended: u64,
    pub(in crate::background) wanted: bool,
}

impl Checkpoints {
    /// `last` is the newest complete checkpoint's sequence and area.
    pub(crate) fn new(areas: CheckpointAreas, last: Option<(u64, u32)>) -> Self {
        Self { areas, last, run: None, ended: None, head: 0, opened: 0, appended: 0, wanted: false }
    }

    pub(in crate::background) fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Asks for a checkpoint now.
    pub(in crate::background) fn want(&mut self) {
        self.wanted = true;
    }

    /// Sequence of the newest complete one.
    pub(in crate::background) fn sequence(&self) -> Option<u64> {
        self.last.map(|(sequence, _)| sequence)
    }
}
