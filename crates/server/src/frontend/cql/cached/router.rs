//! Decides for every request whether the cache answers it, fills from it, or must drop something because of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use afterglow_cql::message::{BatchKind, Request as Message, Values};
use afterglow_cql::plan::{Plan, Target};
use afterglow_cql::response::{SchemaChange, SchemaTarget};
use afterglow_cql::statement::Marker;
use afterglow_engine::disk::{DeviceId, DeviceSet};
use parking_lot::RwLock;

use super::super::{ControlState, Later, Operation, Request, Router, SchemaStore, pass_path};
use super::fill::FillStatements;
use super::scope::{Invalidation, Tables, WriteScope};
use super::serial::Paxos;
use super::tables::Newest;
use super::{RowCache, read, write};
use crate::metrics::{FrontEndMetrics, PassReason, Path};
use crate::reactor::FlashFile;

/// The router of a CQL front end that caches.
pub struct CachedRouter {
    shared: Arc<CachedState>,
}

/// What its tasks share.
pub(super) struct CachedState {
    pub(super) cache: Arc<RowCache>,
    pub(super) statements: FillStatements,
    pub(super) newest: Newest,
    pub(super) flash: Vec<FlashFile>,
    /// See [`Times::fill`](super::Times::fill).
    pub(super) fill_timeout: Duration,
    /// What is known of the database's lightweight transactions.
    pub(super) paxos: Paxos,
    /// The data centre of the node that we talk to.
    pub(super) data_center: RwLock<Option<String>>,
    /// Name of the cluster that we talk to.
    pub(super) cluster: RwLock<Option<String>>,
    /// `schema_version` when the control connection was last there.
    schema_version: RwLock<Option<String>>,
    /// The lease has been asked for, and the answer is known; or none is needed.
    pub(super) settled: AtomicBool,
    /// The database has required authentication since the control connection was last there.
    guarded: AtomicBool,
}

impl CachedRouter {
    /// A router over `cache`, whose flash devices are read on the reactors' own rings.
    pub fn new(cache: Arc<RowCache>, devices: &Arc<dyn DeviceSet>, fill_timeout: Duration) -> CachedRouter {
        let device = |n: usize| FlashFile::new(devices.clone(), DeviceId(n as u16));
        let flash = (0..devices.infos().len()).filter_map(device).collect();
        let shared = CachedState {
            cache,
            statements: FillStatements::default(),
            newest: Newest::default(),
            flash,
            fill_timeout,
            paxos: Paxos::default(),
            data_center: RwLock::default(),
            cluster: RwLock::default(),
            schema_version: RwLock::default(),
            settled: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
        };
        CachedRouter { shared: Arc::new(shared) }
    }
}

impl CachedRouter {
    pub(super) fn shared(&self) -> &Arc<CachedState> {
        &self.shared
    }
}

impl Router for CachedRouter {
    fn route(&self, request: Request) -> Option<Later> {
        let plan = match &request.asked {
            Operation::Query(plan) | Operation::Execute(_, plan) => plan.clone(),
            Operation::Batch(_) => return write::route(&self.shared, request),
            Operation::Prepare => {
                request.pass(Path::Pass);
                return None;
            }
        };
        match &*plan {
            Plan::CachedRead(_) => read::route(&self.shared, request, plan),
            Plan::Write(_) => write::route(&self.shared, request),
            Plan::Read(reason) => {
                metrics(&request).passes.inc(pass_reason(*reason));
                request.pass(Path::Pass);
                None
            }
            Plan::SystemRead(_) | Plan::Use(_) => {
                let path = pass_path(&request.asked);
                request.pass(path);
                None
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.shared.settled.load(Ordering::Acquire)
    }

    fn schema_changed(&self, change: &SchemaChange<'_>, schema: &SchemaStore) {
        if change.change == "CREATED" {
            return; // nothing of it can be cached
        }
        let newest = self.shared.newest.of(schema);
        let keyspace = change.keyspace.to_owned();
        let target = match change.target {
            SchemaTarget::Table(table) => {
                Target::Table { id: newest.id(&keyspace, table), keyspace, table: table.to_owned() }
            }
            // Types and functions may be used by any table of their keyspace.
            _ => Target::Keyspace(keyspace),
        };
        let mut touched = WriteScope::default();
        touched.add_target(&target, &|_| None, &*newest);
        self.shared.cache.forget(&touched);
    }

    fn control(&self, state: ControlState) {
        match state {
            ControlState::Connected { cluster, data_center, schema_version, release } => {
                self.shared.paxos.set_release(&release);
                *self.shared.cluster.write() = Some(cluster);
                let moved = {
                    let mut known = self.shared.data_center.write();
                    let before = std::mem::replace(&mut *known, data_center);
                    before.is_some() && before != *known
                };
                if moved {
                    self.shared.cache.moved();
                }
                let before =
                    std::mem::replace(&mut *self.shared.schema_version.write(), schema_version.clone());
                // What changed while nobody told us may have been changed back: only equal versions prove anything.
                if before.is_some() && before != schema_version {
                    tracing::warn!(
                        "the schema changed while the control connection was lost: the cache is emptied"
                    );
                    self.shared.cache.forget(&WriteScope::everything());
                }
                if self.shared.guarded.swap(false, Ordering::AcqRel) {
                    self.shared.cache.forget_and_hold(&WriteScope::everything());
                }
                self.shared.cache.suspend(false);
            }
            ControlState::Current { schema_version } => {
                *self.shared.schema_version.write() = schema_version;
            }
            // Writes go past us, and who reads may not be whom the database would let read.
            ControlState::Guarded => {
                self.shared.cache.suspend(true);
                self.shared.guarded.store(true, Ordering::Release);
                self.shared.cache.forget(&WriteScope::everything());
            }
            // The last schema still tells what statements mean; what was cached is still what it was.
            ControlState::Lost => {}
        }
    }
}

/// The counters of the reactor that a request is on.
pub(super) fn metrics(request: &Request) -> &FrontEndMetrics {
    &request.client().reactor_state.metrics
}

/// Finds bound values by marker.
pub(super) fn bound<'v>(values: &Values<'v>) -> impl Fn(&Marker) -> Option<&'v [u8]> {
    let values = *values;
    move |marker| {
        let value = match &marker.name {
            Some(name) if values.are_named() => values.by_name(name),
            None if values.are_named() => None,
            _ => values.get(usize::from(marker.index)),
        };
        value.and_then(|value| value.bytes())
    }
}

/// What a write request touches.
pub(super) fn touched_by(request: &Request, tables: &impl Tables) -> WriteScope {
    let mut touched = WriteScope::default();
    let mut add = |plan: &Plan, values: &Values<'_>| {
        if let Plan::Write(plan) = plan {
            touched.add(plan, &bound(values), tables);
        }
    };
    match (request.message().map(|(_, message)| message), &request.asked) {
        (Ok(Message::Query(query)), Operation::Query(plan)) => add(plan, &query.params.values),
        (Ok(Message::Execute(execute)), Operation::Execute(_, plan)) => add(plan, &execute.params.values),
        (Ok(Message::Batch(batch)), Operation::Batch(plans)) => {
            batch.statements().zip(plans).for_each(|(statement, (_, plan))| add(plan, &statement.values));
            touched.parted = batch.kind != BatchKind::Logged;
        }
        _ => return WriteScope::everything(),
    }
    touched
}

/// Drops counted by how much they take.
pub(super) fn scope_label(doomed: &Invalidation) -> crate::metrics::WriteScopeLabel {
    use crate::metrics::WriteScopeLabel;
    match doomed {
        Invalidation::Row(_) => WriteScopeLabel::Row,
        Invalidation::Partition(_) => WriteScopeLabel::Partition,
        Invalidation::Table(_) => WriteScopeLabel::Table,
        Invalidation::Everything => WriteScopeLabel::Everything,
    }
}

fn pass_reason(reason: afterglow_cql::plan::PassReason) -> PassReason {
    use afterglow_cql::plan::PassReason as Planned;
    match reason {
        Planned::NotUnderstood | Planned::List | Planned::Describe => PassReason::NotUnderstood,
        Planned::UnknownTable | Planned::UnknownColumn => PassReason::SchemaUnknown,
        Planned::NotCacheable(_) => PassReason::UncacheableTable,
        Planned::NotOneRow | Planned::UncertainBinds | Planned::UncertainLiteral => PassReason::NotOneRow,
        Planned::Expression | Planned::Json => PassReason::Projection,
        Planned::Distinct | Planned::Clause | Planned::Bypass => PassReason::Clause,
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::freshness::gate::Join;

    use super::super::Times;
    use super::super::testing::open_cache;
    use super::*;

    #[test]
    fn after_a_move_to_another_data_center_nothing_is_believed_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, cache) = open_cache(dir.path());
        let router = CachedRouter::new(cache.clone(), &engine.devices(), Times::default().fill);
        let is_weak = |data_center: &str| {
            router.control(ControlState::Connected {
                cluster: "c".into(),
                release: "5.0.5".into(),
                data_center: Some(data_center.into()),
                schema_version: None,
            });
            match cache.gates.join(1, 2, b"key", cache.clock.now(), false, || unreachable!("nobody leads")) {
                Join::Lead(ticket) => ticket.is_weak(),
                _ => panic!("the gates are open"),
            }
        };
        assert_eq!(["a", "a", "b"].map(is_weak), [false, false, true]);
    }
}
