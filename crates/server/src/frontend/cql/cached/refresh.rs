//! Reads a row for the cache right after a write of it: the refresh of a unit
//! ([`afterglow_rowcache::refresh`]), or a fill that no read has asked for
//! ([`afterglow_rowcache::newcomers`]).
//!
//! 1. [`Refresher::begin`]: decides what to read, and takes the right to install it, before the
//!    client is told of the write. So its next read waits for this one.
//! 2. [`Refresher::run`]: reads the row, and installs it if no write has begun meanwhile.
//!
//! It outlives the client, so it keeps nothing of it but whose rights it has. Who reads what it
//! brings needs rights of their own. It asks one node. If that is silent, whoever waits asks the
//! database.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::plan::{ReadPlan, RowKey, TableSchema};
use afterglow_cql::token::murmur3;
use afterglow_rowcache::gate::{Join, Ticket};
use afterglow_rowcache::install::ReturnedFill;
use afterglow_rowcache::refresh::{Refresh, UnitLeft};
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::tables::FILL_AT;
use afterglow_rowcache::write_in_flight::{Remains, RowOutcome};
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::oneshot;

use super::super::{CqlReactorState, Request};
use super::FillWaiter;
use super::fill::{Ask, FillFailure, FillShape};
use super::state::CachedState;
use super::under_way::OneUnderWay;
use super::update;
use crate::frontend::cql::KeptBackend;
use crate::frontend::cql::cluster::pool::Who;

/// How often it checks whether the node is silent. If so, reads that wait for it ask the database
/// themselves.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A read of one row that a write has led to.
pub(super) struct Refresher {
    shared: Arc<CachedState>,
    reactor_state: Rc<CqlReactorState>,
    who: Who,
    /// Of the schema that the write was planned for.
    generation: u64,
    work: Work,
    _one: OneUnderWay,
}

enum Work {
    Unit(Box<Refresh<FillWaiter>>),
    Row {
        plan: Box<ReadPlan>,
        key: RowKey,
        permission: CachePermission,
        ticket: Ticket<FillWaiter>,
    },
}

impl Refresher {
    /// What to read after a write that every quorum read sees, and that has left this. `table`: of
    /// the one row that it names.
    pub(super) fn begin(
        shared: &Arc<CachedState>,
        request: &Request,
        touched: &WriteScope,
        table: &Arc<TableSchema>,
        generation: u64,
        remains: Remains<FillWaiter>,
    ) -> Option<Refresher> {
        let Remains { row, unit } = remains;
        let unit = match unit {
            UnitLeft::Back(back) => {
                shared.refreshed(back);
                UnitLeft::Dropped
            }
            unit => unit,
        };
        let client = request.client();
        if client.dedicated.borrow().is_some() {
            return None;
        }
        let one = shared.refreshing.one_more()?;
        let work = match unit {
            UnitLeft::Refresh(refresh) => unit_work(shared, refresh)?,
            UnitLeft::Awaited => return None,
            _ if row == RowOutcome::Updated => return None,
            _ if !update::is_update(request) => return None,
            _ => row_work(shared, touched, table)?,
        };
        Some(Refresher {
            shared: shared.clone(),
            reactor_state: client.reactor_state.clone(),
            who: client.who(request.header.version),
            generation,
            work,
            _one: one,
        })
    }

    /// Reads and installs.
    pub(super) async fn run(self) {
        let asked_at = self.shared.cache.clock().moment();
        let (plan, key) = match &self.work {
            Work::Unit(refresh) => refresh.row(),
            Work::Row { plan, key, .. } => (&**plan, key),
        };
        let read = self.read(plan, key, asked_at.unix);
        let read = compio::time::timeout(self.shared.fills.timeout, read).await;
        let Refresher { shared, reactor_state, work, .. } = self;
        let fills = &reactor_state.metrics.fills;
        let filled = match read.unwrap_or(Err(FillFailure::Late)) {
            Ok(filled) => filled,
            Err(failure) => {
                fills.inc(failure.into());
                if let (Work::Row { plan, .. }, true) = (&work, failure != FillFailure::Late) {
                    shared.newcomers.failed(plan.table.id);
                }
                return;
            }
        };
        let installed = match work {
            Work::Unit(refresh) => {
                let most_bytes = shared.units.most_bytes();
                shared.refreshed(shared.cache.end_refresh(*refresh, &filled, asked_at, most_bytes))
            }
            Work::Row { plan, key, permission: cache_permission, ticket } => {
                let (plan, key) = (&*plan, &key);
                let weak = false;
                let fill = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak };
                shared.install(fill, ticket).0
            }
        };
        fills.inc(installed.into());
    }

    async fn read(
        &self,
        plan: &ReadPlan,
        key: &RowKey,
        asked_at: u32,
    ) -> Result<Filled, FillFailure> {
        let backend = self.connection(plan, key).await.ok_or(FillFailure::Failed)?;
        let ask = Ask { plan, key, shape: FillShape::Row, consistency: FILL_AT };
        let fill = self.shared.fill(&backend, ask, self.generation, asked_at);
        let mut fill = std::pin::pin!(fill);
        loop {
            match compio::time::timeout(TIMEOUT, fill.as_mut()).await {
                Ok(filled) => return filled,
                Err(_) if backend.is_silent() => return Err(FillFailure::Late),
                Err(_) => {}
            }
        }
    }

    /// To the first node of our data centre that can be reached. A quorum of another may lack what
    /// was acknowledged in ours.
    async fn connection(&self, plan: &ReadPlan, key: &RowKey) -> Option<KeptBackend> {
        let partition = (plan.table.keyspace.as_str(), murmur3(key.partition_key()));
        for node in self.reactor_state.candidates(Some(partition)).nodes {
            let Ok(backend) = self.reactor_state.pool.acquire(node, &self.who).await else {
                continue;
            };
            return self.reactor_state.is_near(&backend).then_some(backend);
        }
        None
    }
}

fn unit_work(shared: &CachedState, refresh: Refresh<FillWaiter>) -> Option<Work> {
    let may = shared.units.may_refresh(refresh.unit_key());
    may.then(|| Work::Unit(Box::new(refresh)))
}

fn row_work(shared: &CachedState, touched: &WriteScope, table: &Arc<TableSchema>) -> Option<Work> {
    let (_, engine_key) = touched.only_row()?;
    if touched.conditional || table.cacheable().is_err() {
        return None;
    }
    let columns = (table.partition_key.len(), table.clustering.len());
    let key = RowKey::from_engine_key(engine_key, columns.0, columns.1)?;
    let permission = shared.cache.row_permission(table, &key).ok()?;
    if !shared.newcomers.written(table.id, engine_key) {
        return None;
    }
    // Nobody hears it if another fill leads.
    let waiter = || oneshot::channel().0;
    let Join::Lead(ticket) = shared.cache.join(table, &key, permission, waiter) else {
        return None;
    };
    let plan = Box::new(ReadPlan::of_table(table.clone()));
    Some(Work::Row { plan, key, permission, ticket })
}
