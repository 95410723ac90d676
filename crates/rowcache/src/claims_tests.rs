//! The lease, the claim and a restart, told step by step by a clock that stands still until it is
//! set.

use std::sync::atomic::Ordering;

use afterglow_cql::plan::{RowKey, TableSchema, Target};
use afterglow_engine::Cache;
use tempfile::TempDir;

use super::*;
use crate::clock::Clock;
use crate::gate::{Bypass, Join};
use crate::lease::LeaseRow;
use crate::restart::{Start, start};
use crate::serve::{CachePermission, NotCached};
use crate::testing::{OnePolicy, TestClock, open_engine};
use crate::write_in_flight::{Answered, InDoubt};
use crate::write_scope::{Tables, WriteScope};

/// A data directory, and what starts in it.
struct House {
    engine: Cache,
    clock: Arc<TestClock>,
    policies: Arc<OnePolicy>,
    policies_text: &'static str,
    sharing: bool,
    directory: TempDir,
}

impl House {
    fn new() -> House {
        let directory = TempDir::new().unwrap();
        let engine = open_engine(directory.path());
        House {
            engine,
            clock: TestClock::new(),
            policies: Arc::default(),
            policies_text: "*.*=exclusive",
            sharing: false,
            directory,
        }
    }

    fn start(&self) -> Claims<()> {
        let claims = start(Start {
            engine: &self.engine,
            data_dir: self.directory.path(),
            policies: self.policies.clone(),
            policies_now: (
                self.policies.generation.load(Ordering::Relaxed),
                self.policies_text.to_owned(),
            ),
            restart_grace: Duration::from_secs(30),
            sharing: self.sharing,
            planned_restart_grace: Duration::ZERO,
            hold: Duration::from_secs(600),
            weak_max_age: Duration::from_secs(60),
            lease: LeaseTimes { lease: Duration::from_secs(60), margin: Duration::from_secs(5) },
            clock: self.clock.clone(),
        });
        let claims = claims.unwrap();
        claims.cache().suspend(false);
        claims
    }
}

fn table() -> TableSchema {
    TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7))
}

impl Claims<()> {
    /// One transaction, as it should be run now, answered at once.
    fn step(&mut self, answer: Answer, settled: Option<i64>) -> (Request, Change) {
        let Next::Send(request) = self.next() else { panic!("nothing is to be asked") };
        self.about_to_send(request).unwrap();
        let change = self.answered(request, self.now(), answer);
        self.apply(request, answer, change, settled);
        (request, change)
    }

    /// Takes the lease of a row that was left so.
    fn take(&mut self, left: Option<LeaseRow>, settled: Option<i64>) -> Change {
        self.step(Answer::Row(left), None);
        self.step(Answer::Applied(true), settled).1
    }

    fn claim(&self) -> Result<u64, NotCached> {
        match self.cache.cache_permission(&table())? {
            CachePermission::Exclusive { claim } => Ok(claim),
            CachePermission::Bounded { .. } => panic!("it is exclusive"),
        }
    }

    /// Whether what a read fills now is short-lived.
    fn is_weak(&self) -> bool {
        let permission = CachePermission::Exclusive { claim: 1 };
        match self.cache.join(&table(), &RowKey::new(), permission, || unreachable!("nobody leads"))
        {
            Join::Lead(ticket) => ticket.is_weak(),
            _ => panic!("the gates are open"),
        }
    }
}

#[test]
fn a_lapse_keeps_the_claim_and_another_holder_ends_it() {
    let house = House::new();
    let mut claims = house.start();
    assert_eq!(claims.claim(), Err(NotCached::NoLease));
    assert!(matches!(claims.take(None, None), Change::Acquired { before: Before::Nobody, .. }));
    let first = claims.claim().unwrap();
    house.clock.pass(55);
    assert_eq!(claims.claim(), Err(NotCached::NoLease), "it ran out while nobody answered");
    claims.step(Answer::Applied(true), None);
    assert_eq!(claims.claim(), Ok(first), "it was renewed, and nobody came between");

    house.clock.pass(20);
    assert_eq!(claims.step(Answer::Applied(false), None).1, Change::Lost);
    assert_eq!(claims.claim(), Err(NotCached::NoLease));
    let ours = LeaseRow { owner: None, epoch: 1, last_owner: Some(claims.id()) };
    assert!(matches!(claims.take(Some(ours), None), Change::Acquired { before: Before::Us, .. }));
    assert_eq!(claims.claim(), Ok(first));

    for (epoch, settled, weak) in [(7, Some(7), false), (17, Some(7), true)] {
        let before = claims.claim().unwrap();
        house.clock.pass(20);
        assert_eq!(claims.step(Answer::Applied(false), None).1, Change::Lost);
        let theirs = LeaseRow { owner: None, epoch, last_owner: Some(Uuid::from_u128(1)) };
        let change = claims.take(Some(theirs), settled);
        assert!(matches!(change, Change::Acquired { before: Before::Another(_), .. }));
        assert_ne!(claims.claim().unwrap(), before);
        assert_eq!(
            claims.is_weak(),
            weak,
            "a write of theirs at ONE may be anywhere unless they say that it is settled"
        );
    }
}

/// A ring has the lease for ever. It is another one where it changed hands, and where somebody has
/// deleted its row: epochs begin anew then.
#[test]
fn a_ring_believes_its_claim_under_the_same_lease_alone() {
    let house = House::new();
    let claim = |epoch, taken| {
        let mut claims = house.start();
        claims.share(epoch, taken);
        claims.cache().lease().set(Millis::MAX);
        claims.claim().unwrap()
    };
    let first = claim(1, 100);
    assert_eq!(claim(1, 100), first);
    let second = claim(1, 200);
    assert_ne!(second, first);
    assert_eq!(claim(1, 200), second);
    assert_ne!(claim(2, 300), second);
}

#[test]
fn no_claim_counts_while_the_new_one_cannot_be_written() {
    let house = House::new();
    let mut claims = house.start();
    claims.take(None, None);
    let before = claims.claim().unwrap();
    let in_the_way = house.directory.path().join("instance.toml.new");
    let _ = std::fs::remove_file(&in_the_way);
    std::fs::create_dir(&in_the_way).unwrap();
    house.policies.generation.store(1, Ordering::Relaxed);
    assert_eq!(claims.claim(), Err(NotCached::NoLease), "the claim was made under other policies");
    claims.tick(1, || "a.b=exclusive".to_owned());
    assert_eq!(claims.claim(), Err(NotCached::NoLease), "a restart would believe the old one");
    std::fs::remove_dir(&in_the_way).unwrap();
    claims.tick(1, || "a.b=exclusive".to_owned());
    assert_ne!(claims.claim().unwrap(), before);
}

/// A schema with that one table.
struct OneTable;

impl Tables for OneTable {
    fn gate(&self, _id: Uuid) -> Option<u32> {
        unreachable!("it is named by its name")
    }

    fn with_gate(&self, _gate: u32) -> Vec<Uuid> {
        Vec::new()
    }

    fn id(&self, _keyspace: &str, _table: &str) -> Option<Uuid> {
        None
    }

    fn former_gate(&self, _id: Uuid) -> Option<u32> {
        None
    }

    fn tables_in(&self, _keyspace: &str) -> Vec<(u32, Uuid)> {
        Vec::new()
    }

    fn is_unknown(&self) -> bool {
        false
    }
}

#[test]
fn a_restart_keeps_the_claim_and_holds_what_was_in_doubt() {
    let house = House::new();
    let mut claims = house.start();
    claims.take(None, None);
    claims.tick(0, || unreachable!("they are the same"));
    let before = claims.claim().unwrap();
    let mut scope = WriteScope::default();
    let target = Target::Table { keyspace: "ks".into(), table: "t".into(), id: None };
    scope.add_target(&target, &|_| None, &OneTable);
    let write = claims.cache().begin_write(&scope, false, 0, WriteScope::default);
    write.settle(Answered::Unknown(InDoubt::WriteTimeout));
    let ours = LeaseRow { owner: None, epoch: 1, last_owner: Some(claims.id()) };
    drop(claims);

    house.clock.pass(10);
    let mut claims = house.start();
    assert_eq!(claims.claim(), Err(NotCached::NoLease));
    claims.take(Some(ours), None);
    assert_eq!(claims.claim(), Ok(before));
    let permission = CachePermission::Exclusive { claim: before };
    let joined = claims.cache().join(&table(), &RowKey::new(), permission, || ());
    assert!(matches!(joined, Join::Bypass(Bypass::Quarantined)));
    drop(claims);

    house.clock.pass(31);
    let mut claims = house.start();
    claims.take(Some(LeaseRow { epoch: 2, ..ours }), None);
    assert_ne!(claims.claim().unwrap(), before, "away for longer than restart-grace");
}

/// Bounded copies of a member of a ring may have missed writes of before that second.
#[test]
fn a_restart_knows_since_when_a_ring_has_its_policies() {
    let mut house = House::new();
    let since = |claims: &Claims<()>| claims.cache().policies_since.load(Ordering::Relaxed);
    let later = |house: &House| {
        house.clock.pass(5);
        house.clock.seconds()
    };
    (house.sharing, house.policies_text) = (true, "*.*=max-staleness=60s");
    let first = house.clock.seconds();
    assert_eq!(since(&house.start()), first);
    later(&house);
    assert_eq!(since(&house.start()), first, "what was cached is served on");

    // Another policy and back again while it runs, before anything is read.
    let mut claims = house.start();
    for text in ["*.*=exclusive", "*.*=max-staleness=60s"] {
        house.policies.generation.fetch_add(1, Ordering::Relaxed);
        house.clock.pass(5);
        let generation = house.policies.generation.load(Ordering::Relaxed);
        claims.tick(generation, || text.to_owned());
        assert!(claims.cache().cache_permission(&table()).is_err(), "no ring agrees");
        assert_eq!(since(&claims), house.clock.seconds());
    }
    let changed = house.clock.seconds();
    drop(claims);
    later(&house);
    assert_eq!(since(&house.start()), changed);

    // By restarts alone.
    house.policies_text = "*.*=exclusive";
    house.start();
    house.policies_text = "*.*=max-staleness=60s";
    let back = later(&house);
    assert_eq!(since(&house.start()), back);

    // A run in no ring notes nothing, and neither did earlier versions.
    house.sharing = false;
    later(&house);
    assert_eq!(since(&house.start()), 0);
    house.sharing = true;
    let joined = later(&house);
    assert_eq!(since(&house.start()), joined);
}
