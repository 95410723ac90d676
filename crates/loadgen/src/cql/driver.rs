//! One thread that keeps many requests in flight over a few connections.
//!
//! ```text
//!   pacer: is one due? --> work: which? --> template --> out buffer --> write
//!                                                                        |
//!   latency from the intended start <-- work: was it right? <-- header <-- read  <-- epoll
//! ```
//!
//! All waiting is in `epoll`, or, where asked for, in asking it again and again. A lost connection
//! loses what was in flight on it (counted), and is made anew if that was asked for.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
        timerfd_settime,
    },
};

use super::measured::Slot;
pub use super::measured::{Measured, Window};
pub use super::work::{Done, Op, Work};
use super::{
    ConnectOptions, Connection, CqlError, ServerError,
    answer::Answer,
    socket::{Failure, Socket},
};
use crate::{cpu, pace::Pacer};

/// The phases all driver threads of a run go through together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub enum Phase {
    /// As fast as it goes, nothing recorded.
    Warm = 0,
    /// What begins now is recorded: of a slow open loop, what the warm-up had in flight would be
    /// one operation in a hundred.
    Measure = 1,
    /// Nothing new is started; what was begun while measuring still counts.
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
    /// Look for answers and for the time again and again instead of sleeping. Takes a whole core,
    /// and leaves out of latencies how long this thread takes to wake up.
    pub polls: bool,
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

struct Lane {
    address: String,
    socket: Option<Socket>,
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    waits_to_write: bool,
    /// When to try to connect again, and how long to wait after that.
    retry: (Instant, Duration),
}

const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));
/// Marks the timer among the events; lanes have their number.
const TIMER: u64 = u64::MAX;
const READ: epoll::EventFlags = epoll::EventFlags::IN;
const IDLE_WAIT: Duration = Duration::from_millis(10);

/// The loop. Make it, then [`run`](Self::run) it on a thread of its own.
pub struct Driver<'a, W> {
    options: DriverOptions,
    shared: &'a Shared,
    work: W,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer was last set to.
    timer_at: u64,
    events: Vec<epoll::Event>,
    lanes: Vec<Lane>,
    origin: Instant,
    pacer: Pacer,
    phase: Phase,
    phase_start: u64,
    measured: Measured,
    measure_start: u64,
    next_lane: usize,
    unpublished: (u64, u64),
}

impl<'a, W: Work> Driver<'a, W> {
    /// Connects all connections and prepares the statements.
    pub fn connect(options: DriverOptions, shared: &'a Shared, work: W) -> Result<Self, CqlError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)
            .map_err(system)?;
        let mut driver = Self {
            shared,
            work,
            epoll,
            timer,
            timer_at: 0,
            events: Vec::with_capacity(64),
            lanes: Vec::new(),
            origin: Instant::now(),
            pacer: Pacer::Closed,
            phase: Phase::Warm,
            phase_start: 0,
            measured: Measured::default(),
            measure_start: 0,
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
        // Timers to the microsecond: an open loop's start times depend on it. If refused, they are
        // late by up to 50 us, which the latency includes.
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
        if phase == Phase::Measure {
            // A wrong value is one whenever it comes.
            let Measured { reconnects, wrong, .. } = self.measured;
            self.measured = Measured { reconnects, wrong, ..Measured::default() };
            self.work.measure();
            *cpu_start = cpu::of_thread();
            self.measure_start = now;
            if let Some(rate) = self.options.rate {
                let start = now + rate.offset.as_nanos() as u64;
                self.pacer = match rate.poisson {
                    None => Pacer::open(rate.per_second, start),
                    Some(seed) => Pacer::poisson(rate.per_second, start, seed),
                };
            }
        }
        if phase == Phase::Drain {
            if self.phase == Phase::Measure {
                self.measured.elapsed =
                    Duration::from_nanos(now - self.measure_start).max(self.measured.elapsed);
            }
            self.measured.unsent = self.pacer.backlog(now);
        }
        self.phase_start = now;
        self.phase = phase;
    }

    /// Starts operations while there is room and one is due, one connection after the other so that
    /// none gets all.
    fn fill(&mut self) {
        let now = self.now();
        let mut idle = 0;
        while idle < self.lanes.len() {
            let lane = &mut self.lanes[self.next_lane];
            self.next_lane = (self.next_lane + 1) % self.options.connections;
            let (Some(socket), Some(&stream)) = (&mut lane.socket, lane.free.last()) else {
                idle += 1;
                continue;
            };
            // The work is asked first in a closed loop (it may have nothing), the clock first in an
            // open one.
            if !self.work.continues() && self.pacer.due_at().is_some_and(|due| due > now) {
                return;
            }
            let Some(mut op) = self.work.start(stream, &mut socket.out, now) else { return };
            let intended = op.since.unwrap_or_else(|| self.pacer.take(now).unwrap_or(now));
            op.since = Some(intended);
            lane.free.pop();
            lane.slots[usize::from(stream)] = Some(Slot { op, intended, sent: now });
            idle = 0;
        }
    }

    fn flush(&mut self) -> Result<(), CqlError> {
        for i in 0..self.lanes.len() {
            let lane = &mut self.lanes[i];
            let Some(socket) = &mut lane.socket else { continue };
            if lane.waits_to_write || socket.out.is_empty() {
                continue;
            }
            self.write(i)?;
        }
        Ok(())
    }

    /// Writes what there is to write on lane `i`, and asks to be told when the rest can be written.
    fn write(&mut self, i: usize) -> Result<(), CqlError> {
        let lane = &mut self.lanes[i];
        let Some(socket) = &mut lane.socket else { return Ok(()) };
        match socket.flush() {
            Ok(all) => {
                if lane.waits_to_write == all {
                    let interest = if all { READ } else { READ | epoll::EventFlags::OUT };
                    let data = epoll::EventData::new_u64(i as u64);
                    epoll::modify(&self.epoll, socket.fd(), data, interest).map_err(system)?;
                    lane.waits_to_write = !all;
                }
                Ok(())
            }
            Err(error) => self.fail(i, Failure::Lost(error)),
        }
    }

    /// Waits for answers, the next due operation, or a little.
    fn wait(&mut self) -> Result<(), CqlError> {
        let now = self.now();
        let wait = match self.pacer.due_at() {
            _ if self.options.polls => Duration::ZERO,
            Some(due) if due <= now => Duration::ZERO.max(self.poll_if_room()),
            Some(due) => {
                self.set_timer(due, now)?;
                IDLE_WAIT
            }
            None => IDLE_WAIT,
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        self.events.clear();
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(system(errno)),
        }
        let events = std::mem::take(&mut self.events);
        for event in &events {
            match event.data.u64() {
                TIMER => {
                    // Level-triggered: reading it makes it quiet until it is set again.
                    let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
                    self.timer_at = 0;
                }
                lane => self.event(lane as usize, event.flags)?,
            }
        }
        self.events = events;
        Ok(())
    }

    /// An operation is due: do not wait if there is a free slot for it, else only an answer helps.
    fn poll_if_room(&self) -> Duration {
        let room = self.lanes.iter().any(|l| l.socket.is_some() && !l.free.is_empty());
        if room && self.phase != Phase::Drain { Duration::ZERO } else { IDLE_WAIT }
    }

    fn set_timer(&mut self, due: u64, now: u64) -> Result<(), CqlError> {
        if self.timer_at == due || self.phase == Phase::Drain {
            return Ok(());
        }
        let wait = due - now;
        let it_value = Timespec {
            tv_sec: (wait / 1_000_000_000) as i64,
            tv_nsec: (wait % 1_000_000_000) as i64,
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval, it_value },
        )
        .map_err(system)?;
        self.timer_at = due;
        Ok(())
    }

    fn event(&mut self, i: usize, flags: epoll::EventFlags) -> Result<(), CqlError> {
        if flags.contains(epoll::EventFlags::OUT) {
            self.write(i)?;
        }
        if !flags.intersects(READ | epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
            return Ok(());
        }
        let now = self.origin.elapsed().as_nanos() as u64;
        let Self { lanes, work, measured, phase, measure_start, unpublished, .. } = self;
        let Lane { socket, slots, free, .. } = &mut lanes[i];
        let Some(socket) = socket else { return Ok(()) };
        let mut unprepared = false;
        let outcome = socket.receive(|header, body| {
            let Some(slot) =
                usize::try_from(header.stream).ok().and_then(|s| slots.get_mut(s)?.take())
            else {
                // Events and answers to nobody.
                return Ok(());
            };
            free.push(header.stream as u16);
            let answer = Answer::parse(header, body)?;
            if matches!(&answer, Answer::Error(e) if e.code == ServerError::UNPREPARED) {
                unprepared = true;
                work.lost(slot.op);
                measured.lost += u64::from(*phase >= Phase::Measure);
                return Ok(());
            }
            let done = work.finish(slot.op, &answer, now)?;
            if *phase >= Phase::Measure && slot.intended >= *measure_start {
                measured.count(&slot, &done, now, now - *measure_start);
            }
            measured.wrong += u64::from(done == Done::Wrong);
            match done {
                Done::Fine | Done::NotFound => unpublished.0 += 1,
                Done::Again => {}
                Done::Wrong | Done::Refused(_) => unpublished.1 += 1,
            }
            Ok(())
        });
        match outcome {
            Err(failure) => self.fail(i, failure),
            Ok(()) if unprepared => self.fail(i, Failure::Unprepared),
            Ok(()) => Ok(()),
        }
    }

    /// Lane `i` is of no use any more.
    fn fail(&mut self, i: usize, failure: Failure) -> Result<(), CqlError> {
        let lane = &mut self.lanes[i];
        lane.socket = None;
        lane.waits_to_write = false;
        lane.retry = (Instant::now() + BACKOFF.0, BACKOFF.0);
        for (stream, slot) in lane.slots.iter_mut().enumerate() {
            if let Some(Slot { op, .. }) = slot.take() {
                lane.free.push(stream as u16);
                self.work.lost(op);
                self.measured.lost += u64::from(self.phase >= Phase::Measure);
                self.unpublished.1 += 1;
            }
        }
        match failure {
            Failure::Cql(error) => Err(error),
            // A new connection prepares again.
            Failure::Unprepared => Ok(()),
            Failure::Lost(_) if self.options.reconnect => Ok(()),
            Failure::Lost(source) => Err(CqlError::Lost { address: lane.address.clone(), source }),
        }
    }

    fn reopen(&mut self) -> Result<(), CqlError> {
        for i in 0..self.lanes.len() {
            if self.lanes[i].socket.is_some() || self.lanes[i].retry.0 > Instant::now() {
                continue;
            }
            match self.open(i) {
                Ok(()) => self.measured.reconnects += 1,
                Err(CqlError::Frame(error)) => return Err(error.into()),
                Err(_) => {
                    let wait = self.lanes[i].retry.1;
                    self.lanes[i].retry = (Instant::now() + wait, (wait * 2).min(BACKOFF.1));
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, i: usize) -> Result<(), CqlError> {
        let address = &self.lanes[i].address;
        let mut connection = Connection::open(address, &self.options.connect)?;
        self.work.prepare(&mut connection)?;
        let socket = Socket::new(connection)
            .map_err(|source| CqlError::Lost { address: address.clone(), source })?;
        epoll::add(&self.epoll, socket.fd(), epoll::EventData::new_u64(i as u64), READ)
            .map_err(system)?;
        self.lanes[i].socket = Some(socket);
        Ok(())
    }

    fn publish(&mut self) {
        let (operations, failures) = std::mem::take(&mut self.unpublished);
        if operations > 0 {
            self.shared.operations.fetch_add(operations, Ordering::Relaxed);
        }
        if failures > 0 {
            self.shared.failures.fetch_add(failures, Ordering::Relaxed);
        }
    }
}

fn system(errno: rustix::io::Errno) -> CqlError {
    CqlError::Lost { address: "epoll".to_owned(), source: errno.into() }
}
