//! Helpers for the tests of this crate.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use afterglow_engine::device::DeviceConfig;
use afterglow_engine::{Cache, Config, NamespaceOptions};

use crate::clock::{Clock, Millis};
use crate::intents::IntentTable;
use crate::policy::{Policies, Policy};
use crate::row_cache::{Parts, RowCache};

/// A clock that stands still until it is set.
pub struct TestClock {
    now: AtomicU64,
    unix: AtomicU32,
}

impl TestClock {
    /// A clock of a machine that has been up for a while, and whose wall clock is far behind the
    /// engine's time.
    pub fn new() -> Arc<TestClock> {
        Arc::new(TestClock { now: 1_000_000.into(), unix: 1_000_000_000.into() })
    }

    /// Lets seconds pass, and sets the wall clock back by as much.
    pub fn pass(&self, seconds: u32) {
        self.pass_millis(u64::from(seconds) * 1_000);
    }

    /// As [`TestClock::pass`], in milliseconds.
    pub fn pass_millis(&self, millis: Millis) {
        self.now.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Millis {
        self.now.load(Ordering::Relaxed)
    }

    fn unix(&self) -> u32 {
        self.unix.load(Ordering::Relaxed)
    }

    fn slack(&self) -> u32 {
        1_000_000_000
    }
}

/// One policy for all tables, at that generation: `exclusive` unless there is a bound.
#[derive(Default)]
pub struct OnePolicy {
    pub generation: AtomicU64,
    /// Seconds that a row may be stale; 0 for `exclusive`.
    pub bound: AtomicU32,
}

impl Policies for OnePolicy {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn policy(&self, _keyspace: &str, _table: &str) -> (u64, Policy) {
        let policy = match self.bound.load(Ordering::Relaxed) {
            0 => Policy::Exclusive,
            seconds => Policy::MaxStaleness(Duration::from_secs(seconds.into())),
        };
        (self.generation(), policy)
    }
}

/// An empty engine in that folder.
pub fn open_engine(dir: &Path) -> Cache {
    let device = DeviceConfig { path: dir.join("flash"), size: 32 << 20 };
    let mut config = Config::new(dir, vec![device]);
    (config.memory, config.journal_size) = (64 << 20, 1 << 20);
    Cache::open(config).unwrap()
}

/// The cache of a start in that boot of the machine, on an engine that may hold rows of others, and
/// intents of a run that crashed.
pub fn cache_of_boot<W>(
    boot: u64,
    engine: &Cache,
    intents: &Path,
    clock: &Arc<TestClock>,
) -> Arc<RowCache<W>> {
    cache_under(Arc::default(), boot, engine, intents, clock)
}

/// The same under these policies.
pub fn cache_under<W>(
    policies: Arc<OnePolicy>,
    boot: u64,
    engine: &Cache,
    intents: &Path,
    clock: &Arc<TestClock>,
) -> Arc<RowCache<W>> {
    let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let rows = engine.namespace("cql", options).unwrap();
    let (intents, unsettled) = IntentTable::open(intents, 64, u64::MAX, false).unwrap();
    let policies_since = (policies.generation(), 0);
    RowCache::new(Parts {
        rows,
        intents,
        unsettled: unsettled.intents,
        policies,
        policies_since,
        hold: Duration::from_secs(600),
        clock: clock.clone(),
        boot,
        weak_max_age: Duration::from_secs(60),
    })
}
