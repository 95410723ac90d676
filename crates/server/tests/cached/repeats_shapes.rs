//! Deletes, nulls and batches of unknown outcome: all that is the same write when it is sent again
//! is settled, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, Query, QueryParams, StatementRef, Values,
    ValuesBuilder, encode_batch,
};
use afterglow_cql::response::{ErrorBody, ErrorDetail};
use afterglow_testkit::fake_backend::{Ask, FakeBackend};
use tempfile::TempDir;

use crate::node::{Client, House, Setup, direct, furnished, micros, wait_until};

/// A database that answers the next writes with a timeout, and does none of them.
#[derive(Default)]
struct Refusals(AtomicUsize);

impl Refusals {
    fn takes(&self, ask: &Arc<Ask>) -> bool {
        let is_write = match ask.opcode() {
            Opcode::Query => {
                let verb = ask.text.split(' ').next().unwrap_or_default();
                !ask.text.contains("afterglow")
                    && ["INSERT", "UPDATE", "DELETE", "BEGIN"].contains(&verb)
            }
            Opcode::Batch => true,
            // While it refuses, no read of a test is under way.
            Opcode::Execute => true,
            _ => false,
        };
        let left = |n: usize| n.checked_sub(1);
        if !is_write || self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_err() {
            return false;
        }
        ask.error(&ErrorBody {
            code: ErrorCode::WriteTimeout,
            message: "too late",
            detail: ErrorDetail::WriteTimeout {
                consistency: Consistency::LocalQuorum,
                received: 0,
                block_for: 1,
                write_type: "SIMPLE",
                contentions: None,
            },
        });
        true
    }
}

fn house() -> (House, Arc<Refusals>) {
    let refusals = Arc::<Refusals>::default();
    let scripted = refusals.clone();
    let database = FakeBackend::scripted(Version::MAX, move |ask| scripted.takes(ask)).unwrap();
    let (database, directory) = (furnished(database), TempDir::new().unwrap());
    let node = Setup::new(directory.path(), &database, "ks.*=exclusive").start();
    (House { node, database, directory }, refusals)
}

fn at(timestamp: i64) -> QueryParams<'static> {
    QueryParams { timestamp: Some(micros(timestamp)), ..QueryParams::new(Consistency::LocalQuorum) }
}

/// `TIMESTAMP 11` as [`micros`] has it.
fn timed(text: &str) -> String {
    let Some((before, rest)) = text.split_once("TIMESTAMP ") else { return text.to_owned() };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let at = micros(rest[..digits].parse().unwrap());
    format!("{before}TIMESTAMP {at}{}", &rest[digits..])
}

/// Sends a text with a timestamp, and with others for those in it, as [`micros`] has them; whether
/// it is acknowledged.
fn send(client: &mut Client, text: &str) -> bool {
    client.query_with(Flags::NONE, &timed(text), at(10), &[]).header.opcode == Opcode::Result
}

/// Sends a BATCH of a text, and of a prepared statement that takes the key.
fn send_batch(client: &mut Client, kind: BatchKind, text: &str, prepared: &str, key: &str) -> bool {
    let id = client.prepare(prepared).id.to_vec();
    let mut values = ValuesBuilder::positional();
    values.push(Value::Bytes(key.as_bytes()));
    let statements = [
        BatchStatement { statement: StatementRef::Text(text), values: Values::NONE },
        BatchStatement { statement: StatementRef::Prepared(&id), values: values.view() },
    ];
    let version = client.raw().version();
    let encode = |out: &mut Vec<u8>| encode_batch(version, kind, &statements, &at(10), out);
    let answer = client.raw().call(Flags::NONE, Opcode::Batch, encode).unwrap();
    answer.header.opcode == Opcode::Result
}

const ROWS: [i32; 3] = [1, 2, 3];

/// Three rows of a partition, written at 5.
fn fill(client: &mut Client, key: &str) {
    for c in ROWS {
        client.run(&timed(&format!(
            "INSERT INTO ks.wide (k, c, v) VALUES ('{key}', {c}, 'old') USING TIMESTAMP 5"
        )));
    }
}

/// What each row is: `-` if it is not there, `0` if its value is null.
fn rows(mut read: impl FnMut(&str) -> Vec<Vec<Option<Vec<u8>>>>, key: &str) -> String {
    let row = |c: &i32| {
        let text = format!("SELECT v FROM ks.wide WHERE k = '{key}' AND c = {c}");
        match read(&text).pop().map(|mut row| row.pop().unwrap()) {
            None => "-".to_owned(),
            Some(None) => "0".to_owned(),
            Some(Some(value)) => String::from_utf8(value).unwrap(),
        }
    };
    ROWS.iter().map(row).collect::<Vec<_>>().join(" ")
}

/// Does `write`, which the database answers with a timeout, and waits until it is settled and
/// its partition cached again. What its rows are then.
fn settled(
    (house, refusals): &(House, Arc<Refusals>),
    client: &mut Client,
    key: &str,
    write: impl FnOnce(&mut Client) -> bool,
) -> String {
    let count = |name: &str| house.node.count(&[name]);
    fill(client, key);
    rows(|text| client.run(text), key);
    let before = count("afterglow_settled_writes_total");
    let sent = count("afterglow_repeated_writes_total");
    refusals.0.store(1, Ordering::SeqCst);
    assert!(!write(client), "its outcome is unknown");
    wait_until("it is settled", || count("afterglow_settled_writes_total") == before + 1);
    assert_eq!(count("afterglow_repeated_writes_total"), sent + 1);
    assert_eq!(count("afterglow_quarantined_partitions"), 0);
    let through = rows(|text| client.run(text), key);
    let (reads, again) = house.reads(|| rows(|text| client.run(text), key));
    // A row without values is never cached: it may depend on a marker that ends.
    let uncached = through.matches('0').count() as u64;
    assert_eq!((reads, &again), (uncached, &through), "it is cached again");
    let mut past = house.past();
    assert_eq!(through, rows(|text| past.query(text, Consistency::One).unwrap(), key));
    through
}

#[test]
fn deletes_and_nulls_are_sent_again_until_they_are_there() {
    let stage = house();
    for &version in Version::ALL {
        let mut client = stage.0.node.client(version);
        for (at, (text, expected)) in [
            ("DELETE FROM ks.wide WHERE k = 'K' AND c = 1", "- old old"),
            ("DELETE FROM ks.wide USING TIMESTAMP 11 WHERE k = 'K' AND c IN (1, 3)", "- old -"),
            ("DELETE v FROM ks.wide WHERE k = 'K' AND c = 2", "old 0 old"),
            ("DELETE FROM ks.wide WHERE k = 'K'", "- - -"),
            ("UPDATE ks.wide SET v = null WHERE k = 'K' AND c = 3", "old old 0"),
            ("INSERT INTO ks.wide (k, c, v) VALUES ('K', 1, null)", "0 old old"),
            ("INSERT INTO ks.wide (k, c, v) VALUES ('K', 1, 'new')", "new old old"),
        ]
        .into_iter()
        .enumerate()
        {
            let key = format!("{version:?}-{at}");
            let text = text.replace('K', &key);
            let found = settled(&stage, &mut client, &key, |client| send(client, &text));
            assert_eq!(found, expected, "{text}");
        }
        let key = format!("{version:?}-bound");
        let delete = client.prepare(&timed("DELETE FROM ks.wide USING TIMESTAMP 10 WHERE k = ?"));
        let found = settled(&stage, &mut client, &key, |client| {
            client.try_execute(&delete, &[&key]).is_ok()
        });
        assert_eq!(found, "- - -");
    }
}

#[test]
fn batches_of_one_partition_are_sent_again_as_batches() {
    let stage = house();
    let delete = "DELETE FROM ks.wide WHERE k = ? AND c = 2";
    for &version in Version::ALL {
        let mut client = stage.0.node.client(version);
        for kind in [BatchKind::Logged, BatchKind::Unlogged] {
            let key = format!("{version:?}-{kind:?}");
            let insert = format!("INSERT INTO ks.wide (k, c, v) VALUES ('{key}', 1, 'new')");
            let found = settled(&stage, &mut client, &key, |client| {
                send_batch(client, kind, &insert, delete, &key)
            });
            assert_eq!(found, "new - old");
        }
        let key = format!("{version:?}-text");
        let text = format!(
            "BEGIN UNLOGGED BATCH DELETE FROM ks.wide WHERE k = '{key}' AND c = 3; \
             UPDATE ks.wide USING TIMESTAMP 12 SET v = 'new' WHERE k = '{key}' AND c = 2; \
             APPLY BATCH"
        );
        let found = settled(&stage, &mut client, &key, |client| send(client, &text));
        assert_eq!(found, "old new -");
    }
}

#[test]
fn a_delete_that_is_sent_again_hides_no_later_write() {
    let stage = house();
    let mut client = stage.0.node.client(Version::V5);
    let found = settled(&stage, &mut client, "a", |client| {
        let is_there = send(client, "DELETE FROM ks.wide WHERE k = 'a'");
        // Behind the first attempts, past Afterglow.
        let later = "INSERT INTO ks.wide (k, c, v) VALUES ('a', 2, 'later') USING TIMESTAMP 11";
        stage.0.database.run(&timed(later));
        is_there
    });
    assert_eq!(found, "- later -");
}

#[test]
fn batches_that_are_not_the_same_write_are_not_sent_again() {
    let stage = house();
    let mut client = stage.0.node.client(Version::V5);
    let count = |name: &str| stage.0.node.count(&[name]);
    let prepared = "DELETE FROM ks.wide WHERE k = ? AND c = 2";
    let mut held = 0;
    for (n, text) in [
        // Of two partitions, of two tables.
        "DELETE FROM ks.wide WHERE k = 'other' AND c = 1",
        "INSERT INTO ks.t (k, v) VALUES ('K', 'x')",
        "INSERT INTO ks.wide (k, c, v) VALUES ('K', 1, 'x') USING TTL 1000",
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("{n}");
        stage.1.0.store(1, Ordering::SeqCst);
        let text = text.replace('K', &key);
        assert!(!send_batch(&mut client, BatchKind::Unlogged, &text, prepared, &key));
        let now = count("afterglow_quarantined_partitions");
        assert!(now > held, "{text}");
        held = now;
    }
    // The last, and the only one that is sent again: its keyspace is the batch's.
    client.run("USE ks");
    stage.1.0.store(1, Ordering::SeqCst);
    let (text, prepared) =
        ("DELETE FROM wide WHERE k = 'b' AND c = 1", "DELETE FROM wide WHERE k = ?");
    assert!(!send_batch(&mut client, BatchKind::Logged, text, prepared, "b"));
    wait_until("it is settled", || count("afterglow_settled_writes_total") == 1);
    assert_eq!(count("afterglow_repeated_writes_total"), 1);
    assert_eq!(count("afterglow_quarantined_partitions"), held);
}

/// Cassandra 4.0 and later look at the keyspace that a request of v3 or v4 names, too.
#[test]
fn what_names_its_keyspace_in_an_old_version_is_not_sent_again_without_it() {
    let (house, refusals) = house();
    let mut client = house.node.client(Version::V5);
    client.run(
        "CREATE KEYSPACE two WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    );
    client.run("CREATE TABLE two.t (k text PRIMARY KEY, v text)");
    let count = |name: &str| house.node.count(&[name]);
    let insert = "INSERT INTO t (k, v) VALUES ('a', 'new')";
    let mut sent = 0;
    for version in [Version::V3, Version::V4] {
        let mut client = house.node.client(version);
        client.run("USE two");
        let part = [BatchStatement { statement: StatementRef::Text(insert), values: Values::NONE }];
        let (mut query, mut batch) = (Vec::new(), Vec::new());
        Query { text: insert, params: at(10) }.encode(version, &mut query);
        encode_batch(version, BatchKind::Unlogged, &part, &at(10), &mut batch);
        for (opcode, mut body) in [(Opcode::Query, query), (Opcode::Batch, batch)] {
            // The flags are before the timestamp, and the keyspace is behind it.
            let flags = body.len() - 8 - 1;
            body[flags] |= 0x80;
            body.extend(*b"\0\x02ks");
            let held = count("afterglow_quarantined_partitions");
            refusals.0.store(1, Ordering::SeqCst);
            let encode = |out: &mut Vec<u8>| out.extend(&body);
            let answer = client.raw().call(Flags::NONE, opcode, encode).unwrap();
            assert_eq!(answer.header.opcode, Opcode::Error, "{answer:?}");
            // Long enough for it to be sent again, too.
            client.run("USE ks");
            refusals.0.store(1, Ordering::SeqCst);
            assert!(!send(&mut client, "INSERT INTO other (k, v) VALUES ('b', 'new')"));
            client.run("USE two");
            sent += 1;
            wait_until("the other is settled", || count("afterglow_settled_writes_total") >= sent);
            assert_eq!(count("afterglow_repeated_writes_total"), sent, "{version:?} {opcode:?}");
            assert_eq!(count("afterglow_quarantined_partitions"), held.max(1));
        }
    }
    assert!(house.past().query("SELECT v FROM two.t", Consistency::One).unwrap().is_empty());
}

/// An INSERT of a timestamp so far from the clock. The database answers it with a timeout.
fn in_doubt(client: &mut Client, table: &str, key: usize, apart: i64) {
    let text = format!("INSERT INTO {table} (k, v) VALUES ('{key}', 'in doubt')");
    let answer = client.query_with(Flags::NONE, &text, at(apart), &[]);
    assert_eq!(answer.header.opcode, Opcode::Error);
}

fn is_stored(house: &House, key: usize) -> bool {
    let text = format!("SELECT v FROM ks.t WHERE k = '{key}'");
    !house.past().query(&text, Consistency::One).unwrap().is_empty()
}

#[test]
fn what_a_forgotten_delete_hides_is_never_sent_again() {
    let (house, refusals) = house();
    let mut client = house.node.client(Version::V5);
    let count = |name: &str| house.node.count(&[name]);
    let day = 86_400_000_000;
    let shapes = [
        ("gc_grace_seconds = 0", 0, false),
        ("gc_grace_seconds = 120", 0, false),
        ("gc_grace_seconds = 3600", 0, true),
        ("gc_grace_seconds = 864000", 0, true),
        // Its timestamp is farther from the clock than half of that.
        ("gc_grace_seconds = 864000", -4 * day, true),
        ("gc_grace_seconds = 864000", -5 * day, false),
        ("gc_grace_seconds = 864000", 4 * day, true),
        // The clock has gone on since the first timestamp was asked for.
        ("gc_grace_seconds = 864000", 6 * day, false),
        ("tombstone_gc = {'mode': 'immediate'}", 0, false),
        ("tombstone_gc = {'mode': 'repair', 'propagation_delay_in_seconds': '3600'}", 0, false),
        ("tombstone_gc = {'mode': 'timeout', 'propagation_delay_in_seconds': '1'}", 0, true),
        ("tombstone_gc = {'mode': 'disabled'}", -5 * day, true),
        ("gc_grace_seconds = 0", 0, true),
    ];
    for (key, (option, apart, is_settled)) in shapes.into_iter().enumerate() {
        client.run(&format!("ALTER TABLE ks.t WITH {option}"));
        let settled = count("afterglow_settled_writes_total");
        refusals.0.store(1, Ordering::SeqCst);
        in_doubt(&mut client, "ks.t", key, apart);
        // Long enough for another that came later to be sent again, and to be there.
        refusals.0.store(1, Ordering::SeqCst);
        in_doubt(&mut client, "ks.other", key, 0);
        let expected = settled + 1 + u64::from(is_settled);
        wait_until(&format!("{option}, {apart}: all are settled that may be"), || {
            count("afterglow_settled_writes_total") == expected
        });
        assert_eq!(is_stored(&house, key), is_settled, "{option}, {apart}");
    }
    let held = shapes.iter().filter(|(.., is_settled)| !is_settled).count() as u64;
    assert_eq!(count("afterglow_quarantined_partitions"), held, "none was sent late");
    assert_eq!(count("afterglow_unsettled_writes_total"), 0);
}

#[test]
fn a_write_is_sent_no_more_once_deletes_are_forgotten_sooner() {
    let (house, refusals) = house();
    let mut client = house.node.client(Version::V5);
    let count = |name: &str| house.node.count(&[name]);
    refusals.0.store(usize::MAX, Ordering::SeqCst);
    in_doubt(&mut client, "ks.t", 1, 0);
    wait_until("it has been sent again", || count("afterglow_repeated_writes_total") > 0);
    // Past Afterglow: columns, triggers and all else that a plan knows stay as they are.
    direct(&house.database, "ALTER TABLE ks.t WITH gc_grace_seconds = 400000");
    wait_until("it is sent no more", || count("afterglow_unsettled_writes_total") == 1);
    assert!(!is_stored(&house, 1));
}
