//! Opens the configured front ends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_engine::{Cache, Durability};
use afterglow_memcache::Parting;
use afterglow_memcache::auth::Users;
use afterglow_rowcache::noted_tables::NotedTables;

use super::certificates::TlsParts;
use super::error::ServeError;
use super::takeover::{HandOver, Socket, Taken};
use crate::{
    config::{Config, DurabilityChoice, LivePolicies, Span, check_rereadable, private},
    frontend::cql::cached::{
        Cached, CachedConfig, Invalidator, Keeping, RingConfig, RingHandle, Times,
        tables_of_last_run,
    },
    frontend::cql::{CqlFrontEnd, CqlFrontEndConfig, RingSettings, USER_IDLE},
    frontend::memcache::{
        FrontEndAddress, MemcacheFrontEnd, MemcacheFrontEndConfig, MemcacheLimits, Sockets,
        part_len,
    },
    metrics::Metrics,
    reactor::{Bound, Reactors},
    ring_link::Secrets,
    tls::ServerTls,
};

/// The file of prepared statements in the data directory.
const PLANS_FILE: &str = "plans";

/// What the front ends need of this machine. It is taken before the cache is opened, so a start
/// that fails for lack of it costs no warmth.
pub(super) struct Entrances {
    cql: Option<Bound>,
    /// For other instances of the ring.
    ring: Option<Bound>,
    secrets: Option<Secrets>,
    sockets: Sockets,
    tls: TlsParts,
    users: Option<Users>,
}

impl Entrances {
    /// Reads the files and takes the addresses that are not `taken` yet. None: no address is taken.
    pub(super) fn prepare(config: &Config, taken: Option<Taken>) -> Result<Self, ServeError> {
        let tls = TlsParts::open(config)?;
        let users = config.memcache_auth_file.as_deref().map(read_users).transpose()?;
        let secrets = config.ring_secret.as_deref().map(Secrets::read).transpose()?;
        let (mut cql, mut ring, mut sockets) = (None, None, Sockets::default());
        if let Some(mut taken) = taken {
            let mut bind = |of, address: Option<SocketAddr>| {
                address.map(|address| taken.bind(of, address)).transpose()
            };
            cql = bind(Socket::Cql, config.cql)?;
            ring = bind(Socket::Ring, config.ring_address)?;
            let memcache = bind(Socket::Memcache, config.memcache)?;
            sockets = Sockets::with_tcp(memcache, config.memcache_unix.as_deref())?;
        }
        Ok(Self { cql, ring, secrets, sockets, tls, users })
    }
}

impl Entrances {
    /// Keeps their sockets for a process that takes over.
    pub(super) fn share(&self, with: &HandOver) {
        with.keep(Socket::Cql, self.cql.as_ref());
        with.keep(Socket::Ring, self.ring.as_ref());
        with.keep(Socket::Memcache, self.sockets.tcp());
    }
}

/// The open front ends.
pub(super) struct FrontEnds {
    cql: Option<(CqlFrontEnd, Keeping)>,
    memcache: Option<MemcacheFrontEnd>,
    /// The ring's.
    secrets: Option<Secrets>,
    tls: TlsParts,
}

impl FrontEnds {
    /// Opens what is configured.
    pub(super) fn open(
        config: &Config,
        entrances: Entrances,
        cache: &Arc<Cache>,
        policies: &Arc<LivePolicies>,
        metrics: &Arc<Metrics>,
        reactors: &Reactors,
    ) -> Result<Self, ServeError> {
        let Entrances { cql, ring, secrets, sockets, tls, users } = entrances;
        // First of all: a front end that cannot start uses up an opening of the cache.
        let cql = cql.map(|bound| (bound, tables_of_last_run(cache, &config.data_dir)));
        let memcache = match config.has_memcache() {
            true => {
                let front_end = memcache(config, tls.memcache.clone(), users, cache, metrics);
                Some(MemcacheFrontEnd::start_on(sockets, front_end, cache, reactors)?)
            }
            false => None,
        };
        let cql = match (cql, config.cql) {
            (Some((bound, tables)), Some(listen)) => {
                let ring = ring.zip(secrets.clone());
                let entrance = CqlEntrance { bound, tables, listen, ring, tls: &tls };
                Some(open_cql(config, entrance, cache, policies, metrics, reactors)?)
            }
            _ => None,
        };
        Ok(FrontEnds { cql, memcache, secrets, tls })
    }

    /// Everything has started: from now on the memcached front end tells the next start that it
    /// served.
    pub(super) fn serve(&mut self) -> Result<(), ServeError> {
        self.memcache.as_mut().map_or(Ok(()), |memcache| Ok(memcache.give_signs_of_life()?))
    }

    /// Where they listen, by front end.
    pub(super) fn addresses(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if let Some((front_end, _)) = &self.cql {
            all.push(("cql", front_end.address().to_string()));
        }
        for address in self.memcache.iter().flat_map(MemcacheFrontEnd::addresses) {
            all.push(match address {
                FrontEndAddress::Tcp(address) => ("memcache", address.to_string()),
                FrontEndAddress::Unix(path) => ("memcache-unix", path.display().to_string()),
            });
        }
        all
    }

    /// The ring, where the CQL front end is in one.
    pub(super) fn ring(&self) -> Option<RingHandle> {
        self.cql.as_ref()?.1.ring()
    }

    /// What drops rows at the operator's word, where there is a CQL front end.
    pub(super) fn invalidator(&self) -> Option<Invalidator> {
        Some(self.cql.as_ref()?.1.invalidator())
    }

    /// SIGHUP: puts limits in force that may change while the memcached front end serves.
    pub(super) fn set_limits(&self, config: &Config) {
        if let Some(front_end) = &self.memcache {
            front_end.set_limits(limits(config));
        }
    }

    /// SIGHUP: reads the users of the memcached front end again. They stay as they are when the
    /// file is wrong.
    pub(super) fn reload_users(&self, config: &Config) {
        let (Some(front_end), Some(path)) = (&self.memcache, &config.memcache_auth_file) else {
            return;
        };
        let unusable = |why| ServeError::Users { path: path.to_owned(), why };
        match check_rereadable(path).map_err(unusable).and_then(|()| read_users(path)) {
            Ok(users) => {
                front_end.set_users(users);
                tracing::info!("SIGHUP: the users of the memcached front end were read again");
            }
            Err(error) => {
                tracing::error!(
                    "SIGHUP: the users of the memcached front end are unchanged: {error}"
                )
            }
        }
    }

    /// SIGHUP: reads certificates, keys and CAs again.
    pub(super) fn reload_certificates(&self) {
        self.tls.refresh();
    }

    /// SIGHUP: reads the ring's secret again, for links that begin from then on. It stays as it is
    /// when the file is wrong.
    pub(super) fn reload_secrets(&self, config: &Config) {
        let (Some(secrets), Some(path)) = (&self.secrets, &config.ring_secret) else { return };
        let read = || -> Result<Secrets, String> {
            check_rereadable(path).map_err(|why| format!("{}: {why}", path.display()))?;
            Secrets::read(path).map_err(|error| error.to_string())
        };
        match read() {
            Ok(read) => {
                secrets.replace(&read);
                tracing::info!("SIGHUP: the ring's secret was read again, for new links");
            }
            Err(error) => {
                tracing::error!("SIGHUP: the ring's secret is unchanged: {error}")
            }
        }
    }

    /// Lets requests under way be answered, for at most `timeout`, and closes; false when some were
    /// cut off.
    pub(super) fn close(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut whole = self.memcache.is_none_or(|front_end| front_end.drain(left()));
        if let Some((front_end, keeping)) = self.cql {
            let drained = front_end.drain(left());
            keeping.stop(drained);
            whole &= drained;
        }
        whole
    }
}

/// What the CQL front end needs of this machine.
struct CqlEntrance<'a> {
    bound: Bound,
    /// Those that the last run knew.
    tables: NotedTables,
    /// As configured: the port may be 0.
    listen: std::net::SocketAddr,
    ring: Option<(Bound, Secrets)>,
    tls: &'a TlsParts,
}

fn open_cql(
    config: &Config,
    CqlEntrance { bound, tables, listen, ring, tls }: CqlEntrance<'_>,
    cache: &Arc<Cache>,
    policies: &Arc<LivePolicies>,
    metrics: &Arc<Metrics>,
    reactors: &Reactors,
) -> Result<(CqlFrontEnd, Keeping), ServeError> {
    let (links, secrets) = ring.unzip();
    let cached = CachedConfig {
        engine: cache,
        data_dir: &config.data_dir,
        policies: policies.clone(),
        restart_grace: config.restart_grace.get(),
        planned_restart_grace: config.planned_restart_grace.map_or(Duration::ZERO, Span::get),
        write_levels: config.table_write_level.clone(),
        unknown_outcome_hold: config.unknown_outcome_hold.get(),
        partition_unit_size: config.partition_unit_size.get(),
        fill_hedge: config.fill_hedge,
        times: Times::default(),
        ring: secrets.and_then(|secrets| ring_config(config, secrets)),
    };
    let cached = Cached::open(&cached, tables)?;
    let front_end = CqlFrontEndConfig {
        listen,
        backends: config.backend.clone(),
        credentials: config.backend_credentials.clone(),
        tls: tls.cql.clone(),
        backend_tls: tls.backend.clone(),
        advertise: config.advertise,
        host_id: Some(cached.host_id()),
        ring: RingSettings { show_replicas: config.ring_show_replicas, ..Default::default() },
        plans: Some(config.data_dir.join(PLANS_FILE)),
        user_idle: USER_IDLE,
        metrics: metrics.clone(),
        router: cached.router(),
    };
    let front_end = CqlFrontEnd::start_on(bound, front_end, reactors);
    let keeping = cached.keep(&front_end, links)?;
    Ok((front_end, keeping))
}

fn ring_config(config: &Config, secrets: Secrets) -> Option<RingConfig> {
    let listen = config.ring_address?;
    let advertised = config.ring_advertise.as_ref();
    Some(RingConfig {
        listen,
        advertised: advertised.map_or_else(|| listen.to_string(), ToString::to_string),
        secrets,
        name: config.ring_name.to_string(),
        weight: config.ring_weight.get(),
        zone: config.ring_zone.to_string(),
        protocol: RingConfig::protocol(config.unknown_outcome_hold.get()),
    })
}

/// Who may use the memcached front end. As the file holds passwords, nobody but its owner may read
/// it.
fn read_users(path: &Path) -> Result<Users, ServeError> {
    let unusable = |why: String| ServeError::Users { path: path.to_owned(), why };
    let text = private::read(path).map_err(|error| unusable(error.to_string()))?;
    Users::parse(&text).map_err(|error| unusable(error.to_string()))
}

fn memcache(
    config: &Config,
    tls: Option<Arc<ServerTls>>,
    users: Option<Users>,
    cache: &Cache,
    metrics: &Arc<Metrics>,
) -> MemcacheFrontEndConfig {
    MemcacheFrontEndConfig {
        listen: config.memcache,
        unix: config.memcache_unix.clone(),
        tls,
        users,
        limits: limits(config),
        max_item: max_item(config, cache),
        parting: parting(cache),
        buffers: usize::try_from(config.buffers().get()).unwrap_or(usize::MAX),
        flush_enabled: !config.memcache_no_flush,
        dump_enabled: !config.memcache_no_dump,
        watch_enabled: !config.memcache_no_watch,
        rejoin_grace: config.memcache_rejoin_grace.map(|grace| grace.get()),
        durability: match config.memcache_durability {
            DurabilityChoice::WriteBack => Durability::WriteBack,
            DurabilityChoice::WriteThrough => Durability::WriteThrough,
            DurabilityChoice::Synced => Durability::Synced,
        },
        data_dir: config.data_dir.clone(),
        metrics: metrics.clone(),
    }
}

fn limits(config: &Config) -> MemcacheLimits {
    MemcacheLimits {
        connections: config.memcache_connections.get(),
        idle_timeout: config.memcache_idle_timeout.map(|timeout| timeout.get()),
        memory: config.memory.get(),
    }
}

/// What is configured, or less where flash is small: a value in parts is to be a small share of it.
fn max_item(config: &Config, cache: &Cache) -> usize {
    let stats = cache.stats();
    let flash = stats.segment_size * stats.segments;
    let (wanted, possible) = (config.memcache_item_size.get(), flash / 16);
    if wanted > possible {
        tracing::warn!(
            "objects of the memcached front end may count {possible} bytes, not {wanted}: a sixteenth of this flash"
        );
    }
    usize::try_from(wanted.min(possible)).unwrap_or(usize::MAX)
}

/// Values that a record cannot hold come in parts.
fn parting(cache: &Cache) -> Parting {
    let segment = cache.stats().segment_size;
    let above = usize::try_from(segment / 4).unwrap_or(usize::MAX);
    Parting { above, part: part_len(segment) }
}
