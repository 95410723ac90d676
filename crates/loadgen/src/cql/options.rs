//! Settings of a run, and how many operations are left of it.

use std::time::Duration;

use afterglow_cql::message::Consistency;

use super::ConnectOptions;
use crate::result::LoadShape;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What is measured, for the report.
    pub label: String,
    /// Under which load, for the report.
    pub scenario: String,
    /// The load.
    pub load: LoadShape,
    /// Addresses; connections go round them.
    pub hosts: Vec<String>,
    /// Ask only for records that the first host owns, by the tokens that it shows to drivers.
    pub owned: bool,
    /// How to connect.
    pub connect: ConnectOptions,
    /// Consistency level.
    pub consistency: Consistency,
    /// Connect again where a connection breaks, and go on.
    pub reconnect: bool,
    /// Random distances between the operations of an open loop.
    pub poisson: bool,
    /// Clients never sleep, see [`DriverOptions::polls`](super::driver::DriverOptions::polls).
    pub polls: bool,
    /// How to warm up.
    pub warm: Warm,
    /// How long to measure.
    pub duration: Duration,
    /// Or how many operations, whatever comes first.
    pub operations: Option<u64>,
    /// Which reads are verified byte for byte.
    pub verify: Verify,
    /// Processes whose CPU is watched.
    pub watch: Vec<(String, u32)>,
    /// Afterglow's admin address, to read hits and misses from.
    pub metrics: Option<String>,
}

/// How to warm up, always in a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warm {
    /// For so long.
    For(Duration),
    /// Until throughput is level, so long at most.
    UntilFlat(Duration),
}

/// Which reads are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Verify {
    /// None: only whether a row came.
    None,
    /// Every 64th.
    Sample,
    /// Every one; costs the client about 1 ns per byte.
    All,
}

/// How many operations one thread may still begin.
pub(super) struct Quota {
    left: u64,
    /// As many once recording begins.
    measured: u64,
}

impl Quota {
    pub(super) fn new(options: &RunOptions, thread: usize) -> Self {
        let (threads, number) = (options.load.threads as u64, thread as u64);
        let share = |n| n * (number + 1) / threads - n * number / threads;
        Self { left: u64::MAX, measured: options.operations.map_or(u64::MAX, share) }
    }

    pub(super) fn take(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }

    pub(super) fn begin(&mut self) {
        self.left = self.measured;
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

impl RunOptions {
    /// The seed of one thread's choices.
    pub(super) fn seed(&self, thread: usize) -> u64 {
        self.load.seed ^ (thread as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}
