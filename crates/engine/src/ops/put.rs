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
use crate::format::record::{self, Meta};
use crate::index::Location;
use crate::namespace::state::{NamespaceState, epoch_slot};
use crate::shard::Shard;
use crate::tier::admission::Admission;
use crate::tier::{DramEntry, DramObject, EntryState, join_large};

/// The outcome of a put under the shard's lock.
pub enum Put {
    /// It has this version and is done.
    Stored(u64),
    /// It has this version and is acknowledged once it is on flash.
    Written(u64, Ticket),
    /// It only removed the older object.
    Refused(RefuseReason),
}

/// Whether a put of a write-back namespace is written before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    /// It waits in DRAM.
    No,
    /// If flash takes it at this moment.
    IfTaken,
    /// It is, or it is refused.
    OrRefused,
}

impl Through {
    /// What a caller wants.
    pub fn of(options: &PutOptions) -> Self {
        match (options.through, options.or_refused) {
            (false, _) => Self::No,
            (true, false) => Self::IfTaken,
            (true, true) => Self::OrRefused,
        }
    }
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
        // A packed object is copied under the lock, into its slot; a large one before.
        let prepared = self.prepare(ns, hash, key, value, options);
        let large = prepared.as_ref().ok().and_then(join_large);
        let prepared = prepared.map(|object| object.in_allocation(large.as_ref()));
        let mut shard = slot.lock_prefetched(hash);
        let put = match self.take_put_version() {
            Ok(version) => {
                let put = (version, Through::of(options));
                self.put_locked(&mut shard, ns, hash, key, prepared, put)
            }
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
    pub(crate) fn prepare<'a>(
        &self,
        ns: &NamespaceState,
        hash: u64,
        key: &'a [u8],
        value: &'a [u8],
        options: &PutOptions,
    ) -> Result<DramObject<'a>, RefuseReason> {
        if let Some(reason) = self.refusal(key, value, options.expiry) {
            return Err(reason);
        }
        let PutOptions { expiry, group, token, through: _, or_refused: _ } = *options;
        let meta = Meta { ns: ns.id, version: 0, expiry, group, epoch_slot: epoch_slot(token) };
        Ok(DramObject::new(hash, &meta, key, value, EntryState::Dirty))
    }

    /// The object with another expiry, to be put.
    pub(crate) fn touched<'a>(
        &self,
        old: &'a DramEntry,
        expiry: u32,
    ) -> Result<DramObject<'a>, RefuseReason> {
        if self.time.is_expired(expiry) {
            return Err(RefuseReason::Expired);
        }
        let mut new = old.object();
        (new.expiry, new.state) = (expiry, EntryState::Dirty);
        Ok(new)
    }

    /// The version of a put; none once the cache is closed.
    pub(crate) fn take_put_version(&self) -> Result<u64, RefuseReason> {
        if self.closed.load(Ordering::Acquire) {
            Err(RefuseReason::Closed)
        } else {
            Ok(self.take_version())
        }
    }

    /// Publishes an object as this version, and where it may be on flash before it is acknowledged.
    /// If it is refused, only removes the older one.
    pub(crate) fn put_locked(
        &self,
        shard: &mut Shard,
        ns: &NamespaceState,
        hash: u64,
        key: &[u8],
        prepared: Result<DramObject<'_>, RefuseReason>,
        (version, through): (u64, Through),
    ) -> Put {
        let journal = || self.journal.append(Event::Kill { hash, ns: ns.id }, version);
        if ns.options.journals_puts() {
            journal();
        }
        shard.clear_older(hash, version);
        let put = prepared.and_then(|mut object| {
            object.version = version;
            shard.sketch.add(hash);
            let write_back = ns.options.durability == Durability::WriteBack;
            let only = !write_back || through == Through::OrRefused;
            if only || through == Through::IfTaken {
                match self.write_through(shard, ns, &object) {
                    Ok((at, ticket)) => {
                        object.state = EntryState::Clean(at);
                        if !ns.is_off_dram() {
                            self.insert_and_evict(shard, &object);
                        }
                        return Ok(Put::Written(version, ticket));
                    }
                    Err(reason) if only => return Err(reason),
                    // It waits in DRAM, as any other of its namespace.
                    Err(_) => {}
                }
            }
            if ns.is_off_dram() {
                self.write_out(shard, &object, Admission::OffDram).map_err(refused)?;
            } else {
                self.insert_and_evict(shard, &object);
            }
            Ok(Put::Stored(version))
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
        object: &DramObject<'_>,
    ) -> Result<(Location, Ticket), RefuseReason> {
        let synced = ns.options.durability == Durability::Synced;
        let put = Some((object.hash, object.version));
        let ticket = self
            .waiters
            .add(ns.id, put, synced, self.time.millis())
            .ok_or(RefuseReason::QueueFull)?;
        match self.write_out(shard, object, Admission::Through(ticket.id)) {
            Ok(at) => {
                self.waiters.place(ticket.id, at);
                self.streams.wake_worker();
                Ok((at, ticket))
            }
            Err(reason) => {
                let _ = self.waiters.take(ticket.id);
                Err(refused(reason))
            }
        }
    }
}

/// Why a put is refused that flash did not take.
fn refused(reason: DropReason) -> RefuseReason {
    match reason {
        DropReason::WriteBudget => RefuseReason::WriteBudget,
        DropReason::QueueFull => RefuseReason::QueueFull,
        DropReason::NoFreeSegment => RefuseReason::NoFreeSegment,
        _ => RefuseReason::Device,
    }
}
