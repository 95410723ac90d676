//! What a plain write sets in one row, so that a cached copy of the row can follow it.

use std::sync::Arc;

use super::context::Context;
use super::key::ValueSource;
use super::literal;
use super::schema::TableSchema;
use super::types::{Form, is_native};
use super::weight;
use crate::statement::{Literal, Modification, ModificationKind, Operator, Relation, Term};

/// What an `INSERT` or `UPDATE` of one row sets. Every value is a literal or a marker, and is the
/// whole value of its column. Nothing else of the row changes.
#[derive(Debug, Clone, PartialEq)]
pub struct RowUpdate {
    /// The table as it was when the plan was made.
    pub table: Arc<TableSchema>,
    /// [`TableSchema::fingerprint`] of `table`.
    pub fingerprint: u64,
    /// The cells that it sets, one at least.
    pub cells: Vec<WrittenCell>,
    /// `USING TIMESTAMP`: a bigint.
    pub timestamp: Option<ValueSource>,
    /// `USING TTL`: an int.
    pub ttl: Option<ValueSource>,
}

/// A cell that a write sets.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenCell {
    /// Position of its column in [`TableSchema::values`].
    pub column: u16,
    /// Its new value.
    pub value: ValueSource,
    form: Form,
}

impl WrittenCell {
    /// Whether the database stores just these bytes, or refuses them.
    pub fn is_stored_as(&self, value: &[u8]) -> bool {
        self.form.is_kept(value)
    }
}

impl RowUpdate {
    /// About how many bytes its values take; see [`Plan::weight`](super::Plan::weight).
    pub(super) fn weight(&self) -> usize {
        weight::list(&self.cells, |cell| weight::value(&cell.value))
            + self.timestamp.iter().chain(&self.ttl).map(weight::value).sum::<usize>()
    }

    /// `None` where the new row does not follow from the old one and the request alone.
    /// `one_row`: the modification touches one row, whose key is known.
    pub(super) fn of(
        modification: &Modification,
        one_row: bool,
        context: &Context,
    ) -> Option<RowUpdate> {
        let plain =
            matches!(modification.kind, ModificationKind::Insert | ModificationKind::Update)
                && !modification.conditional;
        let table = context.table(&modification.table)?;
        if !plain || !one_row || !context.binds_certain {
            return None;
        }
        if table.triggers || table.cacheable().is_err() || !names_its_row_only(modification, &table)
        {
            return None;
        }
        let is_key = |name: &String| table.keys().any(|column| column.name == *name);
        let written = modification.columns.iter().zip(&modification.assigned);
        let written = written.filter(|(name, _)| !is_key(name));
        let cells = written.map(|(name, term)| cell(name, term, &table)).collect::<Option<_>>()?;
        let update = RowUpdate {
            fingerprint: table.fingerprint(),
            cells,
            timestamp: timestamp(modification.timestamp.as_ref())?,
            ttl: ttl(modification.ttl.as_ref())?,
            table,
        };
        (!update.cells.is_empty()).then_some(update)
    }
}

/// Whether each column is written once, and an `UPDATE` has one `=` for each key column and no
/// other relation. Servers refuse the rest.
fn names_its_row_only(modification: &Modification, table: &TableSchema) -> bool {
    let (columns, relations) = (&modification.columns, &modification.relations);
    let repeated = columns.iter().enumerate().any(|(i, name)| columns[..i].contains(name));
    let equal = |relation: &Relation| match relation {
        Relation::Column { op: Operator::Equal, values, .. } => values.len() == 1,
        _ => false,
    };
    let expected = match modification.kind {
        ModificationKind::Update => table.keys().count(),
        _ => columns.len(),
    };
    !repeated && relations.len() == expected && relations.iter().all(equal)
}

/// A regular column of a native type, and a value whose bytes are known.
fn cell(name: &str, term: &Term, table: &TableSchema) -> Option<WrittenCell> {
    let at = table.regulars.iter().position(|column| column.name == name)?;
    let cql_type = table.regulars[at].cql_type.as_str();
    if !is_native(cql_type) {
        return None;
    }
    Some(WrittenCell {
        column: u16::try_from(table.statics.len() + at).ok()?,
        value: literal::slot(term, cql_type).ok()?,
        form: Form::of(cql_type),
    })
}

/// The number of `USING TIMESTAMP`. The outer `None`: there is one, and it is not known.
pub(super) fn timestamp(term: Option<&Term>) -> Option<Option<ValueSource>> {
    number(term, |digits| digits.parse::<i64>().ok().map(|n| n.to_be_bytes().to_vec()))
}

/// The number of `USING TTL`, as [`timestamp`].
pub(super) fn ttl(term: Option<&Term>) -> Option<Option<ValueSource>> {
    number(term, |digits| digits.parse::<i32>().ok().map(|n| n.to_be_bytes().to_vec()))
}

/// The number of a `USING` clause. The outer `None`: there is one, and it is not known.
fn number(
    term: Option<&Term>,
    bytes: impl Fn(&str) -> Option<Vec<u8>>,
) -> Option<Option<ValueSource>> {
    Some(match term {
        None => None,
        Some(Term::Marker(marker)) => Some(ValueSource::Bind(marker.clone())),
        Some(Term::Literal(Literal::Integer(digits))) => {
            Some(ValueSource::Literal(bytes(digits)?.into()))
        }
        Some(_) => return None,
    })
}
