//! What a member asks of the database, on a connection of its own.
//!
//! A node that does not answer in time is left: its connection ends, and the next one is made to
//! another node. A read of the map that hangs costs [`Config::transaction`] so, and the next read
//! comes within a second. Both are short beside the time for which a read of the map counts.
//!
//! [`Config::transaction`]: afterglow_ring::Config

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::message::Consistency;
use afterglow_ring::{Map, TransactionResult};
use afterglow_rowcache::lease::CREATE_TABLE;
use uuid::Uuid;

use super::lasting::Lasting;
use super::lease_row::{self, LeaseRowState};
use super::map_row::{self, MapRowError, RingName};
use super::source::now;
use crate::frontend::cql::cached::own_keyspace::{self, Lack};
use crate::frontend::cql::cached::own_query::{NoResult, lacks_nodes, query, remedy, stays};
use crate::frontend::cql::cached::paxos_settings::PaxosSettings;
use crate::frontend::cql::cached::state::CachedState;
use crate::frontend::cql::{Backend, Cluster, CqlShared, LeftNodes, NodeId};
use crate::metrics::BackendMetrics;

/// Pause between attempts to connect.
const RETRY: Duration = Duration::from_millis(500);
/// How long taking the lease's row may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Asks a node in which data centre it is.
const WHERE_IT_IS: &str = "SELECT data_center FROM system.local WHERE key='local'";

/// The connection for transactions.
pub struct Database {
    front_end: Arc<CqlShared>,
    shared: Arc<CachedState>,
    metrics: Arc<BackendMetrics>,
    connection: RefCell<Option<Connection>>,
    /// Nodes that have not answered.
    left: LeftNodes,
    connecting: futures_util::lock::Mutex<()>,
    /// No attempt to connect before this.
    connect_at: Cell<u64>,
    /// Keyspace and tables are there.
    prepared: Cell<bool>,
    paxos: PaxosSettings,
    ring_name: String,
    /// How many shards the ring has.
    shards: usize,
    /// How long a transaction or a read of the map may take: the member waits no longer.
    timeout: Duration,
    /// The reason why the map cannot be understood was told.
    told: Cell<bool>,
    /// The database refuses to read the map.
    reads_refused: Lasting,
    /// How the database has refused to read the map, while nothing has been asked since.
    refused_read: RefCell<Option<(ErrorCode, String)>>,
    /// The database refuses to change the map.
    changes_refused: Lasting,
    /// The refused change of the map, which was told.
    refusal: RefCell<Option<RefusedChange>>,
    /// The reason why the tables cannot be made was told.
    told_tables: Cell<bool>,
    /// What the keyspace lacks of replicas, which was told.
    lack: RefCell<Option<Lack>>,
    /// The last node that was tried is in another data centre, which was told.
    told_elsewhere: Cell<bool>,
    /// What transactions promise less than the ring needs, which was told.
    shortfall: RefCell<Option<String>>,
}

/// A change of the map that the database has refused, for a reason that stays or has lasted.
struct RefusedChange {
    /// The version that it was to make.
    version: u64,
    why: String,
    /// It does not pass by itself.
    stays: bool,
}

/// What is known of the lease's row.
pub struct LeaseRowAnswer {
    /// Who has it, if that is known.
    pub state: Option<LeaseRowState>,
    /// Why the database refuses to say, or to change it, if it does.
    pub refused: Option<NoResult>,
}

#[derive(Clone)]
struct Connection {
    backend: Rc<Backend>,
    node: NodeId,
    /// The ring whose node it is.
    name: RingName,
}

impl Database {
    /// Not connected yet. `protocol`: the ring's times.
    pub fn new(
        front_end: Arc<CqlShared>,
        shared: Arc<CachedState>,
        ring_name: String,
        protocol: &afterglow_ring::Config,
    ) -> Database {
        Database {
            metrics: front_end.config.metrics.backend(),
            front_end,
            shared,
            connection: RefCell::default(),
            left: LeftNodes::default(),
            connecting: futures_util::lock::Mutex::default(),
            connect_at: Cell::new(0),
            prepared: Cell::new(false),
            paxos: PaxosSettings::default(),
            ring_name,
            shards: protocol.shards,
            timeout: Duration::from_micros(protocol.transaction),
            told: Cell::new(false),
            reads_refused: Lasting::default(),
            changes_refused: Lasting::default(),
            refused_read: RefCell::default(),
            refusal: RefCell::default(),
            told_tables: Cell::new(false),
            lack: RefCell::default(),
            told_elsewhere: Cell::new(false),
            shortfall: RefCell::default(),
        }
    }

    /// The map, if there is an answer in time.
    pub async fn read_map(&self) -> Result<Map, MapRowError> {
        let shards = self.shards;
        let read = async |on: &Connection| map_row::read(&on.backend, &on.name, shards).await;
        let Some((on, read)) = self.ask(self.timeout, read).await else {
            let refused = self.refused_read.borrow().clone();
            let refused = refused.map(|(code, why)| MapRowError::Refused(code, why));
            return Err(refused.unwrap_or(MapRowError::NoAnswer));
        };
        self.refused_read.replace(match &read {
            Err(MapRowError::Refused(code, why)) => Some((*code, why.clone())),
            _ => None,
        });
        match &read {
            Ok(_) => self.has_read(),
            Err(error @ MapRowError::Refused(..)) => {
                self.leave(&on);
                if self.reads_refused.refused(false, now()) {
                    tracing::error!(
                        "the database has not shown the ring's map for some seconds. 60 s after it last did this instance has no lease: reads pass through and writes get OVERLOADED. {}",
                        error.with_remedy()
                    );
                }
            }
            Err(MapRowError::NoAnswer) => self.leave(&on),
            Err(error) => {
                if !self.told.replace(true) {
                    tracing::error!(
                        "this instance cannot be a member of its ring: within 60 s it has no lease, reads pass through and writes get OVERLOADED. {}",
                        error.with_remedy()
                    );
                }
            }
        }
        read
    }

    /// The map was read.
    fn has_read(&self) {
        self.left.forget();
        let is_news = self.told.take() | self.reads_refused.over();
        if is_news {
            tracing::info!("the ring's map can be read again");
        }
        // Reads may go on while changes fail. It is tried again within some seconds.
        let passes = self.refusal.borrow().as_ref().is_some_and(|refused| !refused.stays);
        if passes && self.changes_refused.is_past(now()) {
            self.forget_refusal();
        }
    }

    /// Puts a map in the place of the version before it.
    pub async fn transact(&self, map: &Arc<Map>) -> TransactionResult {
        let transact = async |on: &Connection| map_row::transact(&on.backend, &on.name, map).await;
        let answer = self.ask(self.timeout, transact).await;
        match answer.map_or(Err(MapRowError::NoAnswer), |(_, answer)| answer) {
            Ok(result) => {
                self.forget_refusal();
                result
            }
            Err(MapRowError::Refused(code, why)) if stays(code) || lacks_nodes(code) => {
                self.is_refused(map.version, code, why);
                TransactionResult::Unknown
            }
            Err(_) => TransactionResult::Unknown,
        }
    }

    /// The database refuses to make that version.
    fn is_refused(&self, version: u64, code: ErrorCode, why: String) {
        let stays = stays(code);
        if self.changes_refused.refused(stays, now()) {
            let remedy = remedy(Some(code));
            tracing::error!(
                "the database refuses to change the ring's map, so nobody joins or leaves, and rows of who dies go to nobody: {why}; it is asked again within some seconds. {remedy}"
            );
        }
        if stays || self.changes_refused.is_told() {
            self.refusal.replace(Some(RefusedChange { version, why, stays }));
        }
    }

    /// Why the database has refused to change the map when it was last asked to, if it has.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.borrow().as_ref().map(|refused| refused.why.clone())
    }

    /// The map has this version. A refusal to make it is over: the database has made it for another
    /// member. This one may have nothing to change, and would not hear of it.
    pub fn map_is(&self, version: u64) {
        let is_over = |refused: &RefusedChange| refused.version <= version;
        if self.refusal.borrow().as_ref().is_some_and(is_over) {
            self.forget_refusal();
        }
    }

    fn forget_refusal(&self) {
        self.changes_refused.over();
        if self.refusal.take().is_some() {
            tracing::info!("the database changes the ring's map again");
        }
    }

    /// Takes the lease's row of instances without a ring.
    pub async fn take_lease_row(&self, hold: Duration) -> LeaseRowAnswer {
        let take = async |on: &Connection| lease_row::take(&on.backend, &on.name, hold).await;
        let refused = match self.ask(TIMEOUT, take).await {
            Some((_, Ok(state))) => return LeaseRowAnswer { state: Some(state), refused: None },
            Some((_, Err(why))) => {
                let says = |code: &ErrorCode| stays(*code) || lacks_nodes(*code);
                Some(why).filter(|why| why.code.as_ref().is_some_and(says))
            }
            None => None,
        };
        let known =
            async |on: &Connection| lease_row::known_here(&on.backend, &on.name, hold).await;
        let state = self.ask(TIMEOUT, known).await.and_then(|(_, state)| state);
        LeaseRowAnswer { state, refused }
    }

    /// The ring that has the lease's row, of which that is the owner.
    pub async fn ring_of(&self, owner: Uuid) -> Option<RingName> {
        let find = async |on: &Connection| lease_row::ring_of(&on.backend, owner).await;
        self.ask(TIMEOUT, find).await?.1
    }

    /// Learns how the database runs lightweight transactions, if it is time to ask.
    pub async fn look_at_settings(&self) {
        let Some(on) = self.connect().await else { return };
        // A node that is slow with these goes on to be asked for the map.
        let look = self.paxos.look(&on.backend, &self.shared);
        let _ = compio::time::timeout(self.timeout, look).await;
        let shortfall = self.shared.paxos.shortfall();
        if *self.shortfall.borrow() != shortfall {
            match &shortfall {
                Some(why) => tracing::warn!("{why}"),
                None => tracing::info!("the database's serial reads are linearizable now"),
            }
            self.shortfall.replace(shortfall);
        }
    }

    /// What transactions promise less than the ring needs, and what mends it.
    pub fn shortfall(&self) -> Option<String> {
        self.shortfall.borrow().clone()
    }

    /// Has something asked on the connection, which is left if there is no answer in time. What
    /// waited as long for the connection is not asked any more.
    async fn ask<T>(
        &self,
        time: Duration,
        what: impl AsyncFnOnce(&Connection) -> T,
    ) -> Option<(Connection, T)> {
        let began = Instant::now();
        let on = self.connect().await?;
        if began.elapsed() >= time {
            return None;
        }
        match compio::time::timeout(time, what(&on)).await {
            Ok(answer) => Some((on, answer)),
            Err(_) => {
                self.refused_read.take();
                self.leave(&on);
                None
            }
        }
    }

    /// The next connection is to another node, as long as one is there.
    fn leave(&self, on: &Connection) {
        let is_same = |current: &mut Connection| Rc::ptr_eq(&current.backend, &on.backend);
        if self.connection.borrow_mut().take_if(is_same).is_none() {
            return;
        }
        self.left.leave(on.node);
        match on.backend.is_silent() {
            true => on.backend.close(),
            // It answers others.
            false => on.backend.retire(),
        }
    }

    /// The connection, with the tables behind it. Nobody gives up waiting for it: an attempt that
    /// takes long serves whoever comes next.
    async fn connect(&self) -> Option<Connection> {
        let _alone = self.connecting.lock().await;
        let Cluster::Known { version, guarded: false, .. } = self.front_end.cluster() else {
            return None;
        };
        let data_center = self.shared.data_center.read().clone()?;
        let name = RingName { data_center, name: self.ring_name.clone() };
        let known = self.connection.borrow().clone();
        let on = match known.filter(|on| !on.backend.is_closed() && on.name == name) {
            Some(on) => on,
            None => self.connect_anew(version, name).await?,
        };
        if !self.has_replicas(&on.name.data_center) {
            return None;
        }
        if !self.prepared.get()
            && let Err(why) = self.prepare(&on).await
        {
            if !self.told_tables.replace(true) {
                tracing::error!(
                    "the ring's tables cannot be made, so no ring forms: {why}; let this instance make the keyspace `afterglow` and its tables, or make them for it, and grant it SELECT and MODIFY on them"
                );
            }
            if on.backend.is_silent() {
                self.leave(&on);
            }
            return None;
        }
        Some(on)
    }

    async fn connect_anew(
        &self,
        version: afterglow_cql::frame::Version,
        name: RingName,
    ) -> Option<Connection> {
        if now() < self.connect_at.get() {
            return None;
        }
        // A transaction at LOCAL_SERIAL is one of the coordinator's data centre.
        let center = Some(name.data_center.as_str());
        let made = self.front_end.connect_own(version, &self.left, center, &self.metrics).await;
        // From its end on: whoever has waited for it does not begin it again.
        self.connect_at.set(now() + RETRY.as_micros() as u64);
        let Ok((backend, node)) = made else {
            self.refused_read.take();
            return None;
        };
        if !self.is_in(&backend, &name.data_center).await {
            self.left.leave(node);
            backend.close();
            return None;
        }
        let on = Connection { backend, node, name };
        if let Some(before) = self.connection.replace(Some(on.clone())) {
            before.backend.retire();
        }
        Some(on)
    }

    /// Whether a node is in that data centre. Its address may be a name that several nodes have, or
    /// another node's by now. In another data centre transactions at LOCAL_SERIAL are others: two
    /// members that change the map in two data centres hear nothing of each other.
    async fn is_in(&self, backend: &Rc<Backend>, data_center: &str) -> bool {
        let asked = query(backend, WHERE_IT_IS, Consistency::One);
        let Ok(Ok(local)) = compio::time::timeout(self.timeout, asked).await else {
            return false;
        };
        let there = local.rows().next().and_then(|row| row.text("data_center"));
        let is_there = there.as_deref() == Some(data_center);
        if !self.told_elsewhere.replace(!is_there) && !is_there {
            tracing::warn!(
                node = %backend.target(),
                "a node is in data centre {}, and this instance is in the ring of {data_center}: give it nodes of {data_center} with --backend",
                there.unwrap_or_default()
            );
        }
        is_there
    }

    /// Whether the keyspace, as far as it is known, has replicas in our data centre. Transactions
    /// at LOCAL_SERIAL need them. Fewer than there are nodes for are told: what holds the map is a
    /// point of failure for the whole ring.
    fn has_replicas(&self, data_center: &str) -> bool {
        let lack = own_keyspace::lack(&self.front_end, data_center);
        let has = lack.as_ref().is_none_or(|lack| !lack.is_total());
        if self.lack.borrow().as_ref() != lack.as_ref() {
            match &lack {
                Some(lack) if lack.is_total() => tracing::error!("{}", lack_text(lack)),
                Some(lack) => tracing::warn!("{}", lack_text(lack)),
                None => {}
            }
            self.lack.replace(lack);
        }
        has
    }

    /// What the keyspace lacks of replicas, if it does.
    pub fn lack(&self) -> Option<String> {
        self.lack.borrow().as_ref().map(lack_text)
    }

    /// Makes the tables where the schema does not have them.
    async fn prepare(&self, on: &Connection) -> Result<(), NoResult> {
        let tables = [("lease", CREATE_TABLE), ("ring", map_row::CREATE_TABLE)];
        own_keyspace::make(&self.front_end, &on.backend, &tables).await?;
        self.prepared.set(true);
        Ok(())
    }
}

fn lack_text(lack: &Lack) -> String {
    lack.text(match lack.is_total() {
        true => "no ring forms there",
        false => "the ring cannot change its map, and after a death nobody takes over",
    })
}
