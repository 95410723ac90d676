//! The database's schema as it is at one moment: a snapshot, replaced whole when something changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use crate::graces::Graces;
use crate::plan::{SchemaView, TableSchema};
use crate::response::{SchemaChange, SchemaTarget};

/// What a snapshot may lack.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Currency {
    /// Nothing that was heard of when it became the newest.
    #[default]
    Current,
    /// A change that was heard of while it was read.
    Behind,
    /// A change whose client has been told that it is done. It answers no reads. Writes go by what
    /// it knows, as they do by any snapshot that is older than the last change.
    Outdated,
}

/// One snapshot.
#[derive(Debug, Default, Clone)]
pub struct Schema {
    /// Grows with every snapshot; plans made for another generation are void.
    pub generation: u64,
    /// What it may lack.
    pub currency: Currency,
    /// Tables and views by keyspace and name.
    tables: HashMap<String, HashMap<String, Arc<TableSchema>>>,
    /// Keyspaces of tables and views by their ids.
    keyspaces: HashMap<Uuid, String>,
    /// `replication` of every keyspace.
    replication: HashMap<String, BTreeMap<String, String>>,
    /// What every table forgets when, by its id.
    graces: HashMap<Uuid, Graces>,
    /// When every table was last changed, by its id.
    table_times: HashMap<Uuid, ChangeTime>,
    /// When every keyspace or something of it was last changed.
    keyspace_times: HashMap<String, ChangeTime>,
}

/// The write time of a row of `system_schema`. A change of what the row tells writes all of it,
/// also one that is taken back by the next. So the same time says that nothing came in between.
pub type ChangeTime = i64;

/// What may have changed between two snapshots, including what was changed and changed back.
#[derive(Debug, Default)]
pub struct MayHaveChanged<'a> {
    /// Tables of both, as each has them.
    pub tables: Vec<&'a Arc<TableSchema>>,
    /// Keyspaces of the later one that may have had another replication.
    pub keyspaces: Vec<&'a str>,
}

/// A table as one snapshot shows it.
#[derive(Debug, Clone)]
pub struct SeenTable {
    /// Its columns and options.
    pub table: Arc<TableSchema>,
    /// When it was last changed, if that is known.
    pub time: Option<ChangeTime>,
}

impl SeenTable {
    /// Whether this and an earlier snapshot tell when the table was last changed, and it was since.
    pub fn tells_change_since(&self, before: &SeenTable) -> bool {
        self.time.is_some() && before.time.is_some() && self.time != before.time
    }

    /// Whether what is cached of it is certainly as it was in an earlier snapshot, if one change of
    /// it was heard of since. The table's time must tell of a change: otherwise the snapshot before
    /// had it already, and what came with it is not known.
    pub fn keeps_rows_since(&self, before: &SeenTable) -> bool {
        // Rows are the same with an index and without.
        let indexed = before.table.indexed;
        self.tells_change_since(before)
            && TableSchema { indexed, ..TableSchema::clone(&self.table) } == *before.table
    }
}

impl SchemaView for Schema {
    fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>> {
        self.tables.get(keyspace)?.get(table).cloned()
    }

    fn is_outdated(&self) -> bool {
        self.currency == Currency::Outdated
    }
}

impl Schema {
    /// The replication options of a keyspace, as `system_schema.keyspaces` has them.
    pub fn replication(&self, keyspace: &str) -> Option<&BTreeMap<String, String>> {
        self.replication.get(keyspace)
    }

    /// The keyspace of a table.
    pub fn keyspace_of(&self, table: Uuid) -> Option<&str> {
        self.keyspaces.get(&table).map(String::as_str)
    }

    /// How long the database keeps tombstones of a table, and what it knows of its lightweight
    /// transactions. Nothing is known of other tables.
    pub fn graces(&self, table: Uuid) -> Graces {
        self.graces.get(&table).copied().unwrap_or_default()
    }

    /// All tables and views.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<TableSchema>> {
        self.tables.values().flat_map(HashMap::values)
    }

    /// How it differs from an earlier snapshot, as a server would have told it change by change.
    pub fn changes_since<'a>(&'a self, before: &'a Schema) -> Vec<SchemaChange<'a>> {
        let change = |change, keyspace, target| SchemaChange { change, keyspace, target };
        let mut changes = Vec::new();
        for (keyspace, options) in &self.replication {
            match before.replication.get(keyspace) {
                None => changes.push(change("CREATED", keyspace, SchemaTarget::Keyspace)),
                Some(then) if then != options => {
                    changes.push(change("UPDATED", keyspace, SchemaTarget::Keyspace));
                }
                Some(_) => {}
            }
        }
        for table in self.tables() {
            let target = SchemaTarget::Table(&table.name);
            match before.table(&table.keyspace, &table.name) {
                None => changes.push(change("CREATED", &table.keyspace, target)),
                Some(then) if then != *table => {
                    changes.push(change("UPDATED", &table.keyspace, target))
                }
                Some(_) => {}
            }
        }
        for table in before.tables() {
            // The tables of a keyspace go with it.
            let there = self.replication.contains_key(&table.keyspace);
            if there && self.table(&table.keyspace, &table.name).is_none() {
                changes.push(change("DROPPED", &table.keyspace, SchemaTarget::Table(&table.name)));
            }
        }
        let gone =
            before.replication.keys().filter(|keyspace| !self.replication.contains_key(*keyspace));
        changes.extend(gone.map(|keyspace| change("DROPPED", keyspace, SchemaTarget::Keyspace)));
        changes
    }

    /// What may have changed since an earlier snapshot, whatever came in between. That is all whose
    /// times the database does not tell. It does not tell them of types, so tables with columns of
    /// such types may have changed.
    pub fn touched_since<'a>(&'a self, before: &'a Schema) -> MayHaveChanged<'a> {
        let same_time = |id: &Uuid| match (self.table_times.get(id), before.table_times.get(id)) {
            (Some(now), Some(then)) => now == then,
            _ => false,
        };
        let is_same = |table: &&Arc<TableSchema>| {
            let [now, then] = [self, before].map(|of| of.table(&table.keyspace, &table.name));
            now == then && same_time(&table.id) && !table.has_user_types()
        };
        let is_same_keyspace = |keyspace: &&str| {
            let times = [self, before].map(|of| of.keyspace_times.get(*keyspace));
            let options = [self, before].map(|of| of.replication.get(*keyspace));
            times[0].is_some() && times[0] == times[1] && options[0] == options[1]
        };
        let keyspaces = self.replication.keys().map(String::as_str);
        let tables = before.tables().chain(self.tables());
        MayHaveChanged {
            tables: tables.filter(|table| !is_same(table)).collect(),
            keyspaces: keyspaces.filter(|keyspace| !is_same_keyspace(keyspace)).collect(),
        }
    }

    /// A table as this snapshot shows it.
    pub fn seen(&self, keyspace: &str, table: &str) -> Option<SeenTable> {
        let table = self.table(keyspace, table)?;
        Some(SeenTable { time: self.table_times.get(&table.id).copied(), table })
    }

    /// Notes when a table was last changed.
    pub fn set_table_time(&mut self, table: Uuid, time: ChangeTime) {
        self.table_times.insert(table, time);
    }

    /// Notes when a keyspace or something of it was last changed.
    pub fn set_keyspace_time(&mut self, keyspace: String, time: ChangeTime) {
        self.keyspace_times.insert(keyspace, time);
    }

    /// Of tables that no database told. Their keyspaces' replication is not known.
    pub fn of_tables(tables: impl IntoIterator<Item = TableSchema>) -> Schema {
        let mut schema = Schema::default();
        for table in tables {
            schema.add_keyspace(table.keyspace.clone(), BTreeMap::new());
            schema.add_table(table, Graces::default());
        }
        schema
    }

    /// Adds a keyspace with its replication, or replaces that.
    pub fn add_keyspace(&mut self, name: String, replication: BTreeMap<String, String>) {
        self.replication.insert(name, replication);
    }

    /// Adds a table or view of a keyspace that is added by itself.
    pub fn add_table(&mut self, table: TableSchema, graces: Graces) {
        self.graces.insert(table.id, graces);
        self.keyspaces.insert(table.id, table.keyspace.clone());
        let tables = self.tables.entry(table.keyspace.clone()).or_default();
        tables.insert(table.name.clone(), Arc::new(table));
    }

    /// Keyspaces that have another replication than in an earlier snapshot, which has them too.
    pub fn replicated_since<'a>(&'a self, before: &'a Schema) -> impl Iterator<Item = &'a str> {
        self.replication.iter().filter_map(|(keyspace, options)| {
            let then = before.replication.get(keyspace)?;
            (then != options).then_some(keyspace.as_str())
        })
    }

    /// Whether nothing is known: before the first load.
    pub fn is_unknown(&self) -> bool {
        self.replication.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Column;

    #[test]
    fn what_changed_between_two_snapshots_is_told_as_a_server_tells_it() {
        let table = |keyspace: &str, name: &str, columns: &[&str]| TableSchema {
            regulars: columns.iter().map(|name| Column::new(*name, "int")).collect(),
            ..TableSchema::new(keyspace.into(), name.into(), Uuid::from_u128(7))
        };
        let options =
            |factor: &str| BTreeMap::from([("replication_factor".to_owned(), factor.to_owned())]);
        let before = Schema::of_tables([
            table("ks", "same", &["v"]),
            table("ks", "altered", &["v"]),
            table("ks", "dropped", &[]),
            table("gone", "t", &[]),
        ]);
        let now = Schema::of_tables([
            table("ks", "same", &["v"]),
            table("ks", "altered", &["v", "w"]),
            table("ks", "made", &[]),
            table("new", "t", &[]),
        ]);
        let with = |mut schema: Schema, factor| {
            schema.add_keyspace("more".to_owned(), options(factor));
            schema
        };
        let (before, now) = (with(before, "1"), with(now, "3"));
        let mut told: Vec<String> = now
            .changes_since(&before)
            .into_iter()
            .map(|SchemaChange { change, keyspace, target }| match target {
                SchemaTarget::Table(table) => format!("{change} {keyspace}.{table}"),
                _ => format!("{change} {keyspace}"),
            })
            .collect();
        told.sort();
        let expected = [
            "CREATED ks.made",
            "CREATED new",
            "CREATED new.t",
            "DROPPED gone",
            "DROPPED ks.dropped",
            "UPDATED ks.altered",
            "UPDATED more",
        ];
        assert_eq!(told, expected);
        assert!(now.changes_since(&now).is_empty());
    }

    #[test]
    fn a_change_keeps_rows_that_shows_nothing_that_they_depend_on() {
        let table = |name: &str| TableSchema {
            regulars: vec![Column::new("v", "int")],
            ..TableSchema::new("ks".into(), name.into(), Uuid::from_u128(7))
        };
        let at = |time: i64, table: TableSchema| {
            let mut schema = Schema::of_tables([table]);
            schema.set_table_time(Uuid::from_u128(7), time);
            schema
        };
        let before = at(1, table("t"));
        let indexed = TableSchema { indexed: true, ..table("t") };
        let ending = TableSchema { default_ttl: 60, ..table("t") };
        let remade = TableSchema { id: Uuid::from_u128(8), ..table("t") };
        for (now, kept) in [
            (at(2, table("t")), true),
            (at(2, indexed), true),
            (at(2, ending), false),
            (at(2, TableSchema { triggers: true, ..table("t") }), false),
            (at(2, remade), false),
            (at(2, table("other")), false),
            // It was there before it was heard of, or nobody tells when.
            (at(1, table("t")), false),
            (Schema::of_tables([table("t")]), false),
        ] {
            let [then, now] = [&before, &now].map(|schema| schema.seen("ks", "t"));
            let keeps = now.zip(then).is_some_and(|(now, then)| now.keeps_rows_since(&then));
            assert_eq!(keeps, kept);
        }
    }

    #[test]
    fn what_was_changed_and_changed_back_shows_in_its_time() {
        let table = |name: &str, id: u128, types: &[&str]| TableSchema {
            regulars: types.iter().map(|cql_type| Column::new("v", *cql_type)).collect(),
            ..TableSchema::new("ks".into(), name.into(), Uuid::from_u128(id))
        };
        let schema = |tables: &[(&str, u128, &[&str], i64)], keyspaces: &[(&str, i64)]| {
            let of = |(name, id, types, _): &(&str, u128, &[&str], i64)| table(name, *id, types);
            let mut schema = Schema::of_tables(tables.iter().map(of));
            tables.iter().for_each(|(_, id, _, time)| {
                schema.set_table_time(Uuid::from_u128(*id), *time);
            });
            for (keyspace, time) in keyspaces {
                schema.add_keyspace((*keyspace).to_owned(), BTreeMap::new());
                schema.set_keyspace_time((*keyspace).to_owned(), *time);
            }
            schema
        };
        let touched = |now: &Schema, before: &Schema| {
            let touched = now.touched_since(before);
            let mut tables: Vec<_> = touched.tables.iter().map(|t| t.name.clone()).collect();
            let mut keyspaces: Vec<_> = touched.keyspaces.iter().map(|k| (*k).to_owned()).collect();
            tables.sort();
            tables.dedup();
            keyspaces.sort();
            (tables, keyspaces)
        };
        let before = schema(
            &[
                ("same", 1, &["frozen<list<text>>"], 5),
                ("back", 2, &["int"], 5),
                ("other", 3, &["int"], 5),
                ("gone", 4, &["int"], 5),
                ("remade", 5, &["int"], 5),
                ("typed", 6, &["frozen<map<text, address>>"], 5),
            ],
            &[("ks", 9), ("still", 9), ("left", 9)],
        );
        let now = schema(
            &[
                ("same", 1, &["frozen<list<text>>"], 5),
                ("back", 2, &["int"], 6),
                ("other", 3, &["text"], 6),
                ("remade", 7, &["int"], 6),
                ("typed", 6, &["frozen<map<text, address>>"], 5),
                ("made", 8, &["int"], 6),
            ],
            &[("ks", 10), ("still", 9), ("new", 3)],
        );
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let tables = names(&["back", "gone", "made", "other", "remade", "typed"]);
        assert_eq!(touched(&now, &before), (tables, names(&["ks", "new"])));
        assert_eq!(touched(&now, &now), (names(&["typed"]), Vec::new()));
        let untold = Schema::of_tables([table("same", 1, &["int"])]);
        assert_eq!(touched(&untold, &untold), (names(&["same"]), names(&["ks"])));
    }
}
