//! What a write request does to the one row that it names: the values that a cached copy of the row
//! can follow.

use std::sync::Arc;

use afterglow_cql::message::Request as Message;
use afterglow_cql::plan::{Plan, TableSchema, WritePlan};
use afterglow_rowcache::row_change::RowChange;
use afterglow_rowcache::tables::Index;

use super::super::{Operation, Request};
use super::state::CachedState;
use crate::frontend::cql::bound::bound_value;

/// The values of a plain QUERY or EXECUTE that writes one row, if they are known.
pub(super) fn change_of(request: &Request) -> Option<RowChange> {
    let plan = plan_of(request)?;
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

/// Whether it is a plain INSERT or UPDATE of one row, whatever its values.
pub(super) fn is_update(request: &Request) -> bool {
    plan_of(request).is_some_and(|plan| plan.update.is_some())
}

fn plan_of(request: &Request) -> Option<&WritePlan> {
    match &request.asked {
        Operation::Query(plan) | Operation::Execute(_, plan) => match &**plan {
            Plan::Write(plan) => Some(plan),
            _ => None,
        },
        Operation::Prepare | Operation::Batch(_) => None,
    }
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
        && now.is_complete()
        && shared.knows_schema(generation)
        && now.table(table.id).is_some_and(is_same)
}
