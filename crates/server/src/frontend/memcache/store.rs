//! The store: carries out memcached's actions on objects in the cache.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use afterglow_engine::{
    Ack, Change, Changed, Hit, Listed, Modified, Namespace, PutOptions, PutOutcome, RefuseReason,
    Tier,
};
use afterglow_memcache::{
    self as memcache, Action, Decision, ITEM_OVERHEAD, Item, Mode, NewCas, NewValue, Outcome,
    Reply, decide, expiry_of,
};
use bytes::Bytes;

use super::flush::{FlushSchedule, Flushed};
use super::object;
use super::outgoing::{Outgoing, SharingSink};
use super::parts::Parts;
use super::recency::Recency;

/// The namespace that objects live in.
pub const NAMESPACE: &str = "memcache";

/// The namespace of the memcached front end, and what is known of its objects in addition.
pub struct Store {
    pub(super) objects: Namespace,
    recency: Recency,
    flush: FlushSchedule,
    /// Where values in parts are.
    pub(super) parts: Parts,
    /// Bytes that an object may count: key, value and [`ITEM_OVERHEAD`].
    max_item: usize,
    /// Objects that count more have their value in parts.
    whole: usize,
    /// When the front end was opened, in Unix seconds.
    started: u64,
    total_items: AtomicU64,
    /// Seconds that a test has its time step.
    #[cfg(test)]
    pub(super) stepped: AtomicU64,
    /// Heads that a test has flash not take.
    #[cfg(test)]
    pub(super) refusing: AtomicU64,
}

/// What a read-modify-write found, so that its outcome can be told once its change is made.
pub struct FoundBefore {
    found: Option<Hit>,
    now: u64,
    /// There was no room for the answer, so that nothing was done.
    lacked_room: bool,
    /// Nothing was done: what was found is to be joined, to so many bytes in parts.
    joins: Option<usize>,
}

impl FoundBefore {
    /// Of what was not done, because there is no room for the answer.
    pub fn without_room() -> Self {
        FoundBefore { found: None, now: 0, lacked_room: true, joins: None }
    }

    /// Whether it was not done, because there is no room for the answer.
    pub fn lacked_room(&self) -> bool {
        self.lacked_room
    }

    /// Length of the value in parts that is still to be joined.
    pub fn joins(&self) -> Option<usize> {
        self.joins
    }

    /// Whether a value in parts was found, or is still to be joined.
    pub fn in_parts(&self) -> bool {
        self.joins.is_some() || self.found.as_ref().is_some_and(object::is_in_parts)
    }

    /// What was found.
    pub fn hit(&self) -> Option<&Hit> {
        self.found.as_ref()
    }

    /// Where what was found was.
    pub fn tier(&self) -> Option<Tier> {
        self.found.as_ref().map(|hit| hit.tier)
    }
}

#[cfg(test)]
thread_local! {
    /// The keys that memory was asked for on this thread.
    static ANNOUNCED: std::cell::RefCell<Vec<Vec<u8>>> = std::cell::RefCell::default();
}

/// The keys that memory was asked for on this thread since the last call.
#[cfg(test)]
pub fn take_announced() -> Vec<Vec<u8>> {
    ANNOUNCED.take()
}

impl Store {
    /// Over a namespace and that of the parts, with what the last run left in the data directory,
    /// for objects that count `max_item` bytes at most, and `whole` with a value in one piece.
    ///
    /// # Errors
    /// When the schedule of `flush_all` cannot be read.
    pub fn open(
        (objects, parts): (Namespace, Parts),
        data_dir: &Path,
        (max_item, whole): (usize, usize),
    ) -> io::Result<Self> {
        let now = objects.now();
        let store = Store {
            recency: Recency::new(now),
            flush: FlushSchedule::open(data_dir)?,
            parts,
            max_item,
            whole,
            started: now,
            total_items: AtomicU64::new(0),
            #[cfg(test)]
            stepped: AtomicU64::new(0),
            #[cfg(test)]
            refusing: AtomicU64::new(0),
            objects,
        };
        if let Some(flushed) = store.flush_if_due() {
            flushed.outcome.wait();
            store.flush.forget();
        }
        Ok(store)
    }

    /// Asks memory for what look-ups of these keys need, as [`Namespace::prefetch`] has it.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        #[cfg(test)]
        let keys = keys.inspect(|key| ANNOUNCED.with_borrow_mut(|all| all.push(key.to_vec())));
        self.objects.prefetch(keys);
    }

    /// Objects ever stored.
    pub fn total_items(&self) -> u64 {
        self.total_items.load(Ordering::Relaxed)
    }

    /// Unix seconds. Never goes back.
    pub fn now(&self) -> u64 {
        let now = self.objects.now();
        #[cfg(test)]
        let now = now + self.stepped.load(Ordering::Relaxed);
        now
    }

    /// Seconds since the front end was opened.
    pub fn uptime(&self) -> u64 {
        self.now().saturating_sub(self.started)
    }

    /// Drops everything if that was asked for and is due. To be called before anything that a
    /// client could see.
    pub fn flush_if_due(&self) -> Option<Flushed<Ack<u64>>> {
        self.flush.due()?;
        self.flush.if_due(self.now(), || self.objects.submit_clear())
    }

    /// Drops everything now, or says in which second a client wants that.
    pub fn flush(&self, delay: i64) -> Result<Flushed<Ack<u64>>, u64> {
        let now = self.now();
        match expiry_of(delay, now) {
            due if delay > 0 && u64::from(due) > now => Err(due.into()),
            _ => Ok(self.flush.now(|| self.objects.submit_clear())),
        }
    }

    /// When everything is to be dropped.
    pub fn schedule(&self) -> &FlushSchedule {
        &self.flush
    }

    /// The object in a hit, with how long it was idle at second `now`.
    pub fn item<'a>(&self, key: &[u8], hit: &'a Hit, now: u64) -> Option<Item<'a>> {
        let item = object::decode(hit)?;
        let (fetched, idle) = self.recency.of(Recency::place(key), now);
        Some(Item { fetched, idle, ..item })
    }

    /// The object that a listing comes by.
    pub fn listed<'a>(&self, kept: &Listed<'a>, now: u64) -> Option<Item<'a>> {
        let item = object::decode_kept(kept)?;
        let (fetched, idle) = self.recency.of(Recency::place(kept.key), now);
        Some(Item { fetched, idle, ..item })
    }

    /// Answers a plain read that found `hit`.
    pub fn answer_hit(
        &self,
        key: &[u8],
        hit: &Hit,
        reply: &Reply<'_>,
        silent: bool,
        out: &mut Outgoing,
    ) -> bool {
        let now = self.now();
        let Some(mut item) = object::decode(hit) else { return false };
        let place = Recency::place(key);
        if matches!(reply, Reply::Meta(_)) {
            (item.fetched, item.idle) = self.recency.of(place, now);
        }
        if !silent {
            self.recency.used(place, now, true);
        }
        let outcome = Outcome::Found { item, expiry: item.expiry, won: false };
        let sink = SharingSink::new(out, &hit.value).with_gap(item.in_parts.is_some());
        reply.outcome(key, &outcome, None, now, &mut { sink });
        true
    }

    /// Whether a read of that object changes it: the first client that sees a stale object must
    /// renew it.
    pub fn read_changes(hit: &Hit) -> bool {
        object::decode(hit).is_some_and(|item| item.stale && !item.token_sent)
    }

    /// Puts an object without reading the older one.
    pub fn put(
        &self,
        key: &[u8],
        new: &memcache::NewItem<'_>,
        scratch: &mut Vec<u8>,
    ) -> Ack<PutOutcome> {
        scratch.clear();
        let options = object::encode(new, scratch);
        // What is stored is on flash when that is answered, if it is in parts.
        let options = PutOptions { or_refused: true, ..options };
        #[cfg(test)]
        if options.through && self.refuses() {
            return Ack::Done(PutOutcome::Refused(RefuseReason::QueueFull));
        }
        self.objects.submit_put(key, scratch, options)
    }

    /// Whether a test has flash not take this head.
    #[cfg(test)]
    fn refuses(&self) -> bool {
        let fewer = |left: u64| left.checked_sub(1);
        self.refusing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }

    /// Fills the token of a stored object into `outcome`, or says why it was not stored.
    pub fn stored<'a>(
        &self,
        key: &[u8],
        put: PutOutcome,
        mut outcome: Outcome<'a>,
        cas: NewCas,
    ) -> Outcome<'a> {
        let version = match put {
            PutOutcome::Stored { version } => {
                self.recency.used(Recency::place(key), self.now(), false);
                Some(version)
            }
            // Stored, and expired at once.
            PutOutcome::Refused(RefuseReason::Expired) => None,
            PutOutcome::Refused(RefuseReason::TooLarge | RefuseReason::KeyTooLong) => {
                return Outcome::TooLarge;
            }
            PutOutcome::Refused(_) => return Outcome::Failed,
        };
        outcome.set_cas(match cas {
            NewCas::Fresh => version.unwrap_or_else(|| self.objects.fresh_version()),
            NewCas::Is(cas) => cas,
        });
        self.total_items.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    /// Removes an object without reading it.
    pub fn remove(&self, key: &[u8]) -> Ack<u64> {
        self.objects.submit_remove(key)
    }

    /// What `action` does to `item`. As in memcached an object that would grow too large stays as
    /// it is.
    fn decide<'a>(
        &self,
        key: &[u8],
        action: &'a Action<'_>,
        item: Option<Item<'a>>,
        now: u64,
    ) -> Decision<'a> {
        let mut decision = decide(action, item, now);
        let grows = matches!(mode(action), Some(Mode::Append | Mode::Prepend));
        if let memcache::Change::Put(new) = &mut decision.change
            && grows
        {
            let len = new.value.len();
            let counted = key.len() + len + ITEM_OVERHEAD;
            if counted > self.max_item {
                return Decision { change: memcache::Change::None, outcome: Outcome::NotStored };
            }
            if counted > self.whole {
                new.value = NewValue::Join { len };
            }
        }
        decision
    }

    /// What a read-modify-write does to the object it finds. Runs under a lock of the cache.
    pub fn change(
        &self,
        key: &[u8],
        action: &Action<'_>,
        found: Option<&Hit>,
    ) -> (Change, FoundBefore) {
        self.change_to(key, action, found, None)
    }

    /// The same, where two values to be joined have become `joined`.
    pub fn change_to(
        &self,
        key: &[u8],
        action: &Action<'_>,
        found: Option<&Hit>,
        joined: Option<NewValue<'_>>,
    ) -> (Change, FoundBefore) {
        let now = self.now();
        let item = found.and_then(|hit| self.item(key, hit, now));
        let mut joins = None;
        let change = match self.decide(key, action, item, now).change {
            memcache::Change::None => Change::Keep,
            memcache::Change::Remove => Change::Remove,
            memcache::Change::Put(memcache::NewItem { value: NewValue::Join { len }, .. })
                if joined.is_none() =>
            {
                joins = Some(len);
                Change::Keep
            }
            memcache::Change::Put(mut new) => {
                if let (NewValue::Join { .. }, Some(joined)) = (&new.value, joined) {
                    new.value = joined;
                }
                let mut value = Vec::new();
                let options = object::encode(&new, &mut value);
                // A touch must not cost the value: its head may wait in DRAM.
                let or_refused = matches!(action, Action::Store(_));
                let options = PutOptions { or_refused, ..options };
                Change::Put { value: Bytes::from(value), options }
            }
        };
        (change, FoundBefore { found: found.cloned(), now, lacked_room: false, joins })
    }

    /// Answers a read-modify-write whose change is made. `count` is given the kind of the outcome.
    pub fn answer_change(
        &self,
        key: &[u8],
        action: &Action<'_>,
        modified: &Modified<FoundBefore>,
        reply: &Reply<'_>,
        count: impl FnOnce(&Outcome<'_>),
        out: &mut Outgoing,
    ) {
        let FoundBefore { found, now, .. } = &modified.returned;
        let item = found.as_ref().and_then(|hit| self.item(key, hit, *now));
        // The same object gives the same decision. Deciding again is cheaper than carrying the
        // decision out of the lock.
        let decision = self.decide(key, action, item, *now);
        let mut outcome = decision.outcome;
        if let (Changed::Put(put), memcache::Change::Put(new)) = (modified.changed, decision.change)
        {
            outcome = self.stored(key, put, outcome, new.cas);
            // What memcached changes in place was read before if it was.
            let in_place = !matches!(outcome, Outcome::Stored { .. });
            if in_place && item.is_some_and(|old| old.fetched && new.value.len() <= old.value.len())
            {
                self.recency.used(Recency::place(key), *now, true);
            }
        }
        if let Action::Get(get) = action
            && !get.silent
            && matches!(outcome, Outcome::Found { .. })
        {
            self.recency.used(Recency::place(key), *now, true);
        }
        count(&outcome);
        let mode = mode(action);
        match found {
            Some(hit) => {
                let gap = item.is_some_and(|item| item.in_parts.is_some());
                let mut sink = SharingSink::new(out, &hit.value).with_gap(gap);
                reply.outcome(key, &outcome, mode, *now, &mut sink);
            }
            None => reply.outcome(key, &outcome, mode, *now, out.text()),
        }
    }
}

/// The mode of a store.
pub fn mode(action: &Action<'_>) -> Option<Mode> {
    match action {
        Action::Store(store) => Some(store.mode),
        _ => None,
    }
}
