//! The fake backend answers what Afterglow asks of a database: the lease's transactions, fills with
//! write times, the schema.

use std::sync::{Arc, Mutex};

use afterglow_cql::{
    frame::{Opcode, Version, notation::Value},
    message::{Consistency, QueryParams, ValuesBuilder},
    token::murmur3,
};
use afterglow_loadgen::cql::{ConnectOptions, Connection, CqlError};
use afterglow_rowcache::lease::{CREATE_TABLE, LeaseConfig, Request, create_keyspace, release_cql};
use afterglow_testkit::fake_backend::{FakeBackend, Faults};
use uuid::Uuid;

fn connect(backend: &FakeBackend, version: Version) -> Connection {
    let options = ConnectOptions { version, ..ConnectOptions::default() };
    Connection::open(&backend.address().to_string(), &options).unwrap()
}

fn backend() -> FakeBackend {
    FakeBackend::start("127.0.0.1:0".parse().unwrap(), Faults::default()).unwrap()
}

type Rows = Vec<Vec<Option<Vec<u8>>>>;

fn query(connection: &mut Connection, text: &str) -> Rows {
    connection.query(text, Consistency::One).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn lease(me: u128) -> LeaseConfig {
    LeaseConfig { me: Uuid::from_u128(me), ttl_seconds: 30, margin: 1000, retry: 1000 }
}

#[test]
fn the_lease_is_founded_taken_renewed_and_released_as_in_a_database() {
    let backend = backend();
    let mut connection = connect(&backend, Version::V5);
    query(&mut connection, &create_keyspace("datacenter1", 1));
    query(&mut connection, CREATE_TABLE);
    let (a, b) = (lease(0xA), lease(0xB));
    let mut applied = |text: &str| query(&mut connection, text)[0][0] == Some(vec![1]);
    assert!(applied(&Request::Found.cql(&a)));
    assert!(!applied(&Request::Found.cql(&b)), "founded already");
    assert!(!applied(&Request::Take { from: 1, ours: false, to: 2 }.cql(&b)), "owned by another");
    assert!(applied(&Request::Renew { epoch: 1 }.cql(&a)));
    assert!(!applied(&Request::Renew { epoch: 2 }.cql(&a)), "another epoch");
    assert!(applied(&Request::Take { from: 1, ours: true, to: 2 }.cql(&a)));
    assert!(applied(&release_cql(&a, 2)));
    assert!(applied(&Request::Take { from: 2, ours: false, to: 3 }.cql(&b)));
    let row = query(&mut connection, &Request::Read.cql(&a)).remove(0);
    let me = b.me.as_bytes().to_vec();
    assert_eq!(row, [Some(me.clone()), Some(3i64.to_be_bytes().to_vec()), Some(me)]);
}

#[test]
fn a_fill_gets_values_write_times_and_lives() {
    let backend = backend();
    let mut connection = connect(&backend, Version::V4);
    for statement in [
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE ks.t (k text, c int, a blob, b int, PRIMARY KEY (k, c))",
        "INSERT INTO ks.t (k, c, a) VALUES ('x', 1, 0xCAFE) USING TIMESTAMP 77",
        "UPDATE ks.t USING TTL 1000 SET b = 5 WHERE k = 'x' AND c = 1",
    ] {
        query(&mut connection, statement);
    }
    let fill = "SELECT \"k\", \"c\", \"a\", WRITETIME(\"a\"), TTL(\"a\"), \"b\", WRITETIME(\"b\"), TTL(\"b\") \
                FROM \"ks\".\"t\" WHERE \"k\" = ? AND \"c\" = ?";
    let prepared = connection.prepare(fill).unwrap();
    let mut values = ValuesBuilder::positional();
    values.push(Value::Bytes(b"x")).push(Value::Bytes(&1i32.to_be_bytes()));
    let params = QueryParams { values: values.view(), ..QueryParams::new(Consistency::One) };
    let row = connection.execute(&prepared, &params).unwrap().remove(0);
    assert_eq!(row[2], Some(vec![0xCA, 0xFE]));
    assert_eq!((row[3].clone(), row[4].clone()), (Some(77i64.to_be_bytes().to_vec()), None));
    let ttl = i32::from_be_bytes(row[7].clone().unwrap().try_into().unwrap());
    assert!((990..=1000).contains(&ttl), "{ttl}");
}

#[test]
fn the_schema_tables_show_what_was_created() {
    let backend = backend();
    let mut connection = connect(&backend, Version::V4);
    let version =
        |c: &mut Connection| query(c, "SELECT schema_version FROM system.local WHERE key='local'");
    let before = version(&mut connection);
    query(
        &mut connection,
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    );
    query(&mut connection, "CREATE TABLE ks.t (k text PRIMARY KEY, v blob)");
    assert_ne!(version(&mut connection), before, "drivers wait for a new schema version");
    let written = |c: &mut Connection| {
        query(c, "SELECT writetime(id) FROM system_schema.tables WHERE keyspace_name = 'ks'")
    };
    let then = written(&mut connection);
    query(&mut connection, "CREATE TABLE ks.u (k text PRIMARY KEY)");
    query(&mut connection, "DROP TABLE ks.u");
    assert_eq!(written(&mut connection), then);
    query(&mut connection, "ALTER TABLE ks.t WITH gc_grace_seconds = 1");
    query(
        &mut connection,
        "ALTER TABLE ks.t WITH memtable_flush_period_in_ms = 1000 AND gc_grace_seconds = 864000 \
         AND compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': 2}",
    );
    assert_ne!(written(&mut connection), then, "each change of a table leaves its time");
    let columns = query(
        &mut connection,
        "SELECT column_name, kind, position, type FROM system_schema.columns WHERE keyspace_name = 'ks'",
    );
    let text = |cell: &Option<Vec<u8>>| String::from_utf8(cell.clone().unwrap()).unwrap();
    let shown: Vec<_> = columns.iter().map(|c| (text(&c[0]), text(&c[1]), text(&c[3]))).collect();
    let expected = [("k", "partition_key", "text"), ("v", "regular", "blob")];
    assert_eq!(shown, expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())));
    let error = connection.query("SELECT * FROM ks.nothing", Consistency::One).unwrap_err();
    assert!(matches!(error, CqlError::Server(e) if e.code == 0x2200));
}

#[test]
fn a_script_answers_what_it_wants_and_is_shown_the_rest() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let backend = FakeBackend::scripted(Version::V4, move |ask| {
        log.lock().unwrap().push((ask.connection, ask.opcode()));
        let wanted = ask.text.contains("ks.scripted");
        if wanted {
            ask.text_row("by the script");
        }
        wanted
    })
    .unwrap();
    let mut connection = connect(&backend, Version::V4);
    let row = query(&mut connection, "SELECT v FROM ks.scripted").remove(0);
    assert_eq!(row, [Some(b"by the script".to_vec())]);
    assert_eq!(query(&mut connection, "SELECT key FROM system.local").len(), 1);
    assert_eq!(
        *seen.lock().unwrap(),
        [(0, Opcode::Startup), (0, Opcode::Query), (0, Opcode::Query)]
    );
    let newer = ConnectOptions { version: Version::V5, ..ConnectOptions::default() };
    let refusal = Connection::open(&backend.address().to_string(), &newer).unwrap_err();
    assert!(
        matches!(&refusal, CqlError::Server(e) if e.message.contains("unsupported protocol version (5)"))
    );
}

#[test]
fn a_node_that_is_down_hangs_up_on_everybody_until_it_is_back() {
    let backend = backend();
    let mut connection = connect(&backend, Version::V4);
    assert_eq!((backend.connections(), backend.live()), (1, 1));
    backend.set_down(true);
    connection.query("SELECT key FROM system.local", Consistency::One).unwrap_err();
    Connection::open(&backend.address().to_string(), &ConnectOptions::default()).unwrap_err();
    assert_eq!((backend.connections(), backend.refused()), (1, 1));
    backend.set_down(false);
    assert_eq!(query(&mut connect(&backend, Version::V4), "SELECT key FROM system.local").len(), 1);
    assert_eq!(backend.connections(), 2);
}

#[test]
fn nodes_move_on_the_ring_leave_it_and_stand_for_each_other() {
    let first = backend();
    let (second, third) = (first.join().unwrap(), first.join().unwrap());
    let mut connection = connect(&first, Version::V4);
    let mut peers = || {
        let text = "SELECT host_id, native_port, schema_version FROM system.peers_v2";
        let peers = query(&mut connection, text).into_iter();
        peers.map(|row| row.into_iter().map(Option::unwrap).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let port = |node: &FakeBackend| i32::from(node.address().port()).to_be_bytes();
    let before = peers();
    assert_eq!(before.len(), 2);
    second.keep_schema_version(true);
    first.run("CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy'}");
    let after = peers();
    assert_eq!(after[0], before[0], "shows the schema as it was");
    assert_ne!(after[1][2], before[1][2]);
    second.leave();
    assert_eq!(peers().len(), 1);
    assert_eq!((&peers()[0][0], &peers()[0][1][..]), (&before[1][0], &port(&third)[..]));
    let fourth = first.join().unwrap();
    fourth.stand_for(&third);
    assert_eq!((&peers()[0][0], &peers()[0][1][..]), (&before[1][0], &port(&fourth)[..]));
    // A token has what is up to it, and the first what is behind the last.
    let token = murmur3(b"key");
    first.set_token(token - 2);
    fourth.set_token(token);
    assert_eq!((fourth.token(), first.owner(b"key")), (token, fourth.address()));
    fourth.set_token(token - 1);
    assert_eq!(first.owner(b"key"), first.address());
}
