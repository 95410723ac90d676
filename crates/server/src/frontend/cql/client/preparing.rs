//! Passes PREPARE on, and remembers what the id stands for before the client has it.
//!
//! A node may stand still without anybody knowing: this request is the first that it does not
//! answer. To prepare a statement changes nothing, so another node is asked beside it, and the
//! first answer counts.

use std::rc::Rc;

use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_cql::message::Request as Message;
use afterglow_cql::response::{self, Response, ResultBody};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::frontend::cql::client::request::{Request, session_keyspace};
use crate::frontend::cql::client::state::Client;
use crate::frontend::cql::cluster::answer::parsed;
use crate::frontend::cql::cluster::error::{CallError, HESITATION};
use crate::frontend::cql::statements::prepared::PrepareResult;
use crate::metrics::Path;

/// No more nodes than these are asked to prepare one statement.
const MOST_ASKED: usize = 3;

/// Passes PREPARE on and remembers what the id stands for before the client has it.
pub(super) async fn prepare(mut request: Request) {
    let client = request.client().clone();
    let generation = client.reactor_state.front_end.schema.generation();
    match ask(&mut request).await {
        Ok(answer) => {
            remember(&client, &request, &answer, generation);
            request.relay_plain(&answer, Path::Pass);
        }
        Err(error) => request.fail(&error),
    }
}

/// The first answer of the nodes that are asked. As with any read a lost connection is no answer
/// yet. Nor is an error, for [`HESITATION`]: a node that was only slow may take the text that
/// another one refuses, as one does that is overloaded or has not heard of the table.
async fn ask(request: &mut Request) -> Result<Envelope, CallError> {
    let first = request.connection().await?;
    let mut asked = vec![Rc::clone(&first)];
    let mut answers = FuturesUnordered::new();
    let (mut next, mut refused) = (Some(first), None);
    loop {
        if let Some(backend) = next.take() {
            let (opcode, flags) = (request.header.opcode, request.header.flags);
            let body = request.body.clone();
            answers.push(async move { backend.call(opcode, flags, body).await });
        }
        match compio::time::timeout(HESITATION, answers.next()).await {
            Ok(Some(Ok(answer))) if answer.header.opcode != Opcode::Error => return Ok(answer),
            Ok(Some(Ok(answer))) => refused = Some(answer),
            Ok(Some(Err(_))) if refused.is_some() || !answers.is_empty() => {}
            Ok(Some(Err(CallError::Lost))) if request.may_be_repeated() => break,
            Ok(Some(Err(error))) => return Err(error),
            Ok(None) => unreachable!("a call is under way until it is answered"),
            Err(_) if let Some(answer) = refused => return Ok(answer),
            Err(_) => {}
        }
        if answers.is_empty()
            && let Some(answer) = refused
        {
            return Ok(answer);
        }
        if asked.len() < MOST_ASKED && asked.iter().all(|backend| backend.is_silent()) {
            next = request.connection_beside(&asked);
            asked.extend(next.iter().map(|backend| Rc::clone(backend)));
        }
    }
    request.note_repeated();
    request.call_once().await
}

fn remember(client: &Client, request: &Request, answer: &Envelope, generation: u64) {
    let Ok((_, Message::Prepare(asked))) = request.message() else { return };
    let Some(Response::Result(ResultBody::Prepared(prepared))) = parsed(answer) else { return };
    let Ok((_, message)) = response::split(&answer.header, &answer.body) else { return };
    client.reactor_state.front_end.prepared.remember(&PrepareResult {
        version: answer.header.version,
        id: prepared.id,
        text: asked.text,
        keyspace: session_keyspace(asked.keyspace, request.keyspace()),
        names_keyspace: asked.keyspace.is_some(),
        message,
        generation,
    });
}
