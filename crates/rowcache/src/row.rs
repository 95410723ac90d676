//! The cached unit: one whole row of a table, or the knowledge that it does not exist.
//!
//! Layout, little endian: `format u8 | kind u8 | columns u16 | fingerprint u64`, then for a present
//! row one slot per static and regular column, `end u32 | write time i64 | expiry u32`, then the
//! values back to back. The end's highest bit marks a null; values start where the one before ends.
//! The slots are of fixed size, so that a column is found by its index. The engine checks
//! integrity. The reader here accepts any bytes all the same; a row that it cannot read is a miss.

use afterglow_cql::frame::notation::{Put, Value};
use afterglow_cql::plan::{Projected, ReadPlan, RowKey};

mod fill;

pub use fill::{FillError, Filled, fill_query, read_fill};
pub(crate) use fill::{fill_columns, read_cell};

const FORMAT: u8 = 3;
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
const HEADER: usize = 12;
const SLOT: usize = 16;
/// Of a `[bytes]` without its bytes.
pub(crate) const LENGTH: usize = 4;
const NULL: u32 = 1 << 31;

/// A cell as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell<'a> {
    /// The value in the bytes of its type; `None` is null.
    pub value: Option<&'a [u8]>,
    /// Write time in microseconds since 1970; 0 for null.
    pub write_time: i64,
    /// When the cell expires by our clock, in seconds since 1970; 0 for never.
    pub expiry: u32,
}

impl Cell<'_> {
    /// A null cell.
    pub const NULL: Cell<'static> = Cell { value: None, write_time: 0, expiry: 0 };
}

/// A stored row, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRow<'a> {
    fingerprint: u64,
    body: Option<Body<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Body<'a> {
    slots: &'a [u8],
    values: &'a [u8],
}

/// No more bytes than these are in an answer with one row for the columns of `read`, where key and
/// values have `once` bytes: a text may select one column any number of times.
pub fn most_bytes(once: usize, read: &ReadPlan) -> usize {
    read.projection.len() * LENGTH + once.saturating_mul(read.repeats)
}

impl<'a> StoredRow<'a> {
    /// Reads `bytes`. `None` for anything that [`encode`] and [`encode_absent`] do not write.
    pub fn decode(bytes: &'a [u8]) -> Option<StoredRow<'a>> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let columns = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let fingerprint = u64::from_le_bytes(header[4..].try_into().ok()?);
        let body = match (header[0], header[1]) {
            (FORMAT, ABSENT) if columns == 0 && rest.is_empty() => None,
            (FORMAT, PRESENT) => {
                let (slots, values) = rest.split_at_checked(columns * SLOT)?;
                Some(Body::checked(slots, values)?)
            }
            _ => return None,
        };
        Some(StoredRow { fingerprint, body })
    }

    /// The fingerprint of the table that it was stored under. If the table's is another, the row
    /// must not be used.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether the row is known not to exist.
    pub fn is_absent(&self) -> bool {
        self.body.is_none()
    }

    /// The column at `index` (position in [`afterglow_cql::plan::TableSchema::values`]); null where
    /// there is none.
    pub fn cell(&self, index: u16) -> Cell<'a> {
        self.body.and_then(|body| body.cell(usize::from(index))).unwrap_or(Cell::NULL)
    }

    /// Number of static and regular columns; 0 for an absent row.
    pub fn columns(&self) -> u16 {
        self.body.map_or(0, |body| (body.slots.len() / SLOT) as u16)
    }

    /// No more bytes than these does [`StoredRow::write_cells`] append for the columns of `read`.
    pub fn most_bytes(&self, key: &RowKey, read: &ReadPlan) -> usize {
        let Some(body) = self.body else { return 0 };
        most_bytes(body.values.len() + key.engine_key().len(), read)
    }

    /// Appends what follows the metadata in a RESULT Rows body: the row count and the cells of the
    /// row's projection. `key` is the key that the row was found under.
    pub fn write_rows(&self, key: &RowKey, projection: &[Projected], out: &mut Vec<u8>) {
        out.put_int(i32::from(!self.is_absent()));
        self.write_cells(key, projection, out);
    }

    /// Appends the cells of the row's projection; nothing if the row does not exist.
    pub fn write_cells(&self, key: &RowKey, projection: &[Projected], out: &mut Vec<u8>) {
        let Some(body) = self.body else { return };
        for column in projection {
            let value = match column {
                // Only the rows of a slice are counted.
                Projected::Count => None,
                Projected::Key(at) => key.columns().nth(usize::from(*at)),
                Projected::Value(at) => body.cell(usize::from(*at)).and_then(|cell| cell.value),
            };
            out.put_value(value.map_or(Value::Null, Value::Bytes));
        }
    }
}

impl<'a> Body<'a> {
    /// Ends must not decrease, and the last must be the end of the values. Then every cell lies
    /// within the values.
    fn checked(slots: &'a [u8], values: &'a [u8]) -> Option<Body<'a>> {
        let body = Body { slots, values };
        let mut start = 0;
        for index in 0..slots.len() / SLOT {
            let end = body.end(index)?;
            let null = end & NULL != 0;
            let end = (end & !NULL) as usize;
            if end < start || (null && end != start) {
                return None;
            }
            start = end;
        }
        (start == values.len()).then_some(body)
    }

    fn end(&self, index: usize) -> Option<u32> {
        let slot = self.slots.get(index * SLOT..index * SLOT + 4)?;
        Some(u32::from_le_bytes(slot.try_into().ok()?))
    }

    fn cell(&self, index: usize) -> Option<Cell<'a>> {
        let slot = self.slots.get(index * SLOT..(index + 1) * SLOT)?;
        let end = self.end(index)?;
        if end & NULL != 0 {
            return Some(Cell::NULL);
        }
        let start = if index == 0 { 0 } else { self.end(index - 1)? & !NULL };
        Some(Cell {
            value: Some(self.values.get(start as usize..end as usize)?),
            write_time: i64::from_le_bytes(slot[4..12].try_into().ok()?),
            expiry: u32::from_le_bytes(slot[12..].try_into().ok()?),
        })
    }
}

/// Appends a row that exists, one cell for each of the table's
/// [values](afterglow_cql::plan::TableSchema::values), to `out`.
///
/// All values together must be shorter than 2 GiB, and columns fewer than 65536. A frame and
/// [`afterglow_cql::plan::TableSchema::cacheable`] ensure that. Otherwise this returns false and
/// writes nothing.
pub fn encode(fingerprint: u64, cells: &[Cell], out: &mut Vec<u8>) -> bool {
    let total: usize = cells.iter().filter_map(|cell| cell.value).map(<[u8]>::len).sum();
    if total >= NULL as usize || cells.len() > usize::from(u16::MAX) {
        return false;
    }
    out.reserve(HEADER + cells.len() * SLOT + total);
    header(PRESENT, cells.len() as u16, fingerprint, out);
    let mut end = 0_u32;
    for cell in cells {
        let (mark, write_time, expiry) = match cell.value {
            Some(value) => {
                end += value.len() as u32;
                (end, cell.write_time, cell.expiry)
            }
            None => (end | NULL, 0, 0),
        };
        out.extend_from_slice(&mark.to_le_bytes());
        out.extend_from_slice(&write_time.to_le_bytes());
        out.extend_from_slice(&expiry.to_le_bytes());
    }
    cells.iter().filter_map(|cell| cell.value).for_each(|value| out.extend_from_slice(value));
    true
}

/// Appends the knowledge that a row does not exist.
pub fn encode_absent(fingerprint: u64, out: &mut Vec<u8>) {
    header(ABSENT, 0, fingerprint, out);
}

fn header(kind: u8, columns: u16, fingerprint: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&[FORMAT, kind]);
    out.extend_from_slice(&columns.to_le_bytes());
    out.extend_from_slice(&fingerprint.to_le_bytes());
}

#[cfg(test)]
mod tests;
