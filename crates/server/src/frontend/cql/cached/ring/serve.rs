//! The owner's side of a read: what another instance asks is looked up here, or filled, as a
//! client's read is.
//!
//! 1. The permission is asked for after the question has come.
//! 2. A row is looked up in DRAM and on flash ([`Sought`]).
//! 3. A miss is filled from where the row was cached before ([`carry`](super::carry)), or from the
//!    database, with this instance's own credentials. Whether the client may read the table is for
//!    the asking instance to say. What the database would answer late is not tried
//!    ([`late_fills`](super::late_fills)).
//! 4. Whatever cannot be answered so is passed: the asker asks the database itself.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::Version;
use afterglow_cql::name::quoted;
use afterglow_cql::plan::{Plan, ReadPlan, RowKey, TableSchema};
use afterglow_cql::token::murmur3;
use afterglow_ring::Answer;
use afterglow_rowcache::clock::Moment;
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::gate::{Join, Ticket};
use afterglow_rowcache::install::{Installed, ReturnedFill};
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::serve::{CachePermission, NotCached};
use afterglow_rowcache::tables::{FILL_AT, Index};
use futures_channel::oneshot;
use parking_lot::Mutex;
use uuid::Uuid;

use super::carry::carried;
use super::core::Ring;
use super::late_fills::LateFills;
use crate::frontend::cql::cached::FillWaiter;
use crate::frontend::cql::cached::fill::{Ask, FillShape};
use crate::frontend::cql::cached::level::Need;
use crate::frontend::cql::cached::sought::{Found, Sought};
use crate::frontend::cql::cached::state::CachedState;
use crate::frontend::cql::cluster::login::{Login, User};
use crate::frontend::cql::cluster::pool::Who;
use crate::frontend::cql::{Cluster, CqlReactorState, CqlShared};
use crate::metrics::{CarriedFrom, FillOutcome, FrontEndMetrics, MissReason};

/// Nodes of the database that a fill tries.
const MOST_TRIED: usize = 2;
/// For so long our own login is not read again, unless the database refuses it.
const LOGIN_KEPT: Duration = Duration::from_secs(10);

/// Answers questions of other instances, on the reactor that it is used on.
pub struct Owner {
    /// What all reactors share.
    pub front_end: Arc<CqlShared>,
    /// The cached path.
    pub shared: Arc<CachedState>,
    /// The ring.
    pub ring: Arc<Ring>,
    /// With which fills are asked for.
    pub login: Arc<OwnLogin>,
    /// Which fills are not tried.
    pub late_fills: Arc<LateFills>,
}

/// Our own login, as it was read a moment ago: a fill of another instance's read does not wait for
/// a file.
#[derive(Default)]
pub struct OwnLogin(Mutex<Option<(Instant, Option<Login>)>>);

impl OwnLogin {
    /// The login, none where there is no file of it. `None`: the file cannot be read.
    fn get(
        &self,
        read: impl FnOnce() -> Option<Option<Login>>,
        now: Instant,
    ) -> Option<Option<Login>> {
        let mut known = self.0.lock();
        if let Some((since, login)) = &*known
            && now.saturating_duration_since(*since) < LOGIN_KEPT
        {
            return Some(login.clone());
        }
        let login = read()?;
        *known = Some((now, login.clone()));
        Some(login)
    }

    /// The database has refused it.
    fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// A question that has been understood.
struct Question {
    table: Arc<TableSchema>,
    plan: Arc<Plan>,
    key: RowKey,
    token: i64,
    permission: CachePermission,
}

impl Question {
    fn read(&self) -> &ReadPlan {
        match &*self.plan {
            Plan::CachedRead(read) => read,
            _ => unreachable!("a question is made of a plan to read"),
        }
    }
}

impl Owner {
    /// The answer to one question.
    pub async fn answer(&self, key: &afterglow_ring::RowKey) -> Answer {
        let question = match self.understand(key) {
            Ok(question) => question,
            Err(answer) => return answer,
        };
        let row = match self.look_up(&question).await {
            Ok(row) => Some(row),
            Err(reason) => self.missed(&question, reason).await,
        };
        row.map_or(Answer::Pass, |row| Answer::Row(Some(row.bytes().to_vec())))
    }

    /// What this instance has cached of a row, whoever owns it now: under which epoch, and the row.
    pub async fn pulled(&self, key: &afterglow_ring::RowKey) -> Option<(u64, Option<Vec<u8>>)> {
        let map = self.ring.map()?;
        let shard = map.shard_of(key.token);
        // Of the present epoch too: the new owner may know of the move before us.
        let before = map.shards[shard].epoch + 1;
        let newest = self.shared.newest.of(&self.front_end.schema);
        let reactor_state = CqlReactorState::of(&self.front_end);
        given_away(&self.shared, &newest, &key.bytes, (shard, before), &reactor_state.metrics).await
    }

    fn understand(&self, asked: &afterglow_ring::RowKey) -> Result<Question, Answer> {
        let newest = self.shared.newest.of(&self.front_end.schema);
        let table = table_of(&newest, &asked.bytes).ok_or(Answer::Pass)?;
        let columns = (table.partition_key.len(), table.clustering.len());
        let key =
            RowKey::from_engine_key(&asked.bytes, columns.0, columns.1).ok_or(Answer::Pass)?;
        let plan = CqlReactorState::of(&self.front_end).plan(&select(&table), None);
        if !matches!(&*plan, Plan::CachedRead(read) if read.table.id == table.id) {
            return Err(Answer::Pass);
        }
        let token = murmur3(key.partition_key());
        match self.shared.cache.row_permission(&table, &key) {
            Ok(permission @ CachePermission::Exclusive { .. }) => {
                Ok(Question { table, plan, key, token, permission })
            }
            Err(NotCached::NotOwner) => Err(Answer::NotOwner),
            _ => Err(Answer::Pass),
        }
    }

    async fn look_up(&self, question: &Question) -> Result<Row, MissReason> {
        let reactor_state = CqlReactorState::of(&self.front_end);
        let metrics = &reactor_state.metrics;
        let Question { key, permission, .. } = question;
        let read = question.read();
        let (shared, permission, need) = (&self.shared, *permission, Need::Nothing);
        let sought = Sought { shared, read, key, permission, need };
        let (row, tier) = match sought.look_up() {
            Found::Row(row, tier) => (row, tier),
            Found::Flash(flash) => sought.read(flash, metrics).await?,
            Found::Missing(reason) => return Err(reason),
        };
        metrics.hits.inc(tier);
        Ok(row)
    }

    /// `reason`: why the lookup found nothing to serve. Each question counts as one miss, or as a
    /// hit if the row was carried over.
    async fn missed(&self, question: &Question, reason: MissReason) -> Option<Row> {
        let mut hears = None;
        let waiter = || {
            let (sender, receiver) = oneshot::channel();
            hears = Some(receiver);
            sender
        };
        let Question { table, key, permission, .. } = question;
        let reactor_state = CqlReactorState::of(&self.front_end);
        let metrics = &reactor_state.metrics;
        let join = self.shared.cache.join(table, key, *permission, waiter);
        if let Join::Lead(ticket) = join {
            let (row, from) = self.lead(question, ticket).await.unzip();
            match from.flatten() {
                Some(from) => metrics.hits.inc(from.tier()),
                None => metrics.misses.inc(reason),
            }
            return row;
        }
        metrics.misses.inc(reason);
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
    ) -> Option<(Row, Option<CarriedFrom>)> {
        let weak = self.ring.may_fill(question.token)?;
        // The terms are of the epoch that the permission is of: epochs only grow, and it is the
        // same before and after.
        let cache = &self.shared.cache;
        if cache.row_permission(&question.table, &question.key) != Ok(question.permission) {
            return None;
        }
        let asked_at = self.shared.cache.clock().moment();
        let reactor_state = CqlReactorState::of(&self.front_end);
        let (fingerprint, metrics) = (question.read().fingerprint, &reactor_state.metrics);
        let found = carried(&self.shared, &question.key, fingerprint, metrics).await;
        if let Some((filled, from)) = found {
            let (_, row) = self.install(question, filled, (asked_at, weak), ticket);
            return Some((row?, Some(from)));
        }
        let attempt = self.late_fills.try_one(question.table.id)?;
        let limit = Duration::from_micros(self.ring.config().get).min(self.shared.fills.timeout);
        let filled = compio::time::timeout(limit, self.fill(question, asked_at)).await;
        let fills = &metrics.fills;
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

    /// Reads the whole row from a replica near us.
    async fn fill(&self, question: &Question, asked_at: Moment) -> Option<Filled> {
        let reactor_state = CqlReactorState::of(&self.front_end);
        let Cluster::Known { version, guarded: false, .. } = self.front_end.cluster() else {
            return None;
        };
        let user = self.log_in(&reactor_state, version).await?;
        let who = Who { user, version, keyspace: None };
        let of = Some((question.table.keyspace.as_str(), question.token));
        for node in reactor_state.candidates(of).nodes.into_iter().take(MOST_TRIED) {
            let Ok(backend) = reactor_state.pool.acquire(node, &who).await else { continue };
            if !reactor_state.is_near(&backend) {
                continue;
            }
            let (plan, key, shape) = (question.read(), &question.key, FillShape::Row);
            let ask = Ask { plan, key, shape, consistency: FILL_AT };
            let generation = reactor_state.schema_generation();
            let filled = self.shared.statements.fill(&backend, ask, generation, asked_at.unix);
            if let Ok(filled) = filled.await {
                return Some(filled);
            }
        }
        None
    }
}

impl Owner {
    /// Our own user; none where the database asks for no login. `None`: it is refused, or the file
    /// of it cannot be read.
    async fn log_in(
        &self,
        reactor_state: &Rc<CqlReactorState>,
        version: Version,
    ) -> Option<Option<Arc<User>>> {
        let login = self.login.get(|| self.front_end.own_login().ok(), Instant::now())?;
        let Some(login) = login else { return Some(None) };
        let name = login.user.clone()?;
        let user = reactor_state.log_in(&name, login, version).await;
        if user.is_err() {
            self.login.forget();
        }
        user.ok().map(Some)
    }
}

/// The table of a row, if the newest snapshot has it.
fn table_of(newest: &Index, engine_key: &[u8]) -> Option<Arc<TableSchema>> {
    let id = Uuid::from_bytes(*engine_key.first_chunk::<16>()?);
    newest.table(id).cloned()
}

/// What is cached of a row under an epoch of its shard before that one, for the shard's new owner:
/// under which epoch, and the row.
async fn given_away(
    shared: &CachedState,
    newest: &Index,
    engine_key: &[u8],
    (shard, before): (usize, u64),
    metrics: &FrontEndMetrics,
) -> Option<(u64, Option<Vec<u8>>)> {
    // Of a table that is not known here, writes have dropped no rows.
    table_of(newest, engine_key)?;
    let hit = shared.look_up(engine_key, metrics).await.ok()?;
    let row = shared.cache.carried(&hit, shard, before)?;
    Some((row.epoch, Some(row.encode())))
}

/// A read of one whole row of a table by its key.
fn select(table: &TableSchema) -> String {
    let keys: Vec<String> =
        table.keys().map(|column| format!("{} = ?", quoted(&column.name))).collect();
    format!(
        "SELECT * FROM {}.{} WHERE {}",
        quoted(&table.keyspace),
        quoted(&table.name),
        keys.join(" AND ")
    )
}

#[cfg(test)]
mod tests {
    use afterglow_cql::schema::Schema;
    use afterglow_rowcache::shards::claim_of;
    use futures_util::FutureExt;

    use super::*;
    use crate::frontend::cql::cached::testing::{fill, keyed, open, read_of};

    /// Writes to a table that the newest snapshot lacks have dropped none of its rows.
    #[test]
    fn no_row_of_a_table_that_is_not_known_is_given_away() {
        const SHARD: usize = 5;
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let (shared, metrics) = (cached.router.shared(), FrontEndMetrics::default());
        shared.cache.suspend(false);
        shared.cache.set_claim(Some((9, 0)));
        let [t, again, u] = [keyed("t", 7), keyed("t", 8), keyed("u", 9)];
        let (plan, key) = read_of(&Schema::of_tables([t.clone()]), "t");
        fill(&shared.cache, &plan, &key, claim_of(9, SHARD, 3));
        for (tables, epoch) in
            [(vec![t.clone(), u.clone()], Some(3)), (vec![again, u], None), (vec![], None)]
        {
            let newest = Index::of(Arc::new(Schema::of_tables(tables)));
            let row = given_away(shared, &newest, key.engine_key(), (SHARD, 4), &metrics);
            let row = row.now_or_never().expect("it is in memory");
            assert_eq!(row.map(|(epoch, _)| epoch), epoch);
        }
    }

    #[test]
    fn a_login_is_read_again_after_a_while_or_when_it_was_refused() {
        let (own, start) = (OwnLogin::default(), Instant::now());
        let mut read = 0;
        let mut get = |own: &OwnLogin, after| {
            own.get(
                || {
                    read += 1;
                    Some(None)
                },
                start + after,
            );
            read
        };
        let short = LOGIN_KEPT / 2;
        assert_eq!([Duration::ZERO, short].map(|after| get(&own, after)), [1, 1]);
        assert_eq!(get(&own, LOGIN_KEPT), 2);
        own.forget();
        assert_eq!(get(&own, LOGIN_KEPT), 3);
        // What cannot be read is not kept.
        own.forget();
        assert!(own.get(|| None, start).is_none());
        assert_eq!(get(&own, LOGIN_KEPT), 4);
    }
}
