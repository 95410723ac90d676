//! A unit after a write of one row: the row as the database has it now, at its place.

use afterglow_cql::plan::{RowKey, TableSchema};

use super::sizes::{MOST_ROWS, rounded};
use super::{Cells, RowBytes, StoredUnit, Unanswered, begin, end, push};
use crate::row::StoredRow;

/// Whether a unit tells of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// It has the row, or says that there is none.
    Within,
    /// The row is behind its last: whatever becomes of the row, the unit stays right.
    Beyond,
}

impl StoredUnit<'_> {
    /// Whether it tells of the row of `table` with this key. `None` if that is not certain.
    pub(crate) fn coverage(&self, table: &TableSchema, key: &RowKey) -> Option<Coverage> {
        if !table.statics.is_empty() {
            return None;
        }
        match self.place(table, key) {
            Ok(_) => Some(Coverage::Within),
            Err(Unanswered::Beyond) => Some(Coverage::Beyond),
            Err(_) => None,
        }
    }

    /// The unit with this row under the key, or without one if the row is absent. Rows at its end
    /// are left out if it has too many or more than `most_bytes`. `None` if no unit is left, if it
    /// does not tell of the row, or if the row is of another shape of the table.
    pub(crate) fn amended(
        &self,
        table: &TableSchema,
        key: &RowKey,
        row: &StoredRow<'_>,
        most_bytes: usize,
    ) -> Option<Vec<u8>> {
        if !table.statics.is_empty() {
            return None;
        }
        let (mut rows, place) = self.place(table, key).ok()?;
        let most_rows = if self.whole { MOST_ROWS } else { rounded(rows.len()) };
        let mut new = Vec::new();
        if !row.is_absent() {
            if usize::from(row.columns()) != table.values().count() {
                return None;
            }
            let values = (0..row.columns()).map(|at| row.cell(at).value);
            push(key.clustering().map(Some).chain(values), &mut new);
        }
        let changed: &[&[u8]] = if new.is_empty() { &[] } else { &[&new[4..]] };
        match place {
            Ok(at) => drop(rows.splice(at..=at, changed.iter().copied())),
            Err(at) => drop(rows.splice(at..at, changed.iter().copied())),
        }
        self.of_rows(row.fingerprint(), &rows, most_rows as usize, most_bytes)
    }

    fn of_rows(
        &self,
        fingerprint: u64,
        rows: &[RowBytes<'_>],
        most_rows: usize,
        most_bytes: usize,
    ) -> Option<Vec<u8>> {
        if fingerprint != self.fingerprint {
            return None;
        }
        let mut out = Vec::new();
        begin(fingerprint, u16::try_from(self.columns).ok()?, self.reversed, &mut out);
        let mut taken = 0;
        for row in rows.iter().take(most_rows) {
            if out.len() + 4 + row.len() > most_bytes {
                break;
            }
            push(Cells { rest: row }, &mut out);
            taken += 1;
        }
        let whole = self.whole && taken == rows.len();
        end(u32::try_from(taken).ok()?, whole, &mut out);
        (whole || taken > 0).then_some(out)
    }
}

#[cfg(test)]
#[path = "amend_tests.rs"]
mod tests;
