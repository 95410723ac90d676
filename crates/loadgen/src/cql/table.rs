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
        connection.query(
            &format!(
                "CREATE TABLE IF NOT EXISTS {keyspace}.{table} (y_id text PRIMARY KEY{columns})"
            ),
            Consistency::Quorum,
        )?;
        Ok(())
    }

    /// The statement that writes a whole record: values are the key, then the fields.
    pub fn insert(&self) -> String {
        let names: String = (0..self.fields).map(|i| format!(", field{i}")).collect();
        let marks = ", ?".repeat(self.fields as usize);
        format!("INSERT INTO {}.{} (y_id{names}) VALUES (?{marks})", self.keyspace, self.table)
    }

    /// The statement that writes one field: values are the field, then the key.
    pub fn update(&self, field: u32) -> String {
        format!("UPDATE {}.{} SET field{field} = ? WHERE y_id = ?", self.keyspace, self.table)
    }

    /// The statement that reads a whole record by its key.
    pub fn select(&self) -> String {
        let names: String = (0..self.fields).map(|i| format!(", field{i}")).collect();
        format!("SELECT y_id{names} FROM {}.{} WHERE y_id = ?", self.keyspace, self.table)
    }

    /// Bytes of values of the whole table.
    pub fn bytes(&self) -> u64 {
        self.records * u64::from(self.fields) * u64::from(self.field_size)
    }
}
