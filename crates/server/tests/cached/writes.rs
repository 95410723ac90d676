//! What each kind of write drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, QueryParams, StatementRef, Values, ValuesBuilder,
    encode_batch,
};

use afterglow_testkit::fake_backend::{FakeBackend, StatementKind};
use tempfile::TempDir;

use crate::node::{Client, House, Setup, direct, furnished, wait_until};

/// Rows that are cached before each write: key and clustering of `ks.wide`.
const ROWS: [(&str, i32); 3] = [("a", 1), ("a", 2), ("b", 1)];

/// How many of [`ROWS`] have to be read from the database again after `write`. All are cached
/// afterwards.
fn dropped(house: &House, client: &mut Client, write: impl FnOnce(&mut Client)) -> u64 {
    ROWS.iter().for_each(|(k, c)| drop(client.wide(k, *c)));
    let (cached, ()) = house.reads(|| ROWS.iter().for_each(|(k, c)| drop(client.wide(k, *c))));
    assert_eq!(cached, 0, "all rows are cached to begin with");
    write(client);
    house.reads(|| ROWS.iter().for_each(|(k, c)| drop(client.wide(k, *c)))).0
}

fn full(client: &mut Client) {
    for (k, c) in ROWS {
        client.run(&format!("INSERT INTO ks.wide (k, c, v) VALUES ('{k}', {c}, 'old')"));
    }
}

#[test]
fn a_write_drops_what_it_touches_and_no_more() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    for (text, expected) in [
        ("INSERT INTO ks.wide (k, c, v) VALUES ('a', 1, 'new')", 1),
        ("UPDATE ks.wide SET v = 'new' WHERE k = 'a' AND c = 1", 1),
        ("DELETE v FROM ks.wide WHERE k = 'a' AND c = 1", 1),
        ("DELETE FROM ks.wide WHERE k = 'a' AND c = 1", 1),
        ("DELETE FROM ks.wide WHERE k = 'a'", 2),
        // A transaction may complete another one of its partition.
        ("UPDATE ks.wide SET v = 'new' WHERE k = 'a' AND c = 1 IF v = 'old'", 2),
        ("INSERT INTO ks.wide (k, c, v) VALUES ('a', 1, 'new') IF NOT EXISTS", 2),
        (
            "BEGIN BATCH UPDATE ks.wide SET v = 'x' WHERE k = 'a' AND c = 2; DELETE FROM ks.wide WHERE k = 'b' AND c = 1; APPLY BATCH",
            2,
        ),
        ("TRUNCATE ks.wide", 3),
        ("TRUNCATE ks.other", 0),
        ("INSERT INTO ks.other (k, v) VALUES ('a', '1')", 0),
    ] {
        full(&mut client);
        assert_eq!(
            dropped(&house, &mut client, |client| drop(client.run(text))),
            expected,
            "{text}"
        );
    }
    full(&mut client);
    client.run("TRUNCATE ks.wide");
    assert!(ROWS.iter().all(|(k, c)| client.wide(k, *c).is_none()));
}

#[test]
fn text_that_is_not_understood_drops_everything_unless_the_database_refuses_it() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    full(&mut client);
    let refused =
        |text: &'static str| move |client: &mut Client| assert!(client.try_run(text).is_err());
    for text in [
        "FROBNICATE ks.wide",
        "INSERT INTO ks.wide (k, c, v) VALUE ('a', 1, 'x')",
        "UPDATE ks.wide SET v = 'x'",
    ] {
        assert_eq!(dropped(&house, &mut client, refused(text)), 0, "{text}");
    }
    // Not in Cassandra's grammar, so not in ours; this database takes it.
    let text = "BEGIN LOGGED BATCH DELETE FROM ks.other WHERE k = 'a'; APPLY BATCH";
    let accepted = |client: &mut Client| drop(client.run(text));
    assert_eq!(dropped(&house, &mut client, accepted), 3);
    assert_eq!(
        dropped(&house, &mut client, refused("DELETE FROM ks.wide WHERE k = 'a' AND c > 1")),
        2
    );
}

/// Anybody who can log in may ask for them.
#[test]
fn what_touches_whole_tables_drops_nothing_that_the_database_has_not_changed() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    full(&mut client);
    for text in [
        "INSERT INTO ks.wide JSON '{}'",
        "DELETE FROM ks.wide WHERE v = 'old'",
        "ALTER TABLE ks.wide ADD v text",
        "DROP TYPE ks.nothing",
        "ALTER KEYSPACE nothing WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    ] {
        let refused = |client: &mut Client| assert!(client.try_run(text).is_err(), "{text}");
        assert_eq!(dropped(&house, &mut client, refused), 0, "{text}");
    }
    // There is nothing to change.
    for text in ["DROP TABLE IF EXISTS ks.nothing", "DROP KEYSPACE IF EXISTS nothing"] {
        assert_eq!(dropped(&house, &mut client, |client| drop(client.run(text))), 0, "{text}");
    }
    let altered = |client: &mut Client| drop(client.run("ALTER TABLE ks.wide ADD w text"));
    assert_eq!(dropped(&house, &mut client, altered), 3);
}

/// While it is not known whether the table is changed, nothing of it is served.
#[test]
fn what_touches_a_whole_table_keeps_its_rows_back_until_it_is_answered() {
    let house = House::new("ks.*=exclusive");
    let (mut client, mut writer) = (house.node.client(Version::V5), house.node.client(Version::V4));
    full(&mut client);
    client.value("bystander");
    let refused = |client: &mut Client| {
        let held = house.database.hold(StatementKind::Write);
        thread::scope(|scope| {
            let sent = scope.spawn(|| writer.try_run("DELETE FROM ks.wide WHERE v = 'old'"));
            held.wait_for(1);
            assert_eq!(house.reads(|| client.wide("a", 1)).0, 1, "it may be gone");
            assert_eq!(house.reads(|| client.value("bystander")).0, 0);
            drop(held);
            assert!(sent.join().unwrap().is_err());
        });
    };
    assert_eq!(dropped(&house, &mut client, refused), 0);
}

/// Such as while a node restarts or sheds load: whoever sends it then must not empty the cache for
/// all others.
#[test]
fn text_that_is_not_understood_is_not_sent_to_a_database_that_answers_nothing_about_it() {
    let text = "BEGIN LOGGED BATCH DELETE FROM ks.other WHERE k = 'a'; APPLY BATCH";
    let asked = Arc::<AtomicUsize>::default();
    let counted = asked.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| {
        let is_it = ask.text.contains("BEGIN LOGGED BATCH");
        counted.fetch_add(usize::from(is_it), Ordering::SeqCst);
        is_it
    });
    let database = furnished(database.unwrap());
    let directory = TempDir::new().unwrap();
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    let house = House { node, database, directory };
    let (mut client, mut writer) = (house.node.client(Version::V5), house.node.client(Version::V5));
    full(&mut client);
    let lost = |client: &mut Client| {
        thread::scope(|scope| {
            let sent = scope.spawn(|| writer.try_run(text));
            wait_until("it is asked about", || asked.load(Ordering::SeqCst) > 0);
            // It is not answered, and nobody is held up.
            assert_eq!(house.reads(|| client.wide("a", 1)).0, 0);
            house.database.hang_up();
            assert!(sent.join().unwrap().is_err());
        });
        wait_until("the nodes are connected to again", || {
            client.try_run("SELECT v FROM ks.other WHERE k = 'not cached'").is_ok()
        });
    };
    assert_eq!(dropped(&house, &mut client, lost), 0);
    assert_eq!(house.node.count(&["afterglow_quarantines_total"]), 0);
}

#[test]
fn batches_of_every_kind_drop_what_their_statements_touch() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let update = client.prepare("UPDATE ks.wide SET v = ? WHERE k = ? AND c = 1");
    full(&mut client);
    for kind in [BatchKind::Logged, BatchKind::Unlogged, BatchKind::Counter] {
        let expected = dropped(&house, &mut client, |client| {
            let mut values = ValuesBuilder::positional();
            values.push(Value::Bytes(b"batched"));
            values.push(Value::Bytes(b"b"));
            let statements = [
                BatchStatement {
                    statement: StatementRef::Text("DELETE FROM ks.wide WHERE k = 'a' AND c = 1"),
                    values: Values::NONE,
                },
                BatchStatement {
                    statement: StatementRef::Prepared(&update.id),
                    values: values.view(),
                },
            ];
            let params = QueryParams::new(Consistency::LocalQuorum);
            let encode =
                |out: &mut Vec<u8>| encode_batch(Version::V5, kind, &statements, &params, out);
            let answer = client.raw().call(Flags::NONE, Opcode::Batch, encode).unwrap();
            assert_eq!(answer.header.opcode, Opcode::Result);
        });
        assert_eq!(expected, 2, "{kind:?}");
        assert_eq!(client.wide("a", 1), None);
        assert_eq!(client.wide("b", 1).as_deref(), Some("batched"));
    }
}

#[test]
fn a_statement_that_was_not_prepared_through_us_is_not_passed_on() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let before = house.database.statements();
    let insert = {
        let mut past = house.past();
        past.prepare("INSERT INTO ks.t (k, v) VALUES ('sly', 'new')").unwrap()
    };
    let error = client.raw().execute(&insert, &QueryParams::new(Consistency::One)).unwrap_err();
    assert!(error.to_string().contains("0x2500"), "{error}");
    assert_eq!(client.value("sly"), None);
    assert!(house.database.statements() >= before);
}

#[test]
fn a_column_that_is_added_shows_at_once_and_moves_no_other() {
    for version in [Version::V4, Version::V5] {
        let house = House::new("ks.*=exclusive");
        let mut client = house.node.client(version);
        let star = "SELECT * FROM ks.t WHERE k = 'a'";
        let read = client.prepare("SELECT v FROM ks.t WHERE k = ?");
        client.put("a", "1");
        for _ in 0..2 {
            assert_eq!(client.run(star).remove(0), [text("a"), text("1")]);
            assert_eq!(client.execute(&read, &["a"]), [[text("1")]]);
        }
        // By name before `v`, and made by somebody else in v5: then it is heard of a little later.
        match version {
            Version::V3 | Version::V4 => drop(client.run("ALTER TABLE ks.t ADD early text")),
            Version::V5 => {
                let mut past = house.past();
                past.query("ALTER TABLE ks.t ADD early text", Consistency::One).unwrap();
                wait_until("the new column is heard of", || client.run(star)[0].len() == 3);
            }
        }
        for _ in 0..3 {
            assert_eq!(client.run(star).remove(0), [text("a"), None, text("1")]);
            assert_eq!(client.execute(&read, &["a"]), [[text("1")]]);
        }
        client.run("UPDATE ks.t SET early = 'e' WHERE k = 'a'");
        // While the schema is read again, nothing is cached; what is read is right all the time.
        wait_until(&format!("it is cached again in {version:?}"), || {
            assert_eq!(client.execute(&read, &["a"]), [[text("1")]]);
            let hits = house.node.hits();
            assert_eq!(client.run(star).remove(0), [text("a"), text("e"), text("1")]);
            house.node.hits() > hits
        });
        wait_until(
            "the server was seen to take the statement for prepared, so that it is answered here again",
            || {
                let hits = house.node.hits();
                client.execute(&read, &["a"]);
                house.node.hits() > hits
            },
        );
    }
}

#[test]
fn a_client_that_does_not_take_on_new_columns_prepares_again_once_and_has_hits() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let star = "SELECT * FROM ks.t WHERE k = ?";
    let mut read = client.prepare(star);
    client.put("a", "1");
    for column in ["early", "late"] {
        client.run(&format!("ALTER TABLE ks.t ADD {column} text"));
        let mut unprepared = 0;
        wait_until("it is asked to prepare again", || {
            unprepared += u32::from(client.try_execute(&read, &["a"]).is_err());
            unprepared > 0
        });
        // A driver with many requests under way hears it of one of them.
        for _ in 0..3 {
            assert_eq!(client.execute(&read, &["a"])[0][0], text("a"));
        }
        read = client.prepare(star);
        let hits = house.node.hits();
        wait_until("it has hits", || {
            client.execute(&read, &["a"]);
            house.node.hits() > hits
        });
        assert_eq!(
            house.node.count(&["afterglow_errors_total"]),
            if column == "early" { 1 } else { 2 }
        );
    }
}

fn text(value: &str) -> Option<Vec<u8>> {
    Some(value.as_bytes().to_vec())
}

#[test]
fn a_table_dropped_and_created_again_is_another() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let read = client.prepare("SELECT v FROM ks.t WHERE k = ?");
    client.put("a", "1");
    for _ in 0..2 {
        assert_eq!(client.execute(&read, &["a"]).len(), 1);
    }
    client.run("DROP TABLE ks.t");
    assert!(client.try_run("SELECT v FROM ks.t WHERE k = 'a'").is_err());
    client.run("CREATE TABLE ks.t (k text PRIMARY KEY, v text)");
    for _ in 0..2 {
        assert_eq!(client.value("a"), None);
    }
    client.put("a", "2");
    for _ in 0..2 {
        assert_eq!(client.value("a").as_deref(), Some("2"));
    }
}

/// Such as a comment, an index, how it is compacted. Somebody else makes it, and events tell of it.
#[test]
fn a_change_of_a_table_that_touches_no_row_drops_none() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    full(&mut client);
    let told = |client: &mut Client, change: &str, n: u32| {
        direct(&house.database, change);
        direct(&house.database, &format!("CREATE TABLE ks.told{n} (k text PRIMARY KEY, v text)"));
        let read = format!("SELECT v FROM ks.told{n} WHERE k = 'a'");
        wait_until("both are known", || house.reads(|| client.try_run(&read).is_ok()) == (0, true));
    };
    for (n, (change, expected)) in [
        ("ALTER TABLE ks.wide WITH gc_grace_seconds = 5", 0),
        ("ALTER TABLE ks.wide ADD w text", 3),
        ("ALTER TABLE ks.wide WITH gc_grace_seconds = 864000", 0),
    ]
    .into_iter()
    .enumerate()
    {
        let change = |client: &mut Client| told(client, change, n as u32);
        assert_eq!(dropped(&house, &mut client, change), expected, "round {n}");
    }
}
