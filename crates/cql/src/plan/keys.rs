//! Finds the rows or partitions that a modification names.

use super::key::{KeyTemplate, Part, PartitionTemplate, ValueSource};
use super::literal;
use super::schema::{Column, TableSchema};
use super::types::KeyClass;
use crate::statement::{Modification, ModificationKind, Operator, Relation, Term};

/// Most keys that one statement's `IN` lists may name before its scope is widened.
const MAX_KEYS: usize = 64;

/// Rows that a modification touches.
pub(super) enum WrittenRows {
    /// These rows.
    Exact(Vec<KeyTemplate>),
    /// These partitions, whole or in part.
    Partitions(Vec<PartitionTemplate>),
    /// Not certain: any row of the table.
    Table,
}

/// The values that relations give a column; `None` where they do not pin it down.
type Values = Option<Vec<ValueSource>>;

pub(super) fn rows(
    modification: &Modification,
    table: &TableSchema,
    binds_certain: bool,
) -> WrittenRows {
    if !binds_certain || !table.partition_is_bytes() {
        return WrittenRows::Table;
    }
    let Some(partitions) =
        combine(&table.partition_key, &modification.relations, |_| KeyClass::PARTITION)
    else {
        return WrittenRows::Table;
    };
    let partitions =
        partitions.into_iter().map(|parts| PartitionTemplate { table: table.id, parts });
    let class = |column: &Column| KeyClass::of_clustering(&column.cql_type);
    let clustering = match whole_rows_only(modification, table) {
        true => combine(&table.clustering, &modification.relations, class),
        false => None,
    };
    match clustering {
        Some(rows) if rows.len() * partitions.len() <= MAX_KEYS => WrittenRows::Exact(
            partitions
                .flat_map(|partition| {
                    rows.iter().map(move |clustering| KeyTemplate {
                        partition: partition.clone(),
                        clustering: clustering.clone(),
                    })
                })
                .collect(),
        ),
        _ => WrittenRows::Partitions(partitions.collect()),
    }
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

/// Every combination of the columns' values as key parts, or `None` when a column is not pinned
/// down or there are too many.
fn combine(
    columns: &[Column],
    relations: &[Relation],
    class: impl Fn(&Column) -> KeyClass,
) -> Option<Vec<Vec<Part>>> {
    let mut keys: Vec<Vec<Part>> = vec![Vec::new()];
    for column in columns {
        let values = values_of(column, relations)?;
        if keys.len() * values.len() > MAX_KEYS {
            return None;
        }
        keys = keys
            .iter()
            .flat_map(|key| {
                values.iter().map(|slot| {
                    let mut key = key.clone();
                    key.push(Part { slot: slot.clone(), class: class(column) });
                    key
                })
            })
            .collect();
    }
    Some(keys)
}

/// The values of `column` if exactly one relation speaks of it, by `=` or `IN (...)`.
fn values_of(column: &Column, relations: &[Relation]) -> Values {
    let mut about = relations.iter().filter(|relation| speaks_of(relation, &column.name));
    let relation = about.next()?;
    if about.next().is_some() {
        return None;
    }
    let terms: Vec<&Term> = match relation {
        Relation::Column { op: Operator::Equal | Operator::In, values, .. } => {
            values.iter().collect()
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
    terms.into_iter().map(|term| literal::slot(term, &column.cql_type).ok()).collect()
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
