//! Puts the cached path together at start, and takes it apart at a clean stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::Cache;
use afterglow_ring::SHARDS;
use afterglow_rowcache::claims::{Claims, LeaseTimes};
use afterglow_rowcache::clock::SystemClock;
use afterglow_rowcache::noted_tables::NotedTables;
use afterglow_rowcache::restart::{Start, start};
use afterglow_rowcache::unit::Units;
use futures_channel::oneshot;
use uuid::Uuid;

use super::super::{CqlFrontEnd, Router};
use super::invalidate::Invalidator;
use super::keeper::{Keeper, Stop, policies_text};
use super::ring::{OpenRing, RingConfig, RingHandle, RingKeeper};
use super::router::CachedRouter;
use super::state::FillRules;
use super::times::Times;
use super::weak_writes::WeakWrites;
use super::{CachedError, FillWaiter, RowCache};
use crate::config::{FillHedge, LivePolicies, WriteLevels};
use crate::metrics::{Kind, RingEntry};
use crate::reactor::Bound;
use crate::ring_link::TransportError;

/// How long giving the lease back may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What the cached path needs to know.
pub struct CachedConfig<'a> {
    /// The engine.
    pub engine: &'a Cache,
    /// Where intents and identity live.
    pub data_dir: &'a Path,
    /// Policies in force.
    pub policies: Arc<LivePolicies>,
    /// Longest absence after which `exclusive` rows are still believed.
    pub restart_grace: Duration,
    /// The same after a clean stop, if that is longer; zero without such a promise.
    pub planned_restart_grace: Duration,
    /// Levels that writes are raised to.
    pub write_levels: WriteLevels,
    /// How long a write of unknown outcome keeps its partitions uncached.
    pub unknown_outcome_hold: Duration,
    /// The most bytes of a partition's unit; 0 for none.
    pub partition_unit_size: u64,
    /// When a fill is sent to a second node of the database.
    pub fill_hedge: FillHedge,
    /// Those that are not for users to set.
    pub times: Times,
    /// The ring, where several instances share the tables.
    pub ring: Option<RingConfig>,
}

/// The cached path, not serving yet.
pub struct Cached {
    pub(super) router: Arc<CachedRouter>,
    policies: Arc<LivePolicies>,
    pub(super) claims: Claims<FillWaiter>,
    ring: Option<(RingConfig, PathBuf)>,
}

impl Cached {
    /// Takes over from the last run in this data directory, whose tables are known.
    ///
    /// # Errors
    /// When one of its files cannot be made.
    pub fn open(config: &CachedConfig<'_>, tables: NotedTables) -> Result<Cached, CachedError> {
        let (generation, policies) = config.policies.current();
        let claims = start(Start {
            engine: config.engine,
            data_dir: config.data_dir,
            policies: config.policies.clone(),
            policies_now: (generation, policies_text(&policies)),
            restart_grace: config.restart_grace,
            sharing: config.ring.is_some(),
            planned_restart_grace: config.planned_restart_grace,
            hold: config.unknown_outcome_hold,
            weak_max_age: config.times.weak_max_age,
            lease: LeaseTimes { lease: config.times.lease, margin: config.times.margin },
            clock: Arc::new(SystemClock),
        })?;
        let (cache, devices) = (claims.cache().clone(), config.engine.devices());
        let sharing = config.ring.is_some();
        if sharing {
            // Before the first client comes: nothing is ours until the ring says so.
            cache.share(SHARDS);
        }
        // What the engine cannot store would be read in vain. A key takes 1 KiB at most.
        let largest = (config.engine.stats().segment_size / 4).saturating_sub(2048);
        let units = Units::new(config.partition_unit_size.min(largest));
        let fills = FillRules { timeout: config.times.fill, hedge: config.fill_hedge };
        let weak_writes = WeakWrites::new(config.write_levels.clone());
        let router =
            CachedRouter::new((cache, tables), &devices, units, fills, sharing, weak_writes);
        let router = Arc::new(router);
        let ring = config.ring.clone().map(|ring| (ring, config.data_dir.to_path_buf()));
        Ok(Cached { router, policies: config.policies.clone(), claims, ring })
    }

    /// This instance's identity, for drivers too.
    pub fn host_id(&self) -> Uuid {
        self.claims.id()
    }

    /// What decides how a front end's requests are answered.
    pub fn router(&self) -> Arc<dyn Router> {
        self.router.clone()
    }

    /// Starts to ask for the lease, to write signs of life, and to settle what is due. With a ring,
    /// joins it; `links` is the bound address that other instances connect to.
    ///
    /// # Errors
    /// When the ring's address cannot be listened on.
    pub fn keep(
        self,
        front_end: &CqlFrontEnd,
        links: Option<Bound>,
    ) -> Result<Keeping, TransportError> {
        let (stop, stopped) = oneshot::channel();
        let counted = self.router.shared().cache.clone();
        front_end.front_end().config.metrics.add_source(move |out| {
            let help =
                "Partitions and tables not cached now because the outcome of a write is unknown.";
            out.header("afterglow_quarantined_partitions", Kind::Gauge, help);
            out.sample("afterglow_quarantined_partitions", &[("frontend", "cql")], counted.held());
        });
        let shared = self.router.shared().clone();
        let cache = shared.cache.clone();
        let licensed = cache.clone();
        front_end.front_end().config.metrics.lease.held_while(move || licensed.caches_exclusive());
        let Cached { policies, claims, ring, .. } = self;
        let of = front_end.front_end().clone();
        let invalidator = Invalidator { shared: shared.clone(), front_end: of.clone() };
        let reactors = of.reactors.clone();
        let ring = match ring.zip(links) {
            None => {
                reactors.spawn_on(0, move || async move {
                    Keeper::new(of, shared, policies, claims).run(stopped).await;
                });
                None
            }
            Some(((config, data_dir), links)) => {
                let open =
                    OpenRing::start(config, &data_dir, claims.id(), (&policies, &of), &shared);
                open.connect(links, &of, &shared)?;
                let ring = RingHandle::new(&open);
                of.config.metrics.set_ring(ring.figures());
                of.config.metrics.set_ring_entry(RingEntry::Awaited);
                // Writes wait for this, and reads pass through until then.
                let _ = shared.ring.set(open.ring.clone());
                reactors.spawn_on(0, move || async move {
                    RingKeeper::new(of, shared, policies, claims, open).run(stopped).await;
                });
                Some(ring)
            }
        };
        Ok(Keeping { stop, cache, ring, invalidator })
    }
}

/// The cached path at work.
pub struct Keeping {
    stop: Stop,
    cache: Arc<RowCache>,
    ring: Option<RingHandle>,
    invalidator: Invalidator,
}

impl Keeping {
    /// What drops rows at the operator's word.
    pub fn invalidator(&self) -> Invalidator {
        self.invalidator.clone()
    }

    /// The ring; none for an instance without one.
    pub fn ring(&self) -> Option<RingHandle> {
        self.ring.clone()
    }

    /// The clean stop, after the front end was drained. `whole`: every request was answered, so
    /// that nothing of ours is under way and the lease can be given back at once. Blocks; not to be
    /// called on a reactor.
    pub fn stop(self, whole: bool) {
        let (done, ended) = std::sync::mpsc::sync_channel(1);
        // Who takes the lease next knows nothing of writes whose outcome is unknown: it had better
        // wait until ours runs out.
        let release = whole && self.cache.held() == 0;
        if self.stop.send((release, done)).is_ok() {
            // The lease runs out by itself when this takes too long.
            let _ = ended.recv_timeout(STOP_TIMEOUT);
        }
        if whole {
            self.cache.close();
        }
    }
}
