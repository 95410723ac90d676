//! What drivers see of a ring: nodes and their tokens, news of them, and one replica of a row.

use std::collections::BTreeMap;
use std::time::Duration;

use afterglow::frontend::cql::{RingSettings, RingView};
use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Opcode, Version};
use afterglow_cql::message::{self, Consistency, QueryParams, Register, Startup};
use afterglow_cql::response::{self, Event, Response, ResultBody};
use afterglow_ring::{Incarnation, Map, MemberId, Profile};
use afterglow_testkit::fake_backend::FakeBackend;
use uuid::Uuid;

use crate::bounds::metric;
use crate::client::{Client, error_of};
use crate::database::{echo, scripted};
use crate::proxy::Proxy;

/// Changes are told at once, and nobody is closed for them while a test runs.
const TOLD: RingSettings = RingSettings {
    show_replicas: false,
    settle: Duration::ZERO,
    settle_within: Duration::ZERO,
    together: Duration::ZERO,
    spread: Duration::ZERO,
    least_age: Duration::from_secs(3_600),
    linger: Duration::from_secs(3_600),
};
/// Connections are closed at once.
pub const CLOSED: RingSettings = RingSettings { least_age: Duration::ZERO, ..TOLD };

pub const OPEN: &str = r#"afterglow_client_connections_open{frontend="cql"}"#;
pub const MOVED: &str =
    r#"afterglow_client_connections_cut_total{frontend="cql",reason="ring_moved"}"#;

fn host(n: u64) -> Uuid {
    Uuid::from_u128(u128::from(n) << 64)
}

/// The map in which those own the shards, and the view of it that the first member has.
fn ring(owners: [u64; 8]) -> (Map, RingView) {
    let mut map = Map { version: 7, ..Map::empty(owners.len()) };
    for (shard, n) in owners.into_iter().enumerate() {
        let profile = Profile {
            cql_address: format!("127.0.0.{n}:{}", 9_000 + n),
            host_id: host(n).as_u128(),
            zone: format!("zone{n}"),
            ..Profile::default()
        };
        if map.entry(MemberId(n)).is_none() {
            map.put(MemberId(n), Incarnation(1), profile);
        }
        map.give(shard, Some(MemberId(n)));
    }
    let view = RingView::of(&map, host(1));
    (map, view)
}

/// Of those owners, as the first member sees it.
pub fn view(owners: [u64; 8]) -> Option<RingView> {
    Some(ring(owners).1)
}

type Row = BTreeMap<String, Vec<u8>>;

/// The rows of an answer, by the names of the columns.
fn rows_of(answer: &Envelope) -> Vec<Row> {
    let (_, message) = response::split(&answer.header, &answer.body).unwrap();
    let Ok(Response::Result(ResultBody::Rows(rows))) = Response::parse(&answer.header, message)
    else {
        panic!("no rows: {answer:?}");
    };
    rows.check().unwrap();
    let names = || -> Vec<String> {
        // Left out for an EXECUTE of [`ALL`] that asks for that.
        let known = ["keyspace_name", "durable_writes", "replication"].map(str::to_owned);
        let told = rows.metadata.columns.iter().map(|column| column.name.to_owned());
        if rows.metadata.is_skipped() { known.into() } else { told.collect() }
    };
    let row = |row: response::Row<'_>| {
        let cells = row.cells().map(|cell| cell.map(<[u8]>::to_vec));
        names().into_iter().zip(cells).filter_map(|(name, cell)| Some((name, cell?))).collect()
    };
    rows.iter().map(|cells| row(cells.unwrap())).collect()
}

fn read(client: &mut Client, text: &str) -> Vec<Row> {
    client.query(3, text);
    rows_of(&client.receive())
}

/// The texts of a set or a map.
fn texts(bytes: &[u8]) -> Vec<String> {
    let (mut rest, mut texts) = (&bytes[4..], Vec::new());
    while let Some((len, more)) = rest.split_first_chunk() {
        let (text, more) = more.split_at(u32::from_be_bytes(*len) as usize);
        texts.push(String::from_utf8(text.to_vec()).unwrap());
        rest = more;
    }
    texts
}

/// Has the client hear of events of those kinds.
pub fn register(client: &mut Client, kinds: &[&str]) {
    let mut body = Vec::new();
    Register::encode(kinds, &mut body);
    client.send(1, Opcode::Register, &body);
    assert_eq!(client.receive().header.opcode, Opcode::Ready);
}

/// A client of that name.
fn start_as(proxy: &Proxy, driver: &str) -> Client {
    let mut client = Client::connect(proxy.front_end.address(), Version::V4);
    let mut body = Vec::new();
    Startup::encode(&[("CQL_VERSION", "3.0.0"), ("DRIVER_NAME", driver)], &mut body);
    client.send(0, Opcode::Startup, &body);
    assert_eq!(client.receive().header.opcode, Opcode::Ready);
    client
}

/// The next event, in words.
fn event(client: &mut Client) -> String {
    let answer = client.receive();
    assert_eq!((answer.header.stream, answer.header.opcode), (-1, Opcode::Event));
    match Event::parse(&answer.body).unwrap() {
        Event::Status { change, address, port } | Event::Topology { change, address, port } => {
            format!("{change} {address}:{port}")
        }
        other => panic!("{other:?}"),
    }
}

/// Who owns a token by the rows that a driver reads: the first token at or after it.
fn owner(rows: &[Row], token: i64) -> Uuid {
    let tokens = rows.iter().flat_map(|row| {
        let host = Uuid::from_slice(&row["host_id"]).unwrap();
        let tokens = row.get("tokens").map_or(Vec::new(), |tokens| texts(tokens));
        tokens.into_iter().map(move |token| (token.parse::<i64>().unwrap(), host))
    });
    let mut tokens: Vec<_> = tokens.collect();
    tokens.sort_unstable();
    tokens.iter().find(|(end, _)| *end >= token).unwrap_or(&tokens[0]).1
}

#[test]
fn drivers_see_every_instance_with_the_tokens_of_its_shards() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::in_ring(fake.address(), TOLD);
    let mut client = proxy.client(Version::V5);
    let read_all = |client: &mut Client, peers| {
        let mut rows = read(client, "SELECT * FROM system.local WHERE key = 'local'");
        rows.extend(read(client, peers));
        rows
    };
    let alone = read_all(&mut client, "SELECT * FROM system.peers_v2");
    for owners in [[1, 1, 2, 3, 3, 2, 1, 2], [1, 2, 4, 4, 4, 2, 1, 1], [2, 2, 4, 4, 4, 2, 2, 2]] {
        let (map, view) = ring(owners);
        proxy.front_end.front_end().set_ring(Some(view));
        for peers in ["SELECT * FROM system.peers", "SELECT * FROM system.peers_v2"] {
            let rows = read_all(&mut client, peers);
            for n in 0..500_i64 {
                let token = n.wrapping_mul(0x1234_5678_9abc_def1);
                let expected = host(map.owner_of(token).unwrap().0);
                assert_eq!(owner(&rows, token), expected, "{owners:?} {token}");
            }
            assert_eq!(rows[0]["host_id"], host(1).as_bytes(), "this instance, with shards or not");
            for peer in &rows[1..] {
                let n = peer["peer"][3];
                assert_eq!(peer["rack"], format!("zone{n}").as_bytes());
                assert_eq!(peer["host_id"], host(n.into()).as_bytes());
                assert_eq!(peer["data_center"], rows[0]["data_center"]);
                assert_eq!(peer["schema_version"], rows[0]["schema_version"], "they agree");
                assert_eq!(peer["release_version"], rows[0]["release_version"]);
            }
        }
    }
    proxy.front_end.front_end().set_ring(None);
    assert_eq!(read_all(&mut client, "SELECT * FROM system.peers_v2"), alone);
}

#[test]
fn clients_that_registered_are_told_of_instances_that_came_and_went() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::in_ring(fake.address(), TOLD);
    let shared = proxy.front_end.front_end().clone();
    let mut both = proxy.client(Version::V5);
    let mut topology = proxy.client(Version::V3);
    let mut schema = proxy.client(Version::V4);
    register(&mut both, &["TOPOLOGY_CHANGE"]);
    register(&mut both, &["STATUS_CHANGE"]);
    register(&mut topology, &["TOPOLOGY_CHANGE", "SCHEMA_CHANGE"]);
    register(&mut schema, &["SCHEMA_CHANGE"]);
    shared.set_ring(view([1, 1, 2, 2, 1, 1, 2, 2]));
    assert_eq!(event(&mut both), "NEW_NODE 127.0.0.2:9002");
    assert_eq!(event(&mut both), "UP 127.0.0.2:9002");
    assert_eq!(event(&mut topology), "NEW_NODE 127.0.0.2:9002");
    // Tokens alone are no event.
    shared.set_ring(view([1, 2, 2, 2, 1, 1, 2, 2]));
    shared.set_ring(view([1, 1, 3, 3, 1, 1, 3, 3]));
    let told = [(); 4].map(|()| event(&mut both));
    let expected = ["DOWN 127.0.0.2:9002", "REMOVED_NODE 127.0.0.2:9002"];
    assert_eq!(told[..2], expected);
    assert_eq!(told[2..], ["NEW_NODE 127.0.0.3:9003", "UP 127.0.0.3:9003"]);
    assert_eq!(event(&mut topology), "REMOVED_NODE 127.0.0.2:9002");
    for client in [&mut both, &mut schema] {
        assert_eq!(client.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t", "nothing else came");
    }
}

#[test]
fn drivers_connect_anew_where_tokens_moved_between_instances_that_stay() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::in_ring(fake.address(), CLOSED);
    let shared = proxy.front_end.front_end().clone();
    let connect = || {
        let mut client = proxy.client(Version::V4);
        register(&mut client, &["SCHEMA_CHANGE"]);
        client
    };
    let start = |driver| {
        let mut client = start_as(&proxy, driver);
        register(&mut client, &["SCHEMA_CHANGE"]);
        client
    };
    let mut plain = proxy.client(Version::V4);
    let mut node = start("DataStax Node.js Driver for Apache Cassandra");
    let mut python = start("Apache Cassandra Python Driver");
    register(&mut python, &["STATUS_CHANGE"]);
    let mut first = connect();
    shared.set_ring(view([1, 1, 2, 2, 1, 1, 2, 2]));
    assert!(first.try_receive().is_none(), "it knew this instance alone");
    let told: Vec<_> = std::iter::from_fn(|| python.try_receive()).collect();
    let mut nobody = Vec::new();
    let address = "0.0.0.0".parse().unwrap();
    Event::Status { change: "UP", address, port: 0 }.encode(&mut nobody);
    assert_eq!(told.last().unwrap().body, nobody[..], "so that it uses its connection");
    let mut second = connect();
    shared.set_ring(view([1, 1, 2, 2, 1, 1, 2, 2]));
    assert_eq!(second.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t", "nothing has moved");
    shared.set_ring(view([1, 1, 2, 2, 1, 3, 2, 2]));
    let mut third = connect();
    assert!(second.try_receive().is_none());
    assert_eq!(third.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t", "it sees the new ones");
    shared.set_ring(view([1, 1, 2, 2, 2, 3, 2, 2]));
    assert!(third.try_receive().is_none());
    assert_eq!(metric(&proxy, MOVED), 4);
    for client in [&mut plain, &mut node] {
        assert_eq!(client.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t", "none learns from it");
    }
}

const ALL: &str = "SELECT * FROM system_schema.keyspaces";

#[test]
fn the_python_driver_sees_a_rack_change_with_the_tokens_and_no_other_driver_does() {
    let fake = scripted(Version::V4, echo);
    let proxy = Proxy::in_ring(fake.address(), TOLD);
    let shared = proxy.front_end.front_end().clone();
    let racks = |driver: &str| {
        let mut client = start_as(&proxy, driver);
        let rows = read(&mut client, "SELECT rack FROM system.peers");
        rows.iter().map(|row| String::from_utf8(row["rack"].clone()).unwrap()).collect::<Vec<_>>()
    };
    let zones = ["zone2", "zone3"];
    let mut view = view([1, 1, 2, 2, 3, 3, 2, 2]).unwrap();
    shared.set_ring(Some(view.clone()));
    let first = racks("Apache Cassandra Python Driver");
    assert_eq!(first[1..], zones[1..], "one is enough");
    assert_eq!(first, racks("DataStax Python Driver"), "as long as the map is the same");
    assert_eq!(racks("Apache Cassandra Java Driver"), zones);
    view.version += 1;
    view.nodes[0].tokens.clear();
    shared.set_ring(Some(view));
    assert_ne!(first, racks("Apache Cassandra Python Driver"));
    assert_eq!(racks("Apache Cassandra Java Driver"), zones);
}

#[test]
fn gocql_is_told_tokens_of_which_the_newest_owners_is_the_first() {
    let fake = scripted(Version::V4, echo);
    let proxy = Proxy::in_ring(fake.address(), TOLD);
    let (mut map, _) = ring([1, 2, 1, 2, 1, 2, 1, 2]);
    let mut client = start_as(&proxy, "github.com/apache/cassandra-gocql-driver/v2");
    let mut tokens = || {
        proxy.front_end.front_end().set_ring(Some(RingView::of(&map, host(1))));
        let row = read(&mut client, "SELECT tokens FROM system.local").remove(0);
        let mut tokens: Vec<i64> =
            texts(&row["tokens"]).iter().map(|token| token.parse().unwrap()).collect();
        tokens.sort_unstable();
        map.give(0, Some(MemberId(2)));
        map.give(0, Some(MemberId(1)));
        tokens
    };
    let (first, later) = (tokens(), tokens());
    assert_eq!(first[1..], later[1..]);
    assert_eq!(first[0], later[0] + 2, "two owners later");
    let mut other = proxy.client(Version::V4);
    let row = read(&mut other, "SELECT tokens FROM system.local").remove(0);
    assert!(texts(&row["tokens"]).contains(&map.last_token(0).to_string()));
}

#[test]
fn drivers_that_forget_nothing_see_an_instance_that_died_behind_those_that_own_its_shards() {
    let fake = scripted(Version::V4, echo);
    let proxy = Proxy::in_ring(fake.address(), TOLD);
    let (mut map, whole) = ring([1, 2, 3, 2, 1, 2, 3, 2]);
    for shard in [2, 6] {
        map.give(shard, Some(MemberId(1)));
    }
    map.members.retain(|member| member.identity.id != MemberId(3));
    let shared = proxy.front_end.front_end();
    shared.set_ring(Some(whole));
    shared.set_ring(Some(RingView::of(&map, host(1))));
    let rows = |driver| {
        let mut client = start_as(&proxy, driver);
        let mut rows = read(&mut client, "SELECT * FROM system.local");
        rows.extend(read(&mut client, "SELECT * FROM system.peers"));
        rows
    };
    for driver in ["Apache GoCQL Driver", "DataStax Node.js Driver for Apache Cassandra"] {
        let rows = rows(driver);
        let hosts: Vec<_> = rows.iter().map(|row| row["host_id"].clone()).collect();
        assert_eq!(hosts, [1, 2, 3].map(|n| host(n).as_bytes().to_vec()), "{driver}");
        for n in 0..500_i64 {
            let token = n.wrapping_mul(0x1234_5678_9abc_def1);
            let expected = host(map.owner_of(token).unwrap().0);
            assert_eq!(owner(&rows, token), expected, "{driver} comes now: {token}");
        }
    }
    assert_eq!(rows("Apache Cassandra Java Driver").len(), 2);
}

/// The replication options of a keyspace, in turn keys and values.
fn replication(answer: &Envelope, keyspace: Option<&str>) -> Vec<String> {
    let rows = rows_of(answer);
    let is_meant =
        |row: &&Row| keyspace.is_none_or(|keyspace| row["keyspace_name"] == keyspace.as_bytes());
    texts(&rows.iter().find(is_meant).unwrap()["replication"])
}

fn execute(client: &mut Client, text: &str) -> Envelope {
    let answer = client.prepare(text);
    let (_, message) = response::split(&answer.header, &answer.body).unwrap();
    let Ok(Response::Result(ResultBody::Prepared(prepared))) =
        Response::parse(&answer.header, message)
    else {
        panic!("not prepared: {:?}", error_of(&answer));
    };
    let params = QueryParams { skip_metadata: true, ..QueryParams::new(Consistency::One) };
    let (id, result_metadata_id) = (prepared.id, prepared.result_metadata_id);
    let mut body = Vec::new();
    message::Execute { id, result_metadata_id, params }.encode(client.version, &mut body);
    client.send(5, Opcode::Execute, &body);
    client.receive()
}

fn replicated() -> FakeBackend {
    let fake = scripted(Version::V5, echo);
    fake.run(
        "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}",
    );
    fake
}

#[test]
fn drivers_of_a_ring_see_one_replica_and_applications_what_the_database_has() {
    const ONE: &str = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'ks'";
    let fake = replicated();
    let proxy = Proxy::in_ring(fake.address(), TOLD);
    let mut direct = Client::start(fake.address(), Version::V4);
    direct.query(1, ONE);
    let of_database = replication(&direct.receive(), None);
    assert_eq!(of_database.last().unwrap(), "3");
    let of_ring: Vec<String> = of_database.iter().map(|text| text.replace('3', "1")).collect();
    let shown = |client: &mut Client| {
        client.query(3, ALL);
        let all = replication(&client.receive(), Some("ks"));
        client.query(3, ONE);
        let one = replication(&client.receive(), None);
        let executed = replication(&execute(client, ALL), Some("ks"));
        assert!(all == one && all == executed, "{all:?} {one:?} {executed:?}");
        client.query(3, "SELECT nothing FROM system_schema.keyspaces");
        assert_eq!(error_of(&client.receive()).0, ErrorCode::Invalid, "the database's own words");
        client.query(3, "SELECT keyspace_name FROM system_schema.keyspaces");
        assert!(rows_of(&client.receive()).iter().any(|row| row["keyspace_name"] == b"ks"));
        all
    };
    for version in [Version::V3, Version::V4, Version::V5] {
        proxy.front_end.front_end().set_ring(None);
        let mut driver = proxy.client(version);
        register(&mut driver, &["SCHEMA_CHANGE"]);
        assert_eq!(shown(&mut driver), of_database, "there is no ring");
        proxy.front_end.front_end().set_ring(view([1, 2, 1, 2, 1, 2, 1, 2]));
        assert_eq!(shown(&mut driver), of_ring, "{version}");
        let mut later = proxy.client(version);
        read(&mut later, "SELECT * FROM system.peers");
        let other = shown(&mut later);
        assert_ne!(other, of_ring, "so that Java takes the tokens it has read");
        assert_eq!(other.last().unwrap().parse(), Ok(1));
        assert_eq!(shown(&mut proxy.client(version)), of_database, "an application");
    }
    let proxy = Proxy::in_ring(fake.address(), RingSettings { show_replicas: true, ..TOLD });
    proxy.front_end.front_end().set_ring(view([1, 2, 1, 2, 1, 2, 1, 2]));
    let mut driver = proxy.client(Version::V4);
    register(&mut driver, &["SCHEMA_CHANGE"]);
    assert_eq!(shown(&mut driver), of_database, "as it was configured");
}
