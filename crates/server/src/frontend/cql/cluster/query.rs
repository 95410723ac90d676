//! Queries that Afterglow sends for itself, on a connection of its own.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams};

use crate::frontend::cql::cluster::answer::error_code;
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::error::{CallError, ConnectError};
use crate::frontend::cql::cluster::rows::Fetched;

/// How long one control query may take that is sent alone.
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

/// Requests that are sent at once. Their answers share the connection, and may be long. So each may
/// take as long as one alone from when the one before has come.
pub(crate) struct QueryStep<'b> {
    backend: &'b Rc<Backend>,
    /// When the last answer came, or the first request was sent.
    heard: Cell<Instant>,
}

impl<'b> QueryStep<'b> {
    pub(crate) fn new(backend: &'b Rc<Backend>) -> QueryStep<'b> {
        QueryStep { backend, heard: Cell::new(Instant::now()) }
    }

    /// The rows of a query.
    pub(crate) async fn fetch(
        &self,
        text: &'static str,
    ) -> Result<Fetched, ControlConnectionError> {
        Fetched::new(&self.ask(text).await?).ok_or(ControlConnectionError::Refused(text))
    }

    /// As [`fetch`](Self::fetch); `None` if there is no such table. Any other refusal says nothing
    /// about what is in it.
    pub(crate) async fn fetch_if_there(
        &self,
        text: &'static str,
    ) -> Result<Option<Fetched>, ControlConnectionError> {
        let answer = self.ask(text).await?;
        if error_code(&answer) == Some(ErrorCode::Invalid) {
            return Ok(None);
        }
        Fetched::new(&answer).map(Some).ok_or(ControlConnectionError::Refused(text))
    }

    /// As [`fetch`](Self::fetch); `None` if the database does not tell, whatever it says why.
    pub(crate) async fn fetch_if_told(
        &self,
        text: &'static str,
    ) -> Result<Option<Fetched>, ControlConnectionError> {
        Ok(Fetched::new(&self.ask(text).await?))
    }

    async fn ask(&self, text: &'static str) -> Result<Envelope, ControlConnectionError> {
        self.call(Opcode::Query, query(self.backend.version(), text), text).await
    }

    /// The answer to a request, `what` in words.
    async fn call(
        &self,
        opcode: Opcode,
        body: Vec<u8>,
        what: &'static str,
    ) -> Result<Envelope, ControlConnectionError> {
        let mut answer = pin!(self.backend.call(opcode, Flags::NONE, body.into()));
        loop {
            let heard = self.heard.get();
            let left = (heard + QUERY_TIMEOUT).saturating_duration_since(Instant::now());
            if let Ok(answer) = compio::time::timeout(left, answer.as_mut()).await {
                self.heard.set(Instant::now());
                return answer.map_err(ControlConnectionError::Call);
            }
            if heard == self.heard.get() {
                return Err(ControlConnectionError::Timeout(what));
            }
        }
    }
}

/// The rows of a query.
pub(crate) async fn fetch(
    backend: &Rc<Backend>,
    text: &'static str,
) -> Result<Fetched, ControlConnectionError> {
    QueryStep::new(backend).fetch(text).await
}

/// As [`fetch`]; `None` if there is no such table: see [`QueryStep::fetch_if_there`].
pub(crate) async fn fetch_if_there(
    backend: &Rc<Backend>,
    text: &'static str,
) -> Result<Option<Fetched>, ControlConnectionError> {
    QueryStep::new(backend).fetch_if_there(text).await
}

/// The answer to a request, `what` in words.
pub(crate) async fn call(
    backend: &Rc<Backend>,
    opcode: Opcode,
    body: Vec<u8>,
    what: &'static str,
) -> Result<Envelope, ControlConnectionError> {
    QueryStep::new(backend).call(opcode, body, what).await
}

/// The body of a plain QUERY without values.
pub fn query(version: Version, text: &str) -> Vec<u8> {
    let mut body = Vec::new();
    Query { text, params: QueryParams::new(Consistency::One) }.encode(version, &mut body);
    body
}
