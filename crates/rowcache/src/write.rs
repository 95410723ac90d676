//! What a write does, in order. Each step ends before the next begins.
//!
//! 1. [`WriteScope::add`]: what it may touch, from its plan and bound values;
//!    [`Index::is_weak`](crate::tables::Index::is_weak): whether a fill may miss it.
//! 2. [`RowCache::begin_write`]: intents noted, gates closed, rows dropped (journalled).
//! 3. The caller sends it. [`Answered::by_error`] says what an error means for it.
//! 4. [`WriteInFlight::settle`]: gates opened, or held after an unknown outcome; intents settled,
//!    or kept as long.
//! 5. The caller tells the client.
//!
//! Invariants:
//! - A write that is dropped at any moment without an answer counts as one of unknown outcome.
//! - What is planned for a schema that is gone by the time the gates are closed drops everything.
//! - A text that is not understood drops nothing before it is answered, and nothing is served
//!   meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afterglow_cql::error::ErrorCode;
use afterglow_engine::Backpressure;

use crate::clock::Millis;
use crate::gate::{GateScope, Settled};
use crate::intents::log::Noted;
use crate::intents::words::Nature;
use crate::row_cache::{RowCache, hold_of};
use crate::write_scope::{Invalidation, WriteScope};

/// Why it is not known what became of a write.
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
    /// It said what it did.
    Definite,
    /// It was refused, or not even sent: nothing happened.
    Refused,
    /// The write may have happened, or may yet.
    Unknown(InDoubt),
}

impl Answered {
    /// What an ERROR means for the write that it answers. `in_steps`: an earlier step may have had
    /// its effect when the database finds that it cannot go on: lightweight transactions, and
    /// writes to several partitions that are not made as one.
    pub fn by_error(code: ErrorCode, in_steps: bool) -> Answered {
        match code {
            ErrorCode::Syntax
            | ErrorCode::Unauthorized
            | ErrorCode::Invalid
            | ErrorCode::Config
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

/// A write on its way: its gates are closed and its rows are gone from the cache. Dropped without
/// an answer, its outcome is unknown.
pub struct WriteInFlight<W> {
    cache: Arc<RowCache<W>>,
    gates: Vec<GateScope>,
    intents: Vec<Noted>,
    nature: Nature,
    /// Its consistency level does not make sure that a quorum read sees it.
    weak: bool,
    /// What is to be dropped unless it is refused; nothing is served until that is known.
    undropped: Option<Vec<Invalidation>>,
    settled: bool,
}

impl<W> RowCache<W> {
    /// Does all that must come before a write is sent. `weak`: `W + R <= RF`. `dead_after`: see
    /// [`Nature`].
    ///
    /// `is_current` is asked once the gates are closed; when it says no, the write was planned for
    /// a schema that is gone, and may touch anything.
    pub fn begin_write(
        self: &Arc<Self>,
        touched: &WriteScope,
        weak: bool,
        dead_after: u32,
        is_current: impl FnOnce() -> bool,
    ) -> WriteInFlight<W> {
        let undropped = touched.may_be_nothing().then(|| touched.doomed().to_vec());
        if undropped.is_some() {
            self.doubts.fetch_add(1, Ordering::AcqRel);
        }
        let mut write = WriteInFlight {
            cache: self.clone(),
            gates: Vec::new(),
            intents: Vec::new(),
            nature: Nature {
                conditional: touched.conditional,
                undropped: undropped.is_some(),
                dead_after,
                weak: false,
            },
            weak,
            undropped,
            settled: false,
        };
        write.close(touched.gates());
        if write.undropped.is_none() {
            touched.doomed().iter().for_each(|doomed| self.drop_rows(doomed));
        }
        if !is_current() {
            write.close(vec![GateScope::Everything]);
            self.drop_rows(&Invalidation::Everything);
        }
        write
    }

    /// What a write must await before it begins while the engine's journal is full: 50 ms at most.
    pub fn backpressure(&self) -> Option<Backpressure> {
        self.rows.backpressure()
    }

    /// Nothing to wait for: the namespace is write-back.
    fn drop_rows(&self, doomed: &Invalidation) {
        match doomed {
            Invalidation::Row(key) => drop(self.rows.submit_remove(key)),
            Invalidation::Partition(token) => drop(self.rows.submit_bump_epoch(*token)),
            Invalidation::Table(group) => drop(self.rows.submit_remove_group(*group)),
            Invalidation::Everything => drop(self.rows.submit_clear()),
        }
    }

    /// Drops rows for a reason that is no write of ours: a schema change, a lost control
    /// connection. Fills on their way are overtaken.
    pub fn forget(self: &Arc<Self>, touched: &WriteScope) {
        self.begin_write(touched, false, 0, || true).settle(Answered::Definite);
    }

    /// From now on rows are read of other replicas, which may lack what was acknowledged so far.
    /// What is cached is right.
    pub fn moved(self: &Arc<Self>) {
        let touched = WriteScope::everything().without_drops();
        self.begin_write(&touched, true, 0, || true).settle(Answered::Definite);
    }

    /// Another instance held the lease, and did not say that its writes were settled: fills may
    /// miss what was acknowledged by it. Noted as an intent, so that a restart does not end it.
    pub fn take_over(self: &Arc<Self>) {
        self.moved();
    }

    /// As [`RowCache::forget`], when writes that we did not see may still be on their way.
    pub fn forget_and_hold(self: &Arc<Self>, touched: &WriteScope) {
        let unseen = Answered::Unknown(InDoubt::ConnectionLost);
        self.begin_write(touched, false, 0, || true).settle(unseen);
    }

    /// Nothing is under way any more: what is noted now is all there is, and stays so without
    /// power.
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

    /// The database's answer says what a write of unknown reach has changed: a part of the schema,
    /// which is not a matter of consistency levels.
    pub fn narrow(&mut self, doomed: &[Invalidation]) {
        self.weak = false;
        if let Some(undropped) = &mut self.undropped {
            *undropped = doomed.to_vec();
        }
    }

    /// A quorum read in our data centre may miss it, however many replicas have it.
    pub fn weaken(&mut self) {
        self.weak = true;
    }

    /// The answer has come; gates open before the client hears of it.
    pub fn settle(mut self, answered: Answered) {
        self.end(answered);
    }

    fn end(&mut self, answered: Answered) {
        self.settled = true;
        if let Some(undropped) = self.undropped.take() {
            if answered != Answered::Refused {
                undropped.iter().for_each(|doomed| self.cache.drop_rows(doomed));
            }
            self.cache.doubts.fetch_sub(1, Ordering::AcqRel);
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
    }

    /// Ends a lightweight transaction that the database was asked about after it was answered so.
    /// `decided`: a serial read has decided it. `seen_here`: what that completed is there for every
    /// quorum read in our data centre.
    pub fn settle_inquired(mut self, answered: Answered, decided: bool, seen_here: bool) {
        if decided {
            // Only the phases that are past can have an effect yet: what is left counts as a plain
            // write.
            self.nature.conditional = false;
            self.weak |= !seen_here;
        }
        // Who answered has come to an end with it; a coordinator that was lost may not have.
        let lost = answered == Answered::Unknown(InDoubt::ConnectionLost);
        self.end(if lost || !decided { answered } else { Answered::Definite });
    }

    /// What it was begun in.
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
            ErrorCode::Overloaded,
            ErrorCode::Truncate,
            ErrorCode::ReadTimeout,
        ] {
            assert!(!definite(code, false) && !definite(code, true), "{code:?}");
        }
    }
}
