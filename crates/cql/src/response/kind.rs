//! The kinds of RESULT.

use crate::error::ProtocolError;
use crate::frame::notation::{Reader, Result};

/// The kind of a RESULT, its first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultKind {
    /// Nothing to say.
    Void = 1,
    /// Rows.
    Rows = 2,
    /// USE was executed.
    SetKeyspace = 3,
    /// A statement was prepared.
    Prepared = 4,
    /// The schema was altered.
    SchemaChange = 5,
}

impl ResultKind {
    /// The kind of a RESULT, looking at nothing else of the message.
    pub fn peek(message: &[u8]) -> Result<Self> {
        Self::read(&mut Reader::new(message))
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.int()? {
            1 => Ok(ResultKind::Void),
            2 => Ok(ResultKind::Rows),
            3 => Ok(ResultKind::SetKeyspace),
            4 => Ok(ResultKind::Prepared),
            5 => Ok(ResultKind::SchemaChange),
            other => Err(ProtocolError::new(format!("Unknown kind {other} of RESULT"))),
        }
    }
}
