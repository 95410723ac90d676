//! Row keys as people write them: `7`, `'a', 2026`. For hot keys and the slow-request log.

use std::fmt::Write;

use afterglow_cql::plan::{RowKey, TableSchema};
use uuid::Uuid;

use crate::frontend::cql::hex::hex;
use crate::hotkeys::Seen;

/// Bytes of a value that are written out; of longer ones the beginning.
const LONGEST: usize = 64;

/// A row of a table, for the sample of hot keys.
pub(super) fn seen(table: &TableSchema, key: &RowKey) -> Seen<'static> {
    Seen::Row { table: format!("{}.{}", table.keyspace, table.name), key: row(table, key) }
}

/// The values of a row's key columns in the order of the table.
pub(super) fn row(table: &TableSchema, key: &RowKey) -> String {
    let mut text = String::new();
    let types = table.partition_key.iter().chain(&table.clustering).map(|c| &*c.cql_type);
    for (value, cql_type) in key.columns().zip(types) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        literal(value, cql_type, &mut text);
    }
    text
}

/// A value as a literal of CQL where its type is an easy one, in hexadecimal otherwise.
fn literal(value: &[u8], cql_type: &str, out: &mut String) {
    let number = || match *value {
        [a] => Some(i64::from(i8::from_be_bytes([a]))),
        [a, b] => Some(i64::from(i16::from_be_bytes([a, b]))),
        [a, b, c, d] => Some(i64::from(i32::from_be_bytes([a, b, c, d]))),
        _ => value.try_into().ok().map(i64::from_be_bytes),
    };
    let start = &value[..value.len().min(LONGEST)];
    let rest = if start.len() < value.len() { "…" } else { "" };
    // Writing to a string cannot fail.
    let _ = match cql_type {
        "text" | "varchar" | "ascii" => {
            let text = String::from_utf8_lossy(start);
            write!(out, "'{}{rest}'", text.replace('\'', "''"))
        }
        "tinyint" | "smallint" | "int" | "bigint" => match number() {
            Some(number) => write!(out, "{number}"),
            None => write!(out, "0x{}", hex(start)),
        },
        "boolean" => write!(out, "{}", value.first().is_some_and(|byte| *byte != 0)),
        "uuid" | "timeuuid" => match Uuid::from_slice(value) {
            Ok(uuid) => write!(out, "{uuid}"),
            Err(_) => write!(out, "0x{}", hex(start)),
        },
        _ => write!(out, "0x{}{rest}", hex(start)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_easy_types_are_written_as_literals_and_others_in_hexadecimal() {
        let of = |value: &[u8], cql_type: &str| {
            let mut text = String::new();
            literal(value, cql_type, &mut text);
            text
        };
        assert_eq!(of(b"it's", "text"), "'it''s'");
        assert_eq!(of(&(-7_i32).to_be_bytes(), "int"), "-7");
        assert_eq!(of(&7_i64.to_be_bytes(), "bigint"), "7");
        assert_eq!(of(&[255], "tinyint"), "-1");
        assert_eq!(of(&[1], "boolean"), "true");
        assert_eq!(of(&[0; 16], "uuid"), "00000000-0000-0000-0000-000000000000");
        assert_eq!(of(&[1, 2], "uuid"), "0x0102", "of the wrong length");
        assert_eq!(of(&[0xca, 0xfe], "blob"), "0xcafe");
        assert_eq!(of(&[b'x'; 100], "text"), format!("'{}…'", "x".repeat(64)));
        assert_eq!(of(&[], "int"), "0x");
    }
}
