//! The syntax tree of a CQL text, with names folded as Cassandra folds them.
//!
//! The tree keeps what planning needs: tables, key relations, touched columns, markers. An
//! expression that planning never looks into is still parsed, so that its markers are counted.

use std::collections::HashSet;
use std::sync::Arc;

use crate::message::BatchKind;

/// A statement and its bind markers in the order of the text (their position is their bind index).
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The statement.
    pub statement: Statement,
    /// One per marker, its name when it is `:name`.
    pub markers: Vec<Option<Arc<str>>>,
    binds_doubted: bool,
}

impl Parsed {
    pub(crate) fn new(statement: Statement, markers: Vec<Option<Arc<str>>>) -> Parsed {
        Parsed { statement, markers, binds_doubted: false }
    }

    /// Tells how many bind variables the server counts in the statement (from its answer to the
    /// PREPARE). If they are not as many as the markers here, no plan will take a key from a bound
    /// value.
    pub fn expect_binds(&mut self, count: usize) {
        self.binds_doubted |= count != self.markers.len();
    }

    /// Whether the server counts the same markers as this text has, as far as it has said so.
    pub fn binds_are_certain(&self) -> bool {
        !self.binds_doubted
    }

    /// How many names and unnamed markers there are, each name once.
    pub fn distinct_markers(&self) -> usize {
        let names: HashSet<&str> = self.markers.iter().flatten().map(|name| &**name).collect();
        names.len() + self.markers.iter().filter(|name| name.is_none()).count()
    }
}

/// One CQL statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `SELECT`.
    Select(Box<Select>),
    /// `INSERT`, `UPDATE` or `DELETE`.
    Modification(Box<Modification>),
    /// `BEGIN ... APPLY BATCH` in text.
    Batch(BatchText),
    /// `USE keyspace`.
    Use(String),
    /// Begins with `USE`, and is not understood: a server may take it for one.
    OddUse,
    /// `TRUNCATE [TABLE] table`.
    Truncate(TableName),
    /// `CREATE`, `ALTER`, `DROP` of schema objects.
    Schema(SchemaStatement),
    /// Roles, users, permissions, service levels: changes who may do what, never a row of a user's
    /// table.
    Access,
    /// `LIST ...`: reads of roles and permissions.
    List,
    /// `DESCRIBE ...`.
    Describe,
    /// Not understood.
    Unknown(Unknown),
}

/// Text that is not understood, and what can be proven of it all the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Unknown {
    /// True only if no server can take the text for anything but a read.
    pub provably_read: bool,
    /// The only tables that the text can write to, each once, if it names them. Empty if it may
    /// write to anything, or only reads.
    pub tables: Vec<TableName>,
    /// Whether it may be a lightweight transaction.
    pub conditional: bool,
}

impl Statement {
    /// Tables that it names without their keyspace, as folded: they are those of the session's.
    pub fn unqualified_tables(&self) -> impl Iterator<Item = &str> {
        let (one, batch, unknown): (Option<&TableName>, &[Modification], &[TableName]) = match self
        {
            Statement::Select(select) => (Some(&select.table), &[], &[]),
            Statement::Modification(modification) => (Some(&modification.table), &[], &[]),
            Statement::Truncate(table) => (Some(table), &[], &[]),
            Statement::Batch(batch) => (None, &batch.modifications, &[]),
            Statement::Unknown(unknown) => (None, &[], &unknown.tables),
            _ => (None, &[], &[]),
        };
        let of_batch = batch.iter().map(|modification| &modification.table);
        let all = one.into_iter().chain(of_batch).chain(unknown);
        all.filter(|table| table.keyspace.is_none()).map(|table| &*table.name)
    }
}

impl Unknown {
    /// Unknown text that may write: to these tables if any are given, else to anything. It may be a
    /// lightweight transaction if it is `conditional`.
    pub fn write(tables: Vec<TableName>, conditional: bool) -> Unknown {
        Unknown { provably_read: false, tables, conditional }
    }

    /// Unknown text that can only read.
    pub fn read() -> Unknown {
        Unknown { provably_read: true, tables: Vec::new(), conditional: false }
    }
}

/// A table, view, type or function name; the keyspace is absent when the text leaves it to the
/// session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    /// Keyspace as folded, if written.
    pub keyspace: Option<String>,
    /// Name as folded.
    pub name: String,
}

/// A `SELECT`.
#[derive(Debug, Clone, PartialEq)]
pub struct Select {
    /// Table or view read.
    pub table: TableName,
    /// `SELECT JSON`.
    pub json: bool,
    /// `SELECT DISTINCT`.
    pub distinct: bool,
    /// What is selected; empty means `*`.
    pub selectors: Vec<Selector>,
    /// Conjunction of relations.
    pub relations: Vec<Relation>,
    /// `LIMIT`.
    pub limit: Option<Term>,
    /// `PER PARTITION LIMIT`.
    pub per_partition_limit: Option<Term>,
    /// `ORDER BY`, ANN included.
    pub order: Vec<OrderBy>,
    /// `GROUP BY`.
    pub grouped: bool,
    /// `ALLOW FILTERING`.
    pub allow_filtering: bool,
    /// ScyllaDB `BYPASS CACHE`.
    pub bypass_cache: bool,
    /// ScyllaDB `USING TIMEOUT`.
    pub using_timeout: bool,
    /// Every word and quoted name of its text, including keywords and functions. Only for tables
    /// called `local`, where it matters which columns an expression names.
    pub words: Vec<String>,
}

/// One column of `ORDER BY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderBy {
    /// Column name.
    pub column: String,
    /// `DESC`.
    pub descending: bool,
    /// `ANN OF`: by similarity to a vector.
    pub similar: bool,
}

/// One item of a select list.
#[derive(Debug, Clone, PartialEq)]
pub struct Selector {
    /// What is computed.
    pub what: Selected,
    /// `AS alias`.
    pub alias: Option<String>,
}

/// What a select item computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Selected {
    /// A column as it is.
    Column(String),
    /// `count(*)` or `count(1)`.
    CountRows,
    /// Anything else: functions, casts, elements, fields, literals, arithmetic.
    Expression,
}

/// One relation of a `WHERE`.
#[derive(Debug, Clone, PartialEq)]
pub enum Relation {
    /// `column op value`.
    Column {
        /// Column name.
        column: String,
        /// Operator.
        op: Operator,
        /// Right side; for `IN` and `BETWEEN` the values, for `IN ?` see
        /// [`Relation::ColumnInMarker`].
        values: Vec<Term>,
    },
    /// `column IN ?`.
    ColumnInMarker {
        /// Column name.
        column: String,
        /// The marker, bound to a list.
        marker: Marker,
    },
    /// `(a, b) op (x, y)`.
    Tuple {
        /// Column names.
        columns: Vec<String>,
        /// Operator.
        op: Operator,
        /// Right sides: tuples or markers.
        values: Vec<Term>,
    },
    /// `token(...)`, `column[key] = ..`, `expr(..)`: nothing that names a key.
    Other,
}

/// Relation operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `IN`
    In,
    /// `NOT IN`
    NotIn,
    /// `CONTAINS`, `CONTAINS KEY` and their negations.
    Contains,
    /// `LIKE`
    Like,
    /// `BETWEEN`
    Between,
    /// `IS NOT NULL`
    IsNotNull,
}

/// A bind marker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Marker {
    /// Position among the statement's markers.
    pub index: u16,
    /// Name, for `:name`. Plans may name a marker many times, and share this.
    pub name: Option<Arc<str>>,
}

/// A value expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Term {
    /// `?` or `:name`.
    Marker(Marker),
    /// A constant.
    Literal(Literal),
    /// `NULL`.
    Null,
    /// `(x, y)`.
    Tuple(Vec<Term>),
    /// `uuid()` or `now()`: a value that the server makes anew, and that no row has yet. `timed`:
    /// it is a time-based one.
    Unique {
        /// Whether it fits a `timeuuid`.
        timed: bool,
    },
    /// A collection or user type literal, another function call, a cast, arithmetic: not looked
    /// into.
    Complex,
}

/// A constant as written; numbers keep their text, because their meaning depends on the column's
/// type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Literal {
    /// `'text'` or `$$text$$`, unescaped.
    String(String),
    /// Digits with an optional minus.
    Integer(String),
    /// A number with a point or an exponent.
    Float(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A uuid's text.
    Uuid(String),
    /// Hexadecimal digits without `0x`.
    Hex(String),
    /// A duration, `NaN` or `Infinity`.
    Other,
}

/// Which modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModificationKind {
    /// `INSERT ... VALUES`.
    Insert,
    /// `INSERT ... JSON`.
    InsertJson,
    /// `UPDATE`.
    Update,
    /// `DELETE`.
    Delete,
}

/// An `INSERT`, `UPDATE` or `DELETE`.
#[derive(Debug, Clone, PartialEq)]
pub struct Modification {
    /// Which one.
    pub kind: ModificationKind,
    /// Table written.
    pub table: TableName,
    /// Columns that the statement writes or deletes. These are the column list of an `INSERT` (keys
    /// included), the left sides of `SET`, or the selection of a `DELETE` (empty: whole rows).
    pub columns: Vec<String>,
    /// What each of `columns` is set to, for an `INSERT` with values and an `UPDATE`. It is
    /// [`Term::Complex`] where only a part of the column is written, or where the new value depends
    /// on the old one.
    pub assigned: Vec<Term>,
    /// What names the rows: the `WHERE`, or for an `INSERT` one `=` relation a column of its list.
    pub relations: Vec<Relation>,
    /// The document of an `INSERT ... JSON`: a string or a marker.
    pub json: Option<Term>,
    /// `IF ...`: a lightweight transaction.
    pub conditional: bool,
    /// `USING TIMESTAMP`.
    pub timestamp: Option<Term>,
    /// `USING TTL`.
    pub ttl: Option<Term>,
}

/// A batch in text.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchText {
    /// Its kind.
    pub kind: BatchKind,
    /// Its modifications, in order.
    pub modifications: Vec<Modification>,
    /// `BEGIN BATCH USING TIMESTAMP`.
    pub timestamp: Option<Term>,
}

/// What kind of object a DDL statement changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaObject {
    /// Keyspace.
    Keyspace,
    /// Table.
    Table,
    /// User type.
    Type,
    /// Function.
    Function,
    /// Aggregate.
    Aggregate,
    /// Index; the name is the table's for `CREATE`, the index's for `DROP`.
    Index,
    /// Materialised view.
    View,
    /// Trigger; the name is the table's.
    Trigger,
}

/// Which change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaVerb {
    /// `CREATE`
    Create,
    /// `ALTER`
    Alter,
    /// `DROP`
    Drop,
}

/// A DDL statement.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaStatement {
    /// Which change.
    pub verb: SchemaVerb,
    /// Of what.
    pub object: SchemaObject,
    /// Name of the object; for a keyspace `keyspace` is set and `name` is empty.
    pub name: TableName,
}
