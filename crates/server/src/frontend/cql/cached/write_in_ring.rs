//! Carries a write out whose rows other instances may own too, in this order:
//!
//! 1. Where each member has copies of its own, close the gates of those here and drop them. Those
//!    of others live on for their bound.
//! 2. The owners note the intent, close their gates and drop the rows ([`RingWrite`]).
//! 3. Send the write and await the answer. Open the gates here.
//! 4. Tell the owners how it ended, and hear whether it may be acknowledged.
//! 5. Tell the client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::message::Consistency;
use afterglow_cql::response::{ErrorBody, ErrorDetail};
use afterglow_ring::WriteResult;
use afterglow_rowcache::tables::Index;
use afterglow_rowcache::write_in_flight::{Answered, RowOutcome};
use afterglow_rowcache::write_scope::WriteScope;

use super::outcome::{answered, count_outcome};
use super::ring::{Admission, Ring, RingWrite, Verdict, tell_owners, tell_until_all_know};
use super::schema_change::{doubt_map, schema_change, weaken_replicated};
use super::state::CachedState;
use super::{WriteInFlight, in_vain, serial};
use crate::frontend::cql::{Later, Request};
use crate::metrics::Path;

/// Takes a request that may change data. `dead_after`: see
/// [`Nature`](afterglow_rowcache::intents::words::Nature).
pub(super) fn route(
    shared: &Arc<CachedState>,
    request: Request,
    touched: WriteScope,
    newest: Arc<Index>,
    weak: bool,
    dead_after: u32,
) -> Option<Later> {
    let Some(ring) = shared.ring.get().cloned() else {
        not_now(request, UNREACHABLE);
        return None;
    };
    let admission = ring.admission();
    let in_ring = InRing { shared: shared.clone(), request, touched, newest, weak, dead_after };
    if admission == Admission::Unknown {
        return Some(Box::pin(in_ring.wait(ring)));
    }
    if let Some(reason) = refusal(admission) {
        not_now(in_ring.request, reason);
        return None;
    }
    // Begun at once if possible, so that reads behind it on its connection find its gates closed.
    if shared.cache.backpressure().is_some() {
        return Some(Box::pin(in_ring.wait_and_begin(ring)));
    }
    let begun = in_ring.begin(&ring);
    Some(Box::pin(in_ring.carry_out(ring, begun)))
}

/// A write whose rows other instances may own too.
struct InRing {
    shared: Arc<CachedState>,
    request: Request,
    touched: WriteScope,
    /// The schema when it came.
    newest: Arc<Index>,
    weak: bool,
    dead_after: u32,
}

/// A write whose owners are asked.
struct BegunInRing {
    write: RingWrite,
    /// The gates of this instance's own copies, where it has any.
    own: Option<WriteInFlight>,
    /// Since when the first gates are closed.
    closed: Instant,
}

impl InRing {
    /// This instance has just started: whether anybody else caches the rows is not known yet.
    async fn wait(self, ring: Arc<Ring>) {
        let until = Instant::now() + KNOWN_WITHIN;
        while ring.admission() == Admission::Unknown && Instant::now() < until {
            if self.is_closing() {
                return not_now(self.request, STOPS);
            }
            compio::time::sleep(POLL).await;
        }
        match refusal(ring.admission()) {
            Some(reason) => not_now(self.request, reason),
            None => self.wait_and_begin(ring).await,
        }
    }

    /// Begins after a wait for the engine's journal, if it is full.
    async fn wait_and_begin(self, ring: Arc<Ring>) {
        if let Some(backpressure) = self.shared.cache.backpressure() {
            backpressure.await;
        }
        let begun = self.begin(&ring);
        self.carry_out(ring, begun).await;
    }

    fn begin(&self, ring: &Arc<Ring>) -> BegunInRing {
        let closed = Instant::now();
        let own = self.has_own_copies(&self.newest).then(|| self.begin_own(&self.touched));
        BegunInRing { write: RingWrite::begin(ring, &self.touched, self.dead_after), own, closed }
    }

    /// Whether this instance may have copies of the rows that it does not own.
    fn has_own_copies(&self, newest: &Index) -> bool {
        let cache = &self.shared.cache;
        newest.may_touch(&self.touched, |table| {
            table.is_none_or(|table| cache.is_cached_by_each(table))
        })
    }

    fn begin_own(&self, touched: &WriteScope) -> WriteInFlight {
        let InRing { shared, request, weak, dead_after, .. } = self;
        let schema = &request.client().reactor_state.front_end.schema;
        let newer = || touched.of_newer(&*shared.newest.of(schema));
        shared.cache.begin_write(touched, *weak, *dead_after, newer)
    }

    /// What keeps this instance's own copies right once the write is answered. A table may have
    /// come under a bound while it was under way, or come into being: then a read here may have
    /// missed the write, and no gate was closed. So all behind the gates is dropped, also where the
    /// write itself drops nothing: the absence of a row that it made may be cached. The client has
    /// not heard of it yet.
    /// `newest` is the schema now, `replaced` what took the names of the write's tables.
    fn own_after(
        &self,
        own: Option<WriteInFlight>,
        answered: Answered,
        newest: &Index,
        replaced: &WriteScope,
    ) -> Option<WriteInFlight> {
        if own.is_some() || answered == Answered::Refused {
            return own;
        }
        let may_have = !replaced.is_empty() || self.has_own_copies(newest);
        may_have.then(|| self.begin_own(&self.touched.clone().with_all_behind_gates()))
    }

    /// Whether the instance takes no more requests, and waits for those that it has.
    fn is_closing(&self) -> bool {
        self.request.client().reactor_state.front_end.is_closing()
    }

    /// The owners close their gates and drop the rows, the write is sent, and its client hears of
    /// it within every permit; see [`RingWrite`].
    async fn carry_out(mut self, ring: Arc<Ring>, begun: BegunInRing) {
        let BegunInRing { mut write, own, closed } = begun;
        if !write.permitted().await {
            if let Some(own) = own {
                own.settle(Answered::Refused);
            }
            in_vain::note_unsent(&self.request, &self.touched, closed);
            let reason = if self.is_closing() { STOPS } else { UNREACHABLE };
            return not_now(self.request, reason);
        }
        let answer = self.request.call().await;
        let answered = answered(&answer, &self.touched);
        let front_end = self.request.client().reactor_state.front_end.clone();
        let newest = self.shared.newest.of(&front_end.schema);
        let replaced = self.touched.replaced(&*newest);
        let own = self.own_after(own, answered, &newest, &replaced);
        let InRing { shared, request, touched, mut weak, .. } = self;
        weak |= request.went_far();
        in_vain::note(&request, &touched, &answer, closed);
        if let Answered::Unknown(reason) = answered {
            request.metrics().quarantines.inc(reason.into());
        }
        // The rows' owners dropped them before the write was sent, and none knows of all writes.
        count_outcome(&request, &touched, answered, RowOutcome::Dropped, false);
        if let Some(change) = answer.as_ref().ok().and_then(schema_change) {
            shared.schema_goes_on(Some(front_end.schema.note_change()));
            doubt_map(&shared, &change);
            weaken_replicated(&shared, &change, &newest);
        }
        let inquire = || serial::Inquiry::of(&shared, &request, &touched, answered, &newest);
        let inquiry = touched.conditional.then(inquire).flatten();
        let own = own.map(|mut own| {
            if weak {
                own.weaken();
            }
            if answered != Answered::Refused {
                own.widen(&replaced);
            }
            own
        });
        let widened = match replaced.is_empty() || answered == Answered::Refused {
            true => Verdict::Acknowledged,
            false => widen(&ring, replaced, result_of(answered, weak)).await,
        };
        let verdict = match inquiry {
            // The client hears of the unknown outcome at once, the owners when it is known.
            Some(inquiry) => {
                compio::runtime::spawn(inquiry.run_in_ring(write, own, answered)).detach();
                Verdict::Acknowledged
            }
            None => {
                own.into_iter().for_each(|own| own.settle(answered));
                write.finish(result_of(answered, weak)).await
            }
        };
        let all = [verdict, widened].iter().all(|verdict| *verdict == Verdict::Acknowledged);
        match (answer, all) {
            (Ok(answer), true) => request.relay(answer, Path::Write).await,
            (Err(error), _) => request.fail(&error),
            (Ok(answer), false) => {
                // Until a change is read, no version is vouched for.
                if schema_change(&answer).is_some() {
                    front_end.refresh_schema().await;
                }
                let level = request.consistency().unwrap_or(Consistency::Quorum);
                request.into_responder().error(&unknown_outcome(level));
            }
        }
    }
}

/// The write has ended, and may have touched tables that took the names of those it was planned
/// for. Their owners drop all of them before the client hears of it. One that cannot be told in
/// time is told later: it never heard of the write, and would serve what was before for ever.
async fn widen(ring: &Arc<Ring>, replaced: WriteScope, result: WriteResult) -> Verdict {
    if tell_owners(ring, &replaced, result).await {
        return Verdict::Acknowledged;
    }
    let ring = ring.clone();
    compio::runtime::spawn(async move { tell_until_all_know(&ring, &replaced, result).await })
        .detach();
    Verdict::Unknown
}

/// Why no write may be sent, if none may.
fn refusal(admission: Admission) -> Option<&'static str> {
    match admission {
        Admission::Open => None,
        Admission::Unknown => Some(NOT_KNOWN),
        Admission::HeldByRing => Some(HELD_BY_RING),
        Admission::HeldByInstance => Some(HELD_BY_OTHER),
    }
}

/// A write waits no longer for the database to say whether anybody else caches its rows.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at whether a write may be sent.
const POLL: Duration = Duration::from_millis(50);

const NOT_KNOWN: &str = "this instance has just started, and the database has not said whether \
     anybody else caches the written rows: try again";
const STOPS: &str = "this instance is about to stop, and cannot ask the instances that own the \
     written rows: try again at another one";
const UNREACHABLE: &str = "the instances that own the written rows cannot be reached: try again";
const HELD_BY_OTHER: &str = "an Afterglow without this ring may have the written rows cached: \
     write through it, or stop it";
const HELD_BY_RING: &str = "another ring, of another data centre or name, caches the `exclusive` \
     tables: write through it, or give all tables `max-staleness` here";

/// Nothing was sent: drivers try another instance.
pub(super) fn not_now(request: Request, reason: &str) {
    request.into_responder().error(&ErrorBody::new(ErrorCode::Overloaded, reason));
}

/// What the owners are told of an answer.
fn result_of(answered: Answered, weak: bool) -> WriteResult {
    match answered {
        Answered::Definite if weak => WriteResult::DoneWeakly,
        Answered::Definite => WriteResult::Done,
        Answered::Refused => WriteResult::Refused,
        Answered::Unknown(_) => WriteResult::Unknown,
    }
}

/// What a client hears whose write the database has done, but too late for its permits, and whose
/// rows' owners cannot be reached: as of a coordinator that does not know.
fn unknown_outcome(consistency: Consistency) -> ErrorBody<'static> {
    ErrorBody {
        code: ErrorCode::WriteTimeout,
        message: "the write may have happened: an instance that owns its rows cannot be reached",
        detail: ErrorDetail::WriteTimeout {
            consistency,
            received: 0,
            block_for: 1,
            write_type: "SIMPLE",
            contentions: None,
        },
    }
}
