//! A write, step by step. Each step ends before the next begins.
//!
//! 1. [`WriteScope::add`] collects what it may touch, from its plan and bound values.
//!    [`Index::is_weak`](crate::tables::Index::is_weak) says whether a fill may miss it.
//! 2. [`RowCache::begin_write`] notes intents, closes gates, and drops rows (journalled).
//! 3. The caller sends it. Meanwhile it reads the written row from flash, where only flash has it
//!    ([`WriteInFlight::take_flash_read`]). [`Answered::by_error`] says what an error means.
//! 4. [`WriteInFlight::settle`] opens the gates and settles the intents. After an unknown outcome
//!    it holds the gates, and keeps the intents as long. A write of one row may put the row back
//!    with its new values first, while its gates are closed ([`WriteInFlight::settle_and_update`],
//!    [`row_change`](crate::row_change)).
//! 5. The caller tells the client. The unit of the row's partition may come back
//!    ([`refresh`](crate::refresh)).
//!
//! Invariants:
//! - A [`WriteInFlight`] that is dropped without an answer, at any moment, counts as a write of
//!   unknown outcome.
//! - A write that was planned for a schema that has changed by the time the gates are closed drops
//!   all of the tables that have the names of its tables.
//! - A write whose table has been dropped and created again by the time it is answered drops all of
//!   the new table.
//! - A write of unknown outcome that makes its partition leaves the table weak, not held: no cached
//!   row is of a key that nobody was told.
//! - A statement that is not understood, or that touches whole tables, drops no whole table before
//!   it is answered. Nothing of that is served meanwhile ([`doubts`](crate::doubts)). In a ring, one
//!   that names tables drops them before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::plan::TableSchema;
use afterglow_engine::{Backpressure, FlashRead, Hit};

use crate::clock::Millis;
use crate::doubts::Doubt;
use crate::gate::{GateScope, Settled, Share};
use crate::intents::log::Noted;
use crate::intents::words::Nature;
use crate::refresh::{RowOfUnit, UnitLeft};
use crate::row_cache::{RowCache, hold_of};
use crate::row_change::{CachedRow, RowChange, RowOnFlash, UpdatedRow};
use crate::write_scope::{Invalidation, WriteScope};

/// Why the outcome of a write is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InDoubt {
    /// WRITE_TIMEOUT or CAS_WRITE_UNKNOWN from the coordinator.
    WriteTimeout,
    /// WRITE_FAILURE from the coordinator.
    WriteFailure,
    /// Another answer that does not say whether the write happened.
    ServerError,
    /// The connection was lost before the answer.
    ConnectionLost,
}

/// How the database answered a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// It applied the write, or said that it did not.
    Definite,
    /// The write was refused, or was not sent, or there was nothing to change: nothing happened.
    Refused,
    /// The write may have happened, or may yet.
    Unknown(InDoubt),
}

impl Answered {
    /// What an ERROR means for the write of rows that it answers. `in_steps`: the database may stop
    /// after an earlier step has had its effect. That is so for lightweight transactions, and for
    /// writes to several partitions that are not atomic.
    ///
    /// CONFIG_ERROR is no refusal of such a write: ScyllaDB says it where replicas have reached the
    /// rate limit of a partition, and others may have taken the write.
    pub fn by_error(code: ErrorCode, in_steps: bool) -> Answered {
        match code {
            ErrorCode::Syntax
            | ErrorCode::Unauthorized
            | ErrorCode::Invalid
            | ErrorCode::AlreadyExists
            | ErrorCode::Unprepared
            | ErrorCode::Protocol
            | ErrorCode::BadCredentials
            | ErrorCode::IsBootstrapping => Answered::Refused,
            ErrorCode::Unavailable if !in_steps => Answered::Refused,
            ErrorCode::WriteTimeout | ErrorCode::CasWriteUnknown => {
                Answered::Unknown(InDoubt::WriteTimeout)
            }
            ErrorCode::WriteFailure | ErrorCode::CdcWriteFailure => {
                Answered::Unknown(InDoubt::WriteFailure)
            }
            _ => Answered::Unknown(InDoubt::ServerError),
        }
    }
}

/// A write in flight: its gates are closed and its rows are dropped from the cache. If this is
/// dropped without an answer, the write's outcome is unknown.
pub struct WriteInFlight<W> {
    cache: Arc<RowCache<W>>,
    gates: Vec<GateScope>,
    intents: Vec<Noted>,
    made: MadePartitions,
    nature: Nature,
    /// Its consistency level does not guarantee that a quorum read sees it.
    weak: bool,
    /// What is dropped unless the database refuses the write.
    undropped: Option<Undropped>,
    /// The row to put back once the database has acknowledged the write.
    pub(crate) updated: Option<UpdatedRow>,
    /// What it has in the unit of that row's partition.
    share: Option<Share<W>>,
    /// The row, where it is on flash only and was not found yet.
    pub(crate) on_flash: Option<Box<RowOnFlash>>,
    settled: bool,
}

/// Tables in which the database makes partitions.
#[derive(Default)]
struct MadePartitions {
    gates: Vec<GateScope>,
    intents: Vec<Noted>,
    /// The gates are open though the write has not ended.
    is_open: bool,
}

/// What a write drops once it is answered.
struct Undropped {
    /// Nothing of this is served until then.
    doubt: Doubt,
    /// The groups that a start after a crash drops instead. Empty if the intents of the gates say
    /// that it is everything.
    noted: Vec<u32>,
    /// What the answer says of it.
    narrowed: Option<Vec<Invalidation>>,
}

/// What was written, as far as what is cached can follow it.
#[derive(Default, Clone, Copy)]
pub struct Followed<'a> {
    /// The values of the one row that is written, if they are known.
    pub change: Option<&'a RowChange>,
    /// The table of the one row that is written: the unit of its partition may stay.
    pub unit_of: Option<&'a Arc<TableSchema>>,
}

/// What is left of the cached row that a write names, and of its partition's unit.
pub struct Remains<W> {
    /// Of the row.
    pub row: RowOutcome,
    /// Of the unit.
    pub unit: UnitLeft<W>,
}

/// What a write did to the cached row that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOutcome {
    /// It is cached with the new values.
    Updated,
    /// It is not cached.
    Dropped,
    /// It is not cached: it was on flash only, and was not found there before the write was
    /// answered.
    OnFlash,
}

impl<W> RowCache<W> {
    /// Does everything that must happen before a write is sent. `weak`: `W + R <= RF`.
    /// `dead_after`: see [`Nature`].
    ///
    /// `newer` is asked once the gates are closed, and says what the write may touch besides, if it
    /// was planned for an older schema: [`WriteScope::of_newer`].
    pub fn begin_write(
        self: &Arc<Self>,
        scope: &WriteScope,
        weak: bool,
        dead_after: u32,
        newer: impl FnOnce() -> WriteScope,
    ) -> WriteInFlight<W> {
        self.begin_row_write(scope, Followed::default(), weak, dead_after, newer)
    }

    /// As [`RowCache::begin_write`], for a write of one row, which what is cached can follow: see
    /// [`WriteInFlight::settle_and_update`].
    pub fn begin_row_write(
        self: &Arc<Self>,
        scope: &WriteScope,
        followed: Followed<'_>,
        weak: bool,
        dead_after: u32,
        newer: impl FnOnce() -> WriteScope,
    ) -> WriteInFlight<W> {
        // Other members of a ring go by what this one has dropped.
        let waits = match self.shards.get() {
            None => scope.may_be_nothing(),
            Some(_) => scope.doubtful && scope.is_everything(),
        };
        let waiting = |one: &&Invalidation| waits && one.is_wide();
        let all = || scope.invalidations().iter();
        let doubt = waits.then(|| self.doubts.begin(all().filter(waiting)));
        let groups = doubt.as_ref().map(Doubt::only_groups);
        let all_undropped = groups == Some(None);
        let groups = groups.flatten().unwrap_or_default();
        let undropped = doubt.map(|doubt| {
            self.intent_log.begin_undropped(&groups);
            Undropped { doubt, noted: groups, narrowed: None }
        });
        let mut write = WriteInFlight {
            cache: self.clone(),
            gates: Vec::new(),
            intents: Vec::new(),
            made: Default::default(),
            nature: Nature {
                conditional: scope.conditional,
                undropped: all_undropped,
                dead_after,
                weak: false,
            },
            weak,
            undropped,
            updated: None,
            share: None,
            on_flash: None,
            settled: false,
        };
        let Followed { change, unit_of } = followed;
        match unit_of.filter(|_| !weak).and_then(|table| RowOfUnit::of(self, scope, table)) {
            Some(row) => write.close_row(scope, &row),
            None if scope.only_makes_partitions() => write.close_made(scope.gates()),
            None => write.close(scope.gates()),
        }
        match change.filter(|_| !weak).map(|change| CachedRow::of(self, scope, change)) {
            Some(CachedRow::Updatable(row)) => write.updated = Some(row),
            Some(CachedRow::OnFlash(row)) => write.on_flash = Some(row),
            Some(CachedRow::Dropped) | None => {}
        }
        all().filter(|one| !waiting(one)).for_each(|one| self.drop_rows(one));
        // More gates of ours, which no row passes that was looked at before.
        let newer = newer();
        if !newer.is_empty() {
            write.widen(&newer);
        }
        write
    }

    /// The wait before a write begins while the engine's journal is full: 50 ms at most.
    pub fn backpressure(&self) -> Option<Backpressure> {
        self.rows.backpressure()
    }

    /// Nothing to wait for: the namespace is write-back.
    pub(crate) fn drop_rows(&self, invalidation: &Invalidation) {
        self.attempts.note_drop(invalidation);
        match invalidation {
            Invalidation::Row(key) | Invalidation::Unit(key) => drop(self.rows.submit_remove(key)),
            Invalidation::Partition(token) => drop(self.rows.submit_bump_epoch(*token)),
            Invalidation::Table(group) => drop(self.rows.submit_remove_group(*group)),
            Invalidation::Everything => drop(self.rows.submit_clear()),
        }
    }

    /// Drops rows for a reason other than a write of ours: a schema change, a lost control
    /// connection. Fills in flight are not installed.
    pub fn forget(self: &Arc<Self>, scope: &WriteScope) {
        self.begin_write(scope, false, 0, WriteScope::default).settle(Answered::Definite);
    }

    /// From now on rows are read from other replicas, which may lack writes acknowledged so far.
    /// The cached rows are correct.
    pub fn moved(self: &Arc<Self>) {
        self.weaken(WriteScope::everything());
    }

    /// From now on fills of this may miss writes acknowledged so far. The cached rows are correct.
    /// This is noted as an intent, so that a restart does not end it.
    pub fn weaken(self: &Arc<Self>, scope: WriteScope) {
        let scope = scope.without_drops();
        self.begin_write(&scope, true, 0, WriteScope::default).settle(Answered::Definite);
    }

    /// Another instance held the lease and did not say that its writes were settled. Fills may miss
    /// writes that it acknowledged. This is noted as an intent, so that a restart does not end it.
    pub fn take_over(self: &Arc<Self>) {
        self.moved();
    }

    /// As [`RowCache::forget`], when writes that we did not see may still be in flight.
    pub fn forget_and_hold(self: &Arc<Self>, scope: &WriteScope) {
        let unseen = Answered::Unknown(InDoubt::ConnectionLost);
        self.begin_write(scope, false, 0, WriteScope::default).settle(unseen);
    }

    /// From now on anything may be written without our knowledge, until what this gives is dropped:
    /// that holds everything. Meanwhile nothing is filled. This is noted as an intent, so that a
    /// restart does not end it. `None` where the lease was never ours: of writes before that
    /// the operator promises that fills see them.
    pub fn begin_unseen(self: &Arc<Self>) -> Option<WriteInFlight<W>> {
        let everything = WriteScope::everything();
        let begin = || self.begin_write(&everything, false, 0, WriteScope::default);
        self.had_lease.load(Ordering::Acquire).then(begin)
    }

    /// Nothing is in flight any more. The intents noted now are complete, and survive power loss.
    pub fn close(&self) {
        self.intent_log.close();
    }

    /// Settles the intents whose hold has ended. To be called every few seconds.
    pub fn settle_due(&self) {
        self.intent_log.settle_due(self.clock.now());
    }
}

impl<W> WriteInFlight<W> {
    fn close(&mut self, gates: Vec<GateScope>) {
        self.intents.extend(self.cache.intent_log.begin(&gates, self.nature));
        gates.iter().for_each(|scope| self.cache.gates.begin_write(scope));
        self.gates.extend(gates);
    }

    /// As [`WriteInFlight::close`], where the gates of tables are those of partitions that the
    /// database makes. Their intents are weak from the start: a restart holds no whole table.
    fn close_made(&mut self, gates: Vec<GateScope>) {
        let (tables, slots): (Vec<_>, Vec<_>) =
            gates.into_iter().partition(|scope| matches!(scope, GateScope::Table(_)));
        let weak = Nature { weak: true, ..Nature::default() };
        self.made.intents = self.cache.intent_log.begin(&tables, weak);
        tables.iter().for_each(|scope| self.cache.gates.begin_write(scope));
        self.made.gates = tables;
        self.close(slots);
    }

    /// As [`WriteInFlight::close`], for a write of this row and nothing else.
    fn close_row(&mut self, scope: &WriteScope, row: &RowOfUnit) {
        let gates = scope.gates();
        self.intents.extend(self.cache.intent_log.begin(&gates, self.nature));
        self.gates.extend(gates);
        self.share = self.cache.begin_unit_write(row);
    }

    /// The read of the row that the write names, where the row is on flash only; once. It finds the
    /// row as it is before the write, and goes on while the write is under way. A hit goes to
    /// [`WriteInFlight::found_on_flash`].
    pub fn take_flash_read(&mut self) -> Option<FlashRead> {
        self.on_flash.as_mut()?.take_read()
    }

    /// The read of the row has found this.
    pub fn found_on_flash(&mut self, hit: &Hit) {
        self.updated = self.on_flash.take().and_then(|row| row.after(&self.cache, hit));
    }

    /// The write was answered, and may have touched this as well
    /// ([`WriteScope::replaced`]). To be called before it is settled.
    pub fn widen(&mut self, more: &WriteScope) {
        self.close(more.gates());
        more.invalidations().iter().for_each(|dropped| self.cache.drop_rows(dropped));
    }

    /// The database's answer says what a write of unknown scope has changed: a part of the schema.
    /// Consistency levels do not matter for that.
    pub fn narrow(&mut self, invalidations: &[Invalidation]) {
        self.weak = false;
        if let Some(undropped) = &mut self.undropped {
            undropped.narrowed = Some(invalidations.to_vec());
        }
    }

    /// A quorum read in our data centre may miss it, however many replicas have it.
    pub fn weaken(&mut self) {
        self.weak = true;
    }

    /// Takes the answer. Gates open before the client is told.
    pub fn settle(mut self, answered: Answered) {
        self.end(answered);
    }

    /// Ends a write of another instance of which nobody has said how it has ended, for so long that
    /// a plain write can no longer be applied. The proposal of a lightweight transaction may be
    /// completed by any later one, or by a serial read.
    pub fn run_out(self) {
        let answered = match self.nature.conditional {
            true => Answered::Unknown(InDoubt::ConnectionLost),
            false => Answered::Definite,
        };
        self.settle(answered);
    }

    /// As [`WriteInFlight::settle`]. If the database has acknowledged the write, its row is first
    /// put back with the new values, where that is certain. Once the gates are open, the unit is
    /// back, or is to have the row as it is now. `is_same_schema` says whether the schema is still
    /// the one that the write was planned for.
    pub fn settle_and_update(
        mut self,
        answered: Answered,
        is_same_schema: impl FnOnce() -> bool,
    ) -> Remains<W> {
        let sees = answered == Answered::Definite && !self.weak;
        let row = self.updated.take().filter(|_| sees);
        let share = self.share.take().filter(|_| sees);
        let is_same = (row.is_some() || share.is_some()) && is_same_schema();
        let cache = self.cache.clone();
        let outcome = match row {
            Some(row) if is_same && cache.replace(&row) => RowOutcome::Updated,
            None if self.on_flash.is_some() => RowOutcome::OnFlash,
            _ => RowOutcome::Dropped,
        };
        let share = share.filter(|_| is_same);
        self.end(answered);
        let unit = share.map_or(UnitLeft::Dropped, |share| cache.end_unit_write(share));
        Remains { row: outcome, unit }
    }

    fn end(&mut self, answered: Answered) {
        self.settled = true;
        self.share = None;
        if let Some(Undropped { doubt, noted, narrowed }) = self.undropped.take() {
            if answered != Answered::Refused {
                let dropped = narrowed.as_deref().unwrap_or(doubt.dropped());
                dropped.iter().for_each(|one| self.cache.drop_rows(one));
                self.note_dropped();
            }
            self.cache.intent_log.settle_undropped(&noted);
            self.cache.doubts.end(&doubt);
        }
        let until = self.cache.clock.now() + self.cache.hold.as_millis() as Millis;
        let settled = match answered {
            Answered::Unknown(_) => Settled::Unknown {
                hold_until: hold_of(self.nature, &*self.cache.clock, self.cache.hold),
            },
            Answered::Definite if self.weak => Settled::Weak { until },
            Answered::Definite | Answered::Refused => Settled::Definite,
        };
        self.gates.iter().for_each(|scope| self.cache.gates.end_write(scope, settled));
        self.cache.intent_log.settle(&self.intents, settled);
        self.end_made(match settled {
            Settled::Unknown { .. } => Settled::Weak { until },
            told => told,
        });
    }

    /// Opens the gates of partitions that the database makes, for who has found one by a scan.
    /// What is filled within `lasts` may miss the write, and lives for a short time. To be called
    /// again before that is over, until the write has ended: then it is weak for a hold, if its
    /// outcome asks for that.
    pub fn weaken_made(&mut self, lasts: Millis) {
        let until = self.cache.clock.now() + lasts;
        let was_open = std::mem::replace(&mut self.made.is_open, true);
        for scope in &self.made.gates {
            match was_open {
                true => self.cache.gates.weaken(scope, until),
                false => self.cache.gates.end_write(scope, Settled::Weak { until }),
            }
        }
    }

    /// Closes them again: the write may be acknowledged once more.
    pub fn renew_made(&mut self) {
        if std::mem::take(&mut self.made.is_open) {
            self.made.gates.iter().for_each(|scope| self.cache.gates.begin_write(scope));
        }
    }

    fn end_made(&mut self, settled: Settled) {
        let MadePartitions { gates, intents, is_open } = std::mem::take(&mut self.made);
        for scope in &gates {
            match (is_open, settled) {
                (false, settled) => self.cache.gates.end_write(scope, settled),
                (true, Settled::Weak { until }) => self.cache.gates.weaken(scope, until),
                (true, _) => {}
            }
        }
        self.cache.intent_log.settle(&intents, settled);
    }

    /// Its rows are dropped now: from here on its intents say so. A restart need not drop all.
    fn note_dropped(&mut self) {
        if !self.nature.undropped {
            return;
        }
        self.nature.undropped = false;
        self.cache.intent_log.renote(&mut self.intents, self.nature);
    }

    /// Ends a lightweight transaction of unknown outcome after an inquiry. `decided`: a serial read
    /// has decided it. `seen_here`: every quorum read in our data centre sees what that read
    /// completed.
    pub fn settle_inquired(mut self, answered: Answered, decided: bool, seen_here: bool) {
        if decided {
            // Only phases that have passed can still have an effect. The rest counts as a plain
            // write, also after a restart.
            (self.nature.conditional, self.nature.dead_after) = (false, 0);
            self.cache.intent_log.renote(&mut self.intents, self.nature);
            self.weak |= !seen_here;
        }
        // A coordinator that answered has finished with it. A coordinator that was lost may not
        // have.
        let lost = answered == Answered::Unknown(InDoubt::ConnectionLost);
        self.end(if lost || !decided { answered } else { Answered::Definite });
    }

    /// It will take long: its row is not put back, and takes no memory meanwhile.
    pub fn abandon_row(&mut self) {
        self.updated = None;
        self.on_flash = None;
        self.share = None;
    }

    /// Ends a plain write of unknown outcome that was sent again. `done`: LOCAL_QUORUM has it. Then
    /// every fill sees it, and attempts still under way change nothing.
    pub fn settle_repeated(mut self, answered: Answered, done: bool) {
        if done {
            self.weak = false;
        }
        self.end(if done { Answered::Definite } else { answered });
    }

    /// The cache that it was begun in.
    pub fn cache(&self) -> &Arc<RowCache<W>> {
        &self.cache
    }
}

impl<W> Drop for WriteInFlight<W> {
    fn drop(&mut self) {
        if !self.settled {
            self.end(Answered::Unknown(InDoubt::ConnectionLost));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_exclude_any_effect_are_definite() {
        let definite = |code, in_steps| Answered::by_error(code, in_steps) == Answered::Refused;
        for code in [
            ErrorCode::Invalid,
            ErrorCode::Syntax,
            ErrorCode::Unauthorized,
            ErrorCode::AlreadyExists,
        ] {
            assert!(definite(code, false) && definite(code, true), "{code:?}");
        }
        assert!(definite(ErrorCode::Unavailable, false));
        assert!(!definite(ErrorCode::Unavailable, true));
        for code in [
            ErrorCode::WriteTimeout,
            ErrorCode::WriteFailure,
            ErrorCode::CasWriteUnknown,
            ErrorCode::CdcWriteFailure,
            ErrorCode::Server,
            ErrorCode::Config,
            ErrorCode::Overloaded,
            ErrorCode::Truncate,
            ErrorCode::ReadTimeout,
        ] {
            assert!(!definite(code, false) && !definite(code, true), "{code:?}");
        }
    }
}
