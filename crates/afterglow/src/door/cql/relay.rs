//! A request that is answered by the database, unchanged in both directions.

use std::rc::Rc;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::Prepare;
use afterglow_cql::response::{ErrorDetail, Response, ResultBody, ResultKind};

use super::backend::{Backend, CallError, error_code, parsed, result_kind};
use super::prepared::Prepared;
use super::request::Request;
use crate::metrics::Path;

/// A request on its way; its answer goes to the client as it comes.
pub struct Relay {
    /// The request.
    pub request: Request,
    /// What it counts as.
    pub path: Path,
}

impl Relay {
    /// The answer is here, from that connection.
    pub fn answer(self, backend: &Rc<Backend>, answer: Envelope) {
        let unprepared = error_code(&answer) == Some(ErrorCode::Unprepared);
        if unprepared || result_kind(&answer) == Some(ResultKind::SchemaChange) {
            let backend = backend.clone();
            compio::runtime::spawn(async move {
                let answer = self.request.settle_unprepared(&backend, answer).await;
                match answer {
                    Ok(answer) => self.request.relay(answer, self.path).await,
                    Err(error) => self.request.fail(&error),
                }
            })
            .detach();
            return;
        }
        self.request.relay_plain(&answer, self.path);
    }

    /// There will be no answer.
    pub fn fail(self, error: &CallError) {
        self.request.fail(error);
    }
}

impl Request {
    /// Has an answer that says UNPREPARED settled: prepares the statement again on that server and repeats the request, once
    /// for each statement. Any other answer is given back, and so is UNPREPARED where the client must hear of it.
    ///
    /// # Errors
    /// The request was repeated and has no answer.
    pub async fn settle_unprepared(
        &self,
        backend: &Rc<Backend>,
        mut answer: Envelope,
    ) -> Result<Envelope, CallError> {
        let mut attempts = self.prepared_count();
        while let Some(id) = unprepared_id(&answer)
            && attempts > 0
        {
            attempts -= 1;
            let Some(prepared) = self.client().here.door.prepared.get(&id) else { break };
            if !self.prepare_again(backend, &prepared).await {
                break;
            }
            answer = backend.call(self.header.opcode, self.header.flags, self.body.clone()).await?;
        }
        Ok(answer)
    }

    /// Prepares a statement again; false when the client must do it, because it would get rows it does not expect.
    async fn prepare_again(&self, backend: &Rc<Backend>, prepared: &Prepared) -> bool {
        let version = self.header.version;
        let named = prepared.names_keyspace && version >= Version::V5;
        let there = backend.keyspace().map(|keyspace| &**keyspace) == prepared.keyspace.as_deref();
        let other;
        let backend = if named || there || self.client().dedicated.borrow().is_some() {
            backend
        } else {
            let keyspace = prepared.keyspace.as_deref().map(Rc::from);
            match self.client().here.pool.acquire(version, keyspace).await {
                Ok(connection) => {
                    other = connection;
                    &other
                }
                Err(_) => return false,
            }
        };
        let mut body = Vec::new();
        let keyspace = prepared.keyspace.as_deref().filter(|_| named);
        Prepare { text: &prepared.text, keyspace }.encode(version, &mut body);
        let Ok(answer) = backend.call(Opcode::Prepare, Flags::NONE, body.into()).await else { return false };
        let Some(Response::Result(ResultBody::Prepared(now))) = parsed(&answer) else { return false };
        if now.id != &prepared.id[..] {
            return false;
        }
        // v5 tells a client when the columns have changed. In v4 a client that skips metadata would read new rows with old
        // columns, unless they are the same: it must prepare again itself.
        version >= Version::V5
            || prepared.answer(version).is_some_and(|then| same_message(&then.message, &answer))
    }
}

/// Whether the server's answer to PREPARE is what the client has.
fn same_message(then: &[u8], answer: &Envelope) -> bool {
    afterglow_cql::response::split(&answer.header, &answer.body).is_ok_and(|(_, message)| message == then)
}

/// The id that an answer says is not prepared.
fn unprepared_id(answer: &Envelope) -> Option<Vec<u8>> {
    if error_code(answer) != Some(ErrorCode::Unprepared) {
        return None;
    }
    match parsed(answer)? {
        Response::Error(error) => match error.detail {
            ErrorDetail::Unprepared { id } => Some(id.to_vec()),
            _ => None,
        },
        _ => None,
    }
}
