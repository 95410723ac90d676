//! Dispatch: decides who answers a client's message.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::error::ProtocolError;
use afterglow_cql::frame::{Flags, Header, Opcode, Version};
use afterglow_cql::message::{
    self, Batch, Consistency, QueryParams, Request as Message, StatementRef,
};
use afterglow_cql::plan::Plan;
use afterglow_cql::response::{ErrorBody, Response, ResultBody};
use afterglow_cql::system::SystemQuery;
use bytes::Bytes;

use crate::frontend::cql::client::asked_first::refuse_use;
use crate::frontend::cql::client::preparing::prepare;
use crate::frontend::cql::client::request::{Operation, Request, session_keyspace};
use crate::frontend::cql::client::state::{Client, Responder};
use crate::frontend::cql::cluster::answer::parsed;
use crate::frontend::cql::cluster::backend::KeptBackend;
use crate::frontend::cql::cluster::error::{CallError, ConnectError};
use crate::frontend::cql::cluster::events::Cluster;
use crate::frontend::cql::cluster::pool::Who;
use crate::frontend::cql::hex::hex;
use crate::frontend::cql::router::{Router, pass_path};
use crate::frontend::cql::statements::prepared::Prepared;
use crate::frontend::cql::statements::{keyspaces, local};
use crate::metrics::{Path, RequestKind};

/// Why a request is answered at once.
pub enum Refusal {
    /// It breaks the protocol.
    Protocol(ProtocolError),
    /// No statement has this id.
    Unprepared(Bytes),
}

impl From<ProtocolError> for Refusal {
    fn from(error: ProtocolError) -> Self {
        Refusal::Protocol(error)
    }
}

/// As what a request counts.
pub fn kind_of(opcode: Opcode) -> RequestKind {
    match opcode {
        Opcode::Query => RequestKind::Query,
        Opcode::Prepare => RequestKind::Prepare,
        Opcode::Execute => RequestKind::Execute,
        Opcode::Batch => RequestKind::Batch,
        _ => RequestKind::Session,
    }
}

/// Takes a QUERY, PREPARE, EXECUTE or BATCH, and what was understood of it; `router` decides how it
/// is answered.
pub fn request(
    header: Header,
    body: Bytes,
    understood: Result<Operation, Refusal>,
    responder: Responder,
    router: &dyn Router,
) {
    let client = responder.client().clone();
    let counters = &client.reactor_state.metrics.requests;
    counters.inc(kind_of(header.opcode));
    match understood {
        Ok(asked) => {
            let mut request = Request::new(header, body, asked, responder);
            if let Operation::Execute(prepared, _) = &request.asked
                && prepared.is_drifted(header.version)
            {
                request.ask_for_metadata();
            }
            decide(request, router);
        }
        Err(Refusal::Protocol(error)) => {
            counters.inc(RequestKind::Malformed);
            responder.protocol_error(&error);
        }
        Err(Refusal::Unprepared(id)) => unprepared(responder, &id),
    }
}

/// Has the client prepare a statement.
pub fn unprepared(responder: Responder, id: &[u8]) {
    responder.error(&ErrorBody::unprepared(&unknown_id(id), id));
}

/// Whether a request changes its connection's keyspace.
pub fn is_use(understood: &Result<Operation, Refusal>) -> bool {
    match understood {
        Ok(Operation::Query(plan) | Operation::Execute(_, plan)) => matches!(**plan, Plan::Use(_)),
        _ => false,
    }
}

/// What a request asks for, in the keyspace that its client is in now.
pub fn understand(client: &Client, header: &Header, body: &[u8]) -> Result<Operation, Refusal> {
    let session = client.keyspace();
    let (_, message) = message::parse(header, body)?;
    Ok(match message {
        Message::Query(query) => {
            check_params(client, header, &query.params)?;
            let named = named_keyspace(query.params.keyspace, || highest(client));
            let keyspace = session_keyspace(named, session.as_deref());
            Operation::Query(client.reactor_state.plan(query.text, keyspace))
        }
        Message::Execute(execute) => {
            check_params(client, header, &execute.params)?;
            let prepared = known(client, execute.id)?;
            let plan = client.reactor_state.plan_of(&prepared);
            Operation::Execute(prepared, plan)
        }
        Message::Batch(batch) => {
            let named = named_keyspace(batch.params.keyspace, || highest(client));
            Operation::Batch(statements(
                client,
                &batch,
                session_keyspace(named, session.as_deref()),
            )?)
        }
        _ => Operation::Prepare,
    })
}

/// The highest version that the database speaks.
fn highest(client: &Client) -> Version {
    match client.reactor_state.front_end.cluster() {
        Cluster::Known { version, .. } => version,
        Cluster::Unknown => Version::MAX,
    }
}

/// The keyspace that a request names, as the database understands it. Releases that speak v5
/// respect it in every protocol version (seen on 4.1.9), older releases in none (seen on 3.11.19).
/// Few requests name one: only these ask for the version, which all reactors share.
fn named_keyspace(named: Option<&str>, highest: impl FnOnce() -> Version) -> Option<&str> {
    named.filter(|_| highest() >= Version::V5)
}

/// What servers refuse before they look at the statement, so that hits and system tables must not
/// answer it either.
fn check_params(
    client: &Client,
    header: &Header,
    params: &QueryParams<'_>,
) -> Result<(), ProtocolError> {
    // 4.0 brought the level, and v5.
    if params.consistency == Consistency::NodeLocal && highest(client) < Version::V5 {
        let level = Consistency::NodeLocal as u16;
        return Err(ProtocolError::new(format!("Unknown code {level} for a consistency level")));
    }
    match params.page_size {
        // With a trace's id if one is asked for, so that they do it themselves then.
        Some(0) if !header.flags.contains(Flags::TRACING) => {
            Err(ProtocolError::new("The page size cannot be 0"))
        }
        _ => Ok(()),
    }
}

type Statements = Vec<(Option<Arc<Prepared>>, Arc<Plan>)>;

fn statements(
    client: &Client,
    batch: &Batch<'_>,
    keyspace: Option<&str>,
) -> Result<Statements, Refusal> {
    let schema = client.reactor_state.schema();
    let statement = |statement| match statement {
        StatementRef::Text(text) => Ok((None, client.reactor_state.plan(text, keyspace))),
        StatementRef::Prepared(id) => {
            let prepared = known(client, id)?;
            let plan = client.reactor_state.front_end.prepared.plan(&prepared, &schema);
            Ok((Some(prepared), plan))
        }
    };
    batch.statements().map(|s| statement(s.statement)).collect()
}

/// A statement that was prepared through us. Unknown ids are never passed on: nobody could tell
/// what they do to cached rows.
fn known(client: &Client, id: &[u8]) -> Result<Arc<Prepared>, Refusal> {
    client
        .reactor_state
        .front_end
        .prepared
        .get(id)
        .ok_or_else(|| Refusal::Unprepared(Bytes::copy_from_slice(id)))
}

/// Cassandra's words.
fn unknown_id(id: &[u8]) -> String {
    format!(
        "Prepared query with ID {} not found (either the query was not prepared on this host (maybe the host has been restarted?) or you have prepared too many queries and it has been evicted from the internal cache)",
        hex(id)
    )
}

/// What is answered without the router.
enum OwnWay {
    Use(Rc<str>),
    OddUse,
    Local(Box<SystemQuery>),
    Keyspaces,
}

impl OwnWay {
    fn of(plan: &Plan, request: &Request) -> Option<OwnWay> {
        match plan {
            Plan::Use(keyspace) => return Some(OwnWay::Use(Rc::from(keyspace.as_str()))),
            Plan::OddUse => return Some(OwnWay::OddUse),
            _ => {}
        }
        if let Some(question) = local::asked(plan) {
            return Some(OwnWay::Local(Box::new(question.clone())));
        }
        keyspaces::asked(plan, request).then_some(OwnWay::Keyspaces)
    }
}

/// Sends the request on its way.
fn decide(request: Request, router: &dyn Router) {
    let own = match &request.asked {
        Operation::Prepare => return spawn(prepare(request)),
        Operation::Query(plan) | Operation::Execute(_, plan) => OwnWay::of(plan, &request),
        Operation::Batch(_) => None,
    };
    match own {
        Some(OwnWay::Use(keyspace)) => return spawn(use_keyspace(request, keyspace)),
        Some(OwnWay::OddUse) => return spawn(refuse_use(request)),
        Some(OwnWay::Local(question)) => return spawn(local::answer(request, *question)),
        Some(OwnWay::Keyspaces) => return spawn(keyspaces::answer(request)),
        None => {}
    }
    if request.client().reactor_state.front_end.cluster().is_guarded() {
        if !router.may_be_bypassed() {
            let text = "the database requires a login, and this instance of a ring has none: set \
                        --backend-credentials";
            return request
                .into_responder()
                .error(&ErrorBody::new(ErrorCode::IsBootstrapping, text));
        }
        let path = pass_path(&request.asked);
        return request.pass(path);
    }
    // A bug behind this seam costs its request, which is answered with an error when it is dropped,
    // not the client's connection.
    match std::panic::catch_unwind(AssertUnwindSafe(|| router.route(request))) {
        Ok(Some(later)) => spawn(later),
        Ok(None) => {}
        Err(_) => {
            tracing::error!("a request failed because of a bug in Afterglow: please report it")
        }
    }
}

fn spawn(task: impl Future<Output = ()> + 'static) {
    compio::runtime::spawn(task).detach();
}

/// Sends USE to a connection that is in that keyspace already. There it changes nothing and gets
/// the database's own answer. The connection that other clients share stays in their keyspace.
async fn use_keyspace(mut request: Request, keyspace: Rc<str>) {
    let client = request.client().clone();
    let dedicated = client.dedicated.borrow().clone();
    let connection = match dedicated {
        Some(backend) => Ok(backend.keep()),
        None => in_keyspace(&client, request.header.version, keyspace).await,
    };
    let answer = match connection {
        Ok(backend) => {
            match backend
                .call(request.header.opcode, request.header.flags, request.body.clone())
                .await
            {
                Ok(answer) => request.settle_unprepared(&backend, answer).await,
                Err(error) => Err(error),
            }
        }
        Err(ConnectError::Refused { answer, .. }) => Ok(answer),
        Err(error) => Err(CallError::NotSent(error.to_string().into())),
    };
    match answer {
        Ok(answer) => {
            if let Some(Response::Result(ResultBody::SetKeyspace(now))) = parsed(&answer) {
                client.keyspace.replace(Some(now.into()));
            }
            request.relay_plain(&answer, Path::Pass);
        }
        Err(error) => request.fail(&error),
    }
}

async fn in_keyspace(
    client: &Client,
    version: Version,
    keyspace: Rc<str>,
) -> Result<KeptBackend, ConnectError> {
    let who = Who { keyspace: Some(keyspace), ..client.who(version) };
    let mut last = None;
    let mut nodes = client.reactor_state.candidates(None).nodes;
    nodes.sort_by_key(|node| client.reactor_state.pool.doubt(*node));
    for node in nodes {
        match client.reactor_state.pool.acquire(node, &who).await {
            Err(error) if error.leaves_others() => last = Some(error),
            decided => return decided,
        }
    }
    Err(last.unwrap_or(ConnectError::Unreachable {
        address: "-".into(),
        reason: "no node is known".into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_in_a_request_counts_where_the_database_looks_at_it() {
        assert_eq!(named_keyspace(Some("ks"), || Version::V5), Some("ks"));
        assert_eq!(
            named_keyspace(Some("ks"), || Version::V4),
            None,
            "it is executed in the session's"
        );
        assert_eq!(named_keyspace(None, || unreachable!("none is named")), None);
    }
}
