//! The kind of an answer of the database, without parsing all of it.

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_cql::response::{self, Response, ResultKind};

/// The error in an answer, if it is one.
pub fn error_code(answer: &Envelope) -> Option<ErrorCode> {
    if answer.header.opcode != Opcode::Error {
        return None;
    }
    let (_, message) = response::split(&answer.header, &answer.body).ok()?;
    Some(ErrorCode::from_i32(i32::from_be_bytes(*message.first_chunk()?)))
}

/// The kind of a RESULT, if the answer is one.
pub fn result_kind(answer: &Envelope) -> Option<ResultKind> {
    if answer.header.opcode != Opcode::Result {
        return None;
    }
    let (_, message) = response::split(&answer.header, &answer.body).ok()?;
    ResultKind::peek(message).ok()
}

/// An answer parsed whole; `None` when it is not understood.
pub fn parsed(answer: &Envelope) -> Option<Response<'_>> {
    let (_, message) = response::split(&answer.header, &answer.body).ok()?;
    Response::parse(&answer.header, message).ok()
}
