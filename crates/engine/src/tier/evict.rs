//! Changes of the DRAM tier that evict: evicted objects that flash lacks are written out.
//!
//! ```text
//! insert ──▶ victims ──▶ clean, and its copy is still there ──▶ forgotten
//!                  └───▶ dirty, or its copy is gone ──▶ admitted: written out
//!                                                  └──▶ refused: dropped, and counted
//! ```

use crate::api::DropReason;
use crate::core::Core;
use crate::format::record;
use crate::index::{IndexWriter, LINE_BYTES};
use crate::segment::SegmentTable;
use crate::shard::{Shard, ShardSlot, is_copied};
use crate::sync::atomic::Ordering;
use crate::tier::admission::Admission;
use crate::tier::{DramObject, DramTier, EntryState, Evicted, NOWHERE, PolicyTrial, Victims};

impl Core {
    /// Puts an object into the DRAM tier and sees to those it evicts. Its version was taken under
    /// the shard's lock, so that it is above that of whatever it replaces.
    pub(crate) fn insert_and_evict(&self, shard: &mut Shard, object: &DramObject<'_>) {
        let version = object.version;
        shard.trial.put(object.hash);
        let replaced = self.evicting(shard, |dram, leaving| dram.insert(object, leaving));
        let older = replaced.is_none_or(|replaced| replaced < version);
        assert!(older, "version {version} replaces a newer one");
    }

    /// The same where the DRAM tier has nothing of that hash.
    pub(crate) fn insert_absent_and_evict(&self, shard: &mut Shard, object: &DramObject<'_>) {
        self.evicting(shard, |dram, leaving| dram.insert_absent(object, leaving));
    }

    /// Changes what a shard's DRAM tier may take. It shrinks in small steps, so that the shard's
    /// lock is not held for long. Before each step it waits until the write queue has space for
    /// what leaves. False when it ended before its last step: at the clean stop, which writes out
    /// what is left, or because `go_on` says no.
    pub(crate) fn resize_dram(
        &self,
        slot: &ShardSlot,
        budget: usize,
        go_on: &dyn Fn() -> bool,
    ) -> bool {
        const STEP: usize = 64 << 10;
        while go_on() && !self.closed.load(Ordering::Acquire) {
            self.wait_for_queue();
            let mut shard = slot.lock();
            let shard = &mut *shard;
            // What the index has grown by is not the tier's any more.
            let budget = budget.saturating_sub(shard.index.grown_bytes());
            // What is not taken needs no steps: nothing leaves for it.
            let next = budget.max(shard.dram.budget().min(shard.dram.bytes()).saturating_sub(STEP));
            self.evicting(shard, |dram, leaving| dram.set_budget(next, leaving));
            if next == budget {
                return true;
            }
        }
        false
    }

    /// Takes memory for `lines` more index lines from a shard's DRAM tier, and lets its index grow
    /// by them. Objects that leave need room in the write queue: see [`Core::must_wait_for_queue`].
    pub(crate) fn give_to_index(&self, slot: &ShardSlot, lines: usize) {
        let shard = &mut *slot.lock();
        let budget = shard.dram.budget().saturating_sub(lines * LINE_BYTES);
        self.evicting(shard, |dram, leaving| dram.set_budget(budget, leaving));
        let allowed = shard.index.allowed() + lines;
        shard.index.allow(allowed);
    }

    /// Changes a shard's DRAM tier, and sees to what leaves it.
    fn evicting<T>(
        &self,
        shard: &mut Shard,
        change: impl FnOnce(&mut DramTier, &mut Leaving<'_>) -> T,
    ) -> T {
        let mut victims = std::mem::take(&mut shard.victims);
        let mut leaving = Leaving {
            victims: &mut victims,
            index: &shard.index,
            table: &shard.table,
            trial: &shard.trial,
            any: false,
        };
        let changed = change(&mut shard.dram, &mut leaving);
        let any = leaving.any;
        if any {
            shard.trial.evicted(&mut shard.dram);
        }
        victims.iter().for_each(|victim| self.evict(shard, &victim));
        victims.clear();
        shard.victims = victims;
        if any && let Some(next) = shard.dram.prefetch_victim() {
            // Most likely the next insertion evicts too.
            shard.index.prefetch(next);
        }
        changed
    }

    /// An entry that flash has no copy of has left the DRAM tier: it is written, or its loss is
    /// counted.
    fn evict(&self, shard: &mut Shard, entry: &DramObject<'_>) {
        let Some(ns) = self.namespaces.by_id(entry.ns) else { return };
        if self.why_dead(&ns, &entry.meta()).is_some() {
            return ns.counters.dropped(DropReason::Dead);
        }
        if let Err(reason) = self.write_out(shard, entry, Admission::Asked) {
            ns.counters.dropped(reason);
            if reason == DropReason::NotAdmitted {
                let (key, value) = (entry.key.len(), entry.value.len());
                self.admission.note_refused(record::usual_padded(key, value));
            }
            ns.tell_evicted(&entry.listed());
        }
    }
}

/// What leaves a shard's DRAM tier. What flash has a copy of is forgotten at once: its bytes are
/// not looked at, which no cache of the processor has any more.
struct Leaving<'a> {
    victims: &'a mut Evicted,
    index: &'a IndexWriter,
    table: &'a SegmentTable,
    trial: &'a PolicyTrial,
    /// Whether anything has left.
    any: bool,
}

impl Victims for Leaving<'_> {
    fn take(&mut self, object: &DramObject<'_>) {
        self.any = true;
        if let EntryState::Clean(at) = object.state
            && at != NOWHERE
            && is_copied(self.index, self.table, object.hash, at)
        {
            return;
        }
        self.victims.take(object);
    }

    fn popularity(&self, hash: u64) -> u8 {
        self.trial.popularity(hash)
    }
}
