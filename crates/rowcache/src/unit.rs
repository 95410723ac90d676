//! A partition unit: rows of one partition in their order, from one of its ends on.
//!
//! Layout: `format u8 | flags u8 | columns u16 | fingerprint u64 | rows u32`, little endian, then
//! each row as `length u32` (little endian) and its cells. A cell is a `[bytes]` of the protocol:
//! `length i32` (big endian, -1 for null) and the value. Cells are the clustering columns, then the
//! regular ones. The reader takes any bytes; a unit that it cannot read is a miss.
//!
//! Invariants:
//! - The rows are all that the partition has from its end up to the last of them. A *whole* unit
//!   has all rows of the partition.
//! - Every write to the partition drops the unit, and its gate is that of the partition's rows. A
//!   write of one row may put it back ([`refresh`](crate::refresh)). See
//!   `docs/internals/row-freshness.md`.

use afterglow_cql::frame::notation::{Put, Value};
use afterglow_cql::plan::{Projected, ReadPlan, RowKey, RowPlace, Slice, TableSchema};

use crate::row::LENGTH;

mod amend;
mod churn;
mod fill;
mod row;
mod sizes;

pub(crate) use amend::Coverage;
pub use fill::{UnitAsked, read_unit, unit_query};
pub use sizes::{NoFill, Units};

/// Differs from the format of rows, though no row has the key of a unit.
const FORMAT: u8 = 0x81;
const REVERSED: u8 = 1;
const WHOLE: u8 = 2;
const HEADER: usize = 16;

/// A stored unit, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredUnit<'a> {
    reversed: bool,
    whole: bool,
    columns: usize,
    fingerprint: u64,
    count: usize,
    rows: &'a [u8],
}

/// Why a unit does not answer a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The read may want rows behind the unit's last.
    Beyond,
    /// The answer would have another page, or may have one.
    Paged,
    /// The answer may be longer than the caller takes.
    TooLong,
    /// The bytes are no unit.
    Corrupt,
    /// A clustering value has no certain place in the order, or another form than the one asked
    /// for.
    Unordered,
}

impl<'a> StoredUnit<'a> {
    /// Reads the start of `bytes`. `None` for what is no unit; the rows are checked when they are
    /// read.
    pub fn decode(bytes: &'a [u8]) -> Option<StoredUnit<'a>> {
        let (header, rows) = bytes.split_at_checked(HEADER)?;
        let flags = header[1];
        if header[0] != FORMAT || flags & !(REVERSED | WHOLE) != 0 {
            return None;
        }
        let count = u32::from_le_bytes(header[12..].try_into().ok()?) as usize;
        // A lie costs no memory.
        (count <= rows.len() / 4).then_some(StoredUnit {
            reversed: flags & REVERSED != 0,
            whole: flags & WHOLE != 0,
            columns: usize::from(u16::from_le_bytes([header[2], header[3]])),
            fingerprint: u64::from_le_bytes(header[4..12].try_into().ok()?),
            count,
            rows,
        })
    }

    /// The fingerprint of the table that it was stored under.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether it has all rows of its partition.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.count
    }

    /// The rows of a slice of `table`, as the database would give them to a request with this page
    /// size.
    ///
    /// # Errors
    /// Why the database must be asked.
    pub fn answer(
        &self,
        table: &TableSchema,
        slice: &Slice,
        page_size: Option<i32>,
    ) -> Result<SliceRows<'a>, Unanswered> {
        let clustering = table.clustering.len();
        if self.columns != clustering + table.values().count() {
            return Err(Unanswered::Corrupt);
        }
        let turned = self.reversed != slice.reversed;
        if turned && !self.whole {
            return Err(Unanswered::Beyond);
        }
        let limit = slice.limit.map_or(usize::MAX, |limit| limit as usize);
        let most = slice.most_rows(clustering).map_or(limit, |most| most.min(limit));
        let (rows, complete) = match turned {
            false => select(self.iter(), clustering, slice, most)?,
            true => {
                let all: Vec<_> = self.iter().collect();
                select(all.into_iter().rev(), clustering, slice, most)?
            }
        };
        if !complete && !self.whole {
            return Err(Unanswered::Beyond);
        }
        // With as many rows as a page has there is another page, unless a limit forbids it.
        let fits = page_size
            .and_then(|size| usize::try_from(size).ok())
            .is_none_or(|size| rows.len() < size || rows.len() == size && rows.len() == limit);
        if fits { Ok(SliceRows { clustering, rows }) } else { Err(Unanswered::Paged) }
    }

    fn iter(&self) -> Rows<'a> {
        Rows { rest: self.rows, left: self.count }
    }
}

/// The cells of a row, each as a `[bytes]`.
type RowBytes<'a> = &'a [u8];

/// The rows of a unit; `None` in the place of what is no row, and nothing after it.
struct Rows<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Rows<'a> {
    type Item = Option<RowBytes<'a>>;

    fn next(&mut self) -> Option<Option<RowBytes<'a>>> {
        self.left = self.left.checked_sub(1)?;
        let row = self
            .rest
            .split_first_chunk::<4>()
            .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
        match row {
            Some((row, rest)) => {
                self.rest = rest;
                Some(Some(row))
            }
            None => {
                self.left = 0;
                Some(None)
            }
        }
    }
}

/// The rows in the slice, and whether the slice ends within the rows.
fn select<'a>(
    rows: impl Iterator<Item = Option<RowBytes<'a>>>,
    clustering: usize,
    slice: &Slice,
    most: usize,
) -> Result<(Vec<RowBytes<'a>>, bool), Unanswered> {
    let mut found = Vec::new();
    for row in rows {
        let row = row.ok_or(Unanswered::Corrupt)?;
        let keys = Cells { rest: row }.take(clustering).map_while(|cell| cell);
        match slice.place(keys).ok_or(Unanswered::Unordered)? {
            // None comes once the slice has begun.
            RowPlace::Before if found.is_empty() => {}
            RowPlace::Before => return Err(Unanswered::Unordered),
            RowPlace::In => found.push(row),
            RowPlace::Between => {}
            RowPlace::After => return Ok((found, true)),
        }
        if found.len() == most {
            return Ok((found, true));
        }
    }
    Ok((found, false))
}

/// The values of a row; null in the place of what is no cell.
struct Cells<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Cells<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        let (length, rest) = self.rest.split_first_chunk::<4>()?;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            self.rest = rest;
            return Some(None);
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some(Some(value))
    }
}

/// The rows that answer a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceRows<'a> {
    clustering: usize,
    rows: Vec<RowBytes<'a>>,
}

impl SliceRows<'_> {
    /// How many rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// No more bytes than these does [`SliceRows::write_rows`] append for the columns of `read`
    /// behind the row count: a text may select one column any number of times, and each row shows
    /// the partition's key.
    pub fn most_bytes(&self, key: &RowKey, read: &ReadPlan) -> usize {
        let columns = key.columns().count();
        let of_key =
            |at: &Projected| matches!(at, Projected::Key(at) if usize::from(*at) < columns);
        let shows_key = read.projection.iter().any(of_key);
        let shared = if shows_key { key.partition_key().len() } else { 0 };
        let stored: usize = self.rows.iter().map(|row| row.len()).sum();
        let once = stored + self.rows.len() * shared;
        let lengths = read.projection.len() * self.rows.len().max(1) * LENGTH;
        // A count has eight bytes.
        once.saturating_mul(read.repeats).saturating_add(lengths).max(LENGTH + 8)
    }

    /// Appends what follows the metadata in a RESULT Rows body: the row count and the cells of the
    /// projection, or one row with the number of rows. `key` is that of the partition.
    pub fn write_rows(&self, key: &RowKey, projection: &[Projected], out: &mut Vec<u8>) {
        if projection == [Projected::Count] {
            out.put_int(1);
            return out.put_value(Value::Bytes(&(self.rows.len() as i64).to_be_bytes()));
        }
        out.put_int(self.rows.len() as i32);
        let partition: Vec<&[u8]> = key.columns().collect();
        let mut cells = Vec::new();
        for row in &self.rows {
            cells.clear();
            cells.extend(Cells { rest: row });
            for column in projection {
                let value = match column {
                    Projected::Key(at) => {
                        let at = usize::from(*at);
                        let behind = || cells.get(at - partition.len()).copied().flatten();
                        partition.get(at).copied().or_else(behind)
                    }
                    // It is never beside others.
                    Projected::Count => None,
                    Projected::Value(at) => {
                        cells.get(self.clustering + usize::from(*at)).copied().flatten()
                    }
                };
                out.put_value(value.map_or(Value::Null, Value::Bytes));
            }
        }
    }
}

/// Begins a unit without rows.
fn begin(fingerprint: u64, columns: u16, reversed: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(&[FORMAT, if reversed { REVERSED } else { 0 }]);
    out.extend_from_slice(&columns.to_le_bytes());
    out.extend_from_slice(&fingerprint.to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
}

/// Appends a row.
fn push<'c>(cells: impl Iterator<Item = Option<&'c [u8]>>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    cells.for_each(|cell| out.put_value(cell.map_or(Value::Null, Value::Bytes)));
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Says how many rows were appended, and whether they are all of the partition.
fn end(rows: u32, whole: bool, out: &mut [u8]) {
    out[1] |= if whole { WHOLE } else { 0 };
    out[12..HEADER].copy_from_slice(&rows.to_le_bytes());
}

#[cfg(test)]
mod tests;
