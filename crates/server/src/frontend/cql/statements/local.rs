//! `system.local`, `system.peers` and `system.peers_v2`: answered here, so that drivers connect to
//! Afterglow only.

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams, Request as Message, Values};
use afterglow_cql::plan::Plan;
use afterglow_cql::response::{self, ErrorBody, ErrorDetail, encode_extras};
use afterglow_cql::system::{SystemError, SystemQuery, SystemRows, SystemTable, SystemTables};
use uuid::Uuid;

use crate::frontend::cql::bound::bound_by_place;
use crate::frontend::cql::client::request::Request;
use crate::frontend::cql::cluster::answer::error_code;
use crate::frontend::cql::cluster::error::{CallError, HESITATION};
use crate::frontend::cql::cluster::routes::Candidates;
use crate::frontend::cql::cluster::system_read;
use crate::metrics::Path;

/// The query over these tables that a plan is, if it is one.
pub fn asked(plan: &Plan) -> Option<&SystemQuery> {
    match plan {
        Plan::SystemRead(query) => Some(query),
        _ => None,
    }
}

/// Answers a query over these tables, with the database's present values (its schema version, say),
/// or the last known while it is away or silent.
pub async fn answer(mut request: Request, question: SystemQuery) {
    let front_end = request.client().reactor_state.front_end.clone();
    if question.table() != SystemTable::Local {
        request.client().asked_for_peers.set(true);
    }
    // Always of one node: drivers take another's row for another database.
    let first = Candidates {
        nodes: front_end.topology.current().first().into_iter().collect(),
        preferred: 1,
    };
    let refreshed = async {
        let (backend, _) = request.connection_among(&first).await?;
        // Its answer may never come, and the tables are known without it.
        if !backend.is_silent() || front_end.system.read().is_none() {
            system_read::load(&front_end, &backend).await;
        }
        Ok(())
    };
    let is_known = front_end.system.read().is_some();
    // In time; else what is known counts.
    let outcome = match is_known {
        true => compio::time::timeout(HESITATION, refreshed).await.ok(),
        false => Some(refreshed.await),
    };
    let is_there = matches!(outcome, Some(Ok(())));
    match outcome {
        Some(Err(error)) if front_end.system.read().is_none() => return request.fail(&error),
        _ => {}
    }
    let Some(tables) = front_end.system.read().clone() else {
        return request.fail(&CallError::NotSent("system.local could not be read".into()));
    };
    let client = request.client();
    let tables = match &front_end.ring_view() {
        Some(ring) => {
            tables.with_ring(front_end.advertised(), ring, client.habits.get(), client.ring.version)
        }
        None => tables.shown(front_end.advertised(), front_end.config.host_id),
    };
    if !tables.has(question.table()) {
        // The database has no such table either, and says so in its own words.
        return request.pass(Path::Pass);
    }
    let traced = request.header.flags.contains(Flags::TRACING);
    let mut trace = None;
    // Only a server can trace, and say why it refuses what it does.
    let found = evaluate(&request, &question, &tables);
    if traced || (is_there && may_be_refused(&request, &question, &found)) {
        match ask(&mut request, traced).await {
            Some(Ok(answer)) if traced && answer.header.opcode == Opcode::Error => {
                return request.relay_plain(&answer, Path::Pass);
            }
            Some(Ok(answer)) if is_refusal(&answer) => {
                return request.relay_plain(&answer, Path::Pass);
            }
            Some(Ok(answer)) => trace = trace_of(&answer),
            Some(Err(error)) if traced => return request.fail(&error),
            Some(Err(_)) | None => {}
        }
    }
    respond(request, found, trace);
}

/// The database's answer. `None`: it is away or silent, and it is not `needed`.
async fn ask(request: &mut Request, needed: bool) -> Option<Result<Envelope, CallError>> {
    match needed {
        true => Some(request.call().await),
        false => compio::time::timeout(HESITATION, request.call()).await.ok(),
    }
}

/// Whether the database refuses the query itself. That it cannot answer it now says nothing of it.
fn is_refusal(answer: &Envelope) -> bool {
    matches!(
        error_code(answer),
        Some(
            ErrorCode::Invalid
                | ErrorCode::Syntax
                | ErrorCode::Unauthorized
                | ErrorCode::Config
                | ErrorCode::Protocol
                | ErrorCode::Unavailable
        )
    )
}

type Found = Result<SystemRows, SystemError>;

fn evaluate(request: &Request, question: &SystemQuery, tables: &SystemTables) -> Found {
    let values = params(request).map_or(Values::NONE, |params| params.values);
    evaluate_with(&values, question, tables)
}

fn evaluate_with(values: &Values<'_>, question: &SystemQuery, tables: &SystemTables) -> Found {
    question.evaluate(tables, bound_by_place(values))
}

/// Whether a server may refuse the query, for its words, its values or its level. Which levels it
/// takes is partly for its operator to say. `found`: what it is answered here.
fn may_be_refused(request: &Request, question: &SystemQuery, found: &Found) -> bool {
    let Some(params) = params(request) else { return true };
    let level = matches!(
        params.consistency,
        Consistency::NodeLocal | Consistency::Serial | Consistency::LocalSerial
    );
    level
        || !params.values.is_empty()
        || !question.is_simple()
        || found.as_ref().map_or(true, |rows| question.is_restricted() && rows.rows.is_empty())
}

/// The id of the trace that an answer tells of. Its rows are the database's, and dropped.
fn trace_of(answer: &Envelope) -> Option<Uuid> {
    response::split(&answer.header, &answer.body).ok()?.0.tracing_id
}

fn respond(request: Request, found: Found, trace: Option<Uuid>) {
    let outcome = {
        let params = params(&request);
        let skip_metadata = params.as_ref().is_some_and(|params| params.skip_metadata);
        let warns = request.header.version >= Version::V4;
        found.map(|rows| {
            let mut body = Vec::new();
            let flags =
                encode_extras(trace, rows.warning.filter(|_| warns).as_slice(), &[], &mut body);
            body.extend(rows.result_body(skip_metadata));
            (flags, body)
        })
    };
    let level = params(&request).map(|params| params.consistency);
    let responder = request.into_responder();
    match (outcome, level.and_then(out_of_reach)) {
        (Ok(_), Some(refusal)) => responder.error(&refusal),
        (Ok((flags, body)), None) => {
            responder.reply_with(Opcode::Result, flags, Path::Local, |out| out.extend(body))
        }
        (Err(error @ (SystemError::Invalid(_) | SystemError::Unsupported(_))), _) => {
            responder.error(&ErrorBody::new(ErrorCode::Invalid, &error.to_string()));
        }
    }
}

fn params(request: &Request) -> Option<QueryParams<'_>> {
    match request.message() {
        Ok((_, Message::Query(query))) => Some(query.params),
        Ok((_, Message::Execute(execute))) => Some(execute.params),
        _ => None,
    }
}

/// What a server answers at levels that no read of its own tables can have: each server has them
/// alone.
fn out_of_reach(consistency: Consistency) -> Option<ErrorBody<'static>> {
    let unavailable = |message, required| ErrorBody {
        code: ErrorCode::Unavailable,
        message,
        detail: ErrorDetail::Unavailable { consistency, required, alive: 1 },
    };
    match consistency {
        Consistency::Any => Some(ErrorBody::new(
            ErrorCode::Invalid,
            "ANY ConsistencyLevel is only supported for writes",
        )),
        Consistency::Two => Some(unavailable("Cannot achieve consistency level TWO", 2)),
        Consistency::Three => Some(unavailable("Cannot achieve consistency level THREE", 3)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::frame::notation::Value;
    use afterglow_cql::message::ValuesBuilder;
    use afterglow_cql::plan::analyse;
    use afterglow_cql::schema::Schema;
    use afterglow_cql::statement::parse;
    use afterglow_cql::system::{Proxy, Table, default_columns};

    use super::*;

    /// `system.local` with its key, and `system.peers` without a row.
    fn tables() -> SystemTables {
        let columns = |table| default_columns(table, "5.0.5").unwrap();
        let local = columns(SystemTable::Local);
        let cell = |name: &str| (name == "key").then(|| b"local".to_vec());
        let rows = vec![local.iter().map(|column| cell(&column.name)).collect()];
        let peers = Table { columns: columns(SystemTable::Peers), rows: Vec::new() };
        let proxy = Proxy {
            address: [192, 0, 2, 7].into(),
            port: 9042,
            host_id: None,
            tokens: None,
            rack: None,
        };
        SystemTables::new(Table { columns: local, rows }, peers, None, &proxy, &[])
    }

    /// How many rows of `system.local` have one of the keys that are bound to these markers.
    fn found(markers: &str, values: &Values<'_>) -> usize {
        let text = format!("SELECT key FROM system.local WHERE key IN ({markers})");
        let plan = analyse(&parse(&text), &Schema::default(), None);
        evaluate_with(values, asked(&plan).unwrap(), &tables()).unwrap().rows.len()
    }

    /// With the square of their number this takes minutes.
    #[test]
    fn as_many_values_as_a_request_has_are_each_looked_up_at_once() {
        // Longer texts are not understood with names.
        const MANY: u16 = 65_500;
        let (mut positional, mut named) = (ValuesBuilder::positional(), ValuesBuilder::named());
        for n in 0..MANY {
            let key: &[u8] = if n == MANY - 1 { b"local" } else { b"other" };
            positional.push(Value::Bytes(key));
            named.push_named(&format!("n{n}"), Value::Bytes(key));
        }
        let (places, names): (Vec<_>, Vec<_>) =
            (0..MANY).map(|n| ("?".to_owned(), format!(":n{n}"))).unzip();
        assert_eq!(found(&places.join(","), &positional.view()), 1);
        assert_eq!(found(&names.join(","), &named.view()), 1);
    }

    /// The names are those of columns then, of which there is one.
    #[test]
    fn a_named_value_is_bound_to_a_marker_without_a_name_by_its_place() {
        let mut named = ValuesBuilder::named();
        named.push_named("key", Value::Bytes(b"local"));
        assert_eq!(found("?", &named.view()), 1);
    }
}
