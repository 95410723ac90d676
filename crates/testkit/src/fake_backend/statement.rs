//! The statements that the fake understands.

use super::term::Term;

/// Keyspace (if given) and table.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    pub keyspace: Option<String>,
    pub table: String,
}

/// `column = term`
pub type Assignment = (String, Term);

/// One side of a range of a SELECT.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub column: String,
    /// `<` or `<=`.
    pub upper: bool,
    /// `<=` or `>=`.
    pub inclusive: bool,
    pub bound: Term,
}

/// What a lightweight transaction asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    None,
    NotExists,
    Exists,
    Equal(Vec<Assignment>),
}

/// One item of a SELECT.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    All,
    Column(String),
    WriteTime(String),
    Ttl(String),
    Count,
    /// The time, in milliseconds since 1970, under this name.
    Now(String),
}

/// A statement that writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Modify {
    pub table: Name,
    pub kind: ModifyKind,
    /// What is set, or for a DELETE of columns: which, with null.
    pub sets: Vec<Assignment>,
    /// The key.
    pub key: Vec<Assignment>,
    /// The document of an INSERT JSON.
    pub json: Option<Term>,
    pub condition: Condition,
    pub ttl: Option<Term>,
    pub timestamp: Option<Term>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModifyKind {
    Insert,
    Update,
    Delete,
}

impl Statement {
    /// Whether it is a lightweight transaction.
    pub fn is_conditional(&self) -> bool {
        let conditional = |modify: &Modify| modify.condition != Condition::None;
        match self {
            Statement::Modify(modify) => conditional(modify),
            Statement::Batch(parts) => parts.iter().any(conditional),
            _ => false,
        }
    }
}

/// What a table says of its tombstones and its files.
#[derive(Clone, Debug, PartialEq)]
pub enum TableOption {
    GcGraceSeconds(i32),
    /// ScyllaDB's.
    TombstoneGc(Vec<(String, String)>),
    /// About files, of which there are none.
    OfFiles,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    CreateKeyspace {
        name: String,
        if_not_exists: bool,
        replication: Vec<(String, String)>,
    },
    AlterKeyspace {
        name: String,
        replication: Vec<(String, String)>,
    },
    CreateTable {
        name: Name,
        if_not_exists: bool,
        columns: Vec<(String, String)>,
        partition: Vec<String>,
        clustering: Vec<String>,
    },
    Drop {
        keyspace: bool,
        name: Name,
        if_exists: bool,
    },
    /// `ALTER TABLE t WITH option = ... AND ...`
    SetOptions {
        name: Name,
        options: Vec<TableOption>,
    },
    /// `ALTER TABLE t ADD column type`
    AddColumn {
        name: Name,
        column: (String, String),
    },
    Truncate(Name),
    Use(String),
    Select {
        table: Name,
        items: Vec<Item>,
        key: Vec<Assignment>,
        /// `column < term` and the like.
        ranges: Vec<Range>,
        /// `ORDER BY column DESC`: all tables are in ascending order.
        reversed: bool,
        limit: Option<Term>,
        per_partition_limit: Option<Term>,
    },
    Modify(Modify),
    Batch(Vec<Modify>),
}
