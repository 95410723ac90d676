//! Runs statements.

use std::{borrow::Cow, collections::BTreeMap};

use afterglow_cql::{error::ErrorCode, message::Consistency, response::CqlType};

use super::{
    parse::{Assignment, Condition, Item, Modify, ModifyKind, Name, Refusal, Statement},
    replicas::Replicas,
    store::{Cell, Column, ColumnKind, Keyspace, Row, Store, Table},
    system::{self, Identity},
    term::{Bound, Term, type_named},
};

/// What a statement is run with.
pub struct Context<'a> {
    pub identity: &'a Identity,
    /// The keyspace of unqualified names.
    pub keyspace: Option<&'a str>,
    pub values: &'a [Bound],
    /// The request's write time.
    pub timestamp: Option<i64>,
    /// The request's level.
    pub consistency: Consistency,
    /// Microseconds since 1970.
    pub now: i64,
    /// Return what was there before the last write.
    pub lie: bool,
    /// Hears of every row that is read by its whole key.
    pub watch: Option<&'a Watch>,
}

/// Hears of reads, while the store is locked: what it is told is in the order in which it happened.
pub type Watch = dyn Fn(&Served<'_>) + Send + Sync;

/// A row that was read by its whole key, whether it was there or not.
#[derive(Debug)]
pub struct Served<'a> {
    /// The keyspace of its table.
    pub keyspace: &'a str,
    /// Its table.
    pub table: &'a str,
    /// The columns of its key.
    pub key: &'a [Vec<u8>],
    /// The columns asked for; `None` when there is no such row.
    pub cells: Option<&'a [Option<Vec<u8>>]>,
    /// Asked for with write times, as a cache does that will keep it.
    pub to_keep: bool,
}

/// An answer.
#[derive(Debug)]
pub enum Reply {
    Void,
    SetKeyspace(String),
    SchemaChange { change: &'static str, keyspace: String, table: Option<String> },
    Rows { keyspace: String, table: String, columns: Vec<(String, CqlType)>, rows: Vec<Vec<Option<Vec<u8>>>> },
}

type Done<T> = Result<T, Refusal>;

impl Context<'_> {
    fn seconds(&self) -> u64 {
        (self.now / 1_000_000) as u64
    }

    fn keyspace_of<'n>(&'n self, name: &'n Name) -> Done<&'n str> {
        name.keyspace.as_deref().or(self.keyspace).ok_or_else(|| {
            Refusal::invalid(
                "No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename",
            )
        })
    }
}

/// Runs one statement.
pub fn execute(store: &mut Store, statement: &Statement, context: &Context<'_>) -> Done<Reply> {
    match statement {
        Statement::Use(name) if store.keyspaces.contains_key(name) || name.starts_with("system") => {
            Ok(Reply::SetKeyspace(name.clone()))
        }
        Statement::Use(name) => Err(Refusal::invalid(format!("Keyspace '{name}' does not exist"))),
        Statement::Select { table, items, key, limit } => {
            select(store, table, items, key, limit.as_ref(), context)
        }
        Statement::Modify(modify) => modify_all(store, std::slice::from_ref(modify), context),
        Statement::Batch(all) => modify_all(store, all, context),
        Statement::Truncate(name) => {
            let keyspace = context.keyspace_of(name)?;
            let table = store.table_mut(keyspace, &name.table).ok_or_else(|| no_table(&name.table))?;
            table.rows.clear();
            Ok(Reply::Void)
        }
        _ => alter(store, statement, context),
    }
}

fn no_table(name: &str) -> Refusal {
    Refusal::invalid(format!("table {name} does not exist"))
}

fn exists(what: String) -> Refusal {
    Refusal { code: ErrorCode::AlreadyExists, message: format!("Cannot add already existing {what}") }
}

fn alter(store: &mut Store, statement: &Statement, context: &Context<'_>) -> Done<Reply> {
    let changed = |change, keyspace: &str, table: Option<&str>| Reply::SchemaChange {
        change,
        keyspace: keyspace.to_owned(),
        table: table.map(str::to_owned),
    };
    let reply = match statement {
        Statement::CreateKeyspace { name, if_not_exists, replication } => {
            if store.keyspaces.contains_key(name) {
                return if *if_not_exists {
                    Ok(Reply::Void)
                } else {
                    Err(exists(format!("keyspace {name}")))
                };
            }
            let replication = replication.clone();
            store.keyspaces.insert(name.clone(), Keyspace { replication, tables: BTreeMap::new() });
            changed("CREATED", name, None)
        }
        Statement::CreateTable { name, if_not_exists, columns, partition, clustering } => {
            let keyspace = context.keyspace_of(name)?.to_owned();
            if store.table(&keyspace, &name.table).is_some() {
                return if *if_not_exists {
                    Ok(Reply::Void)
                } else {
                    Err(exists(format!("table {}", name.table)))
                };
            }
            let mut table = new_table(columns, partition, clustering)?;
            table.id[8..].copy_from_slice(&(store.schema_version + 1).to_be_bytes());
            table.id[6] = 0x10;
            let owner = store.keyspaces.get_mut(&keyspace);
            let owner =
                owner.ok_or_else(|| Refusal::invalid(format!("Keyspace '{keyspace}' doesn't exist")))?;
            owner.tables.insert(name.table.clone(), table);
            changed("CREATED", &keyspace, Some(&name.table))
        }
        Statement::AddColumn { name, column: (column, type_name) } => {
            let keyspace = context.keyspace_of(name)?.to_owned();
            let table = store.table_mut(&keyspace, &name.table).ok_or_else(|| no_table(&name.table))?;
            add_column(table, column, type_name)?;
            changed("UPDATED", &keyspace, Some(&name.table))
        }
        Statement::Drop { keyspace: true, name, if_exists } => match store.keyspaces.remove(&name.table) {
            Some(_) => changed("DROPPED", &name.table, None),
            None if *if_exists => return Ok(Reply::Void),
            None => return Err(Refusal::invalid(format!("Keyspace '{}' doesn't exist", name.table))),
        },
        Statement::Drop { name, if_exists, .. } => {
            let keyspace = context.keyspace_of(name)?.to_owned();
            let owner = store.keyspaces.get_mut(&keyspace);
            match owner.and_then(|k| k.tables.remove(&name.table)) {
                Some(_) => changed("DROPPED", &keyspace, Some(&name.table)),
                None if *if_exists => return Ok(Reply::Void),
                None => return Err(no_table(&name.table)),
            }
        }
        _ => return Err(Refusal::invalid("the fake backend cannot do this")),
    };
    store.schema_version += 1;
    Ok(reply)
}

fn new_table(columns: &[(String, String)], partition: &[String], clustering: &[String]) -> Done<Table> {
    let mut all = Vec::new();
    for (name, type_name) in columns {
        let cql =
            type_named(type_name).ok_or_else(|| Refusal::invalid(format!("Unknown type {type_name}")))?;
        let place = |names: &[String]| names.iter().position(|n| n == name).map(|p| p as i32);
        let (kind, position) = match (place(partition), place(clustering)) {
            (Some(p), _) => (ColumnKind::Partition, p),
            (None, Some(p)) => (ColumnKind::Clustering, p),
            (None, None) => (ColumnKind::Regular, -1),
        };
        let type_name = if type_name == "varchar" { "text".to_owned() } else { type_name.clone() };
        all.push(Column { name: name.clone(), kind, position, type_name, cql });
    }
    all.sort_by_key(|c| (c.kind as u8, c.position, c.name.clone()));
    let key_len = all.iter().filter(|c| c.kind != ColumnKind::Regular).count();
    if partition.is_empty() || key_len != partition.len() + clustering.len() {
        return Err(Refusal::invalid("No PRIMARY KEY specifed (exactly one required)"));
    }
    Ok(Table { id: [0; 16], columns: all, key_len, rows: BTreeMap::new() })
}

/// Adds a regular column in its place; the cells of those behind it move.
fn add_column(table: &mut Table, name: &str, type_name: &str) -> Done<()> {
    let cql = type_named(type_name).ok_or_else(|| Refusal::invalid(format!("Unknown type {type_name}")))?;
    if table.column(name).is_some() {
        return Err(Refusal::invalid(format!("Column with name '{name}' already exists")));
    }
    let regulars = &table.columns[table.key_len..];
    let at = table.key_len + regulars.iter().take_while(|c| *c.name < *name).count();
    let kind = ColumnKind::Regular;
    let column = Column { name: name.to_owned(), kind, position: -1, type_name: type_name.to_owned(), cql };
    table.columns.insert(at, column);
    table.rows.values_mut().for_each(|row| row.make_room(at));
    Ok(())
}

fn find<'s>(store: &'s Store, name: &Name, context: &Context<'_>) -> Done<Cow<'s, Table>> {
    let keyspace = context.keyspace_of(name)?;
    let virtual_table = || system::table(store, context.identity, keyspace, &name.table).map(Cow::Owned);
    store
        .table(keyspace, &name.table)
        .map(Cow::Borrowed)
        .or_else(virtual_table)
        .ok_or_else(|| no_table(&name.table))
}

fn column(table: &Table, name: &str) -> Done<usize> {
    table.column(name).ok_or_else(|| Refusal::invalid(format!("Undefined column name {name}")))
}

/// The columns of a SELECT's answer.
fn projection(table: &Table, items: &[Item]) -> Done<Vec<(String, CqlType, Item)>> {
    let mut out = Vec::new();
    for item in items {
        match item {
            Item::All => out.extend(
                table.columns.iter().map(|c| (c.name.clone(), c.cql.clone(), Item::Column(c.name.clone()))),
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
        }
    }
    Ok(out)
}

fn select(
    store: &Store,
    name: &Name,
    items: &[Item],
    key: &[Assignment],
    limit: Option<&Term>,
    context: &Context<'_>,
) -> Done<Reply> {
    let table = find(store, name, context)?;
    let columns = projection(&table, items)?;
    let mut wanted = Vec::new();
    for (name, term) in key {
        let i = column(&table, name)?;
        match term.bytes(&table.columns[i].cql, context.values)? {
            Bound::Bytes(bytes) => wanted.push((i, bytes)),
            _ => return Err(Refusal::invalid(format!("Invalid null or unset value for column {name}"))),
        }
    }
    let limit = match limit.map(|l| l.bytes(&CqlType::Int, context.values)).transpose()? {
        Some(Bound::Bytes(b)) => b.try_into().map_or(usize::MAX, |b| i32::from_be_bytes(b).max(0) as usize),
        _ => usize::MAX,
    };
    let now = context.seconds();
    let value = |key: &[Vec<u8>], row: &Row, i: usize| match key.get(i) {
        Some(part) => Some(part.clone()),
        None => row.cell(i, now).and_then(|c| c.value.clone()),
    };
    let matches = |(key, row): &(&Vec<Vec<u8>>, &Row)| {
        row.exists(now) && wanted.iter().all(|(i, bytes)| value(key, row, *i).as_ref() == Some(bytes))
    };
    // The whole key is the common case: no scan.
    let mut whole: Vec<Option<Vec<u8>>> = vec![None; table.key_len];
    wanted.iter().filter(|(i, _)| *i < table.key_len).for_each(|(i, bytes)| whole[*i] = Some(bytes.clone()));
    let whole: Option<Vec<Vec<u8>>> = whole.into_iter().collect();
    let keyspace = context.keyspace_of(name)?;
    let together = match (&whole, replicas_of(store, keyspace)) {
        (Some(key), Some(replicas)) => {
            let copies = replicas.ask(context.consistency)?;
            Some(replicas.read((keyspace, &name.table, key), table.rows.get(key), copies))
        }
        _ => None,
    };
    let found: Vec<_> = match (&whole, &together) {
        (Some(key), Some(row)) => row.iter().map(|row| (key, row)).filter(matches).take(limit).collect(),
        (Some(key), None) => table.rows.get_key_value(key).into_iter().filter(matches).take(limit).collect(),
        (None, _) => table.rows.iter().filter(matches).take(limit).collect(),
    };
    let mut rows = Vec::new();
    if columns.iter().any(|(_, _, item)| *item == Item::Count) {
        rows.push(vec![Some((found.len() as i64).to_be_bytes().to_vec())]);
    } else {
        for (key, row) in found {
            let stale = if context.lie { row.stale() } else { None };
            let row = stale.as_ref().unwrap_or(row);
            let cell = |name: &String| table.column(name).and_then(|i| row.cell(i, now));
            rows.push(
                columns
                    .iter()
                    .map(|(_, _, item)| match item {
                        Item::Column(name) => table.column(name).and_then(|i| value(key, row, i)),
                        Item::WriteTime(name) => cell(name).map(|c| c.timestamp.to_be_bytes().to_vec()),
                        Item::Ttl(name) => cell(name)
                            .and_then(|c| c.expires)
                            .map(|e| ((e - now) as i32).to_be_bytes().to_vec()),
                        Item::All | Item::Count => None,
                    })
                    .collect(),
            );
        }
    }
    if let (Some(watch), Some(key)) = (context.watch, &whole) {
        let to_keep = columns.iter().any(|(_, _, item)| matches!(item, Item::WriteTime(_)));
        let cells = rows.first().map(Vec::as_slice);
        watch(&Served { keyspace, table: &name.table, key, cells, to_keep });
    }
    let columns = columns.into_iter().map(|(name, cql, _)| (name, cql)).collect();
    Ok(Reply::Rows { keyspace: keyspace.to_owned(), table: name.table.clone(), columns, rows })
}

/// A write with its key and cells as bytes.
struct Change<'a> {
    modify: &'a Modify,
    keyspace: &'a str,
    /// The whole key; of a deletion of rows perhaps only its first parts, at least the partition's.
    key: Vec<Vec<u8>>,
    /// Column and value; `None` is null.
    cells: Vec<(usize, Option<Vec<u8>>)>,
}

fn modify_all(store: &mut Store, all: &[Modify], context: &Context<'_>) -> Done<Reply> {
    let changes: Vec<Change<'_>> =
        all.iter().map(|m| resolve(store, m, context)).collect::<Result<_, _>>()?;
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

fn resolve<'a>(store: &Store, modify: &'a Modify, context: &'a Context<'_>) -> Done<Change<'a>> {
    let keyspace = context.keyspace_of(&modify.table)?;
    let table = store.table(keyspace, &modify.table.table).ok_or_else(|| no_table(&modify.table.table))?;
    let mut key = vec![None; table.key_len];
    let mut cells = Vec::new();
    for (name, term) in modify.key.iter().chain(&modify.sets) {
        let i = column(table, name)?;
        match (term.bytes(&table.columns[i].cql, context.values)?, i < table.key_len) {
            (Bound::Bytes(bytes), true) => key[i] = Some(bytes),
            (_, true) => {
                return Err(Refusal::invalid(format!("Invalid null or unset value for column {name}")));
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
        Bound::Bytes(b) if b.len() == 8 => Ok(Some(i64::from_be_bytes(b.try_into().unwrap_or_default()))),
        Bound::Bytes(b) if b.len() == 4 => {
            Ok(Some(i64::from(i32::from_be_bytes(b.try_into().unwrap_or_default()))))
        }
        Bound::Bytes(_) => Err(Refusal::invalid("a number of 4 or 8 bytes was expected")),
        _ => Ok(None),
    };
    let timestamp = modify.timestamp.as_ref().map(whole).transpose()?.flatten().unwrap_or(timestamp);
    let ttl = modify.ttl.as_ref().map(whole).transpose()?.flatten();
    let expires = ttl.filter(|t| *t > 0).map(|t| context.seconds() + t as u64);
    let copied = replicas_of(store, keyspace).is_some();
    let Store { keyspaces, replicas, .. } = store;
    let name = &modify.table.table;
    let table = keyspaces.get_mut(keyspace).and_then(|keyspace| keyspace.tables.get_mut(name));
    let table = table.ok_or_else(|| no_table(name))?;
    let mut write = |row: &mut Row, key: &[Vec<u8>], change: &dyn Fn(&mut Row)| match replicas {
        Some(replicas) if copied => replicas.write((keyspace, name, key), row, change),
        _ => change(row),
    };
    if modify.kind == ModifyKind::Delete && modify.sets.is_empty() {
        // A later write of an older time may find no tombstone of a row that never was; tests do not go there.
        let delete = |row: &mut Row| row.delete(timestamp);
        let doomed = table.rows.range_mut(key.clone()..).take_while(|(k, _)| k.starts_with(&key));
        doomed.for_each(|(key, row)| write(row, key, &delete));
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

/// The copies of a keyspace's rows, where they are told apart. Our own lease is always everywhere.
fn replicas_of<'s>(store: &'s Store, keyspace: &str) -> Option<&'s Replicas> {
    store.replicas.as_ref().filter(|_| keyspace != "afterglow" && !keyspace.starts_with("system"))
}

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
        if let Term::Marker(i) = term {
            markers.insert(*i, (name.to_owned(), cql));
        }
    };
    let (name, assignments): (&Name, Vec<&Assignment>) = match statement {
        Statement::Select { table, items, key, limit } => {
            limit.iter().for_each(|l| mark(l, "[limit]", CqlType::Int));
            let found = find(store, table, context)?;
            out.result = projection(&found, items)?.into_iter().map(|(name, cql, _)| (name, cql)).collect();
            (table, key.iter().collect())
        }
        Statement::Modify(m) => {
            m.ttl.iter().for_each(|t| mark(t, "[ttl]", CqlType::Int));
            m.timestamp.iter().for_each(|t| mark(t, "[timestamp]", CqlType::Bigint));
            let conditions: &[Assignment] = if let Condition::Equal(all) = &m.condition { all } else { &[] };
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
    let indexes: Option<Vec<u16>> =
        partition.map(|c| out.bound.iter().position(|(n, _)| *n == c.name).map(|i| i as u16)).collect();
    out.partition = indexes.unwrap_or_default();
    (out.keyspace, out.table) = (context.keyspace_of(name)?.to_owned(), name.table.clone());
    Ok(out)
}
