//! Acknowledgement: an operation is over once it is as durable as its namespace asks for.
//!
//! | durability | a put waits for | a removal waits for |
//! |---|---|---|
//! | write-back | nothing; with [`PutOptions::through`](crate::PutOptions) as below | nothing |
//! | write-through | the write of its chunk | nothing |
//! | synced | that, a flush of its device and of the journal | a flush of the journal |

use std::sync::Arc;

use crate::api::{PutOutcome, RefuseReason};
use crate::config::Durability;
use crate::core::Core;
use crate::durability::pending::{Ack, Pending};
use crate::durability::waiters::{Ticket, Waiter};
use crate::index::Location;
use crate::namespace::state::NamespaceState;
use crate::ops::put::Put;
use crate::tier::DramEntry;

/// Tries to flush the journal once it has failed.
const SYNC_TRIES: u32 = 16;

impl Core {
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
            Put::Written(version, ticket) => Ack::Later(Pending::new(
                self,
                ticket,
                outcome(PutOutcome::Stored { version }),
                refused,
            )),
            Put::Refused(reason) => {
                ns.counters.refuse(reason);
                let refused = outcome(PutOutcome::Refused(reason));
                if reason == RefuseReason::Closed {
                    // Nothing was changed.
                    return Ack::Done(refused);
                }
                match self.settle_later(ns) {
                    Some(ticket) => {
                        Ack::Later(Pending::new(self, ticket, refused, |refused, _| refused))
                    }
                    None => Ack::Done(refused),
                }
            }
        }
    }

    /// An operation that waited is acknowledged.
    pub(crate) fn complete(&self, id: u64) {
        let Some(waiter) = self.waiters.take(id) else { return };
        if waiter.put.is_some()
            && let Some(ns) = self.namespaces.by_id(waiter.ns)
        {
            ns.counters.stored.inc();
        }
        waiter.finish(Ok(()));
    }

    /// Operations that waited are refused: what they put goes, unless something newer has taken its
    /// place. A removal cannot be refused: the caller relies on it. So it waits here for the
    /// journal, the only thing it needs to be durable. All share one flush of it.
    pub(crate) fn give_up(&self, ids: impl IntoIterator<Item = u64>, reason: RefuseReason) {
        let mut synced = None;
        let refused: Vec<Waiter> = ids.into_iter().filter_map(|id| self.waiters.take(id)).collect();
        for waiter in &refused {
            let Some(ns) = self.namespaces.by_id(waiter.ns) else { continue };
            if let Some((hash, version)) = waiter.put {
                self.withdraw(&ns, hash, version, waiter.at);
                ns.counters.refuse(reason);
            }
            if ns.options.durability == Durability::Synced {
                synced = Some(ns);
            }
        }
        // Whatever became of them, the older objects must stay away.
        if let Some(ns) = synced {
            self.settle(&ns);
        }
        refused.into_iter().for_each(|waiter| waiter.finish(Err(reason)));
    }

    /// Removes what was put as this version, in DRAM or at that place.
    fn withdraw(&self, ns: &NamespaceState, hash: u64, version: u64, at: Option<Location>) {
        let mut shard = self.shard(hash).lock();
        let entry = shard.dram.peek_hash(hash).filter(|entry| entry.version == version);
        let entry = entry.map(|entry| entry.to_entry());
        if entry.is_some() || at.is_some_and(|at| shard.is_at(hash, at)) {
            let (key, version) =
                (entry.as_ref().map_or(&[][..], DramEntry::key), self.take_version());
            self.remove_locked(&mut shard, ns, hash, key, version);
        }
    }

    /// Makes a removal last as the namespace's durability asks for.
    pub(crate) fn settle(&self, ns: &NamespaceState) {
        if ns.options.durability == Durability::Synced {
            self.sync_journal();
        }
    }

    /// Flushes the journal. One that cannot be flushed has been poisoned, and the flag too must
    /// survive power loss before anybody relies on an operation.
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

    /// Leaves the flush that a removal asks for to the background; `None` when there is nothing to
    /// wait for.
    pub(crate) fn settle_later(&self, ns: &NamespaceState) -> Option<Ticket> {
        if ns.options.durability != Durability::Synced {
            return None;
        }
        let ticket = self.waiters.add(ns.id, None, true, self.time.millis());
        match &ticket {
            Some(_) => self.streams.wake_worker(),
            // Too many wait: this one pays for itself.
            None => self.settle(ns),
        }
        ticket
    }
}
