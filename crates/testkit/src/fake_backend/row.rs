//! Rows and their cells. Cells are resolved as in Cassandra: the highest timestamp wins, then a
//! tombstone, then the larger value.

use std::collections::HashMap;

/// A value with its write time.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    pub timestamp: i64,
    /// Seconds since 1970, if it expires.
    pub expires: Option<u64>,
}

impl Cell {
    fn beats(&self, other: &Cell) -> bool {
        let rank = |c: &Cell| (c.timestamp, c.value.is_none());
        (rank(self), &self.value) > (rank(other), &other.value)
    }

    /// The value, unless it is a tombstone or expired.
    pub fn live(&self, now: u64) -> Option<&Vec<u8>> {
        self.value.as_ref().filter(|_| self.expires.is_none_or(|e| e > now))
    }
}

/// One row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The row marker that INSERT writes: timestamp and expiry.
    marker: Option<(i64, Option<u64>)>,
    deleted_at: Option<i64>,
    cells: HashMap<usize, Cell>,
    /// The cells before the last change, for lies.
    before: HashMap<usize, Cell>,
}

impl Row {
    /// The live cell of column `i`.
    pub fn cell(&self, i: usize, now: u64) -> Option<&Cell> {
        self.cells.get(&i).filter(|c| c.live(now).is_some())
    }

    /// What was there before the last change, if there was anything.
    pub fn stale(&self) -> Option<Row> {
        (!self.before.is_empty()).then(|| Row { cells: self.before.clone(), ..self.clone() })
    }

    /// Whether a SELECT finds the row.
    pub fn exists(&self, now: u64) -> bool {
        let marked = self.marker.is_some_and(|(t, expires)| {
            Some(t) > self.deleted_at && expires.is_none_or(|e| e > now)
        });
        marked || self.cells.values().any(|c| c.live(now).is_some())
    }

    /// Writes the row marker.
    pub fn mark(&mut self, timestamp: i64, expires: Option<u64>) {
        if self.marker.is_none_or(|(t, _)| timestamp >= t) {
            self.marker = Some((timestamp, expires));
        }
    }

    /// Writes some cells in one go.
    pub fn write(&mut self, cells: impl IntoIterator<Item = (usize, Cell)>) {
        let before = self.cells.clone();
        for (i, cell) in cells {
            let deleted = self.deleted_at.is_some_and(|t| t >= cell.timestamp);
            if !deleted && self.cells.get(&i).is_none_or(|old| cell.beats(old)) {
                self.cells.insert(i, cell);
            }
        }
        self.before = before;
    }

    /// Takes what another copy of the row has and this one lacks.
    pub fn merge(&mut self, other: &Row) {
        if let Some(deleted_at) = other.deleted_at {
            self.delete(deleted_at);
        }
        if let Some((timestamp, expires)) = other.marker {
            self.mark(timestamp, expires);
        }
        self.write(other.cells.iter().map(|(i, cell)| (*i, cell.clone())));
    }

    /// A column was put in at `at`: the cells behind it move by one.
    pub fn make_room(&mut self, at: usize) {
        for cells in [&mut self.cells, &mut self.before] {
            *cells = cells.drain().map(|(i, cell)| (i + usize::from(i >= at), cell)).collect();
        }
    }

    /// Drops all tombstones.
    pub fn forget(&mut self) {
        self.deleted_at = None;
        self.cells.retain(|_, cell| cell.value.is_some());
    }

    /// Deletes the row.
    pub fn delete(&mut self, timestamp: i64) {
        self.before = self.cells.clone();
        self.deleted_at = self.deleted_at.max(Some(timestamp));
        self.cells.retain(|_, c| c.timestamp > timestamp);
        self.marker = self.marker.filter(|(t, _)| *t > timestamp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(value: &[u8], timestamp: i64) -> (usize, Cell) {
        (0, Cell { value: Some(value.to_vec()), timestamp, expires: None })
    }

    #[test]
    fn the_last_write_wins_whatever_comes_first() {
        let mut row = Row::default();
        row.write([cell(b"new", 2)]);
        row.write([cell(b"old", 1)]);
        assert_eq!(row.cell(0, 0).unwrap().value.as_deref(), Some(&b"new"[..]));
        row.write([cell(b"newer", 2)]);
        assert_eq!(
            row.cell(0, 0).unwrap().value.as_deref(),
            Some(&b"newer"[..]),
            "equal times: the larger value"
        );
        row.delete(5);
        row.write([cell(b"late", 4)]);
        assert!(!row.exists(0));
        row.write([cell(b"again", 6)]);
        assert!(row.exists(0));
    }

    #[test]
    fn an_older_write_is_back_once_its_tombstone_has_gone() {
        let mut row = Row::default();
        row.mark(1, None);
        row.write([cell(b"old", 1)]);
        row.delete(2);
        row.write([(0, Cell { value: None, timestamp: 3, expires: None })]);
        row.forget();
        assert!(!row.exists(0));
        row.write([cell(b"old", 1)]);
        assert!(row.exists(0));
    }

    #[test]
    fn an_inserted_row_without_values_exists_an_updated_one_does_not() {
        let mut row = Row::default();
        row.write([(0, Cell { value: None, timestamp: 1, expires: None })]);
        assert!(!row.exists(0));
        row.mark(2, Some(100));
        assert!(row.exists(99) && !row.exists(100));
    }
}
