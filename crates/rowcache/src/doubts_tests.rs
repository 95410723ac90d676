//! Writes of whole tables that the database may refuse.

use std::path::PathBuf;
use std::sync::Arc;

use afterglow_cql::plan::{Column, Plan, RowKey, TableSchema, analyse};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup};
use tempfile::TempDir;
use uuid::Uuid;

use crate::gate::{Bypass, Join};
use crate::install::{Installed, ReturnedFill};
use crate::row::{Filled, encode_absent};
use crate::row_cache::RowCache;
use crate::serve::{CachePermission, NotCached};
use crate::tables::Index;
use crate::testing::{TestClock, cache_of_boot, open_engine};
use crate::write_in_flight::{Answered, InDoubt, WriteInFlight};
use crate::write_scope::WriteScope;

const PERMISSION: CachePermission = CachePermission::Exclusive { claim: 7 };
/// Seconds after which what a write of unknown outcome held is filled again.
const HELD_FOR: u32 = 601;
const TIMEOUT: Answered = Answered::Unknown(InDoubt::WriteTimeout);

/// Two tables, with one row each.
struct Stage {
    cache: Arc<RowCache<()>>,
    schema: Arc<Schema>,
    index: Index,
    clock: Arc<TestClock>,
    intents: PathBuf,
    engine: Cache,
    _directory: TempDir,
}

impl Stage {
    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let intents = directory.path().join("intents");
        let cache = cache_of_boot(1, &engine, &intents, &clock);
        cache.suspend(false);
        let table = |name: &str, id| TableSchema {
            partition_key: vec![Column::new("k", "int")],
            regulars: vec![Column::new("v", "int")],
            ..TableSchema::new("ks".into(), name.into(), Uuid::from_u128(id))
        };
        let schema = Arc::new(Schema::of_tables([table("t", 1), table("u", 2)]));
        let index = Index::of(schema.clone());
        Stage { cache, schema, index, clock, intents, engine, _directory: directory }
    }

    /// After a crash: the file of intents is as it is now, and of another process.
    fn again(&mut self) {
        let mut again = self.intents.clone().into_os_string();
        again.push("-again");
        let again = PathBuf::from(again);
        std::fs::copy(&self.intents, &again).unwrap();
        self.intents = again;
        self.cache = cache_of_boot(1, &self.engine, &self.intents, &self.clock);
        self.cache.suspend(false);
    }

    fn begin(&self, text: &str) -> WriteInFlight<()> {
        let Plan::Write(plan) = analyse(&parse(text), &*self.schema, None) else {
            panic!("{text} is a write")
        };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &self.index);
        self.cache.begin_write(&scope, false, 0, WriteScope::default)
    }

    fn read(&self, table: &str) -> (afterglow_cql::plan::ReadPlan, RowKey) {
        let text = format!("SELECT v FROM ks.{table} WHERE k = 1");
        let Plan::CachedRead(plan) = analyse(&parse(&text), &*self.schema, None) else {
            panic!("{text} is cached")
        };
        let mut key = RowKey::new();
        plan.key.bind(|_| None, &mut key).unwrap();
        (plan, key)
    }

    /// Why a read may not fill.
    fn fill(&self, table: &str) -> Option<Bypass> {
        let (plan, key) = self.read(table);
        let ticket = match self.cache.join(&plan.table, &key, PERMISSION, || ()) {
            Join::Lead(ticket) => ticket,
            Join::Bypass(why) => return Some(why),
            Join::Wait => panic!("nobody else fills"),
        };
        let mut bytes = Vec::new();
        encode_absent(plan.fingerprint, &mut bytes);
        let fill = ReturnedFill {
            plan: &plan,
            key: &key,
            filled: Filled { bytes, max_age: None, marker_only: false },
            cache_permission: PERMISSION,
            asked_at: self.cache.clock().moment(),
            weak: false,
        };
        assert_eq!(self.cache.install(fill, ticket).installed, Installed::Absent);
        None
    }

    /// Whether the row of each table may be served now, and whether it is there.
    fn rows(&self) -> [(bool, bool); 2] {
        ["t", "u"].map(|table| {
            let (plan, key) = self.read(table);
            let suspended = self.cache.cache_permission(&plan.table) == Err(NotCached::Suspended);
            let Lookup::Hit(hit) = self.cache.look_up(&key) else { return (!suspended, false) };
            (!suspended, self.cache.accept(&hit, PERMISSION, plan.fingerprint).is_ok())
        })
    }
}

const SERVED: (bool, bool) = (true, true);

#[test]
fn what_is_refused_drops_nothing_and_what_it_would_drop_is_not_served_meanwhile() {
    for (text, touched) in [
        ("TRUNCATE ks.t", 0..1),
        ("DROP TABLE ks.t", 0..1),
        ("ALTER TABLE ks.t ADD w int", 0..1),
        ("DELETE FROM ks.t WHERE v = 1", 0..1),
        ("DROP INDEX ks.i", 0..2),
        ("DROP KEYSPACE ks", 0..2),
        ("FROBNICATE ks.t", 0..2),
        ("INSERT INTO ks.t (k, v) VALUE (1, 1)", 0..1),
    ] {
        for answered in [Answered::Refused, Answered::Definite, TIMEOUT] {
            let stage = Stage::new();
            assert_eq!(["t", "u"].map(|table| stage.fill(table)), [None; 2]);
            assert_eq!(stage.rows(), [SERVED; 2]);
            let write = stage.begin(text);
            for at in 0..2 {
                let expected = (!touched.contains(&at), true);
                assert_eq!(stage.rows()[at], expected, "{text}: before it is answered");
            }
            assert_eq!(stage.fill("t"), Some(Bypass::WriteInFlight), "{text}");
            write.settle(answered);
            for at in 0..2 {
                let kept = answered == Answered::Refused || !touched.contains(&at);
                assert_eq!(stage.rows()[at], (true, kept), "{text}: {answered:?}");
            }
            let held = (answered == TIMEOUT).then_some(Bypass::Quarantined);
            assert_eq!(stage.fill("t"), held, "{text}: {answered:?}");
        }
    }
}

#[test]
fn rows_of_a_table_are_dropped_for_a_write_of_some_of_them_before_it_is_sent() {
    let stage = Stage::new();
    stage.fill("t");
    let write = stage.begin("UPDATE ks.t SET v = 1 WHERE k = 1");
    assert_eq!(stage.rows()[0], (true, false));
    write.settle(Answered::Refused);
    assert_eq!(stage.rows()[0], (true, false));
}

/// Such a batch may be refused as well, and a row of it costs one row.
#[test]
fn of_a_batch_of_rows_and_a_table_the_table_is_dropped_after_the_answer_only() {
    let texts = [
        "BEGIN BATCH UPDATE ks.u SET v = 1 WHERE k = 1; DELETE FROM ks.t WHERE v = 1; APPLY BATCH",
        "BEGIN BATCH DELETE FROM ks.t WHERE v = 1; UPDATE ks.u SET v = 1 WHERE k = 1; \
         UPDATE ks.t SET v = 1 WHERE k = 1; APPLY BATCH",
    ];
    for (text, answered) in texts.into_iter().flat_map(|text| {
        [Answered::Refused, Answered::Definite, TIMEOUT].map(|answered| (text, answered))
    }) {
        let mut stage = Stage::new();
        assert_eq!(["t", "u"].map(|table| stage.fill(table)), [None; 2]);
        let write = stage.begin(text);
        assert_eq!(stage.rows(), [(false, true), (true, false)], "{text}: before its answer");
        assert_eq!(stage.fill("u"), Some(Bypass::WriteInFlight));
        write.settle(answered);
        let kept = answered == Answered::Refused;
        assert_eq!(stage.rows(), [(true, kept), (true, false)], "{text}: {answered:?}");
        // A crash before the answer.
        stage.clock.pass(HELD_FOR);
        stage.fill("t");
        assert_eq!(stage.rows()[0], SERVED);
        let write = stage.begin(text);
        stage.again();
        assert_eq!(stage.rows(), [(true, false); 2], "{text}");
        std::mem::forget(write);
    }
}

#[test]
fn a_crash_before_the_answer_drops_what_the_answer_may_have_dropped_and_one_after_it_no_more() {
    for (text, left) in [
        ("TRUNCATE ks.t", [(true, false), SERVED]),
        ("DROP TABLE ks.u", [SERVED, (true, false)]),
        ("INSERT INTO ks.t (k, v) VALUE (1, 1)", [(true, false), SERVED]),
        ("DROP INDEX ks.i", [(true, false); 2]),
        ("DROP INDEX other.i", [SERVED; 2]),
        ("FROBNICATE ks.t", [(true, false); 2]),
    ] {
        let mut stage = Stage::new();
        stage.fill("t");
        stage.fill("u");
        let write = stage.begin(text);
        stage.again();
        assert_eq!(stage.rows(), left, "{text}: what it would drop is not there");
        let held = (text != "DROP TABLE ks.u").then_some(Bypass::Quarantined);
        assert_eq!(stage.fill("t"), held, "{text}");
        // The start after that has nothing more to drop.
        stage.clock.pass(HELD_FOR);
        let filled = ["t", "u"].map(|table| stage.fill(table));
        assert_eq!(filled, [None; 2], "{text}");
        stage.again();
        assert_eq!(stage.rows(), [SERVED; 2], "{text}");
        std::mem::forget(write); // as the crash did
    }
    for text in ["TRUNCATE ks.t", "FROBNICATE"] {
        let mut stage = Stage::new();
        stage.begin(text).settle(TIMEOUT);
        stage.clock.pass(HELD_FOR);
        assert_eq!(["t", "u"].map(|table| stage.fill(table)), [None; 2]);
        stage.again();
        assert_eq!(stage.rows(), [SERVED; 2], "{text}: they were filled after it was over");
    }
    let mut stage = Stage::new();
    stage.fill("t");
    stage.fill("u");
    stage.begin("TRUNCATE ks.t").settle(TIMEOUT);
    stage.again();
    assert_eq!(stage.rows(), [(true, false), SERVED]);
    assert_eq!(stage.fill("t"), Some(Bypass::Quarantined));
    assert_eq!(stage.fill("u"), None);
}

/// Nothing that a TRUNCATE removes comes back.
#[test]
fn no_write_is_sent_again_while_it_is_not_known_whether_its_table_was_removed() {
    let stage = Stage::new();
    let (plan, _) = stage.read("t");
    let removals = || stage.cache.removals(&plan.table);
    let refused = stage.begin("TRUNCATE ks.t");
    assert_eq!(stage.rows()[0], (false, false), "attempts look at this first");
    refused.settle(Answered::Refused);
    assert_eq!(removals(), 0, "they go on");
    stage.begin("TRUNCATE ks.t").settle(Answered::Definite);
    assert_eq!(removals(), 1);
}

#[test]
fn what_is_suspected_is_neither_served_nor_filled_until_it_is_known() {
    for has_changed in [None, Some(false), Some(true)] {
        let stage = Stage::new();
        assert_eq!(["t", "u"].map(|table| stage.fill(table)), [None; 2]);
        let mut scope = WriteScope::default();
        scope.add_table(&stage.read("t").0.table);
        let suspected = stage.cache.suspect(&scope);
        assert_eq!(stage.rows(), [(false, true), SERVED]);
        assert_eq!(stage.fill("t"), Some(Bypass::WriteInFlight));
        match has_changed {
            Some(has_changed) => suspected.end(has_changed),
            None => drop(suspected),
        }
        assert_eq!(stage.rows(), [(true, has_changed == Some(false)), SERVED]);
        assert_eq!(stage.fill("t"), None);
    }
}

#[test]
fn a_table_that_comes_before_the_answer_keeps_no_row_of_the_last_run() {
    for text in ["UPDATE ks.t SET v = 2 WHERE k = 1", "TRUNCATE ks.t"] {
        let mut stage = Stage::new();
        stage.fill("t");
        stage.fill("u");
        stage.again();
        // The node of the first control connection has not heard of `t` yet.
        let u = stage.read("u").0.table.as_ref().clone();
        let lacking = Arc::new(Schema::of_tables([u]));
        let first = Index::of(lacking.clone());
        let Plan::Write(plan) = analyse(&parse(text), &*lacking, None) else { panic!("{text}") };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &first);
        let newer = || scope.of_newer(&first);
        let mut write = stage.cache.begin_write(&scope, false, 0, newer);
        // Another node has done it. The snapshot that has the table comes before the answer.
        let now = Index::after(&first, stage.schema.clone());
        write.widen(&scope.replaced(&now));
        write.settle(Answered::Definite);
        assert_eq!(stage.rows(), [(true, false), SERVED], "{text}");
    }
}
