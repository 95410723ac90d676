//! A row that this instance owns, for another one: looked up, or filled.
//!
//! 1. The permission is asked for after the question has come ([`Question::permitted`]).
//! 2. The row is looked up in DRAM and on flash ([`Sought`]).
//! 3. A miss leads a fill, or waits for another's. The ring says whether it may fill, and how
//!    ([`Ring::fill_terms`]).
//! 4. The row may still be where it was cached before ([`carry`](super::carry)). Otherwise the
//!    caller reads the database, unless its last answers for the table came too late
//!    ([`late_fills`](super::late_fills)).
//! 5. What was read is installed with the ticket of the fill, under the permission from before it.
//!
//! Nothing here has a socket.

use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::plan::{Plan, ReadPlan, RowKey, TableSchema};
use afterglow_cql::token::murmur3;
use afterglow_ring::Answer;
use afterglow_rowcache::clock::Moment;
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::gate::{Join, Ticket};
use afterglow_rowcache::install::{Installed, ReturnedFill};
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::serve::{CachePermission, NotCached};
use futures_channel::oneshot;

use super::carry::{carried, carried_weakly};
use super::core::Ring;
use super::late_fills::LateFills;
use crate::frontend::cql::cached::level::Need;
use crate::frontend::cql::cached::sought::{Found, Sought};
use crate::frontend::cql::cached::state::CachedState;
use crate::frontend::cql::cached::{FillWaiter, RowCache};
use crate::metrics::{CarriedFrom, FillOutcome, FrontEndMetrics, MissReason};

/// A question that has been understood.
pub struct Question {
    /// The table of the row.
    pub table: Arc<TableSchema>,
    /// A plan to read whole rows of it.
    pub plan: Arc<Plan>,
    /// The row.
    pub key: RowKey,
    permission: CachePermission,
}

impl Question {
    /// A question for this row, if it may be answered from here now.
    ///
    /// # Errors
    /// What the asker hears.
    pub fn permitted(
        cache: &RowCache,
        table: Arc<TableSchema>,
        plan: Arc<Plan>,
        key: RowKey,
    ) -> Result<Question, Answer> {
        match cache.row_permission(&table, &key) {
            Ok(permission @ CachePermission::Exclusive { .. }) => {
                Ok(Question { table, plan, key, permission })
            }
            Err(NotCached::NotOwner) => Err(Answer::NotOwner),
            _ => Err(Answer::Pass),
        }
    }

    /// The plan.
    pub fn read(&self) -> &ReadPlan {
        match &*self.plan {
            Plan::CachedRead(read) => read,
            _ => unreachable!("a question is made of a plan to read"),
        }
    }
}

impl Ring {
    /// Whether a row that was missed under this permission may be filled now, and whether weakly:
    /// see [`Ring::may_fill`].
    pub fn fill_terms(
        &self,
        table: &TableSchema,
        key: &RowKey,
        permission: CachePermission,
    ) -> Option<bool> {
        let weak = self.may_fill(murmur3(key.partition_key()))?;
        // The terms are of the epoch that the permission is of: epochs only grow, and it is the
        // same before and after.
        (self.cache.row_permission(table, key) == Ok(permission)).then_some(weak)
    }
}

/// What it takes to answer.
pub struct Owned<'a> {
    /// The cached path.
    pub shared: &'a CachedState,
    /// The ring.
    pub ring: &'a Ring,
    /// Which fills are not tried.
    pub late_fills: &'a LateFills,
    /// Where to count.
    pub metrics: &'a FrontEndMetrics,
}

impl Owned<'_> {
    /// The row. `fill` reads it from the database; the moment is one before.
    pub async fn row(
        &self,
        question: &Question,
        fill: impl AsyncFnOnce(Moment) -> Option<Filled>,
    ) -> Option<Row> {
        match self.look_up(question).await {
            Ok(row) => Some(row),
            Err(reason) => self.missed(question, reason, fill).await,
        }
    }

    async fn look_up(&self, question: &Question) -> Result<Row, MissReason> {
        let Question { key, permission, .. } = question;
        let read = question.read();
        let (shared, permission, need) = (self.shared, *permission, Need::Nothing);
        let sought = Sought { shared, read, key, permission, need };
        let (row, tier) = match sought.look_up() {
            Found::Row(row, tier) => (row, tier),
            Found::Flash(flash) => sought.read(flash, self.metrics).await?,
            Found::Missing(reason) => return Err(reason),
        };
        self.metrics.hits.inc(tier);
        Ok(row)
    }

    /// `reason`: why the lookup found nothing to serve. Each question counts as one miss, or as a
    /// hit if the row was carried over.
    async fn missed(
        &self,
        question: &Question,
        reason: MissReason,
        fill: impl AsyncFnOnce(Moment) -> Option<Filled>,
    ) -> Option<Row> {
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        let Question { table, key, permission, .. } = question;
        let join = self.shared.cache.join(table, key, *permission, waiter);
        if let Join::Lead(ticket) = join {
            let (row, from) = self.lead(question, ticket, fill).await.unzip();
            match from.flatten() {
                Some(from) => self.metrics.hits.inc(from.tier()),
                None => self.metrics.misses.inc(reason),
            }
            return row;
        }
        self.metrics.misses.inc(reason);
        match join {
            Join::Wait => hears?.await.ok()?.row(question.read().fingerprint),
            _ => None,
        }
    }

    /// The row, and where it was carried over from if the database was not asked.
    async fn lead(
        &self,
        question: &Question,
        ticket: Ticket<FillWaiter>,
        fill: impl AsyncFnOnce(Moment) -> Option<Filled>,
    ) -> Option<(Row, Option<CarriedFrom>)> {
        let Question { table, key, permission, .. } = question;
        let weak = self.ring.fill_terms(table, key, *permission)?;
        let asked_at = self.shared.cache.clock().moment();
        let shape = (&**table, question.read().fingerprint);
        if let Some((filled, from)) = carried(self.shared, shape, key, self.metrics).await {
            let weak = carried_weakly(weak, from);
            let (_, row) = self.install(question, filled, (asked_at, weak), ticket);
            return Some((row?, Some(from)));
        }
        let attempt = self.late_fills.try_one(table.id)?;
        let limit = Duration::from_micros(self.ring.config().get).min(self.shared.fills.timeout);
        let filled = compio::time::timeout(limit, fill(asked_at)).await;
        let fills = &self.metrics.fills;
        let filled = match filled {
            Ok(Some(filled)) => filled,
            Ok(None) => {
                fills.inc(FillOutcome::Failed);
                return None;
            }
            Err(_) => {
                attempt.late();
                fills.inc(FillOutcome::Late);
                return None;
            }
        };
        attempt.answered();
        let (installed, row) = self.install(question, filled, (asked_at, weak), ticket);
        fills.inc(installed.into());
        Some((row?, None))
    }

    fn install(
        &self,
        question: &Question,
        filled: Filled,
        (asked_at, weak): (Moment, bool),
        ticket: Ticket<FillWaiter>,
    ) -> (Installed, Option<Row>) {
        let (plan, key, cache_permission) = (question.read(), &question.key, question.permission);
        let fill = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak };
        self.shared.install(fill, ticket)
    }
}
