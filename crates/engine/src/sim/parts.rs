//! The state of each part of a run between two steps. The steps themselves are in the files of
//! these names: [`super::acks`], [`super::changes`], [`super::blocked`], [`super::lateness`].

use std::collections::{BTreeMap, HashMap};

use super::oracle::SimObject;
use super::plan::{Key, Options, What};
use crate::api::{Hit, PutOutcome};
use crate::device::sim::{Directory, Image};
use crate::durability::pending::{Ack, Pending};
use crate::ops::get::Lookup;
use crate::ops::modify::{Change, Changed, Modified, ModifyRead};

/// An operation whose acknowledgement waits.
pub(super) struct Acking {
    pub key: Key,
    /// When the key's state began that it made.
    pub since: u64,
    pub pending: Outstanding,
}

/// Copies of the data directory.
#[derive(Default)]
pub(super) struct DirectoryCopies {
    /// One is made when this life has ended.
    pub is_due: bool,
    /// The next opening finds the copy.
    pub comes_back: bool,
    /// With the options that namespaces had then.
    pub copy: Option<(Directory, Vec<Options>)>,
    /// A checkpoint was completed since it was made.
    pub shows: bool,
}

/// Snapshots of devices.
#[derive(Default)]
pub(super) struct Snapshots {
    /// The latest of each device, with the cache that it was of.
    pub latest: BTreeMap<u8, (Image, [u8; 16])>,
    /// What becomes of devices before the next opening.
    pub due: Vec<What>,
}

/// What is waited for.
pub(super) enum Outstanding {
    /// A put; counted once it is over.
    Put(Pending<PutOutcome>),
    /// A put that was refused: the removal of the older object has to last.
    Refused(Pending<PutOutcome>),
    Removed(Pending<u64>),
    Modified(Pending<Modified<Saw>>),
}

impl Outstanding {
    pub fn is_done(&self) -> bool {
        match self {
            Self::Put(pending) | Self::Refused(pending) => pending.is_done(),
            Self::Removed(pending) => pending.is_done(),
            Self::Modified(pending) => pending.is_done(),
        }
    }

    /// Whether it ought to have been refused by a step that began then.
    pub fn is_late(&self, step_began: u64) -> bool {
        match self {
            Self::Put(pending) | Self::Refused(pending) => pending.is_late(step_began),
            Self::Removed(pending) => pending.is_late(step_began),
            Self::Modified(pending) => pending.is_late(step_began),
        }
    }

    /// The outcome of a put; `None` for removals.
    pub fn outcome(self) -> Option<PutOutcome> {
        match self {
            Self::Put(pending) => Some(pending.wait()),
            Self::Refused(pending) => {
                let _ = pending.wait();
                None
            }
            Self::Removed(pending) => {
                pending.wait();
                None
            }
            Self::Modified(pending) => {
                let stored =
                    matches!(pending.preview().changed, Changed::Put(PutOutcome::Stored { .. }));
                match pending.wait().changed {
                    Changed::Put(outcome) if stored => Some(outcome),
                    _ => None,
                }
            }
        }
    }
}

/// What the closure found and what it made of it.
pub(super) struct Saw {
    pub found: Option<Hit>,
    pub new: Option<SimObject>,
}

pub(super) type Decide = Box<dyn FnOnce(Option<&Hit>) -> (Change, Saw)>;

/// A read-modify-write whose read is in flight.
pub(super) struct Changing {
    pub key: Key,
    pub read: ModifyRead<Decide>,
}

/// What has been done.
pub(super) enum Performed {
    Put(SimObject, Ack<PutOutcome>),
    Removed(Ack<u64>),
    Got(Box<Lookup>),
}

/// An operation that came back while the thread was blocked.
pub(super) struct Happened {
    pub key: Key,
    pub what: Performed,
    /// It is certain to have happened.
    pub certain: bool,
}

/// An object on its way to flash.
pub(super) struct OnItsWaySince {
    /// The version that was seen first since the last copy, and the newest one.
    pub first: u64,
    pub newest: u64,
    /// When the first one was seen, in the milliseconds that count.
    pub time: u64,
    /// Whether the first version was copied, into a chunk that may not be written yet.
    pub copied: bool,
}

/// What is known of objects on their way to flash in this life.
#[derive(Default)]
pub(super) struct Lateness {
    /// The clock at the latest step.
    pub at: u64,
    /// Milliseconds that count.
    pub time: u64,
    pub steps: u64,
    /// Objects that were seen in DRAM and not on flash.
    pub seen: HashMap<Key, OnItsWaySince>,
    /// Failures and losses by then.
    pub setbacks: u64,
}
