//! The lease changes hands while there are writes that a fill may miss. Every row has three copies,
//! of which some are away now and then.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use afterglow::frontend::cql::cached::Times;
use afterglow_cql::frame::Version;
use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::{ConnectOptions, Connection};
use afterglow_loadgen::rng::Rng;
use afterglow_testkit::fake_backend::{COPIES, FakeBackend};
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, database, database_that_may_be_mute, one_text, wait_until};

/// How the instance that holds the lease gives way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGTERM; another one takes over.
    Stop,
    /// `kill -9`; another one takes over.
    Crash,
    /// `kill -9`; it comes back with an empty data directory.
    Replaced,
    /// SIGTERM, and a start on the same files.
    Restart,
    /// `kill -9`, and a start on the same files.
    CrashedRestart,
}

const ENDS: [End; 5] = [End::Stop, End::Crash, End::Replaced, End::Restart, End::CrashedRestart];

/// Short enough to wait for.
const TIMES: Times = Times {
    lease: Duration::from_secs(2),
    margin: Duration::from_millis(500),
    weak_max_age: Duration::from_secs(2),
    fill: Duration::from_secs(6),
};

/// Changes of the replication, one after the other.
const GROWN: [&str; 2] = [
    "ALTER KEYSPACE three WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}",
    "ALTER KEYSPACE three WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
];

/// Copies that answer: one, the two others, or all.
const UP: [[bool; COPIES]; 3] = [[true, false, false], [false, true, true], [true; COPIES]];

/// What a run left; see `forever.rs` for why it is a copy.
fn copy_of(directory: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// A database of three copies and two instances, of which one runs.
struct World {
    database: FakeBackend,
    directories: [TempDir; 2],
    running: usize,
    node: Option<Node>,
    client: Option<Client>,
    next: u32,
    /// What was acknowledged last, and the last of that by a quorum.
    acknowledged: HashMap<String, (u32, u32)>,
}

impl World {
    fn new() -> World {
        World::over(database())
    }

    fn over(database: FakeBackend) -> World {
        let mut direct = past(&database);
        for text in [
            "CREATE KEYSPACE three WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
            "CREATE TABLE three.t (k text PRIMARY KEY, v text)",
        ] {
            direct.query(text, Consistency::One).unwrap();
        }
        database.replicate();
        let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let (running, node, client) = (0, None, None);
        let mut world = World {
            database,
            directories,
            running,
            node,
            client,
            next: 0,
            acknowledged: HashMap::new(),
        };
        world.start();
        world
    }

    fn start(&mut self) {
        let mut setup =
            Setup::new(self.directories[self.running].path(), &self.database, "three.*=exclusive");
        setup.times = TIMES;
        let node = setup.start();
        self.client = Some(node.client(Version::V5));
        self.node = Some(node);
    }

    fn change(&mut self, end: End) {
        self.client = None;
        let node = self.node.take().unwrap();
        match end {
            End::Stop | End::Restart => node.stop(),
            End::Crash | End::Replaced | End::CrashedRestart => node.crash(),
        }
        match end {
            End::Stop | End::Crash => {
                self.directories[self.running] = copy_of(self.directories[self.running].path());
                self.running = 1 - self.running;
            }
            End::Replaced => self.directories[self.running] = TempDir::new().unwrap(),
            End::Restart | End::CrashedRestart => {
                self.directories[self.running] = copy_of(self.directories[self.running].path());
            }
        }
        self.start();
    }

    /// Whether it was acknowledged.
    fn write(&mut self, key: &str, level: Consistency) -> bool {
        self.next += 1;
        let text = format!("INSERT INTO three.t (k, v) VALUES ('{key}', '{}')", self.next);
        let acknowledged = self.client.as_mut().unwrap().raw().query(&text, level).is_ok();
        if acknowledged {
            let (last, by_quorum) = self.acknowledged.entry(key.to_owned()).or_default();
            *last = self.next;
            if level != Consistency::One {
                *by_quorum = self.next;
            }
        }
        acknowledged
    }

    /// The keyspace gets more copies: what its only copy has acknowledged since is missing on a
    /// quorum of the new ones.
    fn grow(&mut self, key: &str) {
        self.next += 1;
        self.database.set_copies(UP[0]);
        let text = format!("INSERT INTO three.t (k, v) VALUES ('{key}', '{}')", self.next);
        past(&self.database).query(&text, Consistency::One).unwrap();
        self.acknowledged.entry(key.to_owned()).or_default().0 = self.next;
        let text = GROWN[self.next as usize % 2];
        self.client.as_mut().unwrap().run(text);
    }

    /// What a quorum read finds; `None` if too few copies answer.
    fn read(&mut self, key: &str) -> Option<u32> {
        let text = format!("SELECT v FROM three.t WHERE k = '{key}'");
        let rows =
            self.client.as_mut().unwrap().raw().query(&text, Consistency::LocalQuorum).ok()?;
        Some(one_text(rows).map_or(0, |value| value.parse().unwrap()))
    }

    /// Everything is whole again: in the end each row is what was acknowledged last, through the
    /// cache too.
    fn settle(&mut self, context: &str) {
        self.database.set_copies([true; COPIES]);
        self.database.deliver_hints();
        let expected = self.acknowledged.clone();
        let late = Instant::now() + 10 * TIMES.weak_max_age;
        for (key, (last, _)) in expected {
            while self.read(&key) != Some(last) {
                let now = Instant::now();
                assert!(now < late, "{context}: {key} stays at {:?}, not {last}", self.read(&key));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn hits(&self) -> u64 {
        self.node.as_ref().unwrap().hits()
    }
}

fn past(database: &FakeBackend) -> Connection {
    Connection::open(&database.address().to_string(), &ConnectOptions::default()).unwrap()
}

#[test]
fn a_write_at_one_is_stale_for_good_under_no_later_holder() {
    for ends in [
        &[End::Stop][..],
        &[End::Crash],
        &[End::Replaced],
        &[End::Stop, End::Restart],
        &[End::Crash, End::CrashedRestart],
    ] {
        let mut world = World::new();
        assert!(world.write("a", Consistency::LocalQuorum));
        world.database.set_copies([true, false, false]);
        assert!(world.write("a", Consistency::One));
        world.database.set_copies([false, true, true]);
        ends.iter().for_each(|end| world.change(*end));
        let hits = world.hits();
        wait_until(&format!("a hit after {ends:?}"), || {
            assert_eq!(world.read("a"), Some(1), "the copies that answer do not have it");
            world.hits() > hits
        });
        world.settle(&format!("{ends:?}"));
    }
}

/// A keyspace gets more copies. A write that its only copy acknowledged is missing on a quorum of
/// the new ones, until a repair.
#[test]
fn a_row_that_new_copies_lack_is_stale_for_good_under_no_change_of_replication() {
    for is_told in [true, false] {
        let mut world = World::new();
        assert!(world.write("a", Consistency::LocalQuorum));
        if is_told {
            world.grow("a");
        } else {
            world.database.set_copies(UP[0]);
            past(&world.database)
                .query("INSERT INTO three.t (k, v) VALUES ('a', '2')", Consistency::One)
                .unwrap();
            world.database.set_copies(UP[1]);
            world.database.run(GROWN[0]);
            world.database.run("CREATE TABLE three.made (k text PRIMARY KEY, v text)");
            world.database.hang_up();
            // Who caches rows of the new table has read the schema.
            let read = "SELECT v FROM three.made WHERE k = 'a'";
            let known = |world: &mut World| {
                let before = world.database.reads();
                let client = world.client.as_mut().unwrap();
                client.try_run(read).is_ok() && world.database.reads() == before
            };
            wait_until("the schema is known again", || known(&mut world));
        }
        world.database.set_copies(UP[1]);
        let hits = world.hits();
        wait_until("a hit", || {
            assert_eq!(world.read("a"), Some(1), "the copies that answer do not have it");
            world.hits() > hits
        });
        world.database.set_copies([true; COPIES]);
        world.database.deliver_hints();
        wait_until("the row is read again", || world.read("a") == Some(2));
    }
}

/// The same, by a client whose change no control connection hears of, and no snapshot has.
#[test]
fn a_row_that_new_copies_lack_is_stale_for_good_under_no_change_while_the_schema_is_unread() {
    let mute = Arc::default();
    let mut world = World::over(database_that_may_be_mute("system_schema", &mute));
    assert!(world.write("a", Consistency::LocalQuorum));
    mute.store(true, Ordering::SeqCst);
    world.database.hang_up();
    wait_until("the nodes are connected to again", || world.read("b").is_some());
    world.grow("a");
    world.database.set_copies(UP[1]);
    let reads = world.database.reads();
    (0..3).for_each(|_| assert_eq!(world.read("a"), Some(1), "what answers does not have it"));
    assert_eq!(world.database.reads() - reads, 3, "the snapshot lacks what the client knows of");
    mute.store(false, Ordering::SeqCst);
    world.database.hang_up();
    let hits = world.hits();
    wait_until("a hit", || {
        assert!(world.read("a").is_none_or(|value| value == 1));
        world.hits() > hits
    });
    world.database.set_copies([true; COPIES]);
    world.database.deliver_hints();
    wait_until("the row is read again", || world.read("a") == Some(2));
}

#[test]
fn the_first_holder_and_one_after_a_settled_one_keep_rows_for_as_long_as_ever() {
    let mut world = World::new();
    for change in [None, Some(End::Stop)] {
        change.into_iter().for_each(|end| world.change(end));
        assert!(world.write("a", Consistency::LocalQuorum));
        let before = world.database.reads();
        let end = Instant::now() + TIMES.weak_max_age + Duration::from_secs(1);
        while Instant::now() < end {
            assert!(world.read("a").is_some());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(world.database.reads() - before, 1, "{change:?}");
    }
}

#[test]
fn no_row_is_stale_for_good_whoever_holds_the_lease_and_however_it_came_by_it() {
    let seeds: Vec<_> = (0..4).map(|seed| std::thread::spawn(move || campaign(seed))).collect();
    seeds.into_iter().for_each(|seed| seed.join().unwrap());
}

/// Rounds of: clients at work while copies come and go, another holder, clients at work, all copies
/// back.
fn campaign(seed: u64) {
    let (mut world, mut rng) = (World::new(), Rng::new(seed));
    let mut answered = 0;
    for round in 0..6 {
        let context = format!("seed {seed}, round {round}");
        answered += work(&mut world, &mut rng, 20, &context);
        // What is lost on the way to the others stands when the holder changes.
        world.database.set_copies(UP[0]);
        for _ in 0..3 {
            world.write(&format!("k{}", rng.below(5)), Consistency::One);
        }
        if rng.below(3) == 0 {
            world.grow(&format!("k{}", rng.below(5)));
        }
        let end = ENDS[rng.below(5) as usize];
        world.change(end);
        world.database.set_copies(UP[1 + rng.below(2) as usize]);
        for key in 0..5 {
            world.read(&format!("k{key}"));
        }
        if rng.below(3) == 0 {
            answered += work(&mut world, &mut rng, 10, &context);
        }
        if rng.below(3) > 0 {
            world.settle(&format!("{context}, {end:?}"));
        }
    }
    assert!(
        answered > 50,
        "seed {seed}: only {answered} reads were answered: nothing was put to the test"
    );
    world.settle(&format!("seed {seed}"));
}

/// So many random steps; the reads that were answered.
fn work(world: &mut World, rng: &mut Rng, steps: u32, context: &str) -> u32 {
    let mut answered = 0;
    for _ in 0..steps {
        let key = format!("k{}", rng.below(5));
        match rng.below(20) {
            0..3 => world.database.set_copies(UP[rng.below(3) as usize]),
            3..6 => _ = world.write(&key, Consistency::One),
            6 => _ = world.write(&key, Consistency::LocalQuorum),
            _ => {
                let known = world.acknowledged.get(&key).copied().unwrap_or_default();
                let found = world.read(&key);
                let stale = found.is_some_and(|found| found < known.1);
                assert!(!stale, "{context}: {key} is {found:?} after {known:?}");
                answered += u32::from(found.is_some());
            }
        }
    }
    answered
}
