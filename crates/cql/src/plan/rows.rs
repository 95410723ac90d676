//! Planning of a SELECT of rows of several partitions, each by its whole primary key: `IN` on
//! columns of the partition key.
//!
//! 1. [`cached`] makes the plan: the values of each column of the partition key.
//! 2. [`RowsPlan::bind`] takes the values of one request. It gives the keys in the order of the
//!    answer: servers sort partitions by their key columns, and read each once.

use super::bound_keys::{KeyColumn, KeyValues};
use super::context::Context;
use super::key::{KeyTemplate, Part, PartitionTemplate, RowKey, ValueSource};
use super::order::ValueOrder;
use super::read::{
    PassReason, ReadPlan, cacheable_table, check_clauses, is_of_partition, key_parts, positive,
    project,
};
use super::schema::{Column, TableSchema};
use super::slice::{Compared, Right, comparisons, key_values};
use super::types::KeyClass;
use super::weight;
use crate::statement::{Literal, Marker, Operator, Select, Term};

/// The most rows that the cache answers for at once.
pub const MAX_ROWS: usize = 64;

/// A read of rows of several partitions that the cache can serve.
#[derive(Debug, Clone, PartialEq)]
pub struct RowsPlan {
    /// Table, columns and limits. Its key names no row.
    pub read: ReadPlan,
    partition: Vec<(ValueOrder, KeyColumn)>,
    clustering: Vec<Part>,
    limit: Option<Limit>,
}

#[derive(Debug, Clone, PartialEq)]
enum Limit {
    Literal(usize),
    Bound(Marker),
}

/// The rows of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRows {
    /// Their keys, in the order of the answer. At least one.
    pub keys: Vec<RowKey>,
    /// The most rows that the request wants.
    pub limit: usize,
}

impl RowsPlan {
    /// The rows for these bound values. `value` gives the bytes bound to a marker, `None` when
    /// null, unset or missing. `None` if the database may refuse it, if the order of the rows is
    /// not certain, or if there are more than [`MAX_ROWS`].
    pub fn bind<'v>(&self, value: &impl Fn(&Marker) -> Option<&'v [u8]>) -> Option<NamedRows> {
        let mut partitions: Vec<Vec<Part>> = vec![Vec::new()];
        for (order, column) in &self.partition {
            let (sources, class) = column.few_values(MAX_ROWS, value)?;
            let values = sources.iter().map(|source| match source {
                ValueSource::Bind(marker) => value(marker).map(<[u8]>::to_vec),
                ValueSource::Literal(bytes) => Some(bytes.to_vec()),
            });
            let values = sorted(*order, values.collect::<Option<_>>()?)?;
            if values.is_empty() || partitions.len() * values.len() > MAX_ROWS {
                return None;
            }
            let with = |parts: &Vec<Part>, value: &Vec<u8>| {
                let part = Part { slot: ValueSource::Literal(value[..].into()), class };
                [&parts[..], &[part]].concat()
            };
            let pairs = partitions.iter().flat_map(|parts| values.iter().map(move |v| (parts, v)));
            partitions = pairs.map(|(parts, value)| with(parts, value)).collect();
        }
        let key = |parts: Vec<Part>| {
            let partition = PartitionTemplate { table: self.read.table.id, parts };
            let template = KeyTemplate { partition, clustering: self.clustering.clone() };
            let mut key = RowKey::new();
            template.bind(value, &mut key).ok()?;
            Some(key)
        };
        let keys = partitions.into_iter().map(key).collect::<Option<_>>()?;
        let limit = match &self.limit {
            None => usize::MAX,
            Some(Limit::Literal(limit)) => *limit,
            Some(Limit::Bound(marker)) => positive(value(marker)?)? as usize,
        };
        Some(NamedRows { keys, limit })
    }

    /// About how many bytes it takes; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        let values = weight::list(&self.partition, |(_, column)| weight::column_values(column));
        self.read.weight() + values + weight::parts(&self.clustering)
    }

    /// The columns of the partition key with several values, or with a bound list.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Column> {
        let is_listed = |column: &KeyColumn| match &column.values {
            KeyValues::Listed(values) => values.len() > 1,
            KeyValues::Elements(..) => true,
        };
        let columns = self.read.table.partition_key.iter().zip(&self.partition);
        columns.filter(move |(_, (_, values))| is_listed(values)).map(|(column, _)| column)
    }
}

/// The values in their order, each once. `None` where equal values have different bytes: servers
/// read one of the two partitions.
fn sorted(order: ValueOrder, values: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let sorted = order.sorted(values.clone())?;
    values.iter().all(|value| sorted.contains(value)).then_some(sorted)
}

/// The plan of a read of several rows that is served from the cache, or why it is not.
pub(super) fn cached(select: &Select, context: &Context) -> Result<RowsPlan, PassReason> {
    let limits = check_clauses(select)?;
    if !select.order.is_empty() {
        return Err(PassReason::Clause);
    }
    let table = cacheable_table(select, context)?;
    let selected = project(&select.selectors, &table)?.into_iter().unzip();
    let relations = comparisons(&select.relations)?;
    let keys = table.partition_key.len() + table.clustering.len();
    if relations.len() != keys || is_of_partition(&select.selectors, &table) {
        return Err(PassReason::NotOneRow);
    }
    let clustering = clustering(&table, &relations)?;
    let partition = partition(&table, &relations)?;
    let limit = match &select.limit {
        None => None,
        Some(Term::Marker(marker)) => Some(Limit::Bound(marker.clone())),
        Some(Term::Literal(Literal::Integer(digits))) => {
            Some(Limit::Literal(digits.parse().map_err(|_| PassReason::Clause)?))
        }
        Some(_) => return Err(PassReason::Clause),
    };
    let key = KeyTemplate {
        partition: PartitionTemplate { table: table.id, parts: Vec::new() },
        clustering: Vec::new(),
    };
    let read = ReadPlan::of(table, key, selected, limits, context.binds);
    Ok(RowsPlan { read, partition, clustering, limit })
}

fn partition(
    table: &TableSchema,
    relations: &[Compared<'_>],
) -> Result<Vec<(ValueOrder, KeyColumn)>, PassReason> {
    let column = |column: &Column| {
        let right = match about(column, relations)? {
            (_, Operator::Equal | Operator::In, right) => *right,
            _ => return Err(PassReason::NotOneRow),
        };
        let order = ValueOrder::of(&column.cql_type).ok_or(PassReason::UnknownOrder)?;
        let values = key_values(column, right)?;
        Ok((order, KeyColumn { class: KeyClass::PARTITION, values }))
    };
    table.partition_key.iter().map(column).collect()
}

fn clustering(table: &TableSchema, relations: &[Compared<'_>]) -> Result<Vec<Part>, PassReason> {
    let equal = table.clustering.iter().map(|column| match about(column, relations)? {
        (name, Operator::Equal, Right::One(term)) => Ok((name.as_str(), *term)),
        _ => Err(PassReason::NotOneRow),
    });
    let equal: Vec<(&str, &Term)> = equal.collect::<Result<_, _>>()?;
    key_parts(&table.clustering, &equal, |c| KeyClass::of_clustering(&c.cql_type))
}

/// The one relation about a column.
fn about<'r, 's>(
    column: &Column,
    relations: &'r [Compared<'s>],
) -> Result<&'r Compared<'s>, PassReason> {
    let mut about = relations.iter().filter(|(name, ..)| **name == column.name);
    match (about.next(), about.next()) {
        (Some(relation), None) => Ok(relation),
        _ => Err(PassReason::NotOneRow),
    }
}

#[cfg(test)]
mod tests;
