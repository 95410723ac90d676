//! What clients of a run ask for: one table, a few rows of it, and what a write of each touches.
//! The value of a row is the number of the write that it shows.

use std::sync::Arc;

use afterglow_cql::plan::{Plan, ReadPlan, RowKey, TableSchema, Target, analyse};
use afterglow_cql::schema::Schema;
use afterglow_cql::statement::parse;
use afterglow_cql::token::murmur3;
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::row::{Filled, read_fill};
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_scope::WriteScope;

use crate::frontend::cql::cached::testing::keyed;

/// The table and its rows.
pub struct Catalog {
    /// The schema, which no run changes.
    pub index: Index,
    schema: Arc<Schema>,
    /// The rows.
    pub rows: Vec<CatalogRow>,
}

/// One row.
pub struct CatalogRow {
    /// A plan to read it.
    pub plan: Arc<Plan>,
    /// Its key.
    pub key: RowKey,
    /// Of its partition.
    pub token: i64,
}

impl Catalog {
    /// So many rows.
    pub fn new(rows: usize) -> Catalog {
        let schema = Arc::new(Schema::of_tables([keyed("t", 7)]));
        let row = |n: usize| {
            let plan =
                analyse(&parse(&format!("SELECT v FROM ks.t WHERE k = {n}")), &*schema, None);
            let Plan::CachedRead(read) = &plan else { panic!("a read of one row") };
            let mut key = RowKey::new();
            read.key.bind(|_| None, &mut key).expect("it is an int");
            let token = murmur3(key.partition_key());
            CatalogRow { plan: Arc::new(plan), key, token }
        };
        let rows = (0..rows).map(row).collect();
        Catalog { index: Index::of(schema.clone()), schema, rows }
    }

    /// What a write of these rows touches; of the whole table if it writes all.
    pub fn scope(&self, rows: &[usize]) -> WriteScope {
        let update = |n: &usize| format!("UPDATE ks.t SET v = 1 WHERE k = {n}");
        let texts = match rows.len() == self.rows.len() {
            true => vec!["TRUNCATE ks.t".to_owned()],
            false => rows.iter().map(update).collect(),
        };
        let mut scope = WriteScope::default();
        for text in texts {
            let plan = analyse(&parse(&text), &*self.schema, None);
            let Plan::Write(write) = &plan else { panic!("{text} is a write") };
            scope.add(write, &|_| None, &self.index);
        }
        scope
    }

    /// What a write touches that makes a row whose key the database makes.
    pub fn made(&self) -> WriteScope {
        let mut scope = WriteScope::default();
        scope.add_target(&Target::NewPartition(self.rows[0].table().id), &|_| None, &self.index);
        scope
    }

    /// Which row a key is of.
    pub fn row_of(&self, engine_key: &[u8]) -> Option<usize> {
        self.rows.iter().position(|row| row.key.engine_key() == engine_key)
    }
}

impl CatalogRow {
    /// The plan.
    pub fn read(&self) -> &ReadPlan {
        let Plan::CachedRead(read) = &*self.plan else { unreachable!("made of one") };
        read
    }

    /// The table.
    pub fn table(&self) -> &Arc<TableSchema> {
        &self.read().table
    }

    /// What the database answers to a fill: that write, or that there is no row.
    pub fn filled(&self, stamp: i32, asked_at: u32) -> Filled {
        let (value, time) = (stamp.to_be_bytes(), i64::from(stamp).to_be_bytes());
        let keys = self.key.columns().map(Some);
        let row: Vec<_> = keys.chain([Some(&value[..]), Some(&time[..]), None]).collect();
        let rows = if stamp > 0 { vec![row] } else { Vec::new() };
        let read = self.read();
        read_fill(&read.table, read.fingerprint, &self.key, &rows, asked_at)
            .expect("it is as the query asks for it")
    }
}

/// The write that a cached row shows, 0 for none.
pub fn stamp_of(row: &Row) -> i32 {
    let value = row.stored().cell(0).value.map(|value| value.try_into().expect("an int"));
    value.map_or(0, i32::from_be_bytes)
}
