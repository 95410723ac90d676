//! `table-write-level`: the level that the database is asked for.

use std::sync::{Arc, Mutex};

use afterglow::config::WriteLevels;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, Query, QueryParams, StatementRef, Values, encode_batch,
};
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use super::node::{Client, Node, Setup, direct, furnished};

const SCHEMA: [&str; 5] = [
    "CREATE KEYSPACE three WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
    "CREATE TABLE three.t (k text PRIMARY KEY, v text)",
    "CREATE TABLE three.other (k text PRIMARY KEY, v text)",
    "CREATE KEYSPACE far WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3, \
     'elsewhere': 3}",
    "CREATE TABLE far.t (k text PRIMARY KEY, v text)",
];

struct House {
    node: Node,
    asked: Arc<Mutex<Vec<Consistency>>>,
    _database: FakeBackend,
    _directory: TempDir,
}

impl House {
    fn new(rules: &[&str]) -> House {
        let asked = Arc::<Mutex<Vec<Consistency>>>::default();
        let seen = asked.clone();
        let database = furnished(
            FakeBackend::scripted(Version::MAX, move |ask| {
                let writes = ask.text.starts_with("INSERT") && ask.opcode() == Opcode::Query;
                if writes || matches!(ask.opcode(), Opcode::Execute | Opcode::Batch) {
                    seen.lock().unwrap().extend(ask.consistency());
                }
                false
            })
            .unwrap(),
        );
        SCHEMA.iter().for_each(|text| direct(&database, text));
        let directory = TempDir::new().unwrap();
        let mut setup = Setup::new(directory.path(), &database, "*.*=exclusive");
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        setup.write_levels = WriteLevels { rules };
        House { node: setup.start(), asked, _database: database, _directory: directory }
    }

    /// The levels that the database was asked for by `write`.
    fn asked(&self, write: impl FnOnce()) -> Vec<Consistency> {
        self.asked.lock().unwrap().clear();
        write();
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn insert(client: &mut Client, table: &str, level: Consistency) {
    let text = format!("INSERT INTO {table} (k, v) VALUES ('a', 'b')");
    let version = client.raw().version();
    let encode = |out: &mut Vec<u8>| {
        Query { text: &text, params: QueryParams::new(level) }.encode(version, out);
    };
    let answer = client.raw().call(Flags::NONE, Opcode::Query, encode).unwrap();
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.header.opcode, Opcode::Result, "{table} at {level:?}: {said}");
}

fn batch(client: &mut Client, tables: &[&str], level: Consistency) {
    let version = client.raw().version();
    let texts: Vec<_> = tables
        .iter()
        .map(|table| format!("INSERT INTO {table} (k, v) VALUES ('a', 'b')"))
        .collect();
    let statements: Vec<_> = texts
        .iter()
        .map(|text| BatchStatement { statement: StatementRef::Text(text), values: Values::NONE })
        .collect();
    let params = QueryParams::new(level);
    let encode = |out: &mut Vec<u8>| {
        encode_batch(version, BatchKind::Logged, &statements, &params, out);
    };
    let answer = client.raw().call(Flags::NONE, Opcode::Batch, encode).unwrap();
    assert_eq!(answer.header.opcode, Opcode::Result);
}

#[test]
fn only_weak_writes_of_matching_tables_are_raised() {
    use Consistency::{All, LocalOne, LocalQuorum, One, Quorum};
    let house = House::new(&["three.t=LOCAL_QUORUM", "far.*=LOCAL_QUORUM", "ks.*=ALL"]);
    for version in [Version::V3, Version::V4, Version::V5] {
        let mut client = house.node.client(version);
        for (table, level, expected) in [
            ("three.t", One, LocalQuorum),
            ("three.t", LocalOne, LocalQuorum),
            ("three.t", LocalQuorum, LocalQuorum),
            ("three.t", Quorum, Quorum),
            ("three.t", All, All),
            ("three.other", One, One),
            // It asks more replicas than LOCAL_QUORUM, of which one may be here.
            ("far.t", Quorum, Quorum),
            ("far.t", One, LocalQuorum),
            // One replica: no read misses such a write.
            ("ks.t", One, One),
        ] {
            let asked = house.asked(|| insert(&mut client, table, level));
            assert_eq!(asked, [expected], "{table} at {level:?}, {version:?}");
        }
        let both = ["three.other", "three.t"];
        assert_eq!(house.asked(|| batch(&mut client, &both, One)), [LocalQuorum], "{version:?}");
        let other = ["three.other"];
        assert_eq!(house.asked(|| batch(&mut client, &other, One)), [One], "{version:?}");
        let prepared = client.prepare("INSERT INTO three.t (k, v) VALUES ('a', 'b')");
        let execute = || drop(client.raw().execute(&prepared, &QueryParams::new(One)).unwrap());
        assert_eq!(house.asked(execute), [LocalQuorum], "{version:?}");
    }
    assert_eq!(house.node.count(&["afterglow_raised_writes_total"]), 3 * 5);
    assert_eq!(house.node.count(&["afterglow_weak_writes_total"]), 3 * 3);
}
