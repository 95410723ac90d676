//! Help for the tests of this module.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterglow_engine::device::DeviceConfig;
use afterglow_engine::{Cache, Config, NamespaceOptions};
use afterglow_rowcache::intents::IntentTable;

use super::row_cache::Parts;
use super::{Clock, RowCache, Times};
use crate::config::{LivePolicies, TablePolicies};

/// An empty cache in that folder, and the engine that it lives on.
pub fn open_cache(dir: &Path) -> (Cache, Arc<RowCache>) {
    let device = DeviceConfig { path: dir.join("flash"), size: 32 << 20 };
    let mut config = Config::new(dir, vec![device]);
    (config.memory, config.journal_size) = (64 << 20, 1 << 20);
    let engine = Cache::open(config).unwrap();
    let rows = cache_of_boot(1, &engine, &dir.join("intents"));
    (engine, rows)
}

/// The cache of a start in that boot of the machine, on an engine that may hold rows of others.
pub fn cache_of_boot(boot: u64, engine: &Cache, intents: &Path) -> Arc<RowCache> {
    let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let rows = engine.namespace("cql", options).unwrap();
    let (intents, _) = IntentTable::open(intents, 64, u64::MAX, false).unwrap();
    RowCache::new(Parts {
        rows,
        intents,
        unsettled: Vec::new(),
        policies: Arc::new(LivePolicies::new(TablePolicies { rules: Vec::new() })),
        hold: Duration::from_secs(600),
        clock: Clock,
        boot,
        weak_life: Times::default().weak_life,
    })
}
