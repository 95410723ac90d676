//! What a write drops of one table: each once where that is cheap, and not too many. So it is with
//! names of tables that are not known.

use uuid::Uuid;

use super::{Invalidation, MAX_DROPS, MAX_SLOTS, WriteScope, gate_of};

/// Longer keys to drop and names of unknown tables than this count as their tables, or as
/// everything: owners of a ring are told of each.
const MAX_BYTES: usize = 1 << 20;

impl WriteScope {
    /// The gates of the tables in which the database makes partitions, if it touches nothing but
    /// these: no row that is there.
    pub fn only_made_in(&self) -> Option<&[u32]> {
        let touches_rows = !self.slots.is_empty() || !self.invalidations.is_empty();
        (self.only_makes_partitions() && !touches_rows).then_some(&self.tables)
    }

    /// A batch may name tens of thousands of tables that do not exist: too many are everything. The
    /// database will refuse it, so nothing is dropped before it has answered.
    pub(super) fn unknown(&mut self, keyspace: &str, table: &str) {
        let gate = gate_of(keyspace, table);
        let is_there = |(k, t): &(String, String)| (k.as_str(), t.as_str()) == (keyspace, table);
        if self.tables.contains(&gate) && self.unknown.iter().any(is_there) {
            return;
        }
        self.bytes += keyspace.len() + table.len();
        if self.unknown.len() >= MAX_SLOTS || self.bytes > MAX_BYTES {
            self.doubtful = true;
            return self.all();
        }
        self.gate(gate);
        self.unknown.push((keyspace.to_owned(), table.to_owned()));
    }

    /// A lightweight transaction may complete another one of its partition, of any row. Where we
    /// have sent that one the partition is held. Another holder of the lease may have left it.
    pub(super) fn completed(&mut self, gate: u32, table: Uuid, token: u64) {
        let partition = Invalidation::Partition(token);
        // It comes before the rows of its transaction, which all are of one partition.
        if !self.invalidations.iter().take(2).any(|one| *one == partition) {
            self.drops(gate, table, partition);
        }
    }

    /// Adds a row or partition of a table, or all of the table if there are too many, or their keys
    /// are too long together.
    pub(super) fn drops(&mut self, gate: u32, table: Uuid, one: Invalidation) {
        if let Invalidation::Row(key) | Invalidation::Unit(key) = &one {
            self.bytes += key.len();
        }
        match self.invalidations.len() {
            0..MAX_DROPS if self.bytes <= MAX_BYTES => self.invalidations.push(one),
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
