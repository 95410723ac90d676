//! Puts and removals: what happens under the shard's lock, and what their acknowledgement waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::{DropReason, PutOptions, PutOutcome, RefuseReason};
use crate::config::Durability;
use crate::core::{Admission, Core};
use crate::durability::pending::{Ack, Pending, Ticket};
use crate::format::journal::Event;
use crate::format::record;
use crate::index::Location;
use crate::namespace::{NamespaceState, epoch_slot};
use crate::shard::Shard;
use crate::tier::{DramEntry, EntryState, join};

/// Tries to flush the journal once it has failed.
const SYNC_TRIES: u32 = 16;

/// What a put has come to under the shard's lock.
pub enum Put {
    /// It has this version, and no more is to be done.
    Stored(u64),
    /// It has this version and is acknowledged once it is on flash.
    Written(u64, Ticket),
    /// It only removed the older object.
    Refused(RefuseReason),
}

impl Core {
    /// The next version. One that is not reserved could come again after a crash: the driver, which reserves them, may be held
    /// up by a slow device, so the journal says it at once.
    pub(crate) fn take_version(&self) -> u64 {
        let version = self.versions.take();
        if self.versions.overrun() {
            self.journal.poison_now();
        }
        version
    }

    fn refusal(&self, key: &[u8], value: &[u8], expiry: u32) -> Option<RefuseReason> {
        if key.len() > record::MAX_KEY {
            Some(RefuseReason::KeyTooLong)
        } else if record::len(key.len(), value.len()) > self.max_record() {
            Some(RefuseReason::TooLarge)
        } else if self.is_expired(expiry) {
            Some(RefuseReason::Expired)
        } else {
            None
        }
    }

    /// An object to be put, still without a version, or why it cannot be.
    pub(crate) fn prepare(
        &self,
        ns: &NamespaceState,
        hash: u64,
        key: &[u8],
        value: &[u8],
        options: &PutOptions,
    ) -> Result<DramEntry, RefuseReason> {
        if let Some(reason) = self.refusal(key, value, options.expiry) {
            return Err(reason);
        }
        Ok(DramEntry {
            hash,
            version: 0,
            data: join(key, value),
            key_len: key.len() as u32,
            expiry: options.expiry,
            group: options.group,
            epoch_slot: epoch_slot(options.token),
            ns: ns.id,
            state: EntryState::Dirty,
        })
    }

    /// An object with another expiry, to be put.
    pub(crate) fn touched(&self, old: &DramEntry, expiry: u32) -> Result<DramEntry, RefuseReason> {
        if self.is_expired(expiry) {
            return Err(RefuseReason::Expired);
        }
        Ok(DramEntry { expiry, state: EntryState::Dirty, ..old.clone() })
    }

    /// The version of a put; none once the cache is closed.
    pub(crate) fn take_put_version(&self) -> Result<u64, RefuseReason> {
        if self.closed.load(Ordering::Acquire) { Err(RefuseReason::Closed) } else { Ok(self.take_version()) }
    }

    pub(crate) fn put(
        self: &Arc<Self>,
        ns: &NamespaceState,
        key: &[u8],
        value: &[u8],
        options: &PutOptions,
    ) -> Ack<PutOutcome> {
        let hash = self.hash(ns.id, key);
        self.shard(hash).index.prefetch(hash);
        let prepared = self.prepare(ns, hash, key, value, options);
        let mut shard = self.shard(hash).lock_for(hash);
        let put = match self.take_put_version() {
            Ok(version) => self.put_locked(&mut shard, ns, hash, key, prepared, version),
            Err(reason) => Put::Refused(reason),
        };
        drop(shard);
        self.acknowledge(ns, put, |put| put, |_, reason| PutOutcome::Refused(reason))
    }

    /// Publishes an object, or only removes the older one.
    pub(crate) fn put_locked(
        &self,
        shard: &mut Shard,
        ns: &NamespaceState,
        hash: u64,
        key: &[u8],
        prepared: Result<DramEntry, RefuseReason>,
        version: u64,
    ) -> Put {
        let journal = || self.journal.append(Event::Kill { hash, ns: ns.id }, version);
        if ns.options.journals_puts() {
            journal();
        }
        shard.clear_older(hash, version);
        let put = prepared.and_then(|entry| {
            let entry = DramEntry { version, ..entry };
            shard.sketch.add(hash);
            if ns.options.durability == Durability::WriteBack {
                self.insert_dram(shard, entry);
                return Ok(Put::Stored(version));
            }
            let (at, ticket) = self.write_through(shard, ns, &entry)?;
            self.insert_dram(shard, DramEntry { state: EntryState::Clean(at), ..entry });
            Ok(Put::Written(version, ticket))
        });
        put.unwrap_or_else(|reason| {
            // A refused put is a removal.
            if ns.options.journals_removes() && !ns.options.journals_puts() {
                journal();
            }
            shard.dram.remove(hash, ns.id, key);
            Put::Refused(reason)
        })
    }

    /// Appends an object that is acknowledged once it is on flash.
    fn write_through(
        &self,
        shard: &mut Shard,
        ns: &NamespaceState,
        entry: &DramEntry,
    ) -> Result<(Location, Ticket), RefuseReason> {
        let synced = ns.options.durability == Durability::Synced;
        let put = Some((entry.hash, entry.version));
        let ticket =
            self.waiters.add(ns.id, put, synced, self.clock.millis()).ok_or(RefuseReason::QueueFull)?;
        match self.write_out(shard, entry, Admission::Through(ticket.id)) {
            Ok(at) => {
                self.waiters.place(ticket.id, at);
                self.streams.wake_worker();
                Ok((at, ticket))
            }
            Err(reason) => {
                let _ = self.waiters.take(ticket.id);
                Err(match reason {
                    DropReason::WriteBudget => RefuseReason::WriteBudget,
                    DropReason::QueueFull => RefuseReason::QueueFull,
                    DropReason::NoFreeSegment => RefuseReason::NoFreeSegment,
                    _ => RefuseReason::Device,
                })
            }
        }
    }

    /// Counts a put that is over; one that waits for the device is counted when it is.
    pub(crate) fn acknowledge<T>(
        self: &Arc<Self>,
        ns: &NamespaceState,
        put: Put,
        outcome: impl FnOnce(PutOutcome) -> T,
        refused: fn(T, RefuseReason) -> T,
    ) -> Ack<T> {
        match put {
            Put::Stored(version) => {
                ns.counters.stored.inc();
                Ack::Done(outcome(PutOutcome::Stored { version }))
            }
            Put::Written(version, ticket) => {
                Ack::Later(Pending::new(self, ticket, outcome(PutOutcome::Stored { version }), refused))
            }
            Put::Refused(reason) => {
                ns.counters.refuse(reason);
                let refused = outcome(PutOutcome::Refused(reason));
                if reason == RefuseReason::Closed {
                    // Nothing was changed.
                    return Ack::Done(refused);
                }
                match self.settle_later(ns) {
                    Some(ticket) => Ack::Later(Pending::new(self, ticket, refused, |refused, _| refused)),
                    None => Ack::Done(refused),
                }
            }
        }
    }

    /// An operation that waited is acknowledged.
    pub(crate) fn complete(&self, id: u64) {
        let Some(waiter) = self.waiters.take(id) else { return };
        if waiter.put.is_some()
            && let Some(ns) = self.namespace_by_id(waiter.ns)
        {
            ns.counters.stored.inc();
        }
        waiter.finish(Ok(()));
    }

    /// An operation that waited is refused: what it put goes, unless something newer has taken its place. A removal cannot be
    /// refused: whoever hears of it relies on it, so it waits for the journal here, the only thing it needs to last.
    pub(crate) fn give_up(&self, id: u64, reason: RefuseReason) {
        let Some(waiter) = self.waiters.take(id) else { return };
        if let Some(ns) = self.namespace_by_id(waiter.ns) {
            if let Some((hash, version)) = waiter.put {
                self.withdraw(&ns, hash, version, waiter.at);
                ns.counters.refuse(reason);
            }
            // Whatever became of it, the older object must stay away.
            self.settle(&ns);
        }
        waiter.finish(Err(reason));
    }

    /// Removes what was put as this version, in DRAM or at that place.
    fn withdraw(&self, ns: &NamespaceState, hash: u64, version: u64, at: Option<Location>) {
        let mut shard = self.shard(hash).lock();
        let entry = shard.dram.peek_hash(hash).filter(|entry| entry.version == version).cloned();
        if entry.is_some() || at.is_some_and(|at| shard.is_at(hash, at)) {
            let (key, version) = (entry.as_ref().map_or(&[][..], DramEntry::key), self.take_version());
            self.remove_locked(&mut shard, ns, hash, key, version);
        }
    }

    pub(crate) fn remove(&self, ns: &NamespaceState, key: &[u8]) -> u64 {
        let version = self.remove_now(ns, key);
        self.settle(ns);
        version
    }

    fn remove_now(&self, ns: &NamespaceState, key: &[u8]) -> u64 {
        let hash = self.hash(ns.id, key);
        let mut shard = self.shard(hash).lock_for(hash);
        let version = self.take_version();
        self.remove_locked(&mut shard, ns, hash, key, version);
        drop(shard);
        self.removed(ns);
        version
    }

    /// Counts a removal.
    pub(crate) fn removed(&self, ns: &NamespaceState) {
        self.clear_clean_marker();
        ns.counters.removes.inc();
    }

    pub(crate) fn remove_locked(
        &self,
        shard: &mut Shard,
        ns: &NamespaceState,
        hash: u64,
        key: &[u8],
        version: u64,
    ) {
        // While the cache closes, index lines may already have been captured: then every remove counts.
        if ns.options.journals_removes() || self.closed.load(Ordering::Acquire) {
            self.journal.append(Event::Kill { hash, ns: ns.id }, version);
        }
        shard.clear_older(hash, version);
        shard.dram.remove(hash, ns.id, key);
    }

    /// [`Core::remove`] without waiting for a flush.
    pub(crate) fn remove_later(self: &Arc<Self>, ns: &NamespaceState, key: &[u8]) -> Ack<u64> {
        let version = self.remove_now(ns, key);
        self.version_later(ns, version)
    }

    fn version_later(self: &Arc<Self>, ns: &NamespaceState, version: u64) -> Ack<u64> {
        match self.settle_later(ns) {
            Some(ticket) => Ack::Later(Pending::new(self, ticket, version, |version, _| version)),
            None => Ack::Done(version),
        }
    }

    /// Makes a removal last as the namespace's durability asks for.
    fn settle(&self, ns: &NamespaceState) {
        if ns.options.durability == Durability::Synced {
            self.sync_journal();
        }
    }

    /// Flushes the journal. One that cannot be flushed has been poisoned, and the flag too must survive power loss before
    /// anybody relies on an operation.
    pub(crate) fn sync_journal(&self) -> bool {
        if self.journal.sync().is_ok() {
            return true;
        }
        if !(0..SYNC_TRIES).any(|_| self.journal.sync().is_ok()) {
            tracing::error!(
                "the journal cannot be flushed: after a power loss now, removals may be forgotten"
            );
        }
        false
    }

    /// Leaves the flush that a removal asks for to the background; `None` when there is nothing to wait for.
    pub(crate) fn settle_later(&self, ns: &NamespaceState) -> Option<Ticket> {
        if ns.options.durability != Durability::Synced {
            return None;
        }
        let ticket = self.waiters.add(ns.id, None, true, self.clock.millis());
        match &ticket {
            Some(_) => self.streams.wake_worker(),
            // Too many wait: this one pays for itself.
            None => self.settle(ns),
        }
        ticket
    }

    /// Removes many objects at once by a kill version.
    pub(crate) fn kill(&self, ns: &NamespaceState, event: Event) -> u64 {
        let version = self.kill_now(ns, event);
        self.settle(ns);
        version
    }

    /// The same without waiting for a flush.
    pub(crate) fn kill_later(self: &Arc<Self>, ns: &NamespaceState, event: Event) -> Ack<u64> {
        let version = self.kill_now(ns, event);
        self.version_later(ns, version)
    }

    fn kill_now(&self, ns: &NamespaceState, event: Event) -> u64 {
        let guard = self.kills_lock.write();
        let version = self.take_version();
        self.journal.append(event, version);
        match event {
            Event::Group { group, .. } => ns.kill_group(group, version),
            Event::Epoch { slot, .. } => ns.kill_epoch(slot, version),
            Event::Clear { .. } => ns.kill_all(version),
            Event::Kill { .. } | Event::Open { .. } => unreachable!("not a kill of many objects"),
        }
        drop(guard);
        self.clear_clean_marker();
        ns.counters.kills.inc();
        version
    }
}
