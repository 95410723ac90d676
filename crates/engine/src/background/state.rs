//! The state of the background work between two steps.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::parts::balance::{Balance, BalanceRules};
use super::parts::checkpoint::{AreaAt, CheckpointIo, Checkpoints};
use super::parts::close::Close;
use super::parts::compaction::{Compaction, CompactionRules};
use super::parts::credit::Credit;
use super::parts::device_work::DeviceWork;
use super::parts::flushes::Flushes;
#[cfg(not(test))]
use super::parts::forgetting::FORGET_ABOVE;
use super::parts::forgetting::Forgetting;
use super::parts::load::{Load, LoadIo};
use super::parts::reclaim::{Reclaim, ReclaimIo};
use super::parts::regaining::Regaining;
use crate::config::Config;
use crate::core::Core;
use crate::device::{DeviceId, Io, IoKind, IoOutput};
use crate::recovery::LoadPlan;
use crate::segment::WriteJob;

/// Time between two tries of retired segments, one at a time, once writing goes on. It doubles with
/// every segment that is retired meanwhile, to an hour: a place that stays bad costs a write an
/// hour.
pub(super) const TRY_AGAIN: u64 = 10_000;

/// A share of the memory: what the DRAM tier has given to the index is given back to the system so
/// often.
const GIVE_BACK: u64 = 128;

/// What an I/O in flight is for.
#[derive(Debug)]
pub(super) enum Purpose {
    Write(WriteJob),
    Reclaim(ReclaimIo),
    Load(LoadIo),
    Checkpoint(CheckpointIo),
    Flush,
    /// A read that only shows whether the device answers.
    Probe,
    /// A write to a segment that was given up: its device did not answer.
    Given(WriteJob),
    /// Anything else that nobody waits for any more, with the place of a checkpoint that it may
    /// still write to.
    Late(Option<AreaAt>),
}

impl Purpose {
    /// Whether nobody waits for it.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(self, Self::Given(_) | Self::Late(_))
    }
}

/// An I/O in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) device: DeviceId,
    pub(super) purpose: Purpose,
    /// It is a flush.
    pub(super) sync: bool,
}

/// The background work of an open cache.
pub struct Background {
    pub(super) core: Arc<Core>,
    pub(super) in_flight: HashMap<u64, InFlight>,
    pub(super) devices: Vec<DeviceWork>,
    pub(super) balance: Balance,
    /// I/Os that this step would have started on devices that do not answer.
    pub(super) refused: Vec<(DeviceId, Purpose)>,
    pub(super) next_id: u64,
    /// When a retired segment is tried again, and how long after that the next.
    pub(super) try_again_at: u64,
    pub(super) try_again: u64,
    /// When the DRAM tier was last told the time.
    pub(super) told: u64,
    /// The shard that is copied from next.
    pub(super) copy_next: usize,
    pub(super) clock_warned: bool,
    pub(super) index_warned: bool,
    pub(super) homes_warned: bool,
    /// Bytes that the DRAM tier has given to the index and that may still be held by the allocator.
    pub(super) given_up: usize,
    /// When these are so many they are given back to the system.
    pub(super) give_back: usize,
    pub(super) credit: Credit,
    pub(super) reclaim: Option<Reclaim>,
    pub(super) forgetting: Forgetting,
    pub(super) regaining: Regaining,
    pub(super) load: Option<Load>,
    pub(super) checkpoint: Checkpoints,
    pub(super) compaction: Compaction,
    pub(super) flushes: Flushes,
    pub(super) close: Close,
}

impl Background {
    pub(crate) fn new(
        core: Arc<Core>,
        plan: Option<LoadPlan>,
        config: &Config,
        checkpoint: Checkpoints,
    ) -> Self {
        let rules = compaction_rules(config);
        let load = plan.map(|plan| Load::new(&core, plan, rules.passes));
        let compaction = {
            let log = &core.state.lock().kill_log;
            Compaction::new(rules, log.slots, log.runs.iter().map(|run| run.slot))
        };
        let told = core.time.millis();
        tell_time(&core, told);
        let devices = core.set.infos().iter().map(|_| DeviceWork::default()).collect();
        let credit = Credit::new(config.reinsertion, core.table.segment_size());
        Self {
            core,
            in_flight: HashMap::new(),
            devices,
            balance: Balance::new(balance_rules(config)),
            refused: Vec::new(),
            next_id: 0,
            try_again_at: 0,
            try_again: TRY_AGAIN,
            told,
            copy_next: 0,
            clock_warned: false,
            index_warned: false,
            homes_warned: false,
            given_up: 0,
            give_back: (config.memory / GIVE_BACK).max(4 << 20) as usize,
            credit,
            reclaim: None,
            forgetting: Forgetting::new(forget_above(config)),
            regaining: Regaining::default(),
            load,
            checkpoint,
            compaction,
            flushes: Flushes::default(),
            close: Close::default(),
        }
    }

    /// Starts an I/O. One to a device that does not answer is not handed to the disk: it would take
    /// one of the places that I/Os of all devices share. The end of the step goes on without it.
    pub(super) fn submit(
        &mut self,
        out: &mut Vec<Io>,
        purpose: Purpose,
        device: DeviceId,
        offset: u64,
        kind: IoKind,
    ) {
        if self.devices[usize::from(device.0)].silent {
            self.refused.push((device, purpose));
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let sync = matches!(kind, IoKind::Sync);
        self.in_flight.insert(id, InFlight { device, purpose, sync });
        self.devices[usize::from(device.0)].started(sync);
        out.push(Io { id, device, offset, kind });
    }
}

/// When a device has too much to do.
#[cfg(not(test))]
fn balance_rules(_: &Config) -> BalanceRules {
    BalanceRules::default()
}

/// When a device has too much to do.
#[cfg(test)]
fn balance_rules(config: &Config) -> BalanceRules {
    config.balance
}

/// Removed groups of a namespace from which on some are forgotten.
#[cfg(not(test))]
fn forget_above(_: &Config) -> usize {
    FORGET_ABOVE
}

/// Removed groups of a namespace from which on some are forgotten.
#[cfg(test)]
fn forget_above(config: &Config) -> usize {
    config.forget_above
}

/// When the journal is compacted.
#[cfg(not(test))]
fn compaction_rules(_: &Config) -> CompactionRules {
    CompactionRules::default()
}

/// When the journal is compacted.
#[cfg(test)]
fn compaction_rules(config: &Config) -> CompactionRules {
    config.compaction
}

/// Tells the DRAM tier the time, in milliseconds of the monotonic clock.
pub(super) fn tell_time(core: &Core, now: u64) {
    core.shards.iter().for_each(|slot| slot.lock().dram.set_now(now));
}

/// The bytes of a read.
pub(super) fn bytes(result: io::Result<IoOutput>) -> io::Result<crate::device::AlignedBuf> {
    match result? {
        IoOutput::Read(buf) => Ok(buf),
        IoOutput::Written | IoOutput::Synced => Err(io::ErrorKind::InvalidData.into()),
    }
}
