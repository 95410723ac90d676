//! Keyspaces, tables and the nodes that serve them.

use std::{collections::BTreeMap, net::SocketAddr};

use afterglow_cql::response::CqlType;

use super::{identity::Identity, replicas::Replicas, row::Row};

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    pub kind: ColumnKind,
    /// Place in the key; -1 for the others.
    pub position: i32,
    pub type_name: String,
    pub cql: CqlType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    Partition,
    Clustering,
    Regular,
}

/// One table.
#[derive(Clone, Debug)]
pub struct Table {
    pub id: [u8; 16],
    /// Partition key, clustering, then the others by name: the order of SELECT *.
    pub columns: Vec<Column>,
    /// How many of them are the key.
    pub key_len: usize,
    pub rows: BTreeMap<Vec<Vec<u8>>, Row>,
    /// Write time of its row in the schema's own tables: each change of it writes the whole row.
    pub changed: i64,
    /// `gc_grace_seconds`
    pub gc_grace: i32,
    /// ScyllaDB's option; none where there is nothing in it.
    pub tombstone_gc: Vec<(String, String)>,
}

impl Table {
    /// An empty table without an id.
    pub fn new(columns: Vec<Column>, key_len: usize) -> Table {
        let (id, rows, tombstone_gc) = ([0; 16], BTreeMap::new(), Vec::new());
        Table { id, columns, key_len, rows, changed: 0, gc_grace: 864_000, tombstone_gc }
    }

    /// Whether it drops tombstones as soon as it may, which is at once.
    pub fn forgets(&self) -> bool {
        let mode = self.tombstone_gc.iter().find(|(name, _)| name == "mode");
        match mode.map(|(_, mode)| mode.as_str()) {
            None | Some("timeout") => self.gc_grace == 0,
            Some(mode) => mode == "immediate",
        }
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }
}

/// One keyspace.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    pub replication: Vec<(String, String)>,
    /// As [`Table::changed`]. Each change of one of its tables writes it too.
    pub changed: i64,
    pub tables: BTreeMap<String, Table>,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Store {
    pub keyspaces: BTreeMap<String, Keyspace>,
    /// Raised by every change of the schema.
    pub schema_version: u64,
    last_timestamp: i64,
    /// The copies of users' rows, where they are told apart.
    pub replicas: Option<Replicas>,
    /// The nodes that serve all this.
    pub nodes: Vec<Identity>,
    /// How many have ever joined.
    joined: u8,
}

impl Store {
    /// Takes a node in.
    pub fn join(&mut self, address: SocketAddr) -> Identity {
        let number = self.joined;
        self.joined += 1;
        let identity = Identity {
            address,
            cluster: "Fake Cluster".to_owned(),
            release: "5.0.5".to_owned(),
            data_center: "datacenter1".to_owned(),
            host_id: [0xFA, 0x4E, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, number + 1],
            // Each halves what is left, as far as it goes.
            token: u64::from(number).reverse_bits() as i64,
            shows_schema: None,
            lacks: None,
            sees: None,
        };
        self.nodes.push(identity.clone());
        identity
    }

    pub fn table(&self, keyspace: &str, table: &str) -> Option<&Table> {
        self.keyspaces.get(keyspace)?.tables.get(table)
    }

    pub fn table_mut(&mut self, keyspace: &str, table: &str) -> Option<&mut Table> {
        self.keyspaces.get_mut(keyspace)?.tables.get_mut(table)
    }

    /// A write time for statements without one: `now` in microseconds, never one handed out before.
    pub fn timestamp(&mut self, now_micros: i64) -> i64 {
        self.last_timestamp = now_micros.max(self.last_timestamp + 1);
        self.last_timestamp
    }
}
