//! A database of several nodes: which node a request is sent to, and what happens to it when nodes
//! come and go.

use std::sync::{Arc, Mutex};

use afterglow::frontend::cql::{ControlState, Later, PassThrough, Request, Router};
use afterglow::reactor::Driver;
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, Execute, QueryParams, StatementRef, ValuesBuilder,
    encode_batch,
};
use afterglow_cql::response::{ErrorBody, Event, SchemaChange, SchemaTarget};
use afterglow_testkit::fake_backend::{Ask, FakeBackend};

use crate::bounds::metric;
use crate::client::{Client, error_of, text_of, wait_until};
use crate::database::{a_keyspace, prepares, scripted};
use crate::proxy::Proxy;

/// What all nodes know of the requests.
#[derive(Default)]
struct Seen {
    /// How often the versions of the schema were asked for.
    looks: usize,
    /// So many of the next EXECUTEs are kept.
    keeps: usize,
    kept: Vec<Arc<Ask>>,
    /// Which node was asked for each EXECUTE.
    executed: Vec<usize>,
}

/// Nodes with a table `ks.t`, all on this machine, each at a port of its own.
struct Cluster {
    seen: Arc<Mutex<Seen>>,
    nodes: Vec<FakeBackend>,
}

impl Cluster {
    /// Nodes whose tokens cut the ring into equal parts.
    fn start(count: usize) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let first = seen.clone();
        let mut cluster = Self {
            seen,
            nodes: vec![scripted(Version::V5, move |ask| names_itself(ask, &first, 0))],
        };
        cluster.nodes[0].run(&a_keyspace("ks"));
        cluster.nodes[0].run("CREATE TABLE ks.t (k text PRIMARY KEY, v text)");
        (1..count).for_each(|_| cluster.add());
        let step = u64::MAX / count as u64;
        for (i, node) in (1..).zip(&cluster.nodes) {
            node.set_token((i64::MIN as u64).wrapping_add(step.wrapping_mul(i)) as i64);
        }
        cluster
    }

    /// Starts another node and lists it, with a token that owns next to nothing.
    fn add(&mut self) {
        let (seen, number) = (self.seen.clone(), self.nodes.len());
        let node =
            self.nodes[0].join_scripted(move |ask| names_itself(ask, &seen, number)).unwrap();
        node.set_token(i64::MIN + 1);
        self.nodes.push(node);
    }

    fn proxy(&self) -> Proxy {
        let contacts: Vec<_> = self.nodes.iter().map(FakeBackend::address).collect();
        Proxy::with_contacts(&contacts, Driver::Auto, Arc::new(PassThrough))
    }

    /// Tells whoever listens that the nodes have changed.
    fn announce(&self) {
        let address = "127.0.0.1".parse().unwrap();
        let event = Event::Topology { change: "NEW_NODE", address, port: 9042 };
        self.nodes.iter().for_each(|node| node.announce(&event));
    }

    /// The node that has the token of a key.
    fn owner(&self, key: &str) -> String {
        let owner = self.nodes[0].owner(key.as_bytes());
        let at = self.nodes.iter().position(|node| node.address() == owner).unwrap();
        format!("node {at}")
    }

    /// Of the next EXECUTEs so many are not answered.
    fn keep(&self, keeps: usize) {
        let mut seen = self.seen.lock().unwrap();
        *seen = Seen { keeps, ..Seen::default() };
    }

    /// The nodes that have been asked since for an EXECUTE, once they are so many.
    fn executed(&self, count: usize) -> Vec<usize> {
        let executed = || self.seen.lock().unwrap().executed.clone();
        wait_until("they are asked", || executed().len() >= count);
        executed()
    }

    fn looks(&self) -> usize {
        self.seen.lock().unwrap().looks
    }
}

/// Answers what is about `ks.t` with the name of the node.
fn names_itself(ask: &Arc<Ask>, seen: &Mutex<Seen>, number: usize) -> bool {
    let mut seen = seen.lock().unwrap();
    let is_query = ask.opcode() == Opcode::Query;
    if is_query && ask.text.contains("schema_version FROM system.local") {
        seen.looks += 1;
    }
    if ask.opcode() == Opcode::Execute {
        seen.executed.push(number);
    }
    match ask.opcode() {
        Opcode::Prepare => return prepares(ask, &["k"]),
        Opcode::Execute if seen.keeps > 0 => {
            seen.keeps -= 1;
            seen.kept.push(ask.clone());
        }
        Opcode::Execute | Opcode::Batch => ask.text_row(&format!("node {number}")),
        Opcode::Query if ask.text.contains("ks.t") && !ask.text.starts_with("ALTER") => {
            ask.text_row(&format!("node {number}"));
        }
        _ => return false,
    }
    true
}

const READ: &str = "SELECT v FROM ks.t WHERE k = ? LIMIT 9";
const WRITE: &str = "INSERT INTO ks.t (k, v) VALUES (?, 'x')";

fn execute(client: &mut Client, key: &str) -> String {
    send_execute(client, READ, key);
    text_of(&client.receive())
}

fn send_execute(client: &mut Client, statement: &str, key: &str) {
    let mut values = ValuesBuilder::positional();
    values.push(afterglow_cql::frame::notation::Value::Bytes(key.as_bytes()));
    let params = QueryParams { values: values.view(), ..QueryParams::new(Consistency::One) };
    let mut body = Vec::new();
    Execute { id: statement.as_bytes(), result_metadata_id: Some(b"rm"), params }
        .encode(client.version, &mut body);
    client.send(3, Opcode::Execute, &body);
}

fn batch(client: &mut Client, key: &str) -> String {
    let text = format!("UPDATE ks.t SET v = 'x' WHERE k = '{key}'");
    let empty = ValuesBuilder::positional();
    let statements =
        [BatchStatement { statement: StatementRef::Text(&text), values: empty.view() }];
    let mut body = Vec::new();
    let params = QueryParams::new(Consistency::One);
    encode_batch(client.version, BatchKind::Unlogged, &statements, &params, &mut body);
    client.send(3, Opcode::Batch, &body);
    text_of(&client.receive())
}

fn keys() -> impl Iterator<Item = String> {
    (0..12).map(|n| format!("key{n}"))
}

/// Until there is a connection to every owner, requests go to nodes that are connected to.
fn wait_for_owners(cluster: &Cluster, client: &mut Client) {
    wait_until("every key is read at its owner", || {
        keys().all(|key| execute(client, &key) == cluster.owner(&key))
    });
}

#[test]
fn requests_go_to_the_node_that_has_the_row() {
    let cluster = Cluster::start(3);
    let proxy = cluster.proxy();
    for &version in Version::ALL {
        let mut client = proxy.client(version);
        client.prepare(READ);
        // What v3 does not say of a prepared statement its plan does, if it has one.
        if version > Version::V3 {
            wait_for_owners(&cluster, &mut client);
        }
        let mut owners: Vec<_> = keys().map(|key| cluster.owner(&key)).collect();
        for key in keys() {
            let read = format!("SELECT v FROM ks.t WHERE k = '{key}'");
            let write = format!("INSERT INTO ks.t (k, v) VALUES ('{key}', 'x')");
            wait_until("there is a connection", || client.ask(&read) == cluster.owner(&key));
            assert_eq!(client.ask(&write), cluster.owner(&key), "{version} {write}");
            assert_eq!(batch(&mut client, &key), cluster.owner(&key), "{version} batch of {key}");
        }
        owners.sort();
        owners.dedup();
        assert_eq!(owners.len(), 3, "the keys are spread");
        // Without a key any will do, in turn.
        let mut any: Vec<_> = (0..3).map(|_| client.ask("SELECT v FROM ks.t")).collect();
        any.sort();
        assert_eq!(any, owners);
    }
}

#[test]
fn nodes_join_leave_and_move() {
    let mut cluster = Cluster::start(2);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    client.prepare(READ);
    wait_for_owners(&cluster, &mut client);

    // A third one takes over the ring of the second, which leaves.
    cluster.add();
    cluster.nodes[2].set_token(cluster.nodes[1].token());
    cluster.nodes[1].leave();
    cluster.announce();
    wait_for_owners(&cluster, &mut client);
    wait_until("nothing is left at the node that has gone", || cluster.nodes[1].live() == 0);
    assert!(keys().any(|key| cluster.owner(&key) == "node 2"));

    // The third one comes back at another address.
    cluster.add();
    cluster.nodes[3].stand_for(&cluster.nodes[2]);
    cluster.announce();
    wait_for_owners(&cluster, &mut client);
    wait_until("nothing is left at the old address", || cluster.nodes[2].live() == 0);
    assert!(keys().any(|key| cluster.owner(&key) == "node 3"));
}

#[test]
fn while_a_node_is_down_the_others_answer_and_it_is_used_again_once_it_is_back() {
    let cluster = Cluster::start(3);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V5);
    client.prepare(READ);
    wait_for_owners(&cluster, &mut client);
    // The first is also the one that the control connection is made to.
    for down in [2, 0] {
        cluster.nodes[down].set_down(true);
        let lost = format!("node {down}");
        // Whatever was not under way when it went down is answered.
        wait_until("the loss is known", || cluster.nodes[down].live() == 0);
        for key in keys().chain(keys()) {
            assert_ne!(execute(&mut client, &key), lost);
        }
        cluster.nodes[down].set_down(false);
        wait_for_owners(&cluster, &mut client);
    }
}

#[test]
fn a_read_whose_node_dies_is_sent_to_another_one_once_and_a_write_to_none() {
    let cluster = Cluster::start(3);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    client.prepare(READ);
    client.prepare(WRITE);
    let repeated = || metric(&proxy, r#"afterglow_repeated_reads_total{frontend="cql"}"#);
    let back = |client: &mut Client| {
        cluster.nodes.iter().for_each(|node| node.set_down(false));
        wait_for_owners(&cluster, client);
    };
    for key in keys() {
        back(&mut client);
        // A read that waits for a node to come back may be sent again too.
        let before = repeated();
        cluster.keep(1);
        send_execute(&mut client, READ, &key);
        let asked = cluster.executed(1)[0];
        cluster.nodes[asked].set_down(true);
        let answer = text_of(&client.receive());
        let executed = cluster.executed(2);
        assert_eq!((executed.len(), executed[0]), (2, asked), "{executed:?}");
        assert_eq!(answer, format!("node {}", executed[1]));
        assert_ne!(executed[1], asked, "it is sent to another one");
        assert_eq!(repeated(), before + 1);
    }

    // The second one dies too.
    back(&mut client);
    let before = repeated();
    cluster.keep(2);
    send_execute(&mut client, READ, "key1");
    for asked in 1..=2 {
        let node = cluster.executed(asked)[asked - 1];
        cluster.nodes[node].set_down(true);
    }
    let (code, text) = error_of(&client.receive());
    assert_eq!((code, cluster.executed(2).len()), (ErrorCode::Server, 2), "{text}");
    assert_eq!(repeated(), before + 1);

    back(&mut client);
    let before = repeated();
    cluster.keep(1);
    send_execute(&mut client, WRITE, "key1");
    let asked = cluster.executed(1);
    cluster.nodes[asked[0]].set_down(true);
    let (code, text) = error_of(&client.receive());
    assert_eq!((code, cluster.executed(1)), (ErrorCode::Server, asked), "{text}");
    assert_eq!(repeated(), before);
}

#[test]
fn any_contact_point_will_do() {
    let cluster = Cluster::start(3);
    cluster.nodes[0].set_down(true);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    client.prepare(READ);
    let reachable = |key: &String| cluster.owner(key) != "node 0";
    wait_until("every key is read at its owner", || {
        keys().filter(reachable).all(|key| execute(&mut client, &key) == cluster.owner(&key))
    });
}

#[test]
fn a_schema_change_is_told_when_all_nodes_have_it() {
    let cluster = Cluster::start(3);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    // The change comes to all nodes but one.
    cluster.nodes[1].keep_schema_version(true);
    client.query(1, "ALTER TABLE ks.t ADD w text");
    wait_until("it has been looked twice", || cluster.looks() >= 2);
    client.stream.set_nonblocking(true).unwrap();
    let mut nothing = [0];
    let told = std::io::Read::read(&mut client.stream, &mut nothing);
    assert!(told.is_err(), "told too early");
    client.stream.set_nonblocking(false).unwrap();
    cluster.nodes[1].keep_schema_version(false);
    assert_eq!(client.receive().header.opcode, Opcode::Result);
}

#[test]
fn a_schema_change_waits_for_no_node_that_was_down_before_we_came() {
    let cluster = Cluster::start(3);
    cluster.nodes[1].set_down(true);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    // Changes come to all but the one that is down.
    cluster.nodes[1].keep_schema_version(true);
    for column in ["w", "x"] {
        let before = cluster.looks();
        client.query(1, &format!("ALTER TABLE ks.t ADD {column} text"));
        assert_eq!(client.receive().header.opcode, Opcode::Result);
        // There are 200 until it is given up, on a fast machine; the second change does not even
        // ask.
        let most = if column == "w" { 100 } else { 4 };
        let looks = cluster.looks() - before;
        assert!((1..most).contains(&looks), "{looks} looks");
    }
}

#[test]
fn a_node_that_leaves_still_answers_what_it_was_asked_also_in_two_steps() {
    let cluster = Cluster::start(2);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    client.prepare(READ);
    wait_for_owners(&cluster, &mut client);
    let key = keys().find(|key| cluster.owner(key) == "node 1").unwrap();
    cluster.seen.lock().unwrap().keeps = 1;
    send_execute(&mut client, READ, &key);
    wait_until("it was asked", || !cluster.seen.lock().unwrap().kept.is_empty());
    cluster.nodes[1].leave();
    cluster.announce();
    // All others are node 0's from when the proxy knows.
    let mut other = proxy.client(Version::V4);
    other.prepare(READ);
    wait_until("the node has left", || keys().all(|key| execute(&mut other, &key) == "node 0"));
    let kept = cluster.seen.lock().unwrap().kept.pop().unwrap();
    kept.error(&ErrorBody::unprepared("forgotten", READ.as_bytes()));
    assert_eq!(text_of(&client.receive()), "node 1");
    wait_until("nothing is left there", || cluster.nodes[1].live() == 0);
}

/// Notes what the control connection is up to.
#[derive(Default)]
struct Noting(Mutex<Vec<ControlState>>);

impl Router for Noting {
    fn route(&self, request: Request) -> Option<Later> {
        PassThrough.route(request)
    }

    fn control(&self, state: ControlState) {
        self.0.lock().unwrap().push(state);
    }
}

#[test]
fn a_schemas_version_is_noted_although_news_of_nodes_came_before_it_was_shown() {
    let (listener, late) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None::<Vec<u8>>)));
    let (listens, news) = (listener.clone(), late.clone());
    let fake = scripted(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Register {
            *listens.lock().unwrap() = Some(ask.clone());
        }
        if ask.text.starts_with("SELECT schema_version FROM system.local") {
            news.lock().unwrap().take().iter().for_each(|event| ask.event(event));
        }
        false
    });
    let router = Arc::new(Noting::default());
    let _proxy = Proxy::routed(fake.address(), Driver::Auto, router.clone());
    let notes = |is: fn(&ControlState) -> bool| router.0.lock().unwrap().iter().any(is);
    wait_until("it is connected", || {
        notes(|state| matches!(state, ControlState::Connected { .. }))
    });
    let (mut status, mut schema) = (Vec::new(), Vec::new());
    Event::Status { change: "UP", address: "127.0.0.1".parse().unwrap(), port: 9042 }
        .encode(&mut status);
    *late.lock().unwrap() = Some(status);
    let change =
        SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    Event::Schema(change).encode(&mut schema);
    listener.lock().unwrap().as_ref().unwrap().event(&schema);
    wait_until("the version is noted", || {
        notes(|state| matches!(state, ControlState::Current { .. }))
    });
    assert!(late.lock().unwrap().is_none(), "the news of the node came in time");
}

#[test]
fn a_data_centre_is_told_before_the_nodes_of_it_are_asked_for() {
    let router = Arc::new(Noting::default());
    let (told, first) = (router.clone(), Arc::new(Mutex::new(None)));
    let seen = first.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.text.starts_with("SELECT host_id, data_center, rack, tokens FROM system.local") {
            let notes = told.0.lock().unwrap();
            let found = notes.iter().any(|state| matches!(state, ControlState::Found { .. }));
            seen.lock().unwrap().get_or_insert(found);
        }
        false
    });
    let _proxy = Proxy::routed(fake.address(), Driver::Auto, router.clone());
    wait_until("it is connected", || {
        let notes = router.0.lock().unwrap();
        notes.iter().any(|state| matches!(state, ControlState::Connected { .. }))
    });
    assert_eq!(*first.lock().unwrap(), Some(true));
}
