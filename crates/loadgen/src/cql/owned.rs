//! The records that one node owns, by the tokens that it shows to drivers: what a token-aware
//! client sends to it.

use afterglow_cql::{frame::notation::Reader, message::Consistency, token::murmur3};

use super::{Connection, CqlError, connection::OwnedRow};
use crate::values::{self, KEY_LEN};

/// Numbers below `records` whose key belongs to the node at the other end of the connection, in
/// ascending order.
///
/// A key belongs to the node with the lowest token that is not below the key's own, and to the one
/// with the lowest of all if there is none.
///
/// # Errors
/// When the tables that drivers read cannot be read, or have no tokens.
pub fn owned(connection: &mut Connection, records: u64) -> Result<Vec<u64>, CqlError> {
    let mut ring = Vec::new();
    for (table, is_local) in [("system.local", true), ("system.peers", false)] {
        let text = format!("SELECT tokens FROM {table}");
        for row in connection.query(&text, Consistency::One)? {
            ring.extend(tokens(&row)?.into_iter().map(|token| (token, is_local)));
        }
    }
    ring.sort_unstable();
    let Some(first) = ring.first().copied() else {
        return Err(CqlError::Unexpected("no tokens in system.local".to_owned()));
    };
    let is_owned = |number: &u64| {
        let mut key = [0; KEY_LEN];
        values::write_key(*number, &mut key);
        let token = murmur3(&key);
        let at = ring.partition_point(|(end, _)| *end < token);
        ring.get(at).unwrap_or(&first).1
    };
    Ok((0..records).filter(is_owned).collect())
}

/// The tokens of a row: a set of texts, each a number.
fn tokens(row: &OwnedRow) -> Result<Vec<i64>, CqlError> {
    let Some(Some(cell)) = row.first() else { return Ok(Vec::new()) };
    let mut reader = Reader::new(cell);
    let count = reader.int()?;
    let mut tokens = Vec::new();
    for _ in 0..count {
        let text = reader.bytes()?.unwrap_or_default();
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let shown = || CqlError::Unexpected(format!("a token {}", text.escape_ascii()));
        tokens.push(number.ok_or_else(shown)?);
    }
    Ok(tokens)
}
