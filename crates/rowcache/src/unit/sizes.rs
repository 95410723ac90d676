//! How many rows a fill of a unit reads.
//!
//! A small limit is rounded up, so that reads with other small limits share its unit. Everything
//! else reads what fits into a unit, by the size of the table's rows so far. Where such a fill was
//! in vain, there is none for a while. What is not likely to fit is tried now and then: other
//! partitions of the table may have smaller rows. Until rows of a table have been seen, few are
//! read, because they may be large.

use std::collections::HashMap;

use afterglow_cql::plan::Slice;
use parking_lot::Mutex;
use uuid::Uuid;

use super::churn::Churn;
use crate::clock::Millis;
use crate::stamp::Stamp;
use crate::too_large::TooLarge;

/// The limits of fills for slices from an end.
const LIMITS: [u32; 4] = [64, 256, 1024, MOST_ROWS];
/// The most rows of a unit. Drivers ask for pages of 5,000.
pub(super) const MOST_ROWS: u32 = 4096;
/// How many rows of a table are read whose rows have not been seen yet, if a limit asks for no
/// more.
const UNSEEN: u32 = 16;
/// The most rows of a fill for rows that `IN` names: they may be anywhere in a large partition.
const MOST_NAMED: u32 = 64;
/// So many rows more than a read wants are no waste.
const SMALL: usize = 16;
/// Tables whose row sizes are remembered.
const MOST_TABLES: usize = 16 * 1024;
/// Stands for a size among kinds of slices.
const NAMED: u8 = 100;
/// One in so many reads that are not likely to fit is tried.
const TRIED: u32 = 32;

/// The limit of a fill that would read at least so many rows.
pub(super) fn rounded(rows: usize) -> u32 {
    LIMITS.into_iter().find(|limit| *limit as usize >= rows).unwrap_or(MOST_ROWS)
}

/// What is known of the sizes of partitions.
pub struct Units {
    most_bytes: usize,
    rows: Mutex<HashMap<Uuid, RowSizes>>,
    in_vain: TooLarge,
    /// Units on flash that ended before a row.
    beyond: TooLarge,
    churn: Churn,
    /// Of refreshes after writes.
    refreshed: Churn,
}

/// Why a read does not fill a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoFill {
    /// The slice does not fit into a unit, or did not a moment ago.
    TooLarge,
    /// Fills of the unit read many rows, and it is seldom hit.
    Churn,
}

/// What is known of the rows of a table.
struct RowSizes {
    /// Bytes of an average row, in a moving average. `None`: none has been seen, and a fill has
    /// failed. It may have been too much for the database.
    average: Option<usize>,
    /// Reads that seemed not to fit.
    refused: u32,
}

impl Units {
    /// For units of at most so many bytes; 0 for no units at all.
    pub fn new(most_bytes: u64) -> Units {
        Units {
            most_bytes: usize::try_from(most_bytes).unwrap_or(usize::MAX),
            rows: Mutex::default(),
            in_vain: TooLarge::default(),
            beyond: TooLarge::default(),
            churn: Churn::default(),
            refreshed: Churn::default(),
        }
    }

    /// The most bytes of a unit.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// How many rows a fill reads for this slice of the partition with this unit, which a read has
    /// missed.
    ///
    /// # Errors
    /// Why there is to be no fill.
    pub fn rows_to_read(
        &self,
        table: Uuid,
        unit: &[u8],
        slice: &Slice,
        now: Millis,
    ) -> Result<u32, NoFill> {
        let rows = self.fitting_rows(table, unit, slice, now).ok_or(NoFill::TooLarge)?;
        if self.churn.may_fill(unit) { Ok(rows) } else { Err(NoFill::Churn) }
    }

    /// A fill of the unit has read so many rows for a read that wants so many of them.
    pub fn note_fill(&self, unit: &[u8], rows: usize, wanted: usize) {
        if rows > SMALL + wanted.saturating_mul(4) {
            self.churn.waste(unit);
        }
    }

    /// The unit has answered a read.
    pub fn note_hit(&self, unit: &[u8]) {
        self.churn.hit(unit);
        self.refreshed.hit(unit);
    }

    /// Whether to read a row again after a write of it, so that the unit stays. Not if the unit is
    /// written much more often than it is read. Counts as a refresh if so.
    pub fn may_refresh(&self, unit: &[u8]) -> bool {
        let may = self.refreshed.may_fill(unit);
        if may {
            self.refreshed.waste(unit);
        }
        may
    }

    /// A read of one row has read the unit from flash, and it ends before the row.
    pub fn note_beyond(&self, unit: &[u8], now: Millis) {
        self.beyond.note(unit, Stamp::default(), now);
    }

    /// Whether a read of one row has lately found so. A unit is larger than a row: it is not read
    /// from flash in vain each time.
    pub fn is_beyond(&self, unit: &[u8], now: Millis) -> bool {
        self.beyond.has(unit, Stamp::default(), now)
    }

    fn fitting_rows(&self, table: Uuid, unit: &[u8], slice: &Slice, now: Millis) -> Option<u32> {
        if self.in_vain.has(&kind_of(unit, slice), Stamp::default(), now) {
            return None;
        }
        let limit = slice.limit.filter(|_| slice.is_from_end());
        let named = slice.names_rows().then_some(MOST_NAMED);
        let rounded = match limit.or(named) {
            Some(limit) => Some(LIMITS.into_iter().find(|rounded| *rounded >= limit)?),
            None => None,
        };
        let least = limit.unwrap_or(1);
        let mut known = self.rows.lock();
        let Some(sizes) = known.get_mut(&table) else {
            return Some(least.max(UNSEEN));
        };
        let Some(fitting) = self.fitting(sizes) else { return Some(least) };
        if least > fitting {
            sizes.refused = sizes.refused.wrapping_add(1);
            return sizes.refused.is_multiple_of(TRIED).then_some(least);
        }
        Some(rounded.map_or(fitting, |rounded| rounded.min(fitting)))
    }

    /// How many rows of a table are likely to fit into a unit; `None` if none has been seen.
    fn fitting(&self, sizes: &RowSizes) -> Option<u32> {
        let fitting = self.most_bytes / sizes.average?.max(1);
        Some(u32::try_from(fitting).map_or(MOST_ROWS, |fitting| fitting.min(MOST_ROWS)))
    }

    /// Whether a fill that has read so many rows of a table, and found more behind them, would now
    /// read many more.
    pub fn may_read_more(&self, table: Uuid, rows: u32, slice: &Slice) -> bool {
        if slice.names_rows() && rows >= MOST_NAMED {
            return false;
        }
        let known = self.rows.lock();
        let fitting = known.get(&table).and_then(|sizes| self.fitting(sizes));
        fitting.is_some_and(|fitting| fitting / 2 >= rows)
    }

    /// A fill has read so many rows of a table, which take so many bytes.
    pub fn learn(&self, table: Uuid, rows: usize, bytes: usize) {
        if let Some(seen) = bytes.checked_div(rows) {
            self.note(table, |average| Some(average.map_or(seen, |known| (known * 7 + seen) / 8)));
        }
    }

    /// A fill has found a row that is larger than a unit.
    pub fn learn_too_large(&self, table: Uuid) {
        self.learn(table, 1, 2 * self.most_bytes);
    }

    /// A fill has failed.
    pub fn note_failed(&self, table: Uuid) {
        self.note(table, |average| average);
    }

    fn note(&self, table: Uuid, average: impl FnOnce(Option<usize>) -> Option<usize>) {
        let mut known = self.rows.lock();
        if known.len() >= MOST_TABLES {
            known.clear();
        }
        let sizes = known.entry(table).or_insert(RowSizes { average: None, refused: 0 });
        sizes.average = average(sizes.average);
    }

    /// A fill did not answer this slice, or what it has read may not be cached.
    pub fn note_in_vain(&self, unit: &[u8], slice: &Slice, now: Millis) {
        self.in_vain.note(&kind_of(unit, slice), Stamp::default(), now);
    }
}

/// Slices of a unit that are in vain together: those of one direction with the same rounded limit,
/// and those of rows that `IN` names.
fn kind_of(unit: &[u8], slice: &Slice) -> Vec<u8> {
    let limit = slice.limit.filter(|_| slice.is_from_end());
    let rounded = limit.and_then(|limit| LIMITS.iter().position(|rounded| *rounded >= limit));
    let size = if slice.names_rows() { NAMED } else { rounded.map_or(0, |at| at as u8 + 1) };
    let kind = size << 1 | u8::from(slice.reversed);
    [unit, &[kind]].concat()
}
