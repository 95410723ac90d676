//! Statements that this instance runs for itself: those of its lease and of its ring's tables.

use std::fmt;
use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode};
use afterglow_cql::message::{Consistency, Query, QueryParams};

use crate::frontend::cql::{Backend, Fetched, refusal};

/// How long one of them may take; after that it counts as failed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a statement has no result, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoResult {
    /// The database's, if it has refused the statement.
    pub(super) code: Option<ErrorCode>,
    words: String,
}

impl fmt::Display for NoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl<W: Into<String>> From<W> for NoResult {
    fn from(words: W) -> NoResult {
        NoResult { code: None, words: words.into() }
    }
}

/// What the database answers. Lightweight transactions are those of all data centres.
pub(super) async fn call(
    backend: &Backend,
    text: &str,
    consistency: Consistency,
) -> Result<Envelope, NoResult> {
    let mut params = QueryParams::new(consistency);
    params.serial_consistency = Some(Consistency::Serial);
    let mut body = Vec::new();
    Query { text, params }.encode(backend.version(), &mut body);
    let answer =
        compio::time::timeout(TIMEOUT, backend.call(Opcode::Query, Flags::NONE, body.into())).await;
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        _ => Err(format!("node {} does not answer", backend.target()).into()),
    }
}

/// Rows.
pub(super) async fn query(
    backend: &Backend,
    text: &str,
    consistency: Consistency,
) -> Result<Fetched, NoResult> {
    let answer = call(backend, text, consistency).await?;
    Fetched::new(&answer).ok_or_else(|| said(&answer))
}

/// A statement without rows.
pub(super) async fn execute(
    backend: &Backend,
    text: &str,
    consistency: Consistency,
) -> Result<(), NoResult> {
    let answer = call(backend, text, consistency).await?;
    match answer.header.opcode {
        Opcode::Result => Ok(()),
        _ => Err(said(&answer)),
    }
}

fn said(answer: &Envelope) -> NoResult {
    match refusal(answer) {
        Some((code, said)) => {
            NoResult { code: Some(code), words: format!("the database says: {said}") }
        }
        None => "the database's answer cannot be read".into(),
    }
}

/// What to do when the database answers a statement about the lease or the ring's map with this.
pub(super) fn remedy(code: Option<ErrorCode>) -> &'static str {
    match code {
        Some(ErrorCode::Unauthorized) => {
            "Let the user of --backend-credentials SELECT and MODIFY the keyspace `afterglow`, and CREATE it where it is not there"
        }
        Some(code) if lacks_nodes(code) => {
            "Lightweight transactions need most replicas of the keyspace `afterglow`: see which nodes are away, or give the keyspace no more replicas than there are nodes (ALTER KEYSPACE)"
        }
        Some(ErrorCode::Invalid | ErrorCode::Config) => {
            "The keyspace `afterglow` must take lightweight transactions. If it was dropped, stop all instances and start them again: one makes it when it starts"
        }
        Some(code) if code != ErrorCode::Syntax => {
            "It may pass by itself; where it does not, the database's log says more"
        }
        _ => {
            "An instance makes the keyspace `afterglow` when it starts, where it may, and needs SELECT and MODIFY on it"
        }
    }
}

/// Whether the database answers so while too few nodes are there. That may go away by itself.
pub(super) fn lacks_nodes(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Unavailable
            | ErrorCode::ReadTimeout
            | ErrorCode::WriteTimeout
            | ErrorCode::ReadFailure
            | ErrorCode::WriteFailure
            | ErrorCode::CasWriteUnknown
    )
}

/// Whether the database answers so for a reason that does not go away by itself.
pub(super) fn stays(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Unauthorized | ErrorCode::Invalid | ErrorCode::Config | ErrorCode::Syntax
    )
}
