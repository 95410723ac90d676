//! What a write may touch.

use uuid::Uuid;

use super::bound_keys::BoundKeys;
use super::key::{KeyTemplate, PartitionTemplate};
use super::weight;

/// One thing that a write may touch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// One row. If its template gives no row, its partition. If it gives no partition the server
    /// will refuse the statement; the table is the safe choice.
    Row(KeyTemplate),
    /// One partition.
    Partition(PartitionTemplate),
    /// Rows or partitions that only bound values name: the elements of lists, a JSON document.
    Bound(BoundKeys),
    /// A row of this partition with a clustering value that the server makes anew. Nobody can have
    /// read it before.
    NewRow(PartitionTemplate),
    /// A partition of this table with a key that the server makes anew. Nobody can have read it
    /// before.
    NewPartition(Uuid),
    /// A whole table.
    Table {
        /// Keyspace.
        keyspace: String,
        /// Table.
        table: String,
        /// Its id, when the schema knows the table.
        id: Option<Uuid>,
    },
    /// A whole keyspace.
    Keyspace(String),
    /// All that is cached.
    Everything,
}

impl Target {
    /// Whether it is a whole table or more.
    pub(super) fn is_wide(&self) -> bool {
        match self {
            Target::Table { .. } | Target::Keyspace(_) | Target::Everything => true,
            Target::Row(_)
            | Target::Partition(_)
            | Target::Bound(_)
            | Target::NewRow(_)
            | Target::NewPartition(_) => false,
        }
    }

    /// About how many bytes it takes beside itself; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        match self {
            Target::Row(key) => weight::row(key),
            Target::Partition(partition) | Target::NewRow(partition) => {
                weight::parts(&partition.parts)
            }
            Target::Bound(keys) => weight::bound(keys),
            Target::Table { keyspace, table, .. } => {
                weight::string(keyspace) + weight::string(table)
            }
            Target::Keyspace(keyspace) => weight::string(keyspace),
            Target::NewPartition(_) | Target::Everything => 0,
        }
    }
}
