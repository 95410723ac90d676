//! The memcached front end: clients talk to it as if it were memcached.
//!
//! A [connection] hands what has come to the [decoder](afterglow_memcache::Decoder) and [performs](perform) the requests it finds on
//! the [store]; answers leave [in order](answers), as many as are known in one write. What needs flash waits in a task of its own, so that
//! neither other connections nor other keys of the same one wait with it.

mod answers;
mod budget;
mod connection;
mod counted;
mod dump;
mod flush;
mod metering;
mod object;
mod perform;
mod reactor_state;
mod recency;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use afterglow_engine::disk::DeviceSet;
use afterglow_engine::{Cache, Durability, NamespaceOptions, OpenError};
use afterglow_memcache::auth::Users;
use parking_lot::{Mutex, RwLock};

pub use tls::{Tls, TlsError};

use self::connection::Ends;
use self::counted::Counted;
use self::flush::FlushSchedule;
use self::reactor_state::MemcacheReactorState;
use self::store::Store;
use super::sessions::Sessions;
use crate::metrics::Metrics;
use crate::reactor::{Bound, BoundUnix, ListenError, Listener, Reactors};

/// The namespace that objects live in.
pub const NAMESPACE: &str = "memcache";
/// The version of memcached that clients are told, which decides what some of them try.
const MEMCACHED: &str = "1.6.18";
/// A connection that stands still for so long is cut when others wait for the memory it holds.
const STALL: u64 = 10;
/// A connection on which nothing has come for so long gives back the memory that it keeps for answers.
const REST: u64 = 2;
/// How often it is looked for connections that stand still.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What clients are told of the version.
fn version() -> String {
    format!("{MEMCACHED}-afterglow-{}", env!("CARGO_PKG_VERSION"))
}

/// What a memcached front end needs to know.
pub struct MemcacheFrontEndConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: Option<SocketAddr>,
    /// Unix socket to listen on as well.
    pub unix: Option<PathBuf>,
    /// Certificates, when clients of `listen` are to speak TLS.
    pub tls: Option<Tls>,
    /// Who may come in; `None`: anybody.
    pub users: Option<Users>,
    /// Connections at once.
    pub max_connections: usize,
    /// A connection on which nothing comes for so long is closed.
    pub idle_timeout: Option<Duration>,
    /// Bytes that an object may count: key, value and [`afterglow_memcache::ITEM_OVERHEAD`].
    pub max_item: usize,
    /// Bytes that requests and answers on their way may take, beside 64 KiB a connection.
    pub buffers: usize,
    /// Bytes of memory that the cache was opened with, which clients may lower and raise again.
    pub memory: u64,
    /// Whether clients may drop everything at once.
    pub flush_enabled: bool,
    /// Whether clients may have the keys listed.
    pub dump_enabled: bool,
    /// When a store is acknowledged.
    pub durability: Durability,
    /// Where the schedule of `flush_all` is kept.
    pub data_dir: PathBuf,
    /// Where to count.
    pub metrics: Arc<Metrics>,
}

/// Why the front end cannot open.
#[derive(Debug, thiserror::Error)]
pub enum MemcacheFrontEndError {
    /// The namespace.
    #[error(transparent)]
    Namespace(#[from] OpenError),
    /// An address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// What is kept in the data directory.
    #[error("cannot read the schedule of flush_all: {0}")]
    Flush(#[source] io::Error),
}

/// Refuses what the front end keeps in the data directory where opening it would.
///
/// # Errors
/// [`MemcacheFrontEndError::Flush`].
pub fn look(data_dir: &Path) -> Result<(), MemcacheFrontEndError> {
    FlushSchedule::open(data_dir).map(drop).map_err(MemcacheFrontEndError::Flush)
}

/// An address the front end listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrontEndAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for FrontEndAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontEndAddress::Tcp(address) => write!(f, "tcp:{address}"),
            FrontEndAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The addresses of a front end, bound before it opens.
#[derive(Default)]
pub struct Sockets {
    tcp: Option<Bound>,
    unix: Option<BoundUnix>,
}

impl Sockets {
    /// Takes what is configured.
    ///
    /// # Errors
    /// When one of them cannot be had.
    pub fn bind(tcp: Option<SocketAddr>, unix: Option<&Path>) -> Result<Self, ListenError> {
        Ok(Sockets { tcp: tcp.map(Bound::tcp).transpose()?, unix: unix.map(BoundUnix::at).transpose()? })
    }
}

/// What all reactors of a front end share.
pub struct MemcacheShared {
    /// Tells front ends of one process apart.
    id: u64,
    config: MemcacheFrontEndConfig,
    reactors: Reactors,
    cache: Arc<Cache>,
    devices: Arc<dyn DeviceSet>,
    store: Store,
    addresses: RwLock<Vec<FrontEndAddress>>,
    connections: AtomicUsize,
    sessions: Arc<Sessions>,
    closed: AtomicBool,
    /// Who may come in, as last read; whether anybody must say who it is never changes.
    users: RwLock<Option<Users>>,
    /// Somebody is being answered with a dump.
    dumping: AtomicBool,
    /// What had been counted when a client last asked for a reset.
    reset: Mutex<Counted>,
    /// How long a change waits before it looks again at an index that is still being read.
    loading_pause: Duration,
    /// So many looks of a change find the index still being read.
    #[cfg(test)]
    loading: std::sync::atomic::AtomicU32,
}

#[cfg(test)]
impl MemcacheShared {
    /// Whether this look finds the index still being read.
    fn says_loading(&self) -> bool {
        self.loading.try_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok()
    }
}

/// A running memcached front end.
pub struct MemcacheFrontEnd {
    front_end: Arc<MemcacheShared>,
    listeners: Vec<Listener>,
    address: Option<SocketAddr>,
}

impl MemcacheFrontEnd {
    /// Opens the namespace and starts listening.
    ///
    /// # Errors
    /// See [`MemcacheFrontEndError`].
    pub fn start(
        config: MemcacheFrontEndConfig,
        cache: &Arc<Cache>,
        reactors: &Reactors,
    ) -> Result<Self, MemcacheFrontEndError> {
        let sockets = Sockets::bind(config.listen, config.unix.as_deref())?;
        Self::start_on(sockets, config, cache, reactors)
    }

    /// As [`MemcacheFrontEnd::start`], on addresses that are bound already.
    ///
    /// # Errors
    /// See [`MemcacheFrontEndError`].
    pub fn start_on(
        sockets: Sockets,
        config: MemcacheFrontEndConfig,
        cache: &Arc<Cache>,
        reactors: &Reactors,
    ) -> Result<Self, MemcacheFrontEndError> {
        Self::open(cache.devices(), sockets, config, cache, reactors)
    }

    /// As [`MemcacheFrontEnd::start`], reading flash from `devices`.
    #[cfg(test)]
    fn start_over(
        devices: Arc<dyn DeviceSet>,
        config: MemcacheFrontEndConfig,
        cache: &Arc<Cache>,
        reactors: &Reactors,
    ) -> Result<Self, MemcacheFrontEndError> {
        let sockets = Sockets::bind(config.listen, config.unix.as_deref())?;
        Self::open(devices, sockets, config, cache, reactors)
    }

    fn open(
        devices: Arc<dyn DeviceSet>,
        sockets: Sockets,
        config: MemcacheFrontEndConfig,
        cache: &Arc<Cache>,
        reactors: &Reactors,
    ) -> Result<Self, MemcacheFrontEndError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let options = NamespaceOptions { durability: config.durability, ..NamespaceOptions::default() };
        let objects = cache.namespace(NAMESPACE, options)?;
        let store = Store::open(objects, &config.data_dir, config.max_item);
        let store = store.map_err(MemcacheFrontEndError::Flush)?;
        let front_end = Arc::new(MemcacheShared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            reactors: reactors.clone(),
            cache: cache.clone(),
            devices,
            store,
            addresses: RwLock::default(),
            connections: AtomicUsize::new(0),
            sessions: Arc::default(),
            closed: AtomicBool::new(false),
            users: RwLock::new(config.users.clone()),
            dumping: AtomicBool::new(false),
            reset: Mutex::default(),
            // Tests count the looks, and wait for none of them.
            loading_pause: if cfg!(test) { Duration::ZERO } else { perform::LOADING_PAUSE },
            #[cfg(test)]
            loading: Default::default(),
            config,
        });
        let mut opened = MemcacheFrontEnd { listeners: Vec::new(), address: None, front_end };
        opened.front_end.config.metrics.announce("memcache");
        opened.listen(sockets);
        opened.expose();
        for reactor in 0..reactors.count() {
            let front_end = opened.front_end.clone();
            reactors.spawn_on(reactor, move || watch(front_end));
        }
        Ok(opened)
    }

    fn listen(&mut self, sockets: Sockets) {
        let reactors = &self.front_end.reactors;
        if let (Some(bound), Some(address)) = (sockets.tcp, self.front_end.config.listen) {
            let (front_end, tls) = (self.front_end.clone(), self.front_end.config.tls.is_some());
            let shown: Arc<str> = FrontEndAddress::Tcp(address).to_string().into();
            let listener = Listener::start_on(reactors, bound, move |stream, peer, guard| {
                let peer = FrontEndAddress::Tcp(peer).to_string();
                connection::serve(
                    front_end.clone(),
                    stream,
                    Ends { peer, listener: shown.clone(), tls },
                    guard,
                )
            });
            self.address = Some(listener.address());
            self.front_end.addresses.write().push(FrontEndAddress::Tcp(listener.address()));
            self.listeners.push(listener);
        }
        if let (Some(bound), Some(path)) = (sockets.unix, &self.front_end.config.unix) {
            let front_end = self.front_end.clone();
            let shown: Arc<str> = FrontEndAddress::Unix(path.clone()).to_string().into();
            let listener = Listener::start_unix(reactors, bound, move |stream, guard| {
                let ends = Ends { peer: shown.to_string(), listener: shown.clone(), tls: false };
                connection::serve(front_end.clone(), stream, ends, guard)
            });
            self.front_end.addresses.write().push(FrontEndAddress::Unix(path.clone()));
            self.listeners.push(listener);
        }
    }

    /// Adds to the metrics what is only known here, under the names of memcached's exporter.
    fn expose(&self) {
        let front_end = Arc::downgrade(&self.front_end);
        self.front_end.config.metrics.add_source(move |out| {
            if let Some(front_end) = front_end.upgrade() {
                stats::expose(&front_end, out);
            }
        });
    }

    /// Where it listens for TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Lets in only these from now on. Who is in stays in.
    pub fn set_users(&self, users: Users) {
        *self.front_end.users.write() = Some(users);
    }

    /// Every address it listens on.
    pub fn addresses(&self) -> Vec<FrontEndAddress> {
        self.front_end.addresses.read().clone()
    }

    /// Takes no more connections or requests, lets those under way be answered until `timeout` is over, and closes. Blocks; not to be
    /// called on a reactor. False when some were cut off.
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.listeners.iter().for_each(Listener::stop);
        self.shut(rustix::net::Shutdown::Read);
        let whole = self.front_end.sessions.wait_for_none(deadline);
        self.front_end.closed.store(true, Ordering::Release);
        self.shut(rustix::net::Shutdown::Both);
        self.on_every_reactor(|front_end| MemcacheReactorState::forget(front_end));
        whole
    }

    fn shut(&self, how: rustix::net::Shutdown) {
        self.on_every_reactor(move |front_end| {
            MemcacheReactorState::of(front_end).connections().iter().for_each(|info| (info.shut)(how));
        });
    }

    fn on_every_reactor(&self, act: impl Fn(&Arc<MemcacheShared>) + Clone + Send + 'static) {
        for reactor in 0..self.front_end.reactors.count() {
            let (front_end, act) = (self.front_end.clone(), act.clone());
            // `None` when the reactors have ended: then there is nothing to act on either.
            let _ = self.front_end.reactors.block_on(reactor, move || async move { act(&front_end) });
        }
    }
}

/// Has connections that rest give back what they keep. Cuts those that are idle for too long, and those that stand still while others wait for what they hold.
async fn watch(front_end: Arc<MemcacheShared>) {
    let reactor_state = MemcacheReactorState::of(&front_end);
    while !front_end.closed.load(Ordering::Acquire) {
        compio::time::sleep(POLL_INTERVAL).await;
        let now = front_end.store.now();
        let short = reactor_state.budget.is_short();
        for info in reactor_state.connections() {
            let stands_still = [info.writing_since.get(), info.holding_since.get()];
            let stalled = stands_still.into_iter().flatten().any(|since| now.saturating_sub(since) >= STALL);
            let rested = now.saturating_sub(info.last_request.get());
            if rested >= REST {
                info.answers.give_back();
            }
            let idle = front_end
                .config
                .idle_timeout
                .is_some_and(|timeout| info.answers.is_complete() && rested >= timeout.as_secs());
            if short && stalled {
                reactor_state.counts.stalled_connections.inc();
                info.cut();
            } else if idle {
                reactor_state.counts.idle_connections.inc();
                info.cut();
            }
        }
    }
}
