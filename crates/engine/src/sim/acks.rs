//! Acknowledgements of a run that wait for the device.
//!
//! A change is visible before it is acknowledged. After the death of the process it may be missing,
//! but nothing older returns; after power loss the older object may return too. Once acknowledged
//! it is on flash, and flushed where that was asked for.

use super::coverage::{Path, reach};
use super::oracle::SimObject;
use super::parts::{Acking, Outstanding};
use super::plan::Key;
use super::state::{Run, key_bytes, say};
use super::world::Life;
use crate::api::{DropReason, PutOutcome};
use crate::device::sim::Crash;
use crate::durability::pending::Ack;
use crate::segment::SegmentState;

impl Run {
    /// Notes a put, which may have to be waited for.
    pub(super) fn put_acked(
        &mut self,
        key: Key,
        object: SimObject,
        ack: Ack<PutOutcome>,
        certain: bool,
    ) {
        let (outcome, pending) = match ack {
            Ack::Done(outcome) => (outcome, None),
            Ack::Later(pending) => (*pending.preview(), Some(pending)),
        };
        let since = self.put_done(key, object, outcome, certain);
        let stored = matches!(outcome, PutOutcome::Stored { .. });
        if !(stored && pending.is_some()) {
            self.done[usize::from(key.ns)].puts += 1;
        }
        if let (Some(since), Some(pending)) = (since, pending) {
            let pending =
                if stored { Outstanding::Put(pending) } else { Outstanding::Refused(pending) };
            self.acking.push(Acking { key, since, pending });
        }
    }

    /// Takes the acknowledgements that have come.
    pub(super) fn take_acks(&mut self, life: &Life) {
        if self.acking.is_empty() {
            return;
        }
        let (done, rest): (Vec<_>, _) =
            std::mem::take(&mut self.acking).into_iter().partition(|a| a.pending.is_done());
        self.acking = rest;
        for Acking { key, since, pending } in done {
            let outcome = pending.outcome();
            self.done[usize::from(key.ns)].puts += u64::from(outcome.is_some());
            if self.world.machine.is_down() {
                // Nobody hears of it.
                self.unheard.push((key, since));
                continue;
            }
            let Some(outcome) = outcome else { continue };
            say!(self, "acknowledged {key:?} of {since}: {outcome:?}");
            let newest = self.oracle.is_newest(key, since);
            match outcome {
                PutOutcome::Stored { version } => {
                    self.note(version);
                    reach(Path::Acked);
                    // The segment of what was acknowledged may be given up since.
                    if newest && !self.foul && !self.fell_silent {
                        self.must_be_on_flash(life, key);
                    }
                }
                // It may come to light again, if something else has kept a copy; nothing older may.
                PutOutcome::Refused(reason) => {
                    self.note(reason as u64);
                    reach(Path::AckRefused);
                    if newest {
                        self.oracle.set(key, 0, None, false);
                    }
                }
            }
        }
    }

    /// What was acknowledged is on flash. Exceptions: the index had no slot for it, or its segment
    /// was or is being reclaimed, so its newest copy may be in flight.
    fn must_be_on_flash(&self, life: &Life, key: Key) {
        let totals = &life.core.totals;
        let reclaiming = life.core.table.in_state(SegmentState::Reclaiming).next().is_some();
        if totals.dropped_for(DropReason::IndexFull) > 0
            || totals.segments_reclaimed.get() > 0
            || reclaiming
        {
            return;
        }
        if self.is_dead(life, key) {
            return;
        }
        let synced = self.options[usize::from(key.ns)].durability == 2;
        let fault = match life.on_flash(&self.world.machine, key.ns, &key_bytes(key)) {
            Some(super::world::Copied { device, offset, len, .. }) if synced => {
                let from = offset / 512 * 512;
                let lasts = self.world.machine.is_durable(device, from, offset + len - from);
                (!lasts).then_some("before its record was flushed")
            }
            Some(_) => None,
            None => Some("but is not on flash"),
        };
        // Last, for it looks at all keys.
        if let Some(fault) = fault
            && !self.crowded(life).contains(&key)
        {
            panic!("{key:?} was acknowledged {fault}");
        }
    }

    /// The life ends before these acknowledgements have come.
    pub(super) fn drop_acks(&mut self, kind: Crash) {
        let acking = std::mem::take(&mut self.acking);
        for Acking { key, since, .. } in acking {
            reach(Path::AckUnheard);
            self.unheard.push((key, since));
        }
        if kind == Crash::Machine {
            // What nobody was told of may not have been flushed, in earlier lives either.
            for (key, since) in std::mem::take(&mut self.unheard) {
                self.oracle.doubt(key, since);
            }
        }
    }
}
