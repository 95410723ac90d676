//! Planning of a SELECT of a slice of one partition: its rows from one end, or a range of them.
//!
//! 1. [`cached`] makes the plan: a partition, equal values of the first clustering columns (one
//!    each, or several by `IN`), a range of the next one, an order and a limit.
//! 2. [`SlicePlan::bind`] takes the values of one request.
//! 3. [`Slice::place`] says where a row is: before the range, in it, or after it. Rows come in the
//!    order that is asked for, so those in a range follow each other. Between those that `IN` names
//!    there are others.
//!
//! `count(*)` of a slice is one too: its rows are counted. With a limit, an order or `IN` it passes
//! through. Databases differ in whether a limit is one of the rows that are counted, and read rows
//! that `IN` names in other ways than the rest.

use std::cmp::Ordering;

use super::bound_keys::{KeyColumn, KeyValues, MAX_BOUND_KEYS};
use super::context::Context;
use super::key::{KeyTemplate, Part, PartitionTemplate, RowKey, ValueSource};
use super::literal;
use super::order::ValueOrder;
use super::read::{
    PassReason, ReadPlan, cacheable_table, check_clauses, is_of_partition, key_parts, positive,
    project,
};
use super::schema::{Column, Projected, TableSchema};
use super::types::{Form, KeyClass};
use super::weight;
use crate::statement::{Literal, Marker, Operator, Relation, Select, Selected, Selector, Term};

/// A read of a slice of one partition that the cache can serve.
#[derive(Debug, Clone, PartialEq)]
pub struct SlicePlan {
    /// Table, columns and limits. Its key is the partition's unit.
    pub read: ReadPlan,
    /// Whether the rows come in the reverse of the table's order.
    pub reversed: bool,
    /// What the first clustering columns are equal to, each one value or one of several (`IN`).
    prefix: Vec<Among>,
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

/// A clustering column and the values of which it has one.
#[derive(Debug, Clone, PartialEq)]
struct Among {
    order: ValueOrder,
    descending: bool,
    /// By `IN`.
    listed: bool,
    column: KeyColumn,
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
    prefix: Vec<OneOf>,
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

/// The values of which a clustering column has one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OneOf {
    order: ValueOrder,
    falling: bool,
    /// At least one, in the order that is asked for, each once.
    values: Vec<Vec<u8>>,
}

/// Where a row is, in the order that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlace {
    /// Before the slice.
    Before,
    /// In it.
    In,
    /// Neither before nor after it, and not in it: between rows that `IN` names.
    Between,
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
        let equal = self.prefix.iter().flat_map(|of| {
            let values = match &of.column.values {
                KeyValues::Listed(values) => values.iter(),
                KeyValues::Elements(..) => [].iter(),
            };
            values.map(|value| (if of.listed { "in" } else { "=" }, value))
        });
        let range = self.range.iter().map(move |(side, of)| (op(side), &of.value));
        equal.chain(range)
    }

    /// Whether its rows are counted, and the number is the answer.
    pub fn counts(&self) -> bool {
        self.read.projection == [Projected::Count]
    }

    /// Whether `IN` names rows.
    pub(super) fn has_lists(&self) -> bool {
        self.prefix.iter().any(|of| of.listed)
    }

    /// About how many bytes it takes; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        self.read.weight()
            + weight::list(&self.prefix, |of| weight::column_values(&of.column))
            + weight::list(&self.range, |(_, of)| weight::value(&of.value))
    }

    /// How many clustering columns it bounds.
    pub(super) fn bounded_columns(&self) -> usize {
        self.prefix.len() + usize::from(!self.range.is_empty())
    }

    /// The slice for these bound values. `value` gives the bytes bound to a marker, `None` when
    /// null, unset or missing. `None` if the database may refuse it, or compares in a way that is
    /// not certain.
    pub fn bind<'v>(&self, value: &impl Fn(&Marker) -> Option<&'v [u8]>) -> Option<Slice> {
        let bytes = |source: &ValueSource| match source {
            ValueSource::Bind(marker) => value(marker).map(<[u8]>::to_vec),
            ValueSource::Literal(bytes) => Some(bytes.to_vec()),
        };
        let bound = |of: &Bounded| {
            let (value, falling) = (bytes(&of.value)?, of.descending != self.reversed);
            of.order.has(&value).then_some(Comparison { order: of.order, falling, value })
        };
        let one_of = |of: &Among| {
            let (sources, _) = of.column.few_values(MAX_BOUND_KEYS, value)?;
            let values = sources.iter().map(bytes).collect::<Option<_>>()?;
            OneOf::new(of.order, of.descending != self.reversed, values)
        };
        let prefix = self.prefix.iter().map(one_of).collect::<Option<_>>()?;
        let range = self.range.iter().map(|(side, of)| Some((*side, bound(of)?)));
        let range = range.collect::<Option<_>>()?;
        let mut limit = self.limit;
        for marker in &self.read.limits {
            let bound = positive(value(marker)?)?;
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
            let order = ValueOrder::of(&column.cql_type)?;
            OneOf::new(order, column.descending != reversed, vec![value.to_vec()])
        });
        let prefix: Vec<OneOf> = equal.collect::<Option<_>>()?;
        let is_row = !prefix.is_empty() && prefix.len() == table.clustering.len();
        is_row.then_some(Slice { reversed, limit: Some(1), prefix, range: Vec::new() })
    }

    /// Whether it begins at an end of the partition.
    pub fn is_from_end(&self) -> bool {
        self.prefix.is_empty() && self.range.is_empty()
    }

    /// Whether several values are named for a clustering column.
    pub fn names_rows(&self) -> bool {
        self.prefix.iter().any(|of| of.values.len() > 1)
    }

    /// The most rows of a partition that can be in it, for a table of so many clustering columns.
    /// `None`: any number.
    pub fn most_rows(&self, clustering: usize) -> Option<usize> {
        let count = || self.prefix.iter().map(|of| of.values.len());
        let product = || count().try_fold(1_usize, |all, some| all.checked_mul(some));
        if self.prefix.len() == clustering { product() } else { None }
    }

    /// Where the row with these clustering values is. `None` where that is not certain.
    pub fn place<'c>(&self, mut clustering: impl Iterator<Item = &'c [u8]>) -> Option<RowPlace> {
        // Whether the columns so far have the first, or the last, of the values that they may have.
        let (mut is_first, mut is_last) = (true, true);
        let outside = |place: RowPlace, is_first: bool, is_last: bool| match place {
            RowPlace::Before if !is_first => RowPlace::Between,
            RowPlace::After if !is_last => RowPlace::Between,
            place => place,
        };
        for of in &self.prefix {
            let count = of.values.len();
            match of.find(clustering.next()?)? {
                Ok(at) => {
                    is_first &= at == 0;
                    is_last &= at + 1 == count;
                }
                Err(0) => return Some(outside(RowPlace::Before, is_first, is_last)),
                Err(at) if at == count => {
                    return Some(outside(RowPlace::After, is_first, is_last));
                }
                Err(_) => return Some(RowPlace::Between),
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
                let order = if side.upper { Ordering::Greater } else { Ordering::Less };
                return Some(outside(bound.place(order), is_first, is_last));
            }
        }
        Some(RowPlace::In)
    }
}

impl OneOf {
    /// Puts the values into the order that is asked for. `None` if there is none, or if one has no
    /// certain place.
    fn new(order: ValueOrder, falling: bool, values: Vec<Vec<u8>>) -> Option<OneOf> {
        let mut values = order.sorted(values).filter(|values| !values.is_empty())?;
        if falling {
            values.reverse();
        }
        Some(OneOf { order, falling, values })
    }

    /// Which of the values it is, or how many are before it. `None` if it has no certain place.
    fn find(&self, row: &[u8]) -> Option<Result<usize, usize>> {
        if !self.order.has(row) {
            return None;
        }
        Some(self.values.binary_search_by(|value| {
            let order = self.order.compare(value, row).unwrap_or(Ordering::Equal);
            if self.falling { order.reverse() } else { order }
        }))
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
    let table = cacheable_table(select, context)?;
    if table.clustering.is_empty() {
        return Err(PassReason::NotOneRow);
    }
    let counts = is_count(select);
    if counts && (has_limit(select) || !select.order.is_empty()) {
        return Err(PassReason::Clause);
    }
    let selected = columns(select, &table)?;
    // One a key column, and another for the other side of a range.
    if select.relations.len() > table.keys().count() + 1 {
        return Err(PassReason::NotOneRow);
    }
    let relations = comparisons(&select.relations)?;
    let (of_partition, of_rows): (Vec<_>, Vec<_>) = relations
        .into_iter()
        .partition(|(name, ..)| table.partition_key.iter().any(|column| column.name == **name));
    let partition = partition_parts(&of_partition, &table)?;
    let (prefix, range) = clustering(&of_rows, &table)?;
    let reversed = is_reversed(select, &table)?;
    let has_lists = prefix.iter().any(|of| of.listed);
    // One row by its whole key: servers accept an order, and it is not worth a plan.
    if prefix.len() == table.clustering.len() && !has_lists {
        return Err(if reversed { PassReason::Clause } else { PassReason::NotOneRow });
    }
    // Servers differ in which of these they take.
    if has_lists && (counts || !range.is_empty()) {
        return Err(PassReason::NotOneRow);
    }
    if !table.statics.is_empty() || is_of_partition(&select.selectors, &table) {
        return Err(PassReason::StaticColumns);
    }
    let key = KeyTemplate {
        partition: PartitionTemplate { table: table.id, parts: partition },
        clustering: Vec::new(),
    };
    let limit = literal_limit(select);
    let read = ReadPlan::of(table, key, selected, limits, context.binds);
    Ok(SlicePlan { read, reversed, prefix, range, limit })
}

/// Whether it asks for `count(*)` and nothing else.
pub(super) fn is_count(select: &Select) -> bool {
    matches!(select.selectors.as_slice(), [Selector { what: Selected::CountRows, .. }])
}

fn has_limit(select: &Select) -> bool {
    select.limit.is_some() || select.per_partition_limit.is_some()
}

/// The columns of the answer and their names.
fn columns(
    select: &Select,
    table: &TableSchema,
) -> Result<(Vec<Projected>, Vec<String>), PassReason> {
    match select.selectors.as_slice() {
        [Selector { what: Selected::CountRows, alias }] => {
            let name = alias.clone().unwrap_or_else(|| "count".to_owned());
            Ok((vec![Projected::Count], vec![name]))
        }
        selectors => Ok(project(selectors, table)?.into_iter().unzip()),
    }
}

/// The right side of a relation.
#[derive(Clone, Copy)]
pub(super) enum Right<'s> {
    One(&'s Term),
    Listed(&'s [Term]),
    Elements(&'s Marker),
}

/// A relation of one column: its name, operator and right side.
pub(super) type Compared<'s> = (&'s String, Operator, Right<'s>);

pub(super) fn comparisons<'s>(relations: &'s [Relation]) -> Result<Vec<Compared<'s>>, PassReason> {
    let one = |relation: &'s Relation| match relation {
        Relation::Column { column, op, values }
            if values.len() == 1 && (*op == Operator::Equal || side(*op, &[]).is_ok()) =>
        {
            Ok((column, *op, Right::One(&values[0])))
        }
        Relation::Column { column, op: Operator::In, values } if !values.is_empty() => {
            Ok((column, Operator::In, Right::Listed(values)))
        }
        Relation::ColumnInMarker { column, marker } => {
            Ok((column, Operator::In, Right::Elements(marker)))
        }
        _ => Err(PassReason::NotOneRow),
    };
    relations.iter().map(one).collect()
}

fn partition_parts(
    relations: &[Compared<'_>],
    table: &TableSchema,
) -> Result<Vec<Part>, PassReason> {
    let equal = relations.iter().map(|relation| match relation {
        (name, Operator::Equal, Right::One(term)) => Ok((name.as_str(), *term)),
        _ => Err(PassReason::NotOneRow),
    });
    let equal: Vec<(&str, &Term)> = equal.collect::<Result<_, _>>()?;
    if equal.len() != table.partition_key.len() {
        return Err(PassReason::NotOneRow);
    }
    key_parts(&table.partition_key, &equal, |_| KeyClass::PARTITION)
}

/// The equal values of the first clustering columns, and the range of the next.
type Bounds = (Vec<Among>, Vec<(Side, Bounded)>);

fn clustering(relations: &[Compared<'_>], table: &TableSchema) -> Result<Bounds, PassReason> {
    let (mut prefix, mut range, mut taken) = (Vec::new(), Vec::new(), 0);
    for column in &table.clustering {
        let about: Vec<_> = relations.iter().filter(|(name, ..)| **name == column.name).collect();
        match about.as_slice() {
            [(_, Operator::Equal | Operator::In, right)] => prefix.push(among(column, *right)?),
            // Nothing more may be said of the columns behind a range.
            several => {
                for (_, op, right) in several {
                    let Right::One(term) = right else { return Err(PassReason::NotOneRow) };
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

fn among(column: &Column, right: Right<'_>) -> Result<Among, PassReason> {
    let order = ValueOrder::of(&column.cql_type).ok_or(PassReason::UnknownOrder)?;
    let class = KeyClass::of_clustering(&column.cql_type);
    let listed = !matches!(right, Right::One(_));
    let column_values = KeyColumn { class, values: key_values(column, right)? };
    Ok(Among { order, descending: column.descending, listed, column: column_values })
}

/// The values of a key column that a relation by `=` or `IN` gives it.
pub(super) fn key_values(column: &Column, right: Right<'_>) -> Result<KeyValues, PassReason> {
    Ok(match right {
        Right::One(term) => KeyValues::Listed(vec![source(column, term)?]),
        Right::Listed(terms) => {
            let values = terms.iter().map(|term| source(column, term));
            KeyValues::Listed(values.collect::<Result<_, _>>()?)
        }
        Right::Elements(marker) => KeyValues::Elements(marker.clone(), Form::of(&column.cql_type)),
    })
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
    Ok(Bounded { order, descending: column.descending, value: source(column, term)? })
}

pub(super) fn source(column: &Column, term: &Term) -> Result<ValueSource, PassReason> {
    literal::slot(term, &column.cql_type).map_err(|uncertain| match uncertain {
        literal::Uncertain::Expression => PassReason::Expression,
        literal::Uncertain::Literal => PassReason::UncertainLiteral,
    })
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
