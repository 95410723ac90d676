//! In which steps the schema is read.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use afterglow::frontend::cql::read_schema_of;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::plan::SchemaView;
use afterglow_cql::response::{ErrorBody, Event, SchemaChange, SchemaTarget};
use afterglow_testkit::fake_backend::{Ask, FakeBackend, TEXT};

use crate::client::wait_until;
use crate::database::scripted;
use crate::proxy::Proxy;

const UUID: &[u8] = &[0, 0x0c];
const BIGINT: &[u8] = &[0, 2];
/// Longer than a node needs to send what it has.
const A_WHILE: Duration = Duration::from_millis(50);

/// A database that leaves what is asked about its schema to the test.
struct Database {
    fake: FakeBackend,
    asked: Arc<Mutex<Vec<Arc<Ask>>>>,
    /// Who wants events.
    listener: Arc<Mutex<Option<Arc<Ask>>>>,
}

impl Database {
    fn new() -> Database {
        let asked = Arc::<Mutex<Vec<Arc<Ask>>>>::default();
        let listener = Arc::<Mutex<Option<Arc<Ask>>>>::default();
        let (kept, listens) = (asked.clone(), listener.clone());
        let fake = scripted(Version::V5, move |ask| {
            if ask.opcode() == Opcode::Register {
                listens.lock().unwrap().replace(ask.clone());
            }
            let takes = ask.text.contains("system_schema.");
            if takes {
                kept.lock().unwrap().push(ask.clone());
            }
            takes
        });
        Database { fake, asked, listener }
    }

    /// Takes the queries of one step, which are sent before any of them is answered. Their texts
    /// have this in them, or not.
    fn step(&self, many: usize, word: &str, has_it: bool) -> Vec<Arc<Ask>> {
        let asked = || self.asked.lock().unwrap().len();
        wait_until("the step has begun", || asked() >= many);
        thread::sleep(A_WHILE);
        let step = std::mem::take(&mut *self.asked.lock().unwrap());
        let texts: Vec<_> = step.iter().map(|ask| &ask.text).collect();
        assert!(texts.iter().all(|text| text.contains(word) == has_it), "{texts:?}");
        assert_eq!(step.len(), many, "{texts:?}");
        step
    }

    /// The step of the times: a table was last changed then.
    fn times(&self, time: i64) {
        let mut step = self.step(3, "writetime", true);
        // Whichever is answered last: nothing more is sent before it is.
        let of_tables = step.remove(0);
        step.iter().for_each(|ask| ask.rows(&[("k", UUID)], &[]));
        thread::sleep(A_WHILE);
        assert!(self.asked.lock().unwrap().is_empty());
        let columns = [("id", UUID), ("writetime(id)", BIGINT)];
        of_tables.rows(&columns, &[&[&[7; 16], &time.to_be_bytes()]]);
    }

    /// The step of everything else.
    fn at_once(&self) {
        let mut step = self.step(8, "writetime", false);
        let last = step.remove(3);
        step.iter().rev().for_each(|ask| ask.rows(&[("k", UUID)], &[]));
        thread::sleep(A_WHILE);
        assert!(self.asked.lock().unwrap().is_empty(), "times are read after all of it");
        last.rows(&[("k", UUID)], &[]);
    }

    fn in_turn(&self) {
        for table in [
            "keyspaces",
            "tables",
            "views",
            "columns",
            "indexes",
            "triggers",
            "dropped_columns",
            "column_masks",
        ] {
            let step = self.step(1, "writetime", false);
            assert!(step[0].text.ends_with(&format!("system_schema.{table}")), "{}", step[0].text);
            match table {
                "tables" => {
                    let columns = [("keyspace_name", TEXT), ("table_name", TEXT), ("id", UUID)];
                    step[0].rows(&columns, &[&[b"ks", b"t", &[7; 16]]]);
                }
                _ => step[0].rows(&[("k", UUID)], &[]),
            }
        }
    }

    fn tell_change(&self) {
        let mut event = Vec::new();
        let target = SchemaTarget::Table("t");
        let change = SchemaChange { change: "UPDATED", keyspace: "ks", target };
        Event::Schema(change).encode(&mut event);
        self.listener.lock().unwrap().as_ref().unwrap().event(&event);
    }
}

#[test]
fn the_schema_is_read_at_once_between_two_readings_of_its_times() {
    let database = Database::new();
    let _proxy = Proxy::before(database.fake.address());
    for is_first in [true, false] {
        database.times(5);
        database.at_once();
        database.times(5);
        thread::sleep(A_WHILE);
        assert!(database.asked.lock().unwrap().is_empty(), "it is read");
        if is_first {
            database.tell_change();
        }
    }
}

/// Of answers that were made in any order, some might show what others lack.
#[test]
fn a_schema_that_changes_while_it_is_read_is_read_again_in_turn() {
    let database = Database::new();
    let _proxy = Proxy::before(database.fake.address());
    database.times(5);
    database.at_once();
    database.times(6);
    database.in_turn();
    // Once: what changes now has no time, and counts as changed.
    database.times(7);
    thread::sleep(A_WHILE);
    assert!(database.asked.lock().unwrap().is_empty(), "it is read");
}

/// Of two changes in a row the second may come while the schema is read for the first. Whoever has
/// heard of the first alone does not take it for the only one.
#[test]
fn a_table_that_changes_while_the_schema_is_read_at_once_has_no_time() {
    let database = Database::new();
    let target = database.fake.address().to_string().parse().unwrap();
    let schema = thread::scope(|scope| {
        let read = scope.spawn(|| read_schema_of(&target, None, None).unwrap());
        database.times(5);
        database.at_once();
        database.times(6);
        database.in_turn();
        database.times(6);
        read.join().unwrap()
    });
    assert!(schema.table("ks", "t").is_some());
    assert_eq!(schema.seen("ks", "t").unwrap().time, None);
}

/// Long answers share a slow connection. All of them take longer than one alone may.
#[test]
fn a_schema_that_is_read_at_once_may_take_long_while_answers_come() {
    let database = Database::new();
    let _proxy = Proxy::before(database.fake.address());
    database.times(5);
    for ask in database.step(8, "writetime", false) {
        thread::sleep(Duration::from_millis(1_400));
        ask.rows(&[("k", UUID)], &[]);
    }
    database.times(5);
    thread::sleep(A_WHILE);
    assert!(database.asked.lock().unwrap().is_empty(), "it is read");
}

#[test]
fn where_the_database_tells_no_times_the_schema_is_read_in_turn() {
    let database = Database::new();
    let _proxy = Proxy::before(database.fake.address());
    let refuse = || {
        for ask in database.step(3, "writetime", true) {
            ask.error(&ErrorBody::new(ErrorCode::Invalid, "no such function"));
        }
    };
    refuse();
    database.in_turn();
    refuse();
    thread::sleep(A_WHILE);
    assert!(database.asked.lock().unwrap().is_empty(), "it is read");
}
