//! Writes that fills may miss, and transactions that were decided, over a restart. A restart knows
//! of them what the run before knew: fills go on, and are not believed for long.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use afterglow_cql::plan::{Plan, ReadPlan, RowKey, TableSchema, analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_engine::Cache;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use crate::clock::Clock;
use crate::gate::{Bypass, Join};
use crate::row_cache::RowCache;
use crate::serve::CachePermission;
use crate::tables::Index;
use crate::testing::{TestClock, cache_of_boot, open_engine};
use crate::write_in_flight::{Answered, InDoubt, WriteInFlight};
use crate::write_scope::WriteScope;

const PERMISSION: CachePermission = CachePermission::Exclusive { claim: 7 };
const LOST: Answered = Answered::Unknown(InDoubt::ConnectionLost);
const TIMEOUT: Answered = Answered::Unknown(InDoubt::WriteTimeout);
/// Seconds for which a cache of the tests holds.
const HOLD: u32 = 600;
const ROWS: i32 = 6;

/// What a read that has missed may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fills {
    Believed,
    ShortLived,
    Held,
}

struct Stage {
    cache: Arc<RowCache<()>>,
    clock: Arc<TestClock>,
    schema: Arc<Schema>,
    index: Index,
    engine: Cache,
    directory: TempDir,
    runs: u32,
}

impl Stage {
    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let cache = cache_of_boot(1, &engine, &directory.path().join("intents-0"), &clock);
        let script = "CREATE TABLE s.t (k int PRIMARY KEY, v int); \
                      CREATE TABLE s.u (k int PRIMARY KEY, v int); \
                      CREATE TABLE s.m (k uuid PRIMARY KEY, v int);";
        let schema = Arc::new(Schema::of_tables(defined_tables(script, None).unwrap()));
        let index = Index::of(schema.clone());
        Stage { cache, clock, schema, index, engine, directory, runs: 0 }
    }

    /// The process is killed, and starts again: the file of intents is as it is now, and of another
    /// process.
    fn restart(&mut self) {
        self.runs += 1;
        let of_run = |run: u32| self.directory.path().join(format!("intents-{run}"));
        let intents = of_run(self.runs);
        std::fs::copy(of_run(self.runs - 1), &intents).unwrap();
        self.cache = cache_of_boot(1, &self.engine, &intents, &self.clock);
    }

    fn read(&self, table: &str, k: i32) -> (ReadPlan, RowKey) {
        let k = match table {
            "m" => format!("00000000-0000-4000-8000-{k:012}"),
            _ => k.to_string(),
        };
        let text = format!("SELECT v FROM s.{table} WHERE k = {k}");
        let plan = analyse(&parse(&text), &*self.schema, None);
        let plan = plan.read().expect("it is cached").clone();
        let mut key = RowKey::new();
        plan.key.bind(|_| None, &mut key).unwrap();
        (plan, key)
    }

    fn fills(&self, table: &str, k: i32) -> Fills {
        let (plan, key) = self.read(table, k);
        match self.cache.join(&plan.table, &key, PERMISSION, || ()) {
            Join::Lead(ticket) if ticket.is_weak() => Fills::ShortLived,
            Join::Lead(_) => Fills::Believed,
            Join::Bypass(Bypass::Quarantined) => Fills::Held,
            Join::Bypass(why) => panic!("a write is in flight: {why:?}"),
            Join::Wait => panic!("nobody else fills"),
        }
    }

    fn table(&self, name: &str) -> Arc<TableSchema> {
        self.read(name, 0).0.table
    }

    /// Begins a write of these rows, or a transaction if there is a minute.
    fn begin(&self, rows: &[i32], weak: bool, dead_after: Option<u32>) -> WriteInFlight<()> {
        let end = if dead_after.is_some() { " IF v = 2" } else { "" };
        let texts = rows.iter().map(|k| format!("UPDATE s.t SET v = 1 WHERE k = {k}{end}"));
        self.begin_texts(texts, weak, dead_after)
    }

    /// Begins a write of a partition that the database makes, with these rows beside it.
    fn begin_made(&self, rows: &[i32], weak: bool, dead_after: Option<u32>) -> WriteInFlight<()> {
        let end = if dead_after.is_some() { " IF NOT EXISTS" } else { "" };
        let texts = rows.iter().map(|k| format!("UPDATE s.t SET v = 1 WHERE k = {k}"));
        let made = format!("INSERT INTO s.m (k, v) VALUES (uuid(), 1){end}");
        self.begin_texts(texts.chain([made]), weak, dead_after)
    }

    fn begin_texts(
        &self,
        texts: impl Iterator<Item = String>,
        weak: bool,
        dead_after: Option<u32>,
    ) -> WriteInFlight<()> {
        let mut scope = WriteScope::default();
        for text in texts {
            let Plan::Write(plan) = analyse(&parse(&text), &*self.schema, None) else {
                panic!("{text} is a write")
            };
            scope.add(&plan, &|_| None, &self.index);
        }
        self.cache.begin_write(&scope, weak, dead_after.unwrap_or(0), WriteScope::default)
    }

    fn weaken_table(&self, name: &str) {
        let mut scope = WriteScope::default();
        scope.add_table(&self.table(name));
        self.cache.weaken(scope);
    }

    /// The minute so many seconds from now.
    fn minute_in(&self, seconds: u32) -> u32 {
        (self.clock.unix() + seconds) / 60
    }
}

#[test]
fn an_acknowledged_weak_write_holds_nothing_after_a_restart() {
    for dead_after in [None, Some(0), Some(864_000)] {
        let mut stage = Stage::new();
        let minute = dead_after.map(|seconds| stage.minute_in(seconds));
        stage.begin(&[1, 2], true, minute).settle(Answered::Definite);
        for restarts in 0..3 {
            let all = [1, 2, 3].map(|k| stage.fills("t", k));
            let expected = [Fills::ShortLived, Fills::ShortLived, Fills::Believed];
            assert_eq!(all, expected, "{dead_after:?}, {restarts} restarts");
            stage.restart();
        }
        stage.clock.pass(HOLD + 1);
        assert_eq!(stage.fills("t", 1), Fills::Believed, "{dead_after:?}");
        stage.cache.settle_due();
        stage.restart();
        assert_eq!(stage.fills("t", 1), Fills::Believed, "{dead_after:?}: nothing is noted");
    }
}

#[test]
fn a_weak_table_is_weak_and_not_held_after_a_restart() {
    let mut stage = Stage::new();
    stage.weaken_table("t");
    for restarts in 0..3 {
        let both = [stage.fills("t", 1), stage.fills("u", 1)];
        assert_eq!(both, [Fills::ShortLived, Fills::Believed], "{restarts} restarts");
        stage.restart();
    }
}

/// Nobody was told its key, so no cached row is of it: all others of its table are filled on.
#[test]
fn a_write_that_made_its_partition_holds_no_table_whatever_its_outcome() {
    for (is_killed, dead_after) in [(false, None), (true, None), (false, Some(0)), (true, Some(0))]
    {
        let mut stage = Stage::new();
        let minute = dead_after.map(|_| stage.minute_in(864_000));
        let rows: &[i32] = if minute.is_some() { &[] } else { &[1] };
        let write = stage.begin_made(rows, false, minute);
        match is_killed {
            true => stage.restart(),
            false => write.settle(TIMEOUT),
        }
        for restarts in 0..3 {
            let all = [stage.fills("m", 1), stage.fills("t", 1), stage.fills("t", 2)];
            let beside = if rows.is_empty() { Fills::Believed } else { Fills::Held };
            let expected = [Fills::ShortLived, beside, Fills::Believed];
            assert_eq!(all, expected, "{is_killed}, {dead_after:?}, {restarts} restarts");
            stage.restart();
        }
        stage.clock.pass(HOLD + 1);
        assert_eq!(stage.fills("m", 1), Fills::Believed, "{is_killed}, {dead_after:?}");
    }
    let stage = Stage::new();
    stage.begin_made(&[], false, None).settle(Answered::Definite);
    assert_eq!(stage.fills("m", 1), Fills::Believed);
    let under_way = stage.begin_made(&[], false, None);
    let (plan, key) = stage.read("m", 1);
    let joined = stage.cache.join(&plan.table, &key, PERMISSION, || ());
    assert!(matches!(joined, Join::Bypass(Bypass::WriteInFlight)), "it may be of that key");
    under_way.settle(Answered::Definite);
}

/// Its permit has ended, so it is not acknowledged; its writer may be dead, or may ask again.
#[test]
fn a_write_that_has_not_ended_keeps_the_table_weak_in_which_it_made_its_partition() {
    const MINUTE: u64 = 60_000;
    for (answered, after) in [(Answered::Definite, Fills::Believed), (TIMEOUT, Fills::ShortLived)] {
        for renewed in [false, true] {
            let stage = Stage::new();
            let mut write = stage.begin_made(&[], false, None);
            for _ in 0..3 {
                write.weaken_made(MINUTE);
                assert_eq!(stage.fills("m", 1), Fills::ShortLived);
                stage.clock.pass(59);
                assert_eq!(stage.fills("m", 1), Fills::ShortLived);
            }
            if renewed {
                write.renew_made();
                let (plan, key) = stage.read("m", 1);
                let joined = stage.cache.join(&plan.table, &key, PERMISSION, || ());
                assert!(matches!(joined, Join::Bypass(Bypass::WriteInFlight)));
            }
            write.settle(answered);
            assert_ne!(stage.fills("m", 1), Fills::Held);
            stage.clock.pass(61);
            assert_eq!(stage.fills("m", 1), after, "{answered:?}, renewed: {renewed}");
            stage.clock.pass(HOLD);
            assert_eq!(stage.fills("m", 1), Fills::Believed);
        }
    }
}

#[test]
fn a_decided_transaction_is_not_held_for_long_after_a_restart() {
    let mut stage = Stage::new();
    let begin = |stage: &Stage, k| stage.begin(&[k], false, Some(stage.minute_in(864_000)));
    begin(&stage, 1).settle_inquired(LOST, true, true);
    begin(&stage, 2).settle_inquired(LOST, false, true);
    begin(&stage, 3).settle_inquired(TIMEOUT, true, true);
    begin(&stage, 4).settle_inquired(TIMEOUT, true, false);
    let states = |stage: &Stage| [1, 2, 3, 4].map(|k| stage.fills("t", k));
    for restarts in 0..3 {
        let expected = [Fills::Held, Fills::Held, Fills::Believed, Fills::ShortLived];
        assert_eq!(states(&stage), expected, "{restarts} restarts");
        stage.restart();
    }
    stage.clock.pass(HOLD + 1);
    let expected = [Fills::Believed, Fills::Held, Fills::Believed, Fills::Believed];
    assert_eq!(states(&stage), expected, "after the hold");
}

#[test]
fn what_is_written_unseen_by_who_had_the_lease_is_held_whatever_ends_the_run() {
    let mut stage = Stage::new();
    assert!(stage.cache.begin_unseen().is_none());
    for is_killed in [true, false] {
        stage.cache.had_lease.store(true, Ordering::Relaxed);
        let unseen = stage.cache.begin_unseen().unwrap();
        match is_killed {
            true => stage.restart(),
            false => {
                drop(unseen);
                stage.restart();
            }
        }
        assert_eq!([stage.fills("t", 1), stage.fills("u", 2)], [Fills::Held; 2], "{is_killed}");
        stage.clock.pass(HOLD + 1);
        stage.cache.settle_due();
        assert_eq!(stage.fills("t", 1), Fills::Believed, "{is_killed}");
    }
}

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    Write {
        rows: Vec<i32>,
        weak: bool,
        answered: Answered,
    },
    /// A transaction, and whether its replicas forget it within a hold.
    Transaction {
        row: i32,
        weak: bool,
        forgotten: bool,
        end: End,
    },
    /// A write of a partition that the database makes.
    Made {
        rows: Vec<i32>,
        weak: bool,
        answered: Answered,
    },
    WeakenTable(bool),
    Pass(u32),
}

#[derive(Debug, Clone, Copy)]
enum End {
    Answered(Answered),
    Inquired { answered: Answered, decided: bool, seen_here: bool },
}

impl Step {
    /// The row that is held until the replicas have forgotten a transaction.
    fn lasting(&self) -> Option<i32> {
        match self {
            Step::Transaction { row, forgotten: false, end, .. } if end.is_open() => Some(*row),
            _ => None,
        }
    }
}

impl End {
    /// Whether a later transaction may complete this one.
    fn is_open(self) -> bool {
        match self {
            End::Answered(answered) => matches!(answered, Answered::Unknown(_)),
            End::Inquired { decided, .. } => !decided,
        }
    }
}

fn answered() -> impl Strategy<Value = Answered> {
    let some = [Answered::Definite, Answered::Definite, Answered::Refused, TIMEOUT, LOST];
    prop::sample::select(some.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    let rows = prop::collection::vec(0..ROWS, 1..3);
    let inquired = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY).prop_map(
        |(lost, decided, seen_here)| {
            let answered = if lost { LOST } else { TIMEOUT };
            End::Inquired { answered, decided, seen_here }
        },
    );
    let end = prop_oneof![answered().prop_map(End::Answered), inquired];
    prop_oneof![
        4 => (rows, any::<bool>(), answered())
            .prop_map(|(rows, weak, answered)| Step::Write { rows, weak, answered }),
        4 => (0..ROWS, any::<bool>(), any::<bool>(), end)
            .prop_map(|(row, weak, forgotten, end)| Step::Transaction {
                row,
                weak,
                forgotten,
                end,
            }),
        2 => (prop::collection::vec(0..ROWS, 0..2), any::<bool>(), answered())
            .prop_map(|(rows, weak, answered)| Step::Made { rows, weak, answered }),
        1 => any::<bool>().prop_map(Step::WeakenTable),
        4 => (1..HOLD).prop_map(Step::Pass),
    ]
}

impl Stage {
    fn take(&self, step: Step) {
        match step {
            Step::Write { rows, weak, answered } => self.begin(&rows, weak, None).settle(answered),
            Step::Transaction { row, weak, forgotten, end } => {
                let minute = self.minute_in(if forgotten { 0 } else { 864_000 });
                let write = self.begin(&[row], weak, Some(minute));
                match end {
                    End::Answered(answered) => write.settle(answered),
                    End::Inquired { answered, decided, seen_here } => {
                        write.settle_inquired(answered, decided, seen_here);
                    }
                }
            }
            Step::Made { rows, weak, answered } => {
                self.begin_made(&rows, weak, None).settle(answered);
            }
            Step::WeakenTable(first) => self.weaken_table(if first { "t" } else { "u" }),
            Step::Pass(seconds) => {
                self.clock.pass(seconds);
                self.cache.settle_due();
            }
        }
    }

    fn all_fills(&self) -> Vec<Fills> {
        let of = |table| (0..ROWS).map(move |k| self.fills(table, k));
        of("t").chain(of("u")).chain(of("m")).collect()
    }
}

#[test]
fn a_restart_changes_no_gate_while_nothing_is_in_flight() {
    let seen = [const { AtomicU64::new(0) }; 3];
    let mut runner =
        TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(step(), 1..24), |steps| {
        let mut stage = Stage::new();
        // Only transactions that nobody has decided outlast a hold.
        let lasting: HashSet<i32> = steps.iter().filter_map(Step::lasting).collect();
        steps.into_iter().for_each(|step| stage.take(step));
        let before = stage.all_fills();
        for fills in &before {
            seen[*fills as usize].fetch_add(1, Ordering::Relaxed);
        }
        stage.restart();
        prop_assert_eq!(stage.all_fills(), before, "after a restart");
        stage.clock.pass(HOLD + 1);
        let of = |k| if lasting.contains(&k) { Fills::Held } else { Fills::Believed };
        let expected = (0..ROWS).map(of).chain((0..2 * ROWS).map(|_| Fills::Believed));
        prop_assert_eq!(stage.all_fills(), expected.collect::<Vec<_>>(), "after the hold");
        Ok(())
    });
    outcome.unwrap();
    let seen = seen.map(AtomicU64::into_inner);
    assert!(seen.iter().all(|count| *count > 40), "{seen:?}: little was shown");
}
