//! Decodes rows that the front end reads for itself.

use std::collections::BTreeMap;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::Envelope;
use afterglow_cql::response::{self, Response, ResultBody};
use afterglow_cql::system::{SystemColumn, Table, TypeOption};

/// An answer of kind Rows, copied out of the connection's buffer.
#[derive(Default)]
pub struct Fetched {
    columns: Vec<(String, Vec<u8>)>,
    rows: Vec<Vec<Option<Vec<u8>>>>,
}

/// The code, and what the database says, where it refuses; `None` for every other answer.
pub fn refusal(answer: &Envelope) -> Option<(ErrorCode, String)> {
    let (_, message) = response::split(&answer.header, &answer.body).ok()?;
    match Response::parse(&answer.header, message) {
        Ok(Response::Error(error)) => Some((error.code, error.message.to_owned())),
        _ => None,
    }
}

/// One row of it.
pub struct FetchedRow<'a> {
    of: &'a Fetched,
    cells: &'a [Option<Vec<u8>>],
}

impl Fetched {
    /// From an answer; `None` when it is something else or damaged.
    pub fn new(answer: &Envelope) -> Option<Self> {
        let (_, message) = response::split(&answer.header, &answer.body).ok()?;
        let Ok(Response::Result(ResultBody::Rows(rows))) = Response::parse(&answer.header, message)
        else {
            return None;
        };
        rows.check().ok()?;
        let columns = rows
            .metadata
            .columns
            .iter()
            .map(|c| (c.name.to_owned(), c.type_bytes.to_vec()))
            .collect();
        let cells =
            |row: response::Row<'_>| row.cells().map(|cell| cell.map(<[u8]>::to_vec)).collect();
        let rows = rows.iter().map(|row| row.map(cells)).collect::<Result<_, _>>().ok()?;
        Some(Self { columns, rows })
    }

    /// Rows without an answer they came from.
    #[cfg(test)]
    pub(crate) fn of(columns: &[&str], rows: Vec<Vec<Option<Vec<u8>>>>) -> Self {
        Self {
            columns: columns.iter().map(|name| ((*name).to_owned(), Vec::new())).collect(),
            rows,
        }
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = FetchedRow<'_>> {
        self.rows.iter().map(|cells| FetchedRow { of: self, cells })
    }

    /// Whether a lightweight transaction has done what it says, if this answers one.
    pub fn applied(&self) -> Option<bool> {
        Some(self.rows().next()?.bytes("[applied]")? == [1])
    }

    /// As a table of `system`.
    pub fn into_table(self) -> Table {
        let column = |(name, type_bytes): (String, Vec<u8>)| SystemColumn {
            name,
            type_option: TypeOption::new(type_bytes),
        };
        Table { columns: self.columns.into_iter().map(column).collect(), rows: self.rows }
    }
}

impl FetchedRow<'_> {
    /// The bytes of a column; `None` when null or not there.
    pub fn bytes(&self, column: &str) -> Option<&[u8]> {
        let at = self.of.columns.iter().position(|(name, _)| name == column)?;
        self.cells.get(at)?.as_deref()
    }

    /// A text.
    pub fn text(&self, column: &str) -> Option<String> {
        self.bytes(column).and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
    }

    /// An int.
    pub fn int(&self, column: &str) -> Option<i32> {
        self.bytes(column)?.try_into().ok().map(i32::from_be_bytes)
    }

    /// A bigint.
    pub fn bigint(&self, column: &str) -> Option<i64> {
        self.bytes(column)?.try_into().ok().map(i64::from_be_bytes)
    }

    /// `keyspace_name` and `table_name`.
    pub fn table(&self) -> Option<(String, String)> {
        Some((self.text("keyspace_name")?, self.text("table_name")?))
    }
}

/// The items of a `set<text>`, or keys and values of a `map<text, text>` in turn; what is damaged
/// is left out.
fn items(bytes: &[u8], per_entry: usize) -> Vec<String> {
    let mut reader = afterglow_cql::frame::notation::Reader::new(bytes);
    let count = reader.int().ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    (0..count.saturating_mul(per_entry))
        .map_while(|_| reader.bytes().ok().flatten())
        .map(|item| String::from_utf8_lossy(item).into_owned())
        .collect()
}

/// A `set<text>`.
pub fn text_set(bytes: &[u8]) -> Vec<String> {
    items(bytes, 1)
}

/// A `map<text, text>`.
pub fn text_map(bytes: &[u8]) -> BTreeMap<String, String> {
    items(bytes, 2).chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}
