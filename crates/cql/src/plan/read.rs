//! Planning of SELECT: cached, answered from the system tables, or passed through and why.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::binds::Binds;
use super::context::Context;
use super::key::{KeyTemplate, Part, PartitionTemplate};
use super::literal;
use super::schema::{Column, NotCacheable, Projected, TableSchema};
use super::types::KeyClass;
use super::weight;
use crate::statement::{Literal, Marker, Operator, Relation, Select, Selected, Selector, Term};

/// A read of one row that the cache can serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadPlan {
    /// The table as it was when the plan was made.
    pub table: Arc<TableSchema>,
    /// [`TableSchema::fingerprint`] of `table`.
    pub fingerprint: u64,
    /// Makes the row's key.
    pub key: KeyTemplate,
    /// The columns of the answer, in order.
    pub projection: Vec<Projected>,
    /// Their names in the answer: the alias, or the column's own.
    pub names: Vec<String>,
    /// How often the column is selected that is selected most often.
    pub repeats: usize,
    /// Markers of `LIMIT` and `PER PARTITION LIMIT`; see [`ReadPlan::limits_allow`].
    pub limits: Vec<Marker>,
    /// How many values it takes.
    pub binds: Binds,
}

impl ReadPlan {
    /// A plan of no statement: it says what a fill must know of `table` to read rows whose keys are
    /// known. It makes no key, and answers nothing.
    pub fn of_table(table: Arc<TableSchema>) -> ReadPlan {
        let partition = PartitionTemplate { table: table.id, parts: Vec::new() };
        ReadPlan {
            fingerprint: table.fingerprint(),
            table,
            key: KeyTemplate { partition, clustering: Vec::new() },
            projection: Vec::new(),
            names: Vec::new(),
            repeats: 1,
            limits: Vec::new(),
            binds: Binds::default(),
        }
    }

    /// A plan of what a statement selects of `table`: columns and their names.
    pub(super) fn of(
        table: Arc<TableSchema>,
        key: KeyTemplate,
        (projection, names): (Vec<Projected>, Vec<String>),
        limits: Vec<Marker>,
        binds: Binds,
    ) -> ReadPlan {
        let (fingerprint, repeats) = (table.fingerprint(), repeats(&projection));
        ReadPlan { fingerprint, key, projection, names, repeats, limits, binds, table }
    }

    /// About how many bytes it takes; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        weight::row(&self.key)
            + weight::list(&self.projection, |_| 0)
            + weight::list(&self.names, |name| weight::string(name))
            + weight::list(&self.limits, weight::marker)
    }

    /// Whether the bound limits are positive, so that the one row satisfies them. Servers refuse
    /// others, and take an unset limit for none. `value` gives the bytes bound to a marker.
    pub fn limits_allow<'v>(&self, value: impl Fn(&Marker) -> Option<&'v [u8]>) -> bool {
        self.limits.iter().all(|marker| value(marker).and_then(positive).is_some())
    }
}

/// Why a read is passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PassReason {
    /// Not parsed, but provably a read.
    NotUnderstood,
    /// `LIST`.
    List,
    /// `DESCRIBE`.
    Describe,
    /// `system_schema.keyspaces`, which tells drivers how many replicas there are.
    Keyspaces,
    /// The table is not in the schema, or no keyspace is known.
    UnknownTable,
    /// The schema lacks a change that a client knows of.
    OutdatedSchema,
    /// The table's rows are not cached.
    NotCacheable(NotCacheable),
    /// A column is not in the schema.
    UnknownColumn,
    /// Neither one row nor a slice of one partition.
    NotOneRow,
    /// A function, cast, element, literal or arithmetic in the select list or as a key value.
    Expression,
    /// A key literal whose bytes are not certain.
    UncertainLiteral,
    /// `SELECT JSON`.
    Json,
    /// `SELECT DISTINCT`.
    Distinct,
    /// `GROUP BY`, `ALLOW FILTERING`, `ORDER BY` of one row or by other columns than the clustering
    /// order's, or a limit that is not positive.
    Clause,
    /// A slice of a table with static columns: a partition of these alone is a row as well.
    StaticColumns,
    /// A range of a type whose order is not known.
    UnknownOrder,
    /// `BYPASS CACHE` or `USING TIMEOUT`.
    Bypass,
    /// The server counts other markers ([`crate::statement::Parsed::binds_are_certain`]).
    UncertainBinds,
}

impl PassReason {
    /// A stable lower-case name for counters.
    pub fn label(self) -> &'static str {
        match self {
            PassReason::NotUnderstood => "not-understood",
            PassReason::List => "list",
            PassReason::Describe => "describe",
            PassReason::Keyspaces => "keyspaces",
            PassReason::UnknownTable => "unknown-table",
            PassReason::OutdatedSchema => "outdated-schema",
            PassReason::NotCacheable(reason) => reason.label(),
            PassReason::UnknownColumn => "unknown-column",
            PassReason::NotOneRow => "not-one-row",
            PassReason::Expression => "expression",
            PassReason::UncertainLiteral => "uncertain-literal",
            PassReason::Json => "json",
            PassReason::Distinct => "distinct",
            PassReason::Clause => "clause",
            PassReason::StaticColumns => "static-columns",
            PassReason::UnknownOrder => "unknown-order",
            PassReason::Bypass => "bypass",
            PassReason::UncertainBinds => "uncertain-binds",
        }
    }
}

/// A bound limit, in the form of an `int`. `None` if it is none that servers take.
pub(super) fn positive(bytes: &[u8]) -> Option<u32> {
    let limit = i32::from_be_bytes(bytes.try_into().ok()?);
    u32::try_from(limit).ok().filter(|limit| *limit > 0)
}

/// The table of a read that may be served from the cache, or why it may not, whatever its rows.
pub(super) fn cacheable_table(
    select: &Select,
    context: &Context,
) -> Result<Arc<TableSchema>, PassReason> {
    let table = context.table(&select.table).ok_or(PassReason::UnknownTable)?;
    table.cacheable().map_err(PassReason::NotCacheable)?;
    if context.schema.is_outdated() {
        return Err(PassReason::OutdatedSchema);
    }
    if !context.binds_certain {
        return Err(PassReason::UncertainBinds);
    }
    Ok(table)
}

/// The plan of a read that is served from the cache, or why it is not.
pub(super) fn cached(select: &Select, context: &Context) -> Result<ReadPlan, PassReason> {
    let limits = check_clauses(select)?;
    if !select.order.is_empty() {
        return Err(PassReason::Clause);
    }
    let table = cacheable_table(select, context)?;
    let selected = project(&select.selectors, &table)?.into_iter().unzip();
    let equal = equalities(&select.relations, &table)?;
    if equal.len() != table.partition_key.len() + table.clustering.len() {
        return Err(PassReason::NotOneRow);
    }
    if is_of_partition(&select.selectors, &table) {
        return Err(PassReason::NotOneRow);
    }
    let partition = key_parts(&table.partition_key, &equal, |_| KeyClass::PARTITION)?;
    let clustering =
        key_parts(&table.clustering, &equal, |c| KeyClass::of_clustering(&c.cql_type))?;
    let key = KeyTemplate {
        partition: PartitionTemplate { table: table.id, parts: partition },
        clustering,
    };
    Ok(ReadPlan::of(table, key, selected, limits, context.binds))
}

/// How often the column is selected that is selected most often: so often its bytes are in each
/// row of the answer.
fn repeats(projection: &[Projected]) -> usize {
    let mut counts = HashMap::new();
    projection.iter().for_each(|column| *counts.entry(*column).or_insert(0) += 1);
    counts.into_values().max().unwrap_or(1)
}

/// The markers of its limits, or why it is passed through.
pub(super) fn check_clauses(select: &Select) -> Result<Vec<Marker>, PassReason> {
    if select.json {
        return Err(PassReason::Json);
    }
    if select.distinct {
        return Err(PassReason::Distinct);
    }
    if select.bypass_cache || select.using_timeout {
        return Err(PassReason::Bypass);
    }
    if select.grouped || select.allow_filtering {
        return Err(PassReason::Clause);
    }
    // One row satisfies any positive limit; servers refuse others.
    let mut markers = Vec::new();
    for limit in [&select.limit, &select.per_partition_limit].into_iter().flatten() {
        match limit {
            Term::Literal(Literal::Integer(digits))
                if digits.parse::<i32>().is_ok_and(|limit| limit > 0) => {}
            Term::Marker(marker) => markers.push(marker.clone()),
            _ => return Err(PassReason::Clause),
        }
    }
    Ok(markers)
}

pub(super) fn project(
    selectors: &[Selector],
    table: &TableSchema,
) -> Result<Vec<(Projected, String)>, PassReason> {
    if selectors.is_empty() {
        let keys = (0_u16..).map(Projected::Key).zip(table.keys());
        let values = (0_u16..).map(Projected::Value).zip(table.values());
        return Ok(keys.chain(values).map(|(at, column)| (at, column.name.clone())).collect());
    }
    let places = places(table);
    selectors
        .iter()
        .map(|selector| match &selector.what {
            Selected::Column(name) => {
                let at = places.get(name.as_str()).ok_or(PassReason::UnknownColumn)?;
                Ok((*at, selector.alias.clone().unwrap_or_else(|| name.clone())))
            }
            Selected::CountRows | Selected::Expression => Err(PassReason::Expression),
        })
        .collect()
}

/// Whether just what a partition's rows share is asked for: servers refuse that of one row.
pub(super) fn is_of_partition(selectors: &[Selector], table: &TableSchema) -> bool {
    if table.statics.is_empty() {
        return false;
    }
    let (statics, partition) = (names(&table.statics), names(&table.partition_key));
    let within = |names: &HashSet<&str>, selector: &Selector| match &selector.what {
        Selected::Column(name) => names.contains(name.as_str()),
        _ => false,
    };
    selectors.iter().any(|selector| within(&statics, selector))
        && selectors.iter().all(|s| within(&statics, s) || within(&partition, s))
}

fn names(columns: &[Column]) -> HashSet<&str> {
    columns.iter().map(|column| column.name.as_str()).collect()
}

/// The columns by name: a text may select any number of them.
fn places(table: &TableSchema) -> HashMap<&str, Projected> {
    let values = table.values().zip((0_u16..).map(Projected::Value));
    let keys = table.keys().zip((0_u16..).map(Projected::Key));
    values.chain(keys).map(|(column, at)| (column.name.as_str(), at)).collect()
}

/// The `=` relations by column, or why there are others. Each column may be named once. There are
/// no more than key columns, so that comparing all with all takes no time.
fn equalities<'s>(
    relations: &'s [Relation],
    table: &TableSchema,
) -> Result<Vec<(&'s str, &'s Term)>, PassReason> {
    if relations.len() > table.keys().count() {
        return Err(PassReason::NotOneRow);
    }
    let mut equal: Vec<(&str, &Term)> = Vec::with_capacity(relations.len());
    for relation in relations {
        match relation {
            Relation::Column { column, op: Operator::Equal, values } if values.len() == 1 => {
                equal.push((column, &values[0]));
            }
            Relation::Tuple { columns, op: Operator::Equal, values } => match values.as_slice() {
                [Term::Tuple(terms)]
                    if terms.len() == columns.len() && are_clustering(columns, table) =>
                {
                    equal.extend(columns.iter().map(String::as_str).zip(terms));
                }
                _ => return Err(PassReason::NotOneRow),
            },
            _ => return Err(PassReason::NotOneRow),
        }
    }
    let repeated = equal
        .iter()
        .enumerate()
        .any(|(i, (name, _))| equal[..i].iter().any(|(other, _)| other == name));
    if repeated { Err(PassReason::NotOneRow) } else { Ok(equal) }
}

/// Whether these are clustering columns in the table's order and without a gap: servers take tuples
/// of no others.
fn are_clustering(columns: &[String], table: &TableSchema) -> bool {
    let mut clustering = table.clustering.iter();
    let first = clustering.by_ref().position(|column| columns.first() == Some(&column.name));
    first.is_some()
        && columns[1..].iter().all(|name| clustering.next().is_some_and(|c| c.name == *name))
}

pub(super) fn key_parts(
    columns: &[Column],
    equal: &[(&str, &Term)],
    class: impl Fn(&Column) -> KeyClass,
) -> Result<Vec<Part>, PassReason> {
    columns
        .iter()
        .map(|column| {
            let (_, term) =
                equal.iter().find(|(name, _)| *name == column.name).ok_or(PassReason::NotOneRow)?;
            let slot =
                literal::slot(term, &column.cql_type).map_err(|uncertain| match uncertain {
                    literal::Uncertain::Expression => PassReason::Expression,
                    literal::Uncertain::Literal => PassReason::UncertainLiteral,
                })?;
            Ok(Part { slot, class: class(column) })
        })
        .collect()
}
