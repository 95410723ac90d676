//! Decides for every request whether the cache answers it, fills from it, or must drop rows because
//! of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afterglow_cql::plan::{Plan, Target};
use afterglow_cql::response::{SchemaChange, SchemaTarget};
use afterglow_engine::device::DeviceSet;
use afterglow_rowcache::unit::Units;
use afterglow_rowcache::write_scope::{Tables, WriteScope};

use super::super::{ControlState, Later, Operation, Request, Router, SchemaStore, pass_path};
use super::RowCache;
use super::state::{CachedState, FillRules};
use super::weak_writes::WeakWrites;
use super::{read, rows, slice, write};
use crate::metrics::{PassReason, Path};

/// The router of a CQL front end that caches.
pub struct CachedRouter {
    shared: Arc<CachedState>,
}

impl CachedRouter {
    /// A router over `cache`, whose flash devices are read on the reactors' own rings. `units`: of
    /// which partitions are kept. `sharing`: several instances share the tables.
    pub(super) fn new(
        cache: Arc<RowCache>,
        devices: &Arc<dyn DeviceSet>,
        units: Units,
        fills: FillRules,
        sharing: bool,
        weak_writes: WeakWrites,
    ) -> CachedRouter {
        let state = CachedState::new(cache, devices, units, fills, sharing, weak_writes);
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
        if matches!(change.target, SchemaTarget::Keyspace) && change.change == "UPDATED" {
            // There may be more replicas now, which get the rows by a repair only. Before the rows
            // are forgotten: no fill in between is believed for long.
            let mut tables = WriteScope::default();
            tables.add_tables_of(change.keyspace, &*newest);
            self.shared.weaken(tables);
        }
        self.shared.forget(&touched);
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
            ControlState::Connected { cluster, data_center, schema_version, release } => {
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
                let before = std::mem::replace(
                    &mut *self.shared.schema_version.write(),
                    schema_version.clone(),
                );
                // A change that we did not see may have been reverted. Only equal schema versions
                // prove that nothing changed.
                if before.is_some() && before != schema_version {
                    tracing::warn!(
                        "the schema changed while the control connection was lost: the cache is emptied"
                    );
                    self.shared.forget(&WriteScope::everything());
                }
                if self.shared.guarded.swap(false, Ordering::AcqRel) {
                    self.shared.weaken(WriteScope::everything());
                    self.shared.cache.forget_and_hold(&WriteScope::everything());
                }
                self.shared.cache.suspend(false);
                self.shared.hears_changes.store(true, Ordering::Release);
            }
            ControlState::Current { schema_version } => {
                *self.shared.schema_version.write() = schema_version;
            }
            // Writes go past us, and clients may read what the database would refuse them.
            ControlState::Guarded => {
                self.shared.hears_changes.store(false, Ordering::Release);
                self.shared.cache.suspend(true);
                self.shared.guarded.store(true, Ordering::Release);
                self.shared.forget(&WriteScope::everything());
            }
            // The last schema is still valid for planning, and the cached rows are still valid.
            // What a write does to a row depends on more than its columns.
            ControlState::Lost => self.shared.hears_changes.store(false, Ordering::Release),
        }
    }
}

fn pass_reason(reason: afterglow_cql::plan::PassReason) -> PassReason {
    use afterglow_cql::plan::PassReason as Planned;
    match reason {
        Planned::NotUnderstood | Planned::List | Planned::Describe => PassReason::NotUnderstood,
        Planned::UnknownTable | Planned::UnknownColumn | Planned::Keyspaces => {
            PassReason::SchemaUnknown
        }
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
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use afterglow_cql::plan::{RowKey, TableSchema};
    use afterglow_cql::schema::Schema;
    use afterglow_engine::device::DeviceConfig;
    use afterglow_engine::{Cache, Config};
    use afterglow_rowcache::gate::Join;
    use uuid::Uuid;

    use super::super::setup::{Cached, CachedConfig};
    use super::super::times::Times;
    use super::*;
    use crate::config::{LivePolicies, TablePolicies};
    use afterglow_rowcache::serve::CachePermission;

    fn open(dir: &Path) -> (Cache, Cached) {
        let device = DeviceConfig { path: dir.join("flash"), size: 32 << 20 };
        let mut config = Config::new(dir, vec![device]);
        (config.memory, config.journal_size) = (64 << 20, 1 << 20);
        let engine = Cache::open(config).unwrap();
        let cached = Cached::open(&CachedConfig {
            engine: &engine,
            data_dir: dir,
            policies: Arc::new(LivePolicies::new(TablePolicies::default())),
            restart_grace: Duration::from_secs(60),
            planned_restart_grace: Duration::ZERO,
            write_levels: Default::default(),
            unknown_outcome_hold: Duration::from_secs(600),
            times: Times::default(),
            partition_unit_size: 256 << 10,
            fill_hedge: Default::default(),
            ring: None,
        });
        (engine, cached.unwrap())
    }

    #[test]
    fn after_a_move_to_another_data_center_nothing_is_believed_for_long() {
        let table = TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7));
        let connected = |data_center: &str| ControlState::Connected {
            cluster: "c".into(),
            release: "5.0.5".into(),
            data_center: Some(data_center.into()),
            schema_version: None,
        };
        let found =
            |data_center: &str| ControlState::Found { data_center: Some(data_center.into()) };
        // Its nodes are known from the first of them on.
        for moved in [found("b"), connected("b")] {
            let dir = tempfile::tempdir().unwrap();
            let (_engine, cached) = open(dir.path());
            let router = cached.router.clone();
            let is_weak = |state: ControlState| {
                router.control(state);
                let (key, permission) = (RowKey::new(), CachePermission::Exclusive { claim: 1 });
                let cache = &router.shared().cache;
                match cache.join(&table, &key, permission, || unreachable!("nobody leads")) {
                    Join::Lead(ticket) => ticket.is_weak(),
                    _ => panic!("the gates are open"),
                }
            };
            let same = [found("a"), connected("a"), found("a"), connected("a")];
            assert_eq!(same.map(is_weak), [false; 4]);
            assert!(is_weak(moved));
        }
    }

    #[test]
    fn a_schema_is_known_from_the_snapshot_that_has_the_last_change_while_more_would_be_heard() {
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let router = cached.router.clone();
        let store = SchemaStore::default();
        let publish = || store.publish(Schema::of_tables([]));
        let knows = || router.shared().knows_schema(store.generation());
        let connect = || {
            router.control(ControlState::Connected {
                cluster: "c".into(),
                release: "5.0.5".into(),
                data_center: None,
                schema_version: None,
            });
        };
        publish();
        assert!(!knows(), "nobody would tell");
        connect();
        assert!(knows());
        for change in ["UPDATED", "CREATED"] {
            let target = SchemaTarget::Table("t");
            router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
            assert!(!knows(), "{change}: the snapshot lacks it");
            publish();
            assert!(knows());
        }
        for state in [ControlState::Lost, ControlState::Guarded] {
            router.control(state);
            assert!(!knows());
            connect();
            assert!(knows());
        }
    }

    #[test]
    fn after_a_change_of_a_keyspace_nothing_of_it_is_believed_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let router = cached.router.clone();
        let table =
            |keyspace: &str, id| TableSchema::new(keyspace.into(), "t".into(), Uuid::from_u128(id));
        let (ours, other) = (table("ks", 7), table("other", 8));
        let store = SchemaStore::default();
        store.publish(Schema::of_tables([ours.clone(), other.clone()]));
        let is_weak = |table: &TableSchema| {
            let (key, permission) = (RowKey::new(), CachePermission::Exclusive { claim: 1 });
            let cache = &router.shared().cache;
            match cache.join(table, &key, permission, || unreachable!("nobody leads")) {
                Join::Lead(ticket) => ticket.is_weak(),
                _ => panic!("the gates are open"),
            }
        };
        for (change, target, weak) in [
            ("UPDATED", SchemaTarget::Type("u"), false),
            ("UPDATED", SchemaTarget::Table("t"), false),
            ("UPDATED", SchemaTarget::Keyspace, true),
        ] {
            router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
            assert_eq!([&ours, &other].map(is_weak), [weak, false], "{change}");
        }
    }
}
