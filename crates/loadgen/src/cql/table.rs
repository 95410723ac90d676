//! The table that is loaded and read: YCSB's `usertable`.

use afterglow_cql::message::Consistency;

use super::{Connection, CqlError};
use crate::values::MIN_FIELD_LEN;

/// Name and shape of the table.
#[derive(Clone, Debug, PartialEq, clap::Args, serde::Serialize, serde::Deserialize)]
pub struct TableSpec {
    /// Keyspace.
    #[arg(long, default_value = "ycsb", value_parser = identifier)]
    pub keyspace: String,
    /// Table.
    #[arg(long, default_value = "usertable", value_parser = identifier)]
    pub table: String,
    /// Number of records.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(2..))]
    pub records: u64,
    /// Fields (columns beside the key) of a record.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub fields: u32,
    /// Bytes of a field.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(MIN_FIELD_LEN as i64..=1_048_576))]
    pub field_size: u32,
    /// Percent of a field's bytes that are zeros, for tables that can be compressed; the rest is
    /// random.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    #[serde(default)]
    pub zeros: u32,
    /// Rows of a partition, clustered by `c`; 0: each record is a partition.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    #[serde(default)]
    pub partition_rows: u32,
    /// Partitions begin with the row of the highest `c`.
    #[arg(long, requires = "partition_rows")]
    #[serde(default)]
    pub newest_first: bool,
}

/// Accepts names that need no quoting: they go into statements as they are.
pub fn identifier(name: &str) -> Result<String, String> {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
    if first
        && name.len() <= 48
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    {
        Ok(name.to_owned())
    } else {
        Err("use lower-case letters, digits and _, starting with a letter, at most 48 characters"
            .to_owned())
    }
}

impl TableSpec {
    /// Creates keyspace (one copy on one node) and table if they are not there. Fields are `blob`:
    /// values are random bytes.
    pub fn create(&self, connection: &mut Connection) -> Result<(), CqlError> {
        let Self { keyspace, table, fields, .. } = self;
        let columns: String = (0..*fields).map(|i| format!(", field{i} blob")).collect();
        connection.query(
            &format!(
                "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = \
                 {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            ),
            Consistency::Quorum,
        )?;
        let (key, order) = match (self.partition_rows, self.newest_first) {
            (0, _) => ("y_id text PRIMARY KEY", ""),
            (_, false) => ("y_id text, c int, PRIMARY KEY (y_id, c)", ""),
            (_, true) => {
                ("y_id text, c int, PRIMARY KEY (y_id, c)", " WITH CLUSTERING ORDER BY (c DESC)")
            }
        };
        connection.query(
            &format!("CREATE TABLE IF NOT EXISTS {keyspace}.{table} ({key}{columns}){order}"),
            Consistency::Quorum,
        )?;
        Ok(())
    }

    /// Names of all columns, the key first.
    fn columns(&self) -> String {
        let key = if self.partition_rows == 0 { "y_id" } else { "y_id, c" };
        let names: String = (0..self.fields).map(|i| format!(", field{i}")).collect();
        format!("{key}{names}")
    }

    /// How many partitions its records fill or begin.
    pub fn partitions(&self) -> u64 {
        self.records.div_ceil(u64::from(self.partition_rows.max(1)))
    }

    /// The statement that writes a whole record: values are the key, then the fields.
    pub fn insert(&self) -> String {
        let columns = self.columns();
        let marks = ", ?".repeat(columns.matches(',').count());
        format!("INSERT INTO {}.{} ({columns}) VALUES (?{marks})", self.keyspace, self.table)
    }

    /// The statement that reads a slice of a partition. Values are its key, the lowest `c` unless
    /// the `newest` rows are wanted, and how many.
    pub fn slice(&self, newest: bool) -> String {
        let from = if newest { " ORDER BY c DESC" } else { " AND c >= ?" };
        let (columns, Self { keyspace, table, .. }) = (self.columns(), self);
        format!("SELECT {columns} FROM {keyspace}.{table} WHERE y_id = ?{from} LIMIT ?")
    }

    /// The statement that asks for the `c` of the newest row of the partition `key`.
    pub fn newest(&self, key: &str) -> String {
        let Self { keyspace, table, .. } = self;
        format!("SELECT c FROM {keyspace}.{table} WHERE y_id = '{key}' ORDER BY c DESC LIMIT 1")
    }

    /// The statement that writes one field: values are the field, then the key.
    pub fn update(&self, field: u32) -> String {
        format!("UPDATE {}.{} SET field{field} = ? WHERE y_id = ?", self.keyspace, self.table)
    }

    /// The statement that reads a whole record by its key.
    pub fn select(&self) -> String {
        let (columns, Self { keyspace, table, .. }) = (self.columns(), self);
        format!("SELECT {columns} FROM {keyspace}.{table} WHERE y_id = ?")
    }

    /// Bytes of values of the whole table.
    pub fn bytes(&self) -> u64 {
        self.records * u64::from(self.fields) * u64::from(self.field_size)
    }
}
