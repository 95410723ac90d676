//! Background work as a state machine: [`Background::step`] looks at the clock and says which I/O to start,
//! [`Background::complete`] takes what came of it. In production one thread drives it over a [`Disk`](crate::device::Disk); the simulation drives it
//! over a simulated one.
//!
//! Each concern is a file of its own and does a bounded amount of work per step:
//! copying dirty objects to flash and issuing writes ([`writes`]), freeing segments ([`reclaim`]), loading index lines after opening
//! ([`load`]), checkpoints ([`checkpoint`]), acknowledging what waits for the device ([`through`]), and the clean stop ([`close`]).

mod checkpoint;
mod close;
mod credit;
mod durability;
mod load;
mod reclaim;
mod writes;

use crate::sync::atomic::Ordering;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use checkpoint::Checkpoints;

use crate::api::{DropReason, RefuseReason};
use crate::config::Config;
use crate::core::Core;
use crate::device::{DeviceId, Done, Io, IoKind, IoOutput};
use crate::recovery::LoadPlan;
use crate::segment::WriteJob;

/// Name of the thread in production.
pub const THREAD: &str = "afterglow-writer";

/// How long the thread sleeps when nothing wakes it, and while somebody waits for room in the journal.
const NAP: Duration = Duration::from_millis(100);
const SHORT_NAP: Duration = Duration::from_millis(5);

/// Seconds that the wall clock may be set back without a word.
const CLOCK_TOLERANCE: u64 = 60;

/// Of so many slots of the index, one may be taken from another object without a word.
const INDEX_TOLERANCE: u64 = 100;

/// Segments' worth of bytes that reclaims may be entitled to write again at most: what was saved up is gone after a few of them.
pub const CREDIT_SEGMENTS: u64 = 4;

/// What an I/O in flight is for.
#[derive(Debug)]
enum Purpose {
    Write(WriteJob),
    Reclaim(reclaim::ReclaimIo),
    Load(load::LoadIo),
    Checkpoint(checkpoint::CheckpointIo),
    Flush,
}

/// The background work of an open cache.
pub struct Background {
    core: Arc<Core>,
    in_flight: HashMap<u64, Purpose>,
    next_id: u64,
    writes_in_flight: u32,
    /// Length of the latest pause after a failed write, in milliseconds; 0 once writing goes on.
    pause: u64,
    /// When the latest write failed.
    failed_at: u64,
    /// When a retired segment is tried again, and how long after that the next.
    try_again_at: u64,
    try_again: u64,
    /// When the DRAM tier was last told the time.
    told: u64,
    /// The shard that is copied from next.
    copy_next: usize,
    clock_warned: bool,
    index_warned: bool,
    credit: credit::Credit,
    reclaim: Option<reclaim::Reclaim>,
    load: Option<load::Load>,
    checkpoint: Checkpoints,
    flushes: durability::Flushes,
    close: close::Close,
}

impl Background {
    pub(crate) fn new(
        core: Arc<Core>,
        plan: Option<LoadPlan>,
        config: &Config,
        checkpoint: Checkpoints,
    ) -> Self {
        let load = plan.map(|plan| load::Load::new(&core, plan));
        let told = core.time.millis();
        writes::tell_time(&core, told);
        let credit = credit::Credit::new(config.reinsertion, core.table.segment_size());
        Self {
            core,
            in_flight: HashMap::new(),
            next_id: 0,
            writes_in_flight: 0,
            pause: 0,
            failed_at: 0,
            try_again_at: 0,
            try_again: writes::FIRST_TRY,
            told,
            copy_next: 0,
            clock_warned: false,
            index_warned: false,
            credit,
            reclaim: None,
            load,
            checkpoint,
            flushes: durability::Flushes::default(),
            close: close::Close::default(),
        }
    }

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
        self.step_copies(now);
        self.step_through(now, out);
        self.step_reclaim(out);
        self.step_load(out);
        self.step_checkpoint(now, out);
        self.core.progress.checkpointing.store(self.checkpoint.is_running(), Ordering::Relaxed);
        self.step_close(now);
        self.step_writes(out);
        self.core.wake_for_room();
    }

    /// How long to sleep when nothing is in flight and nothing to do at once.
    #[must_use]
    pub fn nap(&self) -> Duration {
        if self.core.rooms.is_awaited() { SHORT_NAP } else { NAP }
    }

    /// Takes the outcome of an I/O.
    pub fn complete(&mut self, done: Done) {
        let Some(purpose) = self.in_flight.remove(&done.id) else { return };
        if done.result.is_ok() {
            self.close.goes_on(self.core.time.millis());
        }
        match purpose {
            Purpose::Write(job) => {
                if done.result.is_ok() {
                    self.core.rooms.device_goes_on(self.core.time.millis());
                }
                self.written(&job, done.result.map(|_| ()));
                self.core.streams.recycle(job);
            }
            Purpose::Reclaim(part) => self.reclaim_done(part, done.result),
            Purpose::Load(part) => self.load_done(part, done.result),
            Purpose::Checkpoint(part) => self.checkpoint_done(part, done.result),
            Purpose::Flush => self.flush_done(&done.result),
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
            || self.close.is_running()
    }

    /// Starts the clean stop: step until [`Background::is_closed`].
    pub fn start_close(&mut self) {
        self.core.closed.store(true, Ordering::Release);
        self.close.start();
    }

    /// Nobody will step any more: whoever waits is told so.
    pub fn abandon(&self) {
        self.core.rooms.end();
        self.core.waiters.end();
        for id in self.core.waiters.overdue(None) {
            self.core.give_up(id, RefuseReason::Device);
        }
    }

    /// Whether the clean stop is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.close.is_over()
    }

    fn submit(&mut self, out: &mut Vec<Io>, purpose: Purpose, device: DeviceId, offset: u64, kind: IoKind) {
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight.insert(id, purpose);
        out.push(Io { id, device, offset, kind });
    }

    /// Says once when the wall clock was set back: objects expire by the highest time seen.
    fn look_at_clock(&mut self) {
        let behind = self.core.time.behind();
        if behind > CLOCK_TOLERANCE && !self.clock_warned {
            tracing::warn!(
                seconds = behind,
                "the wall clock is behind what it has shown before: until it has caught up objects expire early, and those that \
                 would expire by then are refused; set it right, or restart (more than a day behind, the cache then starts cold)"
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
                "the index is full, and for each new object on flash another one is given up while its place is not needed: \
                 configure more memory, of which a quarter is index, or larger objects"
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

/// The bytes of a read.
fn bytes(result: io::Result<IoOutput>) -> io::Result<crate::device::AlignedBuf> {
    match result? {
        IoOutput::Read(buf) => Ok(buf),
        IoOutput::Written | IoOutput::Synced => Err(io::ErrorKind::InvalidData.into()),
    }
}
