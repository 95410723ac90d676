//! Which units follow a write of one row, and what another write, a hold or a fill in between does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterglow_cql::plan::{Plan, analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup, NamespaceOptions};
use tempfile::TempDir;

use super::*;
use crate::clock::Clock;
use crate::gate::{Bypass, Join, Ticket};
use crate::install::ReturnedFill;
use crate::intents::IntentTable;
use crate::policy::Policies;
use crate::row::{StoredRow, read_fill};
use crate::row_cache::Parts;
use crate::serve::NotCached;
use crate::tables::Index;
use crate::testing::{OnePolicy, TestClock, open_engine};
use crate::unit::{UnitAsked, read_unit};
use crate::write_in_flight::{Answered, Followed, InDoubt, WriteInFlight};

#[path = "refresh_bounds_tests.rs"]
mod bounds;
#[path = "refresh_overlap_tests.rs"]
mod overlaps;
#[path = "refresh_random_tests.rs"]
mod random;

/// Seconds of the hold.
const HOLD: u32 = 600;
const BYTES: usize = 1 << 16;

/// `v` by `c`: the rows of the partition 1.
type Rows = BTreeMap<i32, i32>;

/// A read that waits; others tell it from its clones, which wait for nothing.
type Waiter = Arc<()>;

/// A cache, and the partition 1 of `s.t`, whose newest rows come first.
struct Stage {
    cache: Arc<RowCache<Waiter>>,
    clock: Arc<TestClock>,
    policies: Arc<OnePolicy>,
    index: Index,
    schema: Arc<Schema>,
    plan: ReadPlan,
    _engine: Cache,
    _directory: TempDir,
}

/// A fill that a read leads, and under which permission it does.
struct Led {
    ticket: Ticket<Waiter>,
    cache_permission: CachePermission,
}

/// A fill that was answered.
struct Fill {
    led: Led,
    filled: Filled,
    asked_at: Moment,
}

/// The cache of a start over this engine: the first one, or one after a crash.
fn cache_of(
    engine: &Cache,
    directory: &Path,
    policies: &Arc<OnePolicy>,
    clock: &Arc<TestClock>,
) -> Arc<RowCache<Waiter>> {
    let options = NamespaceOptions { partition_epochs: true, ..NamespaceOptions::default() };
    let (intents, unsettled) =
        IntentTable::open(&directory.join("intents"), 64, u64::MAX, false).unwrap();
    let cache = RowCache::new(Parts {
        rows: engine.namespace("cql", options).unwrap(),
        intents,
        unsettled: unsettled.intents,
        policies: policies.clone(),
        policies_since: (0, 0),
        hold: Duration::from_secs(HOLD.into()),
        clock: clock.clone(),
        boot: 5,
        weak_max_age: Duration::from_secs(60),
    });
    cache.suspend(false);
    cache.set_claim(Some((7, 0)));
    cache.lease().extend(u64::MAX);
    cache
}

impl Stage {
    /// The process was killed and starts again. Its file of intents is as it was, and nobody else
    /// has it open.
    fn restart(&mut self) {
        let [intents, copy] = ["intents", "copy"].map(|name| self._directory.path().join(name));
        std::fs::copy(&intents, &copy).unwrap();
        std::fs::rename(&copy, &intents).unwrap();
        self.cache = cache_of(&self._engine, self._directory.path(), &self.policies, &self.clock);
    }

    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let policies = Arc::<OnePolicy>::default();
        let cache = cache_of(&engine, directory.path(), &policies, &clock);
        let script = "CREATE TABLE s.t (k int, c int, v int, PRIMARY KEY (k, c)) \
             WITH CLUSTERING ORDER BY (c DESC);";
        let schema = Arc::new(Schema::of_tables(defined_tables(script, None).unwrap()));
        let plan = analyse(&parse("SELECT v FROM s.t WHERE k = 1 AND c = ?"), &*schema, None);
        let plan = plan.read().expect("it is cached").clone();
        let index = Index::of(schema.clone());
        let (_engine, _directory) = (engine, directory);
        Stage { cache, clock, policies, index, schema, plan, _engine, _directory }
    }

    fn permission(&self) -> CachePermission {
        self.permitted().unwrap()
    }

    /// `None` while a write is under way that may touch all of the table.
    fn permitted(&self) -> Option<CachePermission> {
        match self.cache.cache_permission(&self.plan.table) {
            Err(NotCached::Suspended) => None,
            permission => Some(permission.unwrap()),
        }
    }

    fn row_key(&self, c: i32) -> RowKey {
        let (mut key, bytes) = (RowKey::new(), c.to_be_bytes());
        self.plan.key.bind(|_| Some(&bytes[..]), &mut key).unwrap();
        key
    }

    fn unit_key(&self) -> RowKey {
        RowKey::from_engine_key(self.row_key(0).unit_key(), 1, 0).unwrap()
    }

    fn join(&self, key: &RowKey) -> Join<Waiter> {
        match self.permitted() {
            None => Join::Bypass(Bypass::WriteInFlight),
            Some(permission) => self.cache.join(&self.plan.table, key, permission, Waiter::default),
        }
    }

    /// Whether a read of the unit waits for it.
    fn awaits(&self, waiter: &Waiter) -> bool {
        let Some(permission) = self.permitted() else { return false };
        let key = self.unit_key();
        let waiter = || waiter.clone();
        self.cache.await_unit(&self.plan.table, &key, permission, |_| true, waiter)
    }

    fn lead(&self, key: &RowKey) -> Led {
        self.try_to_lead(key).expect("nothing stops it, and nobody else leads")
    }

    /// `None` if a gate is closed, or another read leads.
    fn try_to_lead(&self, key: &RowKey) -> Option<Led> {
        let cache_permission = self.permitted()?;
        match self.cache.join(&self.plan.table, key, cache_permission, Waiter::default) {
            Join::Lead(ticket) => Some(Led { ticket, cache_permission }),
            Join::Wait | Join::Bypass(_) => None,
        }
    }

    /// What the database has, as a fill of a unit of so many rows finds it.
    fn unit_of(&self, rows: &Rows, most: usize, reversed: bool) -> Filled {
        let cells = |(c, v): (&i32, &i32)| [1, *c, *v].map(|n| Some(n.to_be_bytes().to_vec()));
        let time = 1_i64.to_be_bytes();
        let mut cells: Vec<_> = rows.iter().map(cells).collect();
        if !reversed {
            cells.reverse();
        }
        cells.truncate(most);
        let row = |cells: &[Option<Vec<u8>>; 3]| -> Vec<Option<Vec<u8>>> {
            cells.iter().cloned().chain([Some(time.to_vec()), None]).collect()
        };
        let owned: Vec<_> = cells.iter().map(row).collect();
        let read: Vec<Vec<Option<&[u8]>>> =
            owned.iter().map(|row| row.iter().map(Option::as_deref).collect()).collect();
        let asked = UnitAsked { reversed, rows: most as u32, bytes: BYTES };
        let (plan, key) = (&self.plan, self.unit_key());
        read_unit(&plan.table, plan.fingerprint, &key, &read, asked, self.clock.unix()).unwrap()
    }

    /// What the database has under a key, as a fill of a row finds it; it ends in so many seconds.
    fn row_of(&self, rows: &Rows, c: i32, left: Option<i32>) -> Filled {
        let time = 1_i64.to_be_bytes();
        let left = left.map(i32::to_be_bytes);
        let cells = rows.get(&c).map(|v| [1, c, *v].map(i32::to_be_bytes));
        let row = cells.as_ref().map(|cells| -> Vec<Option<&[u8]>> {
            let cells = cells.iter().map(|cell| Some(&cell[..]));
            cells.chain([Some(&time[..]), left.as_ref().map(|left| &left[..])]).collect()
        });
        let read: Vec<_> = row.into_iter().collect();
        let (plan, key) = (&self.plan, self.row_key(c));
        read_fill(&plan.table, plan.fingerprint, &key, &read, self.clock.unix()).unwrap()
    }

    fn install(&self, key: &RowKey, fill: Fill) -> Installed {
        let Fill { led: Led { ticket, cache_permission }, filled, asked_at } = fill;
        let plan = &self.plan;
        let fill = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak: false };
        self.cache.install(fill, ticket).installed
    }

    /// Fills the unit with the newest of these rows.
    fn fill(&self, rows: &Rows, most: usize) {
        let led = self.lead(&self.unit_key());
        let (filled, asked_at) = (self.unit_of(rows, most, false), self.clock.moment());
        let installed = self.install(&self.unit_key(), Fill { led, filled, asked_at });
        assert_eq!(installed, Installed::Row);
    }

    fn scope(&self, text: &str) -> WriteScope {
        let Plan::Write(plan) = analyse(&parse(text), &*self.schema, None) else {
            panic!("{text} is a write")
        };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &self.index);
        scope
    }

    fn begin_weakly(&self, text: &str, weak: bool) -> WriteInFlight<Waiter> {
        let followed = Followed { change: None, unit_of: Some(&self.plan.table) };
        self.cache.begin_row_write(&self.scope(text), followed, weak, 0, WriteScope::default)
    }

    fn begin(&self, text: &str) -> WriteInFlight<Waiter> {
        self.begin_weakly(text, false)
    }

    /// The refresh that an acknowledged write leads to.
    fn settled(&self, write: WriteInFlight<Waiter>) -> Option<Refresh<Waiter>> {
        match write.settle_and_update(Answered::Definite, || true).unit {
            UnitLeft::Refresh(refresh) => Some(refresh),
            _ => None,
        }
    }

    fn refresh(&self, text: &str) -> Refresh<Waiter> {
        self.settled(self.begin(text)).expect("the unit is kept")
    }

    fn end(&self, refresh: Refresh<Waiter>, row: &Filled) -> Installed {
        self.cache.end_refresh(refresh, row, self.clock.moment(), BYTES).installed
    }

    /// The keys of the unit's rows, and whether they are all of the partition.
    fn unit(&self) -> Option<(Vec<i32>, bool)> {
        let unit = self.stored_unit()?;
        let keys = (-1..100).rev().filter(|c| {
            let row = unit.row(&self.plan.table, &self.row_key(*c));
            row.is_ok_and(|row| !row.stored().is_absent())
        });
        Some((keys.collect(), unit.stored().is_whole()))
    }

    fn stored_unit(&self) -> Option<Unit> {
        let Lookup::Hit(hit) = self.cache.look_up(&self.unit_key()) else { return None };
        self.cache.accept_unit(&hit, self.permitted()?, self.plan.fingerprint).ok()
    }
}

fn rows(keys: impl IntoIterator<Item = i32>) -> Rows {
    keys.into_iter().map(|c| (c, c)).collect()
}

fn insert(c: i32) -> String {
    format!("INSERT INTO s.t (k, c, v) VALUES (1, {c}, {c})")
}

#[test]
fn a_new_row_takes_its_place_in_the_unit() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20, 30]), 9);
    for (c, expected) in [
        (25, vec![30, 25, 20, 10]),
        (40, vec![40, 30, 25, 20, 10]),
        (1, vec![40, 30, 25, 20, 10, 1]),
    ] {
        let refresh = stage.refresh(&insert(c));
        assert_eq!(stage.unit(), None, "it is not served before the row is read");
        assert!(stage.awaits(&Waiter::default()), "reads wait for it");
        let row = stage.row_of(&rows([c]), c, None);
        assert_eq!(stage.end(refresh, &row), Installed::Row);
        assert_eq!(stage.unit(), Some((expected, true)));
    }
}

#[test]
fn what_the_database_has_is_put_in_not_what_was_written() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    // A tombstone of a later time hides it, or another value won.
    let refresh = stage.refresh(&insert(15));
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([]), 15, None)), Installed::Row);
    assert_eq!(stage.unit(), Some((vec![20, 10], true)));
    let refresh = stage.refresh("UPDATE s.t USING TIMESTAMP 1 SET v = 3 WHERE k = 1 AND c = 20");
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([20]), 20, None)), Installed::Row);
    let refresh = stage.refresh("DELETE FROM s.t WHERE k = 1 AND c = 20");
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([]), 20, None)), Installed::Row);
    assert_eq!(stage.unit(), Some((vec![10], true)));
}

#[test]
fn a_unit_stays_as_it_is_if_the_row_is_behind_its_last() {
    let stage = Stage::new();
    stage.fill(&rows(0..50), 3);
    for text in [insert(7), "DELETE FROM s.t WHERE k = 1 AND c = 46".into()] {
        let write = stage.begin(&text);
        assert_eq!(stage.unit(), None, "{text}");
        assert!(stage.settled(write).is_none(), "{text}");
        assert_eq!(stage.unit(), Some((vec![49, 48, 47], false)), "{text}");
    }
}

#[test]
fn a_limited_unit_takes_a_row_in_and_leaves_its_last_out() {
    let stage = Stage::new();
    stage.fill(&rows(0..80), 64);
    let refresh = stage.refresh(&insert(90));
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([90]), 90, None)), Installed::Row);
    let newest = std::iter::once(90).chain((17..80).rev()).collect();
    assert_eq!(stage.unit(), Some((newest, false)));
    // What is behind it now does not matter to it any more.
    assert!(stage.settled(stage.begin(&insert(16))).is_none());
    assert!(stage.stored_unit().is_some());
}

#[test]
fn a_fill_in_between_is_neither_joined_nor_replaced() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let refresh = stage.refresh(&insert(15));
    let fill = stage.lead(&stage.unit_key());
    assert!(!stage.awaits(&Waiter::default()));
    let row = stage.row_of(&rows([15]), 15, None);
    assert_eq!(stage.end(refresh, &row), Installed::Overtaken);
    drop(fill);
    // A fill from before the write is not installed over what the refresh has brought.
    stage.fill(&rows([10, 20]), 9);
    let before = Fill {
        led: stage.lead(&stage.unit_key()),
        filled: stage.unit_of(&rows([10, 20]), 9, false),
        asked_at: stage.clock.moment(),
    };
    let refresh = stage.refresh(&insert(15));
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([15]), 15, None)), Installed::Row);
    assert_eq!(stage.install(&stage.unit_key(), before), Installed::Overtaken);
    assert_eq!(stage.unit(), Some((vec![20, 15, 10], true)));
    // A row that was read while the refresh was: neither is older than the write.
    let refresh = stage.refresh(&insert(16));
    let led = stage.lead(&stage.row_key(16));
    let (filled, asked_at) = (stage.row_of(&rows([16]), 16, None), stage.clock.moment());
    let row = stage.install(&stage.row_key(16), Fill { led, filled, asked_at });
    assert_eq!(row, Installed::Row);
    stage.end(refresh, &stage.row_of(&rows([16]), 16, None));
    let unit = stage.unit();
    assert!(unit.is_none() || unit == Some((vec![20, 16, 15, 10], true)));
}

#[test]
fn only_an_acknowledged_write_that_every_quorum_sees_leaves_the_unit() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let weak = stage.begin_weakly(&insert(15), true);
    assert!(stage.settled(weak).is_none());
    // The gate is weak now.
    stage.clock.pass(HOLD + 1);
    for answered in [Answered::Refused, Answered::Unknown(InDoubt::WriteTimeout)] {
        stage.fill(&rows([10, 20]), 9);
        for text in [insert(15), insert(25)] {
            let write = stage.begin(&text);
            let left = write.settle_and_update(answered, || true).unit;
            assert!(matches!(left, UnitLeft::Dropped));
            assert_eq!(stage.unit(), None);
        }
        stage.clock.pass(HOLD + 1);
    }
    // It was raised to a quorum of another data centre.
    stage.fill(&rows([10, 20]), 9);
    let mut write = stage.begin(&insert(15));
    write.weaken();
    assert!(stage.settled(write).is_none());
}

#[test]
fn beside_a_gate_that_is_held_or_weak_no_unit_is_kept() {
    let stage = Stage::new();
    for unknown in [true, false] {
        // The unit is there, and its gate is held: another partition's write in the same slot.
        stage.fill(&rows([10, 20]), 9);
        let scope = stage.scope(&insert(15)).without_drops();
        let other = stage.cache.begin_write(&scope, !unknown, 0, WriteScope::default);
        other.settle(match unknown {
            true => Answered::Unknown(InDoubt::WriteTimeout),
            false => Answered::Definite,
        });
        assert!(stage.stored_unit().is_some());
        assert!(stage.settled(stage.begin(&insert(15))).is_none(), "unknown: {unknown}");
        stage.clock.pass(HOLD + 1);
        // The hold begins while the write is on its way, or before the refresh.
        for early in [true, false] {
            stage.fill(&rows([10, 20]), 9);
            let hold = || {
                let other = stage.cache.begin_write(&scope, !unknown, 0, WriteScope::default);
                other.settle(match unknown {
                    true => Answered::Unknown(InDoubt::WriteTimeout),
                    false => Answered::Definite,
                });
            };
            let write = stage.begin(&insert(15));
            if early {
                hold();
            }
            let refresh = stage.settled(write);
            assert_eq!(refresh.is_none(), early);
            hold();
            if let Some(refresh) = refresh {
                let row = stage.row_of(&rows([15]), 15, None);
                assert_eq!(stage.end(refresh, &row), Installed::Overtaken);
            }
            assert_eq!(stage.unit(), None);
            stage.clock.pass(HOLD + 1);
        }
    }
    // A unit that was filled beside a weak gate: it may lack a write for good.
    let scope = stage.scope(&insert(15)).without_drops();
    stage.cache.begin_write(&scope, true, 0, WriteScope::default).settle(Answered::Definite);
    stage.clock.pass(HOLD - 10);
    stage.fill(&rows([10, 20]), 9);
    stage.clock.pass(11);
    assert!(stage.stored_unit().is_some());
    assert!(stage.settled(stage.begin(&insert(15))).is_none());
}

#[test]
fn another_schema_policy_or_claim_leaves_no_unit() {
    let stage = Stage::new();
    let row = stage.row_of(&rows([15]), 15, None);
    for text in [insert(15), insert(5)] {
        stage.fill(&rows(8..20), 6);
        let write = stage.begin(&text);
        let left = write.settle_and_update(Answered::Definite, || false).unit;
        assert!(matches!(left, UnitLeft::Dropped));
        assert_eq!(stage.unit(), None);
    }
    let new_claim = |stage: &Stage| stage.cache.set_claim(Some((8, 0)));
    let no_claim = |stage: &Stage| stage.cache.set_claim(None);
    let changes: [&dyn Fn(&Stage); 3] = [&new_claim, &no_claim, &|stage| {
        stage.policies.generation.fetch_add(1, Ordering::Relaxed);
    }];
    for change in changes {
        let again = || {
            let generation = stage.policies.generation();
            stage.cache.set_claim(Some((7, generation)));
            stage.fill(&rows([10, 20]), 9);
        };
        again();
        let write = stage.begin(&insert(15));
        change(&stage);
        assert!(stage.settled(write).is_none());
        again();
        let refresh = stage.refresh(&insert(15));
        change(&stage);
        assert_eq!(stage.end(refresh, &row), Installed::Uncacheable);
        // The unit may be put back under the new claim in no way.
        stage.cache.set_claim(Some((7, stage.policies.generation())));
        assert_eq!(stage.unit(), None);
    }
    // Others may write.
    stage.policies.bound.store(1_000, Ordering::Relaxed);
    stage.fill(&rows([10, 20]), 9);
    assert!(stage.settled(stage.begin(&insert(15))).is_none());
}

#[test]
fn what_may_write_more_than_one_row_leaves_no_unit() {
    for text in [
        "INSERT INTO s.t (k, c, v) VALUES (1, 15, 1) IF NOT EXISTS",
        "BEGIN BATCH INSERT INTO s.t (k, c, v) VALUES (1, 15, 1); \
         INSERT INTO s.t (k, c, v) VALUES (1, 16, 1); APPLY BATCH",
        "BEGIN BATCH INSERT INTO s.t (k, c, v) VALUES (1, 15, 1); \
         INSERT INTO s.t (k, c, v) VALUES (2, 15, 1); APPLY BATCH",
        "DELETE FROM s.t WHERE k = 1 AND c > 3",
        "UPDATE s.t SET v = 1 WHERE k = 1 AND c IN (10, 20)",
        "INSERT INTO s.t JSON '{\"k\": 1, \"c\": 15, \"v\": 1}'",
        "INSERT INTO s.t (k, c, v) VALUES (1, f(), 1)",
    ] {
        let stage = Stage::new();
        stage.fill(&rows([10, 20]), 9);
        assert!(stage.settled(stage.begin(text)).is_none(), "{text}");
        assert_eq!(stage.unit(), None, "{text}");
    }
}

#[test]
fn a_refresh_never_lets_a_unit_live_longer() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    stage.clock.pass(5);
    // It ends in 20 s, of which one is lost to rounding.
    let refresh = stage.refresh(&insert(15));
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([15]), 15, Some(20))), Installed::Row);
    stage.clock.pass(10);
    // A later end, or none, does not prolong it.
    let refresh = stage.refresh(&insert(16));
    assert_eq!(stage.end(refresh, &stage.row_of(&rows([16]), 16, Some(500))), Installed::Row);
    stage.clock.pass(8);
    assert!(stage.stored_unit().is_some());
    stage.clock.pass(1);
    assert!(stage.stored_unit().is_none());
    // A unit that has ended is not kept.
    assert!(stage.settled(stage.begin(&insert(17))).is_none());
}

#[test]
fn a_unit_that_is_put_back_ends_when_it_would_have() {
    let stage = Stage::new();
    let led = stage.lead(&stage.unit_key());
    let filled = Filled { max_age: Some(20), ..stage.unit_of(&rows(0..9), 3, false) };
    let asked_at = stage.clock.moment();
    stage.install(&stage.unit_key(), Fill { led, filled, asked_at });
    stage.clock.pass(19);
    assert!(stage.settled(stage.begin(&insert(2))).is_none());
    assert!(stage.stored_unit().is_some());
    stage.clock.pass(1);
    assert!(stage.stored_unit().is_none());
}

#[test]
fn a_row_of_a_marker_alone_leaves_no_unit() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let refresh = stage.refresh(&insert(15));
    let mut row = stage.row_of(&rows([15]), 15, None);
    row.marker_only = true;
    assert_eq!(stage.end(refresh, &row), Installed::Uncacheable);
    assert_eq!(stage.unit(), None);
}

#[test]
fn a_refresh_that_fails_leaves_reads_to_the_database() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    drop(stage.refresh(&insert(15)));
    assert!(matches!(stage.join(&stage.unit_key()), Join::Lead(_)));
    let write = stage.begin(&insert(15));
    assert!(matches!(stage.join(&stage.unit_key()), Join::Bypass(Bypass::WriteInFlight)));
    drop(write);
    assert!(matches!(stage.join(&stage.unit_key()), Join::Bypass(Bypass::Quarantined)));
}

#[test]
fn writes_under_way_keep_no_more_bytes_than_they_may() {
    let stage = Stage::new();
    stage.fill(&rows([10, 20]), 9);
    let refresh = stage.refresh(&insert(15));
    assert!(stage.cache.pending.load(Ordering::Relaxed) > 0);
    drop(refresh);
    assert_eq!(stage.cache.pending.load(Ordering::Relaxed), 0);
    stage.fill(&rows([10, 20]), 9);
    stage.cache.pending.store(crate::kept_unit::MOST_PENDING, Ordering::Relaxed);
    assert!(stage.settled(stage.begin(&insert(15))).is_none());
}
