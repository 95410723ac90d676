//! The doors that the configuration wants open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_engine::{Cache, Durability};
use afterglow_memcache::auth::Users;

use super::{PLANS_FILE, ServeError};
use crate::{
    config::{Config, DurabilityChoice, LivePolicies},
    door::cql::cached::{Cached, CachedConfig, Keeping},
    door::cql::{CqlDoor, CqlDoorConfig},
    door::memcache::{DoorAddress, MemcacheDoor, MemcacheDoorConfig, Tls},
    metrics::Metrics,
    reactor::Reactors,
};

/// The open doors.
pub(super) struct Doors {
    cql: Option<(CqlDoor, Keeping)>,
    memcache: Option<MemcacheDoor>,
}

impl Doors {
    /// Opens what is configured.
    pub(super) fn open(
        config: &Config,
        cache: &Arc<Cache>,
        policies: &Arc<LivePolicies>,
        metrics: &Arc<Metrics>,
        reactors: &Reactors,
    ) -> Result<Self, ServeError> {
        let memcache = match config.has_memcache() {
            true => Some(MemcacheDoor::start(memcache(config, cache, metrics)?, cache, reactors)?),
            false => None,
        };
        let cql = match config.cql {
            Some(listen) => Some(open_cql(config, listen, cache, policies, metrics, reactors)?),
            None => None,
        };
        Ok(Doors { cql, memcache })
    }

    /// Where they listen, by door.
    pub(super) fn addresses(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if let Some((door, _)) = &self.cql {
            all.push(("cql", door.address().to_string()));
        }
        for address in self.memcache.iter().flat_map(MemcacheDoor::addresses) {
            all.push(match address {
                DoorAddress::Tcp(address) => ("memcache", address.to_string()),
                DoorAddress::Unix(path) => ("memcache-unix", path.display().to_string()),
            });
        }
        all
    }

    /// Lets requests under way be answered, for at most `timeout`, and closes; false when some were cut off.
    pub(super) fn close(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut whole = self.memcache.is_none_or(|door| door.drain(left()));
        if let Some((door, keeping)) = self.cql {
            let drained = door.drain(left());
            keeping.stop(drained);
            whole &= drained;
        }
        whole
    }
}

fn open_cql(
    config: &Config,
    listen: std::net::SocketAddr,
    cache: &Arc<Cache>,
    policies: &Arc<LivePolicies>,
    metrics: &Arc<Metrics>,
    reactors: &Reactors,
) -> Result<(CqlDoor, Keeping), ServeError> {
    let cached = Cached::open(&CachedConfig {
        engine: cache,
        data_dir: &config.data_dir,
        policies: policies.clone(),
        restart_grace: config.restart_grace.get(),
        unknown_outcome_hold: config.unknown_outcome_hold.get(),
    })?;
    let door = CqlDoorConfig {
        listen,
        backends: config.backend.clone(),
        credentials: config.backend_credentials.clone(),
        advertise: config.advertise,
        host_id: Some(cached.host_id()),
        plans: Some(config.data_dir.join(PLANS_FILE)),
        metrics: metrics.clone(),
        router: cached.router(),
    };
    let door = CqlDoor::start(door, reactors)?;
    let keeping = cached.keep(&door);
    Ok((door, keeping))
}

fn memcache(
    config: &Config,
    cache: &Cache,
    metrics: &Arc<Metrics>,
) -> Result<MemcacheDoorConfig, ServeError> {
    let tls = match (&config.memcache_tls_cert, &config.memcache_tls_key) {
        (Some(certificates), Some(key)) => Some(Tls::open(certificates, key)?),
        _ => None,
    };
    let users = config.memcache_auth_file.as_ref().map(|path| {
        let unusable = |why: String| ServeError::Users { path: path.clone(), why };
        let text = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        Users::parse(&text).map_err(|error| unusable(error.to_string()))
    });
    Ok(MemcacheDoorConfig {
        listen: config.memcache,
        unix: config.memcache_unix.clone(),
        tls,
        users: users.transpose()?,
        max_connections: config.memcache_connections.get(),
        idle_timeout: config.memcache_idle_timeout.map(|timeout| timeout.get()),
        max_item: max_item(config, cache),
        buffers: usize::try_from(config.buffers().get()).unwrap_or(usize::MAX),
        durability: match config.memcache_durability {
            DurabilityChoice::WriteBack => Durability::WriteBack,
            DurabilityChoice::WriteThrough => Durability::WriteThrough,
            DurabilityChoice::Synced => Durability::Synced,
        },
        data_dir: config.data_dir.clone(),
        metrics: metrics.clone(),
    })
}

/// What is configured, or less where segments are small.
fn max_item(config: &Config, cache: &Cache) -> usize {
    let (wanted, possible) = (config.memcache_item_size.get(), cache.stats().segment_size / 4);
    if wanted > possible {
        tracing::warn!(
            "objects of the memcache door may count {possible} bytes, not {wanted}: a quarter of a segment of this flash"
        );
    }
    usize::try_from(wanted.min(possible)).unwrap_or(usize::MAX)
}
