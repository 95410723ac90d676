//! The database's schema as it is at one moment: a snapshot, replaced whole when something changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use uuid::Uuid;

use crate::graces::Graces;
use crate::plan::{SchemaView, TableSchema};
use crate::response::{SchemaChange, SchemaTarget};

/// One snapshot.
#[derive(Debug, Default)]
pub struct Schema {
    /// Grows with every snapshot; plans made for another generation are void.
    pub generation: u64,
    /// Tables and views by keyspace and name.
    tables: HashMap<String, HashMap<String, Arc<TableSchema>>>,
    /// Keyspaces of tables and views by their ids.
    keyspaces: HashMap<Uuid, String>,
    /// `replication` of every keyspace.
    replication: HashMap<String, BTreeMap<String, String>>,
    /// What every table forgets when, by its id.
    graces: HashMap<Uuid, Graces>,
}

impl SchemaView for Schema {
    fn table(&self, keyspace: &str, table: &str) -> Option<Arc<TableSchema>> {
        self.tables.get(keyspace)?.get(table).cloned()
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

    /// Whether nothing is known: before the first load and while the control connection is lost.
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
}
