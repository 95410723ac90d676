//! Which writes are the same write when they are sent again with their timestamp.
//!
//! Such a write says all that it does: its text, its values and its timestamp leave nothing to the
//! server's clock, to chance or to what the table has. Then the database has the same cells and
//! tombstones after one attempt or many, through whichever node.
//!
//! Not plain are
//! - conditions, counters, and assignments that depend on the old value;
//! - functions, `now()` among them, and literals that nodes may read differently;
//! - columns of several cells: a list makes new ids for its elements each time;
//! - tables with triggers, which may do anything.

use std::sync::Arc;

use super::context::Context;
use super::key::ValueSource;
use super::literal::slot_of;
use super::schema::TableSchema;
use super::types::is_native;
use super::update::{timestamp, ttl};
use super::weight;
use crate::frame::notation::Value;
use crate::statement::{Marker, Modification, ModificationKind, Relation, Term};

/// An `INSERT`, `UPDATE` or `DELETE` whose effect follows from its text, values and timestamp.
#[derive(Debug, Clone, PartialEq)]
pub struct PlainWrite {
    /// The table as it was when the plan was made.
    pub table: Arc<TableSchema>,
    /// `USING TIMESTAMP`, of the statement or of its batch.
    timestamp: Option<ValueSource>,
    /// `USING TTL`.
    ttl: Option<ValueSource>,
    /// It sets no values, so the table's TTL says nothing of it.
    deletes: bool,
}

impl PlainWrite {
    /// `None` where the effect may depend on anything else. `of_batch`: the timestamp of the batch
    /// in text that the statement is in.
    pub(super) fn of(
        modification: &Modification,
        of_batch: &Option<Term>,
        context: &Context,
    ) -> Option<PlainWrite> {
        let deletes = match modification.kind {
            ModificationKind::Insert | ModificationKind::Update => false,
            ModificationKind::Delete => true,
            ModificationKind::InsertJson => return None,
        };
        let table = context.table(&modification.table)?;
        if modification.conditional || !context.binds_certain || table.triggers {
            return None;
        }
        table.cacheable().ok()?;
        let sets = modification.columns.iter().zip(&modification.assigned);
        let plain = modification.columns.iter().all(|name| type_of(name, &table).is_some())
            && sets.into_iter().all(|(name, term)| is_certain(name, term, &table))
            && modification.relations.iter().all(|relation| names_rows(relation, &table));
        let own = modification.timestamp.as_ref().or(of_batch.as_ref());
        plain.then_some(PlainWrite {
            timestamp: timestamp(own)?,
            ttl: ttl(modification.ttl.as_ref())?,
            deletes,
            table,
        })
    }

    /// About how many bytes its values take; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        self.timestamp.iter().chain(&self.ttl).map(weight::value).sum()
    }

    /// The timestamp of a request that binds these values, in microseconds, if it writes the same
    /// whenever it is sent: its timestamp is known, and what it sets has no TTL, which would begin
    /// anew. `default_timestamp` is that of the request.
    pub fn repeatable_at<'v>(
        &self,
        value: &impl Fn(&Marker) -> Option<Value<'v>>,
        default_timestamp: Option<i64>,
    ) -> Option<i64> {
        let timestamp = match &self.timestamp {
            None => default_timestamp,
            Some(source) => source.number(value).map(i64::from_be_bytes),
        };
        let is_endless = match &self.ttl {
            _ if self.deletes => true,
            None => self.table.default_ttl == 0,
            Some(source) => source.number(value).map(i32::from_be_bytes) == Some(0),
        };
        // The least number is none to a server.
        timestamp.filter(|at| is_endless && *at != i64::MIN)
    }
}

/// The type of a column that is written as one cell.
fn type_of<'t>(name: &str, table: &'t TableSchema) -> Option<&'t str> {
    let columns = table.keys().chain(&table.statics).chain(&table.regulars);
    let column = columns.into_iter().find(|column| column.name == name)?;
    is_native(&column.cql_type).then_some(&column.cql_type)
}

/// Whether every node takes `term` for the same value of this column.
fn is_certain(name: &str, term: &Term, table: &TableSchema) -> bool {
    match term {
        Term::Null => true,
        term => type_of(name, table).is_some_and(|of| slot_of(term, of).is_some()),
    }
}

/// Whether every node takes the relation for the same rows.
fn names_rows(relation: &Relation, table: &TableSchema) -> bool {
    match relation {
        Relation::Column { column, values, .. } => {
            values.iter().all(|term| is_certain(column, term, table))
        }
        Relation::ColumnInMarker { .. } => true,
        Relation::Tuple { columns, values, .. } => values.iter().all(|value| match value {
            Term::Marker(_) => true,
            Term::Tuple(terms) if terms.len() == columns.len() => {
                columns.iter().zip(terms).all(|(name, term)| is_certain(name, term, table))
            }
            _ => false,
        }),
        Relation::Other => false,
    }
}
