//! For how long rows are served, and across which events: bounds, the lease, restarts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterglow_cql::frame::Version;
use afterglow_rowcache::intents::IntentTable;
use afterglow_testkit::fake_backend::{FakeBackend, Faults, StatementKind};
use tempfile::TempDir;

use crate::node::{
    House, Setup, database, database_that_may_be_mute, direct, one_text, wait_until,
};

#[test]
fn a_bounded_row_is_read_again_once_the_bound_is_over() {
    let house = House::new("ks.*=max-staleness=1s");
    let mut client = house.node.client(Version::V5);
    client.put("a", "1");
    let mut past = house.past();
    // The first read in a second is a miss, another one in the same second a hit.
    wait_until("a read is a hit", || {
        let hits = house.node.hits();
        client.value("a");
        house.node.hits() > hits
    });
    past.query(
        "INSERT INTO ks.t (k, v) VALUES ('a', '2')",
        afterglow_cql::message::Consistency::One,
    )
    .unwrap();
    wait_until("a write past Afterglow is seen", || client.value("a").as_deref() == Some("2"));
    client.put("a", "3");
    assert_eq!(client.value("a").as_deref(), Some("3"), "writes through it are seen at once");
}

#[test]
fn a_second_instance_passes_exclusive_tables_through_and_takes_over_when_the_first_gives_up() {
    let house = House::new("ks.*=exclusive");
    let elsewhere = TempDir::new().unwrap();
    let second =
        Setup::new(elsewhere.path(), &house.database, "ks.*=exclusive").start_without_lease();
    second.wait_for_lease("held_by_other");
    let mut client = second.client(Version::V4);
    client.put("a", "1");
    let (reads, _) =
        house.reads(|| (0..3).for_each(|_| assert_eq!(client.value("a").as_deref(), Some("1"))));
    assert_eq!(reads, 3);

    // The first has the row cached, stops, and the second writes.
    let mut first = house.node.client(Version::V5);
    for _ in 0..2 {
        assert_eq!(first.value("a").as_deref(), Some("1"));
    }
    drop(first);
    let House { node, database, directory } = house;
    node.stop();
    second.wait_for_lease("held");
    client.put("a", "2");
    drop(client);
    second.stop();
    let again = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let mut client = again.client(Version::V4);
    let before = database.reads();
    assert_eq!(client.value("a").as_deref(), Some("2"));
    assert_eq!(database.reads() - before, 1, "another instance held the lease in between");
}

#[test]
fn a_lease_that_has_run_out_is_not_shown_as_held() {
    let House { node, database, directory: _directory } = House::with("ks.*=exclusive", |setup| {
        setup.times.lease = Duration::from_secs(2);
        setup.times.margin = Duration::from_millis(500);
    });
    drop(database);
    node.wait_for_lease("waiting");
    assert_eq!(node.count(&["afterglow_lease_state", "state=\"held\""]), 0);
}

#[test]
fn a_lease_is_not_shown_as_held_while_the_database_hangs_beyond_it() {
    let house = House::with("ks.*=exclusive", |setup| {
        setup.times.lease = Duration::from_secs(2);
        setup.times.margin = Duration::from_millis(500);
    });
    let frozen = house.database.freeze();
    house.node.wait_for_lease("waiting");
    assert_eq!(house.node.count(&["afterglow_lease_state", "state=\"held\""]), 0);
    drop(frozen);
    house.node.wait_for_lease("held");
}

#[test]
fn the_first_instance_of_a_cluster_makes_the_lease_table() {
    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    let directory = TempDir::new().unwrap();
    Setup::new(directory.path(), &database, "ks.*=exclusive").start().stop();
}

#[test]
fn rows_survive_a_clean_stop_and_are_read_from_flash() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    let node = setup.start();
    let mut client = node.client(Version::V5);
    for key in 0..100 {
        client.put(&format!("k{key}"), &format!("v{key}"));
        client.value(&format!("k{key}"));
    }
    client.value("nobody");
    drop(client);
    node.stop();
    let node = setup.start();
    let mut client = node.client(Version::V5);
    client.run("SELECT v FROM ks.t"); // its fill statement aside
    let before = database.reads();
    for key in 0..100 {
        assert_eq!(client.value(&format!("k{key}")), Some(format!("v{key}")));
    }
    assert_eq!(client.value("nobody"), None);
    assert_eq!(database.reads() - before, 0);
    assert!(node.count(&["afterglow_hits_total", "tier=\"flash\""]) >= 50);
}

#[test]
fn other_policies_or_too_long_an_absence_leave_nothing_of_exclusive_tables() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    for (changed, kept) in [
        (setup.clone(), true),
        (Setup { policy: "ks.t=exclusive", ..setup.clone() }, false),
        (Setup { restart_grace: Duration::ZERO, ..setup.clone() }, false),
    ] {
        let node = setup.start();
        let mut client = node.client(Version::V4);
        client.value("a");
        drop(client);
        node.stop();
        let node = changed.start();
        let mut client = node.client(Version::V4);
        let before = database.reads();
        client.value("a");
        assert_eq!(database.reads() - before, u64::from(!kept), "{}", changed.policy);
        drop(client);
        node.stop();
    }
}

#[test]
fn requests_are_counted_by_table_and_a_dropped_one_is_not_shown() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let mut client = node.client(Version::V5);
    client.put("a", "v");
    let read = client.prepare("SELECT v FROM ks.t WHERE k = ?");
    for _ in 0..5 {
        client.execute(&read, &["a"]);
        client.value("a");
    }
    let counted = |table: &str, path: &str| {
        let (table, path) = (format!("table=\"{table}\""), format!("path=\"{path}\""));
        node.count(&["afterglow_table_requests_total", &table, &path])
    };
    assert_eq!(counted("t", "write"), 1);
    let reads = ["dram", "flash", "miss", "pass"].map(|path| counted("t", path));
    assert_eq!(reads.iter().sum::<u64>(), 10, "{reads:?}");
    assert!(reads[0] >= 7, "{reads:?}");
    assert_eq!(counted("other", "dram"), 0);
    client.run("DROP TABLE ks.t");
    assert_eq!(counted("t", "write"), 0);
}

#[test]
fn after_a_clean_stop_the_promise_of_a_planned_restart_counts_and_after_a_crash_not() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    (setup.restart_grace, setup.planned_restart_grace) =
        (Duration::ZERO, Duration::from_secs(3_600));
    for (clean, kept) in [(true, true), (false, false), (true, true)] {
        let node = setup.start();
        let mut client = node.client(Version::V4);
        client.value("a");
        drop(client);
        if clean {
            node.stop();
        } else {
            node.crash();
        }
        let node = setup.start();
        let mut client = node.client(Version::V4);
        let before = database.reads();
        client.value("a");
        assert_eq!(database.reads() - before, u64::from(!kept), "clean: {clean}");
        drop(client);
        node.stop();
    }
}

#[test]
fn after_a_crash_writes_that_were_on_their_way_keep_their_partitions_out() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    let node = setup.start();
    let mut reader = node.client(Version::V5);
    reader.put("a", "old");
    reader.value("a");
    let mut writer = node.client(Version::V4);
    let held = database.hold(StatementKind::Write);
    std::thread::scope(|scope| {
        let write =
            scope.spawn(move || writer.try_run("INSERT INTO ks.t (k, v) VALUES ('a', 'new')"));
        held.wait_for(1);
        drop(reader);
        node.crash();
        assert!(write.join().unwrap().is_err());
        drop(held);
    });
    let node = setup.start();
    let mut client = node.client(Version::V5);
    let before = database.reads();
    for _ in 0..3 {
        assert_eq!(client.value("a").as_deref(), Some("new"));
    }
    assert_eq!(database.reads() - before, 3, "its outcome is unknown, so it is not cached");
    let before = database.reads();
    (0..3).for_each(|_| drop(client.value("bystander")));
    assert_eq!(database.reads() - before, 1);
}

#[test]
fn a_crash_before_anything_was_dropped_leaves_nothing_of_what_may_have_been_written() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let setup = Setup::new(directory.path(), &database, "ks.*=exclusive");
    for (undropped, kept) in [(0, true), (1 << 62, false)] {
        let node = setup.start();
        let mut client = node.client(Version::V4);
        client.value("a");
        drop(client);
        node.stop();
        // A write to anything was on its way, as the table of intents has it.
        let path = directory.path().join("intents");
        let (intents, _) = IntentTable::open(&path, 64, 1, true).unwrap();
        intents.begin(undropped | 3 << 32);
        drop(intents);
        for restart in ["the first", "the next"] {
            let node = setup.start();
            let mut client = node.client(Version::V4);
            let before = database.reads();
            client.value("a");
            assert_eq!(database.reads() - before, u64::from(!kept), "{restart} start");
            drop(client);
            node.stop();
        }
    }
}

#[test]
fn hits_are_served_while_the_database_is_away() {
    let House { node, database, directory: _directory } = House::new("ks.*=exclusive");
    let mut client = node.client(Version::V5);
    let read = client.prepare("SELECT v FROM ks.t WHERE k = ?");
    client.put("a", "1");
    assert_eq!(client.execute(&read, &["a"]).len(), 1);
    drop(database);
    for _ in 0..10 {
        assert_eq!(client.value("a").as_deref(), Some("1"));
        assert_eq!(client.execute(&read, &["a"]).len(), 1);
    }
    assert!(client.try_run("SELECT v FROM ks.t WHERE k = 'not cached'").is_err());
}

#[test]
fn faults_of_the_database_reach_the_client_as_they_are_and_nothing_else_does() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    house.database.set_faults(Faults { delay: Duration::from_millis(1), ..Faults::default() });
    for round in 0..50 {
        let key = format!("k{}", round % 7);
        client.put(&key, &round.to_string());
        assert_eq!(client.value(&key), Some(round.to_string()));
        assert_eq!(client.value(&key), Some(round.to_string()));
    }
    let error = client.try_run("SELECT nothing FROM ks.t WHERE k = 'a'").unwrap_err();
    assert!(error.to_string().contains("Undefined column name nothing"), "{error}");
    assert_eq!(house.node.count(&["afterglow_errors_total"]), 0);
}

#[test]
fn a_change_of_the_schema_that_was_told_empties_nothing_when_the_connection_is_lost_then() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.run("CREATE TABLE ks.more (k text PRIMARY KEY, v text)");
    // A change that is told too early is caught by this: the schema is then still being read once
    // more.
    let system_delay = Duration::from_millis(20);
    house.database.set_faults(Faults { system_delay, late_events: true, ..Faults::default() });
    for round in 0..3 {
        wait_until("the row is cached", || house.reads(|| client.value("a")).0 == 0);
        client.run(&format!("ALTER TABLE ks.more ADD c{round} text"));
        let (reads, _) = house.reads(|| client.value("a"));
        assert_eq!(reads, 0, "a control connection has told of the change");
        // The new control connection has seen the version when it reads the schema.
        let held = house.database.hold(StatementKind::Schema);
        house.database.hang_up();
        held.wait_for(1);
        house.database.set_faults(Faults { system_delay, late_events: false, ..Faults::default() });
        direct(
            &house.database,
            &format!("CREATE TABLE ks.new{round} (k text PRIMARY KEY, v text)"),
        );
        drop(held);
        // Who knows a table that is made meanwhile has read the schema, and is told of changes.
        let read = format!("SELECT v FROM ks.new{round} WHERE k = 'a'");
        wait_until("the schema is known again", || {
            house.reads(|| client.try_run(&read).is_ok()) == (0, true)
        });
        house.database.set_faults(Faults { system_delay, late_events: true, ..Faults::default() });
    }
    assert_eq!(house.node.count(&["afterglow_misses_total", "killed"]), 0);
}

/// Until a snapshot shows what has changed, nothing of the table is served or filled. With the
/// control connection that wait ends, and the rows with it.
#[test]
fn a_table_whose_change_nobody_can_read_any_more_is_read_anew_and_cached() {
    let mute = Arc::new(AtomicBool::new(false));
    let database = database_that_may_be_mute("system_schema", &mute);
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let house = House { node, database, directory };
    let mut client = house.node.client(Version::V5);
    client.put("a", "old");
    wait_until("the row is cached", || house.reads(|| client.value("a")).0 == 0);
    mute.store(true, Ordering::SeqCst);
    direct(&house.database, "ALTER TABLE ks.t WITH gc_grace_seconds = 5");
    wait_until("the change is heard of", || house.reads(|| client.value("a")).0 == 1);
    // Past the cache, to tell a row that was read anew.
    direct(&house.database, "INSERT INTO ks.t (k, v) VALUES ('a', 'new')");
    house.database.hang_up();
    let text = "SELECT v FROM ks.t WHERE k = 'a'";
    let mut found = None;
    wait_until("the row is cached again", || {
        let (reads, answer) = house.reads(|| client.try_run(text));
        found = answer.ok();
        found.is_some() && reads == 0
    });
    assert_eq!(one_text(found.unwrap()).as_deref(), Some("new"));
}

/// The tables of a keyspace in which something has changed lose their rows, and no others: it may
/// have had fewer replicas for a while.
#[test]
fn what_changes_while_nobody_would_tell_drops_what_it_may_have_touched() {
    const SINGLE: &str = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}";
    let mute = Arc::new(AtomicBool::new(false));
    let database = database_that_may_be_mute("system_schema", &mute);
    direct(&database, &format!("CREATE KEYSPACE far {SINGLE}"));
    direct(&database, &format!("CREATE KEYSPACE near {SINGLE}"));
    direct(&database, "CREATE TABLE far.t (k text PRIMARY KEY, v text)");
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "*=exclusive").start();
    let house = House { node, database, directory };
    let mut client = house.node.client(Version::V5);
    let tables = ["ks.t", "ks.other", "far.t"];
    let mut round = 0;
    let [one, two] = [1, 2].map(|copies| {
        format!(
            "ALTER KEYSPACE far WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"
        )
    });
    for (changes, kept) in [
        (&["CREATE TABLE ks.more (k text PRIMARY KEY)"][..], [false, false, true]),
        (&["ALTER TABLE ks.t WITH gc_grace_seconds = 5"], [false, false, true]),
        (
            &[
                "ALTER TABLE far.t WITH gc_grace_seconds = 5",
                "ALTER TABLE far.t WITH gc_grace_seconds = 864000",
            ],
            [true, true, false],
        ),
        (&[&two, &one], [true, true, false]),
        (
            &["DROP TABLE ks.other", "CREATE TABLE ks.other (k text PRIMARY KEY, v text)"],
            [false, false, true],
        ),
        (&[], [true; 3]),
    ] {
        round += 1;
        let read = |client: &mut crate::node::Client| {
            tables.map(|table| {
                let text = format!("SELECT v FROM {table} WHERE k = 'r{round}'");
                house.reads(|| client.run(&text)).0 == 0
            })
        };
        wait_until("the rows are cached", || read(&mut client) == [true; 3]);
        mute.store(true, Ordering::SeqCst);
        house.database.hang_up();
        wait_until("the nodes are connected to again", || {
            client.try_run("SELECT v FROM ks.wide WHERE k = 'a' AND c = 1").is_ok()
        });
        changes.iter().for_each(|change| direct(&house.database, change));
        direct(&house.database, &format!("CREATE TABLE near.new{round} (k text PRIMARY KEY)"));
        mute.store(false, Ordering::SeqCst);
        house.database.hang_up();
        let known = format!("SELECT * FROM near.new{round} WHERE k = 'a'");
        wait_until("the schema is known again", || {
            client.try_run(&known).is_ok() && house.reads(|| client.try_run(&known).is_ok()).0 == 0
        });
        assert_eq!(read(&mut client), kept, "{changes:?}");
    }
}
