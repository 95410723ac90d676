//! What is known of writes that a quorum read may miss: the levels that the operator wants them
//! raised to, and of which tables the log has told.

use std::collections::HashSet;

use afterglow_cql::message::Consistency;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_scope::WriteScope;
use parking_lot::RwLock;
use uuid::Uuid;

use crate::config::WriteLevels;

/// Tables that are told of by name; further ones are only counted.
const MOST_TOLD: usize = 100;

/// The rules, and which tables were told of.
#[derive(Default)]
pub(super) struct WeakWrites {
    levels: WriteLevels,
    told: RwLock<HashSet<Uuid>>,
}

impl WeakWrites {
    /// Says in the log which rules hold.
    pub(super) fn new(levels: WriteLevels) -> WeakWrites {
        for rule in &levels.rules {
            tracing::info!(
                "writes are sent at a higher level where a quorum read may miss them: {rule}"
            );
        }
        WeakWrites { levels, told: RwLock::default() }
    }

    /// Whether a table was told of.
    pub(super) fn is_told(&self, table: Uuid) -> bool {
        self.told.read().contains(&table)
    }

    /// Whether to tell of a table now.
    pub(super) fn tell(&self, table: Uuid) -> bool {
        let mut told = self.told.write();
        told.len() < MOST_TOLD && told.insert(table)
    }

    /// The level that the rules want for a write.
    pub(super) fn level_for(&self, touched: &WriteScope, newest: &Index) -> Option<Consistency> {
        let tables = touched.planned().iter().filter_map(|id| newest.table(*id));
        WriteLevels::highest(
            tables.filter_map(|table| self.levels.level(&table.keyspace, &table.name)),
        )
    }
}
