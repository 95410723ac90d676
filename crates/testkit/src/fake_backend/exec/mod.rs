//! Runs statements.

mod context;
mod describe;
mod modify;
mod schema;
mod select;

pub use context::{Context, Reply, Served, Watch, micros_now};
pub use describe::{Description, describe};

use context::{Done, no_table};

use super::{refusal::Refusal, statement::Statement, store::Store};

/// Runs one statement.
pub fn execute(store: &mut Store, statement: &Statement, context: &Context<'_>) -> Done<Reply> {
    match statement {
        Statement::Use(name)
            if store.keyspaces.contains_key(name) || name.starts_with("system") =>
        {
            Ok(Reply::SetKeyspace(name.clone()))
        }
        Statement::Use(name) => Err(Refusal::invalid(format!("Keyspace '{name}' does not exist"))),
        Statement::Select { table, items, key, ranges, reversed, limit, per_partition_limit } => {
            let limits = (limit.as_ref(), per_partition_limit.as_ref());
            let which = select::Which { key, ranges, reversed: *reversed, limits };
            select::select(store, table, items, &which, context)
        }
        Statement::Modify(modify) => {
            modify::modify_all(store, std::slice::from_ref(modify), context)
        }
        Statement::Batch(all) => modify::modify_all(store, all, context),
        Statement::Truncate(name) => {
            let keyspace = context.keyspace_of(name)?;
            let table =
                store.table_mut(keyspace, &name.table).ok_or_else(|| no_table(&name.table))?;
            table.rows.clear();
            Ok(Reply::Void)
        }
        _ => schema::alter(store, statement, context),
    }
}
