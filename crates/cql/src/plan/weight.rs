//! How much memory a plan takes: what is kept of many statements is bounded by that, not by the
//! length of their texts. A list of numbers takes thirty times its text.

use super::bound_keys::{BoundKeys, KeyColumn, KeySource, KeyValues};
use super::key::{KeyTemplate, Part, ValueSource};
use super::schema::Column;
use crate::statement::{Marker, Relation, Select, Selected, Selector, Term};

/// What a piece of memory takes beside its content, roughly.
const PIECE: usize = 16;
/// What a literal or a name takes beside its text: its counts, and that a short one may be longer
/// as a value.
const SHARED: usize = PIECE + 16;

/// A list of so many, with what each holds.
pub(super) fn list<T>(items: &[T], each: impl Fn(&T) -> usize) -> usize {
    let own = if items.is_empty() { 0 } else { PIECE };
    own + items.iter().map(|item| size_of::<T>() + each(item)).sum::<usize>()
}

pub(super) fn string(text: &str) -> usize {
    if text.is_empty() { 0 } else { PIECE + text.len() }
}

pub(super) fn value(source: &ValueSource) -> usize {
    match source {
        ValueSource::Literal(_) => SHARED,
        ValueSource::Bind(marker) => self::marker(marker),
    }
}

pub(super) fn marker(marker: &Marker) -> usize {
    if marker.name.is_some() { SHARED } else { 0 }
}

pub(super) fn parts(parts: &[Part]) -> usize {
    list(parts, |part| value(&part.slot))
}

pub(super) fn column_values(column: &KeyColumn) -> usize {
    match &column.values {
        KeyValues::Listed(values) => list(values, value),
        KeyValues::Elements(marker, _) => self::marker(marker),
    }
}

pub(super) fn row(key: &KeyTemplate) -> usize {
    parts(&key.partition.parts) + parts(&key.clustering)
}

pub(super) fn bound(keys: &BoundKeys) -> usize {
    match &keys.source {
        KeySource::Lists(lists) => {
            list(&lists.partition, column_values)
                + lists.clustering.as_ref().map_or(0, |columns| list(columns, column_values))
        }
        KeySource::Json(keys, marker) => {
            let column = |column: &Column| string(&column.name) + string(&column.cql_type);
            list(keys.columns(), column) + self::marker(marker)
        }
    }
}

/// The tree of a query over system tables, with its texts.
pub(super) fn select(query: &Select) -> usize {
    let selector = |selector: &Selector| {
        let column = match &selector.what {
            Selected::Column(name) => string(name),
            Selected::CountRows | Selected::Expression => 0,
        };
        column + selector.alias.as_deref().map_or(0, string)
    };
    list(&query.selectors, selector)
        + list(&query.relations, of_relation)
        + list(&query.order, |by| string(&by.column))
        + list(&query.words, |word| string(word))
        + size_of::<Select>()
}

fn of_relation(relation: &Relation) -> usize {
    match relation {
        Relation::Column { column, values, .. } => string(column) + list(values, of_term),
        Relation::ColumnInMarker { column, marker } => string(column) + self::marker(marker),
        Relation::Tuple { columns, values, .. } => {
            list(columns, |column| string(column)) + list(values, of_term)
        }
        Relation::Other => 0,
    }
}

fn of_term(term: &Term) -> usize {
    match term {
        Term::Tuple(terms) => list(terms, of_term),
        Term::Marker(marker) => self::marker(marker),
        // The text of a literal is part of the statement's.
        Term::Literal(_) => PIECE,
        Term::Null | Term::Unique { .. } | Term::Complex => 0,
    }
}
