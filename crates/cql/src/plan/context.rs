//! What a statement is planned against.

use std::sync::Arc;

use super::binds::Binds;
use super::schema::{SchemaView, TableSchema};
use crate::statement::TableName;

/// What a statement is planned against.
pub(crate) struct Context<'a> {
    pub(crate) schema: &'a dyn SchemaView,
    pub(crate) session_keyspace: Option<&'a str>,
    /// False when markers may be numbered in another way by the server.
    pub(crate) binds_certain: bool,
    pub(crate) binds: Binds,
}

impl Context<'_> {
    /// The keyspace that a name is in; `None` when neither text nor session says (the server will
    /// refuse).
    pub(crate) fn keyspace_of<'n>(&'n self, name: &'n TableName) -> Option<&'n str> {
        name.keyspace.as_deref().or(self.session_keyspace)
    }

    pub(crate) fn table(&self, name: &TableName) -> Option<Arc<TableSchema>> {
        self.schema.table(self.keyspace_of(name)?, &name.name)
    }
}
