//! What statements are run with, and what they find by name.

use std::{borrow::Cow, time::SystemTime};

use afterglow_cql::{message::Consistency, response::CqlType};

use crate::fake_backend::{
    identity::{Identity, SeenType},
    refusal::Refusal,
    replicas::Replicas,
    statement::Name,
    store::{Store, Table},
    system,
    term::Bound,
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
    SchemaChange {
        change: &'static str,
        keyspace: String,
        table: Option<String>,
    },
    Rows {
        keyspace: String,
        table: String,
        columns: Vec<(String, CqlType)>,
        rows: Vec<Vec<Option<Vec<u8>>>>,
    },
}

/// What becomes of a statement.
pub type Done<T> = Result<T, Refusal>;

impl Context<'_> {
    /// Seconds since 1970.
    pub fn seconds(&self) -> u64 {
        (self.now / 1_000_000) as u64
    }

    /// The keyspace of a name.
    pub fn keyspace_of<'n>(&'n self, name: &'n Name) -> Done<&'n str> {
        name.keyspace.as_deref().or(self.keyspace).ok_or_else(|| {
            Refusal::invalid(
                "No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename",
            )
        })
    }
}

/// The refusal of a table that is not there.
pub fn no_table(name: &str) -> Refusal {
    Refusal::invalid(format!("table {name} does not exist"))
}

/// A table of users, or of the system as the node asked shows it.
pub fn find<'s>(store: &'s Store, name: &Name, context: &Context<'_>) -> Done<Cow<'s, Table>> {
    let keyspace = context.keyspace_of(name)?;
    let virtual_table =
        || system::table(store, context.identity, keyspace, &name.table).map(Cow::Owned);
    let seen = context.identity.sees.as_ref().filter(|seen| seen.is_of(keyspace, &name.table));
    let as_seen = |table: &'s Table| match seen {
        Some(seen) => Cow::Owned(with_type(table, seen)),
        None => Cow::Borrowed(table),
    };
    store
        .table(keyspace, &name.table)
        .map(as_seen)
        .or_else(virtual_table)
        .ok_or_else(|| no_table(&name.table))
}

/// The table with the type of a column that a node takes it to have.
fn with_type(table: &Table, seen: &SeenType) -> Table {
    let mut table = table.clone();
    let its = table.columns.iter_mut().filter(|column| column.name == seen.column);
    its.for_each(|column| column.cql = seen.cql.clone());
    table
}

pub fn column(table: &Table, name: &str) -> Done<usize> {
    table.column(name).ok_or_else(|| Refusal::invalid(format!("Undefined column name {name}")))
}

/// The copies of a keyspace's rows, where they are told apart. Our own lease is always everywhere.
pub fn replicas_of<'s>(store: &'s Store, keyspace: &str) -> Option<&'s Replicas> {
    store.replicas.as_ref().filter(|_| keyspace != "afterglow" && !keyspace.starts_with("system"))
}

/// Microseconds since 1970.
pub fn micros_now() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as i64)
}
