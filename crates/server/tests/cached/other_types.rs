//! Nodes that differ about the type of a column: one has heard that a user type was altered,
//! another has not. Each prepares for itself, and answers what it has the columns for. No value is
//! served under the types of the other node.

use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Execute, QueryParams, ValuesBuilder};
use afterglow_cql::response::{CqlType, Event, Response, ResultBody, SchemaChange, SchemaTarget};
use afterglow_loadgen::cql::Prepared;
use afterglow_testkit::fake_backend::FakeBackend;
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, database, wait_until};

/// Two nodes, each of which has half of the rows of `ks.t`, and an Afterglow before them. The first
/// has its control connection.
struct World {
    node: Node,
    nodes: [FakeBackend; 2],
    _directory: TempDir,
}

/// A user type with these fields.
fn address(fields: &[&str]) -> CqlType {
    CqlType::Udt {
        keyspace: "ks".to_owned(),
        name: "address".to_owned(),
        fields: fields.iter().map(|field| ((*field).to_owned(), CqlType::Varchar)).collect(),
    }
}

fn before() -> CqlType {
    address(&["street"])
}

fn after() -> CqlType {
    address(&["street", "zip"])
}

impl World {
    /// The nodes take `ks.t.v` for these types.
    fn new(types: [CqlType; 2], policy: &'static str) -> World {
        let (first, directory) = (database(), TempDir::new().unwrap());
        let second = first.join().unwrap();
        let nodes = [first, second];
        for (node, seen) in nodes.iter().zip(types) {
            node.see_type("ks.t", "v", Some(("frozen<address>", seen)));
        }
        let node = Setup::new(directory.path(), &nodes[0], policy).start();
        World { node, nodes, _directory: directory }
    }

    /// A key that the node with this number has, and its row, which is written past Afterglow.
    fn key(&self, owner: usize) -> String {
        let has = |key: &String| self.nodes[0].owner(key.as_bytes()) == self.nodes[owner].address();
        let key = (0..).map(|n| format!("k{n}")).find(has).unwrap();
        self.nodes[0].run(&format!("INSERT INTO ks.t (k, v) VALUES ('{key}', 'v')"));
        key
    }

    /// Reads of either node while `act` runs.
    fn reads<T>(&self, act: impl FnOnce() -> T) -> (u64, T) {
        let count = || self.nodes.iter().map(FakeBackend::reads).sum::<u64>();
        let before = count();
        let result = act();
        (count() - before, result)
    }

    /// The reactor of this client has connections to both nodes.
    fn client(&self, version: Version) -> Client {
        let mut client = self.node.client(version);
        for node in &self.nodes {
            let asked = node.reads();
            let owned = |key: &String| self.nodes[0].owner(key.as_bytes()) == node.address();
            let key = (0..).map(|n| format!("warm{n}")).find(owned).unwrap();
            wait_until("the node is asked", || {
                let text = format!("SELECT v FROM ks.other WHERE k = '{key}'");
                client.raw().query(&text, Consistency::All).unwrap();
                node.reads() > asked
            });
        }
        client
    }

    /// Has the first node tell of the change.
    fn alter(&self) {
        self.nodes[0].see_type("ks.t", "v", Some(("frozen<address>", after())));
        let target = SchemaTarget::Type("address");
        let change = SchemaChange { change: "UPDATED", keyspace: "ks", target };
        self.nodes[0].announce(&Event::Schema(change));
    }
}

/// The type under which the one column of an answer's rows is told, and how many rows there are.
fn told(answer: &Envelope) -> (CqlType, usize) {
    let parsed = Response::parse(&answer.header, &answer.body).unwrap();
    let Response::Result(ResultBody::Rows(rows)) = parsed else { panic!("{parsed:?}") };
    let column = rows.metadata.columns.iter().next().unwrap();
    (CqlType::parse(column.type_bytes).unwrap(), rows.iter().count())
}

fn read(client: &mut Client, key: &str) -> CqlType {
    let text = format!("SELECT v FROM ks.t WHERE k = '{key}'");
    let params = QueryParams::new(Consistency::LocalQuorum);
    let (seen, rows) = told(&client.query_with(Flags::NONE, &text, params, &[]));
    assert_eq!(rows, 1);
    seen
}

fn execute(client: &mut Client, prepared: &Prepared, key: &str) -> CqlType {
    let mut values = ValuesBuilder::positional();
    values.push(Value::Bytes(key.as_bytes()));
    let params =
        QueryParams { values: values.view(), ..QueryParams::new(Consistency::LocalQuorum) };
    let result_metadata_id = prepared.result_metadata_id.as_deref();
    let execute = Execute { id: &prepared.id, result_metadata_id, params };
    let version = client.raw().version();
    let answer =
        client.raw().call(Flags::NONE, Opcode::Execute, |out| execute.encode(version, out));
    told(&answer.unwrap()).0
}

const POLICIES: [&str; 2] = ["ks.*=exclusive", "ks.*=max-staleness=1h"];

#[test]
fn no_row_is_served_under_types_that_only_another_node_says() {
    for policy in POLICIES {
        for version in [Version::V4, Version::V5] {
            let world = World::new([after(), before()], policy);
            let mut client = world.client(version);
            let [heard, lags] = [0, 1].map(|owner| world.key(owner));
            assert_eq!(read(&mut client, &lags), before());
            // Each prepares and executes for itself.
            for round in 0..4 {
                for (key, owners) in [(&heard, after()), (&lags, before())] {
                    for n in 0..3 {
                        let seen = read(&mut client, key);
                        assert_eq!(seen, owners, "{policy}, {version:?}: {key}, {round}, {n}");
                    }
                    let (reads, _) = world.reads(|| read(&mut client, key));
                    assert_eq!(reads, 0, "{policy}, {version:?}: {key} is cached, {round}");
                }
            }
            world.nodes[1].see_type("ks.t", "v", Some(("frozen<address>", after())));
            wait_until("all is cached", || {
                let read_both = || [&heard, &lags].map(|key| read(&mut client, key));
                world.reads(read_both) == (0, [after(), after()])
            });
        }
    }
}

/// The plan says `text`. A node that says otherwise has heard of another table of the name.
#[test]
fn no_row_is_cached_from_a_node_that_says_another_native_type() {
    let world = World::new([CqlType::Varchar, CqlType::Blob], "ks.*=exclusive");
    world.nodes[0].see_type("ks.t", "v", None);
    world.nodes[0].announce(&Event::Schema(SchemaChange {
        change: "UPDATED",
        keyspace: "ks",
        target: SchemaTarget::Table("t"),
    }));
    let mut client = world.client(Version::V5);
    let [heard, lags] = [0, 1].map(|owner| world.key(owner));
    wait_until("the schema is known", || {
        world.reads(|| read(&mut client, &heard)) == (0, CqlType::Varchar)
    });
    for _ in 0..4 {
        let (reads, seen) = world.reads(|| read(&mut client, &lags));
        assert!(reads > 0 && seen == CqlType::Blob, "{reads}, {seen:?}");
        assert_eq!(world.reads(|| read(&mut client, &heard)), (0, CqlType::Varchar));
    }
}

/// Clients that have prepared decode by what they know. A node that lags confirms that.
#[test]
fn an_answer_to_execute_has_the_types_of_its_row_whichever_node_has_confirmed_it() {
    for version in [Version::V4, Version::V5] {
        let world = World::new([before(), before()], "ks.*=exclusive");
        let mut client = world.client(version);
        let [heard, lags] = [0, 1].map(|owner| world.key(owner));
        let prepared = client.prepare("SELECT v FROM ks.t WHERE k = ?");
        wait_until("both are cached", || {
            let both = || [&heard, &lags].map(|key| execute(&mut client, &prepared, key));
            world.reads(both).0 == 0
        });
        world.alter();
        for n in 0..6 {
            assert_eq!(execute(&mut client, &prepared, &lags), before(), "{version:?}: {n}");
            for _ in 0..3 {
                let seen = execute(&mut client, &prepared, &heard);
                assert_eq!(seen, after(), "{version:?}: {n}");
            }
            assert_eq!(read(&mut client, &heard), after(), "{version:?}: {n}");
        }
    }
}
