//! For how long what a fill brought is served, by the clock that never steps.

use std::sync::Arc;

use afterglow_cql::plan::{Plan, ReadPlan, RowKey, SchemaView, TableSchema, analyse};
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup};
use tempfile::TempDir;
use uuid::Uuid;

use crate::entry::Row;
use crate::gate::{Join, Ticket};
use crate::install::{InstallOutcome, Installed, ReturnedFill};
use crate::row::{Filled, encode_absent};
use crate::row_cache::RowCache;
use crate::serve::{CachePermission, NotServed};
use crate::testing::{TestClock, cache_of_boot, open_engine};

const LICENCE: CachePermission = CachePermission::Exclusive { claim: 7 };

struct OneTable(Arc<TableSchema>);

impl SchemaView for OneTable {
    fn table(&self, _keyspace: &str, _name: &str) -> Option<Arc<TableSchema>> {
        Some(self.0.clone())
    }
}

/// How a read that waits is told apart.
type Waiter = u32;

/// A cache, and a read of one row of it.
struct Stage {
    cache: Arc<RowCache<Waiter>>,
    clock: Arc<TestClock>,
    plan: ReadPlan,
    key: RowKey,
    engine: Cache,
    directory: TempDir,
}

impl Stage {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let cache = cache_of_boot(1, &engine, &directory.path().join("intents"), &clock);
        let table = TableSchema {
            partition_key: vec![afterglow_cql::plan::Column::new("k", "int")],
            ..TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))
        };
        let statement = parse("SELECT k FROM ks.t WHERE k = 1");
        let Plan::CachedRead(plan) = analyse(&statement, &OneTable(Arc::new(table)), None) else {
            panic!("not cached")
        };
        let mut key = RowKey::new();
        plan.key.bind(|_| None, &mut key).unwrap();
        Self { cache, clock, plan, key, engine, directory }
    }

    fn join(&self, waiter: Waiter) -> Join<Waiter> {
        self.cache.join(&self.plan.table, &self.key, LICENCE, || waiter)
    }

    fn lead(&self) -> Ticket<Waiter> {
        match self.join(0) {
            Join::Lead(ticket) => ticket,
            _ => panic!("nobody else leads"),
        }
    }

    /// A fill that the database took so many seconds for, of a row that may be served for `life`
    /// seconds. The wall clock was set back by as much meanwhile.
    fn fill(&self, took: u32, life: Option<u32>) -> ReturnedFill<'_> {
        let asked_at = self.cache.clock().moment();
        self.clock.pass(took);
        let mut bytes = Vec::new();
        encode_absent(self.plan.fingerprint, &mut bytes);
        let filled = Filled { bytes, life, marker_only: false };
        ReturnedFill {
            plan: &self.plan,
            key: &self.key,
            filled,
            cache_permission: LICENCE,
            asked_at,
        }
    }

    fn served(&self) -> Result<Row, NotServed> {
        self.served_by(&self.cache, LICENCE)
    }

    fn served_by(
        &self,
        cache: &RowCache<Waiter>,
        cache_permission: CachePermission,
    ) -> Result<Row, NotServed> {
        match cache.look_up(&self.key) {
            Lookup::Hit(hit) => cache.accept(&hit, cache_permission, self.plan.fingerprint),
            _ => panic!("it is in memory"),
        }
    }
}

#[test]
fn a_wall_clock_that_is_set_back_keeps_no_row_beyond_its_end() {
    let stage = Stage::new();
    for (life, served) in [(None, true), (Some(1_000_000), true), (Some(3), false)] {
        let ticket = stage.lead();
        let finished = stage.cache.install(stage.fill(3, life), ticket);
        assert!(finished.row.is_some(), "who asked before the end is answered");
        assert_eq!(finished.installed, Installed::Absent);
        match stage.served() {
            Ok(_) => assert!(served, "{life:?}"),
            Err(reason) => assert!(!served && reason == NotServed::Expired, "{life:?}: {reason:?}"),
        }
    }
}

#[test]
fn who_joins_a_slow_fill_is_not_answered_with_a_row_that_has_ended() {
    let stage = Stage::new();
    for (life, shared) in
        [(None, true), (Some(1_000_000), true), (Some(3), false), (Some(0), false)]
    {
        let ticket = stage.lead();
        assert!(matches!(stage.join(1), Join::Wait), "the fill can be joined");
        let InstallOutcome { waiters, shared: told, .. } =
            stage.cache.install(stage.fill(3, life), ticket);
        assert_eq!(waiters, [1], "it is told");
        assert_eq!(told.is_some(), shared, "{life:?}");
    }
}

#[test]
fn seconds_since_another_boot_make_no_row_young() {
    let stage = Stage::new();
    let bound = CachePermission::Bounded { seconds: 60 };
    let fill = ReturnedFill { cache_permission: bound, ..stage.fill(0, None) };
    stage.cache.install(fill, stage.lead());
    assert!(stage.served_by(&stage.cache, bound).is_ok());
    for (boot, served) in [(1, true), (2, false)] {
        let intents = stage.directory.path().join(format!("intents-{boot}"));
        let restarted = cache_of_boot(boot, &stage.engine, &intents, &stage.clock);
        match stage.served_by(&restarted, bound) {
            Ok(_) => assert!(served),
            Err(reason) => assert!(!served && reason == NotServed::Unusable, "{reason:?}"),
        }
    }
}
