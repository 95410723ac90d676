//! Read-modify-writes: commands that read an object before they change it. These are `add`,
//! `replace`, `append`, `prepend`, `cas`, `incr`, `decr`, `touch`, `gat`, and most deletes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use afterglow_engine::device::AlignedBuf;
use afterglow_engine::{Change, Hit, MissReason, Modified, Modify, Tier};
use afterglow_memcache::{Action, Operation, Outcome};

use super::answers::Slot;
use super::delete::{is_blind_delete, remove_unseen, removes_unseen};
use super::driving::{begin, begin_again, drive};
use super::joining::settle;
use super::metering;
use super::outgoing::Outgoing;
use super::reactor_state::MemcacheReactorState;
use super::sending::send;
use super::session::{MemcacheSession, Performed};
use super::store::{FoundBefore, mode};
use crate::hotkeys::Seen;
use crate::metrics::Path;

/// While the index is still loading, a read-modify-write is tried again after this long, and then
/// after twice as long each time.
pub(super) const LOADING_PAUSE: Duration = Duration::from_millis(2);
/// So often the pause is doubled.
const LOADING_DOUBLINGS: u32 = 5;
/// How often it is tried again: five seconds in all. Reads do not wait, they miss.
pub(super) const LOADING_TRIES: u32 = 82;

impl MemcacheSession {
    /// A read-modify-write.
    pub(super) fn modify(&mut self, operation: Operation<'_>) -> Performed {
        // Until it is answered it holds what it stores.
        let stores = match &operation.action {
            Action::Store(store) => store.value.len(),
            Action::Get(_) | Action::Delete(_) | Action::Arithmetic(_) => 0,
        };
        // A line may name many keys: there must be room for the answer to each.
        if self.answers.conflicts(&operation.key, true) || !self.answers.has_room(stores) {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.put_backpressure() {
            return Performed::Full(backpressure);
        }
        let (shared, room) = (Rc::new(operation.into_owned()), self.room.clone());
        let (modify, granted) = self
            .room
            .while_asked(|| begin(&self.reactor_state, &shared, move |len| room.grants(len)));
        if let Modify::Done(Ok(modified)) = &modify
            && !modified.returned.in_parts()
        {
            if modified.returned.lacked_room() {
                return Performed::Blocked;
            }
            let reactor_state = &self.reactor_state;
            let mut path = Path::Write;
            let cfd = self.answers.cfd();
            self.answers
                .push_sharing(|out| path = finish(reactor_state, &shared, modified, cfd, out));
            self.at_once.add(path);
            return Performed::Done;
        }
        if is_blind_delete(&shared) && !matches!(modify, Modify::Later(_) | Modify::Done(Ok(_))) {
            return self.delete_blindly(&shared, modify);
        }
        let expected = match modify {
            Modify::Flash(read) if !self.answers.has_room(held(read.len()) + stores) => {
                // It is looked up again when there is room.
                read.take_back();
                return Performed::Blocked;
            }
            Modify::Flash(ref read) => held(read.len()) + stores,
            Modify::Done(_) | Modify::Later(_) => granted + stores,
        };
        let slot = self.answers.reserve(&shared.key, true, expected);
        let (reactor_state, received) = (self.reactor_state.clone(), self.received);
        compio::runtime::spawn(change(reactor_state, shared, modify, slot, received)).detach();
        Performed::Done
    }
}

/// Bytes that a read of so many from flash takes.
fn held(len: u32) -> usize {
    AlignedBuf::read_capacity(len as usize)
}

/// Goes on with a read-modify-write until it is done.
pub(super) async fn change<F>(
    reactor_state: Rc<MemcacheReactorState>,
    operation: Rc<Operation<'static>>,
    modify: Modify<F, FoundBefore>,
    slot: Slot,
    received: Instant,
) where
    F: FnOnce(Option<&Hit>) -> (Change, FoundBefore),
{
    let mut outcome = drive(&reactor_state, modify).await;
    for tried in 0..LOADING_TRIES {
        if !matches!(outcome, Err(MissReason::Loading | MissReason::Moved | MissReason::Busy)) {
            break;
        }
        let pause = reactor_state.front_end.loading_pause * (1 << tried.min(LOADING_DOUBLINGS));
        compio::time::sleep(pause).await;
        outcome = drive(&reactor_state, begin_again(&reactor_state, &operation)).await;
    }
    let (mut shown, mut is_settled) = (None, false);
    if let Ok(modified) = &outcome
        && modified.returned.in_parts()
    {
        let modified = outcome.expect("looked at above");
        is_settled = true;
        // Rare and large, as its future is.
        let settled = Box::pin(settle(&reactor_state, &operation, modified, &slot)).await;
        outcome = settled.map(|(modified, first)| {
            shown = first;
            modified
        });
    }
    let store = &reactor_state.front_end.store;
    if outcome.is_err() && !is_settled && removes_unseen(&operation.action, store.now()) {
        // As for any refused write.
        remove_unseen(&reactor_state, &operation.key).await;
    }
    if let (Some(first), Ok(modified)) = (shown, &outcome) {
        let mut text = Outgoing::default();
        let path = finish(&reactor_state, &operation, modified, slot.cfd(), &mut text);
        Box::pin(send(&reactor_state, slot, &operation.key, first, text)).await;
        return reactor_state.metrics.took(path, received.elapsed(), || {
            metering::slow(metering::name(&operation.action), &operation.key)
        });
    }
    let (mut path, cfd) = (Path::Write, slot.cfd());
    slot.answer_sharing(|out| match outcome {
        Ok(modified) => path = finish(&reactor_state, &operation, &modified, cfd, out),
        Err(reason) => {
            tracing::debug!(?reason, "an object could not be read to be changed");
            let failed = match operation.action {
                // A read misses, as for any object that cannot be read.
                Action::Get(_) => {
                    path = Path::Miss;
                    Outcome::Missing
                }
                Action::Delete(_) => Outcome::Missing,
                Action::Store(_) | Action::Arithmetic(_) => Outcome::Failed,
            };
            reactor_state.counts.count(&operation.action, &failed);
            count_read(&reactor_state, &operation.action, Err(reason));
            let Operation { key, action, .. } = &*operation;
            reactor_state.front_end.log_change(key, action, Err(reason), &failed, cfd);
            let (mode, out) = (mode(&operation.action), out.text());
            operation.reply.outcome(&operation.key, &failed, mode, 0, out);
        }
    });
    reactor_state.metrics.took(path, received.elapsed(), || {
        metering::slow(metering::name(&operation.action), &operation.key)
    });
}

/// Counts a lookup that changes its object, such as `gat` and `touch`, like any other read: where
/// the object was, or why there was none.
fn count_read(
    reactor_state: &MemcacheReactorState,
    action: &Action<'_>,
    found: Result<Tier, MissReason>,
) {
    match (action, found) {
        (Action::Get(get), _) if get.debug => {}
        (Action::Get(_), Ok(tier)) => reactor_state.metrics.hits.inc(tier.into()),
        (Action::Get(_), Err(reason)) => reactor_state.metrics.misses.inc(reason.into()),
        _ => {}
    }
}

/// Answers a read-modify-write whose change is made. Returns how it was answered.
fn finish(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
    modified: &Modified<FoundBefore>,
    cfd: i32,
    out: &mut Outgoing,
) -> Path {
    let Operation { key, action, reply } = operation;
    reactor_state.metrics.hot.see(|| Seen::Key(key));
    let mut path = Path::Write;
    let count = |outcome: &Outcome<'_>| {
        reactor_state.counts.count(action, outcome);
        let tier = modified.returned.tier().filter(|_| *outcome != Outcome::Missing);
        count_read(reactor_state, action, tier.ok_or(MissReason::Absent));
        let found = modified.returned.hit().ok_or(MissReason::Absent);
        reactor_state.front_end.log_change(key, action, found, outcome, cfd);
        if matches!(action, Action::Get(_)) && *outcome == Outcome::Missing {
            path = Path::Miss;
        }
    };
    reactor_state.front_end.store.answer_change(key, action, modified, reply, count, out);
    path
}
