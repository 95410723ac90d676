//! A request that is answered by the database, unchanged in both directions.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::Prepare;
use afterglow_cql::response::{self, ErrorDetail, Response, ResultBody, ResultKind};

use crate::frontend::cql::client::request::Request;
use crate::frontend::cql::cluster::answer::{error_code, parsed, result_kind};
use crate::frontend::cql::cluster::backend::{AnswerSink, AnswerWaiter, Backend};
use crate::frontend::cql::cluster::error::CallError;
use crate::frontend::cql::cluster::pool::Who;
use crate::frontend::cql::statements::prepared::{PrepareResult, Prepared};
use crate::metrics::Path;

/// How often a request is repeated because a server does not keep a prepared statement, beyond once
/// for each statement that it names. If the server's cache is full, a new statement may be evicted
/// first, until it has been asked for often enough to stay.
const REPEATS: usize = 8;

/// Boxes kept for the next requests, on each reactor.
const MOST_SPARE: usize = 256;

thread_local! {
    #[expect(clippy::vec_box, reason = "it is the boxes that are kept")]
    static SPARE: RefCell<Vec<Box<Relay>>> = const { RefCell::new(Vec::new()) };
}

/// A request on its way; its answer goes to the client as it comes. Its box is used again for
/// another one. An allocator that has many of this size under way takes a fiftieth of the CPU.
struct Relay(Option<OnItsWay>);

struct OnItsWay {
    request: Request,
    /// What it counts as.
    path: Path,
}

impl Relay {
    fn boxed(request: Request, path: Path) -> Box<Relay> {
        let parts = Some(OnItsWay { request, path });
        match SPARE.with_borrow_mut(Vec::pop) {
            Some(mut spare) => {
                spare.0 = parts;
                spare
            }
            None => Box::new(Relay(parts)),
        }
    }

    /// Keeps the box, after what it held is dropped.
    fn put_back(mut self: Box<Self>) {
        self.0 = None;
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MOST_SPARE {
                spare.push(self);
            }
        });
    }

    fn take(&mut self) -> OnItsWay {
        self.0.take().expect("a request is answered once")
    }
}

impl AnswerSink for Relay {
    fn answer(mut self: Box<Self>, backend: &Rc<Backend>, answer: Envelope) {
        let unprepared = error_code(&answer) == Some(ErrorCode::Unprepared);
        if unprepared || result_kind(&answer) == Some(ResultKind::SchemaChange) {
            let (backend, kept) = (backend.clone(), backend.keep());
            let OnItsWay { mut request, path } = self.take();
            compio::runtime::spawn(async move {
                let _kept = kept;
                match request.settle_unprepared(&backend, answer).await {
                    Ok(answer) => request.relay(answer, path).await,
                    Err(error) => request.fail(&error),
                }
            })
            .detach();
            return;
        }
        let OnItsWay { request, path } = self.0.as_mut().expect("a request is answered once");
        request.relay_in_place(&answer, *path);
        self.put_back();
    }

    fn fail(mut self: Box<Self>, error: &CallError) {
        let OnItsWay { mut request, path } = self.take();
        if matches!(error, CallError::Lost) && request.may_be_repeated() {
            request.note_repeated();
            // The connection that broke is still being closed.
            compio::runtime::spawn(async move { request.pass(path) }).detach();
        } else {
            request.fail(error);
        }
    }
}

impl Request {
    /// Sends it to the database as it is; the answer goes to the client as it is. Nothing is
    /// spawned while the connection is up.
    pub fn pass(self, path: Path) {
        match self.connection_now() {
            Some(backend) => self.pass_on(&backend, path),
            None => compio::runtime::spawn(async move {
                match self.connection().await {
                    Ok(backend) => self.pass_on(&backend, path),
                    Err(error) => self.fail(&error),
                }
            })
            .detach(),
        }
    }

    /// As [`Request::pass`], on a connection chosen by the caller.
    pub fn pass_on(self, backend: &Backend, path: Path) {
        let (header, body) = (self.header, self.body.clone());
        let waiter = AnswerWaiter::Relay(Relay::boxed(self, path));
        backend.send(header.opcode, header.flags, body, waiter);
    }

    /// Handles an answer that says UNPREPARED. It prepares the statement again on that server and
    /// repeats the request, once for each statement and [`REPEATS`] times more. Any other answer is
    /// returned. UNPREPARED is returned if the server no longer accepts the statement: the client
    /// prepares it and gets the reason.
    ///
    /// # Errors
    /// The request was repeated and has no answer.
    pub async fn settle_unprepared(
        &mut self,
        backend: &Rc<Backend>,
        mut answer: Envelope,
    ) -> Result<Envelope, CallError> {
        let mut attempts = self.prepared_count() + REPEATS;
        while let Some(id) = unprepared_id(&answer)
            && attempts > 0
        {
            attempts -= 1;
            let Some(prepared) = self.client().reactor_state.front_end.prepared.get(&id) else {
                break;
            };
            let Some(now) = self.prepare_again(backend, &prepared).await else { break };
            // From v5 on the server tells a client when its columns are not the present ones.
            if now.is_drifted(self.header.version) {
                self.ask_for_metadata();
            }
            answer = backend.call(self.header.opcode, self.header.flags, self.body.clone()).await?;
        }
        Ok(answer)
    }

    /// Prepares a statement again and remembers the answer. `None` if the server does not take it
    /// any more, or under another id, and where its client must say in which keyspace.
    pub async fn prepare_again(
        &self,
        backend: &Rc<Backend>,
        prepared: &Prepared,
    ) -> Option<Arc<Prepared>> {
        if prepared.is_shared() {
            return None;
        }
        let version = self.header.version;
        let front_end = &self.client().reactor_state.front_end;
        let generation = front_end.schema.generation();
        let named = prepared.names_keyspace && version >= Version::V5;
        let there = backend.keyspace().map(|keyspace| &**keyspace) == prepared.keyspace.as_deref();
        let other;
        let backend = if named || there || self.client().dedicated.borrow().is_some() {
            backend
        } else {
            let keyspace = prepared.keyspace.as_deref().map(Rc::from);
            let who = Who { keyspace, ..self.client().who(version) };
            let node = self.client().reactor_state.front_end.addresses.id(backend.target());
            other = self.client().reactor_state.pool.acquire_in(node, &who).await.ok()?;
            &other
        };
        let mut body = Vec::new();
        let keyspace = prepared.keyspace.as_deref().filter(|_| named);
        Prepare { text: &prepared.text, keyspace }.encode(version, &mut body);
        let answer = backend.call(Opcode::Prepare, Flags::NONE, body.into()).await.ok()?;
        let Some(Response::Result(ResultBody::Prepared(now))) = parsed(&answer) else {
            return None;
        };
        let (_, message) = response::split(&answer.header, &answer.body).ok()?;
        if now.id != &prepared.id[..] {
            return None;
        }
        front_end.prepared.remember(&PrepareResult {
            version,
            id: now.id,
            text: &prepared.text,
            keyspace: prepared.keyspace.as_deref(),
            names_keyspace: prepared.names_keyspace,
            message,
            generation,
        })
    }
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
