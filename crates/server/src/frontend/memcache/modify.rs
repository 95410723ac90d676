//! Read-modify-writes: every command that reads an object before it changes it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use afterglow_engine::{Ack, Change, Hit, MissReason, Modified, Modify, Tier};
use afterglow_memcache::{Action, Delete, Fetched, LogEntry, Operation, Outcome, Reply};

use super::answers::Slot;
use super::metering;
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use super::store::{FoundBefore, mode};
use crate::hotkeys::Seen;
use crate::metrics::Path;

/// While the index is still loading, a read-modify-write is tried again after this long.
pub(super) const LOADING_PAUSE: Duration = Duration::from_millis(2);
/// How often it is tried again. Reads do not wait, they miss.
pub(super) const LOADING_TRIES: u32 = 2500;

impl MemcacheSession {
    /// A read-modify-write.
    pub(super) fn modify(&mut self, operation: Operation<'_>) -> Performed {
        if self.answers.conflicts(&operation.key, true) {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.put_backpressure() {
            return Performed::Full(backpressure);
        }
        let shared = Rc::new(operation.into_owned());
        let modify = begin(&self.reactor_state, &shared);
        if let Modify::Done(Ok(modified)) = &modify {
            let reactor_state = &self.reactor_state;
            let mut path = Path::Write;
            let cfd = self.answers.cfd();
            self.answers.push(|out| path = finish(reactor_state, &shared, modified, cfd, out));
            self.at_once.add(path);
            return Performed::Done;
        }
        if is_blind(&shared) && !matches!(modify, Modify::Later(_)) {
            // An index hit counts as found: another key with the same tag is rare.
            let outcome = match modify {
                Modify::Flash(read) => {
                    read.take_back();
                    Outcome::Deleted
                }
                Modify::Done(_) | Modify::Later(_) => Outcome::Missing,
            };
            self.reactor_state.counts.count(&shared.action, &outcome);
            let fetched = match outcome {
                Outcome::Deleted => Fetched::Found(0),
                _ => Fetched::Missing,
            };
            let (key, cfd) = (&*shared.key, self.answers.cfd());
            let watchers = &self.reactor_state.front_end.watchers;
            watchers.log(&LogEntry::Fetch { key, fetched, cfd });
            self.remove(&shared.key, |_| {});
            return Performed::Done;
        }
        let expected = match &modify {
            Modify::Flash(read) => read.len() as usize,
            Modify::Done(_) | Modify::Later(_) => 0,
        };
        let slot = self.answers.reserve(&shared.key, true, expected);
        let (reactor_state, received) = (self.reactor_state.clone(), self.received);
        compio::runtime::spawn(change(reactor_state, shared, modify, slot, received)).detach();
        Performed::Done
    }
}

/// Begins a read-modify-write.
pub(super) fn begin(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
) -> Modify<impl FnOnce(Option<&Hit>) -> (Change, FoundBefore) + use<>, FoundBefore> {
    #[cfg(test)]
    if reactor_state.front_end.says_loading() {
        return Modify::Done(Err(MissReason::Loading));
    }
    let (front_end, shared) = (reactor_state.front_end.clone(), operation.clone());
    let change =
        move |found: Option<&Hit>| front_end.store.change(&shared.key, &shared.action, found);
    reactor_state.front_end.store.objects.modify(&operation.key, change)
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
    for _ in 0..LOADING_TRIES {
        if !matches!(outcome, Err(MissReason::Loading | MissReason::Moved | MissReason::Busy)) {
            break;
        }
        compio::time::sleep(reactor_state.front_end.loading_pause).await;
        outcome = drive(&reactor_state, begin(&reactor_state, &operation)).await;
    }
    if outcome.is_err() && !matches!(operation.action, Action::Get(_)) {
        // A client that asked for a change does not expect the old value. It is removed, as for any
        // refused write.
        remove_unseen(&reactor_state, &operation.key).await;
    }
    let (mut path, cfd) = (Path::Write, slot.cfd());
    slot.answer(|out| match outcome {
        Ok(modified) => path = finish(&reactor_state, &operation, &modified, cfd, out),
        Err(reason) => {
            tracing::debug!(?reason, "an object could not be looked at to be changed");
            let failed = match operation.action {
                // A read misses, as for any object that cannot be read. There is nothing to remove.
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
            operation.reply.outcome(&operation.key, &failed, mode(&operation.action), 0, out);
        }
    });
    reactor_state.metrics.took(path, received.elapsed(), || {
        metering::slow(metering::name(&operation.action), &operation.key)
    });
}

/// Removes an object that could not be read, and waits until the removal is as durable as the
/// namespace asks for.
async fn remove_unseen(reactor_state: &MemcacheReactorState, key: &[u8]) {
    let store = &reactor_state.front_end.store;
    while let Some(backpressure) = store.objects.backpressure() {
        backpressure.await;
    }
    if let Ack::Later(pending) = store.remove(key) {
        pending.await;
    }
}

/// Whether it removes the object whatever it is, and does not answer with its value.
fn is_blind(operation: &Operation<'_>) -> bool {
    let plain = |delete: &Delete| delete.cas.is_none() && !delete.mark_stale && !delete.value_only;
    matches!(operation.reply, Reply::Text { quiet: true })
        && matches!(&operation.action, Action::Delete(delete) if plain(delete))
}

async fn drive<F>(
    reactor_state: &MemcacheReactorState,
    mut modify: Modify<F, FoundBefore>,
) -> Result<Modified<FoundBefore>, MissReason>
where
    F: FnOnce(Option<&Hit>) -> (Change, FoundBefore),
{
    loop {
        modify = match modify {
            Modify::Done(outcome) => return outcome,
            Modify::Later(pending) => return Ok(pending.await),
            Modify::Flash(read) => {
                let bytes = reactor_state.read(read.device(), read.offset(), read.len()).await;
                read.finish(bytes)
            }
        };
    }
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
    out: &mut Vec<u8>,
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
