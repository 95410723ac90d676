//! The CQL front end: drivers talk to it as if it were the database.
//!
//! A [session](session) reads a client's envelopes; [dispatch] finds out what each asks for and gives it to the [`Router`], which answers from the cache
//! or [passes it on](Request::pass) over a [pool] of connections that all clients of a reactor share. The answer goes back as it came, but for
//! the stream number. The [control] connection keeps the schema up to date.

pub mod cached;
mod client;
mod cluster;
mod reactor_state;
mod router;
mod statements;
mod streams;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afterglow_cql::frame::{Envelope, Version};
use afterglow_cql::message::AuthResponse;
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::frontend::cql::client::budget::Budget;
use crate::frontend::cql::cluster::backend::Dial;
use crate::frontend::cql::cluster::login::Users;
use crate::frontend::cql::cluster::nodes::{Addresses, TopologyStore};

pub use crate::frontend::cql::client::request::{Operation, Request};
pub use crate::frontend::cql::client::state::{Client, Responder};
pub use crate::frontend::cql::cluster::answer::{error_code, parsed, result_kind};
pub use crate::frontend::cql::cluster::backend::{Backend, KeptBackend};
pub use crate::frontend::cql::cluster::control::Cluster;
pub use crate::frontend::cql::cluster::error::{CallError, ConnectError};
pub use crate::frontend::cql::cluster::login::{Login, User};
pub use crate::frontend::cql::cluster::nodes::NodeId;
pub use crate::frontend::cql::cluster::permissions::{May, PermissionCache};
pub use crate::frontend::cql::cluster::rows::{Fetched, FetchedRow};
pub use crate::frontend::cql::cluster::schema::{Schema, SchemaStore};
pub use crate::frontend::cql::statements::prepared::{PrepareResult, Prepared, PreparedStore};
pub use reactor_state::CqlReactorState;
pub use router::{ControlState, Later, PassThrough, Router, pass_path};

use super::sessions::Sessions;
use crate::config::{Advertise, HostPort, credentials};
use crate::metrics::{BackendMetrics, Kind, Metrics};
use crate::reactor::{Bound, ListenError, Listener, Reactors};

/// Gets what the database pushes.
pub type EventSink = futures_channel::mpsc::UnboundedSender<Envelope>;

/// What a CQL front end needs to know.
#[derive(Clone)]
pub struct CqlFrontEndConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The database's contact points, in order of preference.
    pub backends: Vec<HostPort>,
    /// The file with our own user and password, for where the database asks; see [`crate::config::credentials`].
    pub credentials: Option<PathBuf>,
    /// The address to give drivers; `None`: the one it listens on.
    pub advertise: Option<Advertise>,
    /// The host id to give drivers, the same after every restart; `None`: the database node's own.
    pub host_id: Option<Uuid>,
    /// Where prepared statements are kept across restarts; `None`: they are not.
    pub plans: Option<PathBuf>,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Who decides how requests are answered.
    pub router: Arc<dyn Router>,
}

/// What all reactors of a front end share.
pub struct CqlShared {
    /// Tells front ends of one process apart.
    id: u64,
    /// What it was started with.
    pub config: CqlFrontEndConfig,
    /// The threads it runs on.
    pub reactors: Reactors,
    /// The database's schema.
    pub schema: SchemaStore,
    /// Statements prepared through it.
    pub prepared: Arc<PreparedStore>,
    /// Addresses of the database's nodes.
    addresses: Arc<Addresses>,
    /// The database's nodes.
    topology: TopologyStore,
    /// Who has logged in.
    users: Users,
    /// What clients may hold in all.
    budget: Arc<Budget>,
    /// Class of the database's authenticator, where it has one.
    authenticator: RwLock<Option<Arc<str>>>,
    cluster: RwLock<Cluster>,
    bound: RwLock<SocketAddr>,
    system: RwLock<Option<statements::local::Tables>>,
    refresh: Mutex<Option<futures_channel::mpsc::UnboundedSender<cluster::control::RefreshRequest>>>,
    /// Schema changes that clients have not been told of yet: they are when the schema has been read, be it by the next control connection.
    untold: Mutex<Vec<Vec<u8>>>,
    sessions: Arc<Sessions>,
}

impl CqlShared {
    /// What is known of the database.
    pub fn cluster(&self) -> Cluster {
        *self.cluster.read()
    }

    fn set_cluster(&self, now: Cluster) -> Cluster {
        std::mem::replace(&mut *self.cluster.write(), now)
    }

    /// Class of the database's authenticator; none while it lets everybody in.
    fn authenticator(&self) -> Option<Arc<str>> {
        self.authenticator.read().clone()
    }

    /// A connection with our own credentials, to the first node that can be reached; with the node.
    ///
    /// # Errors
    /// What the database said about it, else what happened last.
    pub async fn connect_own(
        &self,
        version: Version,
        events: Option<EventSink>,
        metrics: &Arc<BackendMetrics>,
    ) -> Result<(Rc<Backend>, NodeId), ConnectError> {
        let login = self.own_login()?;
        let nowhere =
            ConnectError::Unreachable { address: "-".into(), reason: "no backend is configured".into() };
        let mut last = nowhere;
        for node in self.topology.current().targets() {
            let (login, events, metrics) = (login.clone(), events.clone(), metrics.clone());
            let dial = Dial { version, keyspace: None, login, events, metrics };
            match Backend::connect(&self.addresses.get(node), dial).await {
                Ok(backend) => return Ok((backend, node)),
                Err(error @ (ConnectError::Unreachable { .. } | ConnectError::Timeout(_))) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Read anew each time, so that a password can be changed without a restart.
    fn own_login(&self) -> Result<Option<Login>, ConnectError> {
        let Some(file) = &self.config.credentials else { return Ok(None) };
        let read =
            credentials::read(file).map_err(|error| ConnectError::Credentials(error.to_string().into()))?;
        let token = AuthResponse::plain(&read.username, &read.password).into();
        Ok(Some(Login { user: read.username.into(), token }))
    }

    /// The address that drivers are told.
    fn advertised(&self) -> SocketAddr {
        let bound = *self.bound.read();
        match self.config.advertise {
            Some(Advertise { ip, port }) => SocketAddr::new(ip, port.unwrap_or(bound.port())),
            None => bound,
        }
    }

    /// Tells clients of the schema changes that they have not heard of.
    fn announce_untold(self: &Arc<Self>) {
        let untold = std::mem::take(&mut *self.untold.lock());
        untold.iter().for_each(|event| self.announce(event));
    }

    /// Sends an event to the clients on all reactors that want to hear of schema changes.
    fn announce(self: &Arc<Self>, event: &[u8]) {
        let event: Arc<[u8]> = event.into();
        for reactor in 0..self.reactors.count() {
            let (front_end, event) = (self.clone(), event.clone());
            self.reactors
                .spawn_on(reactor, move || async move { CqlReactorState::of(&front_end).announce(&event) });
        }
    }
}

/// Has the prepared statements counted.
fn count_statements(front_end: &CqlShared) {
    let prepared = front_end.prepared.clone();
    front_end.config.metrics.add_source(move |out| {
        let labels = [("frontend", "cql")];
        let (statements, bytes) = prepared.size();
        out.header("afterglow_prepared_statements", Kind::Gauge, "Prepared statements remembered.");
        out.sample("afterglow_prepared_statements", &labels, statements);
        let help = "Bytes that prepared statements are reckoned to take.";
        out.header("afterglow_prepared_bytes", Kind::Gauge, help);
        out.sample("afterglow_prepared_bytes", &labels, bytes);
        let help = "Prepared statements forgotten to stay within their bytes.";
        out.header("afterglow_prepared_forgotten_total", Kind::Counter, help);
        out.sample("afterglow_prepared_forgotten_total", &labels, prepared.forgotten());
    });
}

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])).collect()
}

/// The keyspace that counts: a request's own (v5), else the session's.
fn session_keyspace<'a>(request: Option<&'a str>, session: Option<&'a str>) -> Option<&'a str> {
    request.or(session)
}

/// A running CQL front end.
pub struct CqlFrontEnd {
    front_end: Arc<CqlShared>,
    listener: Listener,
}

impl CqlFrontEnd {
    /// Starts listening, and connecting to the database; clients may come before it has answered.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn start(config: CqlFrontEndConfig, reactors: &Reactors) -> Result<Self, ListenError> {
        let bound = Bound::tcp(config.listen)?;
        Ok(Self::start_on(bound, config, reactors))
    }

    /// As [`CqlFrontEnd::start`], on an address that is bound already.
    pub fn start_on(bound: Bound, config: CqlFrontEndConfig, reactors: &Reactors) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let addresses = Arc::<Addresses>::default();
        let contacts = config.backends.iter().map(|contact| addresses.id(contact)).collect();
        let front_end = Arc::new(CqlShared {
            topology: TopologyStore::new(contacts),
            addresses,
            users: Users::default(),
            budget: Arc::default(),
            authenticator: RwLock::default(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            reactors: reactors.clone(),
            schema: SchemaStore::default(),
            prepared: Arc::new(
                config.plans.as_deref().map_or_else(PreparedStore::default, PreparedStore::open),
            ),
            cluster: RwLock::new(Cluster::Unknown),
            bound: RwLock::new(config.listen),
            system: RwLock::default(),
            refresh: Mutex::default(),
            untold: Mutex::default(),
            sessions: Arc::default(),
            config,
        });
        front_end.config.metrics.announce("cql");
        count_statements(&front_end);
        let budget = front_end.budget.clone();
        front_end.config.metrics.add_source(move |out| budget.expose(out));
        let served = front_end.clone();
        let listener = Listener::start_on(reactors, bound, move |stream, peer, guard| {
            client::session::serve(served.clone(), stream, peer, guard)
        });
        *front_end.bound.write() = listener.address();
        let advertised = front_end.advertised();
        if advertised.ip().is_unspecified() {
            tracing::warn!(address = %advertised, "drivers are told an address they cannot connect to; set `advertise`");
        }
        tracing::info!(address = %listener.address(), %advertised, "the CQL front end is open");
        let controlled = front_end.clone();
        reactors.spawn_on(0, move || cluster::control::run(controlled));
        Self { front_end, listener }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// What its reactors share.
    pub fn front_end(&self) -> &Arc<CqlShared> {
        &self.front_end
    }

    /// Takes no more connections or requests, lets those under way be answered until `timeout` is over, and closes. Blocks; not to be
    /// called on a reactor. False when some were cut off.
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.listener.stop();
        self.on_every_reactor(|reactor_state| {
            reactor_state.clients().iter().for_each(|client| client.out.stop_reading())
        });
        let whole = self.front_end.sessions.wait_for_none(deadline);
        self.on_every_reactor(|reactor_state| {
            reactor_state.clients().iter().for_each(|client| client.out.abort());
            reactor_state.pool.close();
            CqlReactorState::forget(&reactor_state.front_end);
        });
        whole
    }

    fn on_every_reactor(&self, act: impl Fn(&CqlReactorState) + Clone + Send + 'static) {
        for reactor in 0..self.front_end.reactors.count() {
            let (front_end, act) = (self.front_end.clone(), act.clone());
            // `None` when the reactors have ended: then there is nothing to act on either.
            let _ = self
                .front_end
                .reactors
                .block_on(reactor, move || async move { act(&CqlReactorState::of(&front_end)) });
        }
    }
}
