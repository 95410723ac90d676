//! Statements that change the schema.

use afterglow_cql::error::ErrorCode;

use super::context::{Context, Done, Reply, no_table};
use crate::fake_backend::{
    refusal::Refusal,
    statement::{Statement, TableOption},
    store::{Column, ColumnKind, Keyspace, Store, Table},
    term::type_named,
};

fn exists(what: String) -> Refusal {
    Refusal {
        code: ErrorCode::AlreadyExists,
        message: format!("Cannot add already existing {what}"),
    }
}

fn no_keyspace(name: &str) -> Refusal {
    Refusal::invalid(format!("Keyspace '{name}' doesn't exist"))
}

pub fn alter(store: &mut Store, statement: &Statement, context: &Context<'_>) -> Done<Reply> {
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
            let made = Keyspace { replication, ..Keyspace::default() };
            store.keyspaces.insert(name.clone(), made);
            changed("CREATED", name, None)
        }
        Statement::AlterKeyspace { name, replication } => {
            let keyspace = store.keyspaces.get_mut(name).ok_or_else(|| no_keyspace(name))?;
            keyspace.replication = replication.clone();
            changed("UPDATED", name, None)
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
            let owner = owner.ok_or_else(|| no_keyspace(&keyspace))?;
            owner.tables.insert(name.table.clone(), table);
            changed("CREATED", &keyspace, Some(&name.table))
        }
        Statement::SetOptions { name, .. } | Statement::AddColumn { name, .. } => {
            let keyspace = context.keyspace_of(name)?.to_owned();
            let table = store.table_mut(&keyspace, &name.table);
            alter_table(table.ok_or_else(|| no_table(&name.table))?, statement)?;
            changed("UPDATED", &keyspace, Some(&name.table))
        }
        Statement::Drop { keyspace: true, name, if_exists } => {
            match store.keyspaces.remove(&name.table) {
                Some(_) => changed("DROPPED", &name.table, None),
                None if *if_exists => return Ok(Reply::Void),
                None => return Err(no_keyspace(&name.table)),
            }
        }
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
    note_time(store, &reply);
    Ok(reply)
}

/// The schema's own tables show when they were written.
fn note_time(store: &mut Store, reply: &Reply) {
    let Reply::SchemaChange { keyspace, table, .. } = reply else { return };
    let now = store.schema_version as i64;
    let Some(keyspace) = store.keyspaces.get_mut(keyspace) else { return };
    keyspace.changed = now;
    let table = table.as_ref().and_then(|table| keyspace.tables.get_mut(table));
    table.into_iter().for_each(|table| table.changed = now);
}

/// What a table is altered by: options, or another column.
fn alter_table(table: &mut Table, statement: &Statement) -> Done<()> {
    match statement {
        Statement::SetOptions { options, .. } => {
            for option in options {
                match option {
                    TableOption::GcGraceSeconds(seconds) => table.gc_grace = *seconds,
                    TableOption::TombstoneGc(words) => table.tombstone_gc.clone_from(words),
                    TableOption::OfFiles => {}
                }
            }
        }
        Statement::AddColumn { column: (column, type_name), .. } => {
            add_column(table, column, type_name)?;
        }
        _ => {}
    }
    Ok(())
}

fn new_table(
    columns: &[(String, String)],
    partition: &[String],
    clustering: &[String],
) -> Done<Table> {
    let mut all = Vec::new();
    for (name, type_name) in columns {
        let cql = type_named(type_name)
            .ok_or_else(|| Refusal::invalid(format!("Unknown type {type_name}")))?;
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
    Ok(Table::new(all, key_len))
}

/// Adds a regular column in its place; the cells of those behind it move.
fn add_column(table: &mut Table, name: &str, type_name: &str) -> Done<()> {
    let cql = type_named(type_name)
        .ok_or_else(|| Refusal::invalid(format!("Unknown type {type_name}")))?;
    if table.column(name).is_some() {
        return Err(Refusal::invalid(format!("Column with name '{name}' already exists")));
    }
    let regulars = &table.columns[table.key_len..];
    let at = table.key_len + regulars.iter().take_while(|c| *c.name < *name).count();
    let kind = ColumnKind::Regular;
    let column =
        Column { name: name.to_owned(), kind, position: -1, type_name: type_name.to_owned(), cql };
    table.columns.insert(at, column);
    table.rows.values_mut().for_each(|row| row.make_room(at));
    Ok(())
}
