//! A database of several nodes: which of them a request is sent to, and what becomes of it when they come and go.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterglow::frontend::cql::{ControlState, Later, PassThrough, Request, Router};
use afterglow::reactor::Driver;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, Execute, QueryParams, StatementRef, ValuesBuilder, encode_batch,
};
use afterglow_cql::response::{
    ColumnSpec, ErrorBody, Event, MetadataOut, SchemaChange, SchemaTarget, encode_prepared,
    encode_schema_change,
};
use afterglow_cql::token::murmur3;

use crate::Proxy;
use crate::fake::{Ask, Client, Fake, TEXT, rows, text_of, text_set};

/// What its nodes say of each other.
#[derive(Default)]
struct Map {
    /// Port, host id, token and schema version of every node that is listed.
    nodes: Vec<Member>,
    /// Who listens to events.
    listeners: Vec<Arc<Ask>>,
    /// How often the versions of the schema were asked for.
    looks: usize,
    /// The next EXECUTE is kept here.
    keeps: bool,
    kept: Option<Arc<Ask>>,
}

#[derive(Clone)]
struct Member {
    port: u16,
    host: u8,
    token: i64,
    schema: u8,
}

/// Nodes, all on this machine, each at a port of its own.
struct Cluster {
    map: Arc<Mutex<Map>>,
    nodes: Vec<Fake>,
}

impl Cluster {
    /// Nodes whose tokens cut the ring into equal parts.
    fn start(count: usize) -> Self {
        let mut cluster = Self { map: Arc::default(), nodes: Vec::new() };
        for _ in 0..count {
            cluster.add();
        }
        let step = u64::MAX / count as u64;
        for (i, member) in cluster.map.lock().unwrap().nodes.iter_mut().enumerate() {
            member.token = (i64::MIN as u64).wrapping_add(step.wrapping_mul(i as u64 + 1)) as i64;
        }
        cluster
    }

    /// Starts another node and lists it, with a token that owns next to nothing.
    fn add(&mut self) {
        let (map, number) = (self.map.clone(), self.nodes.len());
        let fake = Fake::start(Version::V5, move |ask| answer(ask, &map, number));
        let (port, host) = (fake.address.port(), number as u8 + 1);
        self.nodes.push(fake);
        self.map.lock().unwrap().nodes.push(Member { port, host, token: i64::MIN + 1, schema: 7 });
    }

    fn proxy(&self) -> Proxy {
        let contacts: Vec<_> = self.nodes.iter().map(|node| node.address).collect();
        Proxy::with_contacts(&contacts, Driver::Auto, Arc::new(PassThrough))
    }

    /// Tells whoever listens that the nodes have changed.
    fn announce(&self) {
        let mut event = Vec::new();
        Event::Topology { change: "NEW_NODE", address: "127.0.0.1".parse().unwrap(), port: 9042 }
            .encode(&mut event);
        self.map.lock().unwrap().listeners.iter().for_each(|ask| ask.event(&event));
    }

    /// The node that has the token of a key.
    fn owner(&self, key: &str) -> String {
        let map = self.map.lock().unwrap();
        let token = murmur3(key.as_bytes());
        let mut nodes = map.nodes.clone();
        nodes.sort_by_key(|node| node.token);
        let owner = nodes.iter().find(|node| node.token >= token).unwrap_or(&nodes[0]);
        let at = self.nodes.iter().position(|node| node.address.port() == owner.port).unwrap();
        format!("node {at}")
    }
}

fn answer(ask: &Arc<Ask>, map: &Mutex<Map>, number: usize) -> bool {
    let mut map = map.lock().unwrap();
    let (text, version) = (ask.text.as_str(), ask.version());
    let result = |names: &[&str], cells: &[Vec<Vec<u8>>]| {
        let columns: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, TEXT)).collect();
        let cells: Vec<Vec<&[u8]>> =
            cells.iter().map(|row| row.iter().map(Vec::as_slice).collect()).collect();
        let cells: Vec<&[&[u8]]> = cells.iter().map(Vec::as_slice).collect();
        ask.reply(Opcode::Result, &rows(version, &columns, &cells));
        true
    };
    let tokens = |node: &Member| text_set(1, &[&node.token.to_string()]);
    let here = map.nodes.iter().find(|node| usize::from(node.host) == number + 1).cloned();
    let others = map.nodes.iter().filter(|node| usize::from(node.host) != number + 1);
    match ask.opcode() {
        Opcode::Register => {
            map.listeners.push(ask.clone());
            false
        }
        Opcode::Query if text.contains("tokens FROM system.local") => {
            let Some(node) = here else { return false };
            let row = vec![vec![node.host; 16], b"dc".to_vec(), b"r".to_vec(), tokens(&node)];
            result(&["host_id", "data_center", "rack", "tokens"], &[row])
        }
        Opcode::Query if text.contains("FROM system.peers_v2") => {
            let row = |node: &Member| {
                let (address, port) = (vec![127, 0, 0, 1], i32::from(node.port).to_be_bytes().to_vec());
                let (host, rack) = (vec![node.host; 16], b"r".to_vec());
                vec![address.clone(), address, port, host, b"dc".to_vec(), rack, tokens(node)]
            };
            let names = ["peer", "native_address", "native_port", "host_id", "data_center", "rack", "tokens"];
            result(&names, &others.map(row).collect::<Vec<_>>())
        }
        Opcode::Query if text.contains("schema_version FROM system.local") => {
            map.looks += 1;
            result(&["schema_version"], &[vec![vec![here.map_or(0, |node| node.schema); 16]]])
        }
        Opcode::Query if text.contains("schema_version FROM system.peers") => {
            let row = |node: &Member| {
                let (peer, told) = (vec![127, 0, 0, node.host], vec![127, 0, 0, 1]);
                vec![peer, told, vec![node.host; 16], vec![node.schema; 16]]
            };
            let names = ["peer", "rpc_address", "host_id", "schema_version"];
            result(&names, &others.map(row).collect::<Vec<_>>())
        }
        Opcode::Query if text.contains("system_schema.keyspaces") => {
            let replication = text_set(2, &["class", "SimpleStrategy", "replication_factor", "1"]);
            result(&["keyspace_name", "replication"], &[vec![b"ks".to_vec(), replication]])
        }
        Opcode::Query if text.contains("system_schema.tables") => {
            let row =
                vec![b"ks".to_vec(), b"t".to_vec(), vec![9; 16], text_set(1, &["compound"]), vec![0; 4]];
            result(&["keyspace_name", "table_name", "id", "flags", "default_time_to_live"], &[row])
        }
        Opcode::Query if text.contains("system_schema.columns") => {
            let column = |name: &str, kind: &str, position: i32| {
                let text = |text: &str| text.as_bytes().to_vec();
                let position = position.to_be_bytes().to_vec();
                vec![text("ks"), text("t"), text(name), text(kind), position, text("text")]
            };
            let names = ["keyspace_name", "table_name", "column_name", "kind", "position", "type"];
            result(&names, &[column("k", "partition_key", 0), column("v", "regular", -1)])
        }
        Opcode::Query if text.starts_with("ALTER") => {
            let change = SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
            let mut body = Vec::new();
            encode_schema_change(&change, &mut body);
            ask.reply(Opcode::Result, &body);
            true
        }
        Opcode::Prepare => {
            let column = ColumnSpec { keyspace: "ks", table: "t", name: "k", type_bytes: TEXT };
            let result = ColumnSpec { name: "v", ..column };
            let mut body = Vec::new();
            let metadata = MetadataOut::of_table(std::slice::from_ref(&result));
            encode_prepared(version, text.as_bytes(), Some(b"rm"), &[0], &[column], &metadata, &mut body);
            ask.reply(Opcode::Result, &body);
            true
        }
        Opcode::Execute if map.keeps => {
            map.keeps = false;
            map.kept = Some(ask.clone());
            true
        }
        Opcode::Execute | Opcode::Batch => {
            ask.text_row(&format!("node {number}"));
            true
        }
        Opcode::Query if text.contains("ks.t") => {
            ask.text_row(&format!("node {number}"));
            true
        }
        _ => false,
    }
}

const READ: &str = "SELECT v FROM ks.t WHERE k = ? LIMIT 9";

fn execute(client: &mut Client, key: &str) -> String {
    send_execute(client, key);
    text_of(&client.receive())
}

fn send_execute(client: &mut Client, key: &str) {
    let mut values = ValuesBuilder::positional();
    values.push(afterglow_cql::frame::notation::Value::Bytes(key.as_bytes()));
    let params = QueryParams { values: values.view(), ..QueryParams::new(Consistency::One) };
    let mut body = Vec::new();
    Execute { id: READ.as_bytes(), result_metadata_id: Some(b"rm"), params }
        .encode(client.version, &mut body);
    client.send(3, Opcode::Execute, &body);
}

fn batch(client: &mut Client, key: &str) -> String {
    let text = format!("UPDATE ks.t SET v = 'x' WHERE k = '{key}'");
    let empty = ValuesBuilder::positional();
    let statements = [BatchStatement { statement: StatementRef::Text(&text), values: empty.view() }];
    let mut body = Vec::new();
    let params = QueryParams::new(Consistency::One);
    encode_batch(client.version, BatchKind::Unlogged, &statements, &params, &mut body);
    client.send(3, Opcode::Batch, &body);
    text_of(&client.receive())
}

fn keys() -> impl Iterator<Item = String> {
    (0..12).map(|n| format!("key{n}"))
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
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
    {
        let mut map = cluster.map.lock().unwrap();
        map.nodes[2].token = map.nodes[1].token;
        map.nodes.remove(1);
    }
    cluster.announce();
    wait_for_owners(&cluster, &mut client);
    wait_until("nothing is left at the node that has gone", || cluster.nodes[1].live() == 0);
    assert!(keys().any(|key| cluster.owner(&key) == "node 2"));

    // The third one comes back at another address.
    cluster.add();
    {
        let mut map = cluster.map.lock().unwrap();
        map.nodes[1].port = map.nodes[2].port;
        map.nodes.remove(2);
    }
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
    // The change has come to one node and not to the others.
    cluster.map.lock().unwrap().nodes[1].schema = 8;
    client.query(1, "ALTER TABLE ks.t ADD w text");
    wait_until("it has been looked twice", || cluster.map.lock().unwrap().looks >= 2);
    client.stream.set_nonblocking(true).unwrap();
    let mut nothing = [0];
    let told = std::io::Read::read(&mut client.stream, &mut nothing);
    assert!(told.is_err(), "told too early");
    client.stream.set_nonblocking(false).unwrap();
    cluster.map.lock().unwrap().nodes.iter_mut().for_each(|node| node.schema = 8);
    assert_eq!(client.receive().header.opcode, Opcode::Result);
}

#[test]
fn a_schema_change_waits_for_no_node_that_was_down_before_we_came() {
    let cluster = Cluster::start(3);
    cluster.nodes[1].set_down(true);
    let proxy = cluster.proxy();
    let mut client = proxy.client(Version::V4);
    let looks = || cluster.map.lock().unwrap().looks;
    for change in 8..10 {
        let before = looks();
        // It comes to all but the one that is down.
        cluster.map.lock().unwrap().nodes.iter_mut().filter(|node| node.host != 2).for_each(|node| {
            node.schema = change;
        });
        client.query(1, "ALTER TABLE ks.t ADD w text");
        assert_eq!(client.receive().header.opcode, Opcode::Result);
        // There are 200 until it is given up, on a fast machine; the second change does not even ask.
        let most = if change == 8 { 100 } else { 4 };
        let looks = looks() - before;
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
    cluster.map.lock().unwrap().keeps = true;
    send_execute(&mut client, &key);
    wait_until("it was asked", || cluster.map.lock().unwrap().kept.is_some());
    cluster.map.lock().unwrap().nodes.truncate(1);
    cluster.announce();
    // All others are node 0's from when the proxy knows.
    let mut other = proxy.client(Version::V4);
    other.prepare(READ);
    wait_until("the node has left", || keys().all(|key| execute(&mut other, &key) == "node 0"));
    let kept = cluster.map.lock().unwrap().kept.take().unwrap();
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
    let fake = Fake::start(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Register {
            *listens.lock().unwrap() = Some(ask.clone());
        }
        if ask.text.starts_with("SELECT schema_version FROM system.local") {
            news.lock().unwrap().take().iter().for_each(|event| ask.event(event));
        }
        false
    });
    let router = Arc::new(Noting::default());
    let _proxy = Proxy::routed(fake.address, Driver::Auto, router.clone());
    let notes = |is: fn(&ControlState) -> bool| router.0.lock().unwrap().iter().any(is);
    wait_until("it is connected", || notes(|state| matches!(state, ControlState::Connected { .. })));
    let (mut status, mut schema) = (Vec::new(), Vec::new());
    Event::Status { change: "UP", address: "127.0.0.1".parse().unwrap(), port: 9042 }.encode(&mut status);
    *late.lock().unwrap() = Some(status);
    let change = SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    Event::Schema(change).encode(&mut schema);
    listener.lock().unwrap().as_ref().unwrap().event(&schema);
    wait_until("the version is noted", || notes(|state| matches!(state, ControlState::Current { .. })));
    assert!(late.lock().unwrap().is_none(), "the news of the node came in time");
}
