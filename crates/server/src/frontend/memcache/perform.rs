//! Carrying requests out: at once where the cache knows, in a task of its own where flash has to be read, answered in order
//! either way.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_engine::{Ack, Hit, Lookup, MissReason, Modified, Modify, PREFETCHED, PutOutcome, Tier};
use afterglow_memcache::{
    Action, Delete, Dump, Get, Keys, Mode, NewCas, NewItem, NewValue, Operation, Outcome, Reply, Request,
    Store as Storing, absolute,
};

use super::answers::Slot;
use super::dump::{Running, Step};
use super::flush::Flushed;
use super::reactor_state::MemcacheReactorState;
use super::session::{MemcacheSession, Performed};
use super::shared::MemcacheShared;
use super::store::{FoundBefore, Store, mode};
use super::version::version;
use super::{stats, tls};
use crate::metrics::Path;

/// While the cache is still loading what it knew, a read-modify-write is tried again after this long.
pub(super) const LOADING_PAUSE: Duration = Duration::from_millis(2);
/// So often; reads do not wait, they miss.
pub(super) const LOADING_TRIES: u32 = 2500;

impl MemcacheSession {
    /// Carries a request out.
    pub fn perform(&mut self, request: Request<'_>) -> Performed {
        if !self.answers.has_room(0) {
            return Performed::Blocked;
        }
        match request {
            Request::Retrieve { keys, get, reply } => return self.retrieve(keys, get, &reply),
            Request::Operation(operation) => return self.operation(operation),
            Request::TooLarge { key, remove, reply } => return self.too_large(&key, remove, reply),
            Request::Answer { bytes, close } => {
                self.answers.push(|out| out.extend_from_slice(&bytes));
                self.at_once.add(Path::Local);
                if close {
                    return Performed::Close;
                }
            }
            Request::Stats { argument, reply } => {
                let performed = stats::answer(self, argument, &reply);
                if matches!(performed, Performed::Done) {
                    self.at_once.add(Path::Local);
                }
                return performed;
            }
            Request::Dump(dump) => {
                let performed = self.dump(dump);
                if matches!(performed, Performed::Done) {
                    self.at_once.add(Path::Local);
                }
                return performed;
            }
            Request::Flush { reply, .. } if !self.reactor_state.front_end.config.flush_enabled => {
                self.reactor_state.counts.cmd_flush.inc();
                self.answers.push(|out| reply.no_flush(out));
            }
            Request::Flush { delay: Some(delay), reply } => return self.flush(delay, &reply),
            Request::Flush { delay: None, reply } => {
                self.reactor_state.counts.cmd_flush.inc();
                self.answers.push(|out| reply.bad_expiry(out));
            }
            Request::Version(reply) => self.answers.push(|out| reply.version(&version(), out)),
            Request::Authenticate { user, password, reply } => {
                let users = self.reactor_state.front_end.users.read();
                let accepted = users.as_ref().is_some_and(|users| users.knows(user, password));
                self.reactor_state.counts.auth_cmds.inc();
                if !accepted {
                    self.reactor_state.counts.auth_errors.inc();
                }
                self.answers.push(|out| reply.authenticated(accepted, out));
                self.at_once.add(Path::Local);
                if accepted {
                    return Performed::Authenticated;
                }
            }
            Request::MemoryLimit { megabytes, quiet } => {
                self.limit_memory(megabytes, quiet);
                return Performed::Done;
            }
            Request::RefreshCertificates => {
                let line = tls::refresh(self.reactor_state.front_end.config.tls.as_ref());
                self.answers.push(|out| out.extend_from_slice(line.as_bytes()));
            }
        }
        self.at_once.add(Path::Local);
        Performed::Done
    }

    /// Begins a dump, or goes on with it.
    fn dump(&mut self, dump: Dump) -> Performed {
        // What is before it is answered first, and its own pieces come one after the other.
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        if self.dump.is_none() {
            match Running::begin(&self.reactor_state.front_end, dump) {
                Ok(running) => self.dump = Some(running),
                Err(answer) => {
                    self.answers.push(|out| out.extend_from_slice(answer));
                    return Performed::Done;
                }
            }
        }
        let step = self.dump.as_ref().expect("begun above").advance(&self.answers);
        if step != Step::Waits {
            self.dump = None;
        }
        match step {
            Step::Waits => Performed::Blocked,
            Step::Over => Performed::Done,
            Step::Torn => Performed::Close,
        }
    }

    /// What no longer fits goes to flash first, so this is not for a thread that others wait for.
    fn limit_memory(&self, megabytes: u32, quiet: bool) {
        // No object has this key.
        let slot = self.answers.reserve(&[], true, 0);
        let (reactor_state, received) = (self.reactor_state.clone(), self.received);
        compio::runtime::spawn(async move {
            let front_end = reactor_state.front_end.clone();
            let limit = move || {
                let withheld = front_end.config.memory.checked_sub(u64::from(megabytes) << 20);
                withheld.is_some_and(|bytes| front_end.cache.withhold_dram(bytes))
            };
            let answer: &[u8] = match compio::runtime::spawn_blocking(limit).await {
                _ if quiet => b"",
                Ok(true) => b"OK\r\n",
                _ => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
            };
            slot.answer(|out| out.extend_from_slice(answer));
            reactor_state.metrics.latency.of(Path::Local).record(received.elapsed());
        })
        .detach();
    }

    /// A store that is refused; what it was to take the place of goes.
    fn too_large(&mut self, key: &[u8], remove: bool, reply: Reply<'_>) -> Performed {
        if self.answers.conflicts(key, true) {
            return Performed::Blocked;
        }
        if remove && let Some(backpressure) = self.store().objects.backpressure() {
            return Performed::Full(backpressure);
        }
        self.reactor_state.counts.store_too_large.inc();
        let (named, reply) = (Box::<[u8]>::from(key), reply.into_owned());
        let answer = move |out: &mut Vec<u8>| reply.outcome(&named, &Outcome::TooLarge, None, 0, out);
        match remove {
            true => self.remove(key, answer),
            false => {
                self.answers.push(answer);
                self.at_once.add(Path::Write);
            }
        }
        Performed::Done
    }

    /// Removes an object without looking; the answer is given once that is where it survives what the namespace's durability
    /// says.
    fn remove(&mut self, key: &[u8], answer: impl FnOnce(&mut Vec<u8>) + 'static) {
        match self.store().remove(key) {
            Ack::Done(_) => {
                self.answers.push(answer);
                self.at_once.add(Path::Write);
            }
            Ack::Later(pending) => {
                let slot = self.answers.reserve(key, true, 0);
                let (reactor_state, received) = (self.reactor_state.clone(), self.received);
                compio::runtime::spawn(async move {
                    pending.await;
                    slot.answer(answer);
                    reactor_state.metrics.latency.of(Path::Write).record(received.elapsed());
                })
                .detach();
            }
        }
    }

    /// Drops everything if that is due; whoever comes next sees none of it.
    pub fn flush_if_due(&self) {
        if let Some(flushed) = self.store().flush_if_due() {
            compio::runtime::spawn(flush_to_disk(self.reactor_state.front_end.clone(), Ok(flushed))).detach();
        }
    }

    fn flush(&mut self, delay: i64, reply: &Reply<'_>) -> Performed {
        if !self.answers.is_complete() {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.backpressure() {
            return Performed::Full(backpressure);
        }
        self.reactor_state.counts.cmd_flush.inc();
        let flushed = self.store().flush(delay);
        // No object has this key.
        let slot = self.answers.reserve(&[], true, 0);
        let (reactor_state, reply) = (self.reactor_state.clone(), reply.clone().into_owned());
        let received = self.received;
        compio::runtime::spawn(async move {
            let outcome = flush_to_disk(reactor_state.front_end.clone(), flushed).await;
            slot.answer(|out| match outcome {
                Ok(()) => reply.done(out),
                Err(error) => {
                    tracing::error!(%error, "a flush_all cannot be scheduled");
                    reply.outcome(&[], &Outcome::Failed, None, 0, out);
                }
            });
            reactor_state.metrics.latency.of(Path::Write).record(received.elapsed());
        })
        .detach();
        Performed::Done
    }

    fn retrieve(&mut self, keys: Keys<'_>, get: Get, reply: &Reply<'_>) -> Performed {
        let mut ahead = keys.iter().skip(self.resume);
        let several = get.is_plain() && keys.iter().nth(1).is_some();
        for (number, key) in keys.iter().enumerate().skip(self.resume) {
            if several && (number - self.resume).is_multiple_of(PREFETCHED) {
                self.store().objects.prefetch(ahead.by_ref());
            }
            let performed = match get.is_plain() {
                true => self.get(key, get, reply),
                false => {
                    let operation =
                        Operation { key: key.into(), action: Action::Get(get), reply: reply.clone() };
                    self.modify(operation)
                }
            };
            if matches!(performed, Performed::Blocked | Performed::Full(_)) {
                self.resume = number;
                return performed;
            }
        }
        self.resume = 0;
        self.answers.push(|out| out.extend_from_slice(Reply::END));
        Performed::Done
    }

    fn operation(&mut self, operation: Operation<'_>) -> Performed {
        if matches!(operation.reply, Reply::Meta(_)) {
            self.reactor_state.counts.cmd_meta.inc();
        }
        match &operation.action {
            Action::Get(get) if get.is_plain() => self.get(&operation.key, *get, &operation.reply),
            Action::Store(Storing { mode: Mode::Set, .. }) => self.set(&operation),
            Action::Store(_) | Action::Get(_) | Action::Delete(_) | Action::Arithmetic(_) => {
                self.modify(operation)
            }
        }
    }

    fn set(&mut self, operation: &Operation<'_>) -> Performed {
        let Action::Store(store) = &operation.action else { unreachable!("the caller looked") };
        if self.answers.conflicts(&operation.key, true) {
            return Performed::Blocked;
        }
        if let Some(backpressure) = self.store().objects.put_backpressure() {
            return Performed::Full(backpressure);
        }
        let shared = &self.reactor_state.front_end.store;
        let new = NewItem {
            value: NewValue::Parts([&store.value, &[]]),
            flags: store.flags,
            expiry: absolute(store.ttl, shared.now()),
            cas: NewCas::from(store.new_cas),
            stale: false,
            token_sent: false,
            binary_key: store.binary_key,
        };
        let cas = new.cas;
        let mut scratch = self.reactor_state.scratch.take();
        let ack = shared.put(&operation.key, &new, &mut scratch);
        if scratch.capacity() <= super::budget::FREE {
            self.reactor_state.scratch.set(scratch);
        }
        let size = store.value.len();
        match ack {
            Ack::Done(put) => {
                let reactor_state = &self.reactor_state;
                self.answers.push(|out| answer_set(reactor_state, operation, put, (cas, size), out));
                self.at_once.add(Path::Write);
            }
            Ack::Later(pending) => {
                let slot = self.answers.reserve(&operation.key, true, 0);
                let (reactor_state, operation) = (self.reactor_state.clone(), operation.clone().into_owned());
                let received = self.received;
                compio::runtime::spawn(async move {
                    let put = pending.await;
                    slot.answer(|out| answer_set(&reactor_state, &operation, put, (cas, size), out));
                    reactor_state.metrics.latency.of(Path::Write).record(received.elapsed());
                })
                .detach();
            }
        }
        Performed::Done
    }

    /// A read that changes nothing.
    fn get(&mut self, key: &[u8], get: Get, reply: &Reply<'_>) -> Performed {
        if self.answers.conflicts(key, false) || !self.answers.has_room(0) {
            return Performed::Blocked;
        }
        match self.store().objects.get(key) {
            Lookup::Hit(hit) => {
                if !self.answers.has_room(hit.value.len()) {
                    return Performed::Blocked;
                }
                if get.can_win && Store::read_changes(&hit) {
                    let operation =
                        Operation { key: key.into(), action: Action::Get(get), reply: reply.clone() };
                    return self.modify(operation);
                }
                let is_hit =
                    get_answer(&self.reactor_state, key, get, ReadOutcome::Hit(&hit), reply, |write| {
                        self.answers.push(write)
                    });
                self.at_once.add(if is_hit { Path::Dram } else { Path::Miss });
                Performed::Done
            }
            Lookup::Miss(reason) => {
                get_answer(&self.reactor_state, key, get, ReadOutcome::Miss(reason), reply, |write| {
                    self.answers.push(write)
                });
                self.at_once.add(Path::Miss);
                Performed::Done
            }
            Lookup::Flash(read) => {
                if !self.answers.has_room(read.len() as usize) {
                    // Looked up again when there is room, and counted then.
                    read.take_back();
                    return Performed::Blocked;
                }
                let slot = self.answers.reserve(key, false, read.len() as usize);
                let task = ReadTask {
                    reactor_state: self.reactor_state.clone(),
                    key: key.into(),
                    get,
                    reply: reply.clone().into_owned(),
                    received: self.received,
                };
                compio::runtime::spawn(task.run(Lookup::Flash(read), slot)).detach();
                Performed::Done
            }
        }
    }

    /// A read-modify-write.
    fn modify(&mut self, operation: Operation<'_>) -> Performed {
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
            self.answers.push(|out| path = finish(reactor_state, &shared, modified, out));
            self.at_once.add(path);
            return Performed::Done;
        }
        if is_blind(&shared) && !matches!(modify, Modify::Later(_)) {
            // What the index points at counts as found: a key with the same mark is rare.
            let outcome = match modify {
                Modify::Flash(read) => {
                    read.take_back();
                    Outcome::Deleted
                }
                Modify::Done(_) | Modify::Later(_) => Outcome::Missing,
            };
            self.reactor_state.counts.count(&shared.action, &outcome);
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

/// Waits until a flush, or the second in which there is to be one, is where it survives what the namespace's durability says.
async fn flush_to_disk(
    front_end: Arc<MemcacheShared>,
    flushed: Result<Flushed<Ack<u64>>, u64>,
) -> io::Result<()> {
    let due = match flushed {
        Ok(Flushed { outcome, scheduled }) => {
            if let Ack::Later(pending) = outcome {
                pending.await;
            }
            if !scheduled {
                return Ok(());
            }
            None
        }
        Err(due) => Some(due),
    };
    // The file is a matter of the disk: not on this thread, which has others to serve.
    let change = move || {
        let schedule = front_end.store.schedule();
        match due {
            Some(due) => schedule.schedule(due),
            None => {
                schedule.forget();
                Ok(())
            }
        }
    };
    compio::runtime::spawn_blocking(change).await?
}

/// Answers a store that did not look at what was there.
fn answer_set(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
    put: PutOutcome,
    (cas, size): (NewCas, usize),
    out: &mut Vec<u8>,
) {
    let store = &reactor_state.front_end.store;
    let outcome = store.stored(&operation.key, put, Outcome::Stored { cas: 0, size }, cas);
    reactor_state.counts.count(&operation.action, &outcome);
    operation.reply.outcome(&operation.key, &outcome, Some(Mode::Set), 0, out);
}

/// What a read came to.
#[derive(Clone, Copy)]
enum ReadOutcome<'a> {
    Hit(&'a Hit),
    Miss(MissReason),
}

/// Answers a read and counts it; whether it was a hit.
fn get_answer(
    reactor_state: &MemcacheReactorState,
    key: &[u8],
    get: Get,
    found: ReadOutcome<'_>,
    reply: &Reply<'_>,
    push: impl FnOnce(&mut dyn FnMut(&mut Vec<u8>)),
) -> bool {
    let store = &reactor_state.front_end.store;
    let mut is_hit = false;
    push(&mut |out| {
        is_hit = match found {
            ReadOutcome::Hit(hit) => store.answer_hit(key, hit, reply, get.silent, out),
            ReadOutcome::Miss(_) => false,
        };
        if !is_hit {
            reply.outcome(key, &Outcome::Missing, None, 0, out);
        }
    });
    if get.debug {
        return is_hit;
    }
    reactor_state.counts.cmd_get.inc();
    let reason = match found {
        ReadOutcome::Hit(hit) if is_hit => {
            reactor_state.counts.get_hits.inc();
            reactor_state.metrics.hits.inc(hit.tier.into());
            return true;
        }
        ReadOutcome::Hit(_) => MissReason::Corrupt,
        ReadOutcome::Miss(reason) => reason,
    };
    reactor_state.counts.missed(reason);
    reactor_state.metrics.misses.inc(reason.into());
    is_hit
}

/// A read that waits for flash.
struct ReadTask {
    reactor_state: Rc<MemcacheReactorState>,
    key: Box<[u8]>,
    get: Get,
    reply: Reply<'static>,
    received: Instant,
}

impl ReadTask {
    async fn run(self, mut lookup: Lookup, slot: Slot) {
        let found = loop {
            match lookup {
                Lookup::Flash(read) => {
                    let bytes = self.reactor_state.read(read.device(), read.offset(), read.len()).await;
                    lookup = read.finish(bytes);
                }
                Lookup::Hit(hit) => break Ok(hit),
                Lookup::Miss(reason) => break Err(reason),
            }
        };
        let Self { reactor_state, key, get, reply, received } = self;
        if let Ok(hit) = &found
            && get.can_win
            && Store::read_changes(hit)
        {
            let operation = Operation { key: key.into_vec().into(), action: Action::Get(get), reply };
            let operation = Rc::new(operation);
            let modify = begin(&reactor_state, &operation);
            // Rare, and large: in a box, so that the memory of every read stays of a size that is cheap to come by.
            return Box::pin(change(reactor_state, operation, modify, slot, received)).await;
        }
        let what = found.as_ref().map_or_else(|reason| ReadOutcome::Miss(*reason), ReadOutcome::Hit);
        let is_hit = get_answer(&reactor_state, &key, get, what, &reply, |write| slot.answer(write));
        let path = if is_hit { Path::Flash } else { Path::Miss };
        reactor_state.metrics.latency.of(path).record(received.elapsed());
    }
}

/// Begins a read-modify-write.
fn begin(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
) -> Modify<impl FnOnce(Option<&Hit>) -> (afterglow_engine::Change, FoundBefore) + use<>, FoundBefore> {
    #[cfg(test)]
    if reactor_state.front_end.says_loading() {
        return Modify::Done(Err(MissReason::Loading));
    }
    let (front_end, shared) = (reactor_state.front_end.clone(), operation.clone());
    let change = move |found: Option<&Hit>| front_end.store.change(&shared.key, &shared.action, found);
    reactor_state.front_end.store.objects.modify(&operation.key, change)
}

/// Goes on with a read-modify-write until it is done.
async fn change<F>(
    reactor_state: Rc<MemcacheReactorState>,
    operation: Rc<Operation<'static>>,
    modify: Modify<F, FoundBefore>,
    slot: Slot,
    received: Instant,
) where
    F: FnOnce(Option<&Hit>) -> (afterglow_engine::Change, FoundBefore),
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
        // Whoever asked for a change does not expect the old value: it goes, as that of any refused write.
        remove_unseen(&reactor_state, &operation.key).await;
    }
    let mut path = Path::Write;
    slot.answer(|out| match outcome {
        Ok(modified) => path = finish(&reactor_state, &operation, &modified, out),
        Err(reason) => {
            tracing::debug!(?reason, "an object could not be looked at to be changed");
            let failed = match operation.action {
                // A read misses, as any read of what cannot be read does; and there is nothing left to be removed.
                Action::Get(_) => {
                    path = Path::Miss;
                    Outcome::Missing
                }
                Action::Delete(_) => Outcome::Missing,
                Action::Store(_) | Action::Arithmetic(_) => Outcome::Failed,
            };
            reactor_state.counts.count(&operation.action, &failed);
            count_read(&reactor_state, &operation.action, Err(reason));
            operation.reply.outcome(&operation.key, &failed, mode(&operation.action), 0, out);
        }
    });
    reactor_state.metrics.latency.of(path).record(received.elapsed());
}

/// Removes what could not be looked at, and waits until that is where it survives what the namespace's durability says.
async fn remove_unseen(reactor_state: &MemcacheReactorState, key: &[u8]) {
    let store = &reactor_state.front_end.store;
    while let Some(backpressure) = store.objects.backpressure() {
        backpressure.await;
    }
    if let Ack::Later(pending) = store.remove(key) {
        pending.await;
    }
}

/// Whether it removes the object whatever it is, and tells nobody what it was.
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
    F: FnOnce(Option<&Hit>) -> (afterglow_engine::Change, FoundBefore),
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

/// Counts a look-up that changes what it finds, such as `gat` and `touch`, as any other read: where its object was, or why there was none.
fn count_read(reactor_state: &MemcacheReactorState, action: &Action<'_>, found: Result<Tier, MissReason>) {
    match (action, found) {
        (Action::Get(get), _) if get.debug => {}
        (Action::Get(_), Ok(tier)) => reactor_state.metrics.hits.inc(tier.into()),
        (Action::Get(_), Err(reason)) => reactor_state.metrics.misses.inc(reason.into()),
        _ => {}
    }
}

/// Answers a read-modify-write whose change is made; the way it was answered.
fn finish(
    reactor_state: &MemcacheReactorState,
    operation: &Operation<'_>,
    modified: &Modified<FoundBefore>,
    out: &mut Vec<u8>,
) -> Path {
    let Operation { key, action, reply } = operation;
    let mut path = Path::Write;
    let count = |outcome: &Outcome<'_>| {
        reactor_state.counts.count(action, outcome);
        let tier = modified.returned.tier().filter(|_| *outcome != Outcome::Missing);
        count_read(reactor_state, action, tier.ok_or(MissReason::Absent));
        if matches!(action, Action::Get(_)) && *outcome == Outcome::Missing {
            path = Path::Miss;
        }
    };
    reactor_state.front_end.store.answer_change(key, action, modified, reply, count, out);
    path
}
