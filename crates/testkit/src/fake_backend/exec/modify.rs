//! INSERT, UPDATE, DELETE and batches of them, with their conditions.

use afterglow_cql::response::CqlType;

use super::context::{Context, Done, Reply, column, no_table, replicas_of};
use crate::fake_backend::{
    refusal::Refusal,
    row::{Cell, Row},
    statement::{Assignment, Condition, Modify, ModifyKind},
    store::{ColumnKind, Store},
    term::{Bound, Term, elements},
};

/// A write with its key and cells as bytes.
struct Change<'a> {
    modify: &'a Modify,
    keyspace: &'a str,
    /// The whole key; of a deletion of rows perhaps only its first parts, at least the partition's.
    key: Vec<Vec<u8>>,
    /// Column and value; `None` is null.
    cells: Vec<(usize, Option<Vec<u8>>)>,
}

/// Runs them all, or none if a condition does not hold.
pub fn modify_all(store: &mut Store, all: &[Modify], context: &Context<'_>) -> Done<Reply> {
    let plain: Vec<Vec<Modify>> =
        all.iter().map(|m| plain(store, m, context)).collect::<Result<_, _>>()?;
    let plain = plain.iter().flatten();
    let changes: Vec<Change<'_>> =
        plain.map(|m| resolve(store, m, context)).collect::<Result<_, _>>()?;
    let conditional = all.iter().any(|m| m.condition != Condition::None);
    for change in &changes {
        if let Some(replicas) = replicas_of(store, change.keyspace) {
            replicas.ask(context.consistency)?;
        }
    }
    let mut applied = true;
    for change in &changes {
        applied &= holds(store, change, context)?;
    }
    if applied {
        let timestamp = match context.timestamp {
            Some(timestamp) if !conditional => timestamp,
            _ => store.timestamp(context.now),
        };
        for change in changes {
            apply(store, change, timestamp, context)?;
        }
    }
    if !conditional {
        return Ok(Reply::Void);
    }
    Ok(Reply::Rows {
        keyspace: context.keyspace_of(&all[0].table)?.to_owned(),
        table: all[0].table.table.clone(),
        columns: vec![("[applied]".to_owned(), CqlType::Boolean)],
        rows: vec![vec![Some(vec![u8::from(applied)])]],
    })
}

/// The statement without JSON and IN: one for each combination of the values.
fn plain(store: &Store, modify: &Modify, context: &Context<'_>) -> Done<Vec<Modify>> {
    let mut one = modify.clone();
    if let Some(document) = one.json.take() {
        let Bound::Bytes(text) = document.bytes(&CqlType::Varchar, context.values)? else {
            return Err(Refusal::invalid("Got null for INSERT JSON values"));
        };
        let keyspace = context.keyspace_of(&modify.table)?;
        let name = &modify.table.table;
        let table = store.table(keyspace, name).ok_or_else(|| no_table(name))?;
        one.sets = members(&text)?;
        // What a document does not name is set to null.
        for column in &table.columns[table.key_len..] {
            if !one.sets.iter().any(|(name, _)| *name == column.name) {
                one.sets.push((column.name.clone(), Term::Null));
            }
        }
    }
    let mut all = vec![one];
    for (at, (_, term)) in modify.key.iter().enumerate() {
        let terms = match term {
            Term::Each(terms) => terms.clone(),
            Term::Elements(marker) => match context.values.get(*marker) {
                Some(Bound::Bytes(list)) => {
                    elements(list).ok_or_else(|| Refusal::invalid("Invalid list for IN"))?
                }
                _ => return Err(Refusal::invalid("Invalid null value for IN")),
            },
            _ => continue,
        };
        let with = |(one, term): (&Modify, &Term)| {
            let mut one = one.clone();
            one.key[at].1 = term.clone();
            one
        };
        let pairs = all.iter().flat_map(|one| terms.iter().map(move |term| (one, term)));
        all = pairs.map(with).collect();
    }
    Ok(all)
}

/// Columns and values of a JSON document, of types that tests use.
fn members(text: &[u8]) -> Done<Vec<Assignment>> {
    let refused = |_| Refusal::invalid("Could not decode JSON string as a map");
    let document: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(text).map_err(refused)?;
    let member = |(name, value): (String, serde_json::Value)| {
        let quoted = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let name = quoted.map_or_else(|| name.to_lowercase(), str::to_owned);
        let term = match value {
            serde_json::Value::Null => Term::Null,
            serde_json::Value::String(text) => Term::Text(text),
            serde_json::Value::Number(number) => Term::Number(number.to_string()),
            serde_json::Value::Bool(value) => Term::Boolean(value),
            _ => return Err(Refusal::invalid("the fake backend knows no such JSON")),
        };
        Ok((name, term))
    };
    document.into_iter().map(member).collect()
}

fn resolve<'a>(store: &Store, modify: &'a Modify, context: &'a Context<'_>) -> Done<Change<'a>> {
    let keyspace = context.keyspace_of(&modify.table)?;
    let table =
        store.table(keyspace, &modify.table.table).ok_or_else(|| no_table(&modify.table.table))?;
    let mut key = vec![None; table.key_len];
    let mut cells = Vec::new();
    for (name, term) in modify.key.iter().chain(&modify.sets) {
        let i = column(table, name)?;
        match (term.bytes(&table.columns[i].cql, context.values)?, i < table.key_len) {
            (Bound::Bytes(bytes), true) => key[i] = Some(bytes),
            (_, true) => {
                return Err(Refusal::invalid(format!(
                    "Invalid null or unset value for column {name}"
                )));
            }
            (Bound::Bytes(bytes), false) => cells.push((i, Some(bytes))),
            (Bound::Null, false) => cells.push((i, None)),
            (Bound::Unset, false) => {}
        }
    }
    let given = key.iter().take_while(|part| part.is_some()).count();
    let partition = table.columns.iter().filter(|c| c.kind == ColumnKind::Partition).count();
    let rows_deleted = modify.kind == ModifyKind::Delete && modify.sets.is_empty();
    let enough = given == table.key_len || (rows_deleted && given >= partition);
    if !enough || key[given..].iter().any(Option::is_some) {
        return Err(Refusal::invalid("Some primary key parts are missing"));
    }
    let key = key.into_iter().flatten().collect();
    Ok(Change { modify, keyspace, key, cells })
}

fn holds(store: &Store, change: &Change<'_>, context: &Context<'_>) -> Done<bool> {
    let name = &change.modify.table.table;
    let table = store.table(change.keyspace, name).ok_or_else(|| no_table(name))?;
    let now = context.seconds();
    let row = table.rows.get(&change.key).filter(|r| r.exists(now));
    Ok(match &change.modify.condition {
        Condition::None => true,
        Condition::NotExists => row.is_none(),
        Condition::Exists => row.is_some(),
        Condition::Equal(all) => {
            let mut equal = row.is_some();
            for (name, term) in all {
                let i = column(table, name)?;
                let wanted = match term.bytes(&table.columns[i].cql, context.values)? {
                    Bound::Bytes(bytes) => Some(bytes),
                    _ => None,
                };
                equal &= row.and_then(|r| r.cell(i, now)).and_then(|c| c.value.clone()) == wanted;
            }
            equal
        }
    })
}

fn apply(store: &mut Store, change: Change<'_>, timestamp: i64, context: &Context<'_>) -> Done<()> {
    let Change { modify, keyspace, key, cells } = change;
    let whole = |term: &Term| match term.bytes(&CqlType::Bigint, context.values)? {
        Bound::Bytes(b) if b.len() == 8 => {
            Ok(Some(i64::from_be_bytes(b.try_into().unwrap_or_default())))
        }
        Bound::Bytes(b) if b.len() == 4 => {
            Ok(Some(i64::from(i32::from_be_bytes(b.try_into().unwrap_or_default()))))
        }
        Bound::Bytes(_) => Err(Refusal::invalid("a number of 4 or 8 bytes was expected")),
        _ => Ok(None),
    };
    let timestamp =
        modify.timestamp.as_ref().map(whole).transpose()?.flatten().unwrap_or(timestamp);
    let ttl = modify.ttl.as_ref().map(whole).transpose()?.flatten();
    let expires = ttl.filter(|t| *t > 0).map(|t| context.seconds() + t as u64);
    let copied = replicas_of(store, keyspace).is_some();
    let Store { keyspaces, replicas, .. } = store;
    let name = &modify.table.table;
    let table = keyspaces.get_mut(keyspace).and_then(|keyspace| keyspace.tables.get_mut(name));
    let table = table.ok_or_else(|| no_table(name))?;
    let forgets = table.forgets();
    let mut write = |row: &mut Row, key: &[Vec<u8>], change: &dyn Fn(&mut Row)| match replicas {
        Some(replicas) if copied => replicas.write((keyspace, name, key), row, change),
        _ => {
            change(row);
            if forgets {
                row.forget();
            }
        }
    };
    if modify.kind == ModifyKind::Delete && modify.sets.is_empty() {
        // A later write of an older time may find no tombstone of a row that never was; tests do
        // not go there.
        let delete = |row: &mut Row| row.delete(timestamp);
        let deleted = table.rows.range_mut(key.clone()..).take_while(|(k, _)| k.starts_with(&key));
        deleted.for_each(|(key, row)| write(row, key, &delete));
        if key.len() == table.key_len {
            write(table.rows.entry(key.clone()).or_default(), &key, &delete);
        }
        return Ok(());
    }
    let row = table.rows.entry(key.clone()).or_default();
    write(row, &key, &|row| {
        if modify.kind == ModifyKind::Insert {
            row.mark(timestamp, expires);
        }
        let cell = |value: &Option<Vec<u8>>| Cell { value: value.clone(), timestamp, expires };
        row.write(cells.iter().map(|(i, value)| (*i, cell(value))));
    });
    Ok(())
}
