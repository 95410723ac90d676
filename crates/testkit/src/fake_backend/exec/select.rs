//! SELECT: which rows it means, from how many copies, and what it shows of them.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use afterglow_cql::response::CqlType;

use super::context::{Context, Done, Reply, Served, column, find, replicas_of};
use crate::fake_backend::{
    refusal::Refusal,
    row::Row,
    statement::{Assignment, Item, Name, Range},
    store::{Column, ColumnKind, Store, Table},
    term::{Bound, Term, elements},
};

/// The columns of a SELECT's answer.
pub fn projection(table: &Table, items: &[Item]) -> Done<Vec<(String, CqlType, Item)>> {
    let mut out = Vec::new();
    for item in items {
        match item {
            Item::All => out.extend(
                table
                    .columns
                    .iter()
                    .map(|c| (c.name.clone(), c.cql.clone(), Item::Column(c.name.clone()))),
            ),
            Item::Column(name) => {
                let i = column(table, name)?;
                out.push((name.clone(), table.columns[i].cql.clone(), item.clone()));
            }
            Item::WriteTime(name) | Item::Ttl(name) => {
                if column(table, name)? < table.key_len {
                    return Err(Refusal::invalid(format!(
                        "Cannot use selection function on PRIMARY KEY part {name}"
                    )));
                }
                let (function, cql) = match item {
                    Item::Ttl(_) => ("ttl", CqlType::Int),
                    _ => ("writetime", CqlType::Bigint),
                };
                out.push((format!("{function}({name})"), cql, item.clone()));
            }
            Item::Count => out.push(("count".to_owned(), CqlType::Bigint, Item::Count)),
            Item::Now(name) => out.push((name.clone(), CqlType::Bigint, item.clone())),
        }
    }
    Ok(out)
}

/// A row with its key.
type Found<'r> = (&'r Vec<Vec<u8>>, &'r Row);

/// Which rows a SELECT means.
pub struct Which<'a> {
    /// Those with these values,
    pub key: &'a [Assignment],
    /// within these ranges,
    pub ranges: &'a [Range],
    /// from the last one on,
    pub reversed: bool,
    /// so many of them: `LIMIT` and `PER PARTITION LIMIT`.
    pub limits: (Option<&'a Term>, Option<&'a Term>),
}

/// Reads the rows that are meant.
pub fn select(
    store: &Store,
    name: &Name,
    items: &[Item],
    which: &Which<'_>,
    context: &Context<'_>,
) -> Done<Reply> {
    let table = find(store, name, context)?;
    let columns = projection(&table, items)?;
    let (limit, per_partition_limit) = which.limits;
    let wanted = wanted(&table, which.key, context)?;
    let ranges = ranges(&table, which.ranges, context)?;
    let of_partition = rows_at_most(per_partition_limit, "PER PARTITION LIMIT", context)?;
    let limit = rows_at_most(limit, "LIMIT", context)?;
    let now = context.seconds();
    let matches = |(key, row): &Found<'_>| {
        row.exists(now)
            && wanted
                .iter()
                .all(|(i, among)| value(key, row, *i, now).is_some_and(|v| among.contains(&v)))
            && ranges.iter().all(|(i, range, bytes)| within(&key[*i], range, bytes))
    };
    let whole = whole_key(&table, &wanted);
    let keyspace = context.keyspace_of(name)?;
    let together = match (&whole, replicas_of(store, keyspace)) {
        (Some(key), Some(replicas)) => {
            let copies = replicas.ask(context.consistency)?;
            Some(replicas.read((keyspace, &name.table, key), table.rows.get(key), copies))
        }
        _ => None,
    };
    let found: Vec<Found<'_>> = match (&whole, &together) {
        (Some(key), Some(row)) => {
            row.iter().map(|row| (key, row)).filter(matches).take(limit).collect()
        }
        (Some(key), None) => {
            table.rows.get_key_value(key).into_iter().filter(matches).take(limit).collect()
        }
        (None, _) => {
            let rows: Box<dyn Iterator<Item = Found<'_>>> = match which.reversed {
                true => Box::new(table.rows.iter().rev()),
                false => Box::new(table.rows.iter()),
            };
            let is_partition = |column: &&Column| column.kind == ColumnKind::Partition;
            let partition = table.columns.iter().filter(is_partition).count();
            let mut seen = BTreeMap::<Vec<Vec<u8>>, usize>::new();
            let few = |(key, _): &Found<'_>| {
                let rows = seen.entry(key[..partition].to_vec()).or_default();
                *rows += 1;
                *rows <= of_partition
            };
            rows.filter(matches).filter(few).take(limit).collect()
        }
    };
    let rows = match columns.iter().any(|(_, _, item)| *item == Item::Count) {
        true => vec![vec![Some((found.len() as i64).to_be_bytes().to_vec())]],
        false => found.into_iter().map(|found| shown(&table, &columns, found, context)).collect(),
    };
    if let (Some(watch), Some(key)) = (context.watch, &whole) {
        let to_keep = columns.iter().any(|(_, _, item)| matches!(item, Item::WriteTime(_)));
        let cells = rows.first().map(Vec::as_slice);
        watch(&Served { keyspace, table: &name.table, key, cells, to_keep });
    }
    let columns = columns.into_iter().map(|(name, cql, _)| (name, cql)).collect();
    Ok(Reply::Rows { keyspace: keyspace.to_owned(), table: name.table.clone(), columns, rows })
}

/// A column, and the values of which it has one.
type Wanted = (usize, Vec<Vec<u8>>);

/// The columns that a SELECT gives values of, by `=` or `IN`.
fn wanted(table: &Table, key: &[Assignment], context: &Context<'_>) -> Done<Vec<Wanted>> {
    let mut wanted = Vec::new();
    for (name, term) in key {
        let i = column(table, name)?;
        let terms = match term {
            Term::Each(terms) => terms.clone(),
            Term::Elements(marker) => match context.values.get(*marker) {
                Some(Bound::Bytes(list)) => {
                    elements(list).ok_or_else(|| Refusal::invalid("Invalid list for IN"))?
                }
                _ => return Err(Refusal::invalid("Invalid null value for IN")),
            },
            term => vec![term.clone()],
        };
        let values =
            terms.iter().map(|term| match term.bytes(&table.columns[i].cql, context.values)? {
                Bound::Bytes(bytes) => Ok(bytes),
                _ => {
                    Err(Refusal::invalid(format!("Invalid null or unset value for column {name}")))
                }
            });
        wanted.push((i, values.collect::<Done<_>>()?));
    }
    Ok(wanted)
}

/// A range of a key column, with its bound.
type BoundRange<'a> = (usize, &'a Range, Vec<u8>);

/// The ranges of key columns. They are in the order of their bytes.
fn ranges<'a>(
    table: &Table,
    ranges: &'a [Range],
    context: &Context<'_>,
) -> Done<Vec<BoundRange<'a>>> {
    let bind = |range: &'a Range| {
        let i = column(table, &range.column)?;
        match range.bound.bytes(&table.columns[i].cql, context.values)? {
            Bound::Bytes(bytes) if i < table.key_len => Ok((i, range, bytes)),
            _ => Err(Refusal::invalid(format!("no range of {}", range.column))),
        }
    };
    ranges.iter().map(bind).collect()
}

fn within(value: &[u8], range: &Range, bound: &[u8]) -> bool {
    match value.cmp(bound) {
        Ordering::Equal => range.inclusive,
        Ordering::Less => range.upper,
        Ordering::Greater => !range.upper,
    }
}

fn rows_at_most(limit: Option<&Term>, name: &str, context: &Context<'_>) -> Done<usize> {
    match limit.map(|l| l.bytes(&CqlType::Int, context.values)).transpose()? {
        Some(Bound::Bytes(bytes)) => match bytes.try_into().map(i32::from_be_bytes) {
            Ok(limit) if limit > 0 => Ok(limit as usize),
            Ok(_) => Err(Refusal::invalid(format!("{name} must be strictly positive"))),
            Err(_) => Err(Refusal::invalid(format!("Invalid {name} value"))),
        },
        Some(Bound::Null) => Err(Refusal::invalid("Invalid null value of limit")),
        Some(Bound::Unset) | None => Ok(usize::MAX),
    }
}

/// The key, if all of its columns are given: the common case, which needs no scan.
fn whole_key(table: &Table, wanted: &[Wanted]) -> Option<Vec<Vec<u8>>> {
    let mut whole: Vec<Option<Vec<u8>>> = vec![None; table.key_len];
    wanted
        .iter()
        .filter(|(i, among)| *i < table.key_len && among.len() == 1)
        .for_each(|(i, among)| whole[*i] = Some(among[0].clone()));
    whole.into_iter().collect()
}

fn value(key: &[Vec<u8>], row: &Row, i: usize, now: u64) -> Option<Vec<u8>> {
    match key.get(i) {
        Some(part) => Some(part.clone()),
        None => row.cell(i, now).and_then(|c| c.value.clone()),
    }
}

/// What a SELECT shows of a row.
fn shown(
    table: &Table,
    columns: &[(String, CqlType, Item)],
    (key, row): Found<'_>,
    context: &Context<'_>,
) -> Vec<Option<Vec<u8>>> {
    let now = context.seconds();
    let stale = if context.lie { row.stale() } else { None };
    let row = stale.as_ref().unwrap_or(row);
    let cell = |name: &String| table.column(name).and_then(|i| row.cell(i, now));
    let shown = |item: &Item| match item {
        Item::Column(name) => table.column(name).and_then(|i| value(key, row, i, now)),
        Item::WriteTime(name) => cell(name).map(|c| c.timestamp.to_be_bytes().to_vec()),
        Item::Ttl(name) => {
            cell(name).and_then(|c| c.expires).map(|e| ((e - now) as i32).to_be_bytes().to_vec())
        }
        Item::Now(_) => Some((context.now / 1_000).to_be_bytes().to_vec()),
        Item::All | Item::Count => None,
    };
    columns.iter().map(|(_, _, item)| shown(item)).collect()
}
