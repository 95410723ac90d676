//! The state of a front end on each reactor.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::frame::{Header, Opcode, Version};
use afterglow_cql::plan::{self, Plan};
use afterglow_cql::response::Event;
use afterglow_cql::schema::Schema;
use afterglow_cql::statement;

use crate::frontend::client_handshakes::{ClientHandshakes, TlsOptions};
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::error::ConnectError;
use crate::frontend::cql::cluster::hedge::Hedges;
use crate::frontend::cql::cluster::idle_users::IdleUsers;
use crate::frontend::cql::cluster::login::{Login, User};
use crate::frontend::cql::cluster::nodes::NodeId;
use crate::frontend::cql::cluster::permissions::PermissionCache;
use crate::frontend::cql::cluster::pool::{Pool, Who};
use crate::frontend::cql::cluster::routes::Routes;
use crate::frontend::cql::keyed_turns::KeyedTurns;
use crate::frontend::cql::shared::CqlShared;
use crate::frontend::cql::statements::prepared::Prepared;
use crate::metrics::{BackendMetrics, FrontEndMetrics};

/// Bytes that plans of text are reckoned to take on each reactor, in each of two halves.
const PLANNED: usize = 16 * 1024 * 1024;
/// What a plan takes beyond its text, roughly.
const OVERHEAD: usize = 1024;
/// A text longer than this is planned anew each time.
const LONGEST_PLANNED: usize = 64 * 1024;

/// What the settings of its TLS are called.
const TLS_OPTIONS: TlsOptions =
    TlsOptions { certificates: "--cql-tls-cert", client_ca: Some("--cql-tls-client-ca") };

/// A client, as its reactor sees it.
pub trait ConnectedClient {
    /// The version that it speaks, if it wants to hear of events of that kind.
    fn hears_in(&self, kind: &str) -> Option<Version>;

    /// Sends it what it has not asked for.
    fn tell(&self, header: &Header, body: &[u8]);

    /// How old its connection is, if the driver behind it has to make a new one to learn the
    /// tokens of the ring. Said once.
    fn knows_other_ring(&self) -> Option<Duration>;

    /// Takes no more requests from it.
    fn stop_reading(&self);

    /// Has the driver behind it make a new connection: ends this one when it has its answers.
    fn connect_anew(self: Rc<Self>);

    /// Ends its connection.
    fn abort(&self);

    /// The number of its user, if it has one.
    fn user(&self) -> Option<u32>;

    /// Ends its connection if it has taken nothing for long of the much that waits for it.
    fn abort_if_stalled(&self);
}

/// One reactor's part of a front end.
pub struct CqlReactorState {
    /// What all reactors share.
    pub front_end: Arc<CqlShared>,
    /// Connections to the database.
    pub pool: Rc<Pool>,
    /// What is remembered to choose among its nodes.
    pub routes: Routes,
    /// When fills ask a second node, by how long they take.
    pub hedges: RefCell<Hedges>,
    /// Which users may read which tables.
    pub permissions: PermissionCache,
    /// Users with connections and without clients.
    idle_users: RefCell<IdleUsers>,
    /// Users whose credentials are being checked: one check at a time for each.
    logins: KeyedTurns<Box<str>>,
    /// TLS handshakes with clients.
    pub(super) handshakes: ClientHandshakes,
    /// This reactor's counters.
    pub metrics: Arc<FrontEndMetrics>,
    /// This reactor's counters of the database.
    pub backend_metrics: Arc<BackendMetrics>,
    clients: RefCell<HashMap<u64, Rc<dyn ConnectedClient>>>,
    next_client: Cell<u64>,
    schema: RefCell<Arc<Schema>>,
    plans: RefCell<Plans>,
}

/// Plans of statements that come as text. Two halves: what is used moves to the young one, and when
/// that is full the old one goes.
#[derive(Default)]
struct Plans {
    generation: u64,
    young: ByText,
    old: ByText,
    young_bytes: usize,
}

/// By keyspace (empty: none, which no name is) and text, so that looking up copies neither.
type ByText = HashMap<Box<str>, HashMap<Box<str>, Arc<Plan>>>;

thread_local! {
    /// The parts of all front ends on this reactor (there may be several front ends in tests).
    static PARTS: RefCell<HashMap<u64, Rc<CqlReactorState>>> = RefCell::default();
}

impl CqlReactorState {
    /// The part of `front_end` on the reactor that this is called on; made when it is first asked
    /// for.
    pub fn of(front_end: &Arc<CqlShared>) -> Rc<Self> {
        PARTS.with_borrow_mut(|parts| {
            let part = parts.entry(front_end.id).or_insert_with(|| {
                let backend_metrics = front_end.config.metrics.backend();
                let part = Rc::new(Self {
                    pool: Rc::new(Pool::new(
                        front_end.addresses.clone(),
                        front_end.config.backend_tls.clone(),
                        backend_metrics.clone(),
                        front_end.reactors.count(),
                    )),
                    routes: Routes::new(front_end.topology.current()),
                    hedges: RefCell::default(),
                    permissions: PermissionCache::default(),
                    idle_users: RefCell::default(),
                    logins: KeyedTurns::default(),
                    handshakes: ClientHandshakes::new(TLS_OPTIONS),
                    metrics: front_end.config.metrics.front_end("cql"),
                    backend_metrics,
                    clients: RefCell::default(),
                    next_client: Cell::default(),
                    schema: RefCell::new(front_end.schema.current()),
                    plans: RefCell::default(),
                    front_end: front_end.clone(),
                });
                let user_idle = front_end.config.user_idle;
                compio::runtime::spawn(end_idle_users(Rc::downgrade(&part), user_idle)).detach();
                part
            });
            part.clone()
        })
    }

    /// Ends the connections of users whom no client here has had for a while.
    fn end_idle_users(&self, now: Instant) {
        let (users, after) = (&self.front_end.users, self.front_end.config.user_idle);
        let mut needed = users.recent(now, after);
        needed.extend(self.clients.borrow().values().filter_map(|client| client.user()));
        let connected = self.pool.users();
        let over = self.idle_users.borrow_mut().over(&connected, &needed, now, after);
        self.pool.end_users(&over);
        users.forget_idle(now, after);
    }

    /// Has the database check the credentials of a user, unless it did so a moment ago. Those that
    /// name nobody are for [`CqlReactorState::log_in_alone`].
    ///
    /// # Errors
    /// [`ConnectError::Refused`] has the database's words.
    pub async fn log_in(
        self: &Rc<Self>,
        name: &str,
        login: Login,
        version: Version,
    ) -> Result<Arc<User>, ConnectError> {
        if let Some(user) = self.front_end.users.accepted(&login) {
            return Ok(user); // whoever else is guessing
        }
        let turn = self.logins.of(name.into());
        let _alone = turn.lock().await;
        if let Some(user) = self.front_end.users.accepted(&login) {
            return Ok(user);
        }
        let asked = Instant::now();
        let known = self.front_end.users.known(&login);
        let mut last = no_node();
        for node in self.nodes_for_logins() {
            match self.pool.try_login(node, login.clone(), known, version).await {
                Ok(backend) => {
                    let user = self.front_end.users.accept(name, &login, asked);
                    let who = Who { user: Some(user.clone()), version, keyspace: None };
                    self.pool.adopt(node, &who, backend);
                    return Ok(user);
                }
                Err(error) if error.leaves_others() => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Has the database check what a client says of itself: a connection of its own, for where
    /// nobody can say with whom it might share one.
    ///
    /// # Errors
    /// [`ConnectError::Refused`] has the database's words.
    pub async fn log_in_alone(
        &self,
        login: Login,
        version: Version,
    ) -> Result<Rc<Backend>, ConnectError> {
        let mut last = no_node();
        for node in self.nodes_for_logins() {
            match self.pool.log_in_alone(node, login.clone(), version).await {
                Err(error) if error.leaves_others() => last = error,
                decided => return decided,
            }
        }
        Err(last)
    }

    /// Which nodes are asked about credentials, one after the other.
    fn nodes_for_logins(&self) -> Vec<NodeId> {
        let mut nodes = self.candidates(None).nodes;
        nodes.sort_by_key(|node| self.pool.is_avoided(*node));
        nodes
    }

    /// Forgets this reactor's part: the front end is closed.
    pub fn forget(front_end: &CqlShared) {
        PARTS.with_borrow_mut(|parts| parts.remove(&front_end.id));
    }

    /// The newest schema.
    pub fn schema(&self) -> Arc<Schema> {
        self.newest().clone()
    }

    /// The generation of [`CqlReactorState::schema`].
    pub fn schema_generation(&self) -> u64 {
        self.newest().generation
    }

    /// The plan of a prepared statement in the newest schema.
    pub fn plan_of(&self, prepared: &Prepared) -> Arc<Plan> {
        self.front_end.prepared.plan(prepared, &self.newest())
    }

    fn newest(&self) -> RefMut<'_, Arc<Schema>> {
        let mut schema = self.schema.borrow_mut();
        if schema.generation != self.front_end.schema.generation() {
            *schema = self.front_end.schema.current();
        }
        schema
    }

    /// The plan of a text.
    pub fn plan(&self, text: &str, keyspace: Option<&str>) -> Arc<Plan> {
        let schema = self.schema();
        let mut plans = self.plans.borrow_mut();
        if plans.generation != schema.generation {
            *plans = Plans { generation: schema.generation, ..Plans::default() };
        }
        let make = || Arc::new(plan::analyse(&statement::parse(text), &*schema, keyspace));
        if text.len() > LONGEST_PLANNED { make() } else { plans.get(text, keyspace, make) }
    }

    /// Numbers the next client.
    pub fn next_client_id(&self) -> u64 {
        self.next_client.replace(self.next_client.get() + 1)
    }

    /// A client is here now.
    pub fn add(&self, id: u64, client: Rc<dyn ConnectedClient>) {
        self.clients.borrow_mut().insert(id, client);
    }

    /// A client is gone.
    pub fn remove(&self, id: u64) {
        self.clients.borrow_mut().remove(&id);
    }

    /// All clients, as they are now.
    pub fn clients(&self) -> Vec<Rc<dyn ConnectedClient>> {
        self.clients.borrow().values().cloned().collect()
    }

    /// Sends an event to every client that wants to hear of its kind.
    pub fn announce(&self, event: &[u8]) {
        let Ok(parsed) = Event::parse(event) else { return };
        let kind = parsed.kind();
        let mut old = Vec::new();
        parsed.for_version(Version::V3).encode(&mut old);
        for client in self.clients.borrow().values() {
            if let Some(version) = client.hears_in(kind) {
                let event = if version == Version::V3 { &old[..] } else { event };
                client.tell(&Header::new(version, -1, Opcode::Event), event);
            }
        }
    }
}

/// What a login fails with that no node was asked about.
fn no_node() -> ConnectError {
    ConnectError::Unreachable { address: "-".into(), reason: "no node is known".into() }
}

/// Looks after the connections of a reactor's users as long as the reactor has a part.
async fn end_idle_users(part: Weak<CqlReactorState>, after: Duration) {
    loop {
        compio::time::sleep(after / 4).await;
        let Some(part) = part.upgrade() else { return };
        part.end_idle_users(Instant::now());
    }
}

impl CqlShared {
    /// Tells clients of the schema changes that they have not heard of.
    pub(super) fn announce_untold(self: &Arc<Self>) {
        let untold = std::mem::take(&mut *self.untold.lock());
        untold.iter().for_each(|event| self.announce(event));
    }

    /// Sends an event to the clients on all reactors that want to hear of its kind.
    pub(super) fn announce(self: &Arc<Self>, event: &[u8]) {
        let event: Arc<[u8]> = event.into();
        for reactor in 0..self.reactors.count() {
            let (front_end, event) = (self.clone(), event.clone());
            self.reactors.spawn_on(reactor, move || async move {
                CqlReactorState::of(&front_end).announce(&event)
            });
        }
    }
}

impl Plans {
    fn get(
        &mut self,
        text: &str,
        keyspace: Option<&str>,
        make: impl FnOnce() -> Arc<Plan>,
    ) -> Arc<Plan> {
        let keyspace = keyspace.unwrap_or_default();
        if let Some(plan) = self.young.get(keyspace).and_then(|texts| texts.get(text)) {
            return plan.clone();
        }
        let plan =
            self.old.get_mut(keyspace).and_then(|texts| texts.remove(text)).unwrap_or_else(make);
        // The text is there as the key, and in the plan's literals and names.
        self.young_bytes += OVERHEAD + keyspace.len() + 2 * text.len() + plan.weight();
        self.young.entry(keyspace.into()).or_default().insert(text.into(), plan.clone());
        if self.young_bytes > PLANNED {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_made_once_for_each_text_and_keyspace_and_dropped_when_not_used() {
        let mut plans = Plans::default();
        let plan = || Arc::new(Plan::Use("ks".into()));
        let never = || panic!("planned already");
        let first = plans.get("SELECT 1", None, plan);
        assert!(Arc::ptr_eq(&first, &plans.get("SELECT 1", None, never)));
        assert!(!Arc::ptr_eq(&first, &plans.get("SELECT 1", Some("ks"), plan)));
        let filler = |letter: &str| letter.repeat(PLANNED + 1);
        plans.get(&filler("x"), None, plan);
        // In the old half now, and young again by being used.
        assert!(Arc::ptr_eq(&first, &plans.get("SELECT 1", None, never)));
        plans.get(&filler("y"), None, plan);
        plans.get(&filler("z"), None, plan);
        let mut again = false;
        plans.get("SELECT 1", None, || {
            again = true;
            plan()
        });
        assert!(again, "two rounds without use");
    }

    #[test]
    fn plans_that_hold_more_than_their_texts_do_not_fill_the_memory() {
        const EIGHTH: usize = PLANNED / 8;
        let mut plans = Plans::default();
        for n in 0..64 {
            plans.get(&n.to_string(), None, || Arc::new(Plan::Use("x".repeat(EIGHTH))));
            let kept = [&plans.young, &plans.old].map(|half| half.values().map(HashMap::len).sum());
            assert!(kept.iter().all(|count: &usize| *count <= 8), "{kept:?}");
        }
    }

    #[test]
    fn short_texts_in_many_keyspaces_do_not_fill_the_memory() {
        let mut plans = Plans::default();
        let plan = Arc::new(Plan::Use("ks".into()));
        for n in 0..3 * PLANNED / OVERHEAD {
            plans.get("x", Some(&n.to_string()), || plan.clone());
        }
        assert!(Arc::strong_count(&plan) <= 2 * PLANNED / OVERHEAD + 1);
    }
}
