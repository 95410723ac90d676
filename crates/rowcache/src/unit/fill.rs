//! Reading a unit's rows from the database into its stored form.

use std::fmt::Write;

use afterglow_cql::name::quoted;
use afterglow_cql::plan::{RowKey, TableSchema};

use super::{begin, end, push};
use crate::row::{Cell, FillError, Filled, fill_columns, read_cell};

/// How a unit was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitAsked {
    /// Whether the rows come in the reverse of the table's order.
    pub reversed: bool,
    /// The most rows that the database was to give.
    pub rows: u32,
    /// The most bytes that the unit may have. Rows beyond are left out.
    pub bytes: usize,
}

/// The SELECT that reads a unit. It has the columns of
/// [`fill_query`](crate::row::fill_query). Its markers are the columns of the partition key
/// ([`RowKey::columns`] of the unit's key), then the limit. For a table with clustering columns and
/// without static ones.
pub fn unit_query(table: &TableSchema, reversed: bool) -> String {
    let names = |columns: &[String]| columns.join(", ");
    let (keyspace, name) = (quoted(&table.keyspace), quoted(&table.name));
    let columns = names(&fill_columns(table));
    let matches: Vec<String> =
        table.partition_key.iter().map(|column| format!("{} = ?", quoted(&column.name))).collect();
    let mut query =
        format!("SELECT {columns} FROM {keyspace}.{name} WHERE {}", matches.join(" AND "));
    if reversed {
        let order: Vec<String> = table
            .clustering
            .iter()
            .map(|column| {
                let way = if column.descending { "ASC" } else { "DESC" };
                format!("{} {way}", quoted(&column.name))
            })
            .collect();
        // Writing to a string cannot fail.
        let _ = write!(query, " ORDER BY {}", names(&order));
    }
    query + " LIMIT ?"
}

/// Makes the stored form of a fill's answer. `rows` are the answer's rows, each with its cells in
/// the order of [`unit_query`]. `key` is that of the unit. `asked_at` is when the fill was sent
/// (seconds since 1970). Remaining TTLs count from it.
///
/// # Errors
/// Why it is not stored.
pub fn read_unit(
    table: &TableSchema,
    fingerprint: u64,
    key: &RowKey,
    rows: &[Vec<Option<&[u8]>>],
    asked: UnitAsked,
    asked_at: u32,
) -> Result<Filled, FillError> {
    let (partition, clustering) = (table.partition_key.len(), table.clustering.len());
    let keys = partition + clustering;
    let columns = u16::try_from(clustering + table.regulars.len());
    let columns = columns.map_err(|_| FillError::TooLarge)?;
    let (mut bytes, mut taken, mut first, mut marker_only) = (Vec::new(), 0, None, false);
    begin(fingerprint, columns, asked.reversed, &mut bytes);
    for row in rows {
        if row.len() != keys + 3 * table.regulars.len() || row[partition..keys].contains(&None) {
            return Err(FillError::Shape);
        }
        if !key.columns().map(Some).eq(row[..partition].iter().copied()) {
            return Err(FillError::KeyForm);
        }
        let cells: Vec<Cell<'_>> = table
            .regulars
            .iter()
            .zip(row[keys..].chunks_exact(3))
            .map(|(column, cell)| read_cell(column, cell, asked_at))
            .collect::<Result<_, _>>()?;
        let before = bytes.len();
        let clustering = row[partition..keys].iter().copied();
        push(clustering.chain(cells.iter().map(|cell| cell.value)), &mut bytes);
        if bytes.len() > asked.bytes {
            bytes.truncate(before);
            break;
        }
        taken += 1;
        let expiries = cells.iter().map(|cell| cell.expiry).filter(|expiry| *expiry != 0);
        first = first.into_iter().chain(expiries).min();
        marker_only |= cells.iter().all(|cell| cell.value.is_none());
    }
    if taken == 0 && !rows.is_empty() {
        return Err(FillError::TooLarge);
    }
    let whole = taken as usize == rows.len() && taken < asked.rows;
    end(taken, whole, &mut bytes);
    let max_age = first.map(|expiry: u32| expiry.saturating_sub(asked_at).saturating_sub(1));
    Ok(Filled { bytes, max_age, marker_only })
}
