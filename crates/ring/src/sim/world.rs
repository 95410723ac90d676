//! A run: processes, network, database and clients, driven by one queue of events.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::database::Database;
use super::event::{Event, Input, Queue};
use super::node::{Node, SimRows, settings};
use super::oracle::Oracle;
use super::plan::Plan;
use super::plot::{MS, Trap};
use super::random::SimRandom;
use crate::config::Time;
use crate::custody::Durable;
use crate::identity::{MemberId, PermitKey};
use crate::io::{Action, Io};
use crate::join::Founding;
use crate::map::Profile;
use crate::member::Member;
use crate::message::RowKey;
use crate::settings::Agreement;

/// Between two ticks of a process.
pub const TICK: Time = 100 * MS;

/// What the operator has said, and how far the change of the schema is.
#[derive(Debug, Default)]
pub struct Changes {
    /// Nothing is to be cached.
    pub off: bool,
    /// Writes past the ring under way.
    pub past: usize,
    /// When the new replicas had got what they lacked, and everybody had heard of them.
    pub repaired: Option<Time>,
    /// Since when everybody has heard too.
    pub known: Option<Time>,
    /// What was cached of the replicas that lacked rows has ended.
    pub over: bool,
}

/// While one member is in trouble: until when the others are looked at, who they are, and since
/// when each shard has had no owner with a lease.
#[derive(Debug)]
pub struct Spared {
    pub until: Time,
    pub others: Vec<usize>,
    pub since: Vec<Option<Time>>,
    /// For how long a shard may have none.
    pub within: Time,
    /// For how long one of the others may be without a lease, where that is judged, and since when
    /// it is.
    pub lapses: Option<(Time, Option<Time>)>,
}

/// While the database refuses to change the map.
#[derive(Debug, Default)]
pub struct Refusal {
    pub since: Time,
    pub until: Time,
    /// How often each process has tried since.
    pub tried: BTreeMap<(usize, u64), u64>,
}

/// The database has lost the map.
#[derive(Debug)]
pub struct Forgotten {
    /// The version that it had.
    pub version: u64,
    /// When whoever comes founds a ring.
    pub founding: Founding,
}

/// Writes that were refused at a stop, and when their owners have heard of that.
#[derive(Debug, Default)]
pub struct RefusedWrites {
    pub heard: Time,
    pub writes: Vec<PermitKey>,
}

pub struct World {
    pub plan: Plan,
    pub now: Time,
    pub queue: Queue,
    pub nodes: Vec<Node>,
    pub database: Database,
    pub oracle: Oracle,
    pub random: SimRandom,
    /// Until when messages from one to the other are lost.
    pub cuts: Vec<(usize, usize, Time)>,
    pub database_down: Time,
    /// While the database refuses to change the map.
    pub refusal: Refusal,
    pub stamp: u64,
    pub changes: Changes,
    pub wrong: Option<String>,
    pub trace: bool,
    /// A version that everybody must have by a time.
    pub version: Option<(Time, u64)>,
    pub config: Arc<crate::config::Config>,
    /// When the map last changed.
    pub changed: Time,
    /// Who is who in the present scene; beyond it the order of the numbers.
    pub cast: Vec<usize>,
    pub traps: Vec<Trap>,
    /// What is done now was decided before the process stood still.
    pub resumed: bool,
    /// Until when no member may lose its lease, because only an outsider is in trouble.
    pub untroubled: Option<(Time, Vec<usize>)>,
    /// Until when somebody must be there, because the only owner has died.
    pub bereaved_until: Time,
    /// Set once the database has lost the map.
    pub forgotten: Option<Forgotten>,
    /// Set when a member stops in the calm.
    pub refused_writes: RefusedWrites,
    /// When a row that moves while it is written must not be held any more, and the epoch of its
    /// shard before it moved.
    pub moved_written: (Time, u64),
    /// The row that is still to be made, see [`Plan::made`].
    pub unmade: Option<usize>,
    /// The write that makes it has begun.
    pub making: bool,
    /// So much later the database answers the next write.
    pub slow_write: Time,
    /// Until then what is said of the ends of writes is lost.
    pub lost_ends: Time,
    /// Set while one member alone is in trouble.
    pub spared: Option<Spared>,
}

impl World {
    pub fn new(plan: Plan, trace: bool) -> Self {
        let random = SimRandom::new(plan.seed ^ 0xabcd);
        let mut world = Self {
            now: 0,
            queue: Queue::default(),
            nodes: Vec::new(),
            database: Database::new(plan.config.shards, plan.tokens.len()),
            oracle: Oracle::new(plan.tokens.len()),
            random,
            cuts: Vec::new(),
            database_down: 0,
            refusal: Refusal::default(),
            stamp: 0,
            changes: Changes::default(),
            wrong: None,
            trace,
            version: None,
            changed: 0,
            cast: Vec::new(),
            traps: Vec::new(),
            resumed: false,
            untroubled: None,
            bereaved_until: 0,
            forgotten: None,
            refused_writes: RefusedWrites::default(),
            moved_written: (0, 0),
            unmade: plan.made,
            making: false,
            slow_write: 0,
            lost_ends: 0,
            spared: None,
            config: Arc::new(plan.config.clone()),
            plan,
        };
        world.oracle.monotonic = world.config.hold > world.config.lease && !world.plan.grows;
        if world.plan.grows {
            world.database.copies = 1;
        }
        for _ in 0..world.plan.members {
            let soon = world.random.below(200) * MS;
            world.add(soon);
        }
        for (at, fault) in world.plan.faults.clone() {
            world.queue.push(at, Event::Fault(fault));
        }
        world.queue.push(world.plan.heal, Event::Heal);
        world.queue.push(1_000 * MS, Event::Client);
        world.queue.push(1_000 * MS, Event::Check);
        world
    }

    /// Adds a machine whose process starts after a time.
    pub fn add(&mut self, after: Time) {
        let offset = self.random.below(1 << 40);
        // The slowest clock has the true rate, the fastest is ρ faster.
        let fast = match self.random.below(3) {
            0 => 0,
            1 => self.config.rho,
            _ => self.random.below(self.config.rho + 1),
        };
        self.nodes.push(Node::new(offset, fast));
        self.queue.push(self.now + after, Event::Restart(self.nodes.len() - 1));
    }

    /// Runs to the end; says what was wrong.
    pub fn run(mut self) -> Result<super::oracle::Counts, String> {
        while let Some((at, event)) = self.queue.pop() {
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
        if self.plan.judged {
            self.check_end()?;
        }
        self.oracle.counts.changes = self.database.map.version;
        Ok(self.oracle.counts)
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>9.3} {}", self.now as f64 / 1_000.0, what());
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input(node, life, input) => {
                if life.is_none_or(|life| life == self.nodes[node].life) {
                    self.input(node, input);
                }
            }
            Event::ReadMap(node, life, id) => self.read_map(node, life, id),
            Event::Transact(node, life, id, map) => self.transact(node, life, id, &map),
            Event::ReadRow(node, whose, row, of, late) => {
                self.read_row(node, whose, row, of, late);
            }
            Event::Fault(fault) => self.happens(fault),
            Event::Resume(node) => self.resume(node),
            Event::Faint(node, time) => self.pause(node, time),
            Event::Restart(node) => self.start(node),
            Event::Stop(node, back) => self.stop(node, back),
            Event::Client => self.client(),
            Event::ReadAt(node, row) => self.client_read(node, row),
            Event::Check => self.check(),
            Event::Heal => self.heal(),
            Event::WrittenPast(client) => self.written_past(client),
        }
    }

    /// Starts a process.
    pub fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.member.is_some() || node.gone || node.back.is_some_and(|(t, _)| t > self.now) {
            return;
        }
        let mut lost = node.back.take().is_some_and(|(_, lost)| lost);
        node.life += 1;
        let mut durable = std::mem::take(&mut node.durable);
        if self.begins_to_hear(at) {
            lost = true;
            self.nodes[at].rows = SimRows::default();
        }
        if lost {
            durable = Durable::default();
            self.nodes[at].rows.weak_until = 0;
        }
        let caches = self.caches();
        self.put_policy(at, caches);
        let weight = if self.plan.light && at > 0 { 0 } else { [1, 1, 1, 2][at % 4] };
        let profile = Profile { weight, settings: settings(caches), ..Profile::default() };
        let (config, schema) = (self.config.clone(), self.nodes[at].version());
        let id = MemberId(at as u64);
        let founding = self.forgotten.as_ref().map(|forgotten| forgotten.founding);
        self.say(|| format!("m{at} starts, state lost: {lost}"));
        self.nodes[at].started = self.now;
        let member = self.with(at, |_, io| {
            let mut member = Member::start(id, profile, config, durable, io);
            member.set_schema(schema);
            if let Some(founding) = founding {
                member.set_founding(founding);
            }
            member
        });
        self.nodes[at].member = Some(member);
        self.input(at, Input::Tick);
    }

    /// Something with a process, its clock and its cache; what it wants done is done.
    pub fn with<T>(
        &mut self,
        at: usize,
        what: impl FnOnce(Option<&mut Member>, &mut Io<'_>) -> T,
    ) -> T {
        let node = &mut self.nodes[at];
        let source = &mut self.random;
        let mut random = || (u128::from(source.next()) << 64) | u128::from(source.next());
        node.rows.now = node.clock(self.now);
        node.rows.hold = self.config.weak_fills.then(|| self.config.stretched(self.config.hold));
        let mut io = Io {
            now: node.rows.now,
            rows: &mut node.rows,
            random: &mut random,
            actions: Vec::new(),
        };
        let result = what(node.member.as_mut(), &mut io);
        let actions = io.actions;
        let agrees = node.member.as_ref().is_some_and(|m| m.agreement() == Agreement::Same);
        node.rows.idle = !node.caches || !agrees;
        self.perform(at, actions.into());
        result
    }

    /// An input reaches a process, or waits while it stands still.
    pub fn input(&mut self, at: usize, input: Input) {
        let node = &mut self.nodes[at];
        if node.member.is_none() {
            match input {
                Input::Read(client, _) | Input::Write(client, ..) => self.oracle.failed(client),
                _ => {}
            }
            return;
        }
        if node.paused > self.now {
            node.inbox.push_back(input);
            return;
        }
        if self.trace && !matches!(input, Input::Tick) {
            self.say(|| format!("m{at} <- {input:?}"));
        }
        match input {
            Input::Policy(caches) => return self.policy_changes(at, caches),
            Input::Heard(schema) => return self.hears(at, schema),
            Input::HeardOther { others, distrusts } => {
                return self.hears_other(at, others, distrusts);
            }
            // It has heard of more since, and reads again.
            Input::Noted(version) if version != self.nodes[at].version() => return,
            _ => {}
        }
        if matches!(input, Input::Tick) {
            let life = self.nodes[at].life;
            self.queue.push(self.now + TICK, Event::Input(at, Some(life), Input::Tick));
            if self.nodes[at].hangs > self.now {
                return;
            }
        }
        self.with(at, |member, io| {
            let Some(member) = member else { return };
            match input {
                Input::Message(envelope) => member.receive(envelope, io),
                Input::Tick => member.tick(io),
                Input::MapRead(id, map) => member.map_read(id, map, io),
                Input::Transacted(id, result) => member.transacted(id, result, io),
                Input::RowRead(id, row) => member.row_read(id, row, io),
                Input::Written(number, result) => member.written(number, result, io),
                Input::Read(client, key) => member.read(client, key, io),
                Input::Write(client, scopes, detail) => member.write(client, scopes, detail, io),
                Input::Leave => member.leave(),
                Input::Refuse => member.refuse_waiting(0, io),
                Input::Want(shard) => member.want(shard, io),
                Input::MoveOn => member.move_on(io),
                Input::Noted(version) => member.set_schema(version),
                Input::Doubt(is_gone) => {
                    member.doubt_map(is_gone, io);
                    if is_gone {
                        member.distrust_older();
                    }
                }
                Input::Policy(_) | Input::Heard(_) | Input::HeardOther { .. } => {}
            }
        });
    }

    /// Does what a process wants; it may stand still or die between two of them.
    pub fn perform(&mut self, at: usize, mut actions: std::collections::VecDeque<Action>) {
        while let Some(action) = actions.pop_front() {
            let telling = !matches!(
                action,
                Action::Send {
                    envelope: crate::message::Envelope {
                        message: crate::message::Message::Ping { .. },
                        ..
                    },
                    ..
                }
            );
            if telling && self.now < self.plan.heal && self.random.permille(self.plan.rates.split) {
                actions.push_front(action);
                self.nodes[at].undone.extend(actions);
                if self.random.permille(250) {
                    let back = self.random.pick(&[5, 500, 2_000]) * MS;
                    let lost = self.random.permille(300);
                    self.kill(at, Some(back), lost);
                } else {
                    let time = self.random.between(10, 2_300) * MS;
                    self.pause(at, time);
                }
                return;
            }
            let sprung = self.spring(at, &action);
            if self.nodes[at].member.is_none() {
                return;
            }
            if self.nodes[at].paused > self.now {
                actions.push_front(action);
                self.nodes[at].undone.extend(actions);
                return;
            }
            let then = sprung.then.clone();
            self.act(at, action, sprung);
            then.into_iter().for_each(|fault| self.happens(fault));
            if self.nodes[at].member.is_none() {
                return;
            }
        }
    }

    pub fn pause(&mut self, at: usize, time: Time) {
        if self.nodes[at].member.is_none() {
            return;
        }
        self.say(|| format!("m{at} stands still for {} ms", time / MS));
        let until = self.now + time;
        let node = &mut self.nodes[at];
        node.paused = node.paused.max(until);
        let until = node.paused;
        self.queue.push(until, Event::Resume(at));
    }

    fn resume(&mut self, at: usize) {
        if self.nodes[at].paused > self.now || self.nodes[at].member.is_none() {
            return;
        }
        let undone = std::mem::take(&mut self.nodes[at].undone);
        self.resumed = true;
        self.perform(at, undone);
        self.resumed = false;
        // Which of its sources a process looks at first is not known: its timer may be the last.
        if self.random.permille(500) {
            let waiting = std::mem::take(&mut self.nodes[at].inbox);
            let (ticks, others): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|input| matches!(input, Input::Tick));
            self.nodes[at].inbox = others.into_iter().chain(ticks).collect();
        }
        while self.nodes[at].paused <= self.now {
            let Some(input) = self.nodes[at].inbox.pop_front() else { return };
            self.input(at, input);
        }
    }

    pub fn kill(&mut self, at: usize, back: Option<Time>, lost: bool) {
        let Some(member) = self.nodes[at].member.take() else { return };
        self.say(|| format!("m{at} dies, back {back:?}"));
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now);
        node.durable = if self.config.weak_fills {
            node.rows.died(Some(clock + self.config.intent()));
            // The file may be older than the end.
            let old = self.random.permille(300);
            Durable::keep(if old { node.kept.clone() } else { member.kept() })
        } else {
            node.rows.died(None);
            member.into_durable()
        };
        if lost && self.random.permille(500) {
            node.rows.rows.clear();
        } else if lost {
            // What was removed since may be there again.
            node.rows.rows = std::mem::take(&mut node.archive);
        }
        let node = &mut self.nodes[at];
        node.undone.clear();
        node.inbox.clear();
        node.paused = 0;
        node.life += 1;
        for client in std::mem::take(&mut node.clients) {
            self.oracle.failed(client);
        }
        node.back = back.map(|time| (self.now + time, lost));
        match back {
            Some(time) => self.queue.push(self.now + time, Event::Restart(at)),
            None => node.gone = true,
        }
    }

    /// The row of a key.
    pub fn row_of(&self, key: &RowKey) -> usize {
        self.plan.tokens.iter().position(|t| *t == key.token).expect("a known token")
    }

    pub fn key(&self, row: usize) -> RowKey {
        RowKey { token: self.plan.tokens[row], bytes: Vec::new() }
    }
}
