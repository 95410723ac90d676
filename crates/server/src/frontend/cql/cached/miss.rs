//! A read of one row that the cache does not have: it fills the row from the database, waits for
//! another's fill, or goes past the cache. In a ring a row may come from where it was cached
//! before.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use afterglow_cql::plan::{ReadPlan, RowKey};
use afterglow_engine::Hit;
use afterglow_rowcache::clock::Moment;
use afterglow_rowcache::entry::{Row, Unit};
use afterglow_rowcache::gate::{Join, Ticket};
use afterglow_rowcache::install::{Installed, ReturnedFill};
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::serve::CachePermission;
use futures_channel::oneshot;

use super::FillWaiter;
use super::awaited::{SoughtUnit, Waited};
use super::fill::FillShape;
use super::level::Need;
use super::read::{Pending, Terms, allow, ask, is_allowed, path_of, tier_of};
use super::ring::{carried, carried_weakly};
use super::sought::may_be_in_unit;
use super::state::CachedState;
use crate::frontend::cql::Request;
use crate::metrics::{CarriedFrom, MissReason, Path};

/// What it takes to fill one row, or a unit.
#[derive(Clone, Copy)]
pub(super) struct Filler<'a> {
    pub(super) shared: &'a Arc<CachedState>,
    pub(super) request: &'a Request,
    pub(super) read: &'a ReadPlan,
    /// The key of the row or unit.
    pub(super) key: &'a RowKey,
    /// See [`Terms`](super::read::Terms).
    pub(super) generation: u64,
    /// By the level of the read.
    pub(super) need: Need,
}

/// What a miss of one row comes to.
pub(super) enum Brought {
    /// The row, and where it came from.
    Row(Row, Path),
    /// The row is there, and was read with another client's rights. This client's are not known.
    OfOthers,
    /// The database has to answer the client's own request.
    Nothing,
}

/// Counts a request as one miss, however many of its rows are missing. Rows that were cached under
/// an earlier epoch of their shard are hits.
#[derive(Default)]
pub(super) struct CountedOnce(Cell<bool>);

impl CountedOnce {
    pub(super) fn note(&self, request: &Request, reason: MissReason) {
        if !self.0.replace(true) {
            request.note_miss(reason);
        }
    }

    /// All rows are there, the slowest from `path`. Counts a hit if none was missing. By which path
    /// the request is answered.
    pub(super) fn end(&self, request: &Request, path: Path, age: Option<u32>) -> Path {
        if self.0.replace(true) {
            return Path::Miss;
        }
        let tier = tier_of(path).expect("what the database was asked for is counted as missing");
        request.note_hit(tier, age);
        path
    }
}

impl Pending {
    /// What it takes to fill the row or unit.
    pub(super) fn filler(&self) -> Filler<'_> {
        self.filler_of(&self.terms.key)
    }

    /// What it takes to fill another row of the table.
    pub(super) fn filler_of<'a>(&'a self, key: &'a RowKey) -> Filler<'a> {
        let (shared, request) = (&self.shared, &self.request);
        let Terms { generation, need, .. } = self.terms;
        Filler { shared, request, read: self.read(), key, generation, need }
    }

    /// `reason`: why the lookup found nothing to serve. Each read counts as one miss, by what it
    /// comes to, or as a hit if the row was carried over.
    pub(super) async fn missed(self, permission: CachePermission, reason: MissReason) {
        let count = CountedOnce::default();
        let brought = self.filler().row(permission, reason, &count).await;
        if let Brought::Row(row, path) = &brought
            && self.filler().is_met(permission)
        {
            let path = count.end(&self.request, *path, row.age());
            return self.reply(row.clone(), path).await;
        }
        count.note(&self.request, reason);
        match brought {
            Brought::OfOthers => ask(self.request, self.plan).await,
            Brought::Row(..) | Brought::Nothing => self.request.pass(Path::Miss),
        }
    }
}

impl Filler<'_> {
    /// Whether the cache answers at the level of the read, also now that something was brought: a
    /// write that a fill may miss may have ended meanwhile, or our data centre be another.
    pub(super) fn is_met(&self, permission: CachePermission) -> bool {
        self.need.is_met(self.shared, self.request, (self.read, self.key), permission)
    }

    /// Brings a row that is missing for this reason.
    pub(super) async fn row(
        &self,
        permission: CachePermission,
        reason: MissReason,
        count: &CountedOnce,
    ) -> Brought {
        if may_be_in_unit(&self.shared.units, self.read, self.key, reason)
            && let Some(brought) = self.row_of_awaited(permission, count).await
        {
            return brought;
        }
        self.shared.newcomers.missed(self.key.engine_key());
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        match self.shared.cache.join(&self.read.table, self.key, permission, waiter) {
            Join::Lead(ticket) => self.lead(ticket, permission, reason, count).await,
            Join::Wait => {
                count.note(self.request, MissReason::Coalesced);
                let row = match hears {
                    Some(hears) => {
                        let brought = hears.await.ok();
                        brought.and_then(|brought| brought.row(self.read.fingerprint))
                    }
                    None => None,
                };
                // Whether that fill was doubted, the cache tells.
                let row = match self.need {
                    Need::Nothing => row,
                    Need::Undoubted => self.cached_meanwhile(permission),
                };
                match row {
                    // The row was read with another client's rights.
                    Some(row) if is_allowed(self.request, self.read) => {
                        Brought::Row(row, Path::Miss)
                    }
                    Some(_) => Brought::OfOthers,
                    None => Brought::Nothing,
                }
            }
            Join::Bypass(reason) => {
                count.note(self.request, reason.into());
                Brought::Nothing
            }
        }
    }

    /// The row from the unit of its partition, if that is being written and has the row.
    async fn row_of_awaited(
        &self,
        permission: CachePermission,
        count: &CountedOnce,
    ) -> Option<Brought> {
        let table = &self.read.table;
        let serves = |unit: &Unit| unit.row(table, self.key).is_ok();
        let began = || count.note(self.request, MissReason::Coalesced);
        let (cache, read, key) = (&*self.shared.cache, self.read, self.key);
        let unit = SoughtUnit { cache, read, key, permission };
        let waited = Box::pin(unit.wait(serves, began)).await;
        let Waited::Unit(unit) = waited else { return None };
        let row = unit.row(table, self.key).ok()?;
        self.shared.units.note_hit(self.key.unit_key());
        // The unit was read with another client's rights.
        Some(match is_allowed(self.request, self.read) {
            true => Brought::Row(row, Path::Miss),
            false => Brought::OfOthers,
        })
    }

    async fn lead(
        &self,
        ticket: Ticket<FillWaiter>,
        permission: CachePermission,
        reason: MissReason,
        count: &CountedOnce,
    ) -> Brought {
        // The race with the end of another fill: it may have ended after this read looked the row
        // up. Then it has installed the row before this read could lead, and the row is there now.
        if let Some(row) = self.cached_meanwhile(permission) {
            self.shared.share(&row, ticket);
            count.note(self.request, MissReason::Coalesced);
            return Brought::Row(row, Path::Miss);
        }
        // The gate may have become weak since the read was admitted.
        let terms = self.fill_terms(permission);
        let Some(weak) = terms.filter(|_| self.is_met(permission)) else {
            drop(ticket);
            count.note(self.request, MissReason::Quarantined);
            return Brought::Nothing;
        };
        let (asked_at, asked) = (self.shared.cache.clock().moment(), Instant::now());
        let terms = (permission, asked_at, weak);
        if let Some((filled, from)) = self.carried(permission).await {
            let terms = (permission, asked_at, carried_weakly(weak, from));
            let (_, row) = self.install(filled, terms, ticket);
            return brought(row, path_of(from.tier()));
        }
        count.note(self.request, reason);
        let filled = self.fill(asked_at.unix, FillShape::Row).await;
        let fills = &self.request.metrics().fills;
        match filled {
            Ok(filled) => {
                allow(self.request, self.read, asked);
                let (installed, row) = self.install(filled, terms, ticket);
                fills.inc(installed.into());
                brought(row, Path::Miss)
            }
            // Whatever the database's reason to refuse the fill, its answer to the client's own
            // request counts.
            Err(failure) => {
                fills.inc(failure.into());
                drop(ticket);
                Brought::Nothing
            }
        }
    }

    /// The row that another fill has left in DRAM.
    fn cached_meanwhile(&self, permission: CachePermission) -> Option<Row> {
        let hit = self.filled_meanwhile(permission)?;
        self.shared.cache.accept(&hit, permission, self.read.fingerprint).ok()
    }

    /// What another fill has left in DRAM. The read may have waited for its turn since it had its
    /// permission, and the fill had another client's rights.
    pub(super) fn filled_meanwhile(&self, permission: CachePermission) -> Option<Hit> {
        let cache = &self.shared.cache;
        let may = cache.row_permission(&self.read.table, self.key) == Ok(permission)
            && is_allowed(self.request, self.read);
        let hit = if may { cache.peek(self.key) } else { None };
        hit.filter(|hit| self.need.takes(self.shared, hit))
    }

    /// The row as it was cached before its shard moved. The database need not be asked whether the
    /// client may read it.
    async fn carried(&self, permission: CachePermission) -> Option<(Filled, CarriedFrom)> {
        let may = matches!(permission, CachePermission::Exclusive { .. })
            && is_allowed(self.request, self.read);
        if !may {
            return None;
        }
        let shape = (&*self.read.table, self.read.fingerprint);
        carried(self.shared, shape, self.key, self.request.metrics()).await
    }

    pub(super) fn install(
        &self,
        filled: Filled,
        (cache_permission, asked_at, weak): (CachePermission, Moment, bool),
        ticket: Ticket<FillWaiter>,
    ) -> (Installed, Option<Row>) {
        let (plan, key) = (self.read, self.key);
        let fill = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak };
        self.shared.install(fill, ticket)
    }

    /// Whether the row may be filled now, and whether it may miss writes of the shard's last owner.
    pub(super) fn fill_terms(&self, permission: CachePermission) -> Option<bool> {
        let Some(ring) = self.shared.ring.get() else { return Some(false) };
        if matches!(permission, CachePermission::Bounded { .. }) {
            return Some(false);
        }
        ring.fill_terms(&self.read.table, self.key, permission)
    }
}

fn brought(row: Option<Row>, path: Path) -> Brought {
    row.map_or(Brought::Nothing, |row| Brought::Row(row, path))
}
