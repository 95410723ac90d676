//! Carries a write out, in this order:
//!
//! 0. Ask whether the database takes the text, if it is not understood ([`asked_first`]). Wait, if
//!    the connection asks for whole tables in vain ([`in_vain`]).
//! 1. Note the intent, close the gates, drop the rows; those of whole tables after the answer.
//! 2. Send the write and await the answer. Meanwhile a row that only flash has is read.
//! 3. Drop what was made again under the same name meanwhile. Put the row back with its new values,
//!    where they are known ([`update`]). Open the gates, settle the intent.
//! 4. Begin to read the row again, where that pays ([`refresh`](super::refresh)).
//! 5. Tell the client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use afterglow_cql::frame::Envelope;
use afterglow_cql::message::{BatchKind, Request as Message, Values};
use afterglow_cql::plan::{Plan, TableSchema, Target};
use afterglow_engine::Hit;
use afterglow_rowcache::refresh::UnitLeft;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_in_flight::{Answered, Followed, Remains, RowOutcome};
use afterglow_rowcache::write_scope::{Invalidation, Tables, WriteScope};
use futures_channel::oneshot::{self, Receiver};
use futures_util::future::{Either, select};

use super::super::{Later, Operation, Request, SchemaStore};
use super::in_vain::NotSent;
use super::outcome::{answered, count_outcome};
use super::refresh::Refresher;
use super::repeat::{Repeatable, Repetition, wait_for_attempts};
use super::schema_change::{schema_change, weaken_replicated};
use super::state::CachedState;
use super::write_level::is_weak;
use super::{WriteInFlight, in_vain, serial, update, write_in_ring};
use crate::frontend::cql::bound::bound;
use crate::frontend::cql::client::asked_first;
use crate::frontend::cql::cluster::error::CallError;
use crate::frontend::cql::refusals::VainTurn;
use crate::metrics::{MissReason, Path, WriteScopeLabel};

/// Takes a request that may change data.
pub(super) fn route(shared: &Arc<CachedState>, request: Request) -> Option<Later> {
    let newest = shared.newest.of(&request.client().reactor_state.front_end.schema);
    let touched = touched_by(&request, &*newest);
    if touched.is_empty() {
        request.pass(Path::Pass);
        return None;
    }
    let is_asked_first = asked_first::is_due(&request, &touched);
    if !is_asked_first {
        match in_vain::turn(&request, &touched) {
            VainTurn::Free => return begin(shared, request, touched, newest),
            VainTurn::Trial(trial) => {
                let rest = begin(shared, request, touched, newest)?;
                return Some(Box::pin(async move {
                    rest.await;
                    drop(trial);
                }));
            }
            VainTurn::Later(_) | VainTurn::AfterTrial => {}
        }
    }
    let shared = shared.clone();
    Some(Box::pin(async move {
        let asked = if is_asked_first { asked_first::pass(request).await } else { Some(request) };
        let Some(request) = asked else { return };
        // Until the write has been answered.
        let _trial = match in_vain::hold(&request, &touched).await {
            Ok(trial) => trial,
            Err(NotSent::Gone) => return,
            Err(NotSent::Because(reason)) => return write_in_ring::not_now(request, reason),
        };
        // The schema may have changed meanwhile.
        let newest = shared.newest.of(&request.client().reactor_state.front_end.schema);
        let touched = touched_by(&request, &*newest);
        if let Some(rest) = begin(&shared, request, touched, newest) {
            rest.await;
        }
    }))
}

/// Begins a write that may touch this, in the newest schema.
fn begin(
    shared: &Arc<CachedState>,
    mut request: Request,
    touched: WriteScope,
    newest: Arc<Index>,
) -> Option<Later> {
    count(&request, &touched);
    let weak = is_weak(shared, &mut request, &touched, &newest);
    let dead_after = dead_after(shared, &touched, &newest);
    if shared.sharing {
        return write_in_ring::route(shared, request, touched, newest, weak, dead_after);
    }
    if shared.beside_ring.load(Ordering::Acquire) {
        write_in_ring::not_now(request, BESIDE_RING);
        return None;
    }
    let write = Planned { shared: shared.clone(), request, newest, touched, weak, dead_after };
    // Begun at once if possible, so that reads behind it on its connection find its gates closed.
    let begun = match shared.cache.backpressure() {
        None => Ok(write.begin()),
        Some(backpressure) => Err(backpressure),
    };
    Some(Box::pin(async move {
        let begun = match begun {
            Ok(begun) => begun,
            Err(backpressure) => {
                backpressure.await;
                write.begin()
            }
        };
        write.carry_out(begun).await;
    }))
}

/// A write, and what it touches.
struct Planned {
    shared: Arc<CachedState>,
    request: Request,
    /// The schema when it came.
    newest: Arc<Index>,
    touched: WriteScope,
    weak: bool,
    dead_after: u32,
}

/// A write whose gates are closed.
struct GatedWrite {
    write: WriteInFlight,
    /// Since when they are.
    closed: Instant,
    /// The table of the one row that it writes, if what is cached can follow the write.
    table: Option<Arc<TableSchema>>,
    /// What may be sent again.
    repeatable: Option<Repeatable>,
}

impl Planned {
    fn schema(&self) -> &SchemaStore {
        &self.request.client().reactor_state.front_end.schema
    }

    fn begin(&self) -> GatedWrite {
        let Planned { shared, newest, touched, weak, dead_after, .. } = self;
        let generation = newest.generation();
        let change = update::change_of(&self.request)
            .filter(|of| update::is_same_schema(shared, of.table(), generation, newest));
        let table = table_of(touched, newest)
            .filter(|table| update::is_same_schema(shared, table, generation, newest));
        // Before the gates close: a TRUNCATE that begins from here on is one that came later.
        let repeatable = Repeatable::of(shared, &self.request, touched, newest);
        let newer = || touched.of_newer(&*shared.newest.of(self.schema()));
        let cache = &shared.cache;
        let has_units = shared.units.most_bytes() > 0;
        let unit_of = table.filter(|_| has_units);
        let followed = Followed { change: change.as_ref(), unit_of };
        let closed = Instant::now();
        let write = cache.begin_row_write(touched, followed, *weak, *dead_after, newer);
        GatedWrite { write, closed, table: table.cloned(), repeatable }
    }

    /// Sends the write. Where only flash has the row that it names, the row is read meanwhile, so
    /// that it can follow the write. The write does not wait for the device: what is not found
    /// before its answer is dropped.
    async fn call(&mut self, write: &mut WriteInFlight) -> Result<Envelope, CallError> {
        let found = self.read_row(write);
        let call = std::pin::pin!(self.request.call());
        let Some(found) = found else { return call.await };
        match select(call, found).await {
            Either::Left((answer, _)) => answer,
            Either::Right((found, call)) => {
                if let Ok(Ok(hit)) = found {
                    write.found_on_flash(&hit);
                }
                call.await
            }
        }
    }

    /// Reads the row, if only flash has it. The read counts as under way until the device has
    /// answered, also where the write has long ended. Otherwise a device that stands still would
    /// take every thread of a reactor that reads by threads.
    fn read_row(&self, write: &mut WriteInFlight) -> Option<Receiver<Result<Hit, MissReason>>> {
        let read = write.take_flash_read()?;
        let one = self.shared.write_reads.one_more()?;
        let (shared, state) = (self.shared.clone(), self.request.client().reactor_state.clone());
        let (tell, found) = oneshot::channel();
        let run = async move {
            let hit = shared.read(read, &state.metrics).await;
            drop(one);
            let _ = tell.send(hit); // the write may have ended
        };
        compio::runtime::spawn(run).detach();
        Some(found)
    }

    async fn carry_out(mut self, gated: GatedWrite) {
        let GatedWrite { mut write, closed, table, repeatable } = gated;
        wait_for_attempts(&self.shared, &self.touched).await;
        let answer = self.call(&mut write).await;
        let Planned { shared, request, newest, touched, weak, .. } = self;
        if request.went_far() {
            write.weaken();
        }
        let answered = answered(&answer, &touched);
        in_vain::note(&request, &touched, &answer, closed);
        if let Answered::Unknown(reason) = answered {
            request.metrics().quarantines.inc(reason.into());
        }
        let schema = &request.client().reactor_state.front_end.schema;
        let now = shared.newest.of(schema);
        if answered != Answered::Refused {
            write.widen(&touched.replaced(&*now));
        }
        if let Some(change) = answer.as_ref().ok().and_then(schema_change) {
            // Before its gates open: no write in between takes what it changed for known, and no
            // fill what new replicas lack for what there is.
            schema.note_change();
            shared.note_schema_change(schema.generation());
            if touched.doubtful {
                write.narrow(keyspace_of(change.keyspace, &*now).invalidations());
            }
            weaken_replicated(&shared, &change, &now);
        }
        let inquiry = serial::Inquiry::of(&shared, &request, &touched, answered, &newest);
        let repetition =
            repeatable.and_then(|write| Repetition::of(&shared, &request, write, answered));
        let dropped = Remains { row: RowOutcome::Dropped, unit: UnitLeft::Dropped };
        let remains = match (inquiry, repetition) {
            (Some(inquiry), _) => {
                compio::runtime::spawn(inquiry.run(write, answered)).detach();
                dropped
            }
            (None, Some(repetition)) => {
                compio::runtime::spawn(repetition.run(shared.clone(), write, answered)).detach();
                dropped
            }
            (None, None) => write.settle_and_update(answered, || {
                let same =
                    |table| update::is_same_schema(&shared, table, newest.generation(), &now);
                table.as_ref().is_some_and(same)
            }),
        };
        let (row, is_awaited) = (remains.row, matches!(remains.unit, UnitLeft::Awaited));
        let is_seen = answered == Answered::Definite && !weak && !request.went_far();
        let refresher = table.filter(|_| is_seen).and_then(|table| {
            Refresher::begin(&shared, &request, &touched, &table, newest.generation(), remains)
        });
        count_outcome(&request, &touched, answered, row, refresher.is_some() || is_awaited);
        if let Some(refresher) = refresher {
            compio::runtime::spawn(refresher.run()).detach();
        }
        match answer {
            Ok(answer) => request.relay(answer, Path::Write).await,
            Err(error) => request.fail(&error),
        }
    }
}

/// The table of the one row that a write names.
fn table_of<'a>(touched: &WriteScope, newest: &'a Index) -> Option<&'a Arc<TableSchema>> {
    let [table] = touched.planned() else { return None };
    touched.only_row()?;
    newest.table(*table)
}

const BESIDE_RING: &str = "a ring of Afterglow instances caches these tables: write through one of \
     them, or give this one --ring-address";

/// See [`Nature`](afterglow_rowcache::intents::words::Nature).
fn dead_after(shared: &CachedState, touched: &WriteScope, newest: &Index) -> u32 {
    if !touched.conditional {
        return 0;
    }
    shared.paxos.dead_after(newest.grace(touched.planned()), shared.cache.clock().moment())
}

/// Counts what a write invalidates, and counts the write by its widest drop.
fn count(request: &Request, touched: &WriteScope) {
    let counters = request.metrics();
    let scopes = || touched.invalidations().iter().filter_map(scope_label);
    scopes().for_each(|scope| counters.invalidations.inc(scope));
    let widest = scopes().max_by_key(|scope| *scope as usize);
    counters.writes.inc(widest.unwrap_or(WriteScopeLabel::Nothing));
}

fn keyspace_of(keyspace: &str, tables: &impl Tables) -> WriteScope {
    let mut touched = WriteScope::default();
    touched.add_target(&Target::Keyspace(keyspace.to_owned()), &|_| None, tables);
    touched
}

/// What a write request touches.
fn touched_by(request: &Request, tables: &impl Tables) -> WriteScope {
    let mut touched = WriteScope::default();
    let mut add = |plan: &Plan, values: &Values<'_>| match plan {
        Plan::Write(plan) if plan.binds.are_certain(values) => {
            touched.add(plan, &bound(values), tables);
        }
        Plan::Write(plan) => touched.add(plan, &|_| None, tables),
        _ => {}
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

/// Kinds of drops, by how much they invalidate. A unit goes with the row that it is dropped for.
fn scope_label(invalidation: &Invalidation) -> Option<WriteScopeLabel> {
    Some(match invalidation {
        Invalidation::Row(_) => WriteScopeLabel::Row,
        Invalidation::Unit(_) => return None,
        Invalidation::Partition(_) => WriteScopeLabel::Partition,
        Invalidation::Table(_) => WriteScopeLabel::Table,
        Invalidation::Everything => WriteScopeLabel::Everything,
    })
}
