//! The part of a SELECT that is evaluated over a system table.

use super::SystemTable;
use crate::statement::{Select, TableName};

/// A SELECT over one of the three tables, ready to be evaluated with bound values.
#[derive(Debug, Clone, PartialEq)]
pub struct SystemQuery {
    pub(super) table: SystemTable,
    pub(super) select: Select,
}

impl SystemQuery {
    /// The query if `select`, resolved to the `system` keyspace, asks one of the three tables.
    pub(crate) fn new(select: &Select) -> Option<SystemQuery> {
        let table = SystemTable::named(&select.table.name)?;
        let name = TableName { keyspace: Some("system".to_owned()), name: table.name().to_owned() };
        Some(SystemQuery { table, select: Select { table: name, ..select.clone() } })
    }

    /// The table asked.
    pub fn table(&self) -> SystemTable {
        self.table
    }
}
