//! Writes, fills, and a table that is dropped and created again with its key columns swapped, in
//! random orders. A write may reach the database long after it was planned.

use std::collections::HashMap;
use std::sync::Arc;

use afterglow_cql::plan::{Column, Plan, ReadPlan, RowKey, SchemaView, TableSchema, analyse};
use afterglow_cql::statement::parse;
use afterglow_engine::{Cache, Lookup};
use tempfile::TempDir;
use uuid::Uuid;

use crate::gate::{Join, Ticket};
use crate::install::{Installed, ReturnedFill};
use crate::row::{Filled, encode_absent};
use crate::row_cache::RowCache;
use crate::serve::CachePermission;
use crate::testing::{TestClock, cache_of_boot, open_engine};
use crate::write_in_flight::{Answered, WriteInFlight};
use crate::write_scope::{Tables, WriteScope, gate_of};

const PERMISSION: CachePermission = CachePermission::Exclusive { claim: 7 };
/// Values of each key column.
const VALUES: u64 = 3;

type Row = (u64, u64);

/// The one table, as the database has it and the cache knows it.
struct Schema(Arc<TableSchema>);

impl Schema {
    /// The `n`-th table of that name: every second one has the columns the other way round.
    fn nth(n: u128) -> Schema {
        let mut keys = ["a", "b"];
        keys.rotate_left((n % 2) as usize);
        let [first, second] = keys.map(|name| vec![Column::new(name, "int")]);
        Schema(Arc::new(TableSchema {
            partition_key: first,
            clustering: second,
            regulars: vec![Column::new("v", "int")],
            ..TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(n))
        }))
    }

    fn plan(&self, text: &str) -> Plan {
        analyse(&parse(text), self, None)
    }
}

impl SchemaView for Schema {
    fn table(&self, _keyspace: &str, _name: &str) -> Option<Arc<TableSchema>> {
        Some(self.0.clone())
    }
}

impl Tables for Schema {
    fn gate(&self, id: Uuid) -> Option<u32> {
        (id == self.0.id).then(|| gate_of("ks", "t"))
    }

    fn with_gate(&self, gate: u32) -> Vec<Uuid> {
        (gate == gate_of("ks", "t")).then_some(self.0.id).into_iter().collect()
    }

    fn id(&self, _keyspace: &str, _table: &str) -> Option<Uuid> {
        Some(self.0.id)
    }

    fn former_gate(&self, id: Uuid) -> Option<u32> {
        (id != self.0.id).then(|| gate_of("ks", "t"))
    }

    fn tables_in(&self, _keyspace: &str) -> Vec<(u32, Uuid)> {
        vec![(gate_of("ks", "t"), self.0.id)]
    }

    fn is_unknown(&self) -> bool {
        false
    }
}

struct Write {
    in_flight: WriteInFlight<()>,
    scope: WriteScope,
    row: Row,
    value: u64,
    /// The table that it changed, once it did.
    reached: Option<Uuid>,
}

struct Fill {
    plan: ReadPlan,
    key: RowKey,
    ticket: Ticket<()>,
    value: u64,
}

struct World {
    cache: Arc<RowCache<()>>,
    schema: Schema,
    tables: u128,
    rows: HashMap<Row, u64>,
    acknowledged: HashMap<(Uuid, Row), u64>,
    /// What was installed last, by engine key.
    installed: HashMap<Vec<u8>, u64>,
    writes: Vec<Write>,
    fills: Vec<Fill>,
    next: u64,
    hits: u32,
    _engine: Cache,
    _directory: TempDir,
}

impl World {
    fn new() -> World {
        let directory = TempDir::new().unwrap();
        let (engine, clock) = (open_engine(directory.path()), TestClock::new());
        let cache = cache_of_boot(1, &engine, &directory.path().join("intents"), &clock);
        World {
            cache,
            schema: Schema::nth(1),
            tables: 1,
            rows: HashMap::new(),
            acknowledged: HashMap::new(),
            installed: HashMap::new(),
            writes: Vec::new(),
            fills: Vec::new(),
            next: 0,
            hits: 0,
            _engine: engine,
            _directory: directory,
        }
    }

    fn scope(&self, text: &str) -> WriteScope {
        let Plan::Write(plan) = self.schema.plan(text) else { panic!("{text} is a write") };
        let mut scope = WriteScope::default();
        scope.add(&plan, &|_| None, &self.schema);
        scope
    }

    fn begin(&mut self, (a, b): Row) {
        self.next += 1;
        let scope = self.scope(&format!("INSERT INTO ks.t (a, b, v) VALUES ({a}, {b}, 1)"));
        let in_flight = self.cache.begin_write(&scope, false, 0, WriteScope::default);
        let (row, value) = ((a, b), self.next);
        self.writes.push(Write { in_flight, scope, row, value, reached: None });
    }

    /// A write reaches the table that there is now.
    fn reach(&mut self, n: usize) {
        let write = &mut self.writes[n];
        write.reached = Some(self.schema.0.id);
        let value = self.rows.entry(write.row).or_default();
        *value = write.value.max(*value);
    }

    fn acknowledge(&mut self, n: usize) {
        let Write { mut in_flight, scope, row, value, reached } = self.writes.swap_remove(n);
        in_flight.widen(&scope.replaced(&self.schema));
        in_flight.settle(Answered::Definite);
        let known = self.acknowledged.entry((reached.unwrap(), row)).or_default();
        *known = value.max(*known);
    }

    fn make_again(&mut self) {
        let scope = self.scope("DROP TABLE ks.t");
        let dropping = self.cache.begin_write(&scope, false, 0, WriteScope::default);
        self.rows.clear();
        dropping.settle(Answered::Definite);
        self.tables += 1;
        self.schema = Schema::nth(self.tables);
    }

    fn planned(&self, (a, b): Row) -> (ReadPlan, RowKey) {
        let text = format!("SELECT v FROM ks.t WHERE a = {a} AND b = {b}");
        let Plan::CachedRead(plan) = self.schema.plan(&text) else { panic!("{text} is cached") };
        let mut key = RowKey::new();
        plan.key.bind(|_| None, &mut key).unwrap();
        (plan, key)
    }

    /// A hit must not be older than what was acknowledged; a miss begins a fill, if it may.
    fn read(&mut self, row: Row) {
        let (plan, key) = self.planned(row);
        if let Lookup::Hit(hit) = self.cache.look_up(&key)
            && self.cache.accept(&hit, PERMISSION, plan.fingerprint).is_ok()
        {
            let known = self.acknowledged.get(&(plan.table.id, row)).copied().unwrap_or_default();
            let found = self.installed[key.engine_key()];
            assert!(found >= known, "{row:?} is {found} after {known} was acknowledged");
            self.hits += 1;
            return;
        }
        if let Join::Lead(ticket) = self.cache.join(&plan.table, &key, PERMISSION, || ()) {
            let value = self.rows.get(&row).copied().unwrap_or_default();
            self.fills.push(Fill { plan, key, ticket, value });
        }
    }

    fn install(&mut self, n: usize) {
        let Fill { plan, key, ticket, value } = self.fills.swap_remove(n);
        let mut bytes = Vec::new();
        encode_absent(plan.fingerprint, &mut bytes);
        let fill = ReturnedFill {
            plan: &plan,
            key: &key,
            filled: Filled { bytes, max_age: None, marker_only: false },
            cache_permission: PERMISSION,
            asked_at: self.cache.clock().moment(),
            weak: false,
        };
        if self.cache.install(fill, ticket).installed == Installed::Absent {
            self.installed.insert(key.engine_key().to_vec(), value);
        }
    }
}

#[test]
fn no_hit_is_stale_although_writes_reach_a_table_that_was_made_again_with_other_keys() {
    let mut world = World::new();
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % limit
    };
    for _ in 0..40_000 {
        let row = (below(VALUES), below(VALUES));
        match below(40) {
            0..4 if world.writes.len() < 4 => world.begin(row),
            4..8 if !world.writes.is_empty() => {
                let n = below(world.writes.len() as u64) as usize;
                match world.writes[n].reached {
                    None => world.reach(n),
                    Some(_) => world.acknowledge(n),
                }
            }
            8..16 if !world.fills.is_empty() => {
                let n = below(world.fills.len() as u64) as usize;
                world.install(n);
            }
            16 => world.make_again(),
            17.. => world.read(row),
            _ => {}
        }
    }
    assert!(world.hits > 2_000, "only {} hits: nothing was put to the test", world.hits);
}
