//! Background work as a state machine. [`Background::step`] looks at the clock and says which I/O
//! to start. [`Background::complete`] takes the outcome. In production one thread drives it over a
//! [`Disk`](crate::device::Disk); the simulation drives it over a simulated one.
//!
//! Each task is a file of its own and does a bounded amount of work per step:
//!
//! - [`writes`]: copies dirty objects to flash and issues writes.
//! - [`reclaim`]: frees segments.
//! - [`forgetting`]: forgets removals of groups that have nothing left to remove.
//! - [`load`]: loads index lines after opening.
//! - [`growth`]: lets the index grow.
//! - [`compaction`]: moves the journal's oldest entries to the kill log.
//! - [`checkpoint`]: writes checkpoints.
//! - [`balance`]: relieves a device that has too much to do.
//! - [`devices`]: leaves a device alone that fails or does not answer.
//! - [`durability`]: acknowledges operations that wait for the device.
//! - [`close`]: the clean stop.
//!
//! [`parts`] has the state of each task between two steps, [`state`] all of it.

mod balance;
mod checkpoint;
mod checkpoint_places;
mod close;
mod compaction;
mod devices;
mod durability;
mod forgetting;
mod growth;
mod load;
mod parts;
mod reclaim;
mod regaining;
mod state;
mod writes;

use crate::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(test)]
pub(crate) use parts::balance::BalanceRules;
pub(crate) use parts::checkpoint::Checkpoints;
#[cfg(test)]
pub(crate) use parts::compaction::CompactionRules;
#[cfg(test)]
pub(crate) use parts::credit::CREDIT_SEGMENTS;
#[cfg(test)]
pub(crate) use parts::forgetting::FORGET_ABOVE;
pub use state::Background;
use state::{InFlight, Purpose};

use crate::api::{DropReason, RefuseReason};
use crate::device::{Done, Io};

/// Name of the thread in production.
pub const THREAD: &str = "afterglow-writer";

/// How long the thread sleeps when nothing wakes it, and while somebody waits for room in the
/// journal.
const NAP: Duration = Duration::from_millis(100);
const SHORT_NAP: Duration = Duration::from_millis(5);

/// Seconds that the wall clock may be set back without a word.
const CLOCK_TOLERANCE: u64 = 60;

/// Of so many slots of the index, one may be taken from another object without a word.
const INDEX_TOLERANCE: u64 = 100;

impl Background {
    /// Does what is due and appends the I/O to start to `out`.
    pub fn step(&mut self, out: &mut Vec<Io>) {
        let now = self.core.time.millis();
        self.look_at_clock();
        self.look_at_index();
        self.reserve_versions();
        self.core.journal.retry_poison();
        if let Some(budget) = &self.core.admission.budget {
            budget.refill(now, self.core.written());
        }
        self.step_devices(now, out);
        self.step_balance(now);
        self.step_copies(now);
        self.step_through(now, out);
        self.step_reclaim(out);
        self.step_forgetting();
        self.step_regaining();
        self.step_load(out);
        self.step_growth();
        self.step_compaction(now);
        self.step_checkpoint(now, out);
        self.core.progress.checkpointing.store(self.checkpoint.is_running(), Ordering::Relaxed);
        self.step_close(now);
        self.step_writes(out);
        self.go_on_without_refused();
        self.core.wake_for_room();
    }

    /// How long to sleep when nothing is in flight and nothing to do at once.
    #[must_use]
    pub fn nap(&self) -> Duration {
        if self.core.wait_lists.is_awaited() { SHORT_NAP } else { NAP }
    }

    /// Takes the outcome of an I/O.
    pub fn complete(&mut self, done: Done) {
        let Some(InFlight { device, purpose, sync }) = self.in_flight.remove(&done.id) else {
            return;
        };
        let now = self.core.time.millis();
        self.answered(device, sync, done.result.is_err());
        if done.result.is_ok() {
            self.close.goes_on(now);
        }
        match purpose {
            Purpose::Write(job) => {
                if done.result.is_ok() {
                    self.core.wait_lists.device_goes_on(now);
                }
                self.written(&job, done.result.map(|_| ()));
                self.core.streams.recycle(job);
            }
            Purpose::Reclaim(part) => self.reclaim_done(part, done.result),
            Purpose::Load(part) => self.load_done(part, done.result),
            Purpose::Checkpoint(part) => self.checkpoint_done(part, done.result),
            Purpose::Flush => self.flush_done(&done.result),
            Purpose::Probe => {}
            given_up @ (Purpose::Given(_) | Purpose::Late(_)) => {
                let is_write = !matches!(given_up, Purpose::Late(None));
                if is_write && done.result.is_err() {
                    self.core.totals.write_errors.inc();
                }
                self.late_io_ended(device, given_up);
            }
        }
    }

    /// Whether another step would find something to do at once.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.core.streams.has_jobs()
            || !self.has_flushed()
            || self.load.is_some()
            || self.reclaim.is_some()
            || self.checkpoint.is_running()
            || self.compaction.run.is_some()
            || self.regaining.is_running()
            || self.close.is_running()
    }

    /// Whether DRAM is looked through for objects whose copy was lost.
    #[must_use]
    pub fn is_regaining(&self) -> bool {
        self.regaining.is_running()
    }

    /// Whether all that is in flight is that of devices that do not answer, and given up.
    #[must_use]
    pub fn awaits_only_silent_devices(&self) -> bool {
        self.in_flight.values().all(|io| io.purpose.is_given_up())
    }

    /// Starts the clean stop: step until [`Background::is_closed`].
    pub fn start_close(&mut self) {
        self.core.closed.store(true, Ordering::Release);
        self.close.start();
    }

    /// Nobody will step any more: whoever waits is told so.
    pub fn abandon(&self) {
        self.core.wait_lists.end();
        self.core.waiters.end();
        self.core.give_up(self.core.waiters.overdue(None), RefuseReason::Device);
    }

    /// Whether the clean stop is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.close.is_over()
    }

    /// Whether a clean stop is over and the next start finds its marker.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.close.clean
    }

    /// Says once when the wall clock was set back: objects expire by the cache's time.
    fn look_at_clock(&mut self) {
        let behind = self.core.time.behind();
        if behind > CLOCK_TOLERANCE && !self.clock_warned {
            tracing::warn!(
                seconds = behind,
                "the wall clock is behind what it has shown before: what is to expire at a \
                 moment expires early by so much, or is refused. Lifetimes in seconds are right. \
                 Set the clock right if it is wrong. If it was wrong before, this lasts until \
                 the cache was closed for so long (for more than a day: the next start is cold)"
            );
        }
        self.clock_warned = behind > CLOCK_TOLERANCE;
    }

    /// Says once that the index is too small for what flash could hold.
    fn look_at_index(&mut self) {
        let lost = self.core.totals.dropped_for(DropReason::IndexFull);
        if self.index_warned || lost == 0 {
            return;
        }
        let slots = self.core.shards.iter().map(|shard| shard.index.slots() as u64).sum::<u64>();
        if lost > slots / INDEX_TOLERANCE {
            tracing::warn!(
                lost,
                slots,
                "the index is full and cannot grow: new objects on flash replace others. Configure more \
                 memory, or no share of it for the index"
            );
            self.index_warned = true;
        }
    }

    fn reserve_versions(&self) {
        let versions = &self.core.versions;
        if versions.overrun() {
            self.core.journal.poison_now();
        }
        let Some(limit) = versions.wants_reservation() else { return };
        if self.core.state.update(|state| state.version_limit = limit).is_ok() {
            versions.reserved(limit);
        }
    }
}
