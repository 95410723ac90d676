//! The repetition: settles a plain write of unknown outcome.
//!
//! The write is sent again with the values and the timestamp that it had, until LOCAL_QUORUM has
//! it. Then every fill sees it, whatever became of the first attempt: the last write wins, and all
//! attempts are the same write. Its gates stay closed meanwhile.
//!
//! Only what one or more plain statements write to one partition of one table is repeated
//! ([`PlainWrite`](afterglow_cql::plan::PlainWrite)): all of it follows from text, values and
//! timestamps, which are known. A TTL would begin anew with each attempt.
//!
//! A tombstone that is sent again counts its `gc_grace_seconds` from that attempt. It hides what
//! the first one hides, and an attempt ends long before the first one could go. So it hides nothing
//! more; it only goes later, and no database promises when a tombstone goes.
//!
//! A later delete hides an attempt as long as its own tombstone is there. So attempts end early
//! enough, by how long tombstones of the table stay
//! ([`Graces`](afterglow_cql::graces::Graces)) and by the write's timestamp
//! ([`may_repeat_for`](super::RowCache::may_repeat_for)).
//!
//! There is no attempt while the lease is not ours: whoever has it caches what we would write past
//! it.
//!
//! It ends without success
//! - when a write of the whole table begins: what a TRUNCATE removed must not come back. Such a
//!   write is sent when no attempt is under way ([`wait_for_attempts`]);
//! - when the table's schema has changed, or may have, or how long its tombstones stay;
//! - when another may have had the lease meanwhile, or the table's policy has changed;
//! - when tombstones may have gone, or the hints of the write: a delete may have hidden it;
//! - when the database refuses it.
//!
//! Then the outcome stays unknown.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{
    BatchKind, BatchStatement, Consistency, Query, QueryParams, Request as Message, StatementRef,
    Values, encode_batch,
};
use afterglow_cql::plan::{PlainWrite, Plan, TableSchema};
use afterglow_rowcache::clock::Millis;
use afterglow_rowcache::inquiries::COORDINATORS_TIME;
use afterglow_rowcache::serve::{CachePermission, NotCached};
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_in_flight::{Answered, InDoubt};
use afterglow_rowcache::write_scope::WriteScope;
use bytes::Bytes;

use super::super::{CallError, CqlReactorState, Operation, Request, error_code};
use super::WriteInFlight;
use super::serial::{PAUSES, connection};
use super::state::CachedState;
use super::update::is_same_schema;
use crate::frontend::cql::bound::bound_value;
use crate::frontend::cql::cluster::pool::Who;
use crate::frontend::cql::statements::prepared::Prepared;

/// Larger writes are not repeated: those under way take 24 MiB at most.
const MOST_BYTES: usize = 32 * 1024;
/// How often a write of a whole table looks whether attempts are under way.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// It waits no longer: its client may give it up, and write what it would then remove. A server
/// takes 2 s for a write by default.
const REMOVAL_WAITS: Duration = Duration::from_secs(10);
/// How long a repetition waits where it cannot be said yet whether there may be another attempt.
const NOT_NOW: Duration = Duration::from_secs(1);

/// A write that is repeated if its outcome turns out to be unknown. Taken before it begins.
pub struct Repeatable {
    table: Arc<TableSchema>,
    /// See [`RowCache::removals`](super::RowCache::removals).
    removals: u64,
    /// Under which the table was cached. Another one says that others may have written.
    claim: u64,
    /// For how long tombstones of the table stay.
    tombstones_stay: Duration,
    /// When to give up. Tombstones go while the machine sleeps, too.
    deadline: Millis,
}

impl Repeatable {
    /// `None` where the same write, sent later, would not have the same effect, or where nothing is
    /// gained: only rows of `exclusive` tables wait for the outcome. `None` too where a later
    /// delete might be forgotten before the first attempt.
    pub(super) fn of(
        shared: &CachedState,
        request: &Request,
        touched: &WriteScope,
        newest: &Index,
    ) -> Option<Repeatable> {
        let cache = &shared.cache;
        let table = newest.table(touched.partition_of()?)?;
        let Ok(CachePermission::Exclusive { claim }) = cache.cache_permission(table) else {
            return None;
        };
        let apart = plain_and_apart(shared, request, newest)?;
        let tombstones_stay = newest.tombstones_stay(table.id);
        let may_take = cache.may_repeat_for(tombstones_stay, apart);
        // Before it is first sent.
        let (removals, now) = (cache.removals(table), cache.clock().now());
        let deadline = now + may_take.as_millis() as Millis;
        let table = table.clone();
        (!may_take.is_zero()).then_some(Repeatable {
            table,
            removals,
            claim,
            tombstones_stay,
            deadline,
        })
    }
}

/// A plain write of unknown outcome.
///
/// It outlives its client, so it keeps nothing of it.
pub struct Repetition {
    reactor_state: Rc<CqlReactorState>,
    who: Who,
    opcode: Opcode,
    body: Bytes,
    write: Repeatable,
    /// When a connection with an attempt on it was last lost.
    lost_at: Option<Instant>,
}

/// What the write would do if it were sent now.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// What it did when it was first sent.
    Same,
    /// The schema may have changed, or another may have the lease.
    Unclear,
    /// Something else.
    Other,
}

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum RepeatOutcome {
    /// LOCAL_QUORUM has it.
    Done,
    /// It may be there or not.
    Later,
    /// It was not sent, and may be sent later.
    NotNow,
    /// There is no use in another.
    Never,
}

impl Repetition {
    /// The repetition of a write that was answered so, if there may be one.
    pub(super) fn of(
        shared: &CachedState,
        request: &Request,
        write: Repeatable,
        answered: Answered,
    ) -> Option<Repetition> {
        let Answered::Unknown(why) = answered else { return None };
        let client = request.client();
        if client.dedicated.borrow().is_some() || shared.cache.is_full_of_repetitions() {
            return None;
        }
        let (keyspace, opcode, body) = again(request)?;
        if body.len() > MOST_BYTES {
            return None;
        }
        Some(Repetition {
            reactor_state: client.reactor_state.clone(),
            who: Who { keyspace, ..client.who(request.header.version) },
            opcode,
            body,
            write,
            lost_at: (why == InDoubt::ConnectionLost).then(Instant::now),
        })
    }

    /// Repeats the write until it is there; the write's gates stay closed meanwhile.
    pub(super) async fn run(
        mut self,
        shared: Arc<CachedState>,
        mut write: WriteInFlight,
        answered: Answered,
    ) {
        write.abandon_row();
        let counted = write.cache().count_inquiry();
        let done = self.repeat_until_done(&shared).await;
        let metrics = &self.reactor_state.metrics;
        if done { &metrics.settled_writes } else { &metrics.unsettled_writes }.inc();
        write.settle_repeated(answered, done);
        drop(counted);
    }

    async fn repeat_until_done(&mut self, shared: &CachedState) -> bool {
        let mut pause = PAUSES.0;
        for attempt in 0.. {
            compio::time::sleep(pause).await;
            let attempt = match self.effect(shared) {
                _ if self.is_late(shared) => RepeatOutcome::Never,
                Effect::Same => self.attempt(shared, attempt).await,
                Effect::Unclear => RepeatOutcome::NotNow,
                Effect::Other => RepeatOutcome::Never,
            };
            match attempt {
                RepeatOutcome::Done => break,
                RepeatOutcome::Later => pause = (pause * 2).min(PAUSES.1),
                RepeatOutcome::NotNow => pause = NOT_NOW,
                RepeatOutcome::Never => return false,
            }
        }
        // A lost attempt may still come to the replicas. It is the same write, but what removes the
        // whole table must find it there, or never to come. A hold that the operator has made
        // shorter says when it is no more to come.
        if let Some(lost_at) = self.lost_at {
            let longest = COORDINATORS_TIME.min(shared.cache.hold());
            let left = longest.saturating_sub(lost_at.elapsed());
            compio::time::sleep(left).await;
        }
        self.effect(shared) != Effect::Other
    }

    /// Whether it may be sent no more.
    fn is_late(&self, shared: &CachedState) -> bool {
        shared.cache.clock().now() >= self.write.deadline
    }

    /// Whether the write, sent now, has the effect that it had when it was first sent.
    fn effect(&self, shared: &CachedState) -> Effect {
        let Repeatable { table, removals, claim, tombstones_stay, .. } = &self.write;
        // The race with the end of a statement that was not understood: it counts as a removal
        // before it lets the table be served again. So that is looked at first.
        let permission = shared.cache.cache_permission(table);
        let newest = shared.newest.of(&self.reactor_state.front_end.schema);
        let is_same = shared.cache.removals(table) == *removals
            && newest.table(table.id) == Some(table)
            && newest.tombstones_stay(table.id) == *tombstones_stay;
        // What is not heard of empties the cache once it is, which removes all tables.
        let is_known = newest.is_complete() && shared.knows_schema(newest.generation());
        match permission {
            _ if !is_same => Effect::Other,
            Ok(CachePermission::Exclusive { claim: now }) if now == *claim => match is_known {
                true => Effect::Same,
                false => Effect::Unclear,
            },
            Ok(_) | Err(NotCached::PolicyOff) => Effect::Other,
            // The lease may come back without another holder in between. A statement that is not
            // understood may be refused.
            Err(_) => Effect::Unclear,
        }
    }

    async fn attempt(&mut self, shared: &CachedState, attempt: usize) -> RepeatOutcome {
        let reactor_state = &self.reactor_state;
        // A quorum of another data centre is none of ours. A connection may take long to make.
        let Some(backend) = connection(reactor_state, &self.who, true, attempt).await else {
            return RepeatOutcome::Later;
        };
        let under_way = shared.cache.begin_attempt(&self.write.table);
        match self.effect(shared) {
            _ if self.is_late(shared) => return RepeatOutcome::Never,
            Effect::Same => {}
            Effect::Unclear => return RepeatOutcome::NotNow,
            Effect::Other => return RepeatOutcome::Never,
        }
        reactor_state.metrics.repeated_writes.inc();
        match backend.call(self.opcode, Flags::NONE, self.body.clone()).await {
            Ok(answer) if answer.header.opcode == Opcode::Result => RepeatOutcome::Done,
            Ok(answer) => match error_code(&answer) {
                // CONFIG_ERROR tells of a rate limit, which is over in a moment.
                Some(ErrorCode::Invalid | ErrorCode::Syntax | ErrorCode::Unauthorized) => {
                    RepeatOutcome::Never
                }
                _ => RepeatOutcome::Later,
            },
            Err(error) => {
                if matches!(error, CallError::Lost) {
                    self.lost_at = Some(Instant::now());
                    // Its coordinator may go on with it. So what removes the table waits.
                    let longest = REMOVAL_WAITS.min(shared.cache.hold());
                    let over = async move {
                        compio::time::sleep(longest).await;
                        drop(under_way);
                    };
                    compio::runtime::spawn(over).detach();
                }
                RepeatOutcome::Later
            }
        }
    }
}

/// Waits until no write is being sent again of a table that this write, which has begun, touches as
/// a whole.
pub(super) async fn wait_for_attempts(shared: &CachedState, touched: &WriteScope) {
    // Hardly any write has to wait: the others need no clock.
    let mut began = None;
    while shared.cache.has_attempts(touched) {
        if began.get_or_insert_with(Instant::now).elapsed() >= REMOVAL_WAITS {
            return;
        }
        compio::time::sleep(LOOK_AGAIN).await;
    }
}

/// If all that the request does is [plain](afterglow_cql::plan::PlainWrite), by the schema as it
/// is: how far from the clock its timestamps are at most, before or behind it.
fn plain_and_apart(shared: &CachedState, request: &Request, newest: &Index) -> Option<Duration> {
    let (extras, message) = request.message().ok()?;
    let now = i64::from(shared.cache.clock().unix()) * 1_000_000;
    let mut apart = 0;
    let mut all = |plan: &Plan, values: &Values<'_>, params: &QueryParams<'_>| {
        // No server writes at that level: 4.1 fails with a server error, and has written nothing.
        if params.consistency == Consistency::NodeLocal {
            return false;
        }
        let Plan::Write(plan) = plan else { return false };
        let (value, at) = (bound_value(values), params.timestamp);
        let is_plain = |one: &PlainWrite| {
            let timestamp = one.repeatable_at(&value, at);
            apart = apart.max(timestamp.map_or(0, |at| at.abs_diff(now)));
            timestamp.is_some() && is_same_schema(shared, &one.table, newest.generation(), newest)
        };
        let binds = plan.binds.are_certain(values) && plan.binds.fit(values);
        binds && !plan.plain.is_empty() && plan.plain.iter().all(is_plain)
    };
    let (plain, now_in_seconds) = match (&message, &request.asked) {
        (Message::Query(query), Operation::Query(plan)) => {
            let params = &query.params;
            (all(plan, &params.values, params), params.now_in_seconds)
        }
        (Message::Execute(execute), Operation::Execute(_, plan)) => {
            let params = &execute.params;
            (all(plan, &params.values, params), params.now_in_seconds)
        }
        (Message::Batch(batch), Operation::Batch(plans)) => {
            let params = &batch.params;
            let mut parts = batch.statements().zip(plans);
            let plain = parts.all(|(one, (_, plan))| all(plan, &one.values, params));
            (plain && batch.kind != BatchKind::Counter, params.now_in_seconds)
        }
        _ => return None,
    };
    let is_plain = plain && extras.is_plain() && now_in_seconds.is_none();
    is_plain.then_some(Duration::from_micros(apart))
}

fn as_text<'a>(part: BatchStatement<'a>, prepared: Option<&'a Prepared>) -> BatchStatement<'a> {
    let statement = prepared.map_or(part.statement, |prepared| StatementRef::Text(&prepared.text));
    BatchStatement { statement, values: part.values }
}

/// The same parameters at LOCAL_QUORUM. `None` if they name a keyspace that would be lost: before
/// v5 it is not encoded, though Cassandra 4.0 and later look at it.
fn at_local_quorum(params: QueryParams<'_>, version: Version) -> Option<QueryParams<'_>> {
    let is_lost = version < Version::V5 && params.keyspace.is_some();
    (!is_lost).then_some(QueryParams { consistency: Consistency::LocalQuorum, ..params })
}

/// The keyspace, the opcode and the body of a request that does what this one asks for, at
/// LOCAL_QUORUM. Prepared statements are sent as text: the node that is asked need not know them.
fn again(request: &Request) -> Option<(Option<Rc<str>>, Opcode, Bytes)> {
    let (_, message) = request.message().ok()?;
    let (version, mut body) = (request.header.version, Vec::new());
    let mut opcode = Opcode::Query;
    let here = |params| at_local_quorum(params, version);
    let keyspace = match (&message, &request.asked) {
        (Message::Query(query), _) => {
            Query { text: query.text, params: here(query.params)? }.encode(version, &mut body);
            request.keyspace()
        }
        (Message::Execute(execute), Operation::Execute(prepared, _)) => {
            // Of an EXECUTE it means nothing.
            let params = here(QueryParams { keyspace: None, ..execute.params })?;
            Query { text: &prepared.text, params }.encode(version, &mut body);
            prepared.keyspace.as_deref()
        }
        (Message::Batch(batch), Operation::Batch(plans)) => {
            let texts = plans.iter().map(|(prepared, _)| prepared.as_deref());
            let in_keyspace = batch.params.keyspace.or(request.keyspace());
            // As a text it would name its table in the batch's keyspace.
            if texts.clone().flatten().any(|one| one.keyspace.as_deref() != in_keyspace) {
                return None;
            }
            let parts = batch.statements().zip(texts);
            let statements: Vec<_> = parts.map(|(one, prepared)| as_text(one, prepared)).collect();
            encode_batch(version, batch.kind, &statements, &here(batch.params)?, &mut body);
            opcode = Opcode::Batch;
            request.keyspace()
        }
        _ => return None,
    };
    Some((keyspace.map(Rc::from), opcode, body.into()))
}
