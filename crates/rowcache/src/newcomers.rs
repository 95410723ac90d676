//! Rows that a write left uncached: whether it pays to read them for the cache at once, before a
//! read misses them.
//!
//! It pays in tables whose readers want the newest rows: most rows that are written are missed
//! soon. Some written rows are *watched* for that. A watched row is left to the reads. It counts
//! for its table if a read misses it before so many other rows were written, and against it
//! otherwise. While most count for it, rows that are not watched are read at once.
//!
//! A wrong decision costs reads of the database or misses, never more.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use uuid::Uuid;

/// Written rows that are watched at a time. With more, one that has not been missed gives way.
const WATCHED: usize = 2048;
/// Where most rows are missed soon, one written row in so many is watched.
const SAMPLED: u32 = 16;
/// A share of one, as scores count.
const ONE: u32 = 1 << 16;
/// From this share of missed rows on, rows are read at once.
const PAYS: u32 = ONE / 2;
/// Each watched row moves a score by this part of the difference.
const STEP: u32 = 32;
/// Tables whose scores are known.
const MOST_TABLES: usize = 16 * 1024;

/// Which written rows to read at once. Rows are distinguished by a hash with a secret seed.
pub struct Newcomers {
    hasher: RandomState,
    /// Hashes of watched rows, each in the place that it chooses; 0 for none.
    watched: Box<[AtomicU64]>,
    state: Mutex<Watch>,
}

/// What is watched, and what came of it.
struct Watch {
    /// The tables of what is watched.
    tables: Box<[Uuid]>,
    scores: HashMap<Uuid, Score>,
}

#[derive(Default)]
struct Score {
    /// The share of watched rows that were missed soon.
    missed: u32,
    written: u32,
}

impl Score {
    fn learn(&mut self, missed: bool) {
        let seen = if missed { ONE } else { 0 };
        self.missed = self.missed - self.missed / STEP + seen / STEP;
    }
}

impl Default for Newcomers {
    fn default() -> Newcomers {
        let state = Watch { tables: vec![Uuid::nil(); WATCHED].into(), scores: HashMap::new() };
        Newcomers {
            hasher: RandomState::new(),
            watched: (0..WATCHED).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(state),
        }
    }
}

impl Newcomers {
    /// A write has left this row of `table` uncached, by its engine key. Whether to read it now.
    pub fn written(&self, table: Uuid, row: &[u8]) -> bool {
        let (hash, at) = self.place(row);
        let mut state = self.state.lock();
        if state.scores.len() >= MOST_TABLES && !state.scores.contains_key(&table) {
            state.scores.clear();
        }
        let score = state.scores.entry(table).or_default();
        score.written = score.written.wrapping_add(1);
        if score.missed >= PAYS && !score.written.is_multiple_of(SAMPLED) {
            return true;
        }
        let before = self.watched[at].swap(hash, Ordering::Relaxed);
        let of = std::mem::replace(&mut state.tables[at], table);
        // A row that is written again before it is read counts once.
        if before != 0 && before != hash {
            state.learn(of, false);
        }
        false
    }

    /// A read has missed this row.
    pub fn missed(&self, row: &[u8]) {
        let (hash, at) = self.place(row);
        if self.watched[at].load(Ordering::Relaxed) != hash {
            return;
        }
        let mut state = self.state.lock();
        let cleared =
            self.watched[at].compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
        if cleared.is_ok() {
            let table = state.tables[at];
            state.learn(table, true);
        }
    }

    /// Rows of this table cannot be read.
    pub fn failed(&self, table: Uuid) {
        self.state.lock().scores.remove(&table);
    }

    fn place(&self, row: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(row).max(1);
        (hash, (hash % WATCHED as u64) as usize)
    }
}

impl Watch {
    fn learn(&mut self, table: Uuid, missed: bool) {
        if let Some(score) = self.scores.get_mut(&table) {
            score.learn(missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Uuid = Uuid::from_u128(1);

    /// Writes so many rows, and has those missed that `is_missed` names, unless they are read at
    /// once. How many were read at once.
    fn read_at_once(
        newcomers: &Newcomers,
        rows: std::ops::Range<u32>,
        is_missed: impl Fn(u32) -> bool,
    ) -> usize {
        let at_once = |row: &u32| {
            let key = row.to_be_bytes();
            let now = newcomers.written(TABLE, &key);
            if !now && is_missed(*row) {
                newcomers.missed(&key);
            }
            now
        };
        rows.filter(at_once).count()
    }

    #[test]
    fn rows_of_a_table_whose_new_rows_are_missed_are_read_at_once() {
        let newcomers = Newcomers::default();
        let now = read_at_once(&newcomers, 0..1_000, |_| true);
        assert!((900..950).contains(&now), "{now} of 1,000");
        // The watch goes on: it ends soon after the reads do.
        let now = read_at_once(&newcomers, 1_000..101_000, |_| false);
        assert!(now < WATCHED * SAMPLED as usize * 2, "{now} of 100,000");
    }

    #[test]
    fn rows_that_are_not_missed_are_left_to_the_reads() {
        let newcomers = Newcomers::default();
        assert_eq!(read_at_once(&newcomers, 0..20_000, |_| false), 0);
        let few = read_at_once(&newcomers, 20_000..60_000, |row| row % 8 == 0);
        assert_eq!(few, 0);
    }

    #[test]
    fn a_row_that_is_written_again_and_again_counts_once() {
        let newcomers = Newcomers::default();
        assert!((0..1_000).all(|_| !newcomers.written(TABLE, b"row")));
        newcomers.missed(b"row");
        newcomers.missed(b"row");
        assert_eq!(newcomers.state.lock().scores[&TABLE].missed, ONE / STEP);
    }

    #[test]
    fn a_table_that_cannot_be_read_begins_anew() {
        let newcomers = Newcomers::default();
        read_at_once(&newcomers, 0..100, |_| true);
        assert!(read_at_once(&newcomers, 100..200, |_| true) > 80);
        newcomers.failed(TABLE);
        assert!((200_u32..210).all(|row| !newcomers.written(TABLE, &row.to_be_bytes())));
    }
}
