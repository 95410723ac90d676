//! A run: machines, network, database and clients, driven by one queue of events.
//!
//! 1. [`SimWorld::run`] takes the next event; [`SimWorld::input`] gives a process what comes to it,
//!    if it does not stand still.
//! 2. What the process asks for and sends afterwards is carried out ([`SimWorld::drain`]): by the
//!    [`network`](super::network), or the database.
//! 3. What clients hear is judged at once, cached rows now and then ([`checks`](super::checks)).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use afterglow_ring::{Config, Map, MemberId, Time};
use futures_channel::oneshot;

use super::super::source::given;
use super::catalog::Catalog;
use super::database::SimDatabase;
use super::machine::{Lost, Machine};
use super::oracle::{Counts, Oracle};
use super::plan::{MS, Mishap, RunPlan};
use super::process::{DatabaseAsk, Done, Input, Process};
use super::random::SimRandom;

/// Between two ticks of a process.
const TICK: Time = 100 * MS;
/// So long before the end there are only reads, and they are counted.
const QUIET: Time = 3_000 * MS;

/// What happens.
pub enum SimEvent {
    /// Something comes to a machine; to that process alone, where there is a number.
    Input(usize, Option<u64>, Input),
    /// A process reads the map at the database.
    ReadMap(usize, u64, u64),
    /// Its transaction is at the database.
    Transact(usize, u64, u64, Arc<Map>),
    /// Its read of a row is at two replicas.
    ReadRow(usize, u64, RowRead),
    /// A fault of the plan.
    Mishap(Mishap),
    /// A process may go on.
    Resume(usize),
    /// One starts.
    Start(usize),
    /// One ends that has left.
    Stop(usize),
    /// A client asks for something.
    Client,
    /// Cached rows are judged.
    Check,
    /// All faults end.
    Heal,
}

/// A read of a row at the database.
pub struct RowRead {
    /// Which row.
    pub row: usize,
    /// Which replicas are read, and when.
    pub of: [(usize, Time); 2],
    /// How much later they answer.
    pub slow: Time,
    /// When nobody waits for the answer any more.
    pub until: Time,
    /// Who waits.
    pub answer: oneshot::Sender<Option<i32>>,
}

/// A machine in the world.
pub struct SimNode {
    /// The machine.
    pub machine: Machine,
    /// The process that runs.
    pub process: Option<Process>,
    /// Which process this is.
    pub life: u64,
    /// Until when it stands still.
    pub paused: Time,
    /// What it will send first when it goes on.
    pub unsent: VecDeque<(MemberId, Vec<u8>)>,
    /// What came while it stood still.
    pub inbox: VecDeque<Input>,
    /// Until when it does not reach the database for the map.
    pub no_database: Time,
    /// When it comes back, and without what.
    pub back: Option<(Time, Lost)>,
    /// It leaves.
    pub leaves: bool,
}

/// A run.
pub struct SimWorld {
    /// What it is.
    pub plan: RunPlan,
    /// True time.
    pub now: Time,
    /// The ring's durations.
    pub config: Arc<Config>,
    /// Rows.
    pub catalog: Arc<Catalog>,
    /// The machines.
    pub nodes: Vec<SimNode>,
    /// The database.
    pub database: SimDatabase,
    /// What was acknowledged.
    pub oracle: Oracle,
    /// The source of everything random but incarnations.
    pub random: SimRandom,
    /// Until when messages from one to the other are lost.
    pub cuts: Vec<(usize, usize, Time)>,
    /// Until when nobody reaches the database for the map.
    pub database_down: Time,
    /// So much later the next write of the first row comes to its replicas.
    pub late_write: Time,
    /// So much later the next read of the first row is answered.
    pub slow_fill: Time,
    /// Through whom the last late write went.
    pub writer: usize,
    /// Until when no other client writes the first row.
    pub unwritten: Time,
    /// Until when none reads it.
    pub unread: Time,
    /// The number of the last write that was sent.
    pub stamp: i32,
    /// What is wrong.
    pub wrong: Option<String>,
    trace: bool,
    queue: BTreeMap<(Time, u64), SimEvent>,
    queued: u64,
}

impl SimWorld {
    /// The world of a plan.
    pub fn new(plan: RunPlan, trace: bool) -> SimWorld {
        given::set_random(plan.seed);
        let mut world = SimWorld {
            now: 0,
            config: Arc::new(plan.config.clone()),
            catalog: Arc::new(Catalog::new(plan.rows)),
            nodes: Vec::new(),
            database: SimDatabase::new(plan.config.shards, plan.rows),
            oracle: Oracle::new(plan.rows),
            random: SimRandom::new(plan.seed ^ 0xabcd),
            cuts: Vec::new(),
            database_down: 0,
            late_write: 0,
            slow_fill: 0,
            writer: 0,
            unwritten: if plan.made { Time::MAX } else { 0 },
            unread: if plan.made { Time::MAX } else { 0 },
            stamp: 0,
            wrong: None,
            trace,
            queue: BTreeMap::new(),
            queued: 0,
            plan,
        };
        for _ in 0..world.plan.members {
            let soon = world.random.below(200) * MS;
            world.add(soon);
        }
        for (at, fault) in world.plan.faults.clone() {
            world.push(at, SimEvent::Mishap(fault));
        }
        let heal = world.plan.heal;
        world.push(heal, SimEvent::Heal);
        world.push(1_000 * MS, SimEvent::Client);
        world.push(1_000 * MS, SimEvent::Check);
        world
    }

    /// Something is to happen then.
    pub fn push(&mut self, at: Time, event: SimEvent) {
        self.queued += 1;
        self.queue.insert((at, self.queued), event);
    }

    /// Tells of something, if the run is traced.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>9.3} {}", self.now as f64 / 1_000.0, what());
        }
    }

    /// A machine comes, whose process starts after a time.
    pub fn add(&mut self, after: Time) {
        let at = self.nodes.len();
        let offset = self.random.below(1 << 40);
        // The slowest clock has the true rate, the fastest is ρ faster.
        let fast = self.random.pick(&[0, self.config.rho, self.config.rho / 2]);
        let claim = self.random.next() | 1;
        let machine = Machine::new(MemberId(at as u64), 1, (offset, fast), claim);
        self.nodes.push(SimNode {
            machine,
            process: None,
            life: 0,
            paused: 0,
            unsent: VecDeque::new(),
            inbox: VecDeque::new(),
            no_database: 0,
            back: None,
            leaves: false,
        });
        self.push(self.now + after, SimEvent::Start(at));
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// What was wrong.
    pub fn run(mut self) -> Result<Counts, String> {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > self.plan.end {
                break;
            }
            self.now = at;
            self.oracle.counts.events += 1;
            self.happen(event);
            if let Some(wrong) = self.wrong.take() {
                return Err(format!("at {} ms: {wrong}", self.now / MS));
            }
        }
        self.oracle.counts.versions = self.database.map.version;
        Ok(self.oracle.counts)
    }

    fn happen(&mut self, event: SimEvent) {
        match event {
            SimEvent::Input(at, life, input) => {
                if life.is_none_or(|life| life == self.nodes[at].life) {
                    self.input(at, input);
                }
            }
            SimEvent::ReadMap(at, life, id) => self.read_map(at, life, id),
            SimEvent::Transact(at, life, id, map) => self.transact(at, life, id, &map),
            SimEvent::ReadRow(at, life, read) => self.read_row(at, life, read),
            SimEvent::Mishap(fault) => self.befall(fault),
            SimEvent::Resume(at) => self.resume(at),
            SimEvent::Start(at) => self.start(at),
            SimEvent::Stop(at) => self.stop(at),
            SimEvent::Client => self.client(),
            SimEvent::Check => self.check(),
            SimEvent::Heal => self.heal(),
        }
    }

    /// Whether faults may happen.
    pub fn is_unreliable(&self) -> bool {
        self.now < self.plan.heal
    }

    /// Whether something goes wrong that does so many times in a thousand.
    pub fn fails(&mut self, permille: u64) -> bool {
        self.is_unreliable() && self.random.permille(permille)
    }

    /// An input reaches a machine, or waits while its process stands still.
    pub fn input(&mut self, at: usize, input: Input) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else {
            if let Input::Read(client, _) | Input::Write(client, _) | Input::Make(client) = input {
                self.oracle.failed(client);
            }
            return;
        };
        if node.paused > now {
            node.inbox.push_back(input);
            return;
        }
        let is_tick = matches!(input, Input::Tick);
        node.machine.takes_turn(now);
        process.take(input);
        if is_tick {
            let life = node.life;
            self.push(now + TICK, SimEvent::Input(at, Some(life), Input::Tick));
        }
        self.drain(at);
    }

    /// Carries out what a process wants now.
    pub fn drain(&mut self, at: usize) {
        let Some(process) = &mut self.nodes[at].process else { return };
        let jobs: Vec<_> = std::iter::from_fn(|| process.next_job()).collect();
        let sent: VecDeque<_> = std::iter::from_fn(|| process.next_sent()).collect();
        let asks = process.hands.desk.asks.take();
        let done = process.hands.desk.done.take();
        done.into_iter().for_each(|done| self.hear(done));
        jobs.into_iter().for_each(|job| self.ask_for_map(at, job));
        for ask in asks {
            match ask {
                DatabaseAsk::Read(row, within, answer) => self.ask_for_row(at, row, within, answer),
                DatabaseAsk::Write(client, rows, answer) => {
                    self.send_write(at, client, &rows, answer)
                }
            }
        }
        self.send_all(at, sent);
    }

    /// A client hears something.
    fn hear(&mut self, done: Done) {
        let judged = match done {
            Done::Read(client, stamp, by) => self.oracle.answered(client, stamp, by),
            Done::Acknowledged(client) => self.oracle.acknowledged(client),
            Done::Failed(client) => {
                self.oracle.failed(client);
                Ok(())
            }
        };
        self.wrong = self.wrong.take().or(judged.err());
    }

    /// One client's request, at members of all states.
    fn client(&mut self) {
        let wait = self.random.between(2, if self.is_unreliable() { 40 } else { 80 });
        self.push(self.now + wait * MS, SimEvent::Client);
        let at = self.random.below(self.nodes.len() as u64) as usize;
        let rows = self.plan.rows;
        let is_hot = self.random.permille(500);
        let mut row = if is_hot { 0 } else { self.random.below(rows as u64) as usize };
        if row == 0 && self.now < self.unread {
            row = 1;
        }
        let quiet = self.now + QUIET > self.plan.end;
        if quiet || !self.random.permille(self.plan.rates.writes) {
            let client = self.oracle.reads(at, row, quiet);
            return self.input(at, Input::Read(client, row));
        }
        let mut written = vec![row];
        match self.random.below(100) {
            0 => written = (0..rows).collect(),
            1..=9 if rows > 2 => written.push((row + 1) % rows),
            _ => {}
        }
        if written.contains(&0) && (self.now < self.unwritten || self.unread == Time::MAX) {
            return;
        }
        let rate = self.plan.rates.weak;
        let weak = self.fails(rate);
        let client = self.oracle.writes(at, written.clone(), weak);
        self.say(|| format!("m{at} is to write {written:?} for {client}, weakly: {weak}"));
        self.input(at, Input::Write(client, written));
    }
}

impl Drop for SimWorld {
    fn drop(&mut self) {
        given::end();
    }
}
