//! BATCH.

use super::params::{QueryParams, Values, end_in};
use crate::error::ProtocolError;
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result};

/// How a batch is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// Atomic by way of the batch log.
    Logged = 0,
    /// Without it.
    Unlogged = 1,
    /// Of counters.
    Counter = 2,
}

/// What one statement of a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatementRef<'a> {
    /// Its text.
    Text(&'a str),
    /// The id of a prepared one.
    Prepared(&'a [u8]),
}

/// One statement of a batch. Its values are positional: the protocol's way to name them was never
/// implemented.
#[derive(Debug, Clone, Copy)]
pub struct BatchStatement<'a> {
    /// Which.
    pub statement: StatementRef<'a>,
    /// Its values.
    pub values: Values<'a>,
}

/// A checked BATCH.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// How it is executed.
    pub kind: BatchKind,
    /// Consistency and the rest; page size, paging state and values in it mean nothing.
    pub params: QueryParams<'a>,
    version: Version,
    count: u16,
    statements: &'a [u8],
}

impl<'a> Batch<'a> {
    /// Parses a body. Does not allocate.
    pub fn parse(version: Version, body: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(body);
        let kind = match reader.byte()? {
            0 => BatchKind::Logged,
            1 => BatchKind::Unlogged,
            2 => BatchKind::Counter,
            other => {
                return Err(ProtocolError::new(format!(
                    "Invalid BATCH message type {}",
                    other as i8
                )));
            }
        };
        let count = reader.short()?;
        let ((), statements) =
            reader.spanned(|r| (0..count).try_for_each(|_| next(version, r).map(drop)))?;
        Ok(Self {
            kind,
            params: QueryParams::read(version, &mut reader)?,
            version,
            count,
            statements,
        })
    }

    /// Where the consistency level is in `body`, the whole body that this was parsed from.
    pub fn consistency_at(&self, body: &[u8]) -> usize {
        end_in(body, self.statements)
    }

    /// How many statements there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The statements in the order of the wire.
    pub fn statements(&self) -> impl Iterator<Item = BatchStatement<'a>> + use<'a> {
        let (mut reader, version) = (Reader::new(self.statements), self.version);
        // Checked when parsed, so none is ever missing.
        (0..self.count).map_while(move |_| next(version, &mut reader).ok())
    }
}

fn next<'a>(version: Version, reader: &mut Reader<'a>) -> Result<BatchStatement<'a>> {
    let statement = match reader.byte()? {
        0 => StatementRef::Text(reader.long_string()?),
        1 => StatementRef::Prepared(reader.short_bytes()?),
        other => {
            return Err(ProtocolError::new(format!(
                "Invalid query kind in BATCH messages. Must be 0 or 1 but got {}",
                other as i8
            )));
        }
    };
    Ok(BatchStatement { statement, values: Values::read(version, reader, false)? })
}

/// Appends the body of a BATCH.
///
/// # Panics
/// When there are more than 65,535 statements, or values have names.
pub fn encode_batch(
    version: Version,
    kind: BatchKind,
    statements: &[BatchStatement<'_>],
    params: &QueryParams<'_>,
    out: &mut Vec<u8>,
) {
    out.put_byte(kind as u8);
    out.put_short_len(statements.len());
    for BatchStatement { statement, values } in statements {
        assert!(!values.are_named(), "values of a batch have no names");
        match statement {
            StatementRef::Text(text) => {
                out.put_byte(0);
                out.put_long_string(text);
            }
            StatementRef::Prepared(id) => {
                out.put_byte(1);
                out.put_short_bytes(id);
            }
        }
        out.put_short_len(values.len());
        out.put_raw(values.raw());
    }
    params.encode(version, out);
}
