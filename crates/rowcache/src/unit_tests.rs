//! Every write to a partition drops its unit, and overtakes the fills of it that began before.

use std::sync::Arc;

use afterglow_cql::plan::{Plan, RowKey, SlicePlan, analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup};
use tempfile::TempDir;

use crate::gate::{Bypass, Join, Ticket};
use crate::install::{Installed, ReturnedFill};
use crate::row_cache::RowCache;
use crate::serve::CachePermission;
use crate::tables::Index;
use crate::testing::{TestClock, cache_of_boot, open_engine};
use crate::unit::{UnitAsked, read_unit};
use crate::write_in_flight::{Answered, InDoubt, WriteInFlight};
use crate::write_scope::WriteScope;

const PERMISSION: CachePermission = CachePermission::Exclusive { claim: 7 };

/// A cache, and a read of the partition 1 of `s.t`.
struct Stage {
    cache: Arc<RowCache<()>>,
    schema: Arc<Schema>,
    index: Index,
    plan: SlicePlan,
    key: RowKey,
    engine: Cache,
    clock: Arc<TestClock>,
    directory: TempDir,
}

impl Stage {
    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let cache = cache_of_boot(1, &engine, &directory.path().join("intents"), &clock);
        let script = "CREATE TABLE s.t (k int, c timeuuid, v int, PRIMARY KEY (k, c));";
        let schema = Arc::new(Schema::of_tables(defined_tables(script, None).unwrap()));
        let statement = parse("SELECT v FROM s.t WHERE k = 1 ORDER BY c DESC LIMIT 10");
        let Plan::CachedSlice(plan) = analyse(&statement, &*schema, None) else {
            panic!("it is a slice")
        };
        let mut key = RowKey::new();
        plan.read.key.bind(|_| None, &mut key).unwrap();
        let index = Index::of(schema.clone());
        Stage { cache, schema, index, plan, key, engine, clock, directory }
    }

    fn scope(&self, text: &str) -> WriteScope {
        let Plan::Write(plan) = analyse(&parse(text), &*self.schema, None) else {
            panic!("{text} is a write")
        };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &self.index);
        // What goes to the owners in a ring drops the same.
        WriteScope::decode(&scope.encode()).unwrap()
    }

    fn begin(&self, text: &str) -> WriteInFlight<()> {
        self.cache.begin_write(&self.scope(text), false, 0, WriteScope::default)
    }

    fn join(&self) -> Join<()> {
        self.cache.join(&self.plan.read.table, &self.key, PERMISSION, || ())
    }

    fn lead(&self) -> Ticket<()> {
        match self.join() {
            Join::Lead(ticket) => ticket,
            Join::Wait => panic!("nobody else leads"),
            Join::Bypass(reason) => panic!("{reason:?}"),
        }
    }

    /// Ends a fill of the empty partition.
    fn install(&self, ticket: Ticket<()>) -> Installed {
        let (plan, key) = (&self.plan.read, &self.key);
        let asked = UnitAsked { reversed: true, rows: 64, bytes: 1 << 16 };
        let filled = read_unit(&plan.table, plan.fingerprint, key, &[], asked, 1).unwrap();
        let asked_at = self.cache.clock().moment();
        let fill =
            ReturnedFill { plan, key, filled, cache_permission: PERMISSION, asked_at, weak: false };
        self.cache.install(fill, ticket).installed
    }

    fn is_cached(&self) -> bool {
        self.is_cached_in(&self.cache)
    }

    fn is_cached_in(&self, cache: &RowCache<()>) -> bool {
        match cache.look_up(&self.key) {
            Lookup::Hit(hit) => {
                cache.accept_unit(&hit, PERMISSION, self.plan.read.fingerprint).is_ok()
            }
            _ => false,
        }
    }
}

const ROW: &str = "00000000-0000-1000-8000-000000000001";

/// Writes to the partition, each of another kind.
fn writes() -> Vec<String> {
    [
        "INSERT INTO s.t (k, c, v) VALUES (1, ROW, 1)",
        "INSERT INTO s.t (k, c, v) VALUES (1, ROW, 1) IF NOT EXISTS",
        "INSERT INTO s.t (k, c, v) VALUES (1, now(), 1)",
        "INSERT INTO s.t (k, c, v) VALUES (1, f(), 1)",
        "INSERT INTO s.t JSON '{\"k\": 1, \"c\": \"ROW\", \"v\": 1}'",
        "INSERT INTO s.t JSON '{\"k\": f}'",
        "UPDATE s.t SET v = 1 WHERE k = 1 AND c = ROW",
        "UPDATE s.t SET v = 1 WHERE k = 1 AND c = ROW IF v = 2",
        "UPDATE s.t SET v = 1 WHERE k IN (2, 1) AND c IN (ROW, now())",
        "DELETE FROM s.t WHERE k = 1 AND c = ROW",
        "DELETE v FROM s.t WHERE k = 1 AND c = ROW",
        "DELETE FROM s.t WHERE k = 1 AND c > ROW",
        "DELETE FROM s.t WHERE k = 1",
        "BEGIN UNLOGGED BATCH DELETE FROM s.t WHERE k = 2 AND c = ROW; \
         DELETE FROM s.t WHERE k = 1 AND c = ROW; APPLY BATCH",
        "TRUNCATE s.t",
        "ALTER TABLE s.t ADD w int",
        "DROP KEYSPACE s",
    ]
    .map(|text| text.replace("ROW", ROW))
    .to_vec()
}

#[test]
fn a_write_to_any_row_drops_the_unit_and_overtakes_its_fills() {
    for text in writes() {
        let stage = Stage::new();
        assert_eq!(stage.install(stage.lead()), Installed::Row);
        assert!(stage.is_cached());
        let write = stage.begin(&text);
        assert!(!stage.is_cached(), "{text}");
        assert!(matches!(stage.join(), Join::Bypass(Bypass::WriteInFlight)), "{text}");
        write.settle(Answered::Definite);
        let before = stage.lead();
        stage.begin(&text).settle(Answered::Definite);
        assert_eq!(stage.install(before), Installed::Overtaken, "{text}");
        assert!(!stage.is_cached(), "{text}");
        assert_eq!(stage.install(stage.lead()), Installed::Row, "{text}");
    }
}

#[test]
fn a_write_of_unknown_outcome_keeps_the_unit_away_also_after_a_crash() {
    for text in writes() {
        let stage = Stage::new();
        assert_eq!(stage.install(stage.lead()), Installed::Row);
        stage.begin(&text).settle(Answered::Unknown(InDoubt::WriteTimeout));
        assert!(!stage.is_cached(), "{text}");
        assert!(matches!(stage.join(), Join::Bypass(Bypass::Quarantined)), "{text}");
        let intents = stage.directory.path().join("intents");
        let again: Arc<RowCache<()>> = cache_of_boot(1, &stage.engine, &intents, &stage.clock);
        assert!(!stage.is_cached_in(&again), "{text}");
        let joined = again.join(&stage.plan.read.table, &stage.key, PERMISSION, || ());
        assert!(matches!(joined, Join::Bypass(Bypass::Quarantined)), "{text}");
    }
}

#[test]
fn a_write_to_another_partition_leaves_the_unit() {
    for text in [
        "INSERT INTO s.t (k, c, v) VALUES (2, ROW, 1)",
        "INSERT INTO s.t (k, c, v) VALUES (2, now(), 1)",
        "DELETE FROM s.t WHERE k = 2",
        "DELETE FROM s.t WHERE k = 2 AND c > ROW",
    ] {
        let stage = Stage::new();
        assert_eq!(stage.install(stage.lead()), Installed::Row);
        stage.begin(&text.replace("ROW", ROW)).settle(Answered::Definite);
        assert!(stage.is_cached(), "{text}");
    }
}
