//! Puts the cached path together at start, and takes it apart at a clean stop.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::Cache;
use afterglow_rowcache::claims::{Claims, LeaseTimes};
use afterglow_rowcache::clock::SystemClock;
use afterglow_rowcache::restart::{Start, start};
use futures_channel::oneshot;
use uuid::Uuid;

use super::super::{CqlFrontEnd, Router};
use super::keeper::{Keeper, Stop, policies_text};
use super::router::CachedRouter;
use super::times::Times;
use super::{CachedError, FillWaiter, RowCache};
use crate::config::LivePolicies;
use crate::metrics::Kind;

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
    /// How long a write of unknown outcome keeps its partitions uncached.
    pub unknown_outcome_hold: Duration,
    /// Those that are not for users to set.
    pub times: Times,
}

/// The cached path, not serving yet.
pub struct Cached {
    pub(super) router: Arc<CachedRouter>,
    policies: Arc<LivePolicies>,
    claims: Claims<FillWaiter>,
}

impl Cached {
    /// Takes over from the last run in this data directory.
    ///
    /// # Errors
    /// When one of its files cannot be made.
    pub fn open(config: &CachedConfig<'_>) -> Result<Cached, CachedError> {
        let (generation, policies) = config.policies.current();
        let claims = start(Start {
            engine: config.engine,
            data_dir: config.data_dir,
            policies: config.policies.clone(),
            policies_now: (generation, policies_text(&policies)),
            restart_grace: config.restart_grace,
            hold: config.unknown_outcome_hold,
            weak_life: config.times.weak_life,
            lease: LeaseTimes { lease: config.times.lease, margin: config.times.margin },
            clock: Arc::new(SystemClock),
        })?;
        let (cache, devices) = (claims.cache().clone(), config.engine.devices());
        let router = Arc::new(CachedRouter::new(cache, &devices, config.times.fill));
        Ok(Cached { router, policies: config.policies.clone(), claims })
    }

    /// This instance's identity, for drivers too.
    pub fn host_id(&self) -> Uuid {
        self.claims.id()
    }

    /// What decides how a front end's requests are answered.
    pub fn router(&self) -> Arc<dyn Router> {
        self.router.clone()
    }

    /// Starts to ask for the lease, to write signs of life, and to settle what is due.
    pub fn keep(self, front_end: &CqlFrontEnd) -> Keeping {
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
        let Cached { policies, claims, .. } = self;
        let of = front_end.front_end().clone();
        front_end.front_end().reactors.spawn_on(0, move || async move {
            Keeper::new(of, shared, policies, claims).run(stopped).await;
        });
        Keeping { stop, cache }
    }
}

/// The cached path at work.
pub struct Keeping {
    stop: Stop,
    cache: Arc<RowCache>,
}

impl Keeping {
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
