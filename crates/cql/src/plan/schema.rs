//! What planning needs to know of the database's schema.

use std::sync::Arc;

use uuid::Uuid;

use super::read::Projected;

/// A view of the schema at one moment. Plans made from it must be thrown away when the schema changes.
pub trait SchemaView {
    /// The table or view `keyspace.table` (names as stored, already folded), if there is one.
    fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>>;
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name as stored.
    pub name: String,
    /// Type as `system_schema.columns` writes it, e.g. `int`, `frozen<list<text>>`, `map<text, int>`.
    pub cql_type: String,
    /// Whether a dynamic data mask is attached (`system_schema.column_masks`, Cassandra 5.0).
    pub masked: bool,
    /// When a column of this name was last dropped from the table, as `system_schema.dropped_columns` has it; 0 for never. The
    /// database shows no cell of a column from before it was dropped and added again; this tells such rows apart.
    pub dropped_at: i64,
}

impl Column {
    /// A column without mask that was never dropped.
    pub fn new(name: impl Into<String>, cql_type: impl Into<String>) -> Column {
        Column { name: name.into(), cql_type: cql_type.into(), masked: false, dropped_at: 0 }
    }

    /// Whether the type is a collection or user type that is not frozen: no single cell, no single write time.
    /// Any type that is neither native nor frozen counts as one.
    pub fn is_multi_cell(&self) -> bool {
        let name = self.cql_type.trim();
        if name.starts_with("frozen<") || name.starts_with("tuple<") || name.starts_with("vector<") {
            return false;
        }
        !crate::plan::types::is_native(name)
    }
}

/// A table of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSchema {
    /// Keyspace as stored.
    pub keyspace: String,
    /// Name as stored.
    pub name: String,
    /// The table's id, which changes when it is dropped and created again.
    pub id: Uuid,
    /// Partition key columns, in order.
    pub partition_key: Vec<Column>,
    /// Clustering columns, in order.
    pub clustering: Vec<Column>,
    /// Static columns.
    pub statics: Vec<Column>,
    /// Regular columns in the order of `SELECT *`, that is sorted by name.
    pub regulars: Vec<Column>,
    /// A counter table.
    pub counter: bool,
    /// A materialised view.
    pub view: bool,
    /// A virtual table, or one of a system keyspace.
    pub system: bool,
    /// A table without CQL shape (`COMPACT STORAGE` flags other than plain `compound`).
    pub compact: bool,
    /// Has secondary indexes (writes and reads by full key are not affected).
    pub indexed: bool,
    /// `default_time_to_live` in seconds, 0 for none.
    pub default_ttl: u32,
}

/// Why rows of a table are not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotCacheable {
    /// System, virtual: local to a node.
    SystemTable,
    /// A materialised view is brought up to date behind the write's acknowledgement.
    View,
    /// Counters.
    Counter,
    /// Static columns.
    Statics,
    /// A collection or user type that is not frozen.
    MultiCellColumn,
    /// A dynamic data mask: results differ by role.
    MaskedColumn,
    /// Compact storage.
    CompactStorage,
    /// A key column's type can write one row's key in several ways that we do not bring to one form.
    KeyType,
    /// More columns than a stored row can hold.
    TooManyColumns,
}

impl TableSchema {
    /// Whether single rows of the table may be cached, and if not why.
    pub fn cacheable(&self) -> Result<(), NotCacheable> {
        if self.system {
            return Err(NotCacheable::SystemTable);
        }
        if self.view {
            return Err(NotCacheable::View);
        }
        if self.counter || self.regulars.iter().any(|c| c.cql_type == "counter") {
            return Err(NotCacheable::Counter);
        }
        if self.compact {
            return Err(NotCacheable::CompactStorage);
        }
        if !self.statics.is_empty() {
            return Err(NotCacheable::Statics);
        }
        if self.regulars.iter().any(Column::is_multi_cell) {
            return Err(NotCacheable::MultiCellColumn);
        }
        if self.partition_key.iter().chain(&self.clustering).chain(&self.regulars).any(|c| c.masked) {
            return Err(NotCacheable::MaskedColumn);
        }
        let one_form = |c: &Column| crate::plan::types::has_one_form(&c.cql_type);
        if !self.partition_is_bytes() || !self.clustering.iter().all(one_form) {
            return Err(NotCacheable::KeyType);
        }
        if self.regulars.len() > usize::from(u16::MAX) {
            return Err(NotCacheable::TooManyColumns);
        }
        Ok(())
    }

    /// Name of a column of a projection, for comparing with the metadata that a server gives.
    pub fn name_of(&self, column: Projected) -> Option<&str> {
        let keys = || self.partition_key.iter().chain(&self.clustering);
        let column = match column {
            Projected::Key(at) => keys().nth(usize::from(at)),
            Projected::Regular(at) => self.regulars.get(usize::from(at)),
        };
        column.map(|column| column.name.as_str())
    }

    /// Whether the bytes bound to the partition key are the key's own. Servers sort and rewrite bound collections, tuples and
    /// user types, so that other bytes may name the same partition.
    pub(crate) fn partition_is_bytes(&self) -> bool {
        !self.partition_key.is_empty()
            && self.partition_key.iter().all(|c| crate::plan::types::is_native(&c.cql_type))
    }

    /// Identifies table and row shape: a stored row with another fingerprint must not be read (FNV-1a over id, names, types and drops).
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.add(self.id.as_bytes());
        for (kind, columns) in
            [&self.partition_key, &self.clustering, &self.statics, &self.regulars].iter().enumerate()
        {
            for column in columns.iter() {
                hash.add(&[kind as u8]);
                hash.add(column.name.as_bytes());
                hash.add(column.cql_type.as_bytes());
                hash.add(&column.dropped_at.to_le_bytes());
            }
        }
        hash.0
    }
}

struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a length-prefixed field, so that fields cannot run into each other.
    fn add(&mut self, bytes: &[u8]) {
        for byte in (bytes.len() as u32).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl NotCacheable {
    /// A stable lower-case name for counters.
    pub fn label(self) -> &'static str {
        match self {
            NotCacheable::SystemTable => "system-table",
            NotCacheable::View => "view",
            NotCacheable::Counter => "counter",
            NotCacheable::Statics => "statics",
            NotCacheable::MultiCellColumn => "multi-cell-column",
            NotCacheable::MaskedColumn => "masked-column",
            NotCacheable::CompactStorage => "compact-storage",
            NotCacheable::KeyType => "key-type",
            NotCacheable::TooManyColumns => "too-many-columns",
        }
    }
}
