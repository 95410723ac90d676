//! Orders of fills and writes, each made to happen.

use std::thread;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::CqlError;
use afterglow_testkit::fake_backend::{Faults, StatementKind};

use crate::node::{House, wait_until};
use crate::pipelined::Pipelined;

#[test]
fn many_misses_at_once_make_one_read_of_the_database() {
    let house = House::new("ks.*=exclusive");
    house.node.client(Version::V4).put("hot", "1");
    let held = house.database.hold(StatementKind::Read);
    let (reads, ()) = house.reads(|| {
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    assert_eq!(house.node.client(Version::V5).value("hot").as_deref(), Some("1"));
                });
            }
            held.wait_for(1);
            wait_until("all have joined", || {
                house.node.count(&["afterglow_misses_total", "coalesced"]) == 15
            });
            drop(held);
        });
    });
    assert_eq!(reads, 1);
}

#[test]
fn a_fill_that_a_write_overtakes_is_not_installed() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    writer.put("a", "old");
    let held = house.database.hold(StatementKind::Read);
    thread::scope(|scope| {
        let read = scope.spawn(|| reader.value("a"));
        held.wait_for(1);
        writer.put("a", "new");
        drop(held);
        // It began before the write, so the old value is right.
        assert_eq!(read.join().unwrap().as_deref(), Some("old"));
    });
    assert_eq!(house.node.count(&["fills_total", "overtaken"]), 1);
    assert_eq!(reader.value("a").as_deref(), Some("new"));
}

#[test]
fn a_read_after_a_write_does_not_join_a_fill_from_before_it() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut early) = (house.node.client(Version::V4), house.node.client(Version::V5));
    writer.put("a", "old");
    let held = house.database.hold(StatementKind::Read);
    thread::scope(|scope| {
        let first = scope.spawn(|| early.value("a"));
        held.wait_for(1);
        writer.put("a", "new");
        // On the writer's own connection to the database: not behind the first.
        let second = scope.spawn(|| writer.value("a"));
        held.wait_for(2);
        drop(held);
        assert_eq!(first.join().unwrap().as_deref(), Some("old"));
        assert_eq!(second.join().unwrap().as_deref(), Some("new"));
    });
    assert_eq!(early.value("a").as_deref(), Some("new"));
}

#[test]
fn reads_planned_for_an_older_and_the_newest_shape_of_the_table_get_their_own_columns() {
    let house = House::new("ks.*=exclusive");
    let (mut late, mut early) = (house.node.client(Version::V4), house.node.client(Version::V5));
    late.put("a", "1");
    let schema = house.database.hold(StatementKind::Schema);
    house.past().query("ALTER TABLE ks.t ADD before_v text", Consistency::One).unwrap();
    // The cache has heard of it and the new schema is being read: plans are still made for the old
    // one.
    schema.wait_for(1);
    let reads = house.database.hold(StatementKind::Read);
    thread::scope(|scope| {
        let first = scope.spawn(|| early.value("a"));
        reads.wait_for(1);
        drop(schema);
        // Answered when the newest schema is known.
        late.run("ALTER TABLE ks.other ADD more text");
        let second = scope.spawn(|| late.value("a"));
        // It does not join the first: nothing is filled until the change is known.
        reads.wait_for(2);
        drop(reads);
        assert_eq!(first.join().unwrap().as_deref(), Some("1"));
        assert_eq!(second.join().unwrap().as_deref(), Some("1"));
    });
    assert_eq!(early.value("a").as_deref(), Some("1"));
}

/// The snapshot shows what is left of both changes, while only the first was heard of.
#[test]
fn a_change_that_is_taken_back_while_the_schema_is_read_drops_rows() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    for (taken_back, expected) in [(false, 0), (true, 1)] {
        wait_until("the row is cached", || house.reads(|| client.value("a")).0 == 0);
        let schema = house.database.hold(StatementKind::Schema);
        let text = "ALTER TABLE ks.t WITH gc_grace_seconds = 5";
        house.past().query(text, Consistency::One).unwrap();
        // It has said when the tables were changed.
        schema.wait_for(1);
        if taken_back {
            house.database.run("ALTER TABLE ks.t WITH gc_grace_seconds = 864000");
        }
        drop(schema);
        // Answered when the newest schema is known.
        client.run(&format!("ALTER TABLE ks.other ADD more{expected} text"));
        assert_eq!(house.reads(|| client.value("a")).0, expected);
    }
}

#[test]
fn while_a_write_is_on_its_way_nothing_is_filled_and_nobody_waits() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    writer.put("a", "old");
    assert_eq!(reader.value("a").as_deref(), Some("old"));
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        let write = scope.spawn(|| writer.put("a", "new"));
        held.wait_for(1);
        let (reads, _) = house
            .reads(|| (0..3).for_each(|_| assert_eq!(reader.value("a").as_deref(), Some("new"))));
        assert_eq!(reads, 3, "each asks the database itself");
        drop(held);
        write.join().unwrap();
    });
    let (reads, _) =
        house.reads(|| (0..3).for_each(|_| assert_eq!(reader.value("a").as_deref(), Some("new"))));
    assert_eq!(reads, 1, "cached again");
}

#[test]
fn while_text_that_is_not_understood_is_on_its_way_nothing_is_served_from_before_it() {
    let house = House::new("ks.*=exclusive");
    let (mut writer, mut reader) = (house.node.client(Version::V4), house.node.client(Version::V5));
    writer.put("a", "old");
    assert_eq!(reader.value("a").as_deref(), Some("old"));
    let held = house.database.hold(StatementKind::Write);
    thread::scope(|scope| {
        // In nobody's grammar but this database's.
        let text = "BEGIN LOGGED BATCH UPDATE ks.t SET v = 'new' WHERE k = 'a'; APPLY BATCH";
        let write = scope.spawn(|| writer.run(text));
        held.wait_for(1);
        let (reads, _) = house
            .reads(|| (0..3).for_each(|_| assert_eq!(reader.value("a").as_deref(), Some("new"))));
        assert_eq!(reads, 3, "each asks the database itself");
        drop(held);
        write.join().unwrap();
    });
    let (reads, _) =
        house.reads(|| (0..3).for_each(|_| assert_eq!(reader.value("a").as_deref(), Some("new"))));
    assert_eq!(reads, 1, "cached again, and nothing of before");
}

#[test]
fn a_write_of_unknown_outcome_keeps_its_partition_out_of_the_cache() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    for (key, faults) in [
        ("timeout", Faults { write_timeouts: 1.0, ..Faults::default() }),
        ("drop", Faults { drops: 1.0, ..Faults::default() }),
    ] {
        client.put(key, "old");
        assert_eq!(client.value(key).as_deref(), Some("old"));
        house.database.set_faults(faults);
        assert!(
            client.try_run(&format!("INSERT INTO ks.t (k, v) VALUES ('{key}', 'new')")).is_err()
        );
        house.database.set_faults(Faults::default());
        let (reads, _) = house.reads(|| {
            (0..3).for_each(|_| {
                assert!(matches!(client.value(key).as_deref(), Some("old" | "new")), "{key}")
            });
        });
        assert_eq!(reads, 3, "{key}");
    }
    let (reads, _) = house.reads(|| (0..3).for_each(|_| drop(client.value("bystander"))));
    assert_eq!(reads, 1, "other partitions are cached as ever");
}

#[test]
fn errors_that_only_some_servers_know_reach_the_client_and_count_as_unknown_outcomes() {
    for (code, number, text) in [
        (ErrorCode::CdcWriteFailure, 0x1600, "INSERT INTO ks.t (k, v) VALUES ('a', 'new')"),
        (
            ErrorCode::CasWriteUnknown,
            0x1700,
            "UPDATE ks.t SET v = 'new' WHERE k = 'a' IF v = 'old'",
        ),
    ] {
        for &version in Version::ALL {
            let house = House::new("ks.*=exclusive");
            let mut client = house.node.client(version);
            client.put("a", "old");
            client.value("a");
            let error =
                Faults { write_timeouts: 1.0, write_error: Some(code), ..Faults::default() };
            house.database.set_faults(error);
            match client.try_run(text) {
                Err(CqlError::Server(error)) => assert_eq!(error.code, number, "{error}"),
                other => panic!("{other:?}"),
            }
            house.database.set_faults(Faults::default());
            // It may have happened, and may happen yet: the database is asked.
            let (reads, value) = house.reads(|| client.value("a"));
            assert!(matches!(value.as_deref(), Some("old" | "new")), "{value:?}");
            assert!(reads >= 1);
        }
    }
}

#[test]
fn a_lightweight_transaction_of_unknown_outcome_is_settled_by_a_serial_read() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.put("a", "old");
    for (text, known) in [
        ("UPDATE ks.t SET v = 'new' WHERE k = 'a' IF v = 'old'", ["old", "new"]),
        ("INSERT INTO ks.t (k, v) VALUES ('a', 'again') IF NOT EXISTS", ["old", "new"]),
    ] {
        client.value("a");
        house.database.set_faults(Faults { write_timeouts: 1.0, ..Faults::default() });
        assert!(client.try_run(text).is_err());
        house.database.set_faults(Faults::default());
        wait_until("it is cached again, long before the hold of plain writes is over", || {
            let hits = house.node.hits();
            assert!(known.contains(&client.value("a").unwrap().as_str()));
            house.node.hits() > hits
        });
    }
    assert_eq!(house.node.count(&["afterglow_quarantined_partitions"]), 0);
}

#[test]
fn a_hold_ends() {
    let house =
        House::with("ks.*=exclusive", |setup| setup.hold = std::time::Duration::from_millis(50));
    let mut client = house.node.client(Version::V5);
    house.database.set_faults(Faults { write_timeouts: 1.0, ..Faults::default() });
    assert!(client.try_run("INSERT INTO ks.t (k, v) VALUES ('a', '1')").is_err());
    house.database.set_faults(Faults::default());
    wait_until("it is cached again", || {
        let hits = house.node.hits();
        client.value("a");
        house.node.hits() > hits
    });
}

#[test]
fn a_fill_that_is_late_is_given_up_and_joined_by_nobody() {
    let house = House::with("ks.*=exclusive", |setup| {
        setup.times.fill = std::time::Duration::from_millis(50);
    });
    let late = || house.node.count(&["fills_total", "\"late\""]);
    let (mut writer, mut first, mut second) = (
        house.node.client(Version::V4),
        house.node.client(Version::V5),
        house.node.client(Version::V5),
    );
    writer.put("a", "old");
    let held = house.database.hold(StatementKind::Read);
    thread::scope(|scope| {
        let early = scope.spawn(|| first.value("a"));
        wait_until("the first fill is given up", || late() == 1);
        // Whoever comes now asks anew, and waits for no answer to the first.
        let next = scope.spawn(|| second.value("a"));
        wait_until("the second one is given up too", || late() == 2);
        // The version is another: so is the connection, on which nothing is held.
        writer.put("a", "new");
        drop(held);
        for read in [early, next] {
            let value = read.join().unwrap();
            assert!(matches!(value.as_deref(), Some("old" | "new")), "{value:?}");
        }
    });
    assert_eq!(house.node.count(&["afterglow_misses_total", "coalesced"]), 0);
    assert_eq!(
        house.node.count(&["fills_total", "\"installed\""]),
        0,
        "what came too late is not kept"
    );
    assert_eq!(first.value("a").as_deref(), Some("new"));
}

#[test]
fn a_fill_that_fails_is_replaced_by_the_clients_own_read() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.put("a", "1");
    // Every second connection-ending fault would hit the client's own read too. So the database
    // goes away for fills only. Its connection is lost while the fill is in flight, and the
    // client's request is sent on a new one.
    let held = house.database.hold(StatementKind::Read);
    thread::scope(|scope| {
        let read = scope.spawn(|| client.value("a"));
        held.wait_for(1);
        house.database.hang_up();
        drop(held);
        assert_eq!(read.join().unwrap().as_deref(), Some("1"));
    });
    assert_eq!(house.node.count(&["fills_total", "failed"]), 1);
}

#[test]
fn a_request_is_executed_in_the_keyspace_that_it_was_planned_in() {
    let house = House::new("ks.*=exclusive");
    let mut writer = house.node.client(Version::V5);
    for text in [
        "CREATE KEYSPACE away WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE away.t (k text PRIMARY KEY, v text)",
        "INSERT INTO away.t (k, v) VALUES ('a', 'theirs')",
        "INSERT INTO ks.t (k, v) VALUES ('a', 'ours')",
    ] {
        writer.run(text);
    }
    let mut client = Pipelined::open(house.node.address);
    client.ask(1, "USE ks");
    assert_eq!(client.receive().header.stream, 1);
    let held = house.database.hold(StatementKind::Read);
    client.ask(2, "SELECT v FROM t WHERE k = 'a'");
    held.wait_for(1);
    // The fill is lost when the client has gone on, and its own request is passed instead.
    client.ask(3, "USE away");
    assert_eq!(client.receive().header.stream, 3);
    house.database.hang_up();
    drop(held);
    let answer = client.receive();
    assert_eq!((answer.header.stream, answer.header.opcode), (2, Opcode::Result));
    assert!(answer.body.ends_with(b"ours"), "{:?}", answer.body);
}

#[test]
fn a_session_whose_keyspace_was_dropped_still_reaches_others() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V4);
    client
        .run("CREATE KEYSPACE away WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}");
    client.run("USE away");
    client.run("DROP KEYSPACE away");
    house.database.hang_up();
    wait_until("the connections are there again", || {
        house.node.client(Version::V5).try_run("SELECT v FROM ks.t WHERE k = 'a'").is_ok()
    });
    client.put("a", "1");
    assert_eq!(client.value("a").as_deref(), Some("1"));
    let refused = client.try_run("SELECT v FROM t WHERE k = 'a'").unwrap_err().to_string();
    assert!(refused.contains("keyspace"), "{refused}");
}

#[test]
fn making_sure_of_the_schema_drops_nothing() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    client.put("a", "1");
    client.value("a");
    for text in [
        "CREATE KEYSPACE IF NOT EXISTS ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE IF NOT EXISTS ks.t (k text PRIMARY KEY, v text)",
    ] {
        client.run(text);
        assert_eq!(
            house.reads(|| assert_eq!(client.value("a").as_deref(), Some("1"))).0,
            0,
            "{text}"
        );
    }
}
