//! Reading a whole row from the database into its stored form.

use afterglow_cql::frame::notation::Reader;
use afterglow_cql::name::quoted;
use afterglow_cql::plan::{Cells, Column, RowKey, TableSchema};
use thiserror::Error;

use super::{Cell, encode, encode_absent};

/// The SELECT that reads one whole row with write times and remaining TTLs. It has all key
/// columns, then for each other column its value, `WRITETIME` and `TTL`. Its markers are the key
/// columns in table order ([`RowKey::columns`]). For a table that [`TableSchema::cacheable`]
/// allows.
pub fn fill_query(table: &TableSchema) -> String {
    let items = fill_columns(table).join(", ");
    let matches: Vec<String> =
        table.keys().map(|key| format!("{} = ?", quoted(&key.name))).collect();
    let (keyspace, name) = (quoted(&table.keyspace), quoted(&table.name));
    format!("SELECT {items} FROM {keyspace}.{name} WHERE {}", matches.join(" AND "))
}

/// What a fill selects: all key columns, then each other column with its `WRITETIME` and `TTL`.
pub(crate) fn fill_columns(table: &TableSchema) -> Vec<String> {
    let value = |name: String| format!("{name}, WRITETIME({name}), TTL({name})");
    let keys = table.keys().map(|column| quoted(&column.name));
    keys.chain(table.values().map(|column| value(quoted(&column.name)))).collect()
}

/// A fill's answer in stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// The stored row or unit.
    pub bytes: Vec<u8>,
    /// For so many seconds from when the fill was sent, nothing of it expires, whatever the
    /// clocks of the database and ours say. `None`: nothing ever does. The whole entry ends then.
    ///
    /// A server counts whole seconds from the moment at which it takes the fill. A `TTL` of 7
    /// means: the cell ends when the server's clock, rounded down, is seven seconds further. That
    /// is after more than 6 s and at most 7 s. This is the 6.
    pub max_age: Option<u32>,
    /// A row exists, but has no value besides its key. It exists as long as a marker whose expiry
    /// no SELECT shows. So the maximum age must be short.
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

/// Makes the stored form of a fill's answer. `rows` are the answer's rows, each with its cells in
/// the order of [`fill_query`]. `asked_at` is when the fill was sent (seconds since 1970).
/// Remaining TTLs count from it.
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
            return Ok(Filled { bytes, max_age: None, marker_only: false });
        }
        [row] => row,
        _ => return Err(FillError::Shape),
    };
    let keys = table.keys().count();
    if row.len() != keys + 3 * table.values().count() {
        return Err(FillError::Shape);
    }
    if !key.columns().map(Some).eq(row[..keys].iter().copied()) {
        return Err(FillError::KeyForm);
    }
    let cells = table
        .values()
        .zip(row[keys..].chunks_exact(3))
        .map(|(column, cell)| read_cell(column, cell, asked_at))
        .collect::<Result<Vec<_>, _>>()?;
    let mut bytes = Vec::new();
    if !encode(fingerprint, &cells, &mut bytes) {
        return Err(FillError::TooLarge);
    }
    let first = cells.iter().map(|cell| cell.expiry).filter(|expiry| *expiry != 0).min();
    let max_age = first.map(|expiry| expiry.saturating_sub(asked_at).saturating_sub(1));
    // Static values are the partition's: they do not make a row.
    let marker_only = cells[table.statics.len()..].iter().all(|cell| cell.value.is_none());
    Ok(Filled { bytes, max_age, marker_only })
}

/// A value with its write time (bigint) and remaining TTL (int seconds, null for none). A value of
/// many cells has lists of both: it is as new as its newest cell, and ends with the first to
/// expire.
pub(crate) fn read_cell<'a>(
    column: &Column,
    cell: &[Option<&'a [u8]>],
    asked_at: u32,
) -> Result<Cell<'a>, FillError> {
    let Some(value) = cell[0] else { return Ok(Cell::NULL) };
    let (times, ttls) = match column.cells() {
        Cells::Many => (elements(cell[1])?, elements(cell[2])?),
        _ => (vec![cell[1]], vec![cell[2]]),
    };
    let times = times.into_iter().flatten().map(|time| time.try_into().map(i64::from_be_bytes));
    let times = times.collect::<Result<Vec<_>, _>>().map_err(|_| FillError::Shape)?;
    let ttls = ttls.into_iter().flatten().map(|left| {
        let left = left.try_into().map(i32::from_be_bytes).map_err(|_| FillError::Shape)?;
        u32::try_from(left).map_err(|_| FillError::Shape)
    });
    let expiry = match ttls.collect::<Result<Vec<_>, _>>()?.into_iter().min() {
        None => 0,
        Some(left) => asked_at.saturating_add(left).max(1),
    };
    let write_time = times.into_iter().max().ok_or(FillError::Shape)?;
    Ok(Cell { value: Some(value), write_time, expiry })
}

/// The elements of a list, null ones among them; of none if there is no list.
fn elements(list: Option<&[u8]>) -> Result<Vec<Option<&[u8]>>, FillError> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let mut reader = Reader::new(list);
    let mut read = || {
        let count = reader.int()?.max(0);
        (0..count).map(|_| reader.bytes()).collect::<Result<_, _>>()
    };
    read().map_err(|_| FillError::Shape)
}
