//! Random writes, fills and reads of one row, step by step in any order, before a database whose
//! last write wins. Some writes find their row on flash, late. Some are in doubt and sent again.
//! Every hit is what the database has.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::gate::Ticket;
use crate::row::encode_absent;

/// A cell as the database resolves it: a later time wins, then a tombstone, then the larger value.
type Resolved = (i64, bool, Option<String>);

/// One row of a database.
#[derive(Clone, Default)]
struct Database {
    cells: BTreeMap<u16, Resolved>,
    deleted: i64,
    marker: i64,
}

impl Database {
    fn apply(&mut self, write: &Change) {
        match write {
            Change::Delete(time) => self.deleted = self.deleted.max(*time),
            Change::Set { time, marks, cells } => {
                for (column, value) in cells {
                    let new = (*time, value.is_none(), value.clone());
                    let cell = self.cells.entry(*column).or_insert((0, true, None));
                    *cell = cell.clone().max(new);
                }
                if *marks {
                    self.marker = self.marker.max(*time);
                }
            }
        }
    }

    fn cell(&self, column: u16) -> Option<(i64, &str)> {
        let (time, _, value) = self.cells.get(&column)?;
        Some((*time, value.as_deref()?)).filter(|(time, _)| *time > self.deleted)
    }

    fn read(&self) -> Option<[Option<String>; 2]> {
        let row = [0, 1].map(|column| self.cell(column).map(|(_, value)| value.to_owned()));
        (self.marker > self.deleted || row != [None, None]).then_some(row)
    }

    fn filled(&self, fingerprint: u64) -> Filled {
        let mut bytes = Vec::new();
        let row = self.read();
        match &row {
            None => encode_absent(fingerprint, &mut bytes),
            Some(_) => {
                let cells = [0, 1].map(|column| match self.cell(column) {
                    Some((write_time, value)) => {
                        Cell { value: Some(value.as_bytes()), write_time, expiry: 0 }
                    }
                    None => Cell::NULL,
                });
                assert!(encode(fingerprint, &cells, &mut bytes));
            }
        }
        Filled { bytes, max_age: None, marker_only: row == Some([None, None]) }
    }
}

#[derive(Debug, Clone)]
enum Change {
    Set { time: i64, marks: bool, cells: Vec<(u16, Option<String>)> },
    Delete(i64),
}

impl Change {
    fn text(&self) -> String {
        let quoted = |value: &Option<String>| match value {
            Some(value) => format!("'{value}'"),
            None => "null".to_owned(),
        };
        match self {
            Change::Delete(_) => "DELETE FROM ks.t WHERE k = 1".into(),
            Change::Set { marks: true, cells, .. } => {
                let names = cells.iter().map(|(at, _)| ["v", "w"][usize::from(*at)]);
                let names = names.collect::<Vec<_>>().join(", ");
                let values = cells.iter().map(|(_, value)| quoted(value)).collect::<Vec<_>>();
                format!("INSERT INTO ks.t (k, {names}) VALUES (1, {})", values.join(", "))
            }
            Change::Set { cells, .. } => {
                let set = cells.iter().map(|(at, value)| {
                    format!("{} = {}", ["v", "w"][usize::from(*at)], quoted(value))
                });
                format!("UPDATE ks.t SET {} WHERE k = 1", set.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// With its time counted from `now`.
    fn from(&self, now: i64) -> (Change, i64) {
        let mut change = self.clone();
        let (Change::Set { time, .. } | Change::Delete(time)) = &mut change;
        *time += now;
        let time = *time;
        (change, time)
    }
}

/// What happens next; numbers choose among what is under way.
#[derive(Debug, Clone)]
enum Step {
    Write(Change),
    /// As a write whose row is on flash only.
    WriteOfFlash(Change),
    /// The read of its row is over.
    Find(usize),
    /// The database takes a write.
    Take(usize),
    /// The answer comes. `known`: it says what happened.
    Answer {
        write: usize,
        known: bool,
    },
    /// The outcome is unknown, and it is sent again from now on: the database may take it often.
    Doubt(usize),
    /// The database says that it has what was sent again.
    Settle(usize),
    /// An attempt that was under way then reaches the database.
    Stray(usize),
    Ask,
    /// The database reads for a fill.
    Look(usize),
    Install(usize),
    /// The last hold ends.
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let time = -2..3_i64;
    let value = prop_oneof![19 => "[a-d]".prop_map(Some), 1 => Just(None)];
    let columns = prop_oneof![Just(vec![0_u16]), Just(vec![1]), Just(vec![0, 1])];
    let set = (time.clone(), any::<bool>(), columns, [value.clone(), value]).prop_map(
        |(time, marks, columns, values)| {
            let cells = columns.into_iter().zip(values).collect();
            Change::Set { time, marks, cells }
        },
    );
    let change = prop_oneof![15 => set, 1 => time.prop_map(Change::Delete)].boxed();
    prop_oneof![
        1 => change.clone().prop_map(Step::Write),
        1 => change.prop_map(Step::WriteOfFlash),
        6 => any::<usize>().prop_map(Step::Find),
        12 => any::<usize>().prop_map(Step::Take),
        12 => (any::<usize>(), prop::bool::weighted(0.995))
            .prop_map(|(write, known)| Step::Answer { write, known }),
        2 => any::<usize>().prop_map(Step::Doubt),
        6 => any::<usize>().prop_map(Step::Settle),
        2 => any::<usize>().prop_map(Step::Stray),
        12 => Just(Step::Ask),
        12 => any::<usize>().prop_map(Step::Look),
        12 => any::<usize>().prop_map(Step::Install),
        4 => Just(Step::Wait),
    ]
}

struct Under {
    change: Change,
    taken: bool,
    /// None once its outcome is unknown: the database may still take it until the hold ends.
    write: Option<WriteInFlight<u32>>,
    answered: bool,
    /// It is sent again.
    doubted: bool,
    /// What a read of its row on flash will find.
    hit: Option<Hit>,
}

impl Under {
    /// Whether it has been sent again, and the database has it.
    fn settles(&mut self) -> bool {
        let settles = self.doubted && self.taken;
        if let Some(write) = self.write.take_if(|_| settles) {
            write.settle_repeated(Answered::Unknown(InDoubt::WriteTimeout), true);
            self.answered = true;
        }
        self.answered
    }
}

fn chosen<T>(among: &mut [T], number: usize) -> Option<&mut T> {
    let count = among.len().max(1);
    among.get_mut(number % count)
}

struct Fill {
    ticket: Ticket<u32>,
    permission: CachePermission,
    asked_at: Moment,
    filled: Option<Filled>,
}

impl Fill {
    fn install(self, stage: &Stage) {
        let fill = ReturnedFill {
            plan: &stage.read,
            key: &stage.key,
            filled: self.filled.expect("the database has read it"),
            cache_permission: self.permission,
            asked_at: self.asked_at,
            weak: false,
        };
        stage.cache.install(fill, self.ticket);
    }
}

/// A cache, its database, and what is under way.
struct World {
    stage: Stage,
    database: Database,
    writes: Vec<Under>,
    fills: Vec<Fill>,
    /// What was settled by sending it again.
    strays: Vec<Change>,
    now: i64,
    hits: u64,
    /// Rows that followed a write.
    updated: u64,
    /// Rows that were found on flash.
    found: u64,
}

impl World {
    fn new() -> World {
        World {
            stage: Stage::new(false),
            database: Database::default(),
            writes: Vec::new(),
            fills: Vec::new(),
            strays: Vec::new(),
            now: 10,
            hits: 0,
            updated: 0,
            found: 0,
        }
    }

    fn write(&mut self, change: &Change, of_flash: bool) {
        self.now += 1;
        let (change, time) = change.from(self.now);
        let hit = self.stage.cache.peek(&self.stage.key).filter(|_| of_flash);
        let mut write = self.stage.begin(&change.text(), Some(time));
        // The same row, which is known only once it is read.
        if of_flash && let Some(UpdatedRow { row, _pending, .. }) = write.updated.take() {
            let (_, update) = self.stage.scope(&change.text());
            let values = RowChange::of(&update.expect("it was updated"), &|_| None, Some(time));
            let change = values.expect("it was updated");
            write.on_flash = Some(Box::new(RowOnFlash { row, change, read: None, _pending }));
        }
        let (write, taken, answered, doubted) = (Some(write), false, false, false);
        self.writes.push(Under { change, taken, write, answered, doubted, hit });
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Write(change) => self.write(change, false),
            Step::WriteOfFlash(change) => self.write(change, true),
            Step::Find(at) => {
                if let Some(under) = chosen(&mut self.writes, *at)
                    && let (Some(write), Some(hit)) = (&mut under.write, under.hit.take())
                    && write.on_flash.is_some()
                {
                    write.found_on_flash(&hit);
                    self.found += u64::from(write.updated.is_some());
                }
            }
            Step::Take(at) => {
                let under = chosen(&mut self.writes, *at);
                if let Some(under) = under.filter(|under| !under.taken || under.doubted) {
                    under.taken = true;
                    self.database.apply(&under.change);
                }
            }
            Step::Answer { write, known } => self.answer(*write, *known),
            Step::Doubt(at) => {
                if let Some(under) = chosen(&mut self.writes, *at)
                    && let Some(write) = &mut under.write
                {
                    write.abandon_row();
                    under.doubted = true;
                }
            }
            Step::Settle(at) => {
                if let Some(under) = chosen(&mut self.writes, *at)
                    && under.settles()
                {
                    self.strays.push(under.change.clone());
                    self.writes.retain(|under| !under.answered);
                }
            }
            Step::Stray(at) => {
                if let Some(change) = chosen(&mut self.strays, *at) {
                    self.database.apply(change);
                }
            }
            Step::Ask => self.ask(),
            Step::Look(at) => {
                if let Some(fill) = chosen(&mut self.fills, *at) {
                    let fingerprint = self.stage.read.fingerprint;
                    fill.filled.get_or_insert_with(|| self.database.filled(fingerprint));
                }
            }
            Step::Install(at) => {
                if chosen(&mut self.fills, *at).is_some_and(|fill| fill.filled.is_some()) {
                    let at = *at % self.fills.len();
                    self.fills.remove(at).install(&self.stage);
                }
            }
            Step::Wait => {
                self.stage.clock.pass(HOLD + 1);
                self.writes.retain(|under| under.write.is_some());
            }
        }
    }

    fn answer(&mut self, write: usize, known: bool) {
        let under = chosen(&mut self.writes, write).filter(|under| !under.doubted);
        let Some(under) = under else { return };
        if !known {
            drop(under.write.take());
        } else if under.taken
            && let Some(write_in_flight) = under.write.take()
        {
            self.updated += u64::from(settle(write_in_flight) == RowOutcome::Updated);
            under.answered = true;
            self.writes.retain(|under| !under.answered);
        }
    }

    fn ask(&mut self) {
        let Stage { cache, read, key, clock, .. } = &self.stage;
        let permission = self.stage.permission();
        if let Join::Lead(ticket) = cache.join(&read.table, key, permission, || 0) {
            let asked_at = clock.moment();
            self.fills.push(Fill { ticket, permission, asked_at, filled: None });
        }
    }

    /// A hit is what the database has.
    fn check(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let Stage { cache, read, key, .. } = &self.stage;
        if let Lookup::Hit(hit) = cache.look_up(key)
            && let Ok(row) = cache.accept(&hit, self.stage.permission(), read.fingerprint)
        {
            self.hits += 1;
            let shown = (!row.stored().is_absent()).then(|| {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                [0, 1].map(|at| row.stored().cell(at).value.map(text))
            });
            prop_assert_eq!(shown, self.database.read(), "after {:?}", step);
        }
        Ok(())
    }
}

/// Runs the steps. How many hits there were, how many rows followed a write, how many were found on
/// flash for it, and how many writes were settled by sending them again.
fn run(steps: &[Step]) -> Result<[u64; 4], TestCaseError> {
    let mut world = World::new();
    for step in steps {
        world.take(step);
        world.check(step)?;
    }
    Ok([world.hits, world.updated, world.found, world.strays.len() as u64])
}

#[test]
fn every_hit_is_what_the_database_has_whatever_was_put_back() {
    let sums = [const { AtomicU64::new(0) }; 4];
    let mut runner =
        TestRunner::new(Config { cases: 16, failure_persistence: None, ..Config::default() });
    runner
        .run(&prop::collection::vec(step(), 4_000), |steps| {
            for (sum, some) in sums.iter().zip(run(&steps)?) {
                sum.fetch_add(some, Ordering::Relaxed);
            }
            Ok(())
        })
        .unwrap();
    let [hits, updated, found, settled] = sums.map(AtomicU64::into_inner);
    let shown = hits > 1_000 && updated > 50 && found > 20 && settled > 50;
    assert!(shown, "{hits} hits, {updated} updates, {found} of flash, {settled} settled");
}
