//! What PREPARE tells.

use std::collections::BTreeMap;

use afterglow_cql::response::CqlType;

use super::context::{Context, Done, column, find};
use super::select::projection;
use crate::fake_backend::{
    statement::{Assignment, Condition, Name, Statement},
    store::{ColumnKind, Store},
    term::Term,
};

/// What PREPARE tells about a statement.
#[derive(Clone, Debug, Default)]
pub struct Description {
    pub keyspace: String,
    pub table: String,
    /// Name and type of each marker.
    pub bound: Vec<(String, CqlType)>,
    /// Which markers are the partition key's columns; empty unless all of them are bound.
    pub partition: Vec<u16>,
    pub result: Vec<(String, CqlType)>,
}

/// Describes a statement.
pub fn describe(store: &Store, statement: &Statement, context: &Context<'_>) -> Done<Description> {
    let mut out = Description::default();
    let mut markers: BTreeMap<usize, (String, CqlType)> = BTreeMap::new();
    let mut mark = |term: &Term, name: &str, cql: CqlType| {
        let (i, bound) = match term {
            Term::Marker(i) => (*i, (name.to_owned(), cql)),
            Term::Elements(i) => (*i, (format!("in({name})"), CqlType::List(Box::new(cql)))),
            Term::Each(terms) => {
                for term in terms {
                    if let Term::Marker(i) = term {
                        markers.insert(*i, (name.to_owned(), cql.clone()));
                    }
                }
                return;
            }
            _ => return,
        };
        markers.insert(i, bound);
    };
    let (name, assignments): (&Name, Vec<&Assignment>) = match statement {
        Statement::Select { table, items, key, ranges, limit, per_partition_limit, .. } => {
            limit.iter().for_each(|l| mark(l, "[limit]", CqlType::Int));
            let per_partition = per_partition_limit.iter();
            per_partition.for_each(|l| mark(l, "[per_partition_limit]", CqlType::Int));
            let found = find(store, table, context)?;
            for range in ranges {
                let i = column(&found, &range.column)?;
                mark(&range.bound, &range.column, found.columns[i].cql.clone());
            }
            out.result =
                projection(&found, items)?.into_iter().map(|(name, cql, _)| (name, cql)).collect();
            (table, key.iter().collect())
        }
        Statement::Modify(m) => {
            m.json.iter().for_each(|t| mark(t, "[json]", CqlType::Varchar));
            m.ttl.iter().for_each(|t| mark(t, "[ttl]", CqlType::Int));
            m.timestamp.iter().for_each(|t| mark(t, "[timestamp]", CqlType::Bigint));
            let conditions: &[Assignment] =
                if let Condition::Equal(all) = &m.condition { all } else { &[] };
            (&m.table, m.sets.iter().chain(&m.key).chain(conditions).collect())
        }
        _ => return Ok(out),
    };
    let table = find(store, name, context)?;
    for (column_name, term) in assignments {
        let i = column(&table, column_name)?;
        mark(term, column_name, table.columns[i].cql.clone());
    }
    out.bound = markers.into_values().collect();
    let partition = table.columns.iter().filter(|c| c.kind == ColumnKind::Partition);
    let indexes: Option<Vec<u16>> = partition
        .map(|c| out.bound.iter().position(|(n, _)| *n == c.name).map(|i| i as u16))
        .collect();
    out.partition = indexes.unwrap_or_default();
    (out.keyspace, out.table) = (context.keyspace_of(name)?.to_owned(), name.table.clone());
    Ok(out)
}
