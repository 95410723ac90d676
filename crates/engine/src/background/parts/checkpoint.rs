//! When checkpoints are due, and the one being written.

pub(in crate::background) use crate::checkpoint_areas::AreaAt;
use crate::checkpoint_areas::CheckpointAreas;
use crate::device::DeviceId;
use crate::format::checkpoint::Header;
use std::collections::{BTreeSet, VecDeque};

/// An I/O of a checkpoint.
#[derive(Debug)]
pub(in crate::background) enum CheckpointIo {
    /// A block, or something else of the area.
    Write {
        at: AreaAt,
        block: Option<(u32, u64)>,
    },
    Flush {
        device: DeviceId,
    },
    ReadBlock {
        home: usize,
        shard: u32,
        block: u64,
    },
    ReadTables {
        home: usize,
    },
    ReadHeader {
        home: usize,
    },
}

impl CheckpointIo {
    /// The area that it writes to.
    pub(in crate::background) fn written_to(&self) -> Option<AreaAt> {
        match self {
            Self::Write { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// The block of the index that it is about, if it is about one.
    pub(in crate::background) fn block(&self) -> Option<(u32, u64)> {
        match self {
            Self::Write { block, .. } => *block,
            Self::ReadBlock { shard, block, .. } => Some((*shard, *block)),
            _ => None,
        }
    }

    /// The home that it is about, if it is about one.
    pub(in crate::background) fn home(&self) -> Option<usize> {
        match self {
            Self::Write { at, .. } => Some(at.home),
            Self::Flush { .. } => None,
            Self::ReadBlock { home, .. }
            | Self::ReadTables { home }
            | Self::ReadHeader { home } => Some(*home),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::background) enum CheckpointPhase {
    /// The header goes that an attempt before has left.
    Erase,
    FlushErased,
    Blocks,
    Flush,
    Header,
    FlushHeader,
    Verify,
}

pub(in crate::background) struct CheckpointRun {
    pub(in crate::background) header: Header,
    /// Its area in each home.
    pub(in crate::background) which: u32,
    /// Homes where nothing of it has failed.
    pub(in crate::background) homes: Vec<usize>,
    /// Where something of it has failed: the home, and which of the area's segments it was, if it
    /// was in one.
    pub(in crate::background) failures: BTreeSet<(usize, Option<usize>)>,
    /// The journal's head when it was begun, and the records appended by then.
    pub(in crate::background) began: (u64, u64),
    pub(in crate::background) tables: Vec<u8>,
    pub(in crate::background) phase: CheckpointPhase,
    /// The phase's I/Os not yet started.
    pub(in crate::background) todo: VecDeque<Todo>,
    pub(in crate::background) in_flight: usize,
    /// The captured lines name only records of chunks closed before this number; `None` until all
    /// lines are captured.
    pub(in crate::background) named_before: Option<u64>,
}

pub(in crate::background) enum Todo {
    Block(u32, u64),
    Tables(usize),
    /// Zeros in the place of the header.
    Erase,
    Header,
    Flush(DeviceId),
    Check(CheckpointIo),
}

/// When checkpoints are due, and the one being written.
pub struct Checkpoints {
    pub(in crate::background) areas: CheckpointAreas,
    /// Sequence and area of the newest complete one.
    pub(in crate::background) last: Option<(u64, u32)>,
    pub(in crate::background) run: Option<CheckpointRun>,
    /// Areas that may have the header of an attempt that failed behind it. It is newer than the
    /// newest complete one.
    pub(in crate::background) headed: BTreeSet<AreaAt>,
    pub(in crate::background) ended: Option<u64>,
    /// What had happened when the newest was started.
    pub(in crate::background) head: u64,
    pub(in crate::background) opened: u64,
    pub(in crate::background) appended: u64,
    pub(in crate::background) wanted: bool,
    /// The journal's head when the newest complete one was begun, and the records appended by then
    /// in this life.
    pub(in crate::background) base: (u64, u64),
    /// Records appended since that one in the lives before this.
    pub(in crate::background) appended_before: u64,
    /// Segments opened since that one in the lives before this.
    pub(in crate::background) opened_before: u64,
}

impl CheckpointRun {
    /// Whether it has failed in all homes.
    pub(in crate::background) fn has_failed(&self) -> bool {
        self.homes.is_empty()
    }

    /// It goes on without a home.
    pub(in crate::background) fn drop_home(&mut self, home: usize) {
        self.homes.retain(|&other| other != home);
    }
}

impl Checkpoints {
    /// Such a write, which nobody waited for any more, is over.
    pub(in crate::background) fn late_write_ended(&mut self, at: Option<AreaAt>) {
        if let Some(at) = at {
            self.areas.late_write_ended(at);
        }
    }

    /// `last` is the newest complete checkpoint's sequence and area. It needs the journal from
    /// `base` on, and so many records were appended since, in so many segments.
    pub(crate) fn new(
        areas: CheckpointAreas,
        last: Option<(u64, u32)>,
        (base, appended_before, opened_before): (u64, u64, u64),
    ) -> Self {
        Self {
            areas,
            last,
            run: None,
            headed: BTreeSet::new(),
            ended: None,
            head: 0,
            opened: 0,
            appended: 0,
            wanted: false,
            base: (base, 0),
            appended_before,
            opened_before,
        }
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
