//! Tests of the system tables.

use std::net::{IpAddr, Ipv4Addr};

use uuid::Uuid;

use super::*;
use crate::plan::{Plan, SchemaView, TableSchema, analyse};
use crate::statement::parse;

struct NoSchema;

impl SchemaView for NoSchema {
    fn table(&self, _: &str, _: &str) -> Option<std::sync::Arc<TableSchema>> {
        None
    }
}

const BACKEND: [u8; 4] = [10, 0, 0, 1];
const PROXY: [u8; 4] = [192, 0, 2, 7];
const HOST: Uuid = Uuid::from_u128(0x1111);

fn table(which: SystemTable, release: &str) -> Option<Table> {
    Some(Table { columns: default_columns(which, release)?, rows: Vec::new() })
}

fn local(release: &str) -> Table {
    let mut table = table(SystemTable::Local, release).unwrap();
    let cell = |name: &str| -> Option<Vec<u8>> {
        match name {
            "key" => Some(b"local".to_vec()),
            "broadcast_address" | "listen_address" | "rpc_address" => Some(BACKEND.to_vec()),
            "rpc_port" => Some(9042_i32.to_be_bytes().to_vec()),
            "cluster_name" => Some(b"Test \"C\"".to_vec()),
            "host_id" => Some(HOST.as_bytes().to_vec()),
            "tokens" => Some(b"\0\0\0\x01\0\0\0\x02-5".to_vec()),
            "release_version" => Some(release.as_bytes().to_vec()),
            _ => None,
        }
    };
    table.rows = vec![table.columns.iter().map(|column| cell(&column.name)).collect()];
    table
}

fn proxy(last: u8, host: Option<Uuid>, tokens: Option<Vec<String>>) -> Proxy {
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    Proxy { address, port: 9043, host_id: host, tokens, rack: None }
}

fn tables(release: &str, others: &[Peer]) -> SystemTables {
    let peers = table(SystemTable::Peers, release).unwrap();
    SystemTables::new(
        local(release),
        peers,
        table(SystemTable::PeersV2, release),
        &proxy(7, None, None),
        others,
    )
}

fn peer(last: u8) -> Peer {
    Peer {
        proxy: Proxy {
            rack: Some("r1".into()),
            ..proxy(
                last,
                Some(Uuid::from_u128(u128::from(last))),
                Some(vec!["9".into(), "-3".into(), "9".into()]),
            )
        },
        data_center: "dc1".into(),
        release_version: "5.0.5".into(),
        schema_version: Uuid::from_u128(99),
    }
}

fn ask_bound(
    tables: &SystemTables,
    text: &str,
    values: &[&'static [u8]],
) -> Result<SystemRows, SystemError> {
    let Plan::SystemRead(query) = analyse(&parse(text), &NoSchema, None) else { panic!("{text}") };
    query.evaluate(tables, |marker| values.get(usize::from(marker.index)).copied())
}

fn ask(text: &str) -> Result<SystemRows, SystemError> {
    ask_bound(&tables("5.0.5", &[peer(8), peer(9)]), text, &[])
}

#[track_caller]
fn invalid(text: &str, message: &str) {
    assert_eq!(ask(text), Err(SystemError::Invalid(message.to_owned())), "{text}");
}

fn names(rows: &SystemRows) -> Vec<&str> {
    rows.columns.iter().map(|column| column.name.as_str()).collect()
}

#[test]
fn every_address_is_the_proxys_and_the_rest_is_the_backends() {
    let rows = ask(
        "SELECT broadcast_address, listen_address, rpc_address, rpc_port, host_id, tokens FROM system.local",
    )
    .unwrap();
    let port = 9043_i32.to_be_bytes();
    let expected = [&PROXY[..], &PROXY, &PROXY, &port, HOST.as_bytes(), b"\0\0\0\x01\0\0\0\x02-5"];
    assert_eq!(rows.rows, [expected.map(|cell| Some(cell.to_vec()))]);
    let all = ask("SELECT * FROM system.local WHERE key = 'local'").unwrap();
    assert_eq!(all.columns.len(), 20);
    assert!(!all.rows.iter().flatten().flatten().any(|cell| cell == &BACKEND));
}

#[test]
fn the_proxys_own_identity_replaces_the_backends() {
    let own = Uuid::from_u128(5);
    let peers = table(SystemTable::Peers, "5.0.5").unwrap();
    let tables = SystemTables::new(
        local("5.0.5"),
        peers,
        None,
        &Proxy { rack: Some("r7".into()), ..proxy(7, Some(own), Some(vec!["1".into()])) },
        &[],
    );
    let rows = ask_bound(&tables, "SELECT host_id, tokens, rack FROM system.local", &[]).unwrap();
    let cells = [own.as_bytes(), &b"\0\0\0\x01\0\0\0\x011"[..], b"r7"];
    assert_eq!(rows.rows, [cells.map(|cell| Some(cell.to_vec()))]);
}

#[test]
fn a_single_proxy_has_no_peers() {
    let tables = tables("4.1.9", &[]);
    for name in ["peers", "peers_v2"] {
        let rows = ask_bound(&tables, &format!("SELECT * FROM system.{name}"), &[]).unwrap();
        assert!(rows.rows.is_empty() && !rows.columns.is_empty(), "{name}");
    }
}

#[test]
fn other_proxies_are_peers_and_found_by_key() {
    let rows = ask("SELECT peer, native_port, data_center, host_id, tokens FROM system.peers_v2 WHERE peer = '192.0.2.9'").unwrap();
    let host = Uuid::from_u128(9);
    let cells = [
        &[192, 0, 2, 9][..],
        &9043_i32.to_be_bytes(),
        b"dc1",
        host.as_bytes(),
        b"\0\0\0\x02\0\0\0\x02-3\0\0\0\x019",
    ];
    assert_eq!(rows.rows, [cells.map(|cell| Some(cell.to_vec()))]);
    assert_eq!(
        ask("SELECT peer FROM system.peers WHERE peer IN ('192.0.2.8', '192.0.2.9')")
            .unwrap()
            .rows
            .len(),
        2
    );
    assert_eq!(ask("SELECT peer FROM system.peers WHERE peer = '10.0.0.1'").unwrap().rows.len(), 0);
    assert_eq!(ask("SELECT peer FROM system.peers LIMIT 1").unwrap().rows.len(), 1);
    assert_eq!(ask("SELECT DISTINCT peer FROM system.peers_v2").unwrap().rows.len(), 2);
    assert_eq!(
        ask("SELECT peer FROM system.peers WHERE rack = 'r1' ALLOW FILTERING").unwrap().rows.len(),
        2
    );
}

#[test]
fn bound_values_are_compared() {
    let tables = tables("5.0.5", &[peer(8)]);
    let text = "SELECT peer FROM system.peers_v2 WHERE peer = :address AND peer_port = :port";
    let count =
        |values: &[&'static [u8]]| ask_bound(&tables, text, values).map(|rows| rows.rows.len());
    assert_eq!(count(&[&[192, 0, 2, 8], &[0, 0, 0x23, 0x53]]), Ok(1), "its own port");
    assert_eq!(count(&[&[192, 0, 2, 8], &[0, 0, 0, 1]]), Ok(0));
    let null = SystemError::Invalid("Invalid null value in condition for column peer_port".into());
    assert_eq!(count(&[&[192, 0, 2, 8]]), Err(null));
    let limited = ask_bound(&tables, "SELECT peer FROM system.peers LIMIT ?", &[&[0, 0, 0, 0]]);
    assert_eq!(limited, Err(SystemError::Invalid("LIMIT must be strictly positive".into())));
}

#[test]
fn counts_over_partitions_are_warned_of_as_a_server_does() {
    let warning = |text: &str| ask(text).unwrap().warning;
    assert_eq!(
        warning("SELECT count(*) FROM system.peers"),
        Some("Aggregation query used without partition key")
    );
    assert_eq!(
        warning("SELECT count(*) FROM system.peers WHERE peer IN ('10.9.9.9')"),
        Some("Aggregation query used on multiple partition keys (IN restriction)")
    );
    assert_eq!(warning("SELECT count(*) FROM system.local WHERE key = 'local'"), None);
    assert_eq!(warning("SELECT key FROM system.local"), None);
}

#[test]
fn aliases_counts_and_json() {
    let rows = ask("SELECT cluster_name AS \"Name\", host_id FROM system.local").unwrap();
    assert_eq!(names(&rows), ["Name", "host_id"]);
    let rows = ask("SELECT count(*) FROM system.peers").unwrap();
    assert_eq!(
        (names(&rows), rows.rows.as_slice()),
        (vec!["count"], &[vec![Some(2_i64.to_be_bytes().to_vec())]][..])
    );
    let rows = ask("SELECT count(*) AS n FROM system.peers WHERE peer = '10.9.9.9'").unwrap();
    assert_eq!(
        (names(&rows), rows.rows.as_slice()),
        (vec!["n"], &[vec![Some(0_i64.to_be_bytes().to_vec())]][..])
    );
    let rows = ask(
        "SELECT JSON cluster_name AS \"N\", rpc_address, rpc_port, tokens, host_id, rack FROM system.local",
    )
    .unwrap();
    assert_eq!(names(&rows), ["[json]"]);
    let json = "{\"\\\"N\\\"\": \"Test \\\"C\\\"\", \"rpc_address\": \"192.0.2.7\", \"rpc_port\": 9043, \"tokens\": [\"-5\"], \
                \"host_id\": \"00000000-0000-0000-0000-000000001111\", \"rack\": null}";
    assert_eq!(rows.rows, [[Some(json.as_bytes().to_vec())]]);
}

#[test]
fn refusals_are_worded_as_the_server_words_them() {
    invalid("SELECT foo FROM system.local", "Undefined column name foo in table system.local");
    invalid(
        "SELECT key FROM system.local WHERE foo = 1",
        "Undefined column name foo in table system.local",
    );
    invalid("SELECT key FROM system.local LIMIT 0", "LIMIT must be strictly positive");
    let filtering = "Cannot execute this query as it might involve data filtering and thus may have \
                     unpredictable performance. If you want to execute this query despite the \
                     performance unpredictability, use ALLOW FILTERING";
    invalid("SELECT peer FROM system.peers WHERE rack = 'r1'", filtering);
    invalid("SELECT peer FROM system.peers_v2 WHERE peer_port = 7000", filtering);
    invalid(
        "SELECT DISTINCT rack FROM system.peers",
        "SELECT DISTINCT queries must only request partition key columns and/or static columns (not rack)",
    );
    let old = tables("3.11.19", &[]);
    let refused = ask_bound(&old, "SELECT foo FROM system.local", &[]);
    assert_eq!(refused, Err(SystemError::Invalid("Undefined column name foo".into())));
    assert!(!old.has(SystemTable::PeersV2) && old.has(SystemTable::Peers));
    assert!(ask_bound(&old, "SELECT * FROM system.peers_v2", &[]).is_err());
    for unsupported in [
        "SELECT writetime(host_id) FROM system.local",
        "SELECT key, rpc_address FROM system.local WHERE token(key) > 0",
        "SELECT * FROM system.local GROUP BY key",
        "SELECT max(rack) FROM system.peers",
    ] {
        assert!(matches!(ask(unsupported), Err(SystemError::Unsupported(_))), "{unsupported}");
    }
}

#[test]
fn the_body_is_a_rows_result() {
    let rows = ask("SELECT key, tokens FROM system.local").unwrap();
    let mut expected = b"\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\x06system\0\x05local".to_vec();
    expected.extend(b"\0\x03key\0\x0d\0\x06tokens\0\x22\0\x0d");
    let cells = b"\0\0\0\x01\0\0\0\x05local\0\0\0\x0a\0\0\0\x01\0\0\0\x02-5";
    expected.extend(cells);
    assert_eq!(rows.result_body(false), expected);
    let mut bare = b"\0\0\0\x02\0\0\0\x05\0\0\0\x02".to_vec();
    bare.extend(cells);
    assert_eq!(rows.result_body(true), bare);
}

#[test]
fn column_sets_follow_the_release() {
    let names = |table, release| -> Vec<String> {
        default_columns(table, release).unwrap().into_iter().map(|column| column.name).collect()
    };
    assert!(names(SystemTable::Local, "3.11.19").contains(&"thrift_version".to_owned()));
    assert!(!names(SystemTable::Local, "3.11.19").contains(&"rpc_port".to_owned()));
    for release in ["4.0.11", "4.1.9", "5.0.5"] {
        assert_eq!(names(SystemTable::Local, release).len(), 20);
        assert_eq!(names(SystemTable::PeersV2, release).len(), 12);
        assert_eq!(names(SystemTable::Peers, release).len(), 9);
    }
    assert_eq!(default_columns(SystemTable::PeersV2, "3.11.19"), None);
    let local = default_columns(SystemTable::Local, "5.0.5").unwrap();
    assert_eq!(local.last().unwrap().type_option, TypeOption::new([0, 0x21, 0, 0x0c, 0, 0x03]));
}

#[test]
fn a_column_that_is_selected_very_often_is_refused_where_the_answer_is_too_long() {
    let peers: Vec<Peer> = (1..=20).map(peer).collect();
    let all = tables("5.0.5", &peers);
    let ask = |count: usize, what: &str, json: &str| {
        let text = format!("SELECT {json} {} FROM system.peers", vec![what; count].join(","));
        ask_bound(&all, &text, &[]).map(|rows| rows.rows.len())
    };
    assert_eq!(ask(100, "tokens", ""), Ok(20));
    let refused = Err(SystemError::Unsupported("so many columns"));
    assert_eq!(ask(50_000, "tokens", ""), refused);
    assert_eq!(ask(50_000, "preferred_ip", ""), refused, "nulls take room too");
    let alias = format!("rack AS \"{}\"", "x".repeat(20_000));
    assert_eq!(ask(100, &alias, "JSON"), refused, "each row has the names");
}
