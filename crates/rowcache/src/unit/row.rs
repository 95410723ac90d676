//! One row of a unit, in the form of a row that is cached alone.
//!
//! A unit has no write times. So the row is for answers: it is not put into the cache, and no write
//! is ever applied to it. After a write the row is read again ([`refresh`](crate::refresh)).

use afterglow_cql::plan::{RowKey, RowPlace, Slice, TableSchema};

use super::{Cells, RowBytes, StoredUnit, Unanswered};
use crate::row::{Cell, encode, encode_absent};

impl StoredUnit<'_> {
    /// The row of `table` with this key in stored form, or in that form that there is none. `key`
    /// is of the unit's partition. A row whose key the database has in another form is not given:
    /// the reader would be shown the form that it asked with.
    ///
    /// # Errors
    /// Why the unit does not tell.
    pub fn row(&self, table: &TableSchema, key: &RowKey) -> Result<Vec<u8>, Unanswered> {
        let (clustering, mut stored) = (table.clustering.len(), Vec::new());
        let (rows, place) = self.place(table, key)?;
        match place {
            Ok(at) => {
                let stored_key = Cells { rest: rows[at] }.take(clustering);
                if !key.clustering().map(Some).eq(stored_key) {
                    return Err(Unanswered::Unordered);
                }
                let values = Cells { rest: rows[at] }.skip(clustering);
                let cells: Vec<Cell<'_>> =
                    values.map(|value| Cell { value, ..Cell::NULL }).collect();
                let is_whole = cells.len() + clustering == self.columns;
                let stored_all = is_whole && encode(self.fingerprint, &cells, &mut stored);
                if stored_all { Ok(stored) } else { Err(Unanswered::Corrupt) }
            }
            Err(_) => {
                encode_absent(self.fingerprint, &mut stored);
                Ok(stored)
            }
        }
    }

    /// Whether it has the row of `table` with this key, in whatever form of the key, or says that
    /// there is none.
    pub(crate) fn tells_of(&self, table: &TableSchema, key: &RowKey) -> bool {
        self.place(table, key).is_ok()
    }

    /// All rows, and where the row of `table` with this key is or would be among them.
    ///
    /// # Errors
    /// Why the unit does not tell.
    pub(super) fn place(
        &self,
        table: &TableSchema,
        key: &RowKey,
    ) -> Result<(Vec<RowBytes<'_>>, Result<usize, usize>), Unanswered> {
        let clustering = table.clustering.len();
        if self.columns != clustering + table.values().count() {
            return Err(Unanswered::Corrupt);
        }
        let wanted = Slice::of_row(table, key, self.reversed).ok_or(Unanswered::Unordered)?;
        let rows: Vec<RowBytes<'_>> =
            self.iter().collect::<Option<_>>().ok_or(Unanswered::Corrupt)?;
        match find(&rows, clustering, &wanted)? {
            Err(at) if at == rows.len() && !self.whole => Err(Unanswered::Beyond),
            place => Ok((rows, place)),
        }
    }
}

/// Where the wanted row is, or how many rows are before it. Rows are in the order that the slice
/// asks for.
fn find(
    rows: &[RowBytes<'_>],
    clustering: usize,
    wanted: &Slice,
) -> Result<Result<usize, usize>, Unanswered> {
    let (mut before, mut end) = (0, rows.len());
    while before < end {
        let at = before + (end - before) / 2;
        let keys = Cells { rest: rows[at] }.take(clustering).map_while(|cell| cell);
        match wanted.place(keys).ok_or(Unanswered::Unordered)? {
            RowPlace::Before => before = at + 1,
            RowPlace::In => return Ok(Ok(at)),
            RowPlace::After => end = at,
            RowPlace::Between => return Err(Unanswered::Unordered),
        }
    }
    Ok(Err(before))
}
