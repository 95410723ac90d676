//! A CQL front end from its opening to its end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::config::{Advertise, HostPort};
use crate::frontend::cql::client::session;
use crate::frontend::cql::cluster::control;
use crate::frontend::cql::cluster::events::Cluster;
use crate::frontend::cql::cluster::login::Users;
use crate::frontend::cql::cluster::nodes::{Addresses, TopologyStore};
use crate::frontend::cql::cluster::schema_store::SchemaStore;
use crate::frontend::cql::reactor_state::CqlReactorState;
use crate::frontend::cql::ring_view::shown::{RingSettings, ShownRing};
use crate::frontend::cql::router::Router;
use crate::frontend::cql::shared::{CqlSettings, CqlShared};
use crate::frontend::cql::statements::prepared::PreparedStore;
use crate::metrics::{Kind, Metrics};
use crate::reactor::{Bound, ListenError, Listener, Reactors};
use crate::tls::{ClientTls, ServerTls};

/// For how long a user whom no client has keeps connections to the database, and is known: longer
/// than it is remembered what was refused to him.
pub const USER_IDLE: Duration = Duration::from_secs(120);

/// What a CQL front end needs to know.
#[derive(Clone)]
pub struct CqlFrontEndConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
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
    /// Where prepared statements are kept across restarts; `None`: they are not.
    pub plans: Option<PathBuf>,
    /// For how long a user whom no client has keeps connections to the database.
    pub user_idle: Duration,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Who decides how requests are answered.
    pub router: Arc<dyn Router>,
}

/// Has the prepared statements counted.
fn count_statements(front_end: &CqlShared) {
    let prepared = front_end.prepared.clone();
    front_end.config.metrics.add_source(move |out| {
        let labels = [("frontend", "cql")];
        let (statements, bytes) = prepared.size();
        out.header("afterglow_prepared_statements", Kind::Gauge, "Prepared statements in memory.");
        out.sample("afterglow_prepared_statements", &labels, statements);
        let help = "Estimated bytes of prepared statements.";
        out.header("afterglow_prepared_bytes", Kind::Gauge, help);
        out.sample("afterglow_prepared_bytes", &labels, bytes);
        let help = "Prepared statements forgotten because their memory limit was reached.";
        out.header("afterglow_prepared_forgotten_total", Kind::Counter, help);
        out.sample("afterglow_prepared_forgotten_total", &labels, prepared.forgotten());
    });
}

fn count_tables(front_end: &Arc<CqlShared>) {
    // The metrics keep this, and the front end keeps them.
    let counted = Arc::downgrade(front_end);
    front_end.config.metrics.add_source(move |out| {
        let Some(front_end) = counted.upgrade() else { return };
        let schema = front_end.schema.current();
        let names: HashMap<_, _> = schema.tables().map(|table| (table.id, table)).collect();
        front_end.config.metrics.tables().expose(out, |id| {
            names.get(&id).map(|table| (table.keyspace.clone(), table.name.clone()))
        });
        // Nothing is known of any table before the schema has been read.
        if !names.is_empty() {
            front_end.config.metrics.retain_tables(|id| names.contains_key(&id));
        }
    });
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
            ring: ShownRing::default(),
            refresh: Mutex::default(),
            untold: Mutex::default(),
            sessions: Arc::default(),
            closing: AtomicBool::new(false),
            listener: Box::new(config.router.clone()),
            config: CqlSettings {
                backends: config.backends,
                credentials: config.credentials,
                tls: config.tls,
                backend_tls: config.backend_tls,
                advertise: config.advertise,
                host_id: config.host_id,
                ring: config.ring,
                user_idle: config.user_idle,
                metrics: config.metrics,
            },
        });
        front_end.config.metrics.announce("cql");
        count_statements(&front_end);
        count_tables(&front_end);
        let budget = front_end.budget.clone();
        front_end.config.metrics.add_source(move |out| budget.expose(out));
        let (served, router) = (front_end.clone(), config.router);
        let listener = Listener::start_on(reactors, bound, move |stream, peer, guard| {
            session::serve(served.clone(), router.clone(), stream, peer, guard)
        });
        *front_end.bound.write() = listener.address();
        let advertised = front_end.advertised();
        if advertised.ip().is_unspecified() {
            tracing::warn!(address = %advertised, "drivers are told an address that they cannot reach: set `advertise`");
        }
        tracing::info!(address = %listener.address(), %advertised, "the CQL front end is open");
        let controlled = front_end.clone();
        reactors.spawn_on(0, move || control::run(controlled));
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

    /// Takes no more connections or requests, lets those under way be answered until `timeout` is
    /// over, and closes. Blocks; not to be called on a reactor. False when some were cut off.
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.listener.stop();
        // Before those that there are: a handshake that ends later finds it.
        self.front_end.closing.store(true, Ordering::Release);
        self.on_every_reactor(|reactor_state| {
            reactor_state.clients().iter().for_each(|client| client.stop_reading())
        });
        let whole = self.front_end.sessions.wait_for_none(deadline);
        self.on_every_reactor(|reactor_state| {
            reactor_state.clients().iter().for_each(|client| client.abort());
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::frontend::cql::router::PassThrough;
    use crate::reactor::{Driver, ReactorsConfig};

    #[test]
    fn a_connection_that_comes_once_the_end_has_begun_is_closed() {
        let config = ReactorsConfig { threads: Some(1), driver: Driver::Auto };
        let reactors = Reactors::start(&config).unwrap();
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let config = CqlFrontEndConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            backends: vec![backend.local_addr().unwrap().to_string().parse().unwrap()],
            credentials: None,
            tls: None,
            backend_tls: None,
            advertise: None,
            host_id: None,
            ring: RingSettings::default(),
            plans: None,
            user_idle: USER_IDLE,
            metrics: Arc::default(),
            router: Arc::new(PassThrough),
        };
        let front_end = CqlFrontEnd::start(config, &reactors).unwrap();
        let served = front_end.front_end().clone();
        assert!(front_end.drain(Duration::from_secs(60)));
        // It was accepted before, and reaches its reactor after all clients were told to stop.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        reactors.spawn_on(0, move || async move {
            let stream = compio::net::TcpStream::from_std(accepted).unwrap();
            session::serve(served, Arc::new(PassThrough), stream, peer, ()).await;
        });
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(client.read(&mut [0]).expect("it is closed"), 0);
        reactors.shutdown();
    }
}
