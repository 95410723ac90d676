//! The database's schema, as far as planning needs it.

use std::sync::Arc;

use uuid::Uuid;

/// A view of the schema at one moment. Plans made from it must be thrown away when the schema
/// changes.
pub trait SchemaView {
    /// The table or view `keyspace.table` (names as stored, already folded), if there is one.
    fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>>;

    /// Whether it lacks a change that a client knows of. Then no read is answered by it.
    fn is_outdated(&self) -> bool {
        false
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// Name as stored.
    pub name: String,
    /// Type as `system_schema.columns` writes it, e.g. `int`, `frozen<list<text>>`, `map<text,
    /// int>`.
    pub cql_type: String,
    /// Whether a dynamic data mask is attached (`system_schema.column_masks`, Cassandra 5.0).
    pub masked: bool,
    /// When a column of this name was last dropped from the table, as
    /// `system_schema.dropped_columns` has it; 0 for never. The database shows no cell of a column
    /// from before it was dropped and added again; this tells such rows apart.
    pub dropped_at: i64,
    /// A clustering column of which larger values come first.
    pub descending: bool,
}

impl Column {
    /// A column without mask, in ascending order, that was never dropped.
    pub fn new(name: impl Into<String>, cql_type: impl Into<String>) -> Column {
        Column {
            name: name.into(),
            cql_type: cql_type.into(),
            masked: false,
            dropped_at: 0,
            descending: false,
        }
    }

    /// How many cells a value of the column has.
    pub fn cells(&self) -> Cells {
        let name = self.cql_type.trim();
        let begins = |with: &[&str]| with.iter().any(|with| name.starts_with(with));
        if crate::plan::types::is_native(name) || begins(&["frozen<", "tuple<", "vector<"]) {
            return Cells::One;
        }
        // What is left besides collections are names of user types and, in single quotes, of Java
        // classes.
        let class = name.is_empty() || (!name.ends_with('>') && name.contains('\''));
        if class { Cells::Unknown } else { Cells::Many }
    }
}

/// How many cells a value has, each with a write time and a life of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cells {
    /// One: native types and what is frozen, tuples and vectors among them.
    One,
    /// One for each element or field: collections and user types that are not frozen.
    Many,
    /// A type of the server's own.
    Unknown,
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
    /// Regular columns in the order of `SELECT *`; see [`TableSchema::sort_values`].
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
    /// Has triggers, which may change what a write does.
    pub triggers: bool,
    /// A column says when its row ends, and the database then deletes the row (ScyllaDB's TTL of
    /// rows).
    pub expiring_rows: bool,
    /// `default_time_to_live` in seconds, 0 for none.
    pub default_ttl: u32,
    /// The database tells write times and lives of values of many cells (Cassandra 5.0 does, older
    /// ones do not).
    pub element_times: bool,
}

/// One column of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projected {
    /// The key column at this position of [`RowKey::columns`](super::RowKey::columns).
    Key(u16),
    /// The column at this position of [`TableSchema::values`].
    Value(u16),
    /// How many rows there are, `count(*)`. It is the only column then, and of a slice.
    Count,
}

/// Why rows of a table are not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotCacheable {
    /// System, virtual: local to a node.
    SystemTable,
    /// Rows come and go with no write of their own: change logs, the audit log, rows that end at a
    /// time that a column says.
    WrittenByDatabase,
    /// A materialised view is brought up to date behind the write's acknowledgement.
    View,
    /// Counters.
    Counter,
    /// A collection or user type that is not frozen, and the database does not tell when its
    /// elements expire.
    MultiCellColumn,
    /// A column of a type that is a class of the server.
    CustomType,
    /// A dynamic data mask: results differ by role.
    MaskedColumn,
    /// Compact storage.
    CompactStorage,
    /// A key column's type can write one row's key in several ways that we do not bring to one
    /// form.
    KeyType,
    /// More columns than a stored row can hold.
    TooManyColumns,
}

impl TableSchema {
    /// A table without columns and of no special kind, in a database that tells write times and
    /// lives of values of many cells.
    pub fn new(keyspace: String, name: String, id: Uuid) -> TableSchema {
        TableSchema {
            keyspace,
            name,
            id,
            partition_key: Vec::new(),
            clustering: Vec::new(),
            statics: Vec::new(),
            regulars: Vec::new(),
            counter: false,
            view: false,
            system: false,
            compact: false,
            indexed: false,
            triggers: false,
            expiring_rows: false,
            default_ttl: 0,
            element_times: true,
        }
    }

    /// Whether single rows of the table may be cached, and if not why.
    pub fn cacheable(&self) -> Result<(), NotCacheable> {
        if self.system {
            return Err(NotCacheable::SystemTable);
        }
        if self.is_written_by_database() {
            return Err(NotCacheable::WrittenByDatabase);
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
        if self.values().any(|column| column.cells() == Cells::Unknown) {
            return Err(NotCacheable::CustomType);
        }
        if !self.element_times && self.values().any(|column| column.cells() == Cells::Many) {
            return Err(NotCacheable::MultiCellColumn);
        }
        if self.keys().chain(self.values()).any(|c| c.masked) {
            return Err(NotCacheable::MaskedColumn);
        }
        let one_form = |c: &Column| crate::plan::types::has_one_form(&c.cql_type);
        if !self.partition_is_bytes() || !self.clustering.iter().all(one_form) {
            return Err(NotCacheable::KeyType);
        }
        if self.values().count() > usize::from(u16::MAX) {
            return Err(NotCacheable::TooManyColumns);
        }
        Ok(())
    }

    /// Whether a column may be of a type that users make.
    pub fn has_user_types(&self) -> bool {
        self.keys().chain(self.values()).any(|c| !crate::plan::types::is_built_in(&c.cql_type))
    }

    /// Whether the database writes rows of it by itself. ScyllaDB writes the change log of a table
    /// with each write to that table, and its audit log with any statement.
    fn is_written_by_database(&self) -> bool {
        self.expiring_rows
            || self.name.ends_with("_scylla_cdc_log")
            || (self.keyspace == "audit" && self.name == "audit_log")
    }

    /// The columns of the primary key, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Column> + Clone {
        self.partition_key.iter().chain(&self.clustering)
    }

    /// All other columns in the order of `SELECT *`: static ones, then regular ones. A stored row
    /// has a cell for each, static values too. Each row has a copy of the static values, because a
    /// write of one drops all rows of its partition.
    pub fn values(&self) -> impl Iterator<Item = &Column> + Clone {
        self.statics.iter().chain(&self.regulars)
    }

    /// Brings the static and the regular columns to the order of `SELECT *`.
    pub fn sort_values(&mut self) {
        for columns in [&mut self.statics, &mut self.regulars] {
            columns.sort_by(|a, b| a.name.cmp(&b.name));
            if !columns.iter().all(|column| column.name.is_ascii()) {
                *columns = merged(std::mem::take(columns));
            }
        }
    }

    /// Name of a column of a projection, for comparing with the metadata that a server gives.
    pub fn name_of(&self, column: Projected) -> Option<&str> {
        let column = match column {
            Projected::Key(at) => self.keys().nth(usize::from(at)),
            Projected::Value(at) => self.values().nth(usize::from(at)),
            Projected::Count => return Some("count"),
        };
        column.map(|column| column.name.as_str())
    }

    /// Whether the bytes bound to the partition key are the key's own. Servers sort and rewrite
    /// bound collections, tuples and user types, so that other bytes may name the same partition.
    pub(crate) fn partition_is_bytes(&self) -> bool {
        !self.partition_key.is_empty()
            && self.partition_key.iter().all(|c| crate::plan::types::is_native(&c.cql_type))
    }

    /// Identifies table and row shape: a stored row with another fingerprint must not be read
    /// (FNV-1a over id, names, types and drops).
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        hash.add(self.id.as_bytes());
        for (kind, columns) in
            [&self.partition_key, &self.clustering, &self.statics, &self.regulars]
                .iter()
                .enumerate()
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

/// Columns that are sorted by their names, as Cassandra merges those of one cell with those of
/// many: it takes bytes beyond ASCII for negative then.
fn merged(columns: Vec<Column>) -> Vec<Column> {
    let signed = |column: &Column| column.name.bytes().map(|byte| byte as i8).collect::<Vec<_>>();
    let (many, one): (Vec<_>, Vec<_>) =
        columns.into_iter().partition(|column| column.cells() == Cells::Many);
    let (mut many, mut one) = (many.into_iter().peekable(), one.into_iter().peekable());
    let mut all = Vec::new();
    loop {
        let takes_many = match (many.peek(), one.peek()) {
            (Some(many), Some(one)) => signed(many) < signed(one),
            (many, _) => many.is_some(),
        };
        match if takes_many { many.next() } else { one.next() } {
            Some(column) => all.push(column),
            None => return all,
        }
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
            NotCacheable::WrittenByDatabase => "written-by-database",
            NotCacheable::View => "view",
            NotCacheable::Counter => "counter",
            NotCacheable::MultiCellColumn => "multi-cell-column",
            NotCacheable::CustomType => "custom-type",
            NotCacheable::MaskedColumn => "masked-column",
            NotCacheable::CompactStorage => "compact-storage",
            NotCacheable::KeyType => "key-type",
            NotCacheable::TooManyColumns => "too-many-columns",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_names_beyond_ascii_are_in_the_order_of_the_database() {
        let sorted = |columns: &[(&str, &str)]| {
            let column = |(name, cql_type): &(&str, &str)| Column::new(*name, *cql_type);
            let mut table = TableSchema::new("ks".into(), "t".into(), Uuid::nil());
            table.regulars = columns.iter().map(column).collect();
            table.statics = table.regulars.clone();
            table.sort_values();
            assert_eq!(table.statics, table.regulars);
            let name = |column: Column| column.name;
            table.regulars.into_iter().map(name).collect::<Vec<_>>()
        };
        let (int, list) = ("int", "list<int>");
        assert_eq!(sorted(&[("m", int), ("\u{e9}", int), ("a", int)]), ["a", "m", "\u{e9}"]);
        assert_eq!(sorted(&[("m", list), ("\u{e9}", int)]), ["\u{e9}", "m"]);
        assert_eq!(sorted(&[("z", int), ("a", int), ("\u{e9}", list)]), ["\u{e9}", "a", "z"]);
        let mixed = [("z", list), ("\u{e9}", int), ("m", list), ("a", int), ("\u{4e2d}", int)];
        assert_eq!(sorted(&mixed), ["a", "\u{e9}", "\u{4e2d}", "m", "z"]);
        assert_eq!(sorted(&[("b", list), ("c", int), ("a", int)]), ["a", "b", "c"]);
    }
}
