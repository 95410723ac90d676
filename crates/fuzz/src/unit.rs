//! The unit of a partition, as it is on flash.

use std::sync::Arc;

use afterglow_cql::plan::{
    Plan, RowKey, SchemaView, SlicePlan, TableSchema, analyse, defined_tables,
};
use afterglow_cql::statement::parse;
use afterglow_rowcache::unit::{StoredUnit, UnitAsked, read_unit};

use crate::target::Target;

/// This target.
pub const TARGETS: &[Target] =
    &[Target { name: "unit", run: unit, seeds: unit_seeds, mutations: 5_000 }];

struct OneTable(TableSchema);

impl SchemaView for OneTable {
    fn table(&self, _keyspace: &str, _name: &str) -> Option<Arc<TableSchema>> {
        Some(Arc::new(self.0.clone()))
    }
}

const TABLE: &str =
    "CREATE TABLE s.t (k int, c int, d timeuuid, v int, w text, PRIMARY KEY (k, c, d))";

fn plan(rest: &str) -> SlicePlan {
    let [table] = defined_tables(TABLE, None).expect("a table").try_into().expect("one table");
    let text = format!("SELECT * FROM s.t WHERE k = 1 {rest}");
    match analyse(&parse(&text), &OneTable(table), None) {
        Plan::CachedSlice(plan) => plan,
        other => panic!("{text}: {other:?}"),
    }
}

/// Whatever a unit answers, it answers with rows that it has, no more than are wanted, and the same
/// each time.
fn unit(data: &[u8]) {
    let Some(unit) = StoredUnit::decode(data) else { return };
    for rest in ["", "ORDER BY c DESC LIMIT 2", "AND c > 1 AND c <= 3", "AND c = 1 LIMIT 1"] {
        let plan = plan(rest);
        let slice = plan.bind(&|_| None).expect("literals");
        let mut key = RowKey::new();
        plan.read.key.bind(|_| None, &mut key).expect("a literal");
        let Ok(answer) = unit.answer(&plan.read.table, &slice, Some(5000)) else { continue };
        let most = slice.limit.map_or(unit.rows(), |limit| limit as usize);
        assert!(answer.len() <= most.min(unit.rows()), "{} rows for {rest}", answer.len());
        let mut out = Vec::new();
        answer.write_rows(&key, &plan.read.projection, &mut out);
        // A count, and five cells of each row with their lengths.
        assert!(out.len() >= 4 + answer.len() * 5 * 4);
        assert!(out.len() <= 4 + answer.most_bytes(&key, &plan.read));
        assert_eq!(unit.answer(&plan.read.table, &slice, Some(5000)), Ok(answer));
    }
}

fn unit_seeds() -> Vec<Vec<u8>> {
    let plan = plan("");
    let mut key = RowKey::new();
    plan.read.key.bind(|_| None, &mut key).expect("a literal");
    let (one, time) = (1_i32.to_be_bytes(), 1_i64.to_be_bytes());
    let id = [0, 0, 0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0, 0, 0, 0, 1];
    let rows: Vec<[u8; 4]> = (0..5_i32).map(i32::to_be_bytes).collect();
    let rows: Vec<Vec<Option<&[u8]>>> = rows
        .iter()
        .map(|c| {
            let keys = [Some(&one[..]), Some(&c[..]), Some(&id[..])];
            let values =
                [Some(&c[..]), Some(&time[..]), None, Some(&b"text"[..]), Some(&time), None];
            [&keys[..], &values].concat()
        })
        .collect();
    let seed = |rows: &[Vec<Option<&[u8]>>], asked| {
        let (table, fingerprint) = (&plan.read.table, plan.read.fingerprint);
        read_unit(table, fingerprint, &key, rows, asked, 1).expect("a unit").bytes
    };
    let asked = UnitAsked { reversed: false, rows: 64, bytes: 1 << 16 };
    vec![
        seed(&rows, asked),
        seed(&rows, UnitAsked { rows: 5, reversed: true, ..asked }),
        seed(&[], asked),
    ]
}
