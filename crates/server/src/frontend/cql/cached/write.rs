//! Carries a write out, in this order:
//!
//! 1. Note the intent, close the gates, drop the rows.
//! 2. Send the write and await the answer.
//! 3. Open the gates and settle the intent.
//! 4. Tell the client.

use std::sync::Arc;

use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_cql::message::{BatchKind, Request as Message, Values};
use afterglow_cql::plan::{Plan, Target};
use afterglow_cql::response::{Response, ResultBody};
use afterglow_rowcache::write::{Answered, InDoubt};
use afterglow_rowcache::write_scope::{Invalidation, Tables, WriteScope};

use super::super::{CallError, Later, Operation, Request, error_code, parsed};
use super::bound::bound;
use super::serial;
use super::state::CachedState;
use crate::metrics::{Path, WriteScopeLabel};

/// Takes a request that may change data.
pub(super) fn route(shared: &Arc<CachedState>, mut request: Request) -> Option<Later> {
    let front_end = request.client().reactor_state.front_end.clone();
    let newest = shared.newest.of(&front_end.schema);
    let touched = touched_by(&request, &*newest);
    if touched.is_empty() {
        request.pass(Path::Pass);
        return None;
    }
    count(&request, &touched);
    let weak = match request.consistency() {
        Some(level) => newest.is_weak(&touched, level, shared.data_center.read().as_deref()),
        None => true,
    };
    let dead_after = match touched.conditional {
        true => {
            shared.paxos.dead_after(newest.grace(touched.planned()), shared.cache.clock().moment())
        }
        false => 0,
    };
    let transaction = touched.conditional.then(|| touched.clone());
    let in_steps = touched.conditional || touched.may_happen_in_part();
    let begin = {
        let shared = shared.clone();
        move || {
            let is_current = || touched.is_current(&*shared.newest.of(&front_end.schema));
            shared.cache.begin_write(&touched, weak, dead_after, is_current)
        }
    };
    // Begun at once if possible, so that reads behind it on its connection find its gates closed.
    let begun = match shared.cache.backpressure() {
        None => Ok(begin()),
        Some(backpressure) => Err((backpressure, begin)),
    };
    let shared = shared.clone();
    Some(Box::pin(async move {
        let mut write = match begun {
            Ok(write) => write,
            Err((backpressure, begin)) => {
                backpressure.await;
                begin()
            }
        };
        let answer = request.call().await;
        if request.went_far() {
            write.weaken();
        }
        let answered = answered(&answer, in_steps);
        if let Answered::Unknown(reason) = answered {
            request.metrics().quarantines.inc(reason.into());
        }
        if let Some(keyspace) = answer.as_ref().ok().and_then(changed_keyspace) {
            let newest = shared.newest.of(&request.client().reactor_state.front_end.schema);
            write.narrow(keyspace_of(keyspace, &*newest).doomed());
        }
        let inquiry = transaction.and_then(|touched| {
            serial::Inquiry::of(&shared, &request, &touched, answered, &newest)
        });
        match inquiry {
            Some(inquiry) => compio::runtime::spawn(inquiry.run(write, answered)).detach(),
            None => write.settle(answered),
        }
        match answer {
            Ok(answer) => request.relay(answer, Path::Write).await,
            Err(error) => request.fail(&error),
        }
    }))
}

/// Counts what a write invalidates, and counts the write by its widest drop.
fn count(request: &Request, touched: &WriteScope) {
    let counters = request.metrics();
    touched.doomed().iter().for_each(|doomed| counters.invalidations.inc(scope_label(doomed)));
    if let Some(widest) =
        touched.doomed().iter().map(scope_label).max_by_key(|scope| *scope as usize)
    {
        counters.writes.inc(widest);
    }
}

/// What the database's answer says of a write; `in_steps`: see [`Answered::by_error`].
fn answered(answer: &Result<Envelope, CallError>, in_steps: bool) -> Answered {
    match answer {
        Ok(answer) if answer.header.opcode == Opcode::Result => Answered::Definite,
        Ok(answer) => match error_code(answer) {
            Some(code) => Answered::by_error(code, in_steps),
            None => Answered::Unknown(InDoubt::ServerError),
        },
        Err(CallError::NotSent(_)) => Answered::Refused,
        Err(CallError::Lost) => Answered::Unknown(InDoubt::ConnectionLost),
    }
}

/// The keyspace that an answer says the schema has changed in.
fn changed_keyspace(answer: &Envelope) -> Option<&str> {
    match parsed(answer)? {
        Response::Result(ResultBody::SchemaChange(change)) => Some(change.keyspace),
        _ => None,
    }
}

fn keyspace_of(keyspace: &str, tables: &impl Tables) -> WriteScope {
    let mut touched = WriteScope::default();
    touched.add_target(&Target::Keyspace(keyspace.to_owned()), &|_| None, tables);
    touched
}

/// What a write request touches.
fn touched_by(request: &Request, tables: &impl Tables) -> WriteScope {
    let mut touched = WriteScope::default();
    let mut add = |plan: &Plan, values: &Values<'_>| {
        if let Plan::Write(plan) = plan {
            touched.add(plan, &bound(values), tables);
        }
    };
    match (request.message().map(|(_, message)| message), &request.asked) {
        (Ok(Message::Query(query)), Operation::Query(plan)) => add(plan, &query.params.values),
        (Ok(Message::Execute(execute)), Operation::Execute(_, plan)) => {
            add(plan, &execute.params.values)
        }
        (Ok(Message::Batch(batch)), Operation::Batch(plans)) => {
            batch
                .statements()
                .zip(plans)
                .for_each(|(statement, (_, plan))| add(plan, &statement.values));
            touched.parted = batch.kind != BatchKind::Logged;
        }
        _ => return WriteScope::everything(),
    }
    touched
}

/// Kinds of drops, by how much they invalidate.
fn scope_label(doomed: &Invalidation) -> WriteScopeLabel {
    match doomed {
        Invalidation::Row(_) => WriteScopeLabel::Row,
        Invalidation::Partition(_) => WriteScopeLabel::Partition,
        Invalidation::Table(_) => WriteScopeLabel::Table,
        Invalidation::Everything => WriteScopeLabel::Everything,
    }
}
