//! One thread that keeps many requests in flight over a few connections.
//!
//! ```text
//!   pacer: is one due? --> work: which? --> template --> out buffer --> write
//!                                                                        |
//!   latency from the intended start <-- work: was it right? <-- header <-- read  <-- epoll
//! ```
//!
//! All waiting is in `epoll`. A lost connection loses what was in flight on it (counted), and is made anew if that was asked for.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::event::{Timespec, epoll};

use super::{
    Connection, ConnectOptions, CqlError,
    answer::{Answer, ServerError},
    socket::{Arrival, Failure, Socket},
};
use crate::{cpu, latency::Latency, pace::Pacer};

/// One operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The record.
    pub number: u64,
    /// Whether it changes something.
    pub write: bool,
    /// How often it was tried before.
    pub attempt: u32,
}

/// How an operation ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// As it should.
    Fine,
    /// A read found no row.
    NotFound,
    /// A read returned something that was never written there.
    Wrong,
    /// The server refused.
    Refused(ServerError),
    /// It will be tried again: not counted yet.
    Again,
}

/// What the driver is to do: hands out operations and judges answers.
pub trait Work {
    /// Makes ready to use a new connection: prepares statements. Called for each of them.
    fn prepare(&mut self, connection: &mut Connection) -> Result<(), CqlError>;
    /// The next operation, its envelope appended to `out`. `None`: nothing to do now; asked again after each answer, and within 10 ms.
    fn start(&mut self, stream: u16, out: &mut Vec<u8>, now: u64) -> Option<Op>;
    /// Judges the answer to `op`.
    fn finish(&mut self, op: Op, answer: &Answer<'_>, now: u64) -> Result<Done, CqlError>;
    /// The connection of `op` broke before its answer came.
    fn lost(&mut self, op: Op);
    /// Nothing will come any more from [`start`](Self::start).
    fn exhausted(&self) -> bool;
}

/// The phases all driver threads of a run go through together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub enum Phase {
    /// As fast as it goes, nothing recorded.
    Warm = 0,
    /// Recorded.
    Measure = 1,
    /// Nothing new is started; what is in flight still counts.
    Drain = 2,
}

/// What the controlling thread and the driver threads share.
#[derive(Debug, Default)]
pub struct Shared {
    phase: AtomicU8,
    /// Operations finished since the start, of all threads.
    pub operations: AtomicU64,
    /// Operations that failed since the start.
    pub failures: AtomicU64,
}

impl Shared {
    /// The present phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Warm,
            1 => Phase::Measure,
            _ => Phase::Drain,
        }
    }

    /// Moves on; never back.
    pub fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }
}

/// Settings of one driver thread.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// Addresses; connections go round them.
    pub hosts: Vec<String>,
    /// How to connect.
    pub connect: ConnectOptions,
    /// Connections of this thread.
    pub connections: usize,
    /// Requests in flight per connection, at most 32,768.
    pub in_flight: usize,
    /// Make lost connections anew and go on, instead of ending with an error.
    pub reconnect: bool,
    /// Operations a second of this thread in the measured phase; `None` is a closed loop.
    pub rate: Option<Rate>,
    /// How long to wait for answers in the end.
    pub drain: Duration,
}

/// An open loop's arrivals.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Operations a second.
    pub per_second: f64,
    /// Random (exponential) instead of equal distances, from this seed.
    pub poisson: Option<u64>,
    /// Time of the first, after the phase began: so that threads do not send in step.
    pub offset: Duration,
}

/// One second of a run.
#[derive(Clone, Debug)]
pub struct Window {
    /// Operations that ended well.
    pub operations: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Their latencies.
    pub latency: Latency,
}

/// What one driver thread measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Latencies of reads, from the intended start.
    pub reads: Latency,
    /// Latencies of writes, from the intended start.
    pub writes: Latency,
    /// Latencies of both from the moment of sending.
    pub service: Latency,
    /// Reads without a row.
    pub not_found: u64,
    /// Reads with a wrong row.
    pub wrong: u64,
    /// Refusals by error code, with one text each.
    pub refused: std::collections::BTreeMap<i32, (u64, String)>,
    /// Operations whose connection broke, or that had no answer in the end.
    pub lost: u64,
    /// Connections made anew.
    pub reconnects: u64,
    /// Operations due and never sent (open loop).
    pub unsent: u64,
    /// From the beginning of the measured phase to the last answer.
    pub elapsed: Duration,
    /// CPU time of this thread in that time, nanoseconds.
    pub cpu: u64,
    /// One entry per second.
    pub windows: Vec<Window>,
}

#[derive(Clone, Copy)]
struct Slot {
    op: Op,
    intended: u64,
    sent: u64,
}

struct Lane {
    address: String,
    socket: Option<Socket>,
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    waits_to_write: bool,
    /// When to try to connect again, and how long to wait after that.
    retry: (Instant, Duration),
}

const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
const WINDOW_NS: u64 = 1_000_000_000;
const IDLE_WAIT: Duration = Duration::from_millis(10);

/// The loop. Make it, then [`run`](Self::run) it on a thread of its own.
pub struct Driver<'a, W> {
    options: DriverOptions,
    shared: &'a Shared,
    work: W,
    epoll: rustix::fd::OwnedFd,
    lanes: Vec<Lane>,
    origin: Instant,
    pacer: Pacer,
    phase: Phase,
    phase_start: u64,
    measured: Measured,
    last_answer: u64,
    next_lane: usize,
    unpublished: (u64, u64),
}

impl<'a, W: Work> Driver<'a, W> {
    /// Connects all connections and prepares the statements.
    pub fn connect(options: DriverOptions, shared: &'a Shared, work: W) -> Result<Self, CqlError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let mut driver = Self {
            shared,
            work,
            epoll,
            lanes: Vec::new(),
            origin: Instant::now(),
            pacer: Pacer::Closed,
            phase: Phase::Warm,
            phase_start: 0,
            measured: Measured::default(),
            last_answer: 0,
            next_lane: 0,
            unpublished: (0, 0),
            options,
        };
        for i in 0..driver.options.connections {
            let address = driver.options.hosts[i % driver.options.hosts.len()].clone();
            let in_flight = driver.options.in_flight.min(32_768);
            driver.lanes.push(Lane {
                address,
                socket: None,
                slots: vec![None; in_flight],
                free: (0..in_flight as u16).rev().collect(),
                waits_to_write: false,
                retry: (driver.origin, BACKOFF.0),
            });
            driver.open(i)?;
        }
        Ok(driver)
    }

    /// Goes through the phases until everything is answered. Ends early when the work is exhausted.
    pub fn run(mut self) -> Result<(Measured, W), CqlError> {
        // Timers to the microsecond: an open loop's start times depend on it. If refused, they are late by up to 50 us, which the latency includes.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut cpu_start = cpu::of_thread();
        loop {
            let now = self.now();
            if self.shared.phase() > self.phase {
                self.enter(self.shared.phase(), now, &mut cpu_start);
            }
            if self.work.exhausted() && self.phase < Phase::Drain {
                self.enter(Phase::Drain, now, &mut cpu_start);
            }
            if self.phase == Phase::Drain {
                let waited = now - self.phase_start;
                if self.in_flight() == 0 || waited > self.options.drain.as_nanos() as u64 {
                    break;
                }
            } else {
                self.reopen()?;
                self.fill();
            }
            self.flush()?;
            self.wait()?;
            self.publish();
        }
        self.measured.lost += self.in_flight() as u64;
        self.measured.cpu = cpu::of_thread() - cpu_start;
        self.publish();
        Ok((self.measured, self.work))
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn in_flight(&self) -> usize {
        self.lanes.iter().map(|l| l.slots.len() - l.free.len()).sum()
    }

    fn enter(&mut self, phase: Phase, now: u64, cpu_start: &mut u64) {
        if phase == Phase::Measure || (phase == Phase::Drain && self.phase == Phase::Warm) {
            let reconnects = self.measured.reconnects;
            if phase == Phase::Measure {
                self.measured = Measured { reconnects, ..Measured::default() };
                *cpu_start = cpu::of_thread();
                self.last_answer = now;
                if let Some(rate) = self.options.rate {
                    let start = now + rate.offset.as_nanos() as u64;
                    self.pacer = match rate.poisson {
                        None => Pacer::open(rate.per_second, start),
                        Some(seed) => Pacer::poisson(rate.per_second, start, seed),
                    };
                }
            }
        }
        if phase == Phase::Drain {
            self.measured.unsent = self.pacer.backlog(now);
        }
        self.phase_start = if phase == Phase::Measure || phase == Phase::Drain { now } else { self.phase_start };
        self.phase = phase;
    }
}

fn system(errno: rustix::io::Errno) -> CqlError {
    CqlError::Lost { address: "epoll".to_owned(), source: errno.into() }
}

#[allow(unused)]
fn _unused(_: Arrival<'_>, _: Failure, _: Timespec, _: &AtomicU64, _: Duration, _: u64) {}
