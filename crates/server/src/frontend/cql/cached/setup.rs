//! Puts the cached path together at start, and takes it apart at a clean stop.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::device::area::{MediaError, boot_id};
use afterglow_engine::{Cache, NamespaceOptions, OpenError};
use afterglow_rowcache::clock::{Clock, SystemClock};
use afterglow_rowcache::instance::{self, Instance, Present};
use afterglow_rowcache::intents::words::ANYTHING;
use afterglow_rowcache::intents::{IntentDoubt, IntentTable};
use afterglow_rowcache::row_cache::Parts;
use futures_channel::oneshot;
use uuid::Uuid;

use super::super::{CqlFrontEnd, Router};
use super::RowCache;
use super::keeper::{Keeper, Stop, policies_text};
use super::router::CachedRouter;
use super::times::Times;
use crate::config::LivePolicies;
use crate::metrics::Kind;

/// The namespace that rows live in.
const NAMESPACE: &str = "cql";
/// The file of intents in the data directory.
const INTENTS: &str = "intents";
/// Writes that may be under way, or held, at once and be told apart after a crash.
const INTENT_SLOTS: u32 = 64 * 1024;
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

/// Why the cached path cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum CachedError {
    /// The namespace.
    #[error(transparent)]
    Namespace(#[from] OpenError),
    /// The file of intents.
    #[error(transparent)]
    Intents(#[from] MediaError),
    /// The instance file.
    #[error("cannot write the instance file in the data directory: {0}")]
    Instance(#[source] io::Error),
}

/// Refuses what [`Cached::open`] would, by a look at the files of the data directory. What it would doubt is returned.
///
/// # Errors
/// [`CachedError`].
pub fn look(data_dir: &Path) -> Result<Option<IntentDoubt>, CachedError> {
    instance::look(data_dir).map_err(CachedError::Instance)?;
    let path = data_dir.join(INTENTS);
    if path.is_dir() {
        let source = io::ErrorKind::IsADirectory.into();
        return Err(MediaError::Io { doing: "write", path, source }.into());
    }
    Ok(IntentTable::look(&path))
}

/// The cached path, not serving yet.
pub struct Cached {
    pub(super) router: Arc<CachedRouter>,
    policies: Arc<LivePolicies>,
    /// Generation of the policies that the instance's claim is about.
    generation: u64,
    instance: Instance,
    times: Times,
}

impl Cached {
    /// Takes over from the last run in this data directory.
    ///
    /// # Errors
    /// When one of its files cannot be made.
    pub fn open(config: &CachedConfig<'_>) -> Result<Cached, CachedError> {
        let expected = config.data_dir.join(instance::FILE).exists();
        let clock = Arc::new(SystemClock);
        // Should they be replaced before the keeper runs, it finds another generation.
        let (generation, policies) = config.policies.current();
        // Where the system does not tell, every start counts as a boot.
        let boot = boot_id().map_or_else(|_| Uuid::new_v4(), |id| Uuid::from_bytes(id.0));
        let present = Present {
            policies: policies_text(&policies),
            boot_id: boot.to_string(),
            now: clock.now(),
            restart_grace: config.restart_grace,
        };
        let (instance, new_claim) =
            Instance::open(config.data_dir, &present).map_err(CachedError::Instance)?;
        match &new_claim {
            Some(why) if expected => {
                tracing::warn!(%why, "rows cached under `exclusive` by the last run are not served");
            }
            Some(_) => tracing::info!(instance = %instance.id(), "first start in this data directory"),
            None => {
                let instance = instance.id();
                tracing::info!(%instance, "rows cached under `exclusive` are served again once the lease is ours");
            }
        }
        let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
        let rows = config.engine.namespace(NAMESPACE, options)?;
        let path = config.data_dir.join(INTENTS);
        let (intents, unsettled) = IntentTable::open(&path, INTENT_SLOTS, ANYTHING, expected)?;
        if let Some(doubt) = &unsettled.doubt {
            let hold = config.unknown_outcome_hold;
            tracing::warn!(
                ?doubt,
                ?hold,
                "it is not known which writes were on their way when the last run ended: `exclusive` tables are not cached for a while"
            );
        } else if !unsettled.intents.is_empty() {
            let count = unsettled.intents.len();
            tracing::info!(
                count,
                "writes were on their way when the last run ended: their partitions are not cached for a while"
            );
        }
        let cache = RowCache::new(Parts {
            rows,
            intents,
            unsettled: unsettled.intents,
            policies: config.policies.clone(),
            hold: config.unknown_outcome_hold,
            clock,
            boot: boot.as_u64_pair().0,
            weak_life: config.times.weak_life,
        });
        let router = Arc::new(CachedRouter::new(cache, &config.engine.devices(), config.times.fill));
        Ok(Cached { router, policies: config.policies.clone(), generation, instance, times: config.times })
    }

    /// This instance's identity, for drivers too.
    pub fn host_id(&self) -> Uuid {
        self.instance.id()
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
            let help = "Partitions and tables not cached now because the outcome of a write is unknown.";
            out.header("afterglow_quarantined_partitions", Kind::Gauge, help);
            out.sample("afterglow_quarantined_partitions", &[("frontend", "cql")], counted.held());
        });
        let shared = self.router.shared().clone();
        let cache = shared.cache.clone();
        let licensed = cache.clone();
        front_end.front_end().config.metrics.lease.held_while(move || licensed.caches_exclusive());
        let Cached { policies, generation, instance, times, .. } = self;
        let of = front_end.front_end().clone();
        front_end.front_end().reactors.spawn_on(0, move || async move {
            Keeper::new(of, shared, (policies, generation), instance, times).run(stopped).await;
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
    /// The clean stop, after the front end was drained. `whole`: every request was answered, so that nothing of ours is under way
    /// and the lease can be given back at once. Blocks; not to be called on a reactor.
    pub fn stop(self, whole: bool) {
        let (done, ended) = std::sync::mpsc::sync_channel(1);
        // Who takes the lease next knows nothing of writes whose outcome is unknown: it had better wait until ours runs out.
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
