//! Planning: from a statement and the schema to what the front end does with it.
//!
//! A plan is made once per prepared statement (or per normalised text) and then used without
//! parsing. It holds only as long as the schema it was made from. Doubt never makes a read out of a
//! write: a statement that is not provably a read is a write. The rows that a write touches are
//! widened until they are certain.

use uuid::Uuid;

use crate::statement::{Parsed, Select, Statement};

mod binds;
mod bound_keys;
mod combinations;
mod context;
mod explain;
mod json_keys;
mod key;
mod keys;
mod literal;
mod named_keys;
mod order;
mod plain;
mod read;
mod reason;
mod rows;
mod schema;
mod slice;
mod target;
mod touched;
pub(crate) mod types;
mod update;
mod weight;
mod write;

pub use crate::parser::{DefinitionError, tables as defined_tables};
pub use binds::Binds;
pub use bound_keys::{BoundKeys, MAX_BOUND_KEYS};
pub use key::{
    KeyError, KeyTemplate, MAX_KEY, PartitionTemplate, RowKey, ValueSource, partition_columns,
    unit_key, unit_part,
};
pub(crate) use literal::slot_of;
pub use named_keys::NamedKeys;
pub use plain::PlainWrite;
pub use read::{PassReason, ReadPlan};
pub use rows::{MAX_ROWS, NamedRows, RowsPlan};
pub use schema::{Cells, Column, NotCacheable, Projected, SchemaView, TableSchema};
pub use slice::{RowPlace, Slice, SlicePlan};
pub use target::Target;
pub use update::{RowUpdate, WrittenCell};
pub use write::{WriteKind, WritePlan};

use context::Context;

use crate::system::SystemQuery;

/// What to do with a statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// A read of one row by its full primary key, to be served from the cache.
    CachedRead(ReadPlan),
    /// A read of a slice of one partition, to be served from the cache.
    CachedSlice(SlicePlan),
    /// A read of rows of several partitions by their primary keys, to be served from the cache.
    CachedRows(RowsPlan),
    /// A read of `system.local`, `system.peers` or `system.peers_v2`, answered by
    /// [`crate::system`].
    SystemRead(SystemQuery),
    /// A read to be passed through: why, and of which table if that is known.
    Read(PassReason, Option<Uuid>),
    /// `USE`: passed through; sets the session's keyspace when acknowledged.
    Use(String),
    /// Begins with `USE`, and is no plain one: not to be executed, as nobody could tell in which
    /// keyspace its connection is then.
    OddUse,
    /// Anything that may change data: drop what its targets name, then pass it through.
    Write(WritePlan),
}

impl Plan {
    /// About how many bytes the plan takes. Not counted are the texts of literals and names, which
    /// it holds once however often it names them: they are no longer than the statement's text. The
    /// table's schema is not the plan's alone, and not counted either.
    pub fn weight(&self) -> usize {
        let held = match self {
            Plan::CachedRead(read) => read.weight(),
            Plan::CachedSlice(slice) => slice.weight(),
            Plan::CachedRows(rows) => rows.weight(),
            Plan::SystemRead(query) => weight::select(query.select()),
            Plan::Read(..) | Plan::OddUse => 0,
            Plan::Use(keyspace) => weight::string(keyspace),
            Plan::Write(write) => write.weight(),
        };
        size_of::<Plan>() + held
    }

    /// The read of a plan that the cache may serve: of a row, of several, or of a slice.
    pub fn read(&self) -> Option<&ReadPlan> {
        match self {
            Plan::CachedRead(read) => Some(read),
            Plan::CachedSlice(slice) => Some(&slice.read),
            Plan::CachedRows(rows) => Some(&rows.read),
            _ => None,
        }
    }
}

/// Plans a statement.
///
/// `session_keyspace` is the keyspace of the session, or of the request when a v5 request names
/// one. For an EXECUTE the plan of its PREPARE counts, made with the keyspace of that moment.
pub fn analyse(parsed: &Parsed, schema: &dyn SchemaView, session_keyspace: Option<&str>) -> Plan {
    let context = Context {
        schema,
        session_keyspace,
        binds_certain: parsed.binds_are_certain(),
        binds: Binds::of(parsed),
    };
    match &parsed.statement {
        Statement::Select(select) => read_plan(select, &context),
        Statement::Modification(modification) => {
            Plan::Write(write::modification(modification, &context))
        }
        Statement::Batch(batch) => Plan::Write(write::batch(batch, &context)),
        Statement::Use(keyspace) => Plan::Use(keyspace.clone()),
        Statement::OddUse => Plan::OddUse,
        Statement::Truncate(table) => Plan::Write(write::truncate(table, &context)),
        Statement::Schema(change) => Plan::Write(write::schema_change(change, &context)),
        Statement::Access => Plan::Write(WritePlan::new(WriteKind::Access, Vec::new())),
        Statement::List => Plan::Read(PassReason::List, None),
        Statement::Describe => Plan::Read(PassReason::Describe, None),
        Statement::Unknown(unknown) if unknown.provably_read => {
            Plan::Read(PassReason::NotUnderstood, None)
        }
        Statement::Unknown(unknown) => Plan::Write(write::unknown(unknown, &context)),
    }
}

fn read_plan(select: &Select, context: &Context) -> Plan {
    if context.keyspace_of(&select.table) == Some("system")
        && let Some(query) = SystemQuery::new(select)
    {
        return Plan::SystemRead(query);
    }
    if select.table.name == "keyspaces"
        && context.keyspace_of(&select.table) == Some("system_schema")
    {
        return Plan::Read(PassReason::Keyspaces, None);
    }
    let reason = match read::cached(select, context) {
        Ok(plan) => return Plan::CachedRead(plan),
        Err(PassReason::NotOneRow | PassReason::Clause) => match slice::cached(select, context) {
            Ok(plan) => return Plan::CachedSlice(plan),
            Err(reason) => match rows::cached(select, context) {
                Ok(plan) => return Plan::CachedRows(plan),
                Err(PassReason::NotOneRow) => reason,
                Err(reason) => reason,
            },
        },
        Err(PassReason::Expression) if slice::is_count(select) => {
            match slice::cached(select, context) {
                Ok(plan) => return Plan::CachedSlice(plan),
                Err(PassReason::NotOneRow) => PassReason::Expression,
                Err(reason) => reason,
            }
        }
        Err(reason) => reason,
    };
    Plan::Read(reason, context.table(&select.table).map(|table| table.id))
}

#[cfg(test)]
mod tests;
