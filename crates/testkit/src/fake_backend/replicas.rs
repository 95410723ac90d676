//! Three copies of every row of users' tables, for tests of consistency levels. Some copies may be
//! away and miss writes.
//!
//! The store itself has every acknowledged write. A copy is the store, except for the rows where it
//! is behind.

use std::cell::Cell;
use std::collections::HashMap;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::message::Consistency;

use super::refusal::Refusal;
use super::row::Row;

/// Copies of a row.
pub const COPIES: usize = 3;

/// Keyspace, table and key of a row.
type RowName = (String, String, Vec<Vec<u8>>);

/// Which copies there are, and what they lack.
#[derive(Debug)]
pub struct Replicas {
    up: [bool; COPIES],
    behind: [HashMap<RowName, Row>; COPIES],
    /// Reads take the copies in turn.
    turn: Cell<usize>,
}

impl Default for Replicas {
    fn default() -> Self {
        Replicas { up: [true; COPIES], behind: Default::default(), turn: Cell::new(0) }
    }
}

impl Replicas {
    /// From now on these copies answer; the others miss what is written.
    pub fn set_up(&mut self, up: [bool; COPIES]) {
        self.up = up;
    }

    /// The copies that answer get what they have missed.
    pub fn deliver(&mut self) {
        let up = self.up;
        self.behind.iter_mut().zip(up).filter(|(_, up)| *up).for_each(|(behind, _)| behind.clear());
    }

    /// How many copies a request at this level takes.
    ///
    /// # Errors
    /// Fewer answer.
    pub fn ask(&self, level: Consistency) -> Result<usize, Refusal> {
        let wanted = match level {
            Consistency::Any | Consistency::One | Consistency::LocalOne => 1,
            Consistency::Three | Consistency::All => COPIES,
            _ => COPIES / 2 + 1,
        };
        match self.up.iter().filter(|up| **up).count() >= wanted {
            true => Ok(wanted),
            false => Err(Refusal {
                code: ErrorCode::Unavailable,
                message: format!("Cannot achieve consistency level {level}"),
            }),
        }
    }

    /// Makes a change to the row of the store and to all copies that answer; the others stay as
    /// they are.
    pub fn write(
        &mut self,
        (keyspace, table, key): (&str, &str, &[Vec<u8>]),
        row: &mut Row,
        change: &dyn Fn(&mut Row),
    ) {
        let name = (keyspace.to_owned(), table.to_owned(), key.to_vec());
        for (behind, up) in self.behind.iter_mut().zip(self.up) {
            match up {
                true => behind.get_mut(&name).into_iter().for_each(change),
                false => drop(behind.entry(name.clone()).or_insert_with(|| row.clone())),
            }
        }
        change(row);
    }

    /// The row as that many copies have it together.
    pub fn read(
        &self,
        (keyspace, table, key): (&str, &str, &[Vec<u8>]),
        row: Option<&Row>,
        copies: usize,
    ) -> Option<Row> {
        let name = (keyspace.to_owned(), table.to_owned(), key.to_vec());
        let turn = self.turn.replace(self.turn.get().wrapping_add(1));
        let asked = (0..COPIES).map(|n| (turn + n) % COPIES).filter(|n| self.up[*n]).take(copies);
        let mut together: Option<Row> = None;
        for copy in asked {
            let Some(has) = self.behind[copy].get(&name).or(row) else { continue };
            together.get_or_insert_default().merge(has);
        }
        together
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Cell as Value;
    use super::*;

    #[test]
    fn who_was_away_knows_nothing_of_it_until_it_is_told() {
        let mut replicas = Replicas::default();
        let (key, mut row) = (vec![b"k".to_vec()], Row::default());
        let name = ("ks", "t", key.as_slice());
        let value =
            |row: &Row| row.cell(0, 0).and_then(|cell| cell.value.clone()).unwrap_or_default();
        let mut set = |replicas: &mut Replicas, text: &str, timestamp| {
            let cell = Value { value: Some(text.as_bytes().to_vec()), timestamp, expires: None };
            replicas.write(name, &mut row, &|row| row.write([(0, cell.clone())]));
            row.clone()
        };
        set(&mut replicas, "old", 1);
        replicas.set_up([true, false, false]);
        assert!(
            replicas.ask(Consistency::One).is_ok()
                && replicas.ask(Consistency::LocalQuorum).is_err()
        );
        let row = set(&mut replicas, "new", 2);
        replicas.set_up([false, true, true]);
        for _ in 0..4 {
            assert_eq!(value(&replicas.read(name, Some(&row), 2).unwrap()), b"old");
        }
        replicas.set_up([true; COPIES]);
        let seen: Vec<_> =
            (0..6).map(|_| value(&replicas.read(name, Some(&row), 1).unwrap()) == b"new").collect();
        assert_eq!(
            seen.iter().filter(|new| **new).count(),
            2,
            "one copy of three has it: {seen:?}"
        );
        assert_eq!(value(&replicas.read(name, Some(&row), COPIES).unwrap()), b"new");
        replicas.deliver();
        assert_eq!(value(&replicas.read(name, Some(&row), 1).unwrap()), b"new");
    }
}
