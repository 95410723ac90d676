//! One thread that keeps requests outstanding on many connections.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::TcpStream,
    ops::Range,
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    fd::OwnedFd,
};

use super::{
    Objects,
    wire::{self, Part, Unexpected},
};
use crate::{cpu, latency::Latency, pace::Pacer, rng::Rng};

/// Bytes read at once; what a connection's buffer has at least.
const READ: usize = 64 << 10;
/// Answers that do not come for so long are taken for lost.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Objects chosen at random, so many in one `get`.
    Get {
        /// Keys in one request.
        keys: usize,
    },
    /// Stores of one object after the other.
    Set,
}

/// A load.
#[derive(Clone, Debug)]
pub struct Load {
    /// Connections.
    pub connections: usize,
    /// Requests outstanding on each.
    pub outstanding: usize,
    /// What they are.
    pub kind: RequestKind,
    /// The objects; a load of sets ends with the last.
    pub ids: Range<u64>,
    /// Requests a second at equal distances, latency counted from when one was due; `None`: the
    /// next one when one has ended.
    pub rate: Option<f64>,
    /// Which random choice.
    pub seed: u64,
}

/// Why a load broke off.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A connection.
    #[error("the connection to the server failed: {0}")]
    Io(#[from] io::Error),
    /// An answer.
    #[error(transparent)]
    Unexpected(#[from] Unexpected),
    /// No answer.
    #[error("the server owes {0} answers and gave none for 20 s")]
    Silent(usize),
}

/// What a load brought.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Objects got or stored.
    pub operations: u64,
    /// Objects that were not there.
    pub misses: u64,
    /// Stores refused.
    pub refused: u64,
    /// Values of another object or with a wrong byte.
    pub wrong: u64,
    /// Requests that were due and could not be sent: above zero, the rate was not reached.
    pub unsent: u64,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// CPU the client itself used, in nanoseconds.
    pub cpu: u64,
    /// Of requests.
    pub latency: Latency,
}

struct Request {
    /// Of a `get`: its objects that have not been answered.
    ids: VecDeque<u64>,
    begin: u64,
}

struct MemcacheLane {
    stream: TcpStream,
    requests: VecDeque<Request>,
    /// Emptied requests, to be used again.
    spare: Vec<Request>,
    out: Vec<u8>,
    sent: usize,
    waits_to_write: bool,
    input: Vec<u8>,
    filled: usize,
    /// Bytes that the front of `input` needs to be whole.
    need: usize,
}

/// Connections to a server under a load.
pub struct Client<'a> {
    objects: &'a Objects,
    load: Load,
    lanes: Vec<MemcacheLane>,
    epoll: OwnedFd,
    rng: Rng,
    /// The next object to be stored.
    next: u64,
    length: String,
    origin: Instant,
}

impl<'a> Client<'a> {
    /// Connects.
    ///
    /// # Errors
    /// When that fails.
    pub fn connect(address: &str, objects: &'a Objects, load: Load) -> Result<Self, ClientError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let mut lanes = Vec::with_capacity(load.connections);
        for i in 0..load.connections {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN)
                .map_err(io::Error::from)?;
            lanes.push(MemcacheLane {
                stream,
                requests: VecDeque::new(),
                spare: Vec::new(),
                out: Vec::new(),
                sent: 0,
                waits_to_write: false,
                input: vec![0; READ],
                filled: 0,
                need: 1,
            });
        }
        let (rng, next, length) =
            (Rng::new(load.seed), load.ids.start, objects.value_len().to_string());
        Ok(Self { objects, load, lanes, epoll, rng, next, length, origin: Instant::now() })
    }

    /// Keeps the load up for `length` or until every object is stored, then waits for what is
    /// outstanding.
    ///
    /// # Errors
    /// When a connection breaks or the server says what memcached never says.
    pub fn run(&mut self, length: Duration) -> Result<Outcome, ClientError> {
        let (mut outcome, cpu) = (Outcome::default(), cpu::of_thread());
        let (begin, mut heard) = (self.now(), self.now());
        let until = begin + length.as_nanos() as u64;
        let mut pacer = match self.load.rate {
            None => Pacer::Closed,
            Some(rate) => Pacer::open(rate, begin),
        };
        let mut events = Vec::with_capacity(self.lanes.len().min(256));
        let mut now = begin;
        for at in 0..self.lanes.len() {
            self.fill(at, &mut pacer, now);
        }
        self.flush_all()?;
        loop {
            let going = now < until && !self.is_exhausted();
            let owed: usize = match going {
                true => 1,
                false => self.lanes.iter().map(|l| l.requests.len()).sum(),
            };
            if owed == 0 {
                break;
            }
            self.wait(&mut events, &pacer, now)?;
            now = self.now();
            let going = now < until;
            if !events.is_empty() {
                heard = now;
            } else if now - heard > TIMEOUT.as_nanos() as u64 {
                return Err(ClientError::Silent(owed));
            }
            for event in events.drain(..) {
                let (at, flags) = (event.data.u64() as usize, event.flags);
                if flags.intersects(
                    epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR,
                ) {
                    self.receive(at, now, &mut outcome)?;
                    if going && matches!(pacer, Pacer::Closed) {
                        self.fill(at, &mut pacer, now);
                    }
                }
                self.flush(at)?;
            }
            if going && matches!(pacer, Pacer::Open(_)) {
                self.fill_evenly(&mut pacer, now)?;
            }
        }
        outcome.unsent = pacer.backlog(until);
        outcome.seconds = (now - begin) as f64 / 1e9;
        outcome.cpu = cpu::of_thread() - cpu;
        Ok(outcome)
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn is_exhausted(&self) -> bool {
        self.load.kind == RequestKind::Set && self.next >= self.load.ids.end
    }

    fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        pacer: &Pacer,
        now: u64,
    ) -> Result<(), ClientError> {
        let most = Duration::from_millis(50).as_nanos() as u64;
        let nanos = pacer.due_at().map_or(most, |due| due.saturating_sub(now).min(most));
        let limit = Timespec { tv_sec: 0, tv_nsec: nanos as i64 };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Puts down as many requests as connection `at` has room for and are due.
    fn fill(&mut self, at: usize, pacer: &mut Pacer, now: u64) {
        while self.lanes[at].requests.len() < self.load.outstanding && !self.is_exhausted() {
            let Some(begin) = pacer.take(now) else { return };
            self.request(at, begin);
        }
    }

    /// Spreads what is due over the connections that have room.
    fn fill_evenly(&mut self, pacer: &mut Pacer, now: u64) -> Result<(), ClientError> {
        let count = self.lanes.len();
        let (mut at, mut full) = (self.rng.below(count as u64) as usize, 0);
        while full < count && !self.is_exhausted() {
            at = (at + 1) % count;
            if self.lanes[at].requests.len() >= self.load.outstanding {
                full += 1;
                continue;
            }
            let Some(begin) = pacer.take(now) else { return Ok(()) };
            self.request(at, begin);
            self.flush(at)?;
            full = 0;
        }
        Ok(())
    }

    fn request(&mut self, at: usize, begin: u64) {
        let lane = &mut self.lanes[at];
        let mut request =
            lane.spare.pop().unwrap_or_else(|| Request { ids: VecDeque::new(), begin: 0 });
        request.begin = begin;
        match self.load.kind {
            RequestKind::Get { keys } => {
                let Range { start, end } = self.load.ids;
                request.ids.extend((0..keys).map(|_| start + self.rng.below(end - start)));
                wire::get(request.ids.make_contiguous(), &mut lane.out);
            }
            RequestKind::Set => {
                wire::set(self.objects, self.next, &self.length, &mut lane.out);
                self.next += 1;
            }
        }
        lane.requests.push_back(request);
    }

    fn flush_all(&mut self) -> Result<(), ClientError> {
        (0..self.lanes.len()).try_for_each(|at| self.flush(at))
    }

    /// Sends what the system takes; asks to be told when it takes more.
    fn flush(&mut self, at: usize) -> Result<(), ClientError> {
        let lane = &mut self.lanes[at];
        while lane.sent < lane.out.len() {
            match lane.stream.write(&lane.out[lane.sent..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(n) => lane.sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e.into()),
            }
        }
        let whole = lane.sent == lane.out.len();
        if whole {
            lane.out.clear();
            lane.sent = 0;
        }
        if lane.waits_to_write == whole {
            lane.waits_to_write = !whole;
            let wanted = match whole {
                true => epoll::EventFlags::IN,
                false => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            };
            epoll::modify(&self.epoll, &lane.stream, epoll::EventData::new_u64(at as u64), wanted)
                .map_err(io::Error::from)?;
        }
        Ok(())
    }

    /// Reads once and judges every part that is whole.
    fn receive(&mut self, at: usize, now: u64, outcome: &mut Outcome) -> Result<(), ClientError> {
        let lane = &mut self.lanes[at];
        if lane.input.len() < lane.need.max(lane.filled + READ / 2) {
            lane.input.resize(lane.need + READ, 0);
        }
        match lane.stream.read(&mut lane.input[lane.filled..]) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(n) => lane.filled += n,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
        if lane.filled < lane.need {
            return Ok(());
        }
        let mut done = 0;
        lane.need = loop {
            let front = &lane.input[done..lane.filled];
            let Some(request) = lane.requests.front_mut() else {
                if front.is_empty() {
                    break 1;
                }
                return Err(Unexpected(String::from_utf8_lossy(front).into_owned()).into());
            };
            let len = match wire::part(front)? {
                Part::More(need) => break need,
                Part::Value { key, value, len } => {
                    // Those before it were not found.
                    while let Some(id) = request.ids.pop_front() {
                        if Objects::key(id) == *key {
                            outcome.operations += 1;
                            outcome.wrong += u64::from(!self.objects.is_value(id, value));
                            break;
                        }
                        outcome.misses += 1;
                    }
                    done += len;
                    continue;
                }
                Part::End(len) => len,
                Part::Stored(len) => {
                    outcome.operations += 1;
                    len
                }
                Part::Refused(_, len) => {
                    outcome.refused += 1;
                    len
                }
            };
            done += len;
            outcome.misses += request.ids.len() as u64;
            outcome.latency.record(now.saturating_sub(request.begin));
            request.ids.clear();
            lane.spare.extend(lane.requests.pop_front());
        };
        lane.input.copy_within(done..lane.filled, 0);
        lane.filled -= done;
        Ok(())
    }
}
