//! A node may hear of a table long after others, and coordinate requests to it all the same. Here
//! that happens between two starts: no snapshot of a run has a table whose rows an earlier run has
//! cached.

use std::fs;
use std::time::Duration;

use afterglow_cql::frame::Version;
use afterglow_loadgen::rng::Rng;
use afterglow_rowcache::noted_tables;
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, database, direct, wait_until};

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// SIGTERM.
    Stop,
    /// `kill -9`.
    Crash,
}

impl End {
    fn of(self, node: Node) {
        match self {
            End::Stop => node.stop(),
            End::Crash => node.crash(),
        }
    }
}

const ENDS: [End; 2] = [End::Stop, End::Crash];
const POLICIES: [&str; 2] = ["ks.*=exclusive", "ks.*=max-staleness=1h"];

struct World {
    database: FakeBackend,
    directory: TempDir,
    policy: &'static str,
}

impl World {
    fn new(policy: &'static str) -> World {
        World { database: database(), directory: TempDir::new().unwrap(), policy }
    }

    /// One run, from when the schema has been read. Rows of `ks.other` are cached then.
    fn run<T>(&self, end: End, act: impl FnOnce(&mut Client) -> T) -> T {
        let node = Setup::new(self.directory.path(), &self.database, self.policy).start();
        let mut client = node.client(Version::V5);
        wait_until("the schema is known", || {
            let reads = self.database.reads();
            client.run("SELECT v FROM ks.other WHERE k = 'a'");
            self.database.reads() == reads
        });
        let result = act(&mut client);
        drop(client);
        end.of(node);
        result
    }

    /// Reads of the database for a row of `ks.t`, and the row.
    fn read(&self, client: &mut Client, key: &str) -> (u64, Option<String>) {
        let before = self.database.reads();
        let value = client.value(key);
        (self.database.reads() - before, value)
    }

    /// Has a row of `ks.t` cached.
    fn cache(&self, client: &mut Client, value: &str) {
        client.put("a", value);
        wait_until("the row is cached", || self.read(client, "a") == (0, Some(value.to_owned())));
    }

    /// A write to `ks.t` of which no snapshot knows. Its statement names the table.
    fn write_unknown(&self, client: &mut Client, value: &str) {
        let (reads, _) = self.read(client, "a");
        assert_eq!(reads, 1, "the snapshot lacks the table");
        client.put("a", value);
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join(noted_tables::FILE)
    }

    /// It is written beside its last version.
    fn spare(&self) -> std::path::PathBuf {
        self.directory.path().join(format!("{}.new", noted_tables::FILE))
    }

    /// From now on the file cannot be written.
    fn block_file(&self) {
        let _ = fs::remove_file(self.spare());
        fs::create_dir(self.spare()).unwrap();
    }

    fn unblock_file(&self) {
        fs::remove_dir(self.spare()).unwrap();
    }
}

#[test]
fn no_row_is_stale_after_a_run_whose_node_had_not_heard_of_its_table() {
    for policy in POLICIES {
        for (first, second) in ENDS.iter().flat_map(|a| ENDS.map(|b| (*a, b))) {
            let world = World::new(policy);
            world.run(first, |client| world.cache(client, "1"));
            world.database.lack_table(Some("ks.t"));
            world.run(second, |client| world.write_unknown(client, "2"));
            world.database.lack_table(None);
            let read = world.run(End::Stop, |client| world.read(client, "a"));
            assert_eq!(read, (1, Some("2".to_owned())), "{policy}, {first:?}, {second:?}");
        }
    }
}

#[test]
fn rows_stay_cached_over_restarts_whatever_tables_come_and_go_beside_them() {
    for policy in POLICIES {
        for end in ENDS {
            let world = World::new(policy);
            world.run(end, |client| world.cache(client, "1"));
            let stays = |what: &str| {
                let read = world.run(end, |client| world.read(client, "a"));
                // What has not reached flash does not outlast a crash.
                assert_eq!(read.1.as_deref(), Some("1"), "{what}");
                let is_kept = read.0 == 0;
                assert!(is_kept || end == End::Crash, "{what}: {policy}, {end:?}");
                world.run(end, |client| world.cache(client, "1"));
            };
            stays("nothing has changed");
            direct(&world.database, "CREATE TABLE ks.more (k text PRIMARY KEY, v text)");
            stays("a table has come");
            direct(&world.database, "DROP TABLE ks.more");
            stays("a table has gone");
            world.database.lack_table(Some("ks.wide"));
            stays("another table is not known");
        }
    }
}

/// Without it nothing is known, and with that of an earlier run too much.
#[test]
fn a_file_of_tables_that_is_not_of_the_last_run_costs_the_rows_and_shows_none_that_is_stale() {
    type Damage = fn(&World, &[u8]);
    let damages: [(&str, Damage); 4] = [
        ("removed", |world, _| fs::remove_file(world.file()).unwrap()),
        ("cut", |world, of_first| fs::write(world.file(), &of_first[..40]).unwrap()),
        ("a directory", |world, _| {
            fs::remove_file(world.file()).unwrap();
            fs::create_dir(world.file()).unwrap();
        }),
        // As if the second run had been of a release that does not know the file.
        ("of the first run", |world, of_first| fs::write(world.file(), of_first).unwrap()),
    ];
    for (what, damage) in damages {
        let world = World::new("ks.*=exclusive");
        world.run(End::Stop, |client| world.cache(client, "1"));
        let of_first = fs::read(world.file()).unwrap();
        world.database.lack_table(Some("ks.t"));
        world.run(End::Stop, |client| world.write_unknown(client, "2"));
        damage(&world, &of_first);
        world.database.lack_table(None);
        let read = world.run(End::Stop, |client| world.read(client, "a"));
        assert_eq!(read, (1, Some("2".to_owned())), "{what}");
    }
}

#[test]
fn no_row_is_stale_after_a_run_that_could_not_note_which_tables_it_knew() {
    for (from_start, end) in [false, true].into_iter().flat_map(|from| ENDS.map(|end| (from, end)))
    {
        let world = World::new("ks.*=exclusive");
        world.run(End::Stop, |client| world.cache(client, "1"));
        if from_start {
            world.block_file();
            world.database.lack_table(Some("ks.t"));
        }
        world.run(end, |client| {
            if !from_start {
                // The file is of this run, and has the table.
                world.block_file();
                world.database.lack_table(Some("ks.t"));
                direct(&world.database, "CREATE TABLE ks.more (k text PRIMARY KEY, v text)");
                wait_until("the table is not known any more", || world.read(client, "a").0 == 1);
            }
            world.write_unknown(client, "2");
        });
        world.unblock_file();
        world.database.lack_table(None);
        let read = world.run(End::Stop, |client| world.read(client, "a"));
        assert_eq!(read, (1, Some("2".to_owned())), "from the start: {from_start}, {end:?}");
    }
}

/// Another change of the schema may be long in coming.
#[test]
fn tables_that_could_not_be_noted_are_noted_once_they_can_be() {
    let world = World::new("ks.*=exclusive");
    world.run(End::Stop, |client| {
        world.block_file();
        let before = fs::read(world.file()).unwrap();
        direct(&world.database, "CREATE TABLE ks.more (k text PRIMARY KEY, v text)");
        wait_until("the schema is known", || {
            let reads = world.database.reads();
            client.run("SELECT v FROM ks.more WHERE k = 'a'");
            world.database.reads() == reads
        });
        assert!(fs::read(world.file()).unwrap() == before, "it can be written");
        world.unblock_file();
        let one_more = before.len() + 16;
        wait_until("it is written", || fs::read(world.file()).unwrap().len() == one_more);
    });
    // From the start: the run ends before there is a snapshot.
    world.run(End::Stop, |client| world.cache(client, "1"));
    world.block_file();
    world.database.set_down(true);
    let before = fs::read(world.file()).unwrap();
    let setup = Setup::new(world.directory.path(), &world.database, world.policy);
    let node = setup.start_without_lease();
    assert!(fs::read(world.file()).unwrap() == before, "it can be written");
    world.unblock_file();
    wait_until("it is written", || fs::read(world.file()).unwrap() != before);
    node.stop();
    world.database.set_down(false);
    let read = world.run(End::Stop, |client| world.read(client, "a"));
    assert_eq!(read, (0, Some("1".to_owned())));
}

/// Nothing is planned before the first snapshot. What is written then drops everything.
#[test]
fn a_run_without_a_snapshot_leaves_the_tables_of_the_one_before() {
    let world = World::new("ks.*=max-staleness=1h");
    world.run(End::Stop, |client| world.cache(client, "1"));
    world.database.set_down(true);
    let node = Setup::new(world.directory.path(), &world.database, world.policy).start();
    std::thread::sleep(Duration::from_millis(50));
    node.stop();
    world.database.set_down(false);
    let read = world.run(End::Stop, |client| world.read(client, "a"));
    assert_eq!(read, (0, Some("1".to_owned())));
}

/// Nodes hear and forget of the table at random, within runs and between them.
#[test]
fn no_read_is_stale_whenever_a_node_hears_of_the_table_and_whenever_the_run_ends() {
    let (world, mut rng) = (World::new("ks.*=max-staleness=1h"), Rng::new(7));
    let (mut written, mut hits, mut made) = (0, 0, 0);
    world.run(End::Stop, |client| world.cache(client, "0"));
    for run in 0..24 {
        let end = ENDS[rng.below(2) as usize];
        if rng.below(3) == 0 {
            world.database.lack_table(None);
        }
        world.run(end, |client| {
            for step in 0..30 {
                match rng.below(10) {
                    0 | 1 => {
                        written += 1;
                        client.put("a", &written.to_string());
                    }
                    2 => {
                        world.database.lack_table([None, Some("ks.t")][rng.below(2) as usize]);
                    }
                    3 => {
                        // The schema is read again, soon.
                        made += 1;
                        let text = format!("CREATE TABLE ks.m{made} (k text PRIMARY KEY, v text)");
                        direct(&world.database, &text);
                    }
                    _ => {
                        let (reads, value) = world.read(client, "a");
                        assert_eq!(value, Some(written.to_string()), "run {run}, step {step}");
                        hits += u64::from(reads == 0);
                    }
                }
            }
        });
    }
    assert!(hits > 50, "only {hits} hits: nothing was put to the test");
}
