//! The key that an `INSERT JSON` names, read as Cassandra reads it.
//!
//! Names in the document are folded as Cassandra folds them: `"\"MyCol\""` as it is, others to
//! lower case. Only values are taken whose bytes are certain. Whatever else is in the document, the
//! key is the same, or the database refuses it.
//!
//! In a table with clustering columns the whole partition is named. Without `DEFAULT UNSET` the
//! statement sets static columns to null that it does not name, also one that was added a moment
//! ago and that this instance has not heard of.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::key::{KeyTemplate, Part, PartitionTemplate, ValueSource};
use super::literal;
use super::named_keys::NamedKeys;
use super::schema::{Column, TableSchema};
use super::types::KeyClass;
use crate::json_object::{JsonValue, members};
use crate::statement::Literal;

/// The key columns of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct JsonKeys {
    partition: Vec<Column>,
    /// Whether a partition is one row: then the table cannot have static columns.
    is_one_row: bool,
}

impl JsonKeys {
    pub(crate) fn new(table: &TableSchema) -> JsonKeys {
        let partition = table.partition_key.clone();
        JsonKeys { partition, is_one_row: table.clustering.is_empty() }
    }

    /// These columns.
    pub(super) fn columns(&self) -> &[Column] {
        &self.partition
    }

    /// The row or partition that a document names.
    pub(crate) fn of(&self, table: Uuid, text: &str) -> NamedKeys {
        let Some(named) = folded(text) else { return NamedKeys::Table };
        let part = |column: &Column| {
            let value = named.get(&column.name)?;
            let slot = ValueSource::Literal(encode(value, &column.cql_type)?.into());
            Some(Part { slot, class: KeyClass::PARTITION })
        };
        let parts: Option<Vec<Part>> = self.partition.iter().map(part).collect();
        let Some(parts) = parts else { return NamedKeys::Table };
        let partition = PartitionTemplate { table, parts };
        match self.is_one_row {
            true => NamedKeys::Rows(vec![KeyTemplate { partition, clustering: Vec::new() }]),
            false => NamedKeys::Partitions(vec![partition]),
        }
    }
}

/// The members by the names of their columns; `None` if the text is no strict JSON, or if servers
/// may disagree on which member is which column's.
///
/// A server folds one name after the other, in place: what it folds may overwrite a member whose
/// name is not folded yet. So a folded name must differ from every name as it is written, too.
fn folded(text: &str) -> Option<HashMap<String, JsonValue>> {
    let (mut named, mut seen) = (HashMap::new(), HashSet::new());
    for (written, value) in members(text)? {
        let name = match written.strip_prefix('"') {
            Some(rest) if rest.ends_with('"') => rest[..rest.len() - 1].to_owned(),
            // Java folds other letters into these too.
            _ if !written.is_ascii() => return None,
            _ => written.to_ascii_lowercase(),
        };
        if (written != name && !seen.insert(written)) || !seen.insert(name.clone()) {
            return None;
        }
        named.insert(name, value);
    }
    Some(named)
}

/// Bytes of a JSON value as a key column of the native type `cql_type`, where certain.
fn encode(value: &JsonValue, cql_type: &str) -> Option<Vec<u8>> {
    let literal = match (value, cql_type) {
        (
            JsonValue::Number(number) | JsonValue::String(number),
            "int" | "bigint" | "smallint" | "tinyint" | "varint",
        ) => integer(number)?,
        (JsonValue::Number(number), "timestamp") => integer(number)?,
        (JsonValue::Boolean(value), "boolean") => Literal::Boolean(*value),
        (
            JsonValue::String(text),
            "text" | "varchar" | "ascii" | "inet" | "date" | "time" | "timestamp",
        ) => Literal::String(text.clone()),
        (JsonValue::String(text), "uuid" | "timeuuid") if is_uuid(text) => {
            Literal::Uuid(text.clone())
        }
        (JsonValue::String(text), "blob") => Literal::Hex(text.strip_prefix("0x")?.to_owned()),
        _ => return None,
    };
    literal::encode(&literal, cql_type)
}

/// Digits with an optional minus.
fn integer(number: &str) -> Option<Literal> {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| Literal::Integer(number.to_owned()))
}

/// Whether it has the one form of a uuid that all servers read.
fn is_uuid(text: &str) -> bool {
    let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let fits =
        |(at, byte): (usize, u8)| if dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}
