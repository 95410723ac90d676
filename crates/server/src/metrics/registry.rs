//! All counters of the process: shards handed out, summed and shown.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::SystemTime,
};

use parking_lot::Mutex;
use uuid::Uuid;

use super::{
    BackendMetrics, Exposition, FrontEndMetrics, Gauge, Kind, LeaseMetrics, MemcacheMetrics,
    RingEntry, RingFigures, TableFigures, TextFormat, backend,
    figures::{self, DatabaseFigures, FrontEndFigures, LeaseFigures},
    frontend, memcache, process,
};
use crate::hotkeys::{self, report::HotKeys};
use crate::slow_log::SlowLog;

/// Adds what it knows at the moment it is asked.
type Source = Box<dyn Fn(&mut Exposition) + Send + Sync>;

/// The ring now; none once it has ended.
type RingSource = Box<dyn Fn() -> Option<RingFigures> + Send + Sync>;

/// Connections and bytes of a front end, over all reactors.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrontEndTraffic {
    /// Connections ever taken.
    pub opened: u64,
    /// Connections that ended.
    pub closed: u64,
    /// Connections turned away.
    pub refused: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// All counters of the process; shared as `Arc<Metrics>`.
pub struct Metrics {
    started: SystemTime,
    separator: u8,
    slow: Arc<SlowLog>,
    front_ends: Mutex<Vec<(&'static str, Arc<FrontEndMetrics>)>>,
    backends: Mutex<Vec<Arc<BackendMetrics>>>,
    memcache: Mutex<Vec<Arc<MemcacheMetrics>>>,
    sources: Mutex<Vec<Source>>,
    ring: OnceLock<RingSource>,
    /// A [`RingEntry`].
    ring_entry: AtomicU8,
    /// The lease that `exclusive` tables need; one for the process.
    pub lease: LeaseMetrics,
    /// 1 while the database requires authentication and we have no credentials, so that nothing is
    /// cached.
    pub authentication: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            started: SystemTime::now(),
            separator: b':',
            slow: Arc::default(),
            front_ends: Mutex::default(),
            backends: Mutex::default(),
            memcache: Mutex::default(),
            sources: Mutex::default(),
            ring: OnceLock::new(),
            ring_entry: AtomicU8::default(),
            lease: LeaseMetrics::default(),
            authentication: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Nothing counted yet; a prefix of a key ends with the first `separator`, and slow requests
    /// are logged as `slow` says.
    pub fn new(separator: u8, slow: SlowLog) -> Self {
        Metrics { separator, slow: Arc::new(slow), ..Metrics::default() }
    }

    /// A new shard of a front end's counters, for one reactor. Front ends are few words such as
    /// `cql`.
    pub fn front_end(&self, name: &'static str) -> Arc<FrontEndMetrics> {
        let shard = Arc::new(FrontEndMetrics::new(self.separator, self.slow.clone()));
        self.front_ends.lock().push((name, shard.clone()));
        shard
    }

    /// Shows a front end's counters at zero from its start: reactors bring their shards with their
    /// first connection. With `cql`, those of the database too.
    pub fn announce(&self, name: &'static str) {
        let _ = self.front_end(name);
        if name == "cql" {
            let _ = self.backend();
        }
    }

    /// A new shard of the counters of connections to the database, for one reactor.
    pub fn backend(&self) -> Arc<BackendMetrics> {
        let shard = Arc::<BackendMetrics>::default();
        self.backends.lock().push(shard.clone());
        shard
    }

    /// A new shard of the memcached front end's own counters, for one reactor.
    pub fn memcache(&self) -> Arc<MemcacheMetrics> {
        let shard = Arc::<MemcacheMetrics>::default();
        self.memcache.lock().push(shard.clone());
        shard
    }

    /// The memcached front end's own counters, over all reactors.
    pub fn memcache_total(&self) -> MemcacheMetrics {
        MemcacheMetrics::sum(&self.memcache.lock())
    }

    /// Connections of a front end's clients, over all reactors: open now, ever taken, turned away;
    /// bytes received and sent.
    pub fn front_end_traffic(&self, front_end: &str) -> FrontEndTraffic {
        let mut sum = FrontEndTraffic::default();
        for (_, shard) in self.front_ends.lock().iter().filter(|(name, _)| *name == front_end) {
            sum.opened += shard.connections_opened.get();
            sum.closed += shard.connections_closed.get();
            sum.refused += shard.connections_refused.get();
            sum.received += shard.bytes_received.get();
            sum.sent += shard.bytes_sent.get();
        }
        sum
    }

    /// Has `source` asked whenever the metrics are read, for what is kept elsewhere (the engine's
    /// statistics, say).
    pub fn add_source(&self, source: impl Fn(&mut Exposition) + Send + Sync + 'static) {
        self.sources.lock().push(Box::new(source));
    }

    /// Has `ring` asked for the ring of the CQL front end from now on; once at most.
    pub fn set_ring(&self, ring: impl Fn() -> Option<RingFigures> + Send + Sync + 'static) {
        let first = self.ring.set(Box::new(ring)).is_ok();
        debug_assert!(first, "a process has one ring");
    }

    /// Says how far this instance is on its way into its ring.
    pub fn set_ring_entry(&self, entry: RingEntry) {
        self.ring_entry.store(entry as u8, Ordering::Release);
    }

    /// How far this instance is on its way into its ring.
    pub fn ring_entry(&self) -> RingEntry {
        let now = self.ring_entry.load(Ordering::Acquire);
        let all = [RingEntry::Awaited, RingEntry::Late, RingEntry::KeptOut];
        all.into_iter().find(|one| *one as u8 == now).unwrap_or_default()
    }

    /// The ring that this instance is a member of, if it is of one.
    pub fn ring(&self) -> Option<RingFigures> {
        self.ring.get()?()
    }

    /// Connections to the database that are ready for requests now, over all shards.
    pub fn backend_connections_ready(&self) -> i64 {
        self.backends.lock().iter().map(|shard| shard.ready.get()).sum()
    }

    /// Requests of each table through the CQL front end.
    pub fn tables(&self) -> TableFigures {
        let front_ends = self.front_ends.lock();
        let shards = front_ends.iter().filter(|(name, _)| *name == "cql");
        TableFigures::sum(shards.map(|(_, shard)| &shard.tables))
    }

    /// Forgets the counters of tables that are gone.
    pub fn retain_tables(&self, is_there: impl Fn(Uuid) -> bool) {
        let front_ends = self.front_ends.lock();
        front_ends.iter().for_each(|(_, shard)| shard.tables.retain(&is_there));
    }

    /// When the process started.
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// The figures of every front end that is open, by name.
    pub fn front_end_figures(&self) -> Vec<FrontEndFigures> {
        self.each_front_end(figures::front_end)
    }

    /// The hottest keys, prefixes and tables; names of keys only if `keys_shown`.
    pub fn hot_keys(&self, keys_shown: bool) -> HotKeys {
        let mut bytes = 0;
        let front_ends = self.each_front_end(|name, shards| {
            let samplers: Vec<_> = shards.iter().map(|shard| &shard.hot).collect();
            bytes += samplers.iter().map(|sampler| sampler.bytes()).sum::<usize>();
            hotkeys::report::front_end(name, &samplers, keys_shown)
        });
        hotkeys::report::report(front_ends, bytes, keys_shown)
    }

    /// What `of` makes of the shards of each front end.
    fn each_front_end<T>(&self, mut of: impl FnMut(&str, &[&FrontEndMetrics]) -> T) -> Vec<T> {
        let shards = self.front_ends.lock();
        let of_name = |name: &str| {
            let shards = shards.iter().filter(|(of, _)| *of == name);
            let shards: Vec<&FrontEndMetrics> = shards.map(|(_, shard)| &**shard).collect();
            of(name, &shards)
        };
        frontend::front_ends(&shards).into_iter().map(of_name).collect()
    }

    /// The figures of the database behind the CQL front end and of the lease kept in it; `None`
    /// where there is no database.
    pub fn database_figures(&self) -> Option<(DatabaseFigures, LeaseFigures)> {
        let backends = self.backends.lock();
        (!backends.is_empty()).then(|| (figures::database(&backends), figures::lease(&self.lease)))
    }

    /// Whether there is a way to the database now. Where clients must show their own credentials,
    /// there are connections to the database only while there are clients.
    pub fn is_database_reached(&self) -> bool {
        self.backend_connections_ready() > 0 || self.authentication.get() > 0
    }

    /// All of it as text.
    pub fn render(&self, format: TextFormat) -> String {
        let mut out = Exposition::new(format);
        frontend::expose(&self.front_ends.lock(), &mut out);
        memcache::expose(&self.memcache.lock(), &mut out);
        backend::expose(&self.backends.lock(), &mut out);
        self.lease.expose(&mut out);
        if !self.backends.lock().is_empty() {
            let help = "1 while the database requires authentication and Afterglow has no credentials of its own: clients pass through, nothing is cached.";
            out.single(
                "afterglow_backend_authentication",
                Kind::Gauge,
                help,
                self.authentication.get(),
            );
        }
        if let Some(ring) = self.ring() {
            ring.expose(&mut out);
        }
        self.slow.expose(&mut out);
        process::expose(self.started, &mut out);
        for source in self.sources.lock().iter() {
            source(&mut out);
        }
        out.finish()
    }
}
