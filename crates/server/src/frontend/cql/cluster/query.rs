//! Queries that Afterglow sends for itself, on a connection of its own.

use std::rc::Rc;
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams};

use crate::frontend::cql::cluster::answer::error_code;
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::error::{CallError, ConnectError};
use crate::frontend::cql::cluster::rows::Fetched;

/// How long one control query may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the control connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlConnectionError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("no answer to {0:?}")]
    Timeout(&'static str),
    #[error("{0:?} was refused or its answer cannot be parsed")]
    Refused(&'static str),
    #[error("the database closed the connection")]
    Closed,
    #[error(
        "the node is in data centre {there}, and this instance is in the ring of {ring}: give it nodes of {ring} with --backend"
    )]
    Elsewhere { there: String, ring: String },
}

/// The rows of a query.
pub(crate) async fn fetch(
    backend: &Rc<Backend>,
    text: &'static str,
) -> Result<Fetched, ControlConnectionError> {
    let answer = call(backend, Opcode::Query, query(backend.version(), text), text).await?;
    Fetched::new(&answer).ok_or(ControlConnectionError::Refused(text))
}

/// As [`fetch`]; `None` if there is no such table. Any other refusal says nothing about what is in
/// it.
pub(crate) async fn fetch_if_there(
    backend: &Rc<Backend>,
    text: &'static str,
) -> Result<Option<Fetched>, ControlConnectionError> {
    let answer = call(backend, Opcode::Query, query(backend.version(), text), text).await?;
    if error_code(&answer) == Some(ErrorCode::Invalid) {
        return Ok(None);
    }
    Fetched::new(&answer).map(Some).ok_or(ControlConnectionError::Refused(text))
}

/// As [`fetch`]; `None` if the database does not tell, for whatever reason it says.
pub(crate) async fn fetch_if_told(
    backend: &Rc<Backend>,
    text: &'static str,
) -> Result<Option<Fetched>, ControlConnectionError> {
    let answer = call(backend, Opcode::Query, query(backend.version(), text), text).await?;
    Ok(Fetched::new(&answer))
}

/// The answer to a request, `what` in words.
pub(crate) async fn call(
    backend: &Rc<Backend>,
    opcode: Opcode,
    body: Vec<u8>,
    what: &'static str,
) -> Result<Envelope, ControlConnectionError> {
    compio::time::timeout(QUERY_TIMEOUT, backend.call(opcode, Flags::NONE, body.into()))
        .await
        .map_err(|_| ControlConnectionError::Timeout(what))?
        .map_err(ControlConnectionError::Call)
}

/// The body of a plain QUERY without values.
pub fn query(version: Version, text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    Query { text, params: QueryParams::new(Consistency::One) }.encode(version, &mut body);
    body
}
