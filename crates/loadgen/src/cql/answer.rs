//! What a server answered, as far as a load client cares.

use afterglow_cql::{
    frame::{Header, Opcode, Version},
    response::{self, ErrorBody, ResultBody, ResultKind, Rows},
};

use super::error::{CqlError, ServerError};

/// An answer to QUERY or EXECUTE.
#[derive(Debug)]
pub enum Answer<'a> {
    /// Done, nothing to return.
    Done,
    /// Rows: the message, to be looked into by [`rows`] if at all.
    Rows(&'a [u8]),
    /// A refusal.
    Error(ServerError),
}

impl<'a> Answer<'a> {
    /// Classifies an answer by its header and kind.
    pub fn parse(header: &Header, body: &'a [u8]) -> Result<Self, CqlError> {
        let (_, message) = response::split(header, body)?;
        match header.opcode {
            Opcode::Result => match ResultKind::peek(message)? {
                ResultKind::Rows => Ok(Answer::Rows(message)),
                ResultKind::Prepared => Err(CqlError::Unexpected("PREPARED".to_owned())),
                _ => Ok(Answer::Done),
            },
            Opcode::Error => {
                let error = ErrorBody::parse(header.version, message)?;
                let (code, message) = (error.code.as_i32(), error.message.to_owned());
                Ok(Answer::Error(ServerError { code, message }))
            }
            other => Err(CqlError::Unexpected(other.to_string())),
        }
    }
}

/// The rows of an [`Answer::Rows`].
pub fn rows(version: Version, message: &[u8]) -> Result<Rows<'_>, CqlError> {
    match ResultBody::parse(version, message)? {
        ResultBody::Rows(rows) => Ok(rows),
        other => Err(CqlError::Unexpected(format!("{other:?}"))),
    }
}
