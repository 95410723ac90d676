//! TLS towards clients and towards the database.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use afterglow::frontend::cql::Cluster;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Consistency;
use afterglow_loadgen::cql::load::{LoadOptions, load};
use afterglow_loadgen::cql::run::{RunOptions, Verify, Warm, run};
use afterglow_loadgen::cql::table::TableSpec;
use afterglow_loadgen::cql::{ConnectOptions, Connection, trusting};
use afterglow_loadgen::result::LoadShape;
use afterglow_loadgen::ycsb::Distribution;
use afterglow_testkit::fake_backend::FakeBackend;

use crate::client::{Client, wait_until};
use crate::database::{echo, scripted};
use crate::gate;
use crate::proxy::Proxy;

/// A front end that speaks TLS on both sides, before a database of that version.
fn secured(highest: Version, client_ca: Option<&str>) -> (FakeBackend, Proxy) {
    let fake = scripted(highest, echo);
    let database = gate::out_of_tls(fake.address(), gate::server(Some("ca.pem")));
    let ours = gate::client("ca.pem", Some("client"));
    let proxy = Proxy::secured(database, Some(gate::server(client_ca)), Some(ours));
    (fake, proxy)
}

/// Handshakes that failed for that reason.
fn failed(proxy: &Proxy, reason: &str) -> u64 {
    let text = proxy.front_end.front_end().config.metrics.render(Default::default());
    let name =
        format!("afterglow_tls_handshake_failures_total{{frontend=\"cql\",reason=\"{reason}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.expect("a sample").parse().expect("a number")
}

/// Asks over a client that has made the TLS handshake.
fn asks(client: &mut Client, text: &str) {
    assert_eq!(client.ask(text), text);
}

#[test]
fn clients_and_the_database_are_talked_to_over_tls() {
    for version in [Version::V4, Version::V5] {
        let (fake, proxy) = secured(version, None);
        let way = gate::into_tls(proxy.front_end.address(), gate::client("ca.pem", None));
        let mut client = Client::start(way, version);
        asks(&mut client, "SELECT v FROM ks.t");
        // More than a record, and more than what TLS takes at once.
        for length in [20_000, 300_000] {
            asks(&mut client, &format!("SELECT v FROM ks.t -- {}", "x".repeat(length)));
        }
        // Many at once, in both directions.
        let text = format!("SELECT v FROM ks.t -- {}", "y".repeat(500));
        let body = client.query_body(&text);
        let requests = client.encode_all(Opcode::Query, (0..300).map(|n| (n, &body[..])));
        client.stream.write_all(&requests).unwrap();
        (0..300).for_each(|_| assert_eq!(client.receive().header.opcode, Opcode::Result));
        assert!(fake.connections() > 0);
    }
}

#[test]
fn a_client_without_tls_is_turned_away_and_counted() {
    let (_fake, proxy) = secured(Version::V5, None);
    let mut plain = Client::connect(proxy.front_end.address(), Version::V5);
    plain.query(1, "SELECT v FROM ks.t");
    // What comes is an alert and the end, and no answer.
    let mut said = Vec::new();
    let _ = plain.stream.read_to_end(&mut said);
    assert!(said.first().is_none_or(|first| *first == 21), "{said:?}");
    assert_eq!((failed(&proxy, "plain"), failed(&proxy, "other")), (1, 0));
}

#[test]
fn only_clients_with_a_certificate_of_the_ca_are_let_in() {
    let (_fake, proxy) = secured(Version::V5, Some("ca.pem"));
    for identity in [None, Some("stranger")] {
        let tls = gate::client("ca.pem", identity);
        let way = gate::into_tls(proxy.front_end.address(), tls);
        let mut client = Client::connect(way, Version::V5);
        let options = client.encode(0, Opcode::Options, &[]);
        // The gate may have ended already.
        let _ = client.stream.write_all(&options);
        assert!(client.try_receive().is_none(), "{identity:?}");
    }
    wait_until("both are counted", || failed(&proxy, "certificate") == 2);
    let known = gate::client("ca.pem", Some("client"));
    let way = gate::into_tls(proxy.front_end.address(), known);
    asks(&mut Client::start(way, Version::V5), "SELECT v FROM ks.t");
}

#[test]
fn a_client_that_says_nothing_is_ended_and_holds_nobody_up() {
    let (_fake, proxy) = secured(Version::V5, None);
    let address = proxy.front_end.address();
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    // Of some, half a handshake comes.
    silent.iter().skip(10).for_each(|mut stream| stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap());
    let way = gate::into_tls(address, gate::client("ca.pem", None));
    asks(&mut Client::start(way, Version::V5), "SELECT v FROM ks.t");
    assert_eq!(failed(&proxy, "late"), 0, "the others are still waited for");
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
    }
    wait_until("all are counted", || failed(&proxy, "late") == 20);
}

#[test]
fn requests_that_come_with_the_last_message_of_the_handshake_are_answered() {
    let (_fake, proxy) = secured(Version::V5, None);
    for is_last in [false, true] {
        let mut stream = TcpStream::connect(proxy.front_end.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut tls = gate::client("ca.pem", None).session("127.0.0.1").unwrap();
        let (mut buffer, mut said) = ([0; 16 * 1024], Vec::new());
        while tls.is_handshaking() {
            let mut out = Vec::new();
            tls.seal(&mut out).unwrap();
            stream.write_all(&out).unwrap();
            let read = stream.read(&mut buffer).unwrap();
            assert!(tls.open(&buffer[..read], &mut said));
        }
        // OPTIONS, behind the last message.
        let mut out = vec![5, 0, 0, 7, Opcode::Options as u8, 0, 0, 0, 0];
        tls.seal(&mut out).unwrap();
        if is_last {
            let mut end = Vec::new();
            tls.close();
            tls.seal(&mut end).unwrap();
            out.extend(end);
        }
        stream.write_all(&out).unwrap();
        while said.len() < 9 {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "it is answered");
            tls.open(&buffer[..read], &mut said);
        }
        assert_eq!((said[3], said[4]), (7, Opcode::Supported as u8));
        // Who has said its last is let go.
        while is_last && stream.read(&mut buffer).unwrap() > 0 {}
    }
}

#[test]
fn bytes_that_are_no_handshake_end_their_connection_alone() {
    let (_fake, proxy) = secured(Version::V5, None);
    let address = proxy.front_end.address();
    for seed in 0..200_u32 {
        let mut stream = TcpStream::connect(address).unwrap();
        let noise = (0..seed * 7).map(|n| (n.wrapping_mul(2_654_435_761) >> 24 ^ seed) as u8);
        let bytes: Vec<u8> = [22, 3, 1, 0, seed as u8, 1].into_iter().chain(noise).collect();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let way = gate::into_tls(address, gate::client("ca.pem", None));
    asks(&mut Client::start(way, Version::V5), "SELECT v FROM ks.t");
}

#[test]
fn a_database_of_another_ca_or_without_tls_is_not_talked_to() {
    let fake = scripted(Version::V5, echo);
    let gated = gate::out_of_tls(fake.address(), gate::server(None));
    for (database, ca) in [(gated, "other-ca.pem"), (fake.address(), "ca.pem")] {
        let proxy = Proxy::secured(database, None, Some(gate::client(ca, None)));
        let mut client = Client::connect(proxy.front_end.address(), Version::V5);
        // It is answered when the wait for the database is over.
        assert_eq!(client.startup().header.opcode, Opcode::Error);
        assert_eq!(proxy.front_end.front_end().cluster(), Cluster::Unknown);
    }
    assert_eq!(fake.statements(), 0);
    // With the right one it is.
    let proxy = Proxy::secured(gated, None, Some(gate::client("ca.pem", None)));
    asks(&mut proxy.client(Version::V5), "SELECT v FROM ks.t");
}

/// The load client's options: it trusts that CA.
fn trusts(ca: &str, version: Version) -> ConnectOptions {
    let tls = Some(trusting(&gate::file(ca)).unwrap());
    ConnectOptions { version, tls, ..ConnectOptions::default() }
}

#[test]
fn the_load_client_writes_and_reads_over_tls() {
    const RECORDS: u64 = 60;
    // What is in flight is more than a record of TLS, and than the client and TLS take at once.
    let table = TableSpec {
        keyspace: "ycsb".into(),
        table: "usertable".into(),
        records: RECORDS,
        fields: 3,
        field_size: 20_000,
        zeros: 40,
        partition_rows: 0,
        newest_first: false,
    };
    for version in [Version::V4, Version::V5] {
        let (_fake, proxy) = secured(version, None);
        let hosts = vec![proxy.front_end.address().to_string()];
        let connect = trusts("ca.pem", version);
        let loads = LoadOptions {
            table: table.clone(),
            hosts: hosts.clone(),
            connect: connect.clone(),
            create: true,
            consistency: Consistency::One,
            threads: 1,
            connections: 2,
            in_flight: 16,
            attempts: 20,
        };
        assert_eq!(load(&loads, |_| ()).unwrap().records, RECORDS);
        let shape = LoadShape {
            table: table.clone(),
            distribution: Distribution::Sequential,
            hot_set: 0.2,
            read_ratio: 1.0,
            workload: None,
            threads: 1,
            connections: 2,
            in_flight: 16,
            rate: None,
            seed: 1,
        };
        let reads = RunOptions {
            label: "test".into(),
            scenario: "test".into(),
            load: shape,
            hosts,
            owned: false,
            connect,
            consistency: Consistency::One,
            reconnect: false,
            poisson: false,
            polls: false,
            warm: Warm::For(Duration::ZERO),
            duration: Duration::from_secs(60),
            operations: Some(4 * RECORDS),
            verify: Verify::All,
            watch: Vec::new(),
            metrics: None,
        };
        let result = run(&reads, |_| ()).unwrap();
        assert!(result.is_clean(), "{:?}", result.errors);
        assert_eq!((result.operations, result.verified), (4 * RECORDS, 4 * RECORDS));
    }
}

#[test]
fn the_load_client_says_why_it_has_no_tls_and_what_to_do() {
    for (file, cause) in [("gone.pem", "No such file"), ("server.key", "no certificate")] {
        let said = trusting(&gate::file(file)).unwrap_err().to_string();
        assert!(said.contains(cause) && said.contains("name a PEM file"), "{said}");
    }
    let (fake, ours) = secured(Version::V5, None);
    let elsewhere =
        Proxy::secured(fake.address(), Some(gate::server_with("elsewhere", None)), None);
    let plain = Proxy::before(fake.address());
    for (proxy, ca, cause, remedy) in [
        (&ours, "other-ca.pem", "has not signed", "name the CA that has"),
        (&elsewhere, "ca.pem", "does not name 127.0.0.1", "connect by a name that it has"),
        (&plain, "ca.pem", "speaks no TLS", "leave out --tls-ca"),
    ] {
        let address = proxy.front_end.address().to_string();
        let opened = Connection::open(&address, &trusts(ca, Version::V5));
        let said = opened.unwrap_err().to_string();
        assert!(said.contains(cause) && said.contains(remedy), "{said}");
        assert!(said.contains(&address), "{said}");
    }
}
