//! The three tables as the proxy shows them.

use std::net::{IpAddr, Ipv4Addr};

use uuid::Uuid;

use crate::frame::notation::{Put, Value};

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SystemTable {
    /// `system.local`
    Local,
    /// `system.peers`
    Peers,
    /// `system.peers_v2`, of Cassandra 4.0 and later.
    PeersV2,
}

impl SystemTable {
    /// The table of that name.
    pub fn named(name: &str) -> Option<SystemTable> {
        [SystemTable::Local, SystemTable::Peers, SystemTable::PeersV2]
            .into_iter()
            .find(|table| table.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            SystemTable::Local => "local",
            SystemTable::Peers => "peers",
            SystemTable::PeersV2 => "peers_v2",
        }
    }

    /// Its key columns, the partition key (always one column) first.
    pub fn key(self) -> &'static [&'static str] {
        match self {
            SystemTable::Local => &["key"],
            SystemTable::Peers => &["peer"],
            SystemTable::PeersV2 => &["peer", "peer_port"],
        }
    }
}

/// A column type in the protocol's `[option]` notation, as metadata carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeOption(Vec<u8>);

impl TypeOption {
    /// From the bytes of a column specification.
    pub fn new(bytes: impl Into<Vec<u8>>) -> TypeOption {
        TypeOption(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The type of a CQL name, for the types that the system tables use.
    fn named(name: &str) -> TypeOption {
        TypeOption(match name {
            "bigint" => vec![0, 0x02],
            "int" => vec![0, 0x09],
            "uuid" => vec![0, 0x0c],
            "inet" => vec![0, 0x10],
            "set<text>" => vec![0, 0x22, 0, 0x0d],
            "map<uuid, blob>" => vec![0, 0x21, 0, 0x0c, 0, 0x03],
            _ => vec![0, 0x0d],
        })
    }

    /// `text`.
    pub(super) fn text() -> TypeOption {
        TypeOption::named("text")
    }

    /// `bigint`.
    pub(super) fn bigint() -> TypeOption {
        TypeOption::named("bigint")
    }
}

/// A column of a system table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_option: TypeOption,
}

/// A table's columns in the order of `SELECT *`, and its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Columns.
    pub columns: Vec<SystemColumn>,
    /// Rows: one cell per column.
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
}

impl Table {
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

const LOCAL_4: &str = "key:text bootstrapped:text broadcast_address:inet broadcast_port:int \
    cluster_name:text cql_version:text data_center:text gossip_generation:int host_id:uuid \
    listen_address:inet listen_port:int native_protocol_version:text partitioner:text rack:text \
    release_version:text rpc_address:inet rpc_port:int \
    schema_version:uuid tokens:set<text> truncated_at:map<uuid,_blob>";
const LOCAL_3: &str = "key:text bootstrapped:text broadcast_address:inet cluster_name:text \
    cql_version:text data_center:text gossip_generation:int host_id:uuid listen_address:inet \
    native_protocol_version:text partitioner:text rack:text release_version:text rpc_address:inet \
    schema_version:uuid thrift_version:text \
    tokens:set<text> truncated_at:map<uuid,_blob>";
const PEERS: &str = "peer:inet data_center:text host_id:uuid preferred_ip:inet rack:text release_version:text \
    rpc_address:inet schema_version:uuid tokens:set<text>";
const PEERS_V2: &str = "peer:inet peer_port:int data_center:text host_id:uuid native_address:inet native_port:int \
    preferred_ip:inet preferred_port:int rack:text release_version:text schema_version:uuid tokens:set<text>";

/// The columns of a table in Cassandra of that release (`release_version`, e.g. `5.0.5`), for when
/// a backend's own metadata is not at hand. `None` if that release has no such table.
pub fn default_columns(table: SystemTable, release: &str) -> Option<Vec<SystemColumn>> {
    let before_4 = release
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok())
        .is_some_and(|major| major < 4);
    let list = match (table, before_4) {
        (SystemTable::Local, false) => LOCAL_4,
        (SystemTable::Local, true) => LOCAL_3,
        (SystemTable::Peers, _) => PEERS,
        (SystemTable::PeersV2, false) => PEERS_V2,
        (SystemTable::PeersV2, true) => return None,
    };
    let column = |item: &str| {
        let (name, kind) = item.split_once(':')?;
        Some(SystemColumn {
            name: name.to_owned(),
            type_option: TypeOption::named(&kind.replace(",_", ", ")),
        })
    };
    list.split_whitespace().map(column).collect()
}

/// What the proxy says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Address that drivers reach it at.
    pub address: IpAddr,
    /// Port of its CQL listener.
    pub port: u16,
    /// Its own stable host id; `None` keeps the backend node's.
    pub host_id: Option<Uuid>,
    /// Tokens it owns; `None` keeps the backend node's.
    pub tokens: Option<Vec<String>>,
    /// Its rack; `None` keeps the backend node's.
    pub rack: Option<String>,
}

/// Another proxy, shown as a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// What it says of itself. Drivers accept it where host id, tokens and rack are set.
    pub proxy: Proxy,
    /// Data centre.
    pub data_center: String,
    /// The database's release.
    pub release_version: String,
    /// The schema's version.
    pub schema_version: Uuid,
}

/// The tables as drivers see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemTables {
    local: Table,
    peers: Table,
    peers_v2: Option<Table>,
    names_table_in_errors: bool,
}

impl SystemTables {
    /// Makes the tables from the backend's. `local` is its answer to `SELECT * FROM system.local`.
    /// Of `peers` and `peers_v2` only the columns matter. `peers_v2` is `None` on a backend that
    /// has no such table.
    pub fn new(
        mut local: Table,
        peers: Table,
        peers_v2: Option<Table>,
        proxy: &Proxy,
        others: &[Peer],
    ) -> SystemTables {
        for row in &mut local.rows {
            for (column, cell) in local.columns.iter().zip(row) {
                if let Some(value) = proxy_value(&column.name, proxy) {
                    *cell = Some(value);
                }
            }
        }
        let names_table_in_errors = peers_v2.is_some();
        let peers = with_peers(peers, others);
        SystemTables {
            local,
            peers,
            peers_v2: peers_v2.map(|table| with_peers(table, others)),
            names_table_in_errors,
        }
    }

    /// Whether the table exists here. A query over one that does not is to be passed to the backend
    /// for its error.
    pub fn has(&self, table: SystemTable) -> bool {
        self.table(table).is_some()
    }

    /// One of the tables.
    pub fn table(&self, table: SystemTable) -> Option<&Table> {
        match table {
            SystemTable::Local => Some(&self.local),
            SystemTable::Peers => Some(&self.peers),
            SystemTable::PeersV2 => self.peers_v2.as_ref(),
        }
    }

    /// Cassandra 4.0 and later say which table lacks a column; 3.11 does not.
    pub(super) fn undefined_column(&self, name: &str, table: SystemTable) -> String {
        if self.names_table_in_errors {
            format!("Undefined column name {name} in table system.{}", table.name())
        } else {
            format!("Undefined column name {name}")
        }
    }
}

/// Whether a column of `local` tells where the node is, and so holds the proxy's value here.
pub(super) fn is_rewritten(column: &str) -> bool {
    let any = Proxy {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        port: 0,
        host_id: Some(Uuid::nil()),
        tokens: Some(Vec::new()),
        // Told as the database has it where there is but one proxy.
        rack: None,
    };
    // With a port and an address that is told apart, as 4.0 has them, whatever release comes next.
    proxy_value(column, &any).is_some() || column.ends_with("_address") || column.ends_with("_port")
}

/// The value that a proxy has of its own in a column of `system.local`.
fn proxy_value(column: &str, proxy: &Proxy) -> Option<Vec<u8>> {
    match column {
        "broadcast_address" | "listen_address" | "rpc_address" => Some(address(proxy.address)),
        "rpc_port" => Some(i32::from(proxy.port).to_be_bytes().to_vec()),
        "host_id" => proxy.host_id.map(|id| id.as_bytes().to_vec()),
        "tokens" => proxy.tokens.as_deref().map(text_set),
        "rack" => proxy.rack.as_deref().map(text),
        _ => None,
    }
}

fn text(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn with_peers(table: Table, others: &[Peer]) -> Table {
    let row =
        |peer: &Peer| table.columns.iter().map(|column| peer_value(&column.name, peer)).collect();
    Table { rows: others.iter().map(row).collect(), columns: table.columns }
}

fn peer_value(column: &str, peer: &Peer) -> Option<Vec<u8>> {
    match column {
        "peer" | "rpc_address" | "native_address" => Some(address(peer.proxy.address)),
        // Proxies have no port for storage. Drivers use it as half of a key.
        "peer_port" | "native_port" => Some(i32::from(peer.proxy.port).to_be_bytes().to_vec()),
        "data_center" => Some(text(&peer.data_center)),
        "rack" => peer.proxy.rack.as_deref().map(text),
        "release_version" => Some(text(&peer.release_version)),
        "schema_version" => Some(peer.schema_version.as_bytes().to_vec()),
        "host_id" => peer.proxy.host_id.map(|id| id.as_bytes().to_vec()),
        "tokens" => peer.proxy.tokens.as_deref().map(text_set),
        _ => None,
    }
}

fn address(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A `set<text>`: sorted, without duplicates.
fn text_set(items: &[String]) -> Vec<u8> {
    let mut items: Vec<&String> = items.iter().collect();
    items.sort();
    items.dedup();
    let mut out = (items.len() as i32).to_be_bytes().to_vec();
    for item in items {
        out.put_value(Value::Bytes(item.as_bytes()));
    }
    out
}
