//! Reads at QUORUM of keyspaces that have replicas in several data centres.

use std::time::Duration;

use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Consistency;
use afterglow_testkit::fake_backend::Ask;

use super::asked_levels::{AskedLevels, run};
use super::node::{Client, wait_until};
use Consistency::{All, LocalQuorum, One, Quorum, Two};

const SCHEMA: [&str; 9] = [
    "CREATE KEYSPACE near WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': \
     3, 'elsewhere': 1}",
    "CREATE TABLE near.t (k text PRIMARY KEY, v text)",
    "CREATE TABLE near.wide (k text, c int, v text, PRIMARY KEY (k, c))",
    "CREATE KEYSPACE far WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3, \
     'elsewhere': 3}",
    "CREATE TABLE far.t (k text PRIMARY KEY, v text)",
    "CREATE TABLE far.wide (k text, c int, v text, PRIMARY KEY (k, c))",
    "CREATE KEYSPACE pair WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': \
     2, 'elsewhere': 1}",
    "CREATE TABLE pair.t (k text PRIMARY KEY, v text)",
    "CREATE TABLE pair.wide (k text, c int, v text, PRIMARY KEY (k, c))",
];
const ONE_ROW: &str = "SELECT v FROM near.t WHERE k = 'a'";
/// A row, a slice, a row of a slice that is cached, rows of several partitions and of one.
const READS: [&str; 5] = [
    ONE_ROW,
    "SELECT v FROM near.wide WHERE k = 'a' LIMIT 2",
    "SELECT v FROM near.wide WHERE k = 'a' AND c = 2",
    "SELECT v FROM near.t WHERE k IN ('a', 'b')",
    "SELECT v FROM near.wide WHERE k = 'a' AND c IN (1, 2)",
];

fn house_of(policy: &'static str, hold: Duration) -> AskedLevels {
    // Nothing here is executed but fills.
    let reads = |ask: &Ask| match ask.opcode() {
        Opcode::Query => ask.text.starts_with("SELECT v FROM "),
        opcode => opcode == Opcode::Execute,
    };
    AskedLevels::new(&SCHEMA, policy, reads, |setup| setup.hold = hold)
}

fn write_rows(client: &mut Client, keyspace: &str) {
    run(client, &format!("INSERT INTO {keyspace}.t (k, v) VALUES ('a', '1')"), LocalQuorum);
    for c in 1..=3 {
        let text = format!("INSERT INTO {keyspace}.wide (k, c, v) VALUES ('a', {c}, '1')");
        run(client, &text, LocalQuorum);
    }
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn quorum_is_filled_and_answered_beside_one_replica_elsewhere() {
    for version in [Version::V4, Version::V5] {
        let house = house_of("*.*=exclusive", LONG);
        let mut client = house.node.client(version);
        write_rows(&mut client, "near");
        for text in READS {
            let first = house.asked_by(&mut client, text, Quorum);
            assert!(first.iter().all(|level| *level == LocalQuorum), "{text}: {first:?}");
            assert_eq!(house.asked_by(&mut client, text, Quorum), [], "{text}");
            assert_eq!(house.asked_by(&mut client, text, LocalQuorum), [], "{text}");
            assert_eq!(house.asked_by(&mut client, text, All), [All], "{text}");
            assert_eq!(house.asked_by(&mut client, text, Two), [Two], "{text}");
        }
        // Every fill sees a write at QUORUM.
        run(&mut client, "UPDATE near.t SET v = '2' WHERE k = 'a'", Quorum);
        for _ in 0..2 {
            let after = house.asked_by(&mut client, ONE_ROW, Quorum);
            assert!(!after.contains(&Quorum), "{after:?}");
        }
    }
}

#[test]
fn quorum_passes_through_beside_as_many_replicas_elsewhere() {
    let house = house_of("*.*=exclusive", LONG);
    let mut client = house.node.client(Version::V5);
    write_rows(&mut client, "far");
    for text in READS.map(|text| text.replace("near.", "far.")) {
        house.asked_by(&mut client, &text, LocalQuorum);
        assert_eq!(house.asked_by(&mut client, &text, LocalQuorum), [], "{text}");
        assert_eq!(house.asked_by(&mut client, &text, Quorum), [Quorum], "{text}");
    }
}

/// Others may write at a level that the database's QUORUM read sees and a fill may miss.
#[test]
fn quorum_over_several_data_centres_passes_through_where_others_write() {
    let house = house_of("*.*=max-staleness=60s", LONG);
    let mut client = house.node.client(Version::V5);
    write_rows(&mut client, "near");
    for text in READS {
        house.asked_by(&mut client, text, LocalQuorum);
        assert_eq!(house.asked_by(&mut client, text, LocalQuorum), [], "{text}");
        assert_eq!(house.asked_by(&mut client, text, Quorum), [Quorum], "{text}");
    }
}

/// Of two replicas here and one elsewhere a local quorum is both here. So it meets a write at TWO,
/// which has one of them at least. A write at ONE may be elsewhere alone.
#[test]
fn beside_one_of_three_replicas_elsewhere_only_one_is_a_low_level() {
    let reads = || READS.map(|text| text.replace("near.", "pair."));
    let write = |client: &mut Client, level| {
        run(client, "UPDATE pair.t SET v = '2' WHERE k = 'a'", level);
        run(client, "UPDATE pair.t SET v = '2' WHERE k = 'b'", level);
        run(client, "UPDATE pair.wide SET v = '2' WHERE k = 'a' AND c = 3", level);
    };
    let house = house_of("*.*=exclusive", LONG);
    let mut client = house.node.client(Version::V5);
    write_rows(&mut client, "pair");
    for level in [Quorum, Two] {
        write(&mut client, level);
        for text in reads() {
            let first = house.asked_by(&mut client, &text, Quorum);
            assert!(first.iter().all(|at| *at == LocalQuorum), "{text} after {level:?}: {first:?}");
            assert_eq!(house.asked_by(&mut client, &text, Quorum), [], "{text} after {level:?}");
        }
    }
    write(&mut client, One);
    for text in reads() {
        run(&mut client, &text, LocalQuorum);
        assert_eq!(house.asked_by(&mut client, &text, LocalQuorum), [], "{text}");
        assert_eq!(house.asked_by(&mut client, &text, Quorum), [Quorum], "{text}");
    }
    // Where others write, one of them may have written at ONE.
    let house = house_of("*.*=max-staleness=60s", LONG);
    let mut client = house.node.client(Version::V5);
    write_rows(&mut client, "pair");
    for text in reads() {
        house.asked_by(&mut client, &text, LocalQuorum);
        assert_eq!(house.asked_by(&mut client, &text, LocalQuorum), [], "{text}");
        assert_eq!(house.asked_by(&mut client, &text, Quorum), [Quorum], "{text}");
    }
}

/// The database's QUORUM read, of 3 of 4, meets a write at TWO. A fill, of 2 of 3, may not.
#[test]
fn after_a_write_that_a_fill_may_miss_quorum_passes_through() {
    let house = house_of("*.*=exclusive", LONG);
    let mut client = house.node.client(Version::V5);
    write_rows(&mut client, "near");
    for text in READS {
        run(&mut client, text, Quorum);
    }
    run(&mut client, "UPDATE near.t SET v = '2' WHERE k = 'a'", Two);
    run(&mut client, "UPDATE near.wide SET v = '2' WHERE k = 'a' AND c = 3", Two);
    for text in READS {
        run(&mut client, text, LocalQuorum);
        assert_eq!(house.asked_by(&mut client, text, LocalQuorum), [], "{text}");
        assert_eq!(house.asked_by(&mut client, text, Quorum), [Quorum], "{text}");
    }
}

#[test]
fn what_was_filled_while_a_fill_may_have_missed_a_write_answers_no_quorum_read() {
    let house = house_of("*.*=exclusive", Duration::from_secs(1));
    let mut client = house.node.client(Version::V5);
    for text in [ONE_ROW, "SELECT v FROM near.wide WHERE k = 'a' LIMIT 2"] {
        // Once more, should the time of doubt be over before it was filled.
        wait_until("it is filled in doubt", || {
            write_rows(&mut client, "near");
            run(&mut client, "UPDATE near.t SET v = '2' WHERE k = 'a'", One);
            run(&mut client, "UPDATE near.wide SET v = '2' WHERE k = 'a' AND c = 3", One);
            run(&mut client, text, LocalQuorum);
            house.asked_by(&mut client, text, Quorum) == [Quorum]
        });
        let mut asked = Vec::new();
        wait_until("it is answered again", || {
            asked = house.asked_by(&mut client, text, Quorum);
            asked != [Quorum]
        });
        // Not what was filled in doubt: readers at LOCAL_QUORUM still have that.
        assert_eq!(asked, [LocalQuorum], "{text}");
        assert_eq!(house.asked_by(&mut client, text, Quorum), [], "{text}");
    }
}
