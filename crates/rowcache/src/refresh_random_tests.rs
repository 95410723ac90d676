//! Random writes, fills, refreshes and reads of the rows of one partition, step by step in any
//! order, before a database whose last write wins and whose tombstones last. Every hit is what the
//! database has.

use std::sync::atomic::AtomicU64;

use afterglow_cql::plan::Target;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

const KEYS: i32 = 8;
/// Larger than any time of a write.
const NEVER: i64 = i64::MIN;

/// A partition. A later time wins, then a tombstone, then the larger value.
#[derive(Clone)]
struct Database {
    /// Time, whether it is no tombstone, value.
    cells: BTreeMap<i32, (i64, bool, i32)>,
    deleted: i64,
}

impl Database {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Clear(time) => self.deleted = self.deleted.max(*time),
            Change::Empty => (self.cells, self.deleted) = (BTreeMap::new(), NEVER),
            Change::Rows(changed) => changed.iter().for_each(|(c, cell)| self.write(*c, *cell)),
            Change::WithNew(c, cell, new) => {
                self.write(*c, *cell);
                self.write(*new, (cell.0, Some(0)));
            }
        }
    }

    fn write(&mut self, c: i32, (time, value): (i64, Option<i32>)) {
        let new = (time, value.is_none(), value.unwrap_or(0));
        let cell = self.cells.entry(c).or_insert((NEVER, true, 0));
        *cell = (*cell).max(new);
    }

    fn rows(&self) -> Rows {
        let live = |(_, (time, dead, _)): &(&i32, &(i64, bool, i32))| !dead && *time > self.deleted;
        self.cells.iter().filter(live).map(|(c, (_, _, value))| (*c, *value)).collect()
    }
}

#[derive(Debug, Clone)]
enum Change {
    /// Rows with a time, and their values; none deletes.
    Rows(BTreeMap<i32, (i64, Option<i32>)>),
    /// A batch of one row, and of another whose key the database chooses: nobody has read it.
    WithNew(i32, (i64, Option<i32>), i32),
    /// Deletes the partition.
    Clear(i64),
    /// Empties the table, tombstones too.
    Empty,
}

impl Change {
    fn text(&self) -> String {
        let one = |(c, (_, value)): (&i32, &(i64, Option<i32>))| match value {
            Some(value) => format!("INSERT INTO s.t (k, c, v) VALUES (1, {c}, {value})"),
            None => format!("DELETE FROM s.t WHERE k = 1 AND c = {c}"),
        };
        match self {
            Change::Clear(_) => "DELETE FROM s.t WHERE k = 1".into(),
            Change::Empty => "TRUNCATE s.t".into(),
            Change::WithNew(c, cell, _) => one((c, cell)),
            Change::Rows(rows) if rows.len() == 1 => rows.iter().map(one).collect(),
            Change::Rows(rows) => {
                let all: Vec<_> = rows.iter().map(one).collect();
                format!("BEGIN BATCH {}; APPLY BATCH", all.join("; "))
            }
        }
    }

    /// With its times counted from `now`.
    fn from(&self, now: i64) -> Change {
        match self {
            Change::Clear(time) => Change::Clear(time + now),
            Change::Empty => Change::Empty,
            Change::WithNew(c, (time, value), new) => {
                Change::WithNew(*c, (time + now, *value), *new)
            }
            Change::Rows(rows) => {
                let later =
                    |(c, (time, value)): (&i32, &(i64, Option<i32>))| (*c, (time + now, *value));
                Change::Rows(rows.iter().map(later).collect())
            }
        }
    }
}

/// What happens next; numbers choose among what is under way.
#[derive(Debug, Clone)]
enum Step {
    Write(Change),
    /// Some writes of one row each, at once, if there is a unit.
    Burst(Vec<Change>),
    /// The database takes a write.
    Take(usize),
    /// The answer comes. `known`: it says what happened.
    Answer {
        write: usize,
        known: bool,
    },
    /// What a write has left is refreshed, or not.
    Refresh(usize, bool),
    /// A read misses a row, or the unit.
    AskRow(i32),
    AskUnit {
        most: usize,
        reversed: bool,
    },
    /// The database reads for a fill or a refresh.
    Look(usize),
    Install(usize),
    /// The last hold ends.
    Wait,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    // Clocks that are ahead and behind.
    let time = prop_oneof![6 => -2..3_i64, 1 => -40..40_i64];
    let value = prop_oneof![4 => (0..4_i32).prop_map(Some), 1 => Just(None)];
    let row = (0..KEYS, (time.clone(), value));
    let some = row.clone();
    let rows = prop_oneof![12 => Just(1..2_usize), 1 => Just(2..3)].prop_flat_map(move |count| {
        prop::collection::btree_map(some.0.clone(), some.1.clone(), count)
    });
    let one = prop::collection::btree_map(row.0.clone(), row.1.clone(), 1).prop_map(Change::Rows);
    let burst = prop::collection::vec(one, 2..4);
    // Beyond all keys that are read.
    let new = (row.0.clone(), row.1.clone(), KEYS..1_000_000)
        .prop_map(|(c, cell, new)| Change::WithNew(c, cell, new));
    let clear = time.prop_map(Change::Clear);
    let rows = rows.prop_map(Change::Rows);
    let change = prop_oneof![40 => rows, 2 => new, 2 => clear, 3 => Just(Change::Empty)];
    prop_oneof![
        1 => change.prop_map(Step::Write),
        2 => burst.prop_map(Step::Burst),
        8 => any::<usize>().prop_map(Step::Take),
        8 => (any::<usize>(), prop::bool::weighted(0.995))
            .prop_map(|(write, known)| Step::Answer { write, known }),
        10 => (any::<usize>(), prop::bool::weighted(0.95))
            .prop_map(|(at, does)| Step::Refresh(at, does)),
        1 => (0..KEYS).prop_map(Step::AskRow),
        6 => (1..6_usize, any::<bool>())
            .prop_map(|(most, reversed)| Step::AskUnit { most, reversed }),
        12 => any::<usize>().prop_map(Step::Look),
        12 => any::<usize>().prop_map(Step::Install),
        2 => Just(Step::Wait),
        1 => prop::bool::weighted(0.02).prop_map(|is| if is { Step::Restart } else { Step::Wait }),
    ]
}

impl Stage {
    /// Of a batch of this statement and an INSERT of the same partition whose key the database
    /// chooses.
    pub(super) fn begin_with_new_row(&self, text: &str) -> WriteInFlight<Waiter> {
        let Plan::Write(plan) = analyse(&parse(text), &*self.schema, None) else {
            panic!("{text} is a write")
        };
        let [Target::Row(row)] = &*plan.targets else { panic!("{text} is of one row") };
        let mut scope = self.scope(text);
        scope.add_target(&Target::NewRow(row.partition().clone()), &|_| None, &self.index);
        let followed = Followed { change: None, unit_of: Some(&self.plan.table) };
        self.cache.begin_row_write(&scope, followed, false, 0, WriteScope::default)
    }
}

struct Under {
    change: Change,
    taken: bool,
    /// None once its outcome is unknown: the database may still take it until the hold ends.
    write: Option<WriteInFlight<Waiter>>,
}

/// A read of the database that is to be installed.
struct Read {
    of: Of,
    asked_at: Moment,
    filled: Option<Filled>,
}

enum Of {
    Row(i32, Led),
    Unit { most: usize, reversed: bool, led: Led },
    Refresh(i32, Box<Refresh<Waiter>>),
}

fn chosen<T>(among: &[T], number: usize) -> Option<usize> {
    number.checked_rem(among.len())
}

/// A cache, its database, and what is under way.
struct World {
    stage: Stage,
    database: Database,
    writes: Vec<Under>,
    /// Rows that are to be read again.
    kept: Vec<(i32, Refresh<Waiter>)>,
    /// Of reads that wait for a unit: its clones do.
    waiter: Waiter,
    /// Refreshes that ended beside others of the unit.
    overlapped: u64,
    /// Reads that were served what they waited for.
    served: u64,
    reads: Vec<Read>,
    now: i64,
    hits: u64,
    refreshed: u64,
    /// Units that a write left as they are.
    untouched: u64,
    /// Writes of the whole table that the database refused.
    refused: u64,
}

impl World {
    fn new() -> World {
        World {
            stage: Stage::new(),
            database: Database { cells: BTreeMap::new(), deleted: NEVER },
            writes: Vec::new(),
            kept: Vec::new(),
            waiter: Waiter::default(),
            overlapped: 0,
            served: 0,
            reads: Vec::new(),
            now: 100,
            hits: 0,
            refreshed: 0,
            untouched: 0,
            refused: 0,
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Write(change) => self.write(change),
            Step::Burst(changes) => {
                if self.stage.stored_unit().is_some() {
                    changes.iter().for_each(|change| self.write(change));
                }
            }
            Step::Take(at) => {
                if let Some(at) = chosen(&self.writes, *at).filter(|at| !self.writes[*at].taken) {
                    self.writes[at].taken = true;
                    self.database.apply(&self.writes[at].change);
                }
            }
            Step::Answer { write, known } => self.answer(*write, *known)?,
            Step::Refresh(at, does) => {
                if let Some(at) = chosen(&self.kept, *at) {
                    let (c, refresh) = self.kept.remove(at);
                    if *does {
                        self.begin(Of::Refresh(c, Box::new(refresh)));
                    }
                }
            }
            Step::AskRow(c) => {
                if let Some(led) = self.stage.try_to_lead(&self.stage.row_key(*c)) {
                    self.begin(Of::Row(*c, led));
                }
            }
            Step::AskUnit { most, reversed } => {
                let is_there = self.stage.stored_unit().is_some();
                // Most wait, some have waited too long.
                if is_there || *most < 5 && self.stage.awaits(&self.waiter) {
                    return Ok(());
                }
                if let Some(led) = self.stage.try_to_lead(&self.stage.unit_key()) {
                    self.begin(Of::Unit { most: *most, reversed: *reversed, led });
                }
            }
            Step::Look(at) => self.look(*at),
            Step::Install(at) => self.install(*at)?,
            Step::Restart => self.restart(),
            Step::Wait => {
                self.stage.clock.pass(HOLD + 1);
                self.writes.retain(|under| under.write.is_some());
            }
        }
        Ok(())
    }

    fn write(&mut self, change: &Change) {
        self.now += 1;
        let change = change.from(self.now);
        let write = match &change {
            Change::WithNew(..) => self.stage.begin_with_new_row(&change.text()),
            _ => self.stage.begin(&change.text()),
        };
        let write = Some(write);
        self.writes.push(Under { change, taken: false, write });
    }

    fn begin(&mut self, of: Of) {
        let asked_at = self.stage.clock.moment();
        self.reads.push(Read { of, asked_at, filled: None });
    }

    fn answer(&mut self, at: usize, known: bool) -> Result<(), TestCaseError> {
        let Some(at) = chosen(&self.writes, at) else { return Ok(()) };
        if !known {
            drop(self.writes[at].write.take());
        } else if !self.writes[at].taken && matches!(self.writes[at].change, Change::Empty) {
            self.refuse(at);
        } else if self.writes[at].taken && self.writes[at].write.is_some() {
            let Under { write, change, .. } = self.writes.remove(at);
            let write = write.expect("it was looked at");
            match write.settle_and_update(Answered::Definite, || true).unit {
                UnitLeft::Refresh(refresh) => {
                    let Change::Rows(rows) = &change else { panic!("it is no write of one row") };
                    let (c, _) = rows.first_key_value().expect("it has one");
                    assert_eq!(rows.len(), 1);
                    self.kept.push((*c, refresh));
                }
                UnitLeft::Back(back) => {
                    self.untouched += 1;
                    self.show(back)?;
                }
                UnitLeft::Awaited | UnitLeft::Dropped => {}
            }
        }
        Ok(())
    }

    /// A write that the database has not taken is refused, unless nobody waits for its answer.
    fn refuse(&mut self, at: usize) {
        if let Some(write) = self.writes[at].write.take() {
            self.writes.remove(at);
            write.settle(Answered::Refused);
            self.refused += 1;
        }
    }

    fn look(&mut self, at: usize) {
        let Some(at) = chosen(&self.reads, at) else { return };
        let (read, rows) = (&mut self.reads[at], self.database.rows());
        read.filled.get_or_insert_with(|| match &read.of {
            Of::Row(c, _) | Of::Refresh(c, _) => self.stage.row_of(&rows, *c, None),
            Of::Unit { most, reversed, .. } => self.stage.unit_of(&rows, *most, *reversed),
        });
    }

    fn install(&mut self, at: usize) -> Result<(), TestCaseError> {
        let Some(at) = chosen(&self.reads, at).filter(|at| self.reads[*at].filled.is_some()) else {
            return Ok(());
        };
        let Read { of, asked_at, filled } = self.reads.remove(at);
        let (stage, filled) = (&self.stage, filled.expect("it was looked at"));
        match of {
            Of::Row(c, led) => {
                stage.install(&stage.row_key(c), Fill { led, filled, asked_at });
            }
            Of::Unit { led, .. } => {
                stage.install(&stage.unit_key(), Fill { led, filled, asked_at });
            }
            Of::Refresh(_, refresh) => {
                // Few bytes, so that rows at the end go.
                let ended = stage.cache.end_refresh(*refresh, &filled, asked_at, 150);
                let is_in = ended.installed == Installed::Row;
                let is_back = is_in && stage.stored_unit().is_some();
                self.refreshed += u64::from(is_back);
                self.overlapped += u64::from(is_in && !is_back);
                self.show(ended)?;
            }
        }
        Ok(())
    }

    /// Those who waited see what the database has now.
    fn show(&mut self, back: Refreshed<Waiter>) -> Result<(), TestCaseError> {
        let Some(unit) = back.unit else { return Ok(()) };
        self.served += back.waiters.len() as u64;
        let rows = self.database.rows();
        for c in 0..KEYS {
            if let Ok(row) = unit.row(&self.stage.plan.table, &self.stage.row_key(c)) {
                prop_assert_eq!(value(row.bytes()), rows.get(&c).copied(), "{} is shown", c);
            }
        }
        Ok(())
    }

    /// The process is killed, and starts again over the same engine. Writes in flight may still
    /// happen.
    fn restart(&mut self) {
        for read in std::mem::take(&mut self.reads) {
            std::mem::forget(read);
        }
        std::mem::forget(std::mem::take(&mut self.kept));
        self.writes.iter_mut().for_each(|under| std::mem::forget(under.write.take()));
        self.stage.restart();
        self.waiter = Waiter::default();
    }

    /// Everything ends, and nobody waits any more.
    fn end(mut self) -> Result<(), TestCaseError> {
        self.writes.clear();
        self.kept.clear();
        self.reads.clear();
        prop_assert_eq!(Arc::strong_count(&self.waiter), 1, "a read waits in vain");
        Ok(())
    }

    /// Every row that is cached, alone or in the unit, is what the database has, and so is the unit
    /// as far as it reaches.
    fn check(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (stage, rows) = (&self.stage, self.database.rows());
        let is_wide =
            |under: &Under| under.write.is_some() && matches!(under.change, Change::Empty);
        if self.writes.iter().any(is_wide) {
            prop_assert_eq!(Arc::strong_count(&self.waiter), 1, "a read waits after {:?}", step);
        }
        let unit = stage.stored_unit();
        for c in 0..KEYS {
            let key = stage.row_key(c);
            if let Some(permission) = stage.permitted()
                && let Lookup::Hit(hit) = stage.cache.look_up(&key)
                && let Ok(row) = stage.cache.accept(&hit, permission, stage.plan.fingerprint)
            {
                self.hits += 1;
                prop_assert_eq!(
                    value(row.bytes()),
                    rows.get(&c).copied(),
                    "{} after {:?}",
                    c,
                    step
                );
            }
            let in_unit = unit.as_ref().and_then(|unit| unit.row(&stage.plan.table, &key).ok());
            if let Some(row) = in_unit {
                self.hits += 1;
                let row = value(row.bytes());
                prop_assert_eq!(row, rows.get(&c).copied(), "{} of the unit after {:?}", c, step);
            }
        }
        if let Some(unit) = unit.filter(|unit| unit.stored().is_whole()) {
            prop_assert_eq!(unit.stored().rows(), rows.len(), "after {:?}", step);
        }
        Ok(())
    }
}

fn value(row: &[u8]) -> Option<i32> {
    let row = StoredRow::decode(row).unwrap();
    let number = |bytes: &[u8]| i32::from_be_bytes(bytes.try_into().unwrap());
    row.cell(0).value.map(number).filter(|_| !row.is_absent())
}

#[test]
fn every_hit_is_what_the_database_has_whatever_was_refreshed() {
    let sums = [const { AtomicU64::new(0) }; 6];
    let mut runner =
        TestRunner::new(Config { cases: 16, failure_persistence: None, ..Config::default() });
    runner
        .run(&prop::collection::vec(step(), 4_000), |steps| {
            let mut world = World::new();
            for step in &steps {
                world.take(step)?;
                world.check(step)?;
            }
            let World { hits, refreshed, untouched, overlapped, served, refused, .. } = &world;
            let of_run = [hits, refreshed, untouched, overlapped, served, refused];
            for (sum, some) in sums.iter().zip(of_run) {
                sum.fetch_add(*some, Ordering::Relaxed);
            }
            world.end()
        })
        .unwrap();
    let [hits, refreshed, untouched, overlapped, served, refused] = sums.map(AtomicU64::into_inner);
    let shown = hits > 10_000 && refreshed > 20 && untouched > 20;
    assert!(shown, "{hits} hits, {refreshed} refreshes, {untouched} untouched: little was shown");
    println!(
        "{hits} hits, {overlapped} overlapped, {refreshed} refreshes, {untouched} untouched, {served} waited, \
         {refused} refused"
    );
    assert!(refused > 2, "{refused} refusals: little was shown");
    let together = overlapped > 40 && served > 40;
    assert!(together, "{overlapped} refreshes beside others, {served} reads that had waited");
}
