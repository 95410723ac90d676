//! A put, from top to bottom: prepare it, give it a version, publish it under its shard's lock,
//! acknowledge it.
//!
//! Under the lock, in this order: take the version, write the journal entry, clear the older slot,
//! change the DRAM tier. So the journal has every change that was acknowledged. A refused put is a
//! removal.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::api::{DropReason, PutOptions, PutOutcome, RefuseReason};
use crate::config::Durability;
use crate::core::Core;
use crate::durability::pending::Ack;
use crate::durability::waiters::Ticket;
use crate::format::journal::Event;
use crate::format::record;
use crate::index::Location;
use crate::namespace::state::{NamespaceState, epoch_slot};
use crate::shard::Shard;
use crate::tier::admission::Admission;
use crate::tier::{DramEntry, EntryState, join, keep_memory};

/// The outcome of a put under the shard's lock.
pub enum Put {
    /// It has this version and is done.
    Stored(u64),
    /// It has this version and is acknowledged once it is on flash.
    Written(u64, Ticket),
    /// It only removed the older object.
    Refused(RefuseReason),
}

impl Core {
    pub(crate) fn put(
        self: &Arc<Self>,
        ns: &NamespaceState,
        key: &[u8],
        value: &[u8],
        options: &PutOptions,
    ) -> Ack<PutOutcome> {
        let hash = self.hash(ns.id, key);
        let slot = self.shard(hash);
        slot.index.prefetch(hash);
        let prepared = self.prepare(ns, hash, key, value, options);
        let mut shard = slot.lock_prefetched(hash);
        let put = match self.take_put_version() {
            Ok(version) => self.put_locked(&mut shard, ns, hash, key, prepared, version),
            Err(reason) => Put::Refused(reason),
        };
        drop(shard);
        self.acknowledge(ns, put, |put| put, |_, reason| PutOutcome::Refused(reason))
    }

    fn refusal(&self, key: &[u8], value: &[u8], expiry: u32) -> Option<RefuseReason> {
        if key.len() > record::MAX_KEY {
            Some(RefuseReason::KeyTooLong)
        } else if record::most_len(key.len(), value.len()) > self.max_record() {
            Some(RefuseReason::TooLarge)
        } else if self.time.is_expired(expiry) {
            Some(RefuseReason::Expired)
        } else {
            None
        }
    }

    /// The object to be put, without a version yet, or why it is refused.
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

    /// The object with another expiry, to be put.
    pub(crate) fn touched(&self, old: &DramEntry, expiry: u32) -> Result<DramEntry, RefuseReason> {
        if self.time.is_expired(expiry) {
            return Err(RefuseReason::Expired);
        }
        Ok(DramEntry { expiry, state: EntryState::Dirty, ..old.clone() })
    }

    /// The version of a put; none once the cache is closed.
    pub(crate) fn take_put_version(&self) -> Result<u64, RefuseReason> {
        if self.closed.load(Ordering::Acquire) {
            Err(RefuseReason::Closed)
        } else {
            Ok(self.take_version())
        }
    }

    /// Publishes an object. If it is refused, only removes the older one.
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
                self.insert_and_evict(shard, &entry);
                keep_memory(entry.data);
                return Ok(Put::Stored(version));
            }
            let (at, ticket) = self.write_through(shard, ns, &entry)?;
            let entry = DramEntry { state: EntryState::Clean(at), ..entry };
            self.insert_and_evict(shard, &entry);
            keep_memory(entry.data);
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
        let ticket = self
            .waiters
            .add(ns.id, put, synced, self.time.millis())
            .ok_or(RefuseReason::QueueFull)?;
        match self.write_out(shard, &entry.object(), Admission::Through(ticket.id)) {
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
}
