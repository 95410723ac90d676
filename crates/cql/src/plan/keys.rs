//! Finds the rows or partitions that a modification names.

use super::bound_keys::{BoundKeys, KeyColumn, KeyLists, KeySource, KeyValues};
use super::combinations::{self, combinations};
use super::key::{KeyTemplate, MAX_KEY, PartitionTemplate, ValueSource};
use super::literal;
use super::schema::{Column, TableSchema};
use super::types::{Form, KeyClass};
use crate::statement::{Marker, Modification, ModificationKind, Operator, Relation, Term};

/// Most keys that one statement's `IN` lists may name before its scope is widened.
const MAX_KEYS: usize = 64;

/// Rows that a modification touches.
pub(super) enum WrittenRows {
    /// These rows.
    Exact(Vec<KeyTemplate>),
    /// These partitions, whole or in part.
    Partitions(Vec<PartitionTemplate>),
    /// Those that bound lists name.
    Bound(BoundKeys),
    /// A row in each of these partitions that was never there before.
    NewRows(Vec<PartitionTemplate>),
    /// A partition that was never there before.
    NewPartition,
    /// Not certain: any row of the table.
    Table,
}

/// What relations say of one key column.
enum ColumnValues {
    /// It has these values.
    Listed(Vec<ValueSource>),
    /// Those of a list bound to this marker.
    Elements(Marker),
    /// One that the server makes anew.
    Unique,
}

pub(super) fn rows(
    modification: &Modification,
    table: &TableSchema,
    binds_certain: bool,
) -> WrittenRows {
    if !binds_certain {
        return WrittenRows::Table;
    }
    let relations = &modification.relations;
    let is_unique = |column| matches!(values_of(column, relations), Some(ColumnValues::Unique));
    if table.partition_key.iter().any(is_unique) {
        return WrittenRows::NewPartition;
    }
    if !table.partition_is_bytes() {
        return WrittenRows::Table;
    }
    let whole_rows = whole_rows_only(modification, table);
    if let Some(lists) = lists(table, relations, whole_rows) {
        return WrittenRows::Bound(BoundKeys { table: table.id, source: KeySource::Lists(lists) });
    }
    let every = |columns: &[Column], class: fn(&Column) -> KeyClass| {
        let values = |column| match values_of(column, relations)? {
            ColumnValues::Listed(values) => Some((values, class(column))),
            ColumnValues::Elements(_) | ColumnValues::Unique => None,
        };
        combinations(columns.iter().map(values), MAX_KEYS)
    };
    let Some(partitions) = every(&table.partition_key, |_| KeyClass::PARTITION) else {
        return WrittenRows::Table;
    };
    let partitions =
        partitions.into_iter().map(|parts| PartitionTemplate { table: table.id, parts });
    if whole_rows && table.clustering.iter().any(is_unique) {
        return WrittenRows::NewRows(partitions.collect());
    }
    let clusterings = match whole_rows {
        true => every(&table.clustering, |column| KeyClass::of_clustering(&column.cql_type)),
        false => None,
    };
    match clusterings {
        Some(clusterings) if clusterings.len() * partitions.len() <= MAX_KEYS => {
            WrittenRows::Exact(combinations::rows(partitions, &clusterings))
        }
        _ => WrittenRows::Partitions(partitions.collect()),
    }
}

fn is_long(value: &ValueSource) -> bool {
    matches!(value, ValueSource::Literal(bytes) if bytes.len() > MAX_KEY)
}

/// The key columns, if all of a partition's are pinned down and a list is bound to one of them or
/// to a clustering column.
fn lists(table: &TableSchema, relations: &[Relation], whole_rows: bool) -> Option<KeyLists> {
    let columns = |columns: &[Column], class: &dyn Fn(&Column) -> KeyClass| {
        let column = |column: &Column| {
            let values = match values_of(column, relations)? {
                // They would be copied into every key.
                ColumnValues::Listed(values) if values.iter().any(is_long) => return None,
                ColumnValues::Listed(values) => KeyValues::Listed(values),
                ColumnValues::Elements(marker) => {
                    KeyValues::Elements(marker, Form::of(&column.cql_type))
                }
                ColumnValues::Unique => return None,
            };
            Some(KeyColumn { class: class(column), values })
        };
        columns.iter().map(column).collect::<Option<Vec<_>>>()
    };
    let partition = columns(&table.partition_key, &|_| KeyClass::PARTITION)?;
    let clustering = match whole_rows {
        true => columns(&table.clustering, &|c| KeyClass::of_clustering(&c.cql_type)),
        false => None,
    };
    let mut all = partition.iter().chain(clustering.iter().flatten());
    let bound = all.any(|column| matches!(column.values, KeyValues::Elements(..)));
    bound.then_some(KeyLists { partition, clustering })
}

/// Whether the modification may name several partitions.
pub(super) fn names_several(modification: &Modification) -> bool {
    modification.relations.iter().any(|relation| match relation {
        Relation::ColumnInMarker { .. } => true,
        Relation::Column { op, .. } | Relation::Tuple { op, .. } => *op == Operator::In,
        Relation::Other => false,
    })
}

/// Whether the modification touches no static column, and only columns that the schema knows.
fn whole_rows_only(modification: &Modification, table: &TableSchema) -> bool {
    let keys = || table.partition_key.iter().chain(&table.clustering);
    let known = |name: &String| {
        table.regulars.iter().any(|c| c.name == *name)
            || (modification.kind == ModificationKind::Insert && keys().any(|c| c.name == *name))
    };
    modification.columns.iter().all(known)
}

/// The values of `column` if exactly one relation speaks of it, by `=`, `IN (...)` or `IN ?`.
fn values_of(column: &Column, relations: &[Relation]) -> Option<ColumnValues> {
    let mut about = relations.iter().filter(|relation| speaks_of(relation, &column.name));
    let relation = about.next()?;
    if about.next().is_some() {
        return None;
    }
    let terms: Vec<&Term> = match relation {
        Relation::Column { op: Operator::Equal, values, .. } if is_made(values, column) => {
            return Some(ColumnValues::Unique);
        }
        Relation::Column { op: Operator::Equal | Operator::In, values, .. } => {
            values.iter().collect()
        }
        Relation::ColumnInMarker { marker, .. } => {
            return Some(ColumnValues::Elements(marker.clone()));
        }
        Relation::Tuple { columns, op: Operator::Equal, values } => {
            let at = columns.iter().position(|name| *name == column.name)?;
            match values.as_slice() {
                [Term::Tuple(terms)] if terms.len() == columns.len() => vec![&terms[at]],
                _ => return None,
            }
        }
        _ => return None,
    };
    if terms.is_empty() {
        return None;
    }
    let slots = terms.into_iter().map(|term| literal::slot(term, &column.cql_type).ok());
    slots.collect::<Option<_>>().map(ColumnValues::Listed)
}

/// Whether the server's own function makes the value of a column. `uuid()` makes no `timeuuid`, and
/// nothing makes other types: for these the server takes a function of the keyspace.
fn is_made(values: &[Term], column: &Column) -> bool {
    match (values, column.cql_type.as_str()) {
        ([Term::Unique { .. }], "uuid") => true,
        ([Term::Unique { timed }], "timeuuid") => *timed,
        _ => false,
    }
}

fn speaks_of(relation: &Relation, column: &str) -> bool {
    match relation {
        Relation::Column { column: name, .. } | Relation::ColumnInMarker { column: name, .. } => {
            name == column
        }
        Relation::Tuple { columns, .. } => columns.iter().any(|name| name == column),
        Relation::Other => false,
    }
}
