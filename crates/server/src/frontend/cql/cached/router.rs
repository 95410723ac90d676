//! Decides for every request whether the cache answers it, fills from it, or must drop rows because
//! of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afterglow_cql::plan::{Plan, SchemaView, Target};
use afterglow_cql::response::{SchemaChange, SchemaTarget};
use afterglow_cql::schema::Schema;
use afterglow_engine::device::DeviceSet;
use afterglow_rowcache::noted_tables::NotedTables;
use afterglow_rowcache::unit::Units;
use afterglow_rowcache::write_scope::WriteScope;

use super::super::{
    ControlState, Later, Operation, Request, Router, SchemaStore, SeenVersion, pass_path,
};
use super::RowCache;
use super::state::{CachedState, FillRules};
use super::weak_writes::WeakWrites;
use super::{read, rows, schema_change, slice, write};
use crate::metrics::{PassReason, Path};

/// The router of a CQL front end that caches.
pub struct CachedRouter {
    shared: Arc<CachedState>,
}

impl CachedRouter {
    /// A router over a cache and the tables that the last run knew. Its flash devices are read on
    /// the reactors' own rings. `units`: of which partitions are kept. `sharing`: several instances
    /// share the tables.
    pub(super) fn new(
        of: (Arc<RowCache>, NotedTables),
        devices: &Arc<dyn DeviceSet>,
        units: Units,
        fills: FillRules,
        sharing: bool,
        weak_writes: WeakWrites,
    ) -> CachedRouter {
        let state = CachedState::new(of, devices, units, fills, sharing, weak_writes);
        CachedRouter { shared: Arc::new(state) }
    }

    pub(super) fn shared(&self) -> &Arc<CachedState> {
        &self.shared
    }
}

impl Router for CachedRouter {
    fn route(&self, request: Request) -> Option<Later> {
        let plan = match &request.asked {
            Operation::Query(plan) | Operation::Execute(_, plan) => plan,
            Operation::Batch(_) => return write::route(&self.shared, request),
            Operation::Prepare => {
                request.pass(Path::Pass);
                return None;
            }
        };
        match &**plan {
            Plan::CachedRead(_) => {
                let plan = plan.clone();
                read::route(&self.shared, request, plan)
            }
            Plan::CachedSlice(_) => {
                let plan = plan.clone();
                slice::route(&self.shared, request, plan)
            }
            Plan::CachedRows(_) => {
                let plan = plan.clone();
                rows::route(&self.shared, request, plan)
            }
            Plan::Write(_) => write::route(&self.shared, request),
            Plan::Read(reason, _) => {
                let reason = pass_reason(*reason);
                request.note_pass(reason);
                request.pass(Path::Pass);
                None
            }
            Plan::SystemRead(_) | Plan::Use(_) => {
                let path = pass_path(&request.asked);
                request.pass(path);
                None
            }
            Plan::OddUse => unreachable!("it is refused before"),
        }
    }

    fn may_be_bypassed(&self) -> bool {
        !self.shared.sharing
    }

    /// A member's data centre is that of its ring.
    fn stays_in_data_center(&self) -> bool {
        self.shared.sharing
    }

    fn is_ready(&self) -> bool {
        self.shared.settled.load(Ordering::Acquire)
    }

    fn schema_changed(&self, change: &SchemaChange<'_>, schema: &SchemaStore) {
        self.shared.note_schema_change(schema.generation());
        self.shared.schema_goes_on(None);
        schema_change::doubt_map(&self.shared, change);
        if change.change != "UPDATED" {
            let count = |table| {
                schema_change::count_as_several(&self.shared, change.keyspace, table);
            };
            match change.target {
                SchemaTarget::Table(name) => count(Some(name)),
                SchemaTarget::Keyspace => count(None),
                _ => {}
            }
        }
        if change.change == "CREATED" {
            return; // nothing of it is served before a snapshot has it
        }
        let (newest, known) = (self.shared.newest.of(schema), schema.current());
        let keyspace = change.keyspace.to_owned();
        let target = match change.target {
            SchemaTarget::Table(name) => match known.table(&keyspace, name) {
                Some(table) if change.change == "UPDATED" => {
                    return schema_change::suspect(&self.shared, &keyspace, &table);
                }
                table => {
                    Target::Table { id: table.map(|table| table.id), keyspace, table: name.into() }
                }
            },
            SchemaTarget::Type(_) => {
                schema_change::forget_user_types(&self.shared, &keyspace, &known);
                return;
            }
            // No row has anything of them: what a read computes passes through.
            SchemaTarget::Function(..) | SchemaTarget::Aggregate(..) => return,
            SchemaTarget::Keyspace => Target::Keyspace(keyspace),
        };
        let mut touched = WriteScope::default();
        touched.add_target(&target, &|_| None, &*newest);
        // Before the rows are forgotten: no fill in between is believed for long.
        schema_change::weaken_replicated(&self.shared, change, &newest);
        schema_change::weaken_dropped(&self.shared, change, (&known, &newest));
        self.shared.forget(&touched);
    }

    fn schema_read(&self, before: &Schema, now: &Schema) {
        schema_change::weaken_gone(&self.shared, before, now);
        schema_change::forget_appeared(&self.shared, before, now);
        schema_change::weaken_lagging(&self.shared, before, now);
        schema_change::settle_changed(&self.shared, before, now);
        schema_change::note_tables(&self.shared, now);
        schema_change::tell_of_remade(&self.shared, before, now);
    }

    fn schema_found(&self, found: &Schema, seen: SeenVersion) {
        let found = Arc::new(found.clone());
        let before = self.shared.found.lock().replace(found.clone());
        let version = seen.version.clone();
        let version_before = self.shared.heard_schema.note(seen);
        // Equal versions prove that nothing has changed that was not told.
        let is_same = version.is_some() && version_before == version;
        if let Some(before) = before.filter(|_| !is_same) {
            schema_change::forget_untold(&self.shared, &before, &found);
        }
    }

    fn control(&self, state: ControlState) {
        match state {
            // Fills of before do not count, and those to come are not believed for long.
            ControlState::Found { data_center } => {
                let known = self.shared.data_center.read().clone();
                if known.is_some() && known != data_center {
                    self.shared.weaken(WriteScope::everything());
                }
            }
            ControlState::Connected { cluster, data_center, release } => {
                self.shared.paxos.set_release(&release);
                let counts = slice::counts_shown_rows(&release);
                self.shared.counts_shown_rows.store(counts, Ordering::Release);
                *self.shared.cluster.write() = Some(cluster);
                let moved = {
                    let mut known = self.shared.data_center.write();
                    let before = std::mem::replace(&mut *known, data_center);
                    before.is_some() && before != *known
                };
                if moved {
                    self.shared.weaken(WriteScope::everything());
                }
                self.shared.end_guard();
                self.shared.cache.suspend(false);
                self.shared.hears_changes.store(true, Ordering::Release);
            }
            ControlState::Current { seen } => drop(self.shared.heard_schema.note(seen)),
            ControlState::Guarded => {
                self.shared.hears_changes.store(false, Ordering::Release);
                self.shared.guard();
            }
            // The last schema is still valid for planning, and the cached rows are still valid.
            // What a write does to a row depends on more than its columns.
            ControlState::Lost => {
                self.shared.hears_changes.store(false, Ordering::Release);
                schema_change::give_up_changed(&self.shared);
            }
        }
    }
}

fn pass_reason(reason: afterglow_cql::plan::PassReason) -> PassReason {
    use afterglow_cql::plan::PassReason as Planned;
    match reason {
        Planned::NotUnderstood | Planned::List | Planned::Describe => PassReason::NotUnderstood,
        Planned::UnknownTable
        | Planned::OutdatedSchema
        | Planned::UnknownColumn
        | Planned::Keyspaces => PassReason::SchemaUnknown,
        Planned::NotCacheable(_) | Planned::StaticColumns => PassReason::UncacheableTable,
        Planned::NotOneRow
        | Planned::UncertainBinds
        | Planned::UncertainLiteral
        | Planned::UnknownOrder => PassReason::NotOneRow,
        Planned::Expression | Planned::Json => PassReason::Projection,
        Planned::Distinct | Planned::Clause | Planned::Bypass => PassReason::Clause,
    }
}

#[cfg(test)]
mod tests;
