//! How many rows a fill of a unit reads.
//!
//! A small limit is rounded up, so that reads with other small limits share its unit. Everything
//! else reads what fits into a unit, by the size of the table's rows so far. Where such a fill was
//! in vain, there is none for a while.

use std::collections::HashMap;

use afterglow_cql::plan::Slice;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::clock::Millis;
use crate::stamp::Stamp;
use crate::too_large::TooLarge;

/// The limits of fills for slices from an end.
const LIMITS: [u32; 4] = [64, 256, 1024, MOST_ROWS];
/// The most rows of a unit. Drivers ask for pages of 5,000.
const MOST_ROWS: u32 = 4096;
/// How many rows of a table are read whose rows have not been seen yet, if a limit asks for no
/// more: its rows may be large.
const UNSEEN: u32 = 64;
/// Tables whose row sizes are remembered.
const MOST_TABLES: usize = 16 * 1024;

/// What is known of the sizes of partitions.
pub struct Units {
    most_bytes: usize,
    /// Bytes of an average row of each table, in a moving average.
    row_bytes: Mutex<HashMap<Uuid, usize>>,
    in_vain: TooLarge,
}

impl Units {
    /// For units of at most so many bytes; 0 for no units at all.
    pub fn new(most_bytes: u64) -> Units {
        Units {
            most_bytes: usize::try_from(most_bytes).unwrap_or(usize::MAX),
            row_bytes: Mutex::default(),
            in_vain: TooLarge::default(),
        }
    }

    /// The most bytes of a unit.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// How many rows a fill reads for this slice of the partition with this unit. `None` if the
    /// fill would be in vain: the slice does not fit into a unit, or did not a moment ago.
    pub fn rows_to_read(
        &self,
        table: Uuid,
        unit: &[u8],
        slice: &Slice,
        now: Millis,
    ) -> Option<u32> {
        if self.in_vain.has(&kind_of(unit, slice), Stamp::default(), now) {
            return None;
        }
        let limit = slice.limit.filter(|_| slice.is_from_end());
        let fitting = match self.row_bytes.lock().get(&table) {
            Some(bytes) => u32::try_from(self.most_bytes / bytes.max(&1)).unwrap_or(MOST_ROWS),
            None => limit.unwrap_or(0).max(UNSEEN),
        };
        let fitting = fitting.min(MOST_ROWS);
        match limit {
            Some(limit) => {
                let rounded = LIMITS.into_iter().find(|rounded| *rounded >= limit)?;
                Some(rounded.min(fitting)).filter(|rows| *rows >= limit)
            }
            None => Some(fitting.max(1)),
        }
    }

    /// A fill has read so many rows of a table, which take so many bytes.
    pub fn learn(&self, table: Uuid, rows: usize, bytes: usize) {
        if rows == 0 {
            return;
        }
        let seen = bytes / rows;
        let mut known = self.row_bytes.lock();
        if known.len() >= MOST_TABLES {
            known.clear();
        }
        let average = known.entry(table).or_insert(seen);
        *average = (*average * 7 + seen) / 8;
    }

    /// A fill did not answer this slice, or what it has read may not be cached.
    pub fn note_in_vain(&self, unit: &[u8], slice: &Slice, now: Millis) {
        self.in_vain.note(&kind_of(unit, slice), Stamp::default(), now);
    }
}

/// Slices of a unit that are in vain together: those of one direction with the same rounded limit.
fn kind_of(unit: &[u8], slice: &Slice) -> Vec<u8> {
    let limit = slice.limit.filter(|_| slice.is_from_end());
    let rounded = limit.and_then(|limit| LIMITS.iter().position(|rounded| *rounded >= limit));
    let kind = rounded.map_or(0, |at| at as u8 + 1) << 1 | u8::from(slice.reversed);
    [unit, &[kind]].concat()
}
