//! Acknowledgements of a run that wait for the device.
//!
//! What is not yet acknowledged is seen already. After the death of the process it may be missing, but nothing older returns; after
//! power loss the older object may return too. Once acknowledged it is on flash.

use super::modify::Saw;
use super::oracle::{Key, Object};
use super::run::Run;
use super::world::Life;
use crate::api::{PutOutcome, RefuseReason};
use crate::disk::sim::Crash;
use crate::modify::{Changed, Modified};
use crate::pending::Pending;

/// An operation whose acknowledgement waits.
pub struct Acking {
    pub key: Key,
    /// When the key's state began that it made.
    pub since: u64,
    pub pending: Waiting,
}

pub enum Waiting {
    Put(Pending<PutOutcome>),
    /// Refused already, but the removal of the older object has to last.
    Refused(Pending<PutOutcome>),
    Removed(Pending<u64>),
    Modified(Pending<Modified<Saw>>),
}

impl From<Pending<PutOutcome>> for Waiting {
    fn from(pending: Pending<PutOutcome>) -> Self {
        match pending.preview() {
            PutOutcome::Stored { .. } => Self::Put(pending),
            PutOutcome::Refused(_) => Self::Refused(pending),
        }
    }
}

impl From<Pending<u64>> for Waiting {
    fn from(pending: Pending<u64>) -> Self {
        Self::Removed(pending)
    }
}

impl From<Pending<Modified<Saw>>> for Waiting {
    fn from(pending: Pending<Modified<Saw>>) -> Self {
        Self::Modified(pending)
    }
}

impl Waiting {
    fn is_done(&self) -> bool {
        match self {
            Self::Put(pending) | Self::Refused(pending) => pending.is_done(),
            Self::Removed(pending) => pending.is_done(),
            Self::Modified(pending) => pending.is_done(),
        }
    }

    /// The outcome of a put; `None` for removals.
    fn outcome(self) -> Option<PutOutcome> {
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
                let counted = !is_refused(&pending.preview().changed);
                match pending.wait().changed {
                    Changed::Put(outcome) if counted => Some(outcome),
                    _ => None,
                }
            }
        }
    }
}

pub fn is_refused(changed: &Changed) -> bool {
    matches!(changed, Changed::Put(PutOutcome::Refused(_)))
}

impl Run {
    /// Notes the outcome of a put that did not have to wait.
    pub(super) fn put_done(&mut self, key: &Key, outcome: PutOutcome, object: Object, certain: bool) -> u64 {
        match outcome {
            PutOutcome::Stored { .. } => self.oracle.set(key, Some(object), certain),
            PutOutcome::Refused(RefuseReason::Closed | RefuseReason::VersionMismatch) => {
                panic!("seed {}: {outcome:?}", self.seed)
            }
            // The older object is gone all the same.
            PutOutcome::Refused(_) => self.oracle.set(key, None, certain),
        }
    }

    /// Takes the acknowledgements that have come.
    pub(super) fn take_acks(&mut self, life: &Life) {
        let (done, rest) = std::mem::take(&mut self.acking).into_iter().partition(|a| a.pending.is_done());
        self.acking = rest;
        for Acking { key, since, pending } in done {
            let outcome = pending.outcome();
            self.put[key.0] += u64::from(outcome.is_some());
            if self.world.machine.is_down() {
                // Nobody hears of it.
                self.unheard.push((key, since));
                continue;
            }
            let Some(outcome) = outcome else { continue };
            self.say(|| format!("acknowledged {key:?} of {since}: {outcome:?}"));
            let newest = self.oracle.is_newest(&key, since);
            match outcome {
                PutOutcome::Stored { .. } => {
                    self.outcome.acked += 1;
                    if newest && !self.world.faulty() {
                        self.outcome.acked_on_flash += u64::from(life.is_on_flash(key.0, &key.1));
                        self.outcome.acked_newest += 1;
                    }
                }
                // It may come to light again, if something else has kept a copy; nothing older may.
                PutOutcome::Refused(_) if newest => drop(self.oracle.set(&key, None, false)),
                PutOutcome::Refused(_) => {}
            }
        }
    }

    /// The life ends before these acknowledgements have come.
    pub(super) fn drop_acks(&mut self, kind: Crash) {
        let acking = std::mem::take(&mut self.acking).into_iter().map(|a| (a.key, a.since));
        self.unheard.extend(acking);
        if kind == Crash::Machine {
            // What nobody was told of may not have been flushed, in earlier lives either.
            for (key, since) in std::mem::take(&mut self.unheard) {
                self.oracle.doubt(&key, since);
            }
        }
    }
}
