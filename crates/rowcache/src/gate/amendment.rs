//! A unit that writes of its rows have taken out of the cache, until it is back: an amendment.
//!
//! ```text
//! a row:   written -> every write of it acknowledged -> read again -> put into the unit
//! a unit:  taken out -> ... -> no row left -> back in the cache
//! ```
//!
//! This is the state alone. [`Gates`](super::Gates) has it under the lock of the unit's slot, and
//! ends it with any write that it does not know of.

use crate::clock::Millis;
use crate::kept_unit::KeptUnit;
use crate::stamp::Stamp;

/// Reads wait for a unit only in the first so many milliseconds after it was taken, and for as many
/// at most. It is a hundred times what a write and a read take. Where a write hangs, or writes of a
/// row follow each other without a gap, reads that come later ask the database.
pub const AWAITED_FOR: Millis = 100;
/// So many rows of a unit are written and read again at a time; with more it is dropped.
pub(super) const MOST_WRITTEN: usize = 16;
/// So many rows that are newer than the unit are remembered; with more it is dropped.
const MOST_NEWER: usize = 64;

/// See the module.
pub(super) struct Amendment<W> {
    /// No other under its key has it.
    pub(super) id: u64,
    pub(super) slot: u32,
    /// The last write that it knows of.
    pub(super) stamp: Stamp,
    /// As it was before the writes of `rows`, and after all before them.
    pub(super) unit: KeptUnit,
    /// It counts as the fill with this number, which began after its last write.
    pub(super) fill: u64,
    /// When it was taken.
    taken: Millis,
    rows: Vec<WrittenRow>,
    turns: u64,
    /// Rows that fills have installed since.
    pub(super) newer_rows: Vec<Box<[u8]>>,
    /// It is not to come back.
    pub(super) barred: bool,
    pub(super) waiters: Vec<W>,
}

/// A row that is not in the unit as the database has it.
struct WrittenRow {
    key: Box<[u8]>,
    /// Writes of it that are not acknowledged.
    writers: u32,
    /// Its last write. What was read for an earlier one does not count.
    turn: u64,
}

/// What the acknowledgement of a write leaves to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterWrite {
    /// To read the row again, in this turn.
    Read(u64),
    /// Nothing: others go on with the unit.
    Wait,
    /// To put the unit back.
    Open,
}

impl<W> Amendment<W> {
    pub(super) fn new(id: u64, slot: u32, stamp: Stamp, unit: KeptUnit, now: Millis) -> Self {
        let (rows, newer_rows, waiters) = (Vec::new(), Vec::new(), Vec::new());
        let (fill, taken, turns) = (id, now, 0);
        let barred = false;
        Amendment { id, slot, stamp, unit, fill, taken, rows, turns, newer_rows, barred, waiters }
    }

    /// A write of this row has begun. False if too many rows are written.
    pub(super) fn begin(&mut self, row: &[u8]) -> bool {
        self.turns += 1;
        let turn = self.turns;
        if let Some(known) = self.rows.iter_mut().find(|known| *known.key == *row) {
            (known.writers, known.turn) = (known.writers + 1, turn);
            return true;
        }
        let fits = self.rows.len() < MOST_WRITTEN;
        if fits {
            self.rows.push(WrittenRow { key: row.into(), writers: 1, turn });
        }
        fits
    }

    /// A write of this row was acknowledged, and its gates are open. `covered`: the unit reaches to
    /// the row.
    pub(super) fn acknowledge(&mut self, row: &[u8], covered: bool) -> AfterWrite {
        let at = self.rows.iter().position(|known| *known.key == *row);
        let at = at.expect("a row stays until its writes are acknowledged");
        let known = &mut self.rows[at];
        known.writers -= 1;
        match known.writers {
            0 if covered => return AfterWrite::Read(known.turn),
            0 => drop(self.rows.swap_remove(at)),
            _ => {}
        }
        if self.rows.is_empty() { AfterWrite::Open } else { AfterWrite::Wait }
    }

    /// Whether what was read of a row in this turn is what the database has: no write of the row
    /// has begun since.
    pub(super) fn is_current(&self, turn: u64) -> bool {
        self.rows.iter().any(|row| row.turn == turn)
    }

    /// The unit has the row of this turn now.
    pub(super) fn amended(&mut self, turn: u64, unit: KeptUnit) {
        self.rows.retain(|row| row.turn != turn);
        self.unit = unit;
    }

    /// Whether it has every row as the database has it.
    pub(super) fn is_whole(&self) -> bool {
        self.rows.is_empty()
    }

    /// A fill has installed this row of the partition.
    pub(super) fn note_newer(&mut self, row: &[u8]) {
        if self.newer_rows.len() < MOST_NEWER {
            self.newer_rows.push(row.into());
        } else {
            self.barred = true;
        }
    }

    /// Whether a read that comes now may wait for it. A row that a fill has installed since may
    /// keep it from coming back.
    pub(super) fn is_awaited(&self, now: Millis) -> bool {
        now < self.taken + AWAITED_FOR && self.newer_rows.is_empty()
    }
}
