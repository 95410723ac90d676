//! The settings of a server, their defaults, and what follows from several of them.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use super::{
    Advertise, DurabilityChoice, FillHedge, FlashSpec, HostName, HostPort, IoChoice, KeySeparator,
    LogFilter, LogFormat, ShortName, Size, Span, TablePolicies, Weight, WriteLevels,
};

/// The default of a database's `max_hint_window`: for so long it keeps hints to replay.
pub const HINT_WINDOW: Duration = Duration::from_secs(3 * 3600);

/// The settings of a server, as they came out of flags, environment and file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the CQL front end listens; `None` when it is not open. Port 0 lets the system choose
    /// one.
    pub cql: Option<SocketAddr>,
    /// Contact points of the database behind the CQL front end, in order of preference.
    pub backend: Vec<HostPort>,
    /// The file with our own user and password at the database; see
    /// [`credentials`](super::credentials).
    pub backend_credentials: Option<PathBuf>,
    /// When a fill that has no answer is sent to a second node of the database.
    pub fill_hedge: FillHedge,
    /// Certificates of the CQL front end, in PEM; its clients then speak TLS.
    pub cql_tls_cert: Option<PathBuf>,
    /// Their key, in PEM.
    pub cql_tls_key: Option<PathBuf>,
    /// The CA whose certificate clients of the CQL front end must show.
    pub cql_tls_client_ca: Option<PathBuf>,
    /// The CA of the database's nodes; connections to them then speak TLS.
    pub backend_tls_ca: Option<PathBuf>,
    /// Our own certificates at the database, in PEM.
    pub backend_tls_cert: Option<PathBuf>,
    /// Their key, in PEM.
    pub backend_tls_key: Option<PathBuf>,
    /// The certificate of a node must name the host that we connect to.
    pub backend_tls_verify_host_name: bool,
    /// The address Afterglow gives for itself in `system.local`; see [`Config::advertised`].
    pub advertise: Option<Advertise>,
    /// Drivers that see a ring are shown how many replicas the database has.
    pub ring_show_replicas: bool,
    /// Where the memcached front end listens; `None` when it does not listen on TCP. Port 0 lets
    /// the system choose one.
    pub memcache: Option<SocketAddr>,
    /// Unix socket of the memcached front end.
    pub memcache_unix: Option<PathBuf>,
    /// Certificates of the memcached front end, in PEM; clients of its TCP port then speak TLS.
    pub memcache_tls_cert: Option<PathBuf>,
    /// Their key, in PEM.
    pub memcache_tls_key: Option<PathBuf>,
    /// Who may use the memcached front end: a file of `name:password` lines. `None`: anybody who
    /// reaches it.
    pub memcache_auth_file: Option<PathBuf>,
    /// The memcached front end refuses `flush_all`.
    pub memcache_no_flush: bool,
    /// The memcached front end refuses to list keys.
    pub memcache_no_dump: bool,
    /// The memcached front end refuses to be watched.
    pub memcache_no_watch: bool,
    /// The memcached front end starts empty when the server was down for longer; `None`: never.
    pub memcache_rejoin_grace: Option<Span>,
    /// Connections of the memcached front end at once.
    pub memcache_connections: NonZeroUsize,
    /// A connection of the memcached front end on which nothing comes for so long is closed;
    /// `None`: never.
    pub memcache_idle_timeout: Option<Span>,
    /// Largest object of the memcached front end, with its key and 64 bytes.
    pub memcache_item_size: Size,
    /// When the memcached front end acknowledges a store.
    pub memcache_durability: DurabilityChoice,
    /// Memory for requests and answers in flight in the memcached front end; see
    /// [`Config::buffers`].
    pub memcache_buffers: Option<Size>,
    /// Where other instances of the ring reach this one; `None` without a ring.
    pub ring_address: Option<SocketAddr>,
    /// The file with the ring's secret.
    pub ring_secret: Option<PathBuf>,
    /// The address that other instances are told; `None`: [`Config::ring_address`].
    pub ring_advertise: Option<HostPort>,
    /// Name of the ring.
    pub ring_name: ShortName,
    /// Part of the shards, beside the weights of other instances.
    pub ring_weight: Weight,
    /// Failure domain.
    pub ring_zone: ShortName,
    /// Holds journal, metadata and lock, and the flash file unless [`Config::flash`] names other
    /// places.
    pub data_dir: PathBuf,
    /// Size of the flash file in the data directory; without meaning when [`Config::flash`] is not
    /// empty.
    pub flash_size: Size,
    /// Files or block devices to cache on; empty means one file in the data directory.
    pub flash: Vec<FlashSpec>,
    /// Lets a cache that was made of other flash than configured be thrown away.
    pub discard_cache: bool,
    /// Take the sockets and the place of the server that runs on the data directory.
    pub take_over: bool,
    /// All the memory the cache may use: index, DRAM tier, write buffers.
    pub memory: Size,
    /// Bytes a second that may be written, on average; `None` for no limit.
    pub write_budget: Option<Size>,
    /// How flash is read and written.
    pub io: IoChoice,
    /// Who else writes to which table, and so what may be cached for how long.
    pub table_policy: TablePolicies,
    /// Levels that weaker writes of some tables are raised to.
    pub table_write_level: WriteLevels,
    /// How long an instance may have been away and still serve what it cached under `exclusive`.
    pub restart_grace: Span,
    /// The same after a clean stop, restarts of the machine included; `None`: no such promise.
    pub planned_restart_grace: Option<Span>,
    /// How long a partition stays uncached after a write whose outcome is not known.
    pub unknown_outcome_hold: Span,
    /// The most bytes of a partition's rows that are cached as one; 0 for none.
    pub partition_unit_size: Size,
    /// Threads that serve clients; `None` means one per core the process may run on.
    pub reactors: Option<NonZeroUsize>,
    /// Where metrics and health are served; `None` when they are not.
    pub admin: Option<SocketAddr>,
    /// Lets [`Config::admin`] be an address beyond loopback.
    pub admin_allow_remote: bool,
    /// Host names under which the dashboard is given out besides loopback and [`Config::admin`].
    pub admin_host: Vec<HostName>,
    /// Names of keys may be shown to whoever may see the admin address, and written to the log.
    pub show_keys: bool,
    /// The character that ends a prefix of keys.
    pub hotkeys_separator: KeySeparator,
    /// Requests that take longer are logged; `None`: none are.
    pub slow_request_log: Option<Span>,
    /// How long SIGTERM waits for requests in flight.
    pub drain_timeout: Span,
    /// Which log lines are written.
    pub log_level: LogFilter,
    /// How log lines are written.
    pub log_format: LogFormat,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cql: None,
            backend: Vec::new(),
            backend_credentials: None,
            fill_hedge: FillHedge::default(),
            cql_tls_cert: None,
            cql_tls_key: None,
            cql_tls_client_ca: None,
            backend_tls_ca: None,
            backend_tls_cert: None,
            backend_tls_key: None,
            backend_tls_verify_host_name: true,
            advertise: None,
            ring_show_replicas: false,
            memcache: None,
            memcache_unix: None,
            memcache_tls_cert: None,
            memcache_tls_key: None,
            memcache_auth_file: None,
            memcache_connections: const { NonZeroUsize::new(1024).unwrap() },
            memcache_idle_timeout: None,
            memcache_item_size: Size::mib(1),
            memcache_durability: DurabilityChoice::WriteBack,
            memcache_buffers: None,
            ring_address: None,
            ring_secret: None,
            ring_advertise: None,
            ring_name: ShortName::new("afterglow"),
            ring_weight: Weight::default(),
            ring_zone: ShortName::new("default"),
            data_dir: PathBuf::from("afterglow-data"),
            flash_size: Size::gib(1),
            flash: Vec::new(),
            discard_cache: false,
            take_over: false,
            memory: Size::mib(256),
            write_budget: None,
            io: IoChoice::Auto,
            table_policy: TablePolicies::default(),
            table_write_level: WriteLevels::default(),
            restart_grace: Span::new(Duration::from_secs(60)),
            planned_restart_grace: None,
            // Cassandra keeps hints for a missing replica this long, so until then a timed-out
            // write may still land.
            unknown_outcome_hold: Span::new(HINT_WINDOW),
            partition_unit_size: Size::bytes(256 << 10),
            reactors: None,
            admin: Some(SocketAddr::from(([127, 0, 0, 1], 9180))),
            memcache_no_flush: false,
            memcache_no_dump: false,
            memcache_no_watch: false,
            memcache_rejoin_grace: None,
            admin_allow_remote: false,
            admin_host: Vec::new(),
            show_keys: false,
            hotkeys_separator: KeySeparator::default(),
            slow_request_log: None,
            drain_timeout: Span::new(Duration::from_secs(10)),
            log_level: LogFilter::default(),
            log_format: LogFormat::Text,
        }
    }
}

impl Config {
    /// The address to give drivers for this instance, once the CQL front end listens on `bound`.
    pub fn advertised(&self, bound: SocketAddr) -> SocketAddr {
        match self.advertise {
            Some(Advertise { ip, port }) => SocketAddr::new(ip, port.unwrap_or(bound.port())),
            None => bound,
        }
    }

    /// How much flash there is to be in all; `None` when that is for the devices to say.
    pub fn flash_total(&self) -> Option<Size> {
        if self.flash.is_empty() {
            return Some(self.flash_size);
        }
        let sizes: Option<Vec<u64>> =
            self.flash.iter().map(|flash| flash.size.map(Size::get)).collect();
        Some(Size::bytes(sizes?.into_iter().fold(0, u64::saturating_add)))
    }

    /// Whether the memcached front end is open.
    pub fn has_memcache(&self) -> bool {
        self.memcache.is_some() || self.memcache_unix.is_some()
    }

    /// Memory for requests and answers in flight through the memcached front end. It is what was
    /// asked for, or an eighth of all memory and at most 64 MiB. Part of [`Config::memory`].
    pub fn buffers(&self) -> Size {
        let default = || Size::bytes((self.memory.get() / 8).min(Size::mib(64).get()));
        self.memcache_buffers.unwrap_or_else(default)
    }

    /// How many reactors to run: what was asked for, or one per core the process may run on.
    pub fn reactor_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.reactors.map_or_else(cores, NonZeroUsize::get)
    }
}
