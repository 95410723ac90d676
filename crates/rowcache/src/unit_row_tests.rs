//! Rows that are served from the unit of their partition: no read is older than a write through us,
//! and none is older than an earlier read of the row, though others write past us.

use std::sync::Arc;

use afterglow_cql::plan::{Plan, ReadPlan, RowKey, analyse, defined_tables};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use crate::entry::Row;
use crate::gate::{Join, Ticket};
use crate::install::{Installed, ReturnedFill};
use crate::row::{Filled, read_fill};
use crate::row_cache::RowCache;
use crate::serve::CachePermission;
use crate::tables::Index;
use crate::testing::{TestClock, cache_of_boot, open_engine};
use crate::unit::{UnitAsked, read_unit};
use crate::write_in_flight::{Answered, WriteInFlight};
use crate::write_scope::WriteScope;

const ROWS: usize = 3;
const PERMISSION: CachePermission = CachePermission::Bounded { seconds: 1_000 };

/// A row as the database has it: every change is another number. It is not there at every fourth.
type Numbers = [i32; ROWS];

fn is_there(number: i32) -> bool {
    number % 4 != 0
}

/// A cache, and the partition 1 of `s.t` in its database.
struct Stage {
    cache: Arc<RowCache<()>>,
    clock: Arc<TestClock>,
    schema: Arc<Schema>,
    index: Index,
    rows: Vec<(ReadPlan, RowKey)>,
    unit: (ReadPlan, RowKey),
    _engine: Cache,
    _directory: TempDir,
}

impl Stage {
    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let cache = cache_of_boot(1, &engine, &directory.path().join("intents"), &clock);
        let script = "CREATE TABLE s.t (k int, c int, v int, PRIMARY KEY (k, c));";
        let schema = Arc::new(Schema::of_tables(defined_tables(script, None).unwrap()));
        let planned = |text: &str| {
            let plan = analyse(&parse(text), &*schema, None);
            let plan = plan.read().expect("it is cached").clone();
            let mut key = RowKey::new();
            plan.key.bind(|_| None, &mut key).unwrap();
            (plan, key)
        };
        let row = |c| planned(&format!("SELECT v FROM s.t WHERE k = 1 AND c = {c}"));
        let rows = (0..ROWS).map(row).collect();
        let unit = planned("SELECT v FROM s.t WHERE k = 1");
        let index = Index::of(schema.clone());
        Stage { cache, clock, schema, index, rows, unit, _engine: engine, _directory: directory }
    }

    fn begin(&self, row: usize) -> WriteInFlight<()> {
        let text = format!("UPDATE s.t SET v = 1 WHERE k = 1 AND c = {row}");
        let Plan::Write(plan) = analyse(&parse(&text), &*self.schema, None) else {
            panic!("{text} is a write")
        };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &self.index);
        self.cache.begin_write(&scope, false, 0, WriteScope::default)
    }

    /// Begins a fill that reads this from the database at once.
    fn fill(&self, of: Of, numbers: Numbers) -> Option<Fill> {
        let (plan, key) = self.of(of);
        let Join::Lead(ticket) = self.cache.join(&plan.table, key, PERMISSION, || ()) else {
            return None;
        };
        let int = |n: i32| Some(n.to_be_bytes());
        let time = Some(1_i64.to_be_bytes());
        let cells: Vec<_> = (0..ROWS).map(|c| [int(1), int(c as i32), int(numbers[c])]).collect();
        let row = |c: usize| -> Vec<Option<&[u8]>> {
            let cells = cells[c].iter().map(|cell| cell.as_ref().map(|cell| &cell[..]));
            cells.chain([time.as_ref().map(|time| &time[..]), None]).collect()
        };
        let there = |c: &usize| is_there(numbers[*c]);
        let filled = match of {
            Of::Row(c) => {
                let rows: Vec<_> = Some(c).filter(there).map(row).into_iter().collect();
                read_fill(&plan.table, plan.fingerprint, key, &rows, 1)
            }
            Of::Unit { most, reversed } => {
                let mut rows: Vec<_> = (0..ROWS).filter(there).map(row).collect();
                if reversed {
                    rows.reverse();
                }
                rows.truncate(most);
                let asked = UnitAsked { reversed, rows: most as u32, bytes: 1 << 16 };
                read_unit(&plan.table, plan.fingerprint, key, &rows, asked, 1)
            }
        };
        Some(Fill { of, ticket, filled: filled.unwrap(), numbers })
    }

    fn of(&self, of: Of) -> &(ReadPlan, RowKey) {
        match of {
            Of::Row(c) => &self.rows[c],
            Of::Unit { .. } => &self.unit,
        }
    }

    fn install(&self, fill: Fill) -> Installed {
        let (plan, key) = self.of(fill.of);
        let asked_at = self.cache.clock().moment();
        let (filled, cache_permission) = (fill.filled, PERMISSION);
        let fill_of = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak: false };
        self.cache.install(fill_of, fill.ticket).installed
    }

    /// What a read of a row is answered with from the cache: from the row, or from the unit.
    fn read(&self, c: usize) -> Option<Option<i32>> {
        let (plan, key) = &self.rows[c];
        let of_row = match self.cache.look_up(key) {
            Lookup::Hit(hit) => self.cache.accept(&hit, PERMISSION, plan.fingerprint).ok(),
            _ => None,
        };
        let row = of_row.or_else(|| self.read_of_unit(c))?;
        let value = |value: &[u8]| i32::from_be_bytes(value.try_into().unwrap());
        Some(row.stored().cell(0).value.map(value))
    }

    fn read_of_unit(&self, c: usize) -> Option<Row> {
        let (plan, key) = &self.rows[c];
        let Some(Lookup::Hit(hit)) = self.cache.look_up_unit(key, || true) else { return None };
        let unit = self.cache.accept_unit(&hit, PERMISSION, plan.fingerprint).unwrap();
        unit.row(&plan.table, key).ok()
    }
}

#[derive(Debug, Clone, Copy)]
enum Of {
    Row(usize),
    Unit { most: usize, reversed: bool },
}

struct Fill {
    of: Of,
    ticket: Ticket<()>,
    filled: Filled,
    numbers: Numbers,
}

const ALL: Of = Of::Unit { most: 9, reversed: false };
const FIRST: Of = Of::Unit { most: 1, reversed: false };

/// The outcome of two fills, of which the first began first, that end in this order.
fn both(first: Of, second: Of, second_ends_first: bool) -> ([Installed; 2], [Option<i32>; 2]) {
    let stage = Stage::new();
    let old = stage.fill(first, [1, 1, 1]).unwrap();
    let new = stage.fill(second, [2, 2, 2]).unwrap();
    let outcomes = match second_ends_first {
        true => {
            let outcome = stage.install(new);
            [stage.install(old), outcome]
        }
        false => [stage.install(old), stage.install(new)],
    };
    let of_unit = |c| {
        let row = stage.read_of_unit(c)?;
        row.stored().cell(0).value.map(|value| i32::from_be_bytes(value.try_into().unwrap()))
    };
    (outcomes, [of_unit(0), of_unit(2)])
}

#[test]
fn what_was_read_earlier_is_not_installed_beside_what_was_read_later() {
    use Installed::{Overtaken, Row as Kept};
    // A unit that has a newer row, and one that ends before it.
    assert_eq!(both(ALL, Of::Row(2), true), ([Overtaken, Kept], [None, None]));
    assert_eq!(both(FIRST, Of::Row(2), true), ([Kept, Kept], [Some(1), None]));
    // The older unit is there first: the row takes its place.
    assert_eq!(both(ALL, Of::Row(2), false), ([Kept, Kept], [None, None]));
    assert_eq!(both(FIRST, Of::Row(2), false), ([Kept, Kept], [Some(1), None]));
    // A row that is older than the unit.
    assert_eq!(both(Of::Row(2), ALL, true), ([Overtaken, Kept], [Some(2), Some(2)]));
    assert_eq!(both(Of::Row(2), ALL, false), ([Kept, Kept], [Some(2), Some(2)]));
}

#[test]
fn a_younger_fill_that_finds_a_full_journal_leaves_no_older_one() {
    for of in [Of::Row(0), ALL] {
        let stage = Stage::new();
        // The journal has room again at any moment.
        let refused = (0..1_000).any(|_| {
            let old = stage.fill(of, [1, 1, 1]).unwrap();
            stage.clock.pass(2); // it is joined no more
            let new = stage.fill(of, [2, 2, 2]).unwrap();
            if stage.install(old) != Installed::Row {
                return false;
            }
            while stage.cache.backpressure().is_none() {
                drop(stage.cache.rows.submit_remove(b"another"));
            }
            let installed = stage.install(new);
            assert_ne!(stage.read(0), Some(Some(1)), "{of:?}: a read has shown 2 before");
            installed == Installed::Refused
        });
        assert!(refused, "{of:?}");
    }
}

#[test]
fn a_unit_beside_more_newer_rows_than_are_remembered_is_not_installed() {
    let stage = Stage::new();
    let unit = stage.fill(FIRST, [1, 1, 1]).unwrap();
    for _ in 0..65 {
        stage.install(stage.fill(Of::Row(2), [2, 2, 2]).unwrap());
    }
    assert_eq!(stage.install(unit), Installed::Overtaken);
}

/// What happens next; numbers choose among what is under way.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A write through us: it begins, and the database has it at once.
    Write(usize),
    Acknowledge(usize),
    /// A write past us.
    Past(usize),
    Fill(Of),
    Install(usize),
    Evict(Of),
}

fn step() -> impl Strategy<Value = Step> {
    let of = || {
        let unit =
            (1..=ROWS + 1, any::<bool>()).prop_map(|(most, reversed)| Of::Unit { most, reversed });
        prop_oneof![3 => (0..ROWS).prop_map(Of::Row), 2 => unit]
    };
    prop_oneof![
        1 => (0..ROWS).prop_map(Step::Write),
        2 => any::<usize>().prop_map(Step::Acknowledge),
        6 => (0..ROWS).prop_map(Step::Past),
        8 => of().prop_map(Step::Fill),
        10 => any::<usize>().prop_map(Step::Install),
        4 => of().prop_map(Step::Evict),
    ]
}

struct World {
    stage: Stage,
    database: Numbers,
    /// The oldest number of each row that a read may show.
    shown: Numbers,
    writes: Vec<(usize, i32, WriteInFlight<()>)>,
    fills: Vec<Fill>,
    /// Reads answered from a row, and from a unit.
    hits: [u64; 2],
}

impl World {
    fn take(&mut self, step: Step) {
        match step {
            Step::Write(c) => {
                let write = self.stage.begin(c);
                self.database[c] += 1;
                self.writes.push((c, self.database[c], write));
            }
            Step::Acknowledge(at) => {
                if !self.writes.is_empty() {
                    let at = at % self.writes.len();
                    let (c, number, write) = self.writes.swap_remove(at);
                    write.settle(Answered::Definite);
                    self.shown[c] = self.shown[c].max(number);
                }
            }
            Step::Past(c) => self.database[c] += 1,
            // A row that is served is not filled.
            Step::Fill(Of::Row(c)) if self.stage.read(c).is_some() => {}
            Step::Fill(of) => self.fills.extend(self.stage.fill(of, self.database)),
            Step::Install(at) => {
                if !self.fills.is_empty() {
                    let fill = self.fills.swap_remove(at % self.fills.len());
                    // Whoever asked is answered with what was read.
                    if let Of::Row(c) = fill.of {
                        self.shown[c] = self.shown[c].max(fill.numbers[c]);
                    }
                    self.stage.install(fill);
                }
            }
            Step::Evict(of) => {
                drop(self.stage.cache.rows.submit_remove(self.stage.of(of).1.engine_key()));
            }
        }
    }

    /// No row is shown as it was before it was shown last, or before a write was acknowledged.
    fn check(&mut self, step: Step) -> Result<(), TestCaseError> {
        for c in 0..ROWS {
            let Some(row) = self.stage.read(c) else { continue };
            let is_row = matches!(self.stage.cache.look_up(&self.stage.rows[c].1), Lookup::Hit(_));
            self.hits[usize::from(!is_row)] += 1;
            let oldest = self.shown[c];
            let number = match row {
                Some(number) => number,
                None => (oldest..).find(|number| !is_there(*number)).unwrap(),
            };
            let possible = oldest..=self.database[c];
            prop_assert!(possible.contains(&number), "{c} is {row:?} after {step:?}: {possible:?}");
            self.shown[c] = number;
        }
        Ok(())
    }
}

#[test]
fn no_read_of_a_row_is_older_than_one_before_it_wherever_it_was_served_from() {
    let sums = [const { std::sync::atomic::AtomicU64::new(0) }; 2];
    let mut runner =
        TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
    let steps = prop::collection::vec(step(), 2_000);
    let outcome = runner.run(&steps, |steps| {
        let (stage, numbers) = (Stage::new(), [1; ROWS]);
        let (writes, fills) = (Vec::new(), Vec::new());
        let mut world =
            World { stage, database: numbers, shown: numbers, writes, fills, hits: [0; 2] };
        for step in steps {
            world.take(step);
            world.check(step)?;
        }
        for (sum, hits) in sums.iter().zip(world.hits) {
            sum.fetch_add(hits, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    });
    outcome.unwrap();
    let hits = sums.map(|sum| sum.into_inner());
    assert!(hits.iter().all(|hits| *hits > 500), "{hits:?} hits of rows and units: too few");
}
