//! The engine's shared state and the operations on it that never wait for a device.
//!
//! Every change of a key happens under its shard's mutex, in this order:
//!
//! 1. Take the version.
//! 2. Write the journal entry.
//! 3. Clear the old index slot.
//! 4. Change the DRAM tier.
//!
//! So the journal has every change that was acknowledged.

use std::sync::Arc;

use crate::api::MissReason;
use crate::device::{BlockingReads, DeviceSet};
use crate::durability::state_store::StateStore;
use crate::durability::wait_lists::WaitLists;
use crate::durability::waiters::Waiters;
use crate::format::key_hash;
use crate::format::record::{Meta, RecordContext};
use crate::journal::Journal;
use crate::namespace::Namespaces;
use crate::namespace::state::NamespaceState;
use crate::progress::Progress;
use crate::segment::{SegmentTable, Streams};
use crate::shard::ShardSlot;
use crate::stats::EngineCounters;
use crate::sync::atomic::AtomicBool;
use crate::tier::admission::AdmissionRules;
use crate::time::CacheTime;
use crate::version::Versions;

/// The shared state of an open cache.
pub struct Core {
    pub(crate) uuid: [u8; 16],
    pub(crate) hash_seed: u64,
    /// Index, DRAM tier and sketch, by the hash of the key.
    pub(crate) shards: Box<[ShardSlot]>,
    /// What is known of each segment.
    pub(crate) table: Arc<SegmentTable>,
    /// Segments that are being written.
    pub(crate) streams: Streams,
    /// The devices, for reads.
    pub(crate) set: Arc<dyn DeviceSet>,
    /// Offsets of the two checkpoint areas of the first home, and their length.
    #[cfg(test)]
    pub(crate) areas: [u64; 3],
    pub(crate) reads: BlockingReads,
    pub(crate) journal: Arc<Journal>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) time: CacheTime,
    pub(crate) state: StateStore,
    pub(crate) namespaces: Namespaces,
    pub(crate) admission: AdmissionRules,
    /// Operations that wait for the device.
    pub(crate) waiters: Waiters,
    /// Changes that wait for room in the journal.
    pub(crate) wait_lists: WaitLists,
    pub(crate) progress: Progress,
    /// No puts any more.
    pub(crate) closed: AtomicBool,
    pub(crate) totals: Arc<EngineCounters>,
}

impl Core {
    /// Hash of a key.
    pub(crate) fn hash(&self, ns: u16, key: &[u8]) -> u64 {
        key_hash(self.hash_seed, ns, key)
    }

    /// The shard of a key.
    pub(crate) fn shard(&self, hash: u64) -> &ShardSlot {
        &self.shards[hash as usize & (self.shards.len() - 1)]
    }

    /// The next version. A version that is not reserved could come again after a crash. The
    /// background thread reserves versions, but a slow device may hold it up. So the journal notes
    /// this at once.
    pub(crate) fn take_version(&self) -> u64 {
        let version = self.versions.take();
        if self.versions.overrun() {
            self.journal.poison_now();
        }
        version
    }

    /// What the bytes of a record depend on, at `offset` of a segment that is used for
    /// `generation`. The generation was read before.
    pub(crate) fn record_context(
        &self,
        segment: u32,
        generation: u64,
        offset: u32,
    ) -> RecordContext {
        RecordContext::new(self.hash_seed, generation, offset, self.table.format(segment))
    }

    /// Largest record.
    pub(crate) fn max_record(&self) -> usize {
        self.table.segment_size() as usize / 4
    }

    /// Why an object is dead, if it is.
    pub(crate) fn why_dead(&self, ns: &NamespaceState, meta: &Meta) -> Option<MissReason> {
        if ns.is_killed(meta) {
            Some(MissReason::Killed)
        } else if self.time.is_expired(meta.expiry) {
            Some(MissReason::Expired)
        } else {
            None
        }
    }

    /// Bytes written since opening, or sure to be: records with their padding, metadata, and the
    /// journal.
    pub(crate) fn written(&self) -> u64 {
        self.totals.written() + self.journal.appended_bytes()
    }
}
