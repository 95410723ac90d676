//! Keys that values name.

use super::key::{KeyTemplate, PartitionTemplate};

/// The keys of a write, as far as its bound values tell them.
#[derive(Debug, Clone, PartialEq)]
pub enum NamedKeys {
    /// These rows.
    Rows(Vec<KeyTemplate>),
    /// These partitions, whole or in part.
    Partitions(Vec<PartitionTemplate>),
    /// Not certain: any row of the table.
    Table,
}
