//! Which runs of the kill log stand for parts of the journal.
//!
//! The state file names the runs. Those that are needed are a chain: the first has the position
//! from which the checkpoint needs the journal, each next one begins where the one before ends. The
//! journal is scanned from the end of the chain. A run that cannot be read ends it. Then the
//! journal must have everything from there on itself, or it is not whole.
//!
//! Such a run is named no more from the next state file on. A power loss may have taken entries of
//! the journal that it has. This life uses their positions for other entries, which a life that
//! could read it again would pass over.

use crate::device::area::MetaStore;
use crate::format::kill_run::{self, KillRun, RunHead};
use crate::format::state::{KillLog, StateFile};

/// What was found of the kill log.
#[derive(Debug, Default)]
pub(super) struct FoundKillLog {
    /// The runs from `needed` on, without a gap.
    pub(super) runs: Vec<RunHead>,
    /// The journal is needed from here on.
    pub(super) end: u64,
    /// What the state file said.
    log: KillLog,
}

impl FoundKillLog {
    /// What another cache has left in so many slots: nothing but files to be removed.
    pub(super) fn left(slots: u32) -> Self {
        Self { log: KillLog { slots, ..KillLog::default() }, ..Self::default() }
    }

    /// Looks for what a checkpoint needs from this position on.
    pub(super) fn find(meta: &dyn MetaStore, state: &StateFile, needed: u64) -> Self {
        let mut log = state.kill_log.clone();
        log.slots = slots(meta, log.slots);
        let (mut runs, mut end) = (Vec::new(), needed);
        for run in log.chain(needed) {
            let Some(head) = read_head(meta, state, run) else {
                coverage_mark!(RunUnread);
                tracing::warn!(
                    name = kill_run::name(run.slot),
                    "a part of the kill log cannot be read"
                );
                break;
            };
            coverage_mark!(RunRead);
            end = run.to;
            runs.push(head);
        }
        Self { runs, end, log }
    }

    /// What the next state file says, where the journal is whole. The checkpoint needs the journal
    /// only from a position on, if it is sure to last.
    pub(super) fn kept(&self, lasts_from: Option<u64>) -> KillLog {
        let mut log = self.log.clone();
        log.runs.retain(|run| run.to <= self.end && lasts_from.is_none_or(|from| run.to > from));
        log
    }

    /// The same where the journal is begun anew.
    pub(super) fn none(&self) -> KillLog {
        KillLog { slots: self.log.slots, ..KillLog::default() }
    }
}

/// How many slots may have files, where the state file knows of so many. More have them if it was
/// removed or is damaged, or if a run was written and the process died before it was named.
pub(super) fn slots(meta: &dyn MetaStore, known: u32) -> u32 {
    let is_there = |slot: &u32| matches!(meta.read_part(&kill_run::name(*slot), 0, 1), Ok(Some(_)));
    (known..u32::MAX).find(|slot| !is_there(slot)).unwrap_or(u32::MAX)
}

fn read_head(meta: &dyn MetaStore, state: &StateFile, run: &KillRun) -> Option<RunHead> {
    let name = kill_run::name(run.slot);
    let read = |len| meta.read_part(&name, 0, len).ok()?;
    RunHead::read(run, &state.uuid, state.journal_epoch, read)
}
