//! The part of a SELECT that is evaluated over a system table.

use super::SystemTable;
use super::tables::is_rewritten;
use crate::statement::{Operator, Relation, Select, Selected, TableName};

/// A SELECT over one of the three tables, ready to be evaluated with bound values.
#[derive(Debug, Clone, PartialEq)]
pub struct SystemQuery {
    pub(super) table: SystemTable,
    pub(super) select: Select,
}

impl SystemQuery {
    /// Whether it has nothing that some servers refuse: words of one kind of server, or several
    /// relations, which may be of one column.
    pub fn is_simple(&self) -> bool {
        !self.select.using_timeout && !self.select.bypass_cache && self.select.relations.len() < 2
    }

    /// Whether it asks for some rows only.
    pub fn is_restricted(&self) -> bool {
        !self.select.relations.is_empty()
    }

    /// The query if `select`, resolved to the `system` keyspace, asks one of the three tables and
    /// has to be answered here. A query of `local` is passed on if only the database can compute
    /// its answer and it names no column with an address.
    pub(crate) fn new(select: &Select) -> Option<SystemQuery> {
        let table = SystemTable::named(&select.table.name)?;
        let names_us =
            select.selectors.is_empty() || select.words.iter().any(|word| is_rewritten(word));
        if table == SystemTable::Local && !names_us && !is_evaluated(select) {
            return None;
        }
        let name = TableName { keyspace: Some("system".to_owned()), name: table.name().to_owned() };
        Some(SystemQuery { table, select: Select { table: name, ..select.clone() } })
    }

    /// What is asked.
    pub(crate) fn select(&self) -> &Select {
        &self.select
    }

    /// The table asked.
    pub fn table(&self) -> SystemTable {
        self.table
    }
}

/// Whether [`SystemQuery::evaluate`] knows every part of it.
fn is_evaluated(select: &Select) -> bool {
    let plain = |relation: &Relation| {
        matches!(relation, Relation::Column { op: Operator::Equal | Operator::In, .. })
    };
    select.order.is_empty()
        && !select.grouped
        && select.per_partition_limit.is_none()
        && select.selectors.iter().all(|selector| selector.what != Selected::Expression)
        && select.relations.iter().all(plain)
}
