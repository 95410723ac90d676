//! The reads that reached the database. Every other read was served by the cache.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{clock::Lived, rows};
use crate::fake_backend::{FakeBackend, Served};

/// A row as the database has served it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowReads {
    /// Reads, for whatever purpose.
    pub(super) reads: u32,
    /// Reads to be kept: only these bring a row into the cache.
    pub(super) fills: u32,
    /// When it was last read to be kept.
    pub(super) kept_at: Duration,
    /// The same as Unix time.
    pub(super) kept_unix: Duration,
    /// The number of the value it had then.
    pub(super) number: Option<u64>,
    /// How often in a row that value was read to be kept.
    pub(super) times: u32,
    /// Bytes read to be kept, of all rows, up to then.
    pub(super) bytes: u64,
}

/// All rows.
pub(super) struct DatabaseReads(Mutex<(Vec<RowReads>, u64)>);

impl DatabaseReads {
    /// Listens to reads of the table `keyspace.rows`.
    pub(super) fn listen(
        backend: &FakeBackend,
        keyspace: &str,
        keys: u64,
        lived: &Lived,
    ) -> Arc<DatabaseReads> {
        let db_reads =
            Arc::new(DatabaseReads(Mutex::new((vec![RowReads::default(); keys as usize], 0))));
        let (heard, keyspace, lived) = (db_reads.clone(), keyspace.to_owned(), lived.clone());
        backend.watch(move |served| {
            if served.keyspace == keyspace && served.table == "rows" {
                heard.note(served, lived.now());
            }
        });
        db_reads
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<RowReads>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, served: &Served<'_>, now: Duration) {
        let [partition, clustering] = served.key else { return };
        let Some(key) = rows::key_of(partition, clustering) else { return };
        let (rows, bytes) = &mut *self.lock();
        let Some(row) = rows.get_mut(key as usize) else { return };
        row.reads += 1;
        if !served.to_keep {
            return;
        }
        row.fills += 1;
        let value = served.cells.and_then(|cells| cells.get(2)?.as_deref());
        let number = value.and_then(rows::head).map(|(_, number, _)| number);
        *bytes += value.map_or(0, |value| value.len() as u64);
        row.times = if number == row.number { row.times + 1 } else { 1 };
        (row.number, row.kept_at, row.bytes) = (number, now, *bytes);
        row.kept_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    }

    /// A row.
    pub(super) fn row(&self, key: u64) -> RowReads {
        self.lock().0[key as usize]
    }

    /// Reads to be kept of each row so far, and their bytes.
    pub(super) fn fills(&self) -> (Vec<u32>, u64) {
        let (rows, bytes) = &*self.lock();
        (rows.iter().map(|row| row.fills).collect(), *bytes)
    }
}
