//! What a write request does to the one row that it names: the values that a cached copy of the row
//! can follow.

use std::sync::Arc;

use afterglow_cql::message::Request as Message;
use afterglow_cql::plan::{Plan, TableSchema};
use afterglow_rowcache::row_change::RowChange;
use afterglow_rowcache::tables::Index;

use super::super::{Operation, Request};
use super::state::CachedState;
use crate::frontend::cql::bound::bound_value;

/// The values of a plain QUERY or EXECUTE that writes one row, if they are known.
pub(super) fn change_of(request: &Request) -> Option<RowChange> {
    let plan = match &request.asked {
        Operation::Query(plan) | Operation::Execute(_, plan) => plan,
        Operation::Prepare | Operation::Batch(_) => return None,
    };
    let Plan::Write(plan) = &**plan else { return None };
    let update = plan.update.as_ref()?;
    let (extras, message) = request.message().ok()?;
    let params = match message {
        Message::Query(query) => query.params,
        Message::Execute(execute) => execute.params,
        _ => return None,
    };
    let values = &params.values;
    let plain = extras.is_plain() && params.now_in_seconds.is_none();
    if !plain || !plan.binds.are_certain(values) || !plan.binds.fit(values) {
        return None;
    }
    RowChange::of(update, &bound_value(values), params.timestamp)
}

/// Whether the schema is the one that a write was planned for, as far as its table goes.
/// `generation`: of the schema when the write began.
pub(super) fn is_same_schema(
    shared: &CachedState,
    table: &Arc<TableSchema>,
    generation: u64,
    now: &Index,
) -> bool {
    let is_same = |known: &Arc<TableSchema>| Arc::ptr_eq(known, table) || known == table;
    now.generation() == generation
        && shared.knows_schema(generation)
        && now.table(table.id).is_some_and(is_same)
}
