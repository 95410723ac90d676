//! Drops cached rows at the operator's word: what was written past Afterglow.
//!
//! 1. [`scope_of`] finds what is named in the schema of this moment.
//! 2. The rows are dropped as by a write that changes nothing: fills that began before are not
//!    installed. In a ring the owners do that, asked as for a write.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use afterglow_cql::plan::{Plan, Target, WriteKind, WritePlan, analyse};
use afterglow_cql::statement::parse;
use afterglow_ring::WriteResult;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_scope::{Invalidation, WriteScope};
use serde::{Deserialize, Serialize};

use super::super::CqlShared;
use super::ring::tell_owners;
use super::state::CachedState;

/// How long the owners in a ring may take.
const TIMEOUT: Duration = Duration::from_secs(8);

/// What the operator names, in the words of CQL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Named {
    /// All that the CQL front end has cached.
    Everything,
    /// A keyspace.
    Keyspace(String),
    /// `keyspace.table`.
    Table(String),
    /// Partitions or rows of `keyspace.table`, by a condition as after WHERE.
    Rows(String, String),
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Named::Everything => write!(f, "all rows"),
            Named::Keyspace(keyspace) => write!(f, "all rows of keyspace {keyspace}"),
            Named::Table(table) => write!(f, "all rows of {table}"),
            Named::Rows(table, condition) => write!(f, "rows of {table} where {condition}"),
        }
    }
}

/// Drops rows of one running instance or of its ring.
#[derive(Clone)]
pub struct Invalidator {
    pub(super) shared: Arc<CachedState>,
    pub(super) front_end: Arc<CqlShared>,
}

impl Invalidator {
    /// Drops what is named, and says in words what was dropped. When this returns, nothing of it is
    /// served any more. In a ring that is so for rows under `exclusive` at every member, and for
    /// others at this one: each member has its own copies of those, for their bound at most.
    /// Blocks; not to be called on a reactor.
    ///
    /// # Errors
    /// What is named is not there, or the owners cannot be reached.
    pub fn invalidate(&self, named: &Named) -> Result<String, String> {
        let newest = self.shared.newest.of(&self.front_end.schema);
        let scope = self.scope_of(named, &newest)?;
        let mut done = named.to_string();
        if self.shared.sharing {
            if self.has_bounded(&scope, &newest) {
                done +=
                    "; of tables under max-staleness those of this instance: ask each for its own";
            }
            self.shared.cache.forget(&scope);
            self.ask_owners(scope)?;
        } else {
            self.shared.forget(&scope);
        }
        tracing::info!("the operator has dropped {done}");
        Ok(done)
    }

    /// Whether tables are touched whose rows each member of a ring caches for itself.
    fn has_bounded(&self, scope: &WriteScope, newest: &Index) -> bool {
        newest.may_touch(scope, |table| {
            let permission = table.map(|table| self.shared.cache.cache_permission(table));
            matches!(permission, Some(Ok(CachePermission::Bounded { .. })))
        })
    }

    fn scope_of(&self, named: &Named, newest: &Index) -> Result<WriteScope, String> {
        let schema = self.front_end.schema.current();
        if !matches!(named, Named::Everything) && schema.is_unknown() {
            return Err(
                "the schema is not known yet: try again once the database is reached".into()
            );
        }
        let plan = |text: String| match analyse(&parse(&text), &*schema, None) {
            Plan::Write(plan) => Some(plan),
            _ => None,
        };
        match named {
            Named::Everything => Ok(WriteScope::everything()),
            Named::Keyspace(keyspace) => {
                let name = match analyse(&parse(&format!("USE {keyspace}")), &*schema, None) {
                    Plan::Use(name) => Some(name),
                    _ => None,
                };
                name.and_then(|name| keyspace_scope(&name, newest))
                    .ok_or_else(|| format!("there is no keyspace {keyspace} with tables"))
            }
            Named::Table(table) => table_scope(plan(format!("TRUNCATE {table}")), newest)
                .ok_or_else(|| format!("there is no table {table}: name it as keyspace.table")),
            Named::Rows(table, condition) => {
                if table_scope(plan(format!("TRUNCATE {table}")), newest).is_none() {
                    return Err(format!("there is no table {table}: name it as keyspace.table"));
                }
                rows_scope(plan(format!("DELETE FROM {table} WHERE {condition}")), newest).ok_or_else(
                    || format!("`{condition}` names no partitions of {table}: give every partition key column a value with `=` or IN, as in CQL"),
                )
            }
        }
    }

    /// As a write that the database is not told of.
    fn ask_owners(&self, scope: WriteScope) -> Result<(), String> {
        let Some(ring) = self.shared.ring.get().cloned() else {
            return Err("this instance has not joined its ring yet: try again".into());
        };
        let (done, ended) = mpsc::sync_channel(1);
        self.front_end.reactors.spawn_on(0, move || async move {
            // Who asked may have given up waiting.
            let _ = done.send(tell_owners(&ring, &scope, WriteResult::Done).await);
        });
        match ended.recv_timeout(TIMEOUT) {
            Ok(true) => Ok(()),
            _ => Err("not all instances that own the rows could be reached, and some of them may be cached still: try again, see `afterglow ring status`".into()),
        }
    }
}

fn scope_by(plan: &WritePlan, newest: &Index) -> WriteScope {
    let mut scope = WriteScope::default();
    scope.add(plan, &|_| None, newest);
    scope
}

fn keyspace_scope(keyspace: &str, newest: &Index) -> Option<WriteScope> {
    let mut scope = WriteScope::default();
    scope.add_tables_of(keyspace, newest);
    (!scope.is_empty()).then_some(scope)
}

fn table_scope(plan: Option<WritePlan>, newest: &Index) -> Option<WriteScope> {
    let plan = plan.filter(|plan| plan.kind == WriteKind::Truncate)?;
    let known = matches!(&plan.targets[..], [Target::Table { id: Some(_), .. }]);
    known.then(|| scope_by(&plan, newest))
}

fn rows_scope(plan: Option<WritePlan>, newest: &Index) -> Option<WriteScope> {
    let plan = plan.filter(|plan| plan.kind == WriteKind::Modification)?;
    let scope = scope_by(&plan, newest);
    let named =
        |one: &Invalidation| !matches!(one, Invalidation::Table(_) | Invalidation::Everything);
    let precise = !scope.invalidations().is_empty() && scope.invalidations().iter().all(named);
    precise.then_some(scope)
}

#[cfg(test)]
mod tests {
    use afterglow_cql::plan::defined_tables;
    use afterglow_cql::schema::Schema;

    use super::*;

    const TABLES: &str = "CREATE TABLE shop.items (id int PRIMARY KEY, v text);
        CREATE TABLE shop.carts (id int, c int, v text, PRIMARY KEY (id, c));";

    fn index() -> (Arc<Schema>, Index) {
        let schema = Arc::new(Schema::of_tables(defined_tables(TABLES, None).unwrap()));
        (schema.clone(), Index::of(schema))
    }

    fn planned(schema: &Schema, text: &str) -> Option<WritePlan> {
        match analyse(&parse(text), schema, None) {
            Plan::Write(plan) => Some(plan),
            _ => None,
        }
    }

    #[test]
    fn rows_and_partitions_are_named_by_their_keys_and_nothing_wider() {
        let (schema, index) = index();
        let scope = |condition: &str| {
            let text = format!("DELETE FROM shop.carts WHERE {condition}");
            rows_scope(planned(&schema, &text), &index)
        };
        let count = |condition: &str| scope(condition).map(|scope| scope.invalidations().len());
        assert!(count("id = 7").is_some() && count("id = 7 AND c = 3").is_some());
        assert!(count("id IN (1, 2, 3)") > count("id = 1"));
        for wide in ["c = 3", "id = ?", "id = 'x'", "id > 7", "", "id = 7; TRUNCATE shop.items"] {
            assert_eq!(count(wide), None, "{wide}");
        }
    }

    #[test]
    fn only_what_is_there_can_be_named() {
        let (schema, index) = index();
        let table = |name: &str| {
            table_scope(planned(&schema, &format!("TRUNCATE {name}")), &index).is_some()
        };
        assert!(table("shop.items") && table("\"shop\".\"carts\""));
        assert!(!table("shop.nothing") && !table("items") && !table("shop.items; DROP TABLE a.b"));
        assert!(keyspace_scope("shop", &index).is_some());
        assert!(keyspace_scope("other", &index).is_none());
    }
}
