//! Reading a whole row from the database into its stored form.

use thiserror::Error;

use super::{Cell, encode, encode_absent};
use crate::plan::{RowKey, TableSchema};

/// The SELECT that reads one whole row with write times and remaining lives: all key columns, then for each regular
/// column its value, `WRITETIME` and `TTL`. Its markers are the key columns in table order
/// ([`RowKey::columns`]). For a table that [`TableSchema::cacheable`] allows.
pub fn fill_query(table: &TableSchema) -> String {
    let keys: Vec<String> =
        table.partition_key.iter().chain(&table.clustering).map(|c| quoted(&c.name)).collect();
    let mut items = keys.clone();
    for column in &table.regulars {
        let name = quoted(&column.name);
        items.push(format!("{name}, WRITETIME({name}), TTL({name})"));
    }
    let matches: Vec<String> = keys.iter().map(|key| format!("{key} = ?")).collect();
    let (keyspace, name) = (quoted(&table.keyspace), quoted(&table.name));
    format!("SELECT {} FROM {keyspace}.{name} WHERE {}", items.join(", "), matches.join(" AND "))
}

/// A name in double quotes: never folded, never a keyword.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A fill's answer in stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// The stored row.
    pub bytes: Vec<u8>,
    /// When its first cell expires, in seconds since 1970; 0 for never. The whole entry ends then.
    pub expiry: u32,
    /// The row exists, but has no value besides its key: its life hangs on a marker whose own expiry no SELECT shows, so
    /// it must get a short life.
    pub marker_only: bool,
}

/// Why a fill's answer is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FillError {
    /// More than one row, or not the columns that [`fill_query`] asks for.
    #[error("the fill's answer does not have the shape of its query")]
    Shape,
    /// The database's key bytes are not the bound ones (another form of an equal value).
    #[error("the row's key is stored in another form than the one bound")]
    KeyForm,
    /// The row is too large to store.
    #[error("the row is too large to store")]
    TooLarge,
}

/// Makes the stored form of a fill's answer. `rows` are the answer's rows, each with its cells in the order of [`fill_query`];
/// `asked_at` is when the fill was sent (seconds since 1970), from which remaining lives are counted.
pub fn read_fill(
    table: &TableSchema,
    fingerprint: u64,
    key: &RowKey,
    rows: &[Vec<Option<&[u8]>>],
    asked_at: u32,
) -> Result<Filled, FillError> {
    let row = match rows {
        [] => {
            let mut bytes = Vec::new();
            encode_absent(fingerprint, &mut bytes);
            return Ok(Filled { bytes, expiry: 0, marker_only: false });
        }
        [row] => row,
        _ => return Err(FillError::Shape),
    };
    let keys = table.partition_key.len() + table.clustering.len();
    if row.len() != keys + 3 * table.regulars.len() {
        return Err(FillError::Shape);
    }
    if !key.columns().map(Some).eq(row[..keys].iter().copied()) {
        return Err(FillError::KeyForm);
    }
    let cells =
        row[keys..].chunks_exact(3).map(|cell| read_cell(cell, asked_at)).collect::<Result<Vec<_>, _>>()?;
    let mut bytes = Vec::new();
    if !encode(fingerprint, &cells, &mut bytes) {
        return Err(FillError::TooLarge);
    }
    let expiry = cells.iter().map(|cell| cell.expiry).filter(|expiry| *expiry != 0).min().unwrap_or(0);
    Ok(Filled { bytes, expiry, marker_only: cells.iter().all(|cell| cell.value.is_none()) })
}

/// A value with its write time (bigint) and remaining life (int seconds, null for none).
fn read_cell<'a>(cell: &[Option<&'a [u8]>], asked_at: u32) -> Result<Cell<'a>, FillError> {
    let Some(value) = cell[0] else { return Ok(Cell::NULL) };
    let write_time =
        cell[1].and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes).ok_or(FillError::Shape)?;
    let expiry = match cell[2] {
        None => 0,
        Some(bytes) => {
            let left = bytes.try_into().map(i32::from_be_bytes).map_err(|_| FillError::Shape)?;
            asked_at.saturating_add(u32::try_from(left).map_err(|_| FillError::Shape)?).max(1)
        }
    };
    Ok(Cell { value: Some(value), write_time, expiry })
}
