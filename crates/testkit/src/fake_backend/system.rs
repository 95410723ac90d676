//! The system tables, made from the present schema whenever they are asked for.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    identity::Identity,
    row::{Cell, Row},
    store::{Column, ColumnKind, Keyspace, Store, Table},
    term::type_named,
};

/// Name and type of a column; `*` before the name of those of the key.
type Columns = &'static [(&'static str, &'static str)];

const LOCAL: Columns = &[
    ("*key", "text"),
    ("bootstrapped", "text"),
    ("broadcast_address", "inet"),
    ("broadcast_port", "int"),
    ("cluster_name", "text"),
    ("cql_version", "text"),
    ("data_center", "text"),
    ("gossip_generation", "int"),
    ("host_id", "uuid"),
    ("listen_address", "inet"),
    ("listen_port", "int"),
    ("native_protocol_version", "text"),
    ("partitioner", "text"),
    ("rack", "text"),
    ("release_version", "text"),
    ("rpc_address", "inet"),
    ("rpc_port", "int"),
    ("schema_version", "uuid"),
    ("tokens", "set<text>"),
];
const PEERS: Columns = &[
    ("*peer", "inet"),
    ("data_center", "text"),
    ("host_id", "uuid"),
    ("preferred_ip", "inet"),
    ("rack", "text"),
    ("release_version", "text"),
    ("rpc_address", "inet"),
    ("schema_version", "uuid"),
    ("tokens", "set<text>"),
];
const PEERS_V2: Columns = &[
    ("*peer", "inet"),
    ("*peer_port", "int"),
    ("data_center", "text"),
    ("host_id", "uuid"),
    ("native_address", "inet"),
    ("native_port", "int"),
    ("preferred_ip", "inet"),
    ("preferred_port", "int"),
    ("rack", "text"),
    ("release_version", "text"),
    ("schema_version", "uuid"),
    ("tokens", "set<text>"),
];
const KEYSPACES: Columns = &[
    ("*keyspace_name", "text"),
    ("durable_writes", "boolean"),
    ("replication", "frozen<map<text, text>>"),
];
const TABLES: Columns = &[
    ("*keyspace_name", "text"),
    ("*table_name", "text"),
    ("comment", "text"),
    ("default_time_to_live", "int"),
    ("extensions", "frozen<map<text, blob>>"),
    ("flags", "frozen<set<text>>"),
    ("gc_grace_seconds", "int"),
    ("id", "uuid"),
];
const COLUMNS: Columns = &[
    ("*keyspace_name", "text"),
    ("*table_name", "text"),
    ("*column_name", "text"),
    ("clustering_order", "text"),
    ("column_name_bytes", "blob"),
    ("kind", "text"),
    ("position", "int"),
    ("type", "text"),
];
/// Tables that are always empty here.
const EMPTY: &[(&str, Columns)] = &[
    (
        "views",
        &[
            ("*keyspace_name", "text"),
            ("*view_name", "text"),
            ("base_table_name", "text"),
            ("id", "uuid"),
        ],
    ),
    (
        "indexes",
        &[
            ("*keyspace_name", "text"),
            ("*table_name", "text"),
            ("*index_name", "text"),
            ("kind", "text"),
            ("options", "frozen<map<text, text>>"),
        ],
    ),
    (
        "types",
        &[
            ("*keyspace_name", "text"),
            ("*type_name", "text"),
            ("field_names", "frozen<list<text>>"),
            ("field_types", "frozen<list<text>>"),
        ],
    ),
    (
        "functions",
        &[
            ("*keyspace_name", "text"),
            ("*function_name", "text"),
            ("argument_types", "frozen<list<text>>"),
        ],
    ),
    (
        "aggregates",
        &[
            ("*keyspace_name", "text"),
            ("*aggregate_name", "text"),
            ("argument_types", "frozen<list<text>>"),
        ],
    ),
    (
        "triggers",
        &[
            ("*keyspace_name", "text"),
            ("*table_name", "text"),
            ("*trigger_name", "text"),
            ("options", "frozen<map<text, text>>"),
        ],
    ),
    (
        "column_masks",
        &[("*keyspace_name", "text"), ("*table_name", "text"), ("*column_name", "text")],
    ),
    (
        "dropped_columns",
        &[
            ("*keyspace_name", "text"),
            ("*table_name", "text"),
            ("*column_name", "text"),
            ("dropped_time", "timestamp"),
        ],
    ),
];

/// The system table with this name, filled.
pub fn table(store: &Store, identity: &Identity, keyspace: &str, name: &str) -> Option<Table> {
    match (keyspace, name) {
        ("system", "local") => Some(filled(LOCAL, vec![local(store, identity)])),
        ("system", "peers") => {
            Some(filled(PEERS, others(store, identity).map(|id| peer(store, id)).collect()))
        }
        ("system", "peers_v2") => {
            Some(filled(PEERS_V2, others(store, identity).map(|id| peer_v2(store, id)).collect()))
        }
        ("system_schema", "keyspaces") => Some(written(KEYSPACES, keyspaces(store))),
        ("system_schema", "tables") => Some(written(TABLES, tables(store, identity))),
        ("system_schema", "columns") => Some(filled(COLUMNS, columns(store, identity))),
        ("system_schema", other) => {
            EMPTY.iter().find(|(n, _)| *n == other).map(|(_, columns)| filled(columns, Vec::new()))
        }
        _ => None,
    }
}

type Values = Vec<Option<Vec<u8>>>;

fn local(store: &Store, id: &Identity) -> Values {
    let (ip, port) = (inet(id.address.ip()), int(i32::from(id.address.port())));
    vec![
        text("local"),
        text("COMPLETED"),
        ip.clone(),
        int(7000),
        text(&id.cluster),
        text("3.4.7"),
        text(&id.data_center),
        int(1),
        Some(id.host_id.to_vec()),
        ip.clone(),
        int(7000),
        text("5"),
        text("org.apache.cassandra.dht.Murmur3Partitioner"),
        text("rack1"),
        text(&id.release),
        ip,
        port,
        schema_version(store, id),
        tokens(id),
    ]
}

fn others<'s>(store: &'s Store, asked: &Identity) -> impl Iterator<Item = &'s Identity> {
    let asked = asked.host_id;
    store.nodes.iter().filter(move |node| node.host_id != asked)
}

fn peer(store: &Store, id: &Identity) -> Values {
    vec![
        inet(peer_address(id)),
        text(&id.data_center),
        Some(id.host_id.to_vec()),
        None,
        text("rack1"),
        text(&id.release),
        inet(id.address.ip()),
        schema_version(store, id),
        tokens(id),
    ]
}

fn peer_v2(store: &Store, id: &Identity) -> Values {
    vec![
        inet(peer_address(id)),
        int(7000),
        text(&id.data_center),
        Some(id.host_id.to_vec()),
        inet(id.address.ip()),
        int(i32::from(id.address.port())),
        None,
        None,
        text("rack1"),
        text(&id.release),
        schema_version(store, id),
        tokens(id),
    ]
}

/// Where other nodes reach it, so they say: all are on this machine, and each needs an address of
/// its own.
fn peer_address(id: &Identity) -> IpAddr {
    IpAddr::from([127, 0, 0, id.host_id[15]])
}

fn schema_version(store: &Store, id: &Identity) -> Option<Vec<u8>> {
    let mut version = [0; 16];
    version[8..].copy_from_slice(&id.shows_schema.unwrap_or(store.schema_version).to_be_bytes());
    version[6] = 0x40 | u8::from(id.lacks.is_some());
    Some(version.to_vec())
}

fn tokens(id: &Identity) -> Option<Vec<u8>> {
    Some(collection(1, &[&id.token.to_string()]))
}

fn keyspaces(store: &Store) -> Vec<(i64, Values)> {
    let row = |(name, keyspace): (&String, &Keyspace)| {
        let options: Vec<&str> =
            keyspace.replication.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]).collect();
        let replication = Some(collection(options.len() / 2, &options));
        (keyspace.changed, vec![text(name), Some(vec![1]), replication])
    };
    store.keyspaces.iter().map(row).collect()
}

fn tables(store: &Store, id: &Identity) -> Vec<(i64, Values)> {
    known_tables(store, id)
        .map(|(keyspace, name, table)| {
            let values = vec![
                text(keyspace),
                text(name),
                text(""),
                int(0),
                Some(extensions(&table.tombstone_gc)),
                Some(collection(1, &["compound"])),
                int(table.gc_grace),
                Some(table.id.to_vec()),
            ];
            (table.changed, values)
        })
        .collect()
}

fn columns(store: &Store, id: &Identity) -> Vec<Values> {
    let seen_as = |keyspace: &str, table: &str, column: &str| {
        let seen = id.sees.as_ref().filter(|seen| seen.is_of(keyspace, table))?;
        (seen.column == column).then_some(seen.type_name.as_str())
    };
    known_tables(store, id)
        .flat_map(|(keyspace, name, table)| table.columns.iter().map(move |c| (keyspace, name, c)))
        .map(|(keyspace, name, column)| {
            let (kind, order) = match column.kind {
                ColumnKind::Partition => ("partition_key", "none"),
                ColumnKind::Clustering => ("clustering", "asc"),
                ColumnKind::Regular => ("regular", "none"),
            };
            vec![
                text(keyspace),
                text(name),
                text(&column.name),
                text(order),
                text(&column.name),
                text(kind),
                int(column.position),
                text(seen_as(keyspace, name, &column.name).unwrap_or(&column.type_name)),
            ]
        })
        .collect()
}

fn known_tables<'s>(
    store: &'s Store,
    id: &Identity,
) -> impl Iterator<Item = (&'s String, &'s String, &'s Table)> {
    let lacks = id.lacks.clone();
    let is_known = move |keyspace: &str, name: &str| {
        lacks.as_ref().is_none_or(|(of, table)| (of.as_str(), table.as_str()) != (keyspace, name))
    };
    store
        .keyspaces
        .iter()
        .flat_map(|(keyspace, k)| k.tables.iter().map(move |(name, t)| (keyspace, name, t)))
        .filter(move |(keyspace, name, _)| is_known(keyspace, name))
}

fn text(value: &str) -> Option<Vec<u8>> {
    Some(value.as_bytes().to_vec())
}

fn int(value: i32) -> Option<Vec<u8>> {
    Some(value.to_be_bytes().to_vec())
}

fn inet(address: IpAddr) -> Option<Vec<u8>> {
    Some(match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    })
}

/// The column `extensions`, with ScyllaDB's option in ScyllaDB's form.
fn extensions(tombstone_gc: &[(String, String)]) -> Vec<u8> {
    if tombstone_gc.is_empty() {
        return collection::<&str>(0, &[]);
    }
    let mut option = (tombstone_gc.len() as u32).to_le_bytes().to_vec();
    for text in tombstone_gc.iter().flat_map(|(name, value)| [name, value]) {
        option.extend((text.len() as u32).to_le_bytes());
        option.extend(text.as_bytes());
    }
    collection(1, &[&b"tombstone_gc"[..], &option])
}

/// A set or list, or a map with its keys and values in turn.
fn collection<E: AsRef<[u8]>>(count: usize, elements: &[E]) -> Vec<u8> {
    let mut out = (count as i32).to_be_bytes().to_vec();
    for element in elements {
        let element = element.as_ref();
        out.extend((element.len() as i32).to_be_bytes());
        out.extend(element);
    }
    out
}

fn filled(columns: Columns, rows: Vec<Values>) -> Table {
    written(columns, rows.into_iter().map(|values| (0, values)).collect())
}

/// Of rows with the times at which they were written.
fn written(columns: Columns, rows: Vec<(i64, Values)>) -> Table {
    let columns: Vec<Column> = columns
        .iter()
        .enumerate()
        .map(|(i, (name, type_name))| {
            let key = name.starts_with('*');
            let kind = match (key, i) {
                (true, 0) => ColumnKind::Partition,
                (true, _) => ColumnKind::Clustering,
                (false, _) => ColumnKind::Regular,
            };
            let position = if key { i as i32 } else { -1 };
            let cql = type_named(type_name).expect("the types above are known");
            let name = name.trim_start_matches('*').to_owned();
            Column { name, kind, position, type_name: (*type_name).to_owned(), cql }
        })
        .collect();
    let key_len = columns.iter().filter(|c| c.kind != ColumnKind::Regular).count();
    let mut map = BTreeMap::new();
    for (timestamp, values) in rows {
        let mut row = Row::default();
        row.mark(0, None);
        row.write(values[key_len..].iter().enumerate().map(|(i, value)| {
            (key_len + i, Cell { value: value.clone(), timestamp, expires: None })
        }));
        map.insert(values[..key_len].iter().map(|v| v.clone().unwrap_or_default()).collect(), row);
    }
    Table { rows: map, ..Table::new(columns, key_len) }
}
