//! For how long what a fill brought is served, by the clock that never steps.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use afterglow_cql::plan::{Plan, ReadPlan, RowKey, SchemaView, TableSchema, analyse};
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Hit, Lookup};
use bytes::Bytes;
use tempfile::TempDir;
use uuid::Uuid;

use crate::carried::CarriedRow;
use crate::entry::Row;
use crate::gate::{Join, Ticket};
use crate::install::{InstallOutcome, Installed, ReturnedFill};
use crate::row::{Filled, encode_absent};
use crate::row_cache::RowCache;
use crate::serve::{CachePermission, NotServed};
use crate::shards::claim_of;
use crate::testing::{OnePolicy, TestClock, cache_of_boot, cache_under, open_engine};

const PERMISSION: CachePermission = CachePermission::Exclusive { claim: 7 };

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
    policies: Arc<OnePolicy>,
    plan: ReadPlan,
    key: RowKey,
    engine: Cache,
    directory: TempDir,
}

impl Stage {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let policies = Arc::<OnePolicy>::default();
        let intents = directory.path().join("intents");
        let cache = cache_under(policies.clone(), 1, &engine, &intents, &clock);
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
        Self { cache, clock, policies, plan, key, engine, directory }
    }

    fn join(&self, waiter: Waiter) -> Join<Waiter> {
        self.cache.join(&self.plan.table, &self.key, PERMISSION, || waiter)
    }

    fn lead(&self) -> Ticket<Waiter> {
        match self.join(0) {
            Join::Lead(ticket) => ticket,
            _ => panic!("nobody else leads"),
        }
    }

    /// A fill that the database took so many seconds for, of a row that is served up to `max_age`
    /// seconds. The wall clock was set back by as much meanwhile.
    fn fill(&self, took: u32, max_age: Option<u32>) -> ReturnedFill<'_> {
        let asked_at = self.cache.clock().moment();
        self.clock.pass(took);
        let mut bytes = Vec::new();
        encode_absent(self.plan.fingerprint, &mut bytes);
        let filled = Filled { bytes, max_age, marker_only: false };
        ReturnedFill {
            plan: &self.plan,
            key: &self.key,
            filled,
            cache_permission: PERMISSION,
            asked_at,
            weak: false,
        }
    }

    fn served(&self) -> Result<Row, NotServed> {
        self.served_by(&self.cache, PERMISSION)
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
    for (max_age, later, served) in
        [(None, 0, true), (Some(1_000_000), 0, true), (Some(5), 1, true), (Some(5), 2, false)]
    {
        let ticket = stage.lead();
        let finished = stage.cache.install(stage.fill(3, max_age), ticket);
        assert!(finished.row.is_some(), "who asked before the end is answered");
        assert_eq!(finished.installed, Installed::Absent);
        stage.clock.pass(later);
        match stage.served() {
            Ok(_) => assert!(served, "{max_age:?} and {later}"),
            Err(reason) => {
                assert!(!served && reason == NotServed::Expired, "{max_age:?}: {reason:?}")
            }
        }
    }
    let ticket = stage.lead();
    let finished = stage.cache.install(stage.fill(3, Some(3)), ticket);
    assert!(finished.row.is_some());
    assert_eq!(finished.installed, Installed::Refused, "it has ended");
    assert!(!matches!(stage.cache.look_up(&stage.key), Lookup::Hit(_)));
}

#[test]
fn who_joins_a_slow_fill_is_not_answered_with_a_row_that_has_ended() {
    let stage = Stage::new();
    for (max_age, shared) in
        [(None, true), (Some(1_000_000), true), (Some(3), false), (Some(0), false)]
    {
        let ticket = stage.lead();
        assert!(matches!(stage.join(1), Join::Wait), "the fill can be joined");
        let InstallOutcome { waiters, shared: told, .. } =
            stage.cache.install(stage.fill(3, max_age), ticket);
        assert_eq!(waiters, [1], "it is told");
        assert_eq!(told.is_some(), shared, "{max_age:?}");
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

/// In a ring a write of a row of another member closes no gate here while its table is `exclusive`.
#[test]
fn a_copy_of_before_the_policies_changed_is_not_served_in_a_ring() {
    for (is_shared, is_served) in [(false, true), (true, false)] {
        let stage = Stage::new();
        stage.cache.suspend(false);
        if is_shared {
            stage.cache.share(4);
        }
        let permission = |generation, bound| {
            stage.policies.generation.store(generation, Relaxed);
            stage.policies.bound.store(bound, Relaxed);
            stage.cache.agree(Some(generation));
            assert_eq!(stage.cache.is_cached_by_each(&stage.plan.table), bound > 0);
            stage.cache.cache_permission(&stage.plan.table)
        };
        let fill = |cache_permission| {
            let fill = ReturnedFill { cache_permission, ..stage.fill(0, None) };
            stage.cache.install(fill, stage.lead());
            stage.served_by(&stage.cache, cache_permission)
        };
        assert!(fill(permission(0, 60).unwrap()).is_ok());
        let _ = permission(1, 0);
        let bound = permission(2, 60).unwrap();
        assert_eq!(stage.served_by(&stage.cache, bound).is_ok(), is_served);
        stage.clock.pass(1);
        assert!(fill(bound).is_ok());
    }
}

/// The shard that the row is of, and the claim of its epoch 3.
const SHARD: usize = 5;

fn stage_of_epoch_3(max_age: Option<u32>) -> Stage {
    let stage = Stage::new();
    stage.cache.suspend(false);
    stage.cache.set_claim(Some((9, 0)));
    let cache_permission = CachePermission::Exclusive { claim: claim_of(9, SHARD, 3) };
    let fill = ReturnedFill { cache_permission, ..stage.fill(0, max_age) };
    stage.cache.install(fill, stage.lead());
    stage
}

impl Stage {
    fn hit(&self) -> Hit {
        match self.cache.look_up_key(self.key.engine_key()) {
            Lookup::Hit(hit) => hit,
            _ => panic!("it is in memory"),
        }
    }

    fn carried(&self, shard: usize, before: u64) -> Option<CarriedRow> {
        self.cache.carried(&self.hit(), shard, before)
    }
}

#[test]
fn only_rows_of_this_shard_and_of_an_earlier_epoch_are_carried() {
    let stage = stage_of_epoch_3(None);
    for (shard, before, epoch) in [
        (SHARD, 4, Some(3)),
        (SHARD, 11, Some(3)),
        (SHARD, 12, None),
        (SHARD, 3, None),
        (6, 4, None),
    ] {
        assert_eq!(stage.carried(shard, before).map(|row| row.epoch), epoch, "{shard} {before}");
    }
    let row = stage.carried(SHARD, 4).unwrap();
    assert_eq!(row.exists(stage.plan.fingerprint), Some(false), "no row is what is cached");
    assert_eq!(row.exists(stage.plan.fingerprint + 1), None);
    stage.cache.suspend(true);
    assert_eq!(stage.carried(SHARD, 4), None, "the schema is not known");
    stage.cache.suspend(false);
    stage.cache.set_claim(Some((8, 0)));
    assert_eq!(stage.carried(SHARD, 4), None, "others may have written since that claim");
    stage.cache.set_claim(None);
    assert_eq!(stage.carried(SHARD, 4), None);
}

#[test]
fn a_row_that_is_carried_ends_no_later_than_where_it_was() {
    for (max_age, left) in [(None, None), (Some(10), Some(5)), (Some(6), Some(1))] {
        let stage = stage_of_epoch_3(max_age);
        stage.clock.pass(4);
        let row = stage.carried(SHARD, 4).unwrap();
        let sent = Bytes::from(row.encode());
        assert_eq!(CarriedRow::decode(3, &sent), Some(row));
        assert_eq!(CarriedRow::decode(3, &sent.slice(..3)), None);
        let filled = CarriedRow::decode(3, &sent).unwrap().into_filled();
        assert_eq!((filled.max_age, filled.marker_only), (left, false));
        let ticket = stage.lead();
        let fill = ReturnedFill { filled, ..stage.fill(0, None) };
        stage.cache.install(fill, ticket);
        assert!(stage.served().is_ok());
        stage.clock.pass(left.unwrap_or(1_000));
        assert_eq!(stage.served().is_ok(), max_age.is_none());
    }
    let stage = stage_of_epoch_3(Some(5));
    stage.clock.pass(4);
    assert_eq!(stage.carried(SHARD, 4), None, "its last second may be over");
}

#[test]
fn a_row_whose_fill_may_have_missed_a_write_is_not_carried() {
    let stage = Stage::new();
    let cache_permission = CachePermission::Exclusive { claim: claim_of(7, SHARD, 3) };
    let fill = ReturnedFill { cache_permission, weak: true, ..stage.fill(0, None) };
    stage.cache.set_claim(Some((7, 0)));
    stage.cache.suspend(false);
    stage.cache.install(fill, stage.lead());
    assert!(stage.served_by(&stage.cache, cache_permission).is_ok());
    assert_eq!(stage.carried(SHARD, 4), None);
}

/// Another instance may send anything.
#[test]
fn no_bytes_of_another_instance_are_taken_for_a_row_that_they_are_not() {
    let stage = stage_of_epoch_3(None);
    let sent = stage.carried(SHARD, 4).unwrap().encode();
    let fits = |bytes: &[u8]| {
        let row = CarriedRow::decode(3, &Bytes::copy_from_slice(bytes));
        row.is_some_and(|row| row.exists(stage.plan.fingerprint).is_some())
    };
    assert!(fits(&sent));
    (0..sent.len()).for_each(|end| assert!(!fits(&sent[..end]), "{end}"));
    for at in 0..sent.len() {
        let mut bytes = sent.clone();
        bytes[at] ^= 0xff;
        // Only the seconds that it has left may be others.
        assert!(!fits(&bytes) || at < 4, "{at}");
    }
}
