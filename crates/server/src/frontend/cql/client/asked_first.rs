//! A text that is not understood is prepared before it is sent: to prepare a statement changes
//! nothing.
//!
//! 1. PREPARE with the same text, on a connection that its client's requests go to.
//! 2. A syntax error is the client's answer: the text is not sent. So a slip of the pen closes no
//!    gate, and nobody else notices it.
//! 3. So is an answer that says that the node cannot do it now, or no answer: nothing has happened,
//!    where the text itself would be of unknown outcome.
//! 4. After any other answer the text is sent as a write that may touch all that it may name. The
//!    database may refuse it still: other errors depend on the schema, and on the size of the text.
//!
//! Texts in a BATCH are not asked about, nor are long ones.
//!
//! A text that begins with USE is never sent, unless it is a plain one ([`refuse_use`]).

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode};
use afterglow_cql::message::{Prepare, Request as Message};
use afterglow_cql::response::ErrorBody;
use afterglow_rowcache::write_scope::WriteScope;

use crate::frontend::cql::client::request::{Operation, Request};
use crate::frontend::cql::cluster::answer::error_code;
use crate::frontend::cql::cluster::error::CallError;
use crate::metrics::Path;

/// Longer texts are not asked about: servers keep no statement that is too long.
const LONGEST: usize = 64 << 10;

/// Whether the database is to be asked about a request that touches this.
pub(in crate::frontend::cql) fn is_due(request: &Request, touched: &WriteScope) -> bool {
    touched.doubtful && may_be_asked_about(request)
}

fn may_be_asked_about(request: &Request) -> bool {
    matches!(request.asked, Operation::Query(_)) && request.body.len() <= LONGEST
}

/// Answers a text that begins with USE and is no plain one, which is never executed: a connection
/// that clients share would leave their keyspace, and one of the client's own the keyspace that we
/// know of. The database may say first what is wrong with it.
pub(super) async fn refuse_use(request: Request) {
    let asked = if may_be_asked_about(&request) { pass(request).await } else { Some(request) };
    let Some(request) = asked else { return };
    request.into_responder().error(&ErrorBody::new(
        ErrorCode::Invalid,
        "Afterglow takes USE with the name of a keyspace and nothing else",
    ));
}

/// Asks about the text. Gives the request back, unless its client has its answer.
pub(in crate::frontend::cql) async fn pass(request: Request) -> Option<Request> {
    match prepare(&request).await {
        Ok(answer) if !ends(&answer) => Some(request),
        Ok(answer) => {
            request.relay_plain(&answer, Path::Write);
            None
        }
        Err(error) => {
            // That the connection was lost says nothing of the text, which was not sent.
            let unsent = CallError::NotSent("the connection to the database was lost".into());
            request.fail(match &error {
                CallError::Lost => &unsent,
                CallError::NotSent(_) => &error,
            });
            None
        }
    }
}

async fn prepare(request: &Request) -> Result<Envelope, CallError> {
    let Ok((_, Message::Query(query))) = request.message() else {
        return Err(CallError::NotSent("it is no QUERY".into()));
    };
    let mut body = Vec::new();
    let keyspace = query.params.keyspace;
    Prepare { text: query.text, keyspace }.encode(request.header.version, &mut body);
    // Its answer may be the client's, who wants the id of a trace with it.
    let traced = request.header.flags.contains(Flags::TRACING);
    let flags = if traced { Flags::TRACING } else { Flags::NONE };
    let backend = request.connection().await?;
    backend.call(Opcode::Prepare, flags, body.into()).await
}

/// Whether what PREPARE was answered is the answer to the text itself.
fn ends(answer: &Envelope) -> bool {
    matches!(
        error_code(answer),
        Some(
            ErrorCode::Syntax
                | ErrorCode::Overloaded
                | ErrorCode::Server
                | ErrorCode::IsBootstrapping
        )
    )
}
