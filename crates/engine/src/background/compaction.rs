//! Compacts the journal: its oldest entries go to a run of the kill log, so that the journal has
//! room without a checkpoint. A checkpoint writes the whole index. So the more objects there are,
//! the fewer checkpoints there may be for as many changes.
//!
//! The order matters:
//!
//! 1. Read the journal's head, then take and release the locks under which entries are written.
//!    Every entry below that position is whole then, or the journal is poisoned.
//! 2. Read the entries from the tail on, sort them, write them as a file, durably.
//! 3. Name the file in the state file, durably.
//! 4. Move the journal's tail.
//!
//! A crash before 3 finds the journal as it was, and a file that nothing names. A crash after 3
//! finds the run. Recovery goes on in the journal where the runs end ([`kill_log`]), so it does not
//! matter whether the tail had moved.
//!
//! Every entry is kept: none is left out because something else on flash seems to say the same.
//! That could be on a device that is missing at the next start, or in a segment that cannot be read
//! or was reclaimed since. The data directory has the run, as it has the journal.
//!
//! A checkpoint makes runs needless that end below the position from which it needs the journal.
//! They leave the state file first, and then their files are removed.
//!
//! [`kill_log`]: crate::recovery

use super::Background;
use super::parts::compaction::CompactionRun;
use crate::checkpoint_pace::{changes_between, journal_share};
use crate::format::kill_run::{self, PARTS};

/// A run is this part of the journal.
const SHARE: u64 = 8;
/// Entries read in a step.
const READ: u64 = 1 << 14;
/// Parts sorted and encoded in a step.
const ENCODE: usize = PARTS / 8;
/// Milliseconds after a failure during which checkpoints are taken instead.
const PAUSE: u64 = 10_000;

impl Background {
    pub(super) fn step_compaction(&mut self, now: u64) {
        if self.core.wait_lists.take_room_wanted() {
            if !self.may_compact(now) {
                self.core.wait_lists.want();
            } else if self.compaction.run.is_none() {
                self.start_compaction();
            }
        }
        if let Some(run) = self.compaction.run.take() {
            return self.go_on_compacting(run, now);
        }
        let journal = &self.core.journal;
        if journal.used() > journal_share(journal.entries()) && self.may_compact(now) {
            return self.start_compaction();
        }
        self.note_appended(now);
        self.remove_stale();
    }

    /// Changes after which a checkpoint is taken, as long as the journal can be compacted.
    pub(super) fn far(&self) -> u64 {
        let entries = self.core.journal.entries();
        let by_index = || changes_between(self.index_bytes(), entries);
        self.compaction.rules.far.map_or_else(by_index, |far| far.max(journal_share(entries)))
    }

    /// Bytes of the index lines that a checkpoint writes.
    pub(super) fn index_bytes(&self) -> u64 {
        self.core.shards.iter().map(|slot| slot.index.lines() as u64 * 64).sum()
    }

    /// Whether the journal may get room by a run instead of a checkpoint.
    ///
    /// A checkpoint that is under way, or cannot be taken while the index loads, gives room later.
    /// Until then the kill log may have as much again.
    pub(super) fn may_compact(&self, now: u64) -> bool {
        let (journal, since) = (&self.core.journal, self.since_base());
        let far = self.far();
        let later = self.load.is_some() || self.checkpoint.is_running();
        !journal.is_poisoned()
            && !journal.is_bare()
            && !self.close.is_running()
            && self.compaction.failed.is_none_or(|at| now >= at + PAUSE)
            && (since < far || (later && since < far * 2 && far > journal_share(journal.entries())))
    }

    /// Changes since the newest complete checkpoint was begun.
    pub(super) fn since_base(&self) -> u64 {
        self.core.journal.head().saturating_sub(self.checkpoint.base.0)
    }

    /// Records appended since then.
    pub(super) fn appended_since_base(&self) -> u64 {
        self.core.table.appended() + self.checkpoint.appended_before - self.checkpoint.base.1
    }

    fn start_compaction(&mut self) {
        let core = &self.core;
        let (tail, head) = (core.journal.tail(), core.journal.head());
        let to = head.min(tail + (core.journal.entries() / SHARE).max(1));
        // Whoever took a position below the head that was read holds one of these locks until the
        // entry is stored.
        core.shards.iter().for_each(|slot| drop(slot.lock()));
        drop(core.namespaces.removing.write());
        core.streams.let_all_finish();
        if to > tail && !core.journal.is_poisoned() {
            self.compaction.run = Some(CompactionRun::new(tail..to));
        }
    }

    /// The next step of a compaction: to read, to encode, or to write it.
    fn go_on_compacting(&mut self, mut run: CompactionRun, now: u64) {
        let journal = &self.core.journal;
        // A checkpoint has made it needless, or an entry was lost.
        if journal.tail() != run.positions.start || journal.is_poisoned() {
            coverage_mark!(CompactionGivenUp);
            return;
        }
        if run.read < run.positions.end {
            let below = run.positions.end.min(run.read + READ);
            match journal.read(run.read..below) {
                Some(entries) => run.take(entries, below),
                None => return self.fail_compaction(now, "the journal cannot be read"),
            }
            self.compaction.run = Some(run);
            return;
        }
        let epoch = self.core.state.lock().journal_epoch;
        if !run.encode(ENCODE, &self.core.uuid, epoch) {
            self.compaction.run = Some(run);
            return;
        }
        self.finish_compaction(run, now);
    }

    fn finish_compaction(&mut self, run: CompactionRun, now: u64) {
        let (core, positions) = (self.core.clone(), run.positions);
        let Some(encoder) = run.encoder else { return };
        let slot = self.free_slot();
        let (bytes, run) = encoder.finish(slot);
        debug_assert_eq!((run.from, run.to), (positions.start, positions.end));
        let appended = self.appended_since_base();
        let files = core.state.files();
        let named = files.replace(&kill_run::name(slot), &bytes).and_then(|()| {
            core.totals.kill_log_bytes.add(bytes.len() as u64);
            core.state.update(|state| {
                state.kill_log.slots = state.kill_log.slots.max(slot + 1);
                state.kill_log.appended = appended;
                state.kill_log.runs.push(run);
            })
        });
        if let Err(error) = named {
            // The file takes space for nothing. If the state file names it nevertheless, the
            // journal has its entries until a checkpoint makes them needless.
            self.compaction.stale.push(slot);
            return self.fail_compaction(now, error);
        }
        // The pair of what recovery relies on: nothing is missing between two runs and the journal.
        assert_eq!(core.journal.tail(), run.from, "the journal is cut off where the run begins");
        core.journal.free_below(run.to);
        core.totals.compactions.inc();
        (self.compaction.failed, self.compaction.warned) = (None, false);
        tracing::debug!(kills = run.kills, bytes = bytes.len(), "a part of the journal compacted");
    }

    /// Checkpoints are taken instead, for a while.
    fn fail_compaction(&mut self, now: u64, why: impl std::fmt::Display) {
        coverage_mark!(CompactionFailed);
        self.core.totals.compaction_failures.inc();
        self.compaction.failed = Some(now);
        if !self.compaction.warned {
            tracing::warn!(
                %why,
                "the journal could not be compacted: whole checkpoints are written instead. If the data directory is full, free some space there"
            );
        }
        self.compaction.warned = true;
    }

    /// The lowest slot whose file nobody needs.
    fn free_slot(&self) -> u32 {
        let state = self.core.state.lock();
        let is_used = |slot: &u32| {
            let names = state.kill_log.runs.iter().any(|run| run.slot == *slot);
            names || self.compaction.stale.contains(slot)
        };
        (0..).find(|slot| !is_used(slot)).expect("fewer runs than numbers")
    }

    /// A complete checkpoint needs the journal only from `position` on.
    pub(super) fn drop_runs(&mut self, position: u64) {
        let log = self.core.state.lock().kill_log.clone();
        let is_needed = |run: &kill_run::KillRun| run.to > position;
        let needless: Vec<u32> =
            log.runs.iter().filter(|run| !is_needed(run)).map(|run| run.slot).collect();
        if log.is_empty() || (needless.is_empty() && log.appended == 0) {
            return;
        }
        let dropped = self.core.state.update(|state| {
            state.kill_log.runs.retain(is_needed);
            state.kill_log.appended = 0;
        });
        // Where that fails they stay: what they say is true still.
        if dropped.is_ok() {
            if !needless.is_empty() {
                coverage_mark!(RunsDropped);
            }
            self.compaction.stale.extend(needless);
        }
    }

    /// Has the state file say how many records recovery would have to look at, now and then: it
    /// loads the index in as many parts.
    fn note_appended(&mut self, now: u64) {
        let (appended, core) = (self.appended_since_base(), &self.core);
        let known = core.state.lock().kill_log.appended;
        let often = core.journal.entries();
        let is_known = appended < known.saturating_add(often);
        if is_known || self.far() <= often || self.close.is_running() {
            return;
        }
        if self.compaction.failed.is_some_and(|at| now < at + PAUSE) {
            return;
        }
        if core.state.update(|state| state.kill_log.appended = appended).is_err() {
            self.compaction.failed = Some(now);
        }
    }

    /// Removes a file that counts no more.
    fn remove_stale(&mut self) {
        let Some(slot) = self.compaction.stale.pop() else { return };
        // What cannot be removed is tried at the next start.
        self.compaction.unremoved |= self.core.state.files().remove(&kill_run::name(slot)).is_err();
        if !self.compaction.unremoved && self.compaction.stale.is_empty() {
            // Where it cannot be said, the next start looks for the files in vain.
            let _ = self.core.state.update(|state| {
                let log = &mut state.kill_log;
                log.slots = log.runs.iter().map(|run| run.slot + 1).max().unwrap_or(0);
            });
        }
    }
}
