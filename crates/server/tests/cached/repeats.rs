//! Plain writes of unknown outcome: they are sent again, with the timestamp that they had.

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams, ValuesBuilder};
use afterglow_testkit::fake_backend::{Faults, StatementKind};

use crate::node::{Client, House, micros, wait_until};

fn set_timeouts(house: &House, on: bool) {
    let write_timeouts = if on { 1.0 } else { 0.0 };
    house.database.set_faults(Faults { write_timeouts, ..Faults::default() });
}

/// What the database has, seen past Afterglow.
fn stored(house: &House, key: &str) -> Option<String> {
    let text = format!("SELECT v FROM ks.t WHERE k = '{key}'");
    let rows = house.past().query(&text, Consistency::One).unwrap();
    crate::node::one_text(rows)
}

fn counted(house: &House, name: &str) -> u64 {
    house.node.count(&[name])
}

/// Sends a text with a default timestamp, see [`micros`]; whether it is acknowledged.
fn try_at(client: &mut Client, text: &str, timestamp: i64) -> bool {
    let params = QueryParams {
        timestamp: Some(micros(timestamp)),
        ..QueryParams::new(Consistency::LocalOne)
    };
    client.query_with(Flags::NONE, text, params, &[]).header.opcode == Opcode::Result
}

fn wait_until_cached(house: &House, client: &mut Client, key: &str) {
    wait_until("it is cached again, long before the hold is over", || {
        let hits = house.node.hits();
        client.value(key);
        house.node.hits() > hits
    });
}

#[test]
fn a_plain_write_of_unknown_outcome_is_sent_again_until_it_is_there() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        let key = format!("{version:?}");
        assert!(try_at(
            &mut client,
            &format!("INSERT INTO ks.t (k, v) VALUES ('{key}', 'old')"),
            5
        ));
        let insert = client.prepare("INSERT INTO ks.t (k, v) VALUES (?, ?)");
        for (at, value) in [(10, "text"), (20, "bound")] {
            client.value(&key);
            let settled = counted(&house, "afterglow_settled_writes_total");
            set_timeouts(&house, true);
            if value == "text" {
                let at = micros(at);
                let text =
                    format!("UPDATE ks.t USING TIMESTAMP {at} SET v = 'text' WHERE k = '{key}'");
                assert!(client.try_run(&text).is_err());
            } else {
                let mut values = ValuesBuilder::positional();
                values.push(Value::Bytes(key.as_bytes()));
                values.push(Value::Bytes(value.as_bytes()));
                let params = QueryParams {
                    values: values.view(),
                    timestamp: Some(micros(at)),
                    ..QueryParams::new(Consistency::LocalQuorum)
                };
                assert!(client.raw().execute(&insert, &params).is_err());
            }
            let before = counted(&house, "afterglow_repeated_writes_total");
            wait_until("it has been sent again in vain", || {
                counted(&house, "afterglow_repeated_writes_total") > before + 1
            });
            assert_eq!(counted(&house, "afterglow_settled_writes_total"), settled);
            set_timeouts(&house, false);
            wait_until_cached(&house, &mut client, &key);
            assert_eq!(client.value(&key).as_deref(), Some(value));
            assert_eq!(stored(&house, &key).as_deref(), Some(value));
            assert_eq!(counted(&house, "afterglow_settled_writes_total"), settled + 1);
        }
    }
    assert_eq!(counted(&house, "afterglow_quarantined_partitions"), 0);
}

#[test]
fn a_later_write_wins_over_one_that_is_sent_again() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    set_timeouts(&house, true);
    assert!(!try_at(&mut client, "INSERT INTO ks.t (k, v) VALUES ('a', 'in doubt')", 10));
    set_timeouts(&house, false);
    assert!(try_at(&mut client, "INSERT INTO ks.t (k, v) VALUES ('a', 'later')", 11));
    wait_until_cached(&house, &mut client, "a");
    assert_eq!(counted(&house, "afterglow_settled_writes_total"), 1);
    assert_eq!(client.value("a").as_deref(), Some("later"));
}

#[test]
fn what_would_not_be_the_same_write_is_never_sent_again() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    assert!(try_at(&mut client, "INSERT INTO ks.t (k, v) VALUES ('a', 'old')", 5));
    set_timeouts(&house, true);
    for text in [
        "INSERT INTO ks.t (k, v) VALUES ('a', 'no timestamp')",
        "INSERT INTO ks.t (k, v) VALUES ('a', 'ttl') USING TIMESTAMP 10 AND TTL 999",
        "UPDATE ks.t USING TTL 999 SET v = null WHERE k = 'a'",
        "DELETE FROM ks.t WHERE k = 'a'",
        "DELETE FROM ks.t USING TIMESTAMP 10 WHERE k IN ('a', 'c')",
        "INSERT INTO ks.t JSON '{\"k\": \"a\", \"v\": null}' USING TIMESTAMP 10",
    ] {
        let text = text.replace("10", &micros(10).to_string());
        assert!(client.try_run(&text).is_err(), "{text}");
    }
    // No database writes at this level. Some say so in a way that says nothing of the outcome.
    let node_local = QueryParams::new(Consistency::NodeLocal);
    let params = QueryParams { timestamp: Some(micros(10)), ..node_local };
    let text = "INSERT INTO ks.t (k, v) VALUES ('a', 'level')";
    let answer = client.query_with(Flags::NONE, text, params, &[]);
    assert_eq!(answer.header.opcode, Opcode::Error);
    assert!(!try_at(&mut client, "INSERT INTO ks.t (k, v) VALUES ('b', 'again')", 10));
    set_timeouts(&house, false);
    wait_until_cached(&house, &mut client, "b");
    // It was the last, and the only one.
    assert_eq!(counted(&house, "afterglow_settled_writes_total"), 1);
    let reads = house.reads(|| (0..3).for_each(|_| drop(client.value("a")))).0;
    assert_eq!(reads, 3, "its partition is not cached");
}

#[test]
fn what_truncate_removed_does_not_come_back() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    set_timeouts(&house, true);
    assert!(!try_at(&mut client, "INSERT INTO ks.t (k, v) VALUES ('a', 'in doubt')", 10));
    wait_until("it has been sent again", || counted(&house, "afterglow_repeated_writes_total") > 1);
    client.run("TRUNCATE ks.t");
    wait_until("it is sent no more", || counted(&house, "afterglow_unsettled_writes_total") == 1);
    // Another one, from its failure until it is there: long enough for the first to be sent.
    set_timeouts(&house, true);
    assert!(!try_at(&mut client, "INSERT INTO ks.other (k, v) VALUES ('a', 'b')", 10));
    set_timeouts(&house, false);
    wait_until("it is there", || counted(&house, "afterglow_settled_writes_total") == 1);
    assert_eq!(stored(&house, "a"), None);
}

#[test]
fn after_a_lost_connection_the_coordinators_time_is_waited_for() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    let held = house.database.hold(StatementKind::Write);
    std::thread::scope(|scope| {
        let write = scope
            .spawn(|| try_at(&mut client, "INSERT INTO ks.t (k, v) VALUES ('a', 'in doubt')", 10));
        held.wait_for(1);
        house.database.hang_up();
        drop(held);
        assert!(!write.join().unwrap());
    });
    wait_until("it has been sent again", || counted(&house, "afterglow_repeated_writes_total") > 0);
    wait_until("it is there", || stored(&house, "a").is_some());
    let reads = house.reads(|| (0..3).for_each(|_| drop(client.value("a")))).0;
    assert_eq!((reads, counted(&house, "afterglow_settled_writes_total")), (3, 0));
}
