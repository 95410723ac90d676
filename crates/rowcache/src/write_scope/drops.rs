//! What a write drops of one table: each once where that is cheap, and not too many.

use uuid::Uuid;

use super::{Invalidation, MAX_DROPS, WriteScope};

impl WriteScope {
    /// A lightweight transaction may complete another one of its partition, of any row. Where we
    /// have sent that one the partition is held. Another holder of the lease may have left it.
    pub(super) fn completed(&mut self, gate: u32, table: Uuid, token: u64) {
        let partition = Invalidation::Partition(token);
        // It comes before the rows of its transaction, which all are of one partition.
        if !self.invalidations.iter().take(2).any(|one| *one == partition) {
            self.drops(gate, table, partition);
        }
    }

    /// Adds a row or partition of a table, or all of the table if there are too many.
    pub(super) fn drops(&mut self, gate: u32, table: Uuid, one: Invalidation) {
        match self.invalidations.len() {
            0..MAX_DROPS => self.invalidations.push(one),
            _ => self.table(gate, table),
        }
    }

    /// Adds the unit of a partition. Rows of one partition follow each other, so it is there once.
    pub(super) fn unit(&mut self, gate: u32, table: Uuid, key: &[u8]) {
        let is_there = |one: &Invalidation| matches!(one, Invalidation::Unit(unit) if unit == key);
        if !self.invalidations.iter().rev().take(2).any(is_there) {
            return self.drops(gate, table, Invalidation::Unit(key.to_vec()));
        }
        // It stays the last, where the next row of the partition finds it.
        let last = self.invalidations.len() - 1;
        if last > 0 && is_there(&self.invalidations[last - 1]) {
            self.invalidations.swap(last - 1, last);
        }
    }
}
