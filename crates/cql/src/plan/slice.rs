//! Planning of a SELECT of a slice of one partition: its rows from one end, or a range of them.
//!
//! 1. [`cached`] makes the plan: a partition, equal values of the first clustering columns, a range
//!    of the next one, an order and a limit.
//! 2. [`SlicePlan::bind`] takes the values of one request.
//! 3. [`Slice::place`] says where a row is: before the range, in it, or after it. Rows come in the
//!    order that is asked for, so those in the range follow each other.

use std::cmp::Ordering;

use super::context::Context;
use super::key::{KeyTemplate, Part, PartitionTemplate, RowKey, ValueSource};
use super::literal;
use super::order::ValueOrder;
use super::read::{PassReason, ReadPlan, check_clauses, is_of_partition, key_parts, project};
use super::schema::{Column, TableSchema};
use super::types::KeyClass;
use crate::statement::{Literal, Marker, Operator, Relation, Select, Term};

/// A read of a slice of one partition that the cache can serve.
#[derive(Debug, Clone, PartialEq)]
pub struct SlicePlan {
    /// Table, columns and limits. Its key is the partition's unit.
    pub read: ReadPlan,
    /// Whether the rows come in the reverse of the table's order.
    pub reversed: bool,
    /// What the first clustering columns are equal to.
    prefix: Vec<Bounded>,
    /// What the next one is compared with: one value from below and one from above at most.
    range: Vec<(Side, Bounded)>,
    /// The smaller of the limits in the text.
    limit: Option<u32>,
}

/// A clustering column and what it is compared with.
#[derive(Debug, Clone, PartialEq)]
struct Bounded {
    order: ValueOrder,
    descending: bool,
    value: ValueSource,
}

/// One side of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Side {
    /// `<` and `<=`.
    upper: bool,
    inclusive: bool,
}

/// A slice with the values of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Whether the rows come in the reverse of the table's order.
    pub reversed: bool,
    /// The most rows that the request wants.
    pub limit: Option<u32>,
    prefix: Vec<Comparison>,
    range: Vec<(Side, Comparison)>,
}

/// A comparison of a clustering column with a value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Comparison {
    order: ValueOrder,
    /// Whether larger values come first in the order that is asked for.
    falling: bool,
    value: Vec<u8>,
}

/// Where a row is, in the order that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlace {
    /// Before the slice.
    Before,
    /// In it.
    In,
    /// After it.
    After,
}

impl SlicePlan {
    /// What clustering columns are compared with.
    #[cfg(test)]
    pub(super) fn bounds(&self) -> impl Iterator<Item = (&'static str, &ValueSource)> {
        let op = |side: &Side| match (side.upper, side.inclusive) {
            (false, false) => ">",
            (false, true) => ">=",
            (true, false) => "<",
            (true, true) => "<=",
        };
        let equal = self.prefix.iter().map(|of| ("=", &of.value));
        equal.chain(self.range.iter().map(move |(side, of)| (op(side), &of.value)))
    }

    /// How many clustering columns it bounds.
    pub(super) fn bounded_columns(&self) -> usize {
        self.prefix.len() + usize::from(!self.range.is_empty())
    }

    /// The slice for these bound values. `value` gives the bytes bound to a marker, `None` when
    /// null, unset or missing. `None` if the database may refuse it, or compares in a way that is
    /// not certain.
    pub fn bind<'v>(&self, value: &impl Fn(&Marker) -> Option<&'v [u8]>) -> Option<Slice> {
        let bound = |of: &Bounded| {
            let value = match &of.value {
                ValueSource::Bind(marker) => value(marker)?.to_vec(),
                ValueSource::Literal(bytes) => bytes.clone(),
            };
            let falling = of.descending != self.reversed;
            of.order.has(&value).then_some(Comparison { order: of.order, falling, value })
        };
        let prefix = self.prefix.iter().map(bound).collect::<Option<_>>()?;
        let range = self.range.iter().map(|(side, of)| Some((*side, bound(of)?)));
        let range = range.collect::<Option<_>>()?;
        let mut limit = self.limit;
        for marker in &self.read.limits {
            let bytes = value(marker)?.try_into().ok()?;
            let bound = u32::try_from(i32::from_be_bytes(bytes)).ok().filter(|n| *n > 0)?;
            limit = Some(limit.map_or(bound, |limit| limit.min(bound)));
        }
        Some(Slice { reversed: self.reversed, limit, prefix, range })
    }
}

impl Slice {
    /// The one row of `table` with the clustering values of `key`. `None` if a value has no certain
    /// place in the order.
    pub fn of_row(table: &TableSchema, key: &RowKey, reversed: bool) -> Option<Slice> {
        let values = table.clustering.iter().zip(key.clustering());
        let equal = values.map(|(column, value)| {
            let order = ValueOrder::of(&column.cql_type).filter(|order| order.has(value))?;
            let falling = column.descending != reversed;
            Some(Comparison { order, falling, value: value.to_vec() })
        });
        let prefix: Vec<Comparison> = equal.collect::<Option<_>>()?;
        let is_row = !prefix.is_empty() && prefix.len() == table.clustering.len();
        is_row.then_some(Slice { reversed, limit: Some(1), prefix, range: Vec::new() })
    }

    /// Whether it begins at an end of the partition.
    pub fn is_from_end(&self) -> bool {
        self.prefix.is_empty() && self.range.is_empty()
    }

    /// Where the row with these clustering values is. `None` where that is not certain.
    pub fn place<'c>(&self, mut clustering: impl Iterator<Item = &'c [u8]>) -> Option<RowPlace> {
        for equal in &self.prefix {
            match equal.compare(clustering.next()?)? {
                Ordering::Equal => {}
                order => return Some(equal.place(order)),
            }
        }
        if self.range.is_empty() {
            return Some(RowPlace::In);
        }
        let row = clustering.next()?;
        for (side, bound) in &self.range {
            let order = bound.compare(row)?;
            let is_within = match order {
                Ordering::Equal => side.inclusive,
                Ordering::Less => side.upper,
                Ordering::Greater => !side.upper,
            };
            if !is_within {
                let outside = if side.upper { Ordering::Greater } else { Ordering::Less };
                return Some(bound.place(outside));
            }
        }
        Some(RowPlace::In)
    }
}

impl Comparison {
    fn compare(&self, row: &[u8]) -> Option<Ordering> {
        self.order.compare(row, &self.value)
    }

    /// The place of a row whose value is smaller or larger than all of the slice.
    fn place(&self, order: Ordering) -> RowPlace {
        match (order == Ordering::Less) != self.falling {
            true => RowPlace::Before,
            false => RowPlace::After,
        }
    }
}

/// The plan of a slice that is served from the cache, or why it is not.
pub(super) fn cached(select: &Select, context: &Context) -> Result<SlicePlan, PassReason> {
    let limits = check_clauses(select)?;
    let table = context.table(&select.table).ok_or(PassReason::UnknownTable)?;
    table.cacheable().map_err(PassReason::NotCacheable)?;
    if !context.binds_certain {
        return Err(PassReason::UncertainBinds);
    }
    if table.clustering.is_empty() {
        return Err(PassReason::NotOneRow);
    }
    let (projection, names) = project(&select.selectors, &table)?.into_iter().unzip();
    let relations = comparisons(&select.relations)?;
    let (of_partition, of_rows): (Vec<_>, Vec<_>) = relations
        .into_iter()
        .partition(|(name, ..)| table.partition_key.iter().any(|column| column.name == **name));
    let partition = partition_parts(&of_partition, &table)?;
    let (prefix, range) = clustering(&of_rows, &table)?;
    let reversed = is_reversed(select, &table)?;
    // One row by its whole key: servers accept an order, and it is not worth a plan.
    if prefix.len() == table.clustering.len() {
        return Err(if reversed { PassReason::Clause } else { PassReason::NotOneRow });
    }
    if !table.statics.is_empty() || is_of_partition(&select.selectors, &table) {
        return Err(PassReason::StaticColumns);
    }
    let key = KeyTemplate {
        partition: PartitionTemplate { table: table.id, parts: partition },
        clustering: Vec::new(),
    };
    let fingerprint = table.fingerprint();
    let limit = literal_limit(select);
    let read =
        ReadPlan { fingerprint, key, projection, names, limits, binds: context.binds, table };
    Ok(SlicePlan { read, reversed, prefix, range, limit })
}

/// A relation of one column: its name, operator and value.
type Compared<'s> = (&'s String, Operator, &'s Term);

fn comparisons<'s>(relations: &'s [Relation]) -> Result<Vec<Compared<'s>>, PassReason> {
    let one = |relation: &'s Relation| match relation {
        Relation::Column { column, op, values }
            if values.len() == 1 && (*op == Operator::Equal || side(*op, &[]).is_ok()) =>
        {
            Ok((column, *op, &values[0]))
        }
        _ => Err(PassReason::NotOneRow),
    };
    relations.iter().map(one).collect()
}

fn partition_parts(
    relations: &[Compared<'_>],
    table: &TableSchema,
) -> Result<Vec<Part>, PassReason> {
    if relations.len() != table.partition_key.len()
        || relations.iter().any(|(_, op, _)| *op != Operator::Equal)
    {
        return Err(PassReason::NotOneRow);
    }
    let equal: Vec<(&str, &Term)> =
        relations.iter().map(|(name, _, term)| (name.as_str(), *term)).collect();
    key_parts(&table.partition_key, &equal, |_| KeyClass::PARTITION)
}

/// The equal values of the first clustering columns, and the range of the next.
type Bounds = (Vec<Bounded>, Vec<(Side, Bounded)>);

fn clustering(relations: &[Compared<'_>], table: &TableSchema) -> Result<Bounds, PassReason> {
    let (mut prefix, mut range, mut taken) = (Vec::new(), Vec::new(), 0);
    for column in &table.clustering {
        let about: Vec<_> = relations.iter().filter(|(name, ..)| **name == column.name).collect();
        match about.as_slice() {
            [(_, Operator::Equal, term)] => prefix.push(bounded(column, term)?),
            // Nothing more may be said of the columns behind a range.
            several => {
                for (_, op, term) in several {
                    range.push((side(*op, &range)?, bounded(column, term)?));
                }
                taken += several.len();
                break;
            }
        }
        taken += 1;
    }
    // The rest is of columns behind a gap, or of no key columns.
    if taken == relations.len() { Ok((prefix, range)) } else { Err(PassReason::NotOneRow) }
}

/// A side of a range that is not there yet.
fn side(op: Operator, range: &[(Side, Bounded)]) -> Result<Side, PassReason> {
    let (upper, inclusive) = match op {
        Operator::Less => (true, false),
        Operator::LessOrEqual => (true, true),
        Operator::Greater => (false, false),
        Operator::GreaterOrEqual => (false, true),
        _ => return Err(PassReason::NotOneRow),
    };
    match range.iter().any(|(side, _)| side.upper == upper) {
        true => Err(PassReason::NotOneRow),
        false => Ok(Side { upper, inclusive }),
    }
}

fn bounded(column: &Column, term: &Term) -> Result<Bounded, PassReason> {
    let order = ValueOrder::of(&column.cql_type).ok_or(PassReason::UnknownOrder)?;
    let value = literal::slot(term, &column.cql_type).map_err(|uncertain| match uncertain {
        literal::Uncertain::Expression => PassReason::Expression,
        literal::Uncertain::Literal => PassReason::UncertainLiteral,
    })?;
    Ok(Bounded { order, descending: column.descending, value })
}

/// Whether the first clustering columns are all asked for in the reverse of their order.
fn is_reversed(select: &Select, table: &TableSchema) -> Result<bool, PassReason> {
    let mut reversed = None;
    for (at, by) in select.order.iter().enumerate() {
        let column = table.clustering.get(at).filter(|column| column.name == by.column);
        let column = column.filter(|_| !by.similar).ok_or(PassReason::Clause)?;
        let is_reversed = by.descending != column.descending;
        if *reversed.get_or_insert(is_reversed) != is_reversed {
            return Err(PassReason::Clause);
        }
    }
    Ok(reversed.unwrap_or(false))
}

/// The smaller of the limits that are literals; [`check_clauses`] has checked them.
fn literal_limit(select: &Select) -> Option<u32> {
    let limits = [&select.limit, &select.per_partition_limit].into_iter().flatten();
    limits
        .filter_map(|limit| match limit {
            Term::Literal(Literal::Integer(digits)) => digits.parse().ok(),
            _ => None,
        })
        .min()
}

#[cfg(test)]
mod tests;
