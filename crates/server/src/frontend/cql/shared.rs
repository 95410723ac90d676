//! The state that all reactors of a front end share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterglow_cql::frame::{Envelope, Version};
use futures_channel::{mpsc, oneshot};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::config::{Advertise, HostPort};
use crate::frontend::cql::client::budget::Budget;
use crate::frontend::cql::cluster::backend::{Backend, Dial};
use crate::frontend::cql::cluster::error::ConnectError;
use crate::frontend::cql::cluster::events::{Cluster, ClusterListener};
use crate::frontend::cql::cluster::first::{LeftNodes, first};
use crate::frontend::cql::cluster::login::{Login, Users};
use crate::frontend::cql::cluster::nodes::{Addresses, NodeId, TopologyStore};
use crate::frontend::cql::cluster::schema_store::SchemaStore;
use crate::frontend::cql::cluster::system_tables::DatabaseTables;
use crate::frontend::cql::ring_view::shown::{RingSettings, ShownRing};
use crate::frontend::cql::statements::prepared::PreparedStore;
use crate::frontend::sessions::Sessions;
use crate::metrics::{BackendMetrics, Metrics};
use crate::reactor::Reactors;
use crate::tls::{ClientTls, ServerTls};

/// How long an acknowledgement of a schema change waits for our own view of it.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(20);

/// Gets what the database pushes.
pub type EventSink = mpsc::UnboundedSender<Envelope>;
/// Asks for the schema to be loaded again; answered when that is done.
pub type RefreshRequest = oneshot::Sender<()>;

/// What a front end goes by as long as it runs.
pub struct CqlSettings {
    /// The database's contact points, in order of preference.
    pub backends: Vec<HostPort>,
    /// The file with our own user and password, for where the database asks; see
    /// [`crate::config::credentials`].
    pub credentials: Option<PathBuf>,
    /// Certificates, when clients are to speak TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Speaks TLS with the database.
    pub backend_tls: Option<Arc<ClientTls>>,
    /// The address to give drivers; `None`: the one it listens on.
    pub advertise: Option<Advertise>,
    /// The host id to give drivers, the same after every restart; `None`: the database node's own.
    pub host_id: Option<Uuid>,
    /// How drivers are told of the ring.
    pub ring: RingSettings,
    /// For how long a user whom no client has keeps connections to the database.
    pub user_idle: Duration,
    /// Where to count.
    pub metrics: Arc<Metrics>,
}

/// What all reactors of a front end share.
pub struct CqlShared {
    /// Tells front ends of one process apart.
    pub(super) id: u64,
    /// What it was started with.
    pub config: CqlSettings,
    /// Hears what the control connection learns.
    pub(super) listener: Box<dyn ClusterListener>,
    /// The threads it runs on.
    pub reactors: Reactors,
    /// The database's schema.
    pub schema: SchemaStore,
    /// Statements prepared through it.
    pub prepared: Arc<PreparedStore>,
    /// Addresses of the database's nodes.
    pub(super) addresses: Arc<Addresses>,
    /// The database's nodes.
    pub(super) topology: TopologyStore,
    /// Who has logged in.
    pub(super) users: Users,
    /// What clients may hold in all.
    pub(super) budget: Arc<Budget>,
    /// Class of the database's authenticator, where it has one.
    pub(super) authenticator: RwLock<Option<Arc<str>>>,
    pub(super) cluster: RwLock<Cluster>,
    pub(super) bound: RwLock<SocketAddr>,
    pub(super) system: RwLock<Option<DatabaseTables>>,
    /// The ring that drivers see.
    pub(super) ring: ShownRing,
    pub(super) refresh: Mutex<Option<mpsc::UnboundedSender<RefreshRequest>>>,
    /// Schema changes that clients have not been told of yet: they are when the schema has been
    /// read, be it by the next control connection.
    pub(super) untold: Mutex<Vec<Vec<u8>>>,
    pub(super) sessions: Arc<Sessions>,
    /// No client is served any more from now on.
    pub(super) closing: AtomicBool,
}

impl CqlShared {
    /// What is known of the database.
    pub fn cluster(&self) -> Cluster {
        *self.cluster.read()
    }

    /// Whether no client is served any more but for the answers that are due.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn set_cluster(&self, now: Cluster) -> Cluster {
        std::mem::replace(&mut *self.cluster.write(), now)
    }

    /// Class of the database's authenticator; none while it lets everybody in.
    pub(super) fn authenticator(&self) -> Option<Arc<str>> {
        self.authenticator.read().clone()
    }

    /// How many nodes of the database are known in a data centre.
    pub fn nodes_in(&self, data_center: &str) -> usize {
        let topology = self.topology.current();
        topology.nodes.iter().filter(|node| node.place.data_center == data_center).count()
    }

    /// A connection with our own credentials to a node that lets us in; with the node. `left` are
    /// tried last; with a data centre no node of another is tried.
    ///
    /// # Errors
    /// What the database said about it, else what happened last.
    pub async fn connect_own(
        &self,
        version: Version,
        left: &LeftNodes,
        data_center: Option<&str>,
        metrics: &Arc<BackendMetrics>,
    ) -> Result<(Rc<Backend>, NodeId), ConnectError> {
        let topology = self.topology.current();
        let targets = match data_center {
            Some(name) => topology.targets_in(name),
            None => topology.targets(),
        };
        self.connect_first(version, left.order(targets), None, metrics, |_| false).await
    }

    /// As [`CqlShared::connect_own`], for the control connection. The version that a node does not
    /// speak, and that one wants to know who we are, are told at once.
    pub(super) async fn connect_control(
        &self,
        version: Version,
        left: &LeftNodes,
        events: &EventSink,
        metrics: &Arc<BackendMetrics>,
    ) -> Result<(Rc<Backend>, NodeId), ConnectError> {
        let topology = self.topology.current();
        let targets = match self.listener.stays_in_data_center() {
            true => topology.targets_nearby(),
            false => topology.targets(),
        };
        let targets = left.order(targets);
        self.connect_first(version, targets, Some(events), metrics, ConnectError::is_of_all).await
    }

    async fn connect_first(
        &self,
        version: Version,
        targets: Vec<NodeId>,
        events: Option<&EventSink>,
        metrics: &Arc<BackendMetrics>,
        ends: impl Fn(&ConnectError) -> bool,
    ) -> Result<(Rc<Backend>, NodeId), ConnectError> {
        let login = self.own_login()?;
        let connect = |node| {
            let (login, events, metrics) = (login.clone(), events.cloned(), metrics.clone());
            let tls = self.config.backend_tls.clone();
            let (keyspace, shared) = (None, true);
            let dial = Dial { version, keyspace, login, events, shared, tls, metrics };
            let address = self.addresses.get(node);
            async move { Backend::connect(&address, dial).await }
        };
        first(targets, connect, ends).await
    }

    /// Read anew each time, so that a password can be changed without a restart.
    pub(super) fn own_login(&self) -> Result<Option<Login>, ConnectError> {
        self.config.credentials.as_deref().map(Login::of_file).transpose()
    }

    /// The address that drivers are told.
    pub fn advertised(&self) -> SocketAddr {
        let bound = *self.bound.read();
        match self.config.advertise {
            Some(Advertise { ip, port }) => SocketAddr::new(ip, port.unwrap_or(bound.port())),
            None => bound,
        }
    }

    /// Updates the schema snapshot to what the database has now. If that takes too long, or nobody
    /// can, no read is answered by a snapshot until one has been read that has the change. That is
    /// slower but never wrong.
    pub async fn refresh_schema(&self) {
        let change = self.schema.note_change();
        let (done, wait) = oneshot::channel();
        let sent = self
            .refresh
            .lock()
            .as_ref()
            .is_some_and(|requests| requests.unbounded_send(done).is_ok());
        let done = sent && matches!(compio::time::timeout(REFRESH_TIMEOUT, wait).await, Ok(Ok(())));
        // The race: it may have been read just now.
        if !done && self.schema.require(change) {
            tracing::warn!("the schema could not be read in time: nothing is cached until it is");
        }
    }
}
