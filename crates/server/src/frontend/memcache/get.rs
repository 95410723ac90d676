//! Gets that change nothing. A hit in memory is answered at once; a read of flash runs in a task of
//! its own. [`perform`](super::perform) calls them, [`answers`](super::answers) takes the answer.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterglow_engine::device::AlignedBuf;
use afterglow_engine::{FlashRead, Hit, Lookup, MissReason, PREFETCHED, Peek};
use afterglow_memcache::{Action, Get, Keys, Operation, Outcome, Reply, keys_ahead};

use super::answers::Slot;
use super::driving::begin;
use super::metering::slow;
use super::modify::change;
use super::object;
use super::outgoing::Outgoing;
use super::reactor_state::MemcacheReactorState;
use super::sending::{first_part, send};
use super::session::{MemcacheSession, Performed};
use super::store::Store;
use crate::hotkeys::Seen;
use crate::metrics::Path;
use crate::slow_log::SlowRequest;

impl MemcacheSession {
    /// Answers the keys of one command in their order. Continues where it was blocked.
    pub(super) fn retrieve(&mut self, keys: Keys<'_>, get: Get, reply: &Reply<'_>) -> Performed {
        let several = get.is_plain() && keys.iter().nth(1).is_some();
        let mut done = self.resume;
        for (end, key) in keys.behind(done) {
            if several && done >= self.announced {
                let mut announced = done;
                let ahead = keys.behind(done).take(PREFETCHED);
                self.store().prefetch(ahead.map(|(end, key)| {
                    announced = end;
                    key
                }));
                self.announced = announced;
            }
            let performed = match get.is_plain() {
                true => self.get(key, get, reply),
                false => {
                    let operation = Operation {
                        key: key.into(),
                        action: Action::Get(get),
                        reply: reply.clone(),
                    };
                    self.modify(operation)
                }
            };
            if matches!(performed, Performed::Blocked | Performed::Full(_)) {
                self.resume = done;
                return performed;
            }
            done = end;
        }
        (self.resume, self.announced) = (0, 0);
        self.answers.push(|out| out.extend_from_slice(Reply::END));
        Performed::Done
    }

    /// A request was carried out: a get if `is_get`. `input` has come behind it. Behind a get, gets
    /// of one object are asked of memory together, at most `most`. Not while that was done for some
    /// of them.
    pub(super) fn prefetch_ahead(&mut self, input: &[u8], is_get: bool, most: usize) {
        self.ahead = match self.ahead {
            0 | 1 if is_get => self.prefetch_gets(input, most),
            ahead => ahead.saturating_sub(1),
        };
    }

    /// Asks memory for gets of one object at the front of `input`, at most `most`; how many.
    fn prefetch_gets(&self, input: &[u8], most: usize) -> usize {
        let mut keys = [&[][..]; PREFETCHED];
        let mut len = 0;
        for (place, key) in keys.iter_mut().take(most).zip(keys_ahead(input)) {
            *place = key;
            len += 1;
        }
        // One alone would be waited for as long here as when it is carried out.
        if len > 1 {
            self.store().prefetch(keys[..len].iter().copied());
        }
        len
    }

    /// A read that changes nothing.
    pub(super) fn get(&mut self, key: &[u8], get: Get, reply: &Reply<'_>) -> Performed {
        if self.answers.conflicts(key, false) || !self.answers.has_room(0) {
            return Performed::Blocked;
        }
        match self.look_up(key) {
            Lookup::Hit(hit)
                if object::is_in_parts(&hit) && !(get.can_win && Store::read_changes(&hit)) =>
            {
                let slot = self.answers.reserve(key, false, 0);
                let task = self.read_task(key.into(), get, reply);
                compio::runtime::spawn(task.in_parts(hit, slot, Duration::ZERO)).detach();
                Performed::Done
            }
            Lookup::Hit(hit) => {
                if !self.answers.has_room(hit.value.len()) {
                    self.counted = true;
                    return Performed::Blocked;
                }
                if get.can_win && Store::read_changes(&hit) {
                    let operation = Operation {
                        key: key.into(),
                        action: Action::Get(get),
                        reply: reply.clone(),
                    };
                    return self.modify(operation);
                }
                let is_hit = get_answer(
                    &self.reactor_state,
                    (key, self.answers.cfd()),
                    get,
                    ReadOutcome::Hit(&hit),
                    reply,
                    |write| self.answers.push_sharing(write),
                );
                self.at_once.add(if is_hit { Path::Dram } else { Path::Miss });
                Performed::Done
            }
            Lookup::Miss(reason) => {
                get_answer(
                    &self.reactor_state,
                    (key, self.answers.cfd()),
                    get,
                    ReadOutcome::Miss(reason),
                    reply,
                    |write| self.answers.push_sharing(write),
                );
                self.at_once.add(Path::Miss);
                Performed::Done
            }
            Lookup::Flash(read) => {
                let held = AlignedBuf::read_capacity(read.len() as usize);
                if !self.answers.has_room(held) {
                    // The key is looked up again when there is space, and counted then.
                    read.take_back();
                    return Performed::Blocked;
                }
                // Before it is counted as held: what is kept for reads shrinks by what others hold.
                let buf = AlignedBuf::for_read(read.len() as usize);
                let slot = self.answers.reserve(key, false, held);
                let task = self.read_task(read.key().clone(), get, reply);
                compio::runtime::spawn(task.run(read, buf, slot)).detach();
                Performed::Done
            }
        }
    }

    /// Looks a key up. What was found in memory, and then had no room, was counted then.
    fn look_up(&mut self, key: &[u8]) -> Lookup {
        if std::mem::take(&mut self.counted)
            && let Peek::Dram(hit) = self.store().objects.peek(key)
        {
            return Lookup::Hit(hit);
        }
        self.store().objects.get(key)
    }

    fn read_task(&self, key: Arc<[u8]>, get: Get, reply: &Reply<'_>) -> ReadTask {
        ReadTask {
            reactor_state: self.reactor_state.clone(),
            key,
            get,
            reply: reply.clone().into_owned(),
            received: self.received,
        }
    }
}

/// The outcome of a read.
#[derive(Clone, Copy)]
enum ReadOutcome<'a> {
    Hit(&'a Hit),
    Miss(MissReason),
}

/// Answers a read of a connection with descriptor `cfd` and counts it; whether it was a hit.
fn get_answer(
    reactor_state: &MemcacheReactorState,
    (key, cfd): (&[u8], i32),
    get: Get,
    found: ReadOutcome<'_>,
    reply: &Reply<'_>,
    push: impl FnOnce(&mut dyn FnMut(&mut Outgoing)),
) -> bool {
    let store = &reactor_state.front_end.store;
    let mut is_hit = false;
    push(&mut |out| {
        is_hit = match found {
            ReadOutcome::Hit(hit) => store.answer_hit(key, hit, reply, get.silent, out),
            ReadOutcome::Miss(_) => false,
        };
        if !is_hit {
            reply.outcome(key, &Outcome::Missing, None, 0, out.text());
        }
    });
    let looked_up = match found {
        ReadOutcome::Hit(hit) => Ok(hit),
        ReadOutcome::Miss(reason) => Err(reason),
    };
    reactor_state.front_end.log_fetch(key, looked_up, cfd);
    if get.debug {
        return is_hit;
    }
    reactor_state.metrics.hot.see(|| Seen::Key(key));
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
    key: Arc<[u8]>,
    get: Get,
    reply: Reply<'static>,
    received: Instant,
}

impl ReadTask {
    /// `buf` is for the first read.
    async fn run(self, read: FlashRead, buf: AlignedBuf, slot: Slot) {
        let timed = self.reactor_state.metrics.slow.is_on();
        let mut waited = Duration::ZERO;
        let (mut lookup, mut buf) = (Lookup::Flash(read), Some(buf));
        let found = loop {
            match lookup {
                Lookup::Flash(read) => {
                    let began = timed.then(Instant::now);
                    // A record that moved is read again, and then its length may be another.
                    let fresh = || AlignedBuf::for_read(read.len() as usize);
                    let buf = buf.take().unwrap_or_else(fresh);
                    let bytes = self.reactor_state.read(read.device(), read.offset(), buf).await;
                    waited += began.map_or(Duration::ZERO, |began| began.elapsed());
                    lookup = read.finish(bytes);
                }
                Lookup::Hit(hit) => break Ok(hit),
                Lookup::Miss(reason) => break Err(reason),
            }
        };
        if let Ok(hit) = &found
            && object::is_in_parts(hit)
            && !(self.get.can_win && Store::read_changes(hit))
        {
            return Box::pin(self.in_parts(hit.clone(), slot, waited)).await;
        }
        let Self { reactor_state, key, get, reply, received } = self;
        if let Ok(hit) = &found
            && get.can_win
            && Store::read_changes(hit)
        {
            let operation = Operation { key: key.to_vec().into(), action: Action::Get(get), reply };
            let operation = Rc::new(operation);
            let modify = begin(&reactor_state, &operation, |_| true);
            // Rare and large, so it is boxed: the future of every read stays small and cheap to
            // allocate.
            return Box::pin(change(reactor_state, operation, modify, slot, received)).await;
        }
        let what =
            found.as_ref().map_or_else(|reason| ReadOutcome::Miss(*reason), ReadOutcome::Hit);
        let cfd = slot.cfd();
        let is_hit = get_answer(&reactor_state, (&key, cfd), get, what, &reply, |write| {
            slot.answer_sharing(write)
        });
        let path = if is_hit { Path::Flash } else { Path::Miss };
        reactor_state.metrics.took(path, received.elapsed(), || SlowRequest {
            flash: Some(waited),
            ..slow("get", &key)
        });
    }

    /// Answers with a value in parts.
    async fn in_parts(self, hit: Hit, slot: Slot, waited: Duration) {
        let Self { reactor_state, key, get, reply, received } = self;
        let shows = reply.shows_value();
        let first = match first_part(&reactor_state, &slot, &key, &hit, shows).await {
            Ok(first) => Ok(first),
            Err(MissReason::Abandoned) => return,
            Err(reason) => Err(reason),
        };
        let what =
            first.as_ref().map_or_else(|r| ReadOutcome::Miss(*r), |_| ReadOutcome::Hit(&hit));
        let mut text = Outgoing::default();
        let cfd = slot.cfd();
        let is_hit =
            get_answer(&reactor_state, (&key, cfd), get, what, &reply, |write| write(&mut text));
        match first {
            Ok(Some(first)) => send(&reactor_state, slot, &key, first, text).await,
            Ok(None) | Err(_) => slot.answer_sharing(|out| out.append(&mut text)),
        }
        let path = if is_hit { Path::Flash } else { Path::Miss };
        reactor_state.metrics.took(path, received.elapsed(), || SlowRequest {
            flash: Some(waited),
            ..slow("get", &key)
        });
    }
}
