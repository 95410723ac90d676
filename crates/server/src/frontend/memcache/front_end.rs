//! A memcached front end from its opening to its end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use afterglow_engine::device::DeviceSet;
use afterglow_engine::{Cache, NamespaceOptions, OpenError};
use afterglow_memcache::CloseReason;
use afterglow_memcache::auth::Users;
use parking_lot::{Mutex, RwLock};

use super::connection::{self, Ends};
use super::flush::FlushSchedule;
use super::limits::{LiveLimits, MemcacheLimits};
use super::modify::LOADING_PAUSE;
use super::options::{FrontEndAddress, MemcacheFrontEndConfig};
use super::parts::{self, PARTS_NAMESPACE, Parts};
use super::reactor_state::MemcacheReactorState;
use super::shared::MemcacheShared;
use super::signs_of_life::{Downtime, SignsOfLife, away};
use super::stats;
use super::store::{NAMESPACE, Store};
use super::watch::watch;
use super::watchers::Watchers;
use crate::config::Span;
use crate::reactor::{Bound, BoundUnix, ListenError, Listener, Reactors};

/// Why the front end cannot open.
#[derive(Debug, thiserror::Error)]
pub enum MemcacheFrontEndError {
    /// The namespace.
    #[error(transparent)]
    Namespace(#[from] OpenError),
    /// An address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// When the server last ran.
    #[error("cannot keep in the data directory when the server last ran: {0}")]
    Alive(#[source] io::Error),
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
        Ok(Sockets {
            tcp: tcp.map(Bound::tcp).transpose()?,
            unix: unix.map(BoundUnix::at).transpose()?,
        })
    }

    /// As [`Sockets::bind`], with the TCP socket there already.
    ///
    /// # Errors
    /// When the Unix socket cannot be had.
    pub fn with_tcp(tcp: Option<Bound>, unix: Option<&Path>) -> Result<Self, ListenError> {
        Ok(Sockets { tcp, unix: unix.map(BoundUnix::at).transpose()? })
    }

    /// The TCP socket.
    pub fn tcp(&self) -> Option<&Bound> {
        self.tcp.as_ref()
    }
}

/// A running memcached front end.
pub struct MemcacheFrontEnd {
    pub(super) front_end: Arc<MemcacheShared>,
    listeners: Vec<Listener>,
    /// There while it serves, if the next start is to know when that was.
    alive: Option<SignsOfLife>,
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
    pub(super) fn start_over(
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
        let options =
            NamespaceOptions { durability: config.durability, ..NamespaceOptions::default() };
        let objects = cache.namespace(NAMESPACE, options)?;
        let parts = cache.namespace(PARTS_NAMESPACE, parts::options(config.durability))?;
        let parts = Parts::new(parts, config.parting.part);
        let counted = (config.max_item, config.parting.above);
        let store = Store::open((objects, parts), &config.data_dir, counted);
        let store = store.map_err(MemcacheFrontEndError::Flush)?;
        if let Some(grace) = config.rejoin_grace {
            rejoin(&config.data_dir, grace, cache, &store)?;
        }
        let front_end = Arc::new(MemcacheShared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            reactors: reactors.clone(),
            cache: cache.clone(),
            devices,
            store,
            addresses: RwLock::default(),
            connections: AtomicUsize::new(0),
            sessions: Arc::default(),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            users: RwLock::new(config.users.clone()),
            dump_turn: Default::default(),
            limits: LiveLimits::new(config.limits),
            watchers: Watchers::new(Watchers::share(config.buffers)),
            reset: Mutex::default(),
            // Tests count the looks, and wait for none of them.
            loading_pause: if cfg!(test) { Duration::ZERO } else { LOADING_PAUSE },
            #[cfg(test)]
            loading: Default::default(),
            config,
        });
        let mut opened =
            MemcacheFrontEnd { listeners: Vec::new(), alive: None, address: None, front_end };
        opened.front_end.config.metrics.announce("memcache");
        opened.listen(sockets);
        opened.expose();
        opened.tell_evictions();
        for reactor in 0..reactors.count() {
            let front_end = opened.front_end.clone();
            reactors.spawn_on(reactor, move || watch(front_end));
        }
        Ok(opened)
    }

    /// The server serves: gives signs of life from now on, if the next start is to know for how
    /// long it was down. A start that fails gives none. Otherwise a server that starts again and
    /// again would seem to have been down for a moment, however long it served nobody.
    ///
    /// # Errors
    /// [`MemcacheFrontEndError::Alive`].
    pub fn give_signs_of_life(&mut self) -> Result<(), MemcacheFrontEndError> {
        let config = &self.front_end.config;
        if let Some(grace) = config.rejoin_grace {
            let signs = SignsOfLife::start(&config.data_dir, grace);
            self.alive = Some(signs.map_err(MemcacheFrontEndError::Alive)?);
        }
        Ok(())
    }

    fn listen(&mut self, sockets: Sockets) {
        let reactors = &self.front_end.reactors;
        // Named before anybody is let in, so that the first client is told of it.
        if let Some(bound) = sockets.tcp {
            let (front_end, tls) = (self.front_end.clone(), self.front_end.config.tls.is_some());
            let address = FrontEndAddress::Tcp(bound.address());
            let shown: Arc<str> = address.to_string().into();
            self.front_end.addresses.write().push(address);
            let listener = Listener::start_on(reactors, bound, move |stream, from, guard| {
                let peer = FrontEndAddress::Tcp(from).to_string();
                connection::serve(
                    front_end.clone(),
                    stream,
                    Ends { peer, from: Some(from), listener: shown.clone(), tls },
                    guard,
                )
            });
            self.address = Some(listener.address());
            self.listeners.push(listener);
        }
        if let (Some(bound), Some(path)) = (sockets.unix, &self.front_end.config.unix) {
            let front_end = self.front_end.clone();
            let address = FrontEndAddress::Unix(path.clone());
            let shown: Arc<str> = address.to_string().into();
            self.front_end.addresses.write().push(address);
            let listener = Listener::start_unix(reactors, bound, move |stream, guard| {
                let (peer, listener) = (shown.to_string(), shown.clone());
                let ends = Ends { peer, from: None, listener, tls: false };
                connection::serve(front_end.clone(), stream, ends, guard)
            });
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

    /// Has those who watch be told of what is evicted.
    fn tell_evictions(&self) {
        let front_end = Arc::downgrade(&self.front_end);
        self.front_end.store.objects.on_eviction(move |evicted| {
            if let Some(front_end) = front_end.upgrade() {
                front_end.log_eviction(evicted);
            }
        });
    }

    /// Where it listens for TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Puts other limits in force. Connections that are open stay open.
    pub fn set_limits(&self, limits: MemcacheLimits) {
        self.front_end.limits.set(limits);
    }

    /// Lets in only these from now on. Who is in stays in.
    pub fn set_users(&self, users: Users) {
        *self.front_end.users.write() = Some(users);
    }

    /// Every address it listens on.
    pub fn addresses(&self) -> Vec<FrontEndAddress> {
        self.front_end.addresses.read().clone()
    }

    /// Takes no more connections or requests, lets those under way be answered until `timeout` is
    /// over, and closes. Blocks; not to be called on a reactor. False when some were cut off.
    pub fn drain(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        // Before those that there are: a handshake that ends later finds it.
        self.front_end.closing.store(true, Ordering::Release);
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
            MemcacheReactorState::of(front_end).connections().iter().for_each(|info| {
                match info.watching.get() {
                    // It has no request that could be answered.
                    true => info.cut(CloseReason::Normal),
                    false => (info.shut)(how),
                }
            });
        });
    }

    fn on_every_reactor(&self, act: impl Fn(&Arc<MemcacheShared>) + Clone + Send + 'static) {
        for reactor in 0..self.front_end.reactors.count() {
            let (front_end, act) = (self.front_end.clone(), act.clone());
            // `None` when the reactors have ended: then there is nothing to act on either.
            let _ =
                self.front_end.reactors.block_on(reactor, move || async move { act(&front_end) });
        }
    }
}

/// Drops everything if the server was down for longer than `grace`. This comes before the first
/// sign of life: if the process dies in between, or cannot serve, the next start decides again.
fn rejoin(
    data_dir: &Path,
    grace: Duration,
    cache: &Cache,
    store: &Store,
) -> Result<(), MemcacheFrontEndError> {
    let down = away(data_dir).map_err(MemcacheFrontEndError::Alive)?;
    let (is_new, shown) = (cache.opening().is_empty(), Span::new(grace));
    match down {
        _ if is_new => {}
        Downtime::For(time) if down.is_within(grace) => tracing::info!(
            "the memcached front end keeps its objects: the server was down for {} at most, within --memcache-rejoin-grace {shown}",
            Span::new(time)
        ),
        Downtime::For(time) => tracing::warn!(
            "the memcached front end starts empty: the server was down for {}, longer than --memcache-rejoin-grace {shown}; clients may have changed its keys elsewhere",
            Span::new(time)
        ),
        Downtime::Unknown => tracing::warn!(
            "the memcached front end starts empty: nobody can say for how long the server was down, and it may have been longer than --memcache-rejoin-grace {shown}"
        ),
    }
    if !is_new && !down.is_within(grace) {
        store.objects.clear();
    }
    Ok(())
}
