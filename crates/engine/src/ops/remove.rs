//! Removals: of one key, and of many by a kill version.
//!
//! A removal never fails. Its version is taken and journalled before the older object goes. It is
//! acknowledged once the journal entry is as durable as the namespace asks for.

use std::sync::Arc;

use crate::core::Core;
use crate::durability::pending::{Ack, Pending};
use crate::format::journal::Event;
use crate::namespace::state::NamespaceState;
use crate::shard::Shard;
use crate::sync::atomic::Ordering;

impl Core {
    /// Removes an object. Blocks until the removal is as durable as the namespace asks for.
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
        // While the cache closes, index lines may already have been captured: then every remove
        // counts.
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
        let guard = self.namespaces.removing.write();
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
