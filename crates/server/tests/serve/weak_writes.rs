//! What the log says of writes that a quorum read may miss.

use afterglow_cql::message::Consistency::{self, LocalOne, LocalQuorum, One, Two};
use afterglow_loadgen::cql::{ConnectOptions, Connection};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};

use crate::{Server, TERM};

#[test]
fn a_table_that_is_written_at_a_weak_level_is_told_of_once() {
    let database = FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap();
    for keyspace in ["three", "other"] {
        database.run(&format!(
            "CREATE KEYSPACE {keyspace} WITH replication = \
             {{'class': 'SimpleStrategy', 'replication_factor': 3}}"
        ));
        for table in ["weak", "raised", "strong"] {
            database.run(&format!("CREATE TABLE {keyspace}.{table} (k text PRIMARY KEY, v text)"));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(
        directory.path(),
        &[
            "--backend",
            &database.address().to_string(),
            "--table-policy",
            "three.*=exclusive",
            "--table-write-level",
            "*.raised=LOCAL_QUORUM",
        ],
    );
    server.until("the lease is ours: ");
    let options = ConnectOptions::default();
    let mut client = Connection::open(&server.cql.to_string(), &options).unwrap();
    let mut write = |table: &str, level: Consistency| {
        client.query(&format!("INSERT INTO {table} (k, v) VALUES ('a', 'b')"), level).unwrap();
    };
    write("three.strong", LocalQuorum);
    // Nobody reads it from the cache.
    write("other.weak", One);
    write("three.raised", One);
    for level in [One, LocalOne, One] {
        write("three.weak", level);
    }
    let told = server.until("which a quorum read may miss");
    for said in [
        " WARN ",
        "three.weak is written at ONE, which a quorum read may miss",
        "is cached for at most a minute, for `unknown-outcome-hold`",
        "Write at LOCAL_QUORUM, or set --table-write-level 'three.weak=LOCAL_QUORUM'",
    ] {
        assert!(told.contains(said), "{said} is missing in {told}");
    }
    // Each table is told of for itself.
    write("three.strong", Two);
    write("three.strong", One);
    server.until("three.strong is written at ONE, which a quorum read may miss");
    server.signal(TERM);
    let (_, log) = server.end();
    assert_eq!(log.matches("which a quorum read may miss").count(), 2, "{log}");
}
