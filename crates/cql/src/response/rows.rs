//! RESULT Rows.

use super::kind::ResultKind;
use super::metadata::{MetadataOut, ResultMetadata};
use crate::error::ProtocolError;
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result};

/// The message of a RESULT Rows. Metadata is checked, cells are not until they are iterated over.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// What is known about the columns.
    pub metadata: ResultMetadata<'a>,
    /// How many rows there are.
    pub count: usize,
    /// The encoded rows, without their count.
    pub raw: &'a [u8],
}

impl<'a> Rows<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let metadata = ResultMetadata::read(reader)?;
        let count = reader.count("number of rows")? as usize;
        if count > 0 && metadata.column_count == 0 && !reader.is_empty() {
            return Err(ProtocolError::new("Rows without columns are followed by more bytes"));
        }
        Ok(Self { metadata, count, raw: reader.rest() })
    }

    /// The rows. An error ends them.
    pub fn iter(&self) -> RowIter<'a> {
        // Rows without columns take no bytes: their number is no reason to iterate for hours.
        let left = if self.metadata.column_count == 0 { 0 } else { self.count };
        RowIter { reader: Reader::new(self.raw), left, columns: self.metadata.column_count }
    }

    /// Checks that there are exactly as many cells as announced, and nothing behind them.
    pub fn check(&self) -> Result<()> {
        let mut rows = self.iter();
        for row in &mut rows {
            row?;
        }
        if rows.reader.is_empty() {
            Ok(())
        } else {
            Err(ProtocolError::new("Rows are followed by more bytes"))
        }
    }
}

/// Iterates over rows.
#[derive(Debug, Clone)]
pub struct RowIter<'a> {
    reader: Reader<'a>,
    left: usize,
    columns: usize,
}

impl<'a> Iterator for RowIter<'a> {
    type Item = Result<Row<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let columns = self.columns;
        let row = self.reader.spanned(|r| (0..columns).try_for_each(|_| r.bytes().map(drop)));
        if row.is_err() {
            self.left = 0;
        }
        Some(row.map(|((), raw)| Row { columns, raw }))
    }
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    columns: usize,
    /// The encoded cells.
    pub raw: &'a [u8],
}

impl<'a> Row<'a> {
    /// The cells; `None` is null.
    pub fn cells(&self) -> RowCells<'a> {
        RowCells { reader: Reader::new(self.raw), left: self.columns }
    }

    /// One cell; `None` if there is no such column.
    pub fn cell(&self, column: usize) -> Option<Option<&'a [u8]>> {
        self.cells().nth(column)
    }
}

/// Iterates over the cells of a row.
#[derive(Debug, Clone)]
pub struct RowCells<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Iterator for RowCells<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // Checked when the row was read, so none is ever missing.
        self.reader.bytes().ok()
    }
}

/// Appends a RESULT Rows up to and including the number of rows; the cells, `row_count` times as
/// many as columns, each as \[bytes\] ([`Put::put_value`]), follow.
pub fn encode_rows_start(
    version: Version,
    metadata: &MetadataOut<'_>,
    row_count: usize,
    out: &mut Vec<u8>,
) {
    out.put_int(ResultKind::Rows as i32);
    metadata.encode(version, out);
    out.put_int_len(row_count);
}
