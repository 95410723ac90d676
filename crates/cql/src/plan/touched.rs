//! What a write touches, gathered statement by statement, each thing once.
//!
//! 1. A row, partition or table is added as often as the text names it.
//! 2. More than [`MOST_TARGETS`] are widened: rows to their partitions, and if those are too many
//!    to the tables that were named so far. From then on such a table takes in whatever else is
//!    named of it.
//!
//! Invariant: what was added is covered. Time and memory are in proportion to what is added.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::schema::TableSchema;
use super::target::Target;

/// Most things that a plan names one by one.
pub(super) const MOST_TARGETS: usize = 4096;

/// What a write touches.
#[derive(Default)]
pub(super) struct Touched {
    /// With their numbers in the order of the text.
    targets: HashMap<Target, usize>,
    next: usize,
    /// The tables of which something was named.
    tables: HashMap<Uuid, Target>,
    /// Those that are touched as a whole because too much of them was named.
    whole: HashSet<Uuid>,
}

impl Touched {
    /// Adds something that is part of no table in the schema.
    pub(super) fn add(&mut self, target: Target) {
        self.targets.entry(target).or_insert(self.next);
        self.next += 1;
    }

    /// Adds something of a table.
    pub(super) fn add_of(&mut self, table: &TableSchema, target: Target) {
        if self.whole.contains(&table.id) {
            return;
        }
        self.tables.entry(table.id).or_insert_with(|| Target::Table {
            keyspace: table.keyspace.clone(),
            table: table.name.clone(),
            id: Some(table.id),
        });
        self.add(target);
        if self.targets.len() > MOST_TARGETS {
            self.widen();
        }
    }

    /// Makes fewer of too many: no more than half of what there may be, but for tables.
    fn widen(&mut self) {
        let partition = |target| match target {
            Target::Row(key) => Target::Partition(key.partition),
            other => other,
        };
        for (target, at) in std::mem::take(&mut self.targets) {
            let place = self.targets.entry(partition(target)).or_insert(at);
            *place = at.min(*place);
        }
        if self.targets.len() <= MOST_TARGETS / 2 {
            return;
        }
        self.targets.retain(|target, _| target.is_wide());
        for (id, table) in self.tables.drain() {
            self.whole.insert(id);
            self.targets.entry(table).or_insert(self.next);
            self.next += 1;
        }
    }

    /// All of it, in the order of the text.
    pub(super) fn into_targets(self) -> Vec<Target> {
        let mut targets: Vec<_> = self.targets.into_iter().collect();
        targets.sort_unstable_by_key(|(_, at)| *at);
        targets.into_iter().map(|(target, _)| target).collect()
    }
}
