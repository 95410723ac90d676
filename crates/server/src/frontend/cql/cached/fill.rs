//! Reading a whole row, or a unit of a partition, from the database for the cache.
//!
//! 1. A node prepares the SELECT of the table, and says what types the columns have. All native
//!    ones must be those of the plan.
//! 2. Each fill executes it, at any node. The answer says the types again.
//! 3. If they are others, nothing is installed. The table's statements are removed, and then its
//!    rows are forgotten ([`CachedState::fill`](super::state::CachedState::fill)).
//!
//! Nodes hear of a change one after the other, and some long after: a user type was altered, or the
//! table dropped and made again. Ids of statements are digests of their texts, so each node
//! executes what another has prepared.
//!
//! Invariant: whatever is cached of a table since its rows were last forgotten has the types of
//! the statement that is remembered, if there is one. Texts are answered with those types.
//!
//! The race with fills under way: they began before the rows are forgotten, so none is installed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Execute, Prepare, QueryParams, ValuesBuilder};
use afterglow_cql::plan::{Column, Projected, ReadPlan, RowKey, TableSchema};
use afterglow_cql::response::{
    self, ColumnSpec, Columns, MetadataOut, Response, ResultBody, scalar_code,
};
use afterglow_rowcache::row::{FillError, Filled, fill_query, read_fill};
use afterglow_rowcache::unit::{UnitAsked, read_unit, unit_query};
use parking_lot::Mutex;
use uuid::Uuid;

use super::super::{Backend, PreparedAnswer, error_code, parsed};
use super::answer::MOST_BYTES;
use crate::frontend::cql::keyed_turns::KeyedTurns;

/// The first native type that version 3 has no number for: `date`, and `time` and small ones next.
const FIRST_OF_VERSION_4: u16 = 0x11;
/// How an option begins that is a class by its name.
const CLASS: [u8; 2] = [0, 0];
/// Tables whose fill statements are remembered, in each version.
const MAX_STATEMENTS: usize = 16 * 1024;
/// How long one waits for another who prepares the same statement. The node may be silent.
const TURN: Duration = Duration::from_millis(500);

/// The type of `count(*)`, as in a RESULT.
const BIGINT: &[u8] = &[0x00, 0x02];

/// The prepared SELECT that reads one whole row, or a unit, of a table.
pub struct FillStatement {
    id: Vec<u8>,
    metadata_id: Option<Vec<u8>>,
    /// The type of every key column, then of every other column, as the database writes it.
    types: Vec<Vec<u8>>,
    keys: usize,
    table: Arc<TableSchema>,
    fingerprint: u64,
}

impl FillStatement {
    /// The metadata of an answer with these columns under these names. `None`: it may be too long.
    pub fn metadata(
        &self,
        version: Version,
        projection: &[Projected],
        names: &[String],
    ) -> Option<Vec<u8>> {
        let columns: Vec<ColumnSpec<'_>> = projection
            .iter()
            .zip(names)
            .map(|(at, name)| ColumnSpec {
                keyspace: &self.table.keyspace,
                table: &self.table.name,
                name,
                type_bytes: self.type_of(*at),
            })
            .collect();
        let bytes = columns.iter().map(|column| column.name.len() + column.type_bytes.len());
        if bytes.sum::<usize>() > MOST_BYTES {
            return None;
        }
        let mut out = Vec::new();
        MetadataOut::of_table(&columns).encode(version, &mut out);
        Some(out)
    }

    fn type_of(&self, at: Projected) -> &[u8] {
        match at {
            Projected::Key(at) => &self.types[usize::from(at)],
            Projected::Value(at) => &self.types[self.keys + usize::from(at)],
            Projected::Count => BIGINT,
        }
    }

    /// Whether these columns of an answer have the types that PREPARE gave. An id of new columns
    /// says no more: it is their digest, which releases make in different ways.
    fn has_types_of(&self, columns: &Columns<'_>) -> bool {
        let values = self.types.len() - self.keys;
        columns.len() == self.keys + 3 * values
            && self.of_table(columns).map(|column| column.type_bytes).eq(&self.types)
    }

    /// Whether the native ones have the types of the plan. A node with others has heard of another
    /// table of the name. What is cached has the plan's.
    fn fits_plan(&self, columns: &Columns<'_>) -> bool {
        let planned = self.table.keys().chain(self.table.values());
        self.of_table(columns).zip(planned).all(|(said, column)| has_its_type(&said, column))
    }

    /// The columns of the table. Time and lifetime of each value follow it.
    fn of_table<'c>(&self, columns: &Columns<'c>) -> impl Iterator<Item = ColumnSpec<'c>> {
        let keys = self.keys;
        let all = columns.iter().enumerate();
        all.filter(move |(at, _)| at.checked_sub(keys).is_none_or(|at| at % 3 == 0))
            .map(|(_, column)| column)
    }

    /// Whether a client knows the columns of this read by the same types.
    fn suits(&self, read: &ReadPlan, version: Version, known: &PreparedAnswer) -> bool {
        let Ok(ResultBody::Prepared(prepared)) = ResultBody::parse(version, &known.message) else {
            return false;
        };
        let theirs = prepared.result.columns.iter().map(|column| column.type_bytes);
        theirs.eq(read.projection.iter().map(|at| self.type_of(*at)))
    }
}

/// Why a fill failed. The client's own request is then passed on unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillFailure {
    /// The database could not be asked, or refused.
    Failed,
    /// A node has said other types of the columns than one before. The table's statements are
    /// removed; its rows are to be forgotten.
    OtherTypes,
    /// It answered, but not in a way that can be stored.
    Uncacheable,
    /// It answered with a row that is too large to store.
    TooLarge,
    /// It did not answer in time.
    Late,
}

/// A statement with the generation of the schema that it was prepared in.
type OfGeneration = (u64, Arc<FillStatement>);
/// What a statement is remembered by.
type StatementKey = (Uuid, Version, StatementKind);

/// What a fill statement reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum StatementKind {
    Row,
    /// Rows of a partition, in the table's order or in its reverse.
    Unit {
        reversed: bool,
    },
}

impl StatementKind {
    const ALL: [StatementKind; 3] = [
        StatementKind::Row,
        StatementKind::Unit { reversed: false },
        StatementKind::Unit { reversed: true },
    ];
}

/// What one fill reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillShape {
    /// The row with the key.
    Row,
    /// Rows of the partition with the key.
    Unit(UnitAsked),
}

impl FillShape {
    fn kind(self) -> StatementKind {
        match self {
            FillShape::Row => StatementKind::Row,
            FillShape::Unit(UnitAsked { reversed, .. }) => StatementKind::Unit { reversed },
        }
    }
}

/// The fill statements of all tables. They belong to one generation of the schema and are prepared
/// again for the next.
#[derive(Default)]
pub struct FillStatements {
    prepared: Mutex<HashMap<StatementKey, OfGeneration>>,
    /// Thousands of reads may need the same statement at once: one of them prepares it.
    turns: KeyedTurns<StatementKey>,
    /// The last generation in which nodes have said different types of the same columns.
    disputed: AtomicU64,
}

impl FillStatements {
    /// The statement of a row, if it is prepared.
    pub fn ready(
        &self,
        plan: &ReadPlan,
        version: Version,
        generation: u64,
    ) -> Option<Arc<FillStatement>> {
        self.ready_of(StatementKind::Row, plan, version, generation)
    }

    fn ready_of(
        &self,
        kind: StatementKind,
        plan: &ReadPlan,
        version: Version,
        generation: u64,
    ) -> Option<Arc<FillStatement>> {
        let (_, statement) = {
            let prepared = self.prepared.lock();
            let key = (plan.table.id, version, kind);
            prepared.get(&key).filter(|(of, _)| *of == generation).cloned()?
        };
        // A plan may be older than the generation that its request saw. Its columns must not be
        // taken for the newer ones.
        (statement.fingerprint == plan.fingerprint).then_some(statement)
    }

    /// Whether nodes have said different types of the same columns in this generation. Then one
    /// answer does not prove that a client knows those of the cached rows.
    pub fn is_disputed(&self, generation: u64) -> bool {
        self.disputed.load(Ordering::Acquire) == generation
    }

    /// Whether a client that knows these columns of the read knows the types of what is cached of
    /// the table, as far as that is known.
    pub fn suit(
        &self,
        read: &ReadPlan,
        version: Version,
        generation: u64,
        known: &PreparedAnswer,
    ) -> bool {
        let ready = |kind| self.ready_of(kind, read, version, generation);
        let statement = StatementKind::ALL.into_iter().find_map(ready);
        statement.is_none_or(|statement| statement.suits(read, version, known))
    }

    /// The statement of a row, prepared if need be.
    ///
    /// # Errors
    /// [`FillFailure`]
    pub async fn get(
        &self,
        backend: &Backend,
        plan: &ReadPlan,
        generation: u64,
    ) -> Result<Arc<FillStatement>, FillFailure> {
        self.get_of(StatementKind::Row, backend, plan, generation).await
    }

    async fn get_of(
        &self,
        kind: StatementKind,
        backend: &Backend,
        plan: &ReadPlan,
        generation: u64,
    ) -> Result<Arc<FillStatement>, FillFailure> {
        let version = backend.version();
        if let Some(statement) = self.ready_of(kind, plan, version, generation) {
            return Ok(statement);
        }
        let turn = self.turns.of((plan.table.id, version, kind));
        let held = compio::time::timeout(TURN, turn.lock()).await;
        // Whoever had the turn before may have prepared it.
        if let Some(statement) = self.ready_of(kind, plan, version, generation) {
            return Ok(statement);
        }
        let prepared = self.prepare(kind, backend, plan, generation).await;
        drop(held);
        prepared
    }

    async fn prepare(
        &self,
        kind: StatementKind,
        backend: &Backend,
        plan: &ReadPlan,
        generation: u64,
    ) -> Result<Arc<FillStatement>, FillFailure> {
        let mut body = Vec::new();
        let text = match kind {
            StatementKind::Row => fill_query(&plan.table),
            StatementKind::Unit { reversed } => unit_query(&plan.table, reversed),
        };
        Prepare { text: &text, keyspace: None }.encode(backend.version(), &mut body);
        let answer = backend
            .call(Opcode::Prepare, Flags::NONE, body.into())
            .await
            .map_err(|_| FillFailure::Failed)?;
        let statement = understand(&answer, plan).ok_or(FillFailure::Failed)?;
        self.remember((plan.table.id, backend.version(), kind), generation, statement)
    }

    /// A table has its columns' types for good, unless a node has heard of a change that another
    /// has not: a user type was altered, or the table made again. Also from one generation to the
    /// next: rows of before may be there.
    fn remember(
        &self,
        key: StatementKey,
        generation: u64,
        statement: FillStatement,
    ) -> Result<Arc<FillStatement>, FillFailure> {
        let mut prepared = self.prepared.lock();
        let (table, version, _) = key;
        let differs = |kind: &StatementKind| {
            prepared.get(&(table, version, *kind)).is_some_and(|(_, known)| {
                known.fingerprint == statement.fingerprint && known.types != statement.types
            })
        };
        if StatementKind::ALL.iter().any(differs) {
            drop(prepared);
            return Err(self.dispute(table, generation));
        }
        if prepared.len() >= MAX_STATEMENTS {
            prepared.clear();
        }
        let statement = Arc::new(statement);
        prepared.insert(key, (generation, statement.clone()));
        Ok(statement)
    }

    /// Nodes say different types of the table's columns. Whoever prepares next says which count.
    fn dispute(&self, table: Uuid, generation: u64) -> FillFailure {
        self.disputed.fetch_max(generation, Ordering::AcqRel);
        let mut prepared = self.prepared.lock();
        for version in Version::ALL {
            for kind in StatementKind::ALL {
                prepared.remove(&(table, *version, kind));
            }
        }
        FillFailure::OtherTypes
    }

    /// An answer has other types than its statement.
    ///
    /// The race with other fills that find the same: the first removes the statement, and has the
    /// rows forgotten. For the others it does not count any more, nor what they have read.
    fn refute(&self, statement: &FillStatement, version: Version, generation: u64) -> FillFailure {
        let table = statement.table.id;
        let counts = |kind| {
            let prepared = self.prepared.lock();
            let known = prepared.get(&(table, version, kind));
            known.is_some_and(|(_, known)| known.types == statement.types)
        };
        match StatementKind::ALL.into_iter().any(counts) {
            true => self.dispute(table, generation),
            false => FillFailure::Failed,
        }
    }

    /// Reads the row or unit. `asked_at` is a moment before this call, in unix seconds.
    ///
    /// # Errors
    /// [`FillFailure`]; nothing is to be installed.
    pub async fn fill(
        &self,
        backend: &Backend,
        ask: Ask<'_>,
        generation: u64,
        asked_at: u32,
    ) -> Result<Filled, FillFailure> {
        let kind = ask.shape.kind();
        let mut statement = self.get_of(kind, backend, ask.plan, generation).await?;
        let mut answer = execute(backend, &statement, &ask).await?;
        if error_code(&answer) == Some(ErrorCode::Unprepared) {
            statement = self.prepare(kind, backend, ask.plan, generation).await?;
            answer = execute(backend, &statement, &ask).await?;
        }
        let filled = read(&answer, &statement, &ask, asked_at);
        filled.map_err(|failure| match failure {
            FillFailure::OtherTypes => self.refute(&statement, backend.version(), generation),
            failure => failure,
        })
    }
}

/// What to read.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The plan that the row is read for.
    pub plan: &'a ReadPlan,
    /// The key of the row or unit.
    pub key: &'a RowKey,
    /// Which of them.
    pub shape: FillShape,
    /// The consistency level.
    pub consistency: Consistency,
}

fn understand(answer: &Envelope, plan: &ReadPlan) -> Option<FillStatement> {
    let table = &plan.table;
    let Response::Result(ResultBody::Prepared(prepared)) = parsed(answer)? else { return None };
    let columns: Vec<ColumnSpec<'_>> = prepared.result.columns.iter().collect();
    let keys: Vec<&str> = table.keys().map(|c| c.name.as_str()).collect();
    let (head, tail) = columns.split_at_checked(keys.len())?;
    let named = |columns: &[ColumnSpec<'_>], names: &mut dyn Iterator<Item = &str>| {
        columns.iter().map(|column| column.name).eq(names)
    };
    let values: Vec<ColumnSpec<'_>> = tail.iter().copied().step_by(3).collect();
    let whole = tail.len() == 3 * table.values().count()
        && named(head, &mut keys.iter().copied())
        && named(&values, &mut table.values().map(|column| column.name.as_str()));
    let statement = whole.then(|| FillStatement {
        id: prepared.id.to_vec(),
        metadata_id: prepared.result_metadata_id.map(<[u8]>::to_vec),
        types: head.iter().chain(&values).map(|column| column.type_bytes.to_vec()).collect(),
        keys: keys.len(),
        fingerprint: plan.fingerprint,
        table: table.clone(),
    })?;
    statement.fits_plan(&prepared.result.columns).then_some(statement)
}

/// Whether a node says the type of a native column that the plan has. What others are made of the
/// plan does not know. Before version 4 servers name the youngest native types by their classes.
fn has_its_type(said: &ColumnSpec<'_>, column: &Column) -> bool {
    let Some(code) = scalar_code(&column.cql_type) else { return true };
    let by_class = code >= FIRST_OF_VERSION_4 && said.type_bytes.starts_with(&CLASS);
    by_class || said.type_bytes == code.to_be_bytes()
}

async fn execute(
    backend: &Backend,
    statement: &FillStatement,
    ask: &Ask<'_>,
) -> Result<Envelope, FillFailure> {
    let mut values = ValuesBuilder::positional();
    for column in ask.key.columns() {
        values.push(Value::Bytes(column));
    }
    if let FillShape::Unit(asked) = ask.shape {
        values.push(Value::Bytes(&(asked.rows as i32).to_be_bytes()));
    }
    let mut params = QueryParams::new(ask.consistency);
    params.values = values.view();
    let mut body = Vec::new();
    let metadata_id = statement.metadata_id.as_deref();
    Execute { id: &statement.id, result_metadata_id: metadata_id, params }
        .encode(backend.version(), &mut body);
    backend.call(Opcode::Execute, Flags::NONE, body.into()).await.map_err(|_| FillFailure::Failed)
}

/// An answer that carries anything besides its rows (a warning, say) belongs to this read alone.
fn read(
    answer: &Envelope,
    statement: &FillStatement,
    ask: &Ask<'_>,
    asked_at: u32,
) -> Result<Filled, FillFailure> {
    if answer.header.opcode != Opcode::Result {
        return Err(FillFailure::Failed);
    }
    let (extras, message) =
        response::split(&answer.header, &answer.body).map_err(|_| FillFailure::Failed)?;
    let rows = match Response::parse(&answer.header, message) {
        Ok(Response::Result(ResultBody::Rows(rows)))
            if extras.is_plain() && !rows.metadata.has_more() && !rows.metadata.is_skipped() =>
        {
            rows
        }
        _ => return Err(FillFailure::Uncacheable),
    };
    if !statement.has_types_of(&rows.metadata.columns) {
        return Err(match statement.fits_plan(&rows.metadata.columns) {
            true => FillFailure::OtherTypes,
            false => FillFailure::Failed,
        });
    }
    let cells: Vec<Vec<Option<&[u8]>>> = rows
        .iter()
        .map(|row| row.map(|row| row.cells().collect()))
        .collect::<Result<_, _>>()
        .map_err(|_| FillFailure::Failed)?;
    let (table, fingerprint) = (&ask.plan.table, ask.plan.fingerprint);
    let filled = match ask.shape {
        FillShape::Row => read_fill(table, fingerprint, ask.key, &cells, asked_at),
        FillShape::Unit(asked) => read_unit(table, fingerprint, ask.key, &cells, asked, asked_at),
    };
    filled.map_err(|error| match error {
        FillError::TooLarge => FillFailure::TooLarge,
        FillError::Shape | FillError::KeyForm => FillFailure::Uncacheable,
    })
}

#[cfg(test)]
mod tests;
