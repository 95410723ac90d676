//! The owner's side of a read: what another instance asks is looked up here, or filled, as a
//! client's read is.
//!
//! 1. The question is understood by the newest schema.
//! 2. The row is looked up, or filled ([`owned`](super::owned)). The database is read with this
//!    instance's own credentials. Whether the client may read the table is for the asking instance
//!    to say.
//! 3. Whatever cannot be answered so is passed: the asker asks the database itself.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::Version;
use afterglow_cql::name::quoted;
use afterglow_cql::plan::{Plan, RowKey, TableSchema};
use afterglow_cql::token::murmur3;
use afterglow_ring::Answer;
use afterglow_rowcache::clock::Moment;
use afterglow_rowcache::row::Filled;
use afterglow_rowcache::tables::{FILL_AT, Index};
use parking_lot::Mutex;
use uuid::Uuid;

use super::core::Ring;
use super::late_fills::LateFills;
use super::owned::{Owned, Question};
use crate::frontend::cql::cached::fill::{Ask, FillShape};
use crate::frontend::cql::cached::state::CachedState;
use crate::frontend::cql::cluster::login::{Login, User};
use crate::frontend::cql::cluster::pool::Who;
use crate::frontend::cql::{Cluster, CqlReactorState, CqlShared};
use crate::metrics::FrontEndMetrics;

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

impl Owner {
    /// The answer to one question.
    pub async fn answer(&self, key: &afterglow_ring::RowKey) -> Answer {
        let question = match self.understand(key) {
            Ok(question) => question,
            Err(answer) => return answer,
        };
        let reactor_state = CqlReactorState::of(&self.front_end);
        let owned = Owned {
            shared: &self.shared,
            ring: &self.ring,
            late_fills: &self.late_fills,
            metrics: &reactor_state.metrics,
        };
        let fill = async |asked_at| self.fill(&question, asked_at).await;
        let row = owned.row(&question, fill).await;
        row.map_or(Answer::Pass, |row| Answer::Row(Some(row.bytes().to_vec())))
    }

    /// What this instance has cached of a row: see [`pulled`].
    pub async fn pulled(&self, key: &afterglow_ring::RowKey) -> Option<(u64, Option<Vec<u8>>)> {
        let newest = self.shared.newest.of(&self.front_end.schema);
        let reactor_state = CqlReactorState::of(&self.front_end);
        pulled(&self.shared, &self.ring, &newest, key, &reactor_state.metrics).await
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
        Question::permitted(&self.shared.cache, table, plan, key)
    }

    /// Reads the whole row from a replica near us.
    async fn fill(&self, question: &Question, asked_at: Moment) -> Option<Filled> {
        let reactor_state = CqlReactorState::of(&self.front_end);
        let Cluster::Known { version, guarded: false, .. } = self.front_end.cluster() else {
            return None;
        };
        let user = self.log_in(&reactor_state, version).await?;
        let who = Who { user, version, keyspace: None };
        let of = Some((question.table.keyspace.as_str(), murmur3(question.key.partition_key())));
        for node in reactor_state.candidates(of).nodes.into_iter().take(MOST_TRIED) {
            let Ok(backend) = reactor_state.pool.acquire(node, &who).await else { continue };
            if !reactor_state.is_near(&backend) {
                continue;
            }
            let (plan, key, shape) = (question.read(), &question.key, FillShape::Row);
            let ask = Ask { plan, key, shape, consistency: FILL_AT };
            let generation = reactor_state.schema_generation();
            let filled = self.shared.fill(&backend, ask, generation, asked_at.unix);
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

/// What is cached of a row, whoever owns it now: under which epoch, and the row.
pub async fn pulled(
    shared: &CachedState,
    ring: &Ring,
    newest: &Index,
    key: &afterglow_ring::RowKey,
    metrics: &FrontEndMetrics,
) -> Option<(u64, Option<Vec<u8>>)> {
    let map = ring.map()?;
    let shard = map.shard_of(key.token);
    // Of the present epoch too: the new owner may know of the move before us.
    let before = map.shards[shard].epoch + 1;
    given_away(shared, newest, &key.bytes, (shard, before), metrics).await
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
