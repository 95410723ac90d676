//! The repetition: settles a plain write of unknown outcome.
//!
//! The write is sent again with the values and the timestamp that it had, until LOCAL_QUORUM has
//! it. Then every fill sees it, whatever became of the first attempt: the last write wins, and all
//! attempts are the same write. Its gates stay closed meanwhile.
//!
//! Only an INSERT or UPDATE of one row is repeated whose values, timestamp and endless life are
//! known ([`RowChange`](afterglow_rowcache::row_change::RowChange)). A TTL would begin anew with
//! each attempt.
//!
//! It ends without success
//! - when a write of the whole table begins: what a TRUNCATE removed must not come back;
//! - when the table's schema has changed, or may have;
//! - when tombstones may have gone, or the hints of the write: a delete may have hidden it;
//! - when the database refuses it.
//!
//! Then the outcome stays unknown.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams, Request as Message};
use afterglow_cql::plan::TableSchema;
use afterglow_rowcache::row_change::RowChange;
use afterglow_rowcache::serve::CachePermission;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_in_flight::{Answered, InDoubt};
use bytes::Bytes;

use super::super::{CallError, Client, Operation, Request, error_code};
use super::WriteInFlight;
use super::serial::{COORDINATORS_TIME, PAUSES, connection};
use super::state::CachedState;

/// Larger writes are not repeated: those under way take 32 MiB at most.
const MOST_BYTES: usize = 32 * 1024;

/// A write that is repeated if its outcome turns out to be unknown. Taken before it begins.
pub struct Repeatable {
    table: Arc<TableSchema>,
    /// Writes of the whole table that had begun.
    table_writes: u64,
}

impl Repeatable {
    /// `None` where the same write, sent later, would not have the same effect, or where nothing is
    /// gained: only rows of `exclusive` tables wait for the outcome.
    pub(super) fn of(shared: &CachedState, change: &RowChange) -> Option<Repeatable> {
        let (cache, table) = (&shared.cache, change.table());
        let is_exclusive =
            || matches!(cache.cache_permission(table), Ok(CachePermission::Exclusive { .. }));
        let is_repeatable = change.is_endless() && is_exclusive();
        is_repeatable
            .then(|| Repeatable { table: table.clone(), table_writes: cache.table_writes(table) })
    }
}

/// A plain write of unknown outcome.
pub struct Repetition {
    client: Rc<Client>,
    version: Version,
    keyspace: Option<Rc<str>>,
    body: Bytes,
    write: Repeatable,
    /// When to give up.
    deadline: Instant,
    /// When a connection with an attempt on it was last lost.
    lost_at: Option<Instant>,
}

/// What the write would do if it were sent now.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// What it did when it was first sent.
    Same,
    /// The schema may have changed.
    Unclear,
    /// Something else, or it has taken too long.
    Other,
}

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum RepeatOutcome {
    /// LOCAL_QUORUM has it.
    Done,
    /// It may be there or not.
    Later,
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
        newest: &Index,
    ) -> Option<Repetition> {
        let Answered::Unknown(why) = answered else { return None };
        let client = request.client();
        if client.dedicated.borrow().is_some() || shared.cache.is_full_of_inquiries() {
            return None;
        }
        let grace = newest.grace(&[write.table.id])?;
        let (keyspace, body) = again(request)?;
        if body.len() > MOST_BYTES {
            return None;
        }
        let now = Instant::now();
        Some(Repetition {
            client: client.clone(),
            version: request.header.version,
            keyspace,
            body,
            write,
            deadline: now + shared.cache.may_repeat_for(grace),
            lost_at: (why == InDoubt::ConnectionLost).then_some(now),
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
        let metrics = &self.client.reactor_state.metrics;
        if done { &metrics.settled_writes } else { &metrics.unsettled_writes }.inc();
        write.settle_repeated(answered, done);
        drop(counted);
    }

    async fn repeat_until_done(&mut self, shared: &CachedState) -> bool {
        let mut pause = PAUSES.0;
        loop {
            compio::time::sleep(pause).await;
            let attempt = match self.effect(shared) {
                Effect::Same => self.attempt().await,
                Effect::Unclear => RepeatOutcome::Later,
                Effect::Other => RepeatOutcome::Never,
            };
            match attempt {
                RepeatOutcome::Done => break,
                RepeatOutcome::Later => pause = (pause * 2).min(PAUSES.1),
                RepeatOutcome::Never => return false,
            }
        }
        // A lost attempt may still come to the replicas. It is the same write, but what removes the
        // whole table must find it there, or never to come.
        if let Some(lost_at) = self.lost_at {
            let left = COORDINATORS_TIME.saturating_sub(lost_at.elapsed());
            compio::time::sleep(left).await;
        }
        self.effect(shared) != Effect::Other
    }

    /// Whether the write, sent now, has the effect that it had when it was first sent.
    fn effect(&self, shared: &CachedState) -> Effect {
        let table = &self.write.table;
        let newest = shared.newest.of(&self.client.reactor_state.front_end.schema);
        // What is not heard of empties the cache once it is: that counts as a write of all tables.
        let is_known = shared.knows_schema(newest.generation());
        let is_same = Instant::now() < self.deadline
            && shared.cache.table_writes(table) == self.write.table_writes
            && newest.table(table.id) == Some(table);
        match (is_same, is_known) {
            (true, true) => Effect::Same,
            (true, false) => Effect::Unclear,
            (false, _) => Effect::Other,
        }
    }

    async fn attempt(&mut self) -> RepeatOutcome {
        let reactor_state = &self.client.reactor_state;
        let mut who = self.client.who(self.version);
        who.keyspace = self.keyspace.clone();
        // A quorum of another data centre is none of ours.
        let Some(backend) = connection(reactor_state, &who, true).await else {
            return RepeatOutcome::Later;
        };
        reactor_state.metrics.repeated_writes.inc();
        match backend.call(Opcode::Query, Flags::NONE, self.body.clone()).await {
            Ok(answer) if answer.header.opcode == Opcode::Result => RepeatOutcome::Done,
            Ok(answer) => match error_code(&answer) {
                Some(
                    ErrorCode::Invalid
                    | ErrorCode::Syntax
                    | ErrorCode::Unauthorized
                    | ErrorCode::Config,
                ) => RepeatOutcome::Never,
                _ => RepeatOutcome::Later,
            },
            Err(error) => {
                if matches!(error, CallError::Lost) {
                    self.lost_at = Some(Instant::now());
                }
                RepeatOutcome::Later
            }
        }
    }
}

/// The keyspace and the body of a QUERY that does what the request asks for, at LOCAL_QUORUM. A
/// prepared statement is sent as text: the node that is asked need not know it.
fn again(request: &Request) -> Option<(Option<Rc<str>>, Bytes)> {
    let (_, message) = request.message().ok()?;
    let (keyspace, text, params) = match (&message, &request.asked) {
        (Message::Query(query), _) => (request.keyspace(), query.text, query.params),
        (Message::Execute(execute), Operation::Execute(prepared, _)) => {
            (prepared.keyspace.as_deref(), prepared.text.as_str(), execute.params)
        }
        _ => return None,
    };
    let params = QueryParams { consistency: Consistency::LocalQuorum, ..params };
    let mut body = Vec::new();
    Query { text, params }.encode(request.header.version, &mut body);
    Some((keyspace.map(Rc::from), body.into()))
}
