//! For unit tests: the cached path over a small engine, and rows in it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::plan::{Column, Plan, ReadPlan, RowKey, SchemaView, TableSchema, analyse};
use afterglow_cql::statement::parse;
use afterglow_engine::device::DeviceConfig;
use afterglow_engine::{Cache, Config};
use afterglow_rowcache::gate::Join;
use afterglow_rowcache::install::{Installed, ReturnedFill};
use afterglow_rowcache::row::{Filled, encode_absent};
use afterglow_rowcache::serve::CachePermission;
use uuid::Uuid;

use super::setup::{Cached, CachedConfig};
use super::times::Times;
use super::{RowCache, tables_of_last_run};
use crate::config::{LivePolicies, TablePolicies};

/// Opens both in a directory.
pub fn open(dir: &Path) -> (Cache, Cached) {
    open_holding(dir, Duration::from_secs(600))
}

/// Everything is cached but the keyspace `off`.
fn policies() -> TablePolicies {
    let rules = ["off.*=off", "*.*=exclusive"];
    TablePolicies { rules: rules.map(|rule| rule.parse().unwrap()).into() }
}

/// The same, with this for `unknown-outcome-hold`.
pub fn open_holding(dir: &Path, hold: Duration) -> (Cache, Cached) {
    let device = DeviceConfig { path: dir.join("flash"), size: 32 << 20 };
    let mut config = Config::new(dir, vec![device]);
    (config.memory, config.journal_size) = (64 << 20, 1 << 20);
    let engine = Cache::open(config).unwrap();
    let tables = tables_of_last_run(&engine, dir);
    let config = CachedConfig {
        engine: &engine,
        data_dir: dir,
        policies: Arc::new(LivePolicies::new(policies())),
        restart_grace: Duration::from_secs(60),
        planned_restart_grace: Duration::ZERO,
        write_levels: Default::default(),
        unknown_outcome_hold: hold,
        times: Times::default(),
        partition_unit_size: 256 << 10,
        fill_hedge: Default::default(),
        ring: None,
    };
    let cached = Cached::open(&config, tables).unwrap();
    (engine, cached)
}

/// A table of `ks` with a key and a value.
pub fn keyed(name: &str, id: u128) -> TableSchema {
    TableSchema {
        partition_key: vec![Column::new("k", "int")],
        regulars: vec![Column::new("v", "int")],
        ..TableSchema::new("ks".into(), name.into(), Uuid::from_u128(id))
    }
}

/// A read of one row of such a table, and the row's key.
pub fn read_of(schema: &impl SchemaView, table: &str) -> (ReadPlan, RowKey) {
    let statement = parse(&format!("SELECT v FROM ks.{table} WHERE k = 1"));
    let Plan::CachedRead(plan) = analyse(&statement, schema, None) else { panic!("{table}") };
    let mut key = RowKey::new();
    plan.key.bind(|_| None, &mut key).unwrap();
    (plan, key)
}

/// Caches under this claim that there is no such row.
pub fn fill(cache: &RowCache, plan: &ReadPlan, key: &RowKey, claim: u64) {
    let cache_permission = CachePermission::Exclusive { claim };
    let Join::Lead(ticket) = cache.join(&plan.table, key, cache_permission, || unreachable!())
    else {
        panic!("the gates are open")
    };
    let mut bytes = Vec::new();
    encode_absent(plan.fingerprint, &mut bytes);
    let filled = Filled { bytes, max_age: None, marker_only: false };
    let asked_at = cache.clock().moment();
    let fill = ReturnedFill { plan, key, filled, cache_permission, asked_at, weak: false };
    assert_eq!(cache.install(fill, ticket).installed, Installed::Absent);
}
