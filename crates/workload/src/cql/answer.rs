//! What a server answered.

use afterglow_cql::frame::{Flags, Opcode, notation::Reader};

use super::CqlError;

/// An ERROR answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("server error 0x{code:04X}: {message}")]
pub struct ServerError {
    /// The protocol's error code.
    pub code: i32,
    /// The server's text.
    pub message: String,
}

impl ServerError {
    /// The server knows the prepared statement no more.
    pub const UNPREPARED: i32 = 0x2500;

    /// Too much load or a replica too slow or absent: the same request may well succeed a little later, and an idempotent one may be repeated.
    pub fn is_transient(&self) -> bool {
        matches!(self.code, 0x0000 | 0x1000..=0x1003 | 0x1100 | 0x1200 | 0x1300 | 0x1500)
    }
}

/// An answer as far as a load client cares.
#[derive(Debug)]
pub enum Answer<'a> {
    /// Done, nothing to return; also SET_KEYSPACE and SCHEMA_CHANGE.
    Done,
    /// Rows: the body from its metadata on, for [`rows`].
    Rows(&'a [u8]),
    /// A refusal.
    Error(ServerError),
}

const RESULT_VOID: i32 = 1;
const RESULT_ROWS: i32 = 2;
const RESULT_SET_KEYSPACE: i32 = 3;
const RESULT_SCHEMA_CHANGE: i32 = 5;

impl<'a> Answer<'a> {
    /// Classifies the body of an answer to QUERY or EXECUTE.
    pub fn parse(opcode: Opcode, flags: Flags, body: &'a [u8]) -> Result<Self, CqlError> {
        let mut reader = Reader::new(body);
        if flags.contains(Flags::TRACING) {
            reader.uuid()?;
        }
        if flags.contains(Flags::WARNING) {
            reader.string_list()?;
        }
        if flags.contains(Flags::CUSTOM_PAYLOAD) {
            reader.bytes_map()?;
        }
        match opcode {
            Opcode::Error => {
                Ok(Answer::Error(ServerError { code: reader.int()?, message: reader.string()?.to_owned() }))
            }
            Opcode::Result => match reader.int()? {
                RESULT_VOID | RESULT_SET_KEYSPACE | RESULT_SCHEMA_CHANGE => Ok(Answer::Done),
                RESULT_ROWS => Ok(Answer::Rows(reader.rest())),
                kind => Err(CqlError::Unexpected(format!("RESULT of kind {kind}"))),
            },
            other => Err(CqlError::Unexpected(format!("{other:?}"))),
        }
    }
}

/// One row: its cells in the order of the projection, `None` for null.
pub type Row<'a> = Vec<Option<&'a [u8]>>;

/// Parses all rows of an [`Answer::Rows`].
pub fn rows(body: &[u8]) -> Result<Vec<Row<'_>>, CqlError> {
    let mut reader = Reader::new(body);
    let columns = skip_metadata(&mut reader)?;
    let count = reader.count("rows")?;
    let mut rows = Vec::with_capacity(count.min(1024) as usize);
    for _ in 0..count {
        rows.push((0..columns).map(|_| reader.bytes()).collect::<Result<Row<'_>, _>>()?);
    }
    Ok(rows)
}

const GLOBAL_TABLES: i32 = 1;
const HAS_MORE: i32 = 2;
const NO_METADATA: i32 = 4;
const METADATA_CHANGED: i32 = 8;

/// Returns the number of columns.
fn skip_metadata(reader: &mut Reader<'_>) -> Result<u32, CqlError> {
    let flags = reader.int()?;
    let columns = reader.count("columns")?;
    if flags & HAS_MORE != 0 {
        reader.bytes()?;
    }
    if flags & METADATA_CHANGED != 0 {
        reader.short_bytes()?;
    }
    if flags & NO_METADATA != 0 {
        return Ok(columns);
    }
    let tables = if flags & GLOBAL_TABLES != 0 { 1 } else { columns };
    if flags & GLOBAL_TABLES != 0 {
        skip_strings(reader, 2)?;
    }
    for _ in 0..columns {
        if tables != 1 || flags & GLOBAL_TABLES == 0 {
            skip_strings(reader, 2)?;
        }
        skip_strings(reader, 1)?;
        skip_type(reader, 0)?;
    }
    Ok(columns)
}

fn skip_strings(reader: &mut Reader<'_>, n: usize) -> Result<(), CqlError> {
    for _ in 0..n {
        reader.string()?;
    }
    Ok(())
}

fn skip_type(reader: &mut Reader<'_>, depth: u32) -> Result<(), CqlError> {
    if depth > 16 {
        return Err(CqlError::Unexpected("type nested too deeply".into()));
    }
    match reader.short()? {
        0x00 => skip_strings(reader, 1),
        0x20 | 0x22 => skip_type(reader, depth + 1),
        0x21 => skip_type(reader, depth + 1).and_then(|()| skip_type(reader, depth + 1)),
        0x30 => {
            skip_strings(reader, 2)?;
            for _ in 0..reader.short()? {
                skip_strings(reader, 1)?;
                skip_type(reader, depth + 1)?;
            }
            Ok(())
        }
        0x31 => (0..reader.short()?).try_for_each(|_| skip_type(reader, depth + 1)),
        _ => Ok(()),
    }
}
