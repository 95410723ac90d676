//! Reading a whole row, or a unit of a partition, from the database for the cache.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::notation::Value;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Execute, Prepare, QueryParams, ValuesBuilder};
use afterglow_cql::plan::{Projected, ReadPlan, RowKey, TableSchema};
use afterglow_cql::response::{self, ColumnSpec, MetadataOut, Response, ResultBody};
use afterglow_rowcache::row::{FillError, Filled, fill_query, read_fill};
use afterglow_rowcache::unit::{UnitAsked, read_unit, unit_query};
use parking_lot::Mutex;
use uuid::Uuid;

use super::super::{Backend, error_code, parsed};
use super::answer::MOST_BYTES;
use crate::frontend::cql::keyed_turns::KeyedTurns;

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
            .map(|(at, name)| {
                let type_bytes = match at {
                    Projected::Key(at) => &self.types[usize::from(*at)],
                    Projected::Value(at) => &self.types[self.keys + usize::from(*at)],
                    Projected::Count => BIGINT,
                };
                ColumnSpec {
                    keyspace: &self.table.keyspace,
                    table: &self.table.name,
                    name,
                    type_bytes,
                }
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
}

/// Why a fill failed. The client's own request is then passed on unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillFailure {
    /// The database could not be asked, or refused.
    Failed,
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

    /// The statement of a row, prepared if need be.
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

    /// Under one generation a table has its columns' types for good. Where others are said, it was
    /// made again, which no snapshot shows yet: its rows are none of this plan's.
    fn remember(
        &self,
        key: StatementKey,
        generation: u64,
        statement: FillStatement,
    ) -> Result<Arc<FillStatement>, FillFailure> {
        let mut prepared = self.prepared.lock();
        let (table, version, _) = key;
        let differs = |kind: &StatementKind| {
            prepared.get(&(table, version, *kind)).is_some_and(|(of, known)| {
                (*of, known.fingerprint) == (generation, statement.fingerprint)
                    && known.types != statement.types
            })
        };
        if StatementKind::ALL.iter().any(differs) {
            return Err(FillFailure::Failed);
        }
        if prepared.len() >= MAX_STATEMENTS {
            prepared.clear();
        }
        let statement = Arc::new(statement);
        prepared.insert(key, (generation, statement.clone()));
        Ok(statement)
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
        read(&answer, &ask, asked_at)
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
    whole.then(|| FillStatement {
        id: prepared.id.to_vec(),
        metadata_id: prepared.result_metadata_id.map(<[u8]>::to_vec),
        types: head.iter().chain(&values).map(|column| column.type_bytes.to_vec()).collect(),
        keys: keys.len(),
        fingerprint: plan.fingerprint,
        table: table.clone(),
    })
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
fn read(answer: &Envelope, ask: &Ask<'_>, asked_at: u32) -> Result<Filled, FillFailure> {
    if answer.header.opcode != Opcode::Result {
        return Err(FillFailure::Failed);
    }
    let (extras, message) =
        response::split(&answer.header, &answer.body).map_err(|_| FillFailure::Failed)?;
    let rows = match Response::parse(&answer.header, message) {
        Ok(Response::Result(ResultBody::Rows(rows)))
            if extras.is_plain() && !rows.metadata.has_more() =>
        {
            rows
        }
        _ => return Err(FillFailure::Uncacheable),
    };
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
mod tests {
    use afterglow_cql::schema::Schema;

    use super::*;
    use crate::frontend::cql::cached::testing::{keyed, read_of};

    /// It was dropped and made again with another type. A client decodes by the type that it knows.
    #[test]
    fn a_table_whose_columns_have_other_types_under_one_schema_is_not_filled() {
        let (plan, _) = read_of(&Schema::of_tables([keyed("t", 7)]), "t");
        let statement = |of: u8| FillStatement {
            id: vec![of],
            metadata_id: None,
            types: vec![vec![0, of]],
            keys: 1,
            table: plan.table.clone(),
            fingerprint: plan.fingerprint,
        };
        let statements = FillStatements::default();
        let key = (plan.table.id, Version::V5, StatementKind::Row);
        let remember = |generation, of| statements.remember(key, generation, statement(of)).is_ok();
        assert_eq!([(1, 9), (1, 9), (1, 13)].map(|(at, of)| remember(at, of)), [true, true, false]);
        let unit = (plan.table.id, Version::V5, StatementKind::Unit { reversed: true });
        let of_unit = |of| statements.remember(unit, 1, statement(of)).is_ok();
        assert_eq!([13, 9].map(of_unit), [false, true], "units are compared with rows");
        let known = statements.ready(&plan, Version::V5, 1).expect("the one of before stays");
        assert_eq!(known.id, [9]);
        assert!(remember(2, 13), "a type of its own may have changed");
    }
}
