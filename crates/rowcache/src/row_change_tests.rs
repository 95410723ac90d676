//! Which writes a cached row follows, and what of the new row is served for how long.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_cql::plan::{Column, Plan, ReadPlan, RowKey, analyse};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup, NamespaceOptions};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::clock::Clock;
use crate::gate::{GateScope, Join, Settled};
use crate::install::{Installed, ReturnedFill};
use crate::intents::IntentTable;
use crate::kept_unit::MOST_PENDING;
use crate::row::Filled;
use crate::row_cache::Parts;
use crate::tables::Index;
use crate::testing::{OnePolicy, TestClock, open_engine};
use crate::write_in_flight::{Answered, Followed, InDoubt, RowOutcome, WriteInFlight};

/// Seconds of the bound, of the hold and of what is weak.
const BOUND: u32 = 100;
const HOLD: u32 = 600;
const WEAK: u32 = 60;
/// The write time of what is cached.
const OLD: i64 = 1_000;
const NEW: i64 = 1_001;
const UPDATE: &str = "UPDATE ks.t SET v = 'new' WHERE k = 1";

/// A cache of `ks.t (k int PRIMARY KEY, v text, w text)`, and the row of key 1.
struct Stage {
    cache: Arc<RowCache<u32>>,
    clock: Arc<TestClock>,
    policies: Arc<OnePolicy>,
    index: Index,
    schema: Arc<Schema>,
    read: ReadPlan,
    key: RowKey,
    _engine: Cache,
    _directory: TempDir,
}

fn cache(
    engine: &Cache,
    intents: &Path,
    clock: &Arc<TestClock>,
    policies: &Arc<OnePolicy>,
) -> Arc<RowCache<u32>> {
    let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let (intents, _) = IntentTable::open(intents, 64, u64::MAX, false).unwrap();
    let cache = RowCache::new(Parts {
        rows: engine.namespace("cql", options).unwrap(),
        intents,
        unsettled: Vec::new(),
        policies: policies.clone(),
        policies_since: (0, 0),
        hold: Duration::from_secs(HOLD.into()),
        clock: clock.clone(),
        boot: 5,
        weak_max_age: Duration::from_secs(WEAK.into()),
    });
    cache.suspend(false);
    cache.set_claim(Some((7, 0)));
    cache.lease().extend(u64::MAX);
    cache
}

impl Stage {
    fn new(bounded: bool) -> Stage {
        Stage::with(bounded, 0)
    }

    fn with(bounded: bool, default_ttl: u32) -> Stage {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let policies = Arc::<OnePolicy>::default();
        policies.bound.store(if bounded { BOUND } else { 0 }, Ordering::Relaxed);
        let cache = cache(&engine, &directory.path().join("intents"), &clock, &policies);
        let schema = Arc::new(Schema::of_tables([TableSchema {
            partition_key: vec![Column::new("k", "int")],
            regulars: vec![Column::new("v", "text"), Column::new("w", "text")],
            default_ttl,
            ..TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))
        }]));
        let text = "SELECT v, w FROM ks.t WHERE k = 1";
        let Plan::CachedRead(read) = analyse(&parse(text), &*schema, None) else {
            panic!("not cached")
        };
        let mut key = RowKey::new();
        read.key.bind(|_| None, &mut key).unwrap();
        let index = Index::of(schema.clone());
        let (_engine, _directory) = (engine, directory);
        Stage { cache, clock, policies, index, schema, read, key, _engine, _directory }
    }

    fn permission(&self) -> CachePermission {
        self.cache.cache_permission(&self.read.table).unwrap()
    }

    /// Fills the row: `v` and `w` with these values, for so many seconds.
    fn fill(&self, values: [Option<&str>; 2], max_age: Option<u32>) -> Installed {
        let cells = values.map(|value| match value {
            Some(value) => Cell { value: Some(value.as_bytes()), write_time: OLD, expiry: 0 },
            None => Cell::NULL,
        });
        let mut bytes = Vec::new();
        assert!(encode(self.read.fingerprint, &cells, &mut bytes));
        let marker_only = values == [None, None];
        self.install(Filled { bytes, max_age, marker_only })
    }

    fn install(&self, filled: Filled) -> Installed {
        let cache_permission = self.permission();
        let Join::Lead(ticket) =
            self.cache.join(&self.read.table, &self.key, cache_permission, || 0)
        else {
            panic!("the gates are open and nobody else leads")
        };
        let fill = ReturnedFill {
            plan: &self.read,
            key: &self.key,
            filled,
            cache_permission,
            asked_at: self.clock.moment(),
            weak: false,
        };
        self.cache.install(fill, ticket).installed
    }

    fn full(bounded: bool) -> Stage {
        let stage = Stage::new(bounded);
        assert_eq!(stage.fill([Some("old"), Some("other")], None), Installed::Row);
        stage
    }

    /// As after a clean stop and a start: the row is on flash alone.
    fn restarted(self) -> Stage {
        let Stage { cache: of_before, clock, policies, index, schema, read, key, .. } = self;
        let Stage { _engine, _directory, .. } = self;
        _engine.close();
        drop((_engine, of_before));
        let engine = open_engine(_directory.path());
        while engine.stats().loading {
            std::thread::yield_now();
        }
        let intents = _directory.path().join("intents of the next start");
        let cache = cache(&engine, &intents, &clock, &policies);
        let _engine = engine;
        Stage { cache, clock, policies, index, schema, read, key, _engine, _directory }
    }

    /// Reads the row that a write names from flash.
    fn find(&self, write: &mut WriteInFlight<u32>) {
        let read = write.take_flash_read().expect("the row is on flash");
        assert!(write.take_flash_read().is_none(), "it is read once");
        let bytes = self._engine.devices().read_at(read.device(), read.offset(), read.len());
        let Lookup::Hit(hit) = read.finish(bytes) else { panic!("it is there") };
        write.found_on_flash(&hit);
    }

    fn scope(&self, text: &str) -> (WriteScope, Option<RowUpdate>) {
        let Plan::Write(plan) = analyse(&parse(text), &*self.schema, None) else {
            panic!("{text} is no write")
        };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &self.index);
        (scope, plan.update)
    }

    fn begin(&self, text: &str, timestamp: Option<i64>) -> WriteInFlight<u32> {
        self.begin_as(text, timestamp, false, true)
    }

    fn begin_as(
        &self,
        text: &str,
        timestamp: Option<i64>,
        weak: bool,
        current: bool,
    ) -> WriteInFlight<u32> {
        let (scope, update) = self.scope(text);
        let change = update.and_then(|update| RowChange::of(&update, &|_| None, timestamp));
        let followed = Followed { change: change.as_ref(), unit_of: None };
        self.cache.begin_row_write(&scope, followed, weak, 0, || match current {
            true => WriteScope::default(),
            false => WriteScope::everything(),
        })
    }

    /// A write that the database acknowledges at once.
    fn write(&self, text: &str, timestamp: Option<i64>) -> RowOutcome {
        settle(self.begin(text, timestamp))
    }

    /// `v` and `w` of the row, if it is served.
    fn served(&self) -> Option<[Option<String>; 2]> {
        let Lookup::Hit(hit) = self.cache.look_up(&self.key) else { return None };
        let permission = self.cache.cache_permission(&self.read.table).ok()?;
        let row = self.cache.accept(&hit, permission, self.read.fingerprint).ok()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (!row.stored().is_absent()).then(|| [0, 1].map(|at| row.stored().cell(at).value.map(text)))
    }

    /// For how many more seconds the row is served; 1000 at most.
    fn served_for(&self) -> u32 {
        (0..1_000).take_while(|_| self.served().inspect(|_| self.clock.pass(1)).is_some()).count()
            as u32
    }
}

fn settle(write: WriteInFlight<u32>) -> RowOutcome {
    write.settle_and_update(Answered::Definite, || true).row
}

fn row(v: &str, w: &str) -> Option<[Option<String>; 2]> {
    Some([Some(v.to_owned()), Some(w.to_owned())])
}

#[test]
fn a_row_follows_a_newer_write_that_is_acknowledged_under_either_policy() {
    for bounded in [false, true] {
        let stage = Stage::full(bounded);
        let write = stage.begin(UPDATE, Some(NEW));
        assert_eq!(stage.served(), None, "dropped before the write is sent");
        assert_eq!(settle(write), RowOutcome::Updated);
        assert_eq!(stage.served(), row("new", "other"));
        // Both cells now have its time.
        let both = "INSERT INTO ks.t (k, v, w) VALUES (1, 'a', 'b') USING TIMESTAMP 1002";
        assert_eq!(stage.write(both, Some(OLD)), RowOutcome::Updated);
        assert_eq!(stage.served(), row("a", "b"));
        assert_eq!(stage.write(UPDATE, Some(1_002)), RowOutcome::Dropped, "equal times");
    }
}

#[test]
fn what_the_row_or_the_request_leaves_open_drops_the_row() {
    for (text, timestamp, why) in [
        (UPDATE, Some(OLD), "equal timestamps: the larger value wins, whichever it is"),
        (UPDATE, Some(OLD - 1), "an older write is not seen"),
        (UPDATE, None, "the server makes the timestamp"),
        ("UPDATE ks.t USING TIMESTAMP 1000 SET v = 'n' WHERE k = 1", Some(NEW), "USING wins"),
        ("UPDATE ks.t SET v = null WHERE k = 1", Some(NEW), "a null may end the row"),
        ("UPDATE ks.t SET v = 'n', w = null WHERE k = 1", Some(NEW), "one null of two"),
        ("INSERT INTO ks.t (k) VALUES (1)", Some(NEW), "no cell"),
        ("DELETE v FROM ks.t WHERE k = 1", Some(NEW), "a deletion"),
        ("UPDATE ks.t SET v = 'n' WHERE k = 1 IF EXISTS", Some(NEW), "a transaction"),
        ("UPDATE ks.t SET v = 'n' WHERE k IN (1, 2)", Some(NEW), "two rows"),
        ("INSERT INTO ks.t JSON '{\"k\": 1, \"v\": \"n\"}'", Some(NEW), "the rest becomes null"),
        (
            "BEGIN BATCH UPDATE ks.t SET v = 'n' WHERE k = 1; APPLY BATCH",
            Some(NEW),
            "a batch may have more of the row",
        ),
    ] {
        let stage = Stage::full(false);
        assert_eq!(stage.write(text, timestamp), RowOutcome::Dropped, "{why}");
        assert_eq!(stage.served(), None, "{why}");
    }
}

#[test]
fn a_row_whose_cells_are_null_or_that_is_not_there_is_dropped() {
    let stage = Stage::new(true);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "nothing is cached");
    stage.fill([None, Some("other")], None);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "a tombstone may be newer");
    stage.fill([None, None], None);
    assert!(stage.served().is_some(), "a marker alone");
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped);
    let mut bytes = Vec::new();
    crate::row::encode_absent(stage.read.fingerprint, &mut bytes);
    let absent = Filled { bytes, max_age: None, marker_only: false };
    assert_eq!(stage.install(absent), Installed::Absent);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "known to be absent");
    // The other cell of the row may be null: the write does not touch it.
    stage.fill([Some("old"), None], None);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served(), Some([Some("new".into()), None]));
}

#[test]
fn another_write_that_may_touch_the_row_drops_it() {
    let others = [
        "DELETE FROM ks.t WHERE k = 1",
        UPDATE,
        "TRUNCATE ks.t",
        "DROP KEYSPACE ks",
        "ALTER TABLE ks.t ADD x int",
    ];
    for other in others {
        let stage = Stage::full(false);
        let write = stage.begin(UPDATE, Some(NEW));
        settle(stage.begin(other, Some(NEW + 1)));
        assert_eq!(settle(write), RowOutcome::Dropped, "{other} came and went meanwhile");
        assert_eq!(stage.served(), None, "{other}");

        let stage = Stage::full(false);
        let write = stage.begin(UPDATE, Some(NEW));
        let later = stage.begin(other, Some(NEW + 1));
        assert_eq!(settle(write), RowOutcome::Dropped, "{other} is on its way");
        settle(later);
        assert_eq!(stage.served(), None, "{other}");
    }
    // In flight already, whatever it drops.
    for earlier in [UPDATE, "TRUNCATE ks.t", "FROBNICATE ks.t"] {
        let stage = Stage::full(false);
        let (scope, _) = stage.scope(earlier);
        let earlier =
            stage.cache.begin_write(&scope.without_drops(), false, 0, WriteScope::default);
        assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped);
        earlier.settle(Answered::Definite);
    }
    // After it as always: it finds the row and drops it.
    let stage = Stage::full(false);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated);
    settle(stage.begin("DELETE FROM ks.t WHERE k = 1", Some(NEW + 1)));
    assert_eq!(stage.served(), None);
}

#[test]
fn a_fill_from_before_the_write_is_not_installed_over_the_row() {
    let stage = Stage::full(false);
    let permission = stage.permission();
    let lead = || match stage.cache.join(&stage.read.table, &stage.key, permission, || 9) {
        Join::Lead(ticket) => ticket,
        _ => panic!("nobody else leads"),
    };
    let ticket = lead();
    assert!(matches!(
        stage.cache.join(&stage.read.table, &stage.key, permission, || 9),
        Join::Wait
    ));
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated);
    let mut installed = false;
    let finished = ticket.finish(|| installed = true);
    assert!(!installed && !finished.installed);
    assert_eq!(finished.waiters, [9], "they came before the write, and hear what it replaced");
    assert_eq!(stage.served(), row("new", "other"));
}

#[test]
fn beside_a_gate_that_is_held_or_weak_no_row_follows_a_write() {
    let slots = |stage: &Stage| {
        let gate = gate_of("ks", "t");
        let token = crate::write_scope::token_of(gate, stage.key.partition_key());
        [GateScope::Slots(vec![crate::gate::slot_of(token)]), GateScope::Table(gate)]
    };
    for at in [0, 1, 2] {
        for end in [|until| Settled::Unknown { hold_until: until }, |until| Settled::Weak { until }]
        {
            let stage = Stage::full(true);
            let scope = slots(&stage).get(at).cloned().unwrap_or(GateScope::Everything);
            let until = stage.clock.now() + 1_000 * u64::from(WEAK);
            stage.cache.gates.begin_write(&scope);
            stage.cache.gates.end_write(&scope, end(until));
            assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "{scope:?}");
            stage.fill([Some("old"), Some("other")], None);
            assert!(stage.served().is_some(), "a bound lets rows be cached all the same");
            assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "{scope:?}");
            // What was filled meanwhile may miss a write also when the gate is open again.
            stage.fill([Some("old"), Some("other")], None);
            stage.clock.pass(WEAK - 1);
            stage.fill([Some("old"), Some("other")], None);
            stage.clock.pass(2);
            assert!(stage.served().is_some());
            assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "{scope:?}");
            stage.fill([Some("old"), Some("other")], None);
            assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated, "all is over");
        }
    }
}

#[test]
fn a_hold_that_begins_while_the_write_is_on_its_way_drops_the_row() {
    let stage = Stage::full(false);
    let write = stage.begin(UPDATE, Some(NEW));
    stage.cache.moved();
    assert_eq!(settle(write), RowOutcome::Dropped);
    // And one that ends meanwhile.
    let stage = Stage::full(true);
    let all = GateScope::Everything;
    stage.cache.gates.begin_write(&all);
    stage.cache.gates.end_write(&all, Settled::Unknown { hold_until: stage.clock.now() + 1 });
    let write = stage.begin(UPDATE, Some(NEW));
    stage.clock.pass(1);
    assert_eq!(settle(write), RowOutcome::Dropped);
}

#[test]
fn only_a_definite_answer_that_every_quorum_sees_puts_the_row_back() {
    for answered in [
        Answered::Refused,
        Answered::Unknown(InDoubt::WriteTimeout),
        Answered::Unknown(InDoubt::ConnectionLost),
    ] {
        let stage = Stage::full(false);
        let write = stage.begin(UPDATE, Some(NEW));
        assert_eq!(write.settle_and_update(answered, || true).row, RowOutcome::Dropped);
        assert_eq!(stage.served(), None, "{answered:?}");
        assert_eq!(stage.cache.held() == 1, answered != Answered::Refused);
    }
    let stage = Stage::full(false);
    drop(stage.begin(UPDATE, Some(NEW)));
    assert_eq!((stage.served(), stage.cache.held()), (None, 1), "never answered");

    let stage = Stage::full(false);
    assert_eq!(settle(stage.begin_as(UPDATE, Some(NEW), true, true)), RowOutcome::Dropped);
    let stage = Stage::full(false);
    let mut far = stage.begin(UPDATE, Some(NEW));
    far.weaken();
    assert_eq!(settle(far), RowOutcome::Dropped, "another data centre has it");
}

#[test]
fn another_schema_before_or_after_drops_the_row() {
    let stage = Stage::full(false);
    assert_eq!(settle(stage.begin_as(UPDATE, Some(NEW), false, false)), RowOutcome::Dropped);
    let stage = Stage::full(false);
    let write = stage.begin(UPDATE, Some(NEW));
    assert_eq!(write.settle_and_update(Answered::Definite, || false).row, RowOutcome::Dropped);
    assert_eq!(stage.served(), None);
    let stage = Stage::full(false);
    let mut remade = stage.begin(UPDATE, Some(NEW));
    let mut more = WriteScope::default();
    let table = afterglow_cql::plan::Target::Table {
        keyspace: "ks".into(),
        table: "t".into(),
        id: Some(Uuid::from_u128(7)),
    };
    more.add_target(&table, &|_| None, &stage.index);
    remade.widen(&more);
    assert_eq!(settle(remade), RowOutcome::Dropped);
}

#[test]
fn another_permission_before_or_after_drops_the_row() {
    type Change = fn(&Stage);
    let changes: [(&str, Change); 5] = [
        ("a new claim", |stage| stage.cache.set_claim(Some((8, 0)))),
        ("no claim", |stage| stage.cache.set_claim(None)),
        ("no lease", |stage| stage.cache.lease().end()),
        ("no schema", |stage| stage.cache.suspend(true)),
        ("other policies", |stage| {
            stage.policies.generation.fetch_add(1, Ordering::Relaxed);
        }),
    ];
    for (what, change) in changes {
        let stage = Stage::full(false);
        change(&stage);
        assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "{what} before");
        let stage = Stage::full(false);
        let write = stage.begin(UPDATE, Some(NEW));
        change(&stage);
        assert_eq!(settle(write), RowOutcome::Dropped, "{what} meanwhile");
    }
    // Policies that were others for a moment: somebody else may have written then.
    let stage = Stage::full(true);
    let write = stage.begin(UPDATE, Some(NEW));
    stage.policies.generation.fetch_add(1, Ordering::Relaxed);
    assert_eq!(settle(write), RowOutcome::Dropped);
    let stage = Stage::full(true);
    stage.cache.share(4);
    stage.cache.agree(Some(0));
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "in a ring");
}

#[test]
fn an_update_never_lets_a_row_live_longer() {
    let stage = Stage::full(true);
    stage.clock.pass(BOUND - 10);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 10, "the bound counts from the fill");
    let stage = Stage::full(true);
    stage.clock.pass(BOUND);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Dropped, "it was not servable");
    // The end of a cell that the write replaces stays.
    let stage = Stage::new(false);
    stage.fill([Some("old"), Some("other")], Some(30));
    stage.clock.pass(10);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 20);
    let stage = Stage::new(false);
    stage.fill([Some("old"), Some("other")], Some(30));
    let text = "UPDATE ks.t USING TTL 500 SET v = 'new' WHERE k = 1";
    assert_eq!(stage.write(text, Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 30, "the cell that it leaves ends as before");
}

#[test]
fn a_time_to_live_counts_from_before_the_write_was_sent() {
    let with = |ttl: u32| format!("UPDATE ks.t USING TTL {ttl} SET v = 'new' WHERE k = 1");
    let stage = Stage::full(false);
    stage.clock.pass(50);
    let write = stage.begin(&with(20), Some(NEW));
    stage.clock.pass(5);
    assert_eq!(settle(write), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 20 - 1 - 5, "servers count whole seconds");
    let stage = Stage::full(false);
    assert_eq!(stage.write(&with(1), Some(NEW)), RowOutcome::Dropped, "it may end at once");
    let stage = Stage::full(true);
    assert_eq!(stage.write(&with(500), Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served_for(), BOUND);
    // That of the table, unless the statement has one.
    let stage = Stage::with(false, 40);
    stage.fill([Some("old"), Some("other")], None);
    assert_eq!(stage.write(UPDATE, Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 39);
    let stage = Stage::with(false, 40);
    stage.fill([Some("old"), Some("other")], None);
    assert_eq!(stage.write(&with(0), Some(NEW)), RowOutcome::Updated);
    assert_eq!(stage.served_for(), 1_000);
}

#[test]
fn bound_values_are_taken_as_they_are_and_doubt_is_none() {
    let stage = Stage::new(false);
    let text = "UPDATE ks.t USING TIMESTAMP :at AND TTL :ttl SET v = :v, w = :w WHERE k = 1";
    let (_, update) = stage.scope(text);
    let update = update.unwrap();
    let (at, ttl) = (NEW.to_be_bytes(), 9_i32.to_be_bytes());
    let bind = |name: &str, other: Option<Value<'static>>| {
        let (at, ttl) = (at.to_vec().leak(), ttl.to_vec().leak());
        let value = |marker: &Marker| match marker.name.as_deref() {
            Some(of) if of == name => other,
            Some("at") => Some(Value::Bytes(&*at)),
            Some("ttl") => Some(Value::Bytes(&*ttl)),
            _ => Some(Value::Bytes(b"x")),
        };
        RowChange::of(&update, &value, Some(5))
    };
    let all = bind("", None).unwrap();
    assert_eq!((all.timestamp, all.ttl, all.cells.len()), (NEW, 9, 2));
    let unset = bind("v", Some(Value::Unset)).unwrap();
    assert_eq!(unset.cells, [(1, b"x".to_vec())], "its cell stays");
    for (name, value) in [
        ("v", None),
        ("v", Some(Value::Null)),
        ("v", Some(Value::Bytes(&[0xff]))),
        ("at", None),
        ("at", Some(Value::Unset)),
        ("at", Some(Value::Bytes(&[1; 4]))),
        ("ttl", Some(Value::Null)),
        ("ttl", Some(Value::Bytes(&[0xff; 4]))),
        ("ttl", Some(Value::Unset)),
    ] {
        assert_eq!(bind(name, value), None, "{name} {value:?}");
    }
}

#[test]
fn rows_to_be_put_back_take_a_bounded_number_of_bytes() {
    let stage = Stage::full(false);
    let write = stage.begin(UPDATE, Some(NEW));
    assert!(stage.cache.pending.load(Ordering::Relaxed) > 0);
    settle(write);
    assert_eq!(stage.cache.pending.load(Ordering::Relaxed), 0, "given back");
    stage.cache.pending.store(MOST_PENDING, Ordering::Relaxed);
    assert_eq!(stage.write(UPDATE, Some(NEW + 1)), RowOutcome::Dropped);
    assert_eq!(stage.cache.pending.load(Ordering::Relaxed), MOST_PENDING);
}

#[path = "row_change_flash_tests.rs"]
mod flash;
#[path = "row_change_random_tests.rs"]
mod random;

#[test]
fn text_that_is_not_understood_drops_a_table_that_it_names_unless_it_is_refused() {
    let unknown = Answered::Unknown(InDoubt::ConnectionLost);
    for (answered, stays) in
        [(Answered::Refused, true), (Answered::Definite, false), (unknown, false)]
    {
        let stage = Stage::full(false);
        let write = stage.begin("INSERT INTO ks.t (k, v) VALUE (1, 'new')", None);
        assert_eq!(stage.served(), None, "it may have had its effect");
        write.settle(answered);
        assert_eq!(stage.served().is_some(), stays, "{answered:?}");
    }
}
