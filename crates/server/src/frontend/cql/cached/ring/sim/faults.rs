//! What happens to machines and links, and how it ends.

use afterglow_ring::Time;

use super::machine::Lost;
use super::plan::{MS, Mishap, Whom};
use super::process::Input;
use super::world::{SimEvent, SimWorld};

/// The most machines of a run beyond those it began with.
const JOINERS: usize = 2;

impl SimWorld {
    fn number_of(&self, whom: Whom) -> Option<usize> {
        let number = match whom {
            Whom::Number(number) => number,
            Whom::Writer => self.writer,
            Whom::Owner => {
                let token = self.catalog.rows[0].token;
                self.database.map.owner_of(token)?.0 as usize
            }
        };
        (number < self.nodes.len()).then_some(number)
    }

    /// A fault of the plan happens.
    pub fn befall(&mut self, fault: Mishap) {
        self.say(|| format!("FAULT {fault:?}"));
        let now = self.now;
        match fault {
            Mishap::Kill(whom, back, lost) => {
                if let Some(at) = self.number_of(whom) {
                    self.kill(at, back, lost);
                }
            }
            Mishap::Pause(whom, time) => {
                if let Some(at) = self.number_of(whom) {
                    self.pause(at, time);
                }
            }
            Mishap::Cut(from, to, time) => self.cuts.push((from, to, now + time)),
            Mishap::Isolate(whom, time) => {
                let Some(at) = self.number_of(whom) else { return };
                for other in (0..self.nodes.len() + JOINERS).filter(|other| *other != at) {
                    self.cuts.extend([(at, other, now + time), (other, at, now + time)]);
                }
            }
            Mishap::NoDatabase(whom, time) => {
                if let Some(at) = self.number_of(whom) {
                    self.nodes[at].no_database = now + time;
                }
            }
            Mishap::DatabaseDown(time) => self.database_down = now + time,
            Mishap::Leave(whom, back) => {
                if let Some(at) = self.number_of(whom) {
                    self.leave(at, back);
                }
            }
            Mishap::Join if self.nodes.len() < self.plan.members + JOINERS => self.add(0),
            Mishap::Join => {}
            Mishap::Forget(whom) => {
                if let Some(at) = self.number_of(whom) {
                    self.input(at, Input::Forget);
                }
            }
            Mishap::LateWrite(through, time) => self.write_late(through, time),
            Mishap::SlowFill(time) => {
                let Some(at) = self.number_of(Whom::Owner) else { return };
                if self.unread == Time::MAX {
                    return;
                }
                self.slow_fill = time;
                let until = self.now + time + 200 * MS;
                self.unwritten = self.unwritten.max(until);
                self.unread = self.unread.max(until);
                let client = self.oracle.reads(at, 0, false);
                self.input(at, Input::Read(client, 0));
                self.slow_fill = 0;
            }
        }
    }

    /// See [`Mishap::LateWrite`].
    fn write_late(&mut self, through: usize, time: Time) {
        let all = self.nodes.len();
        let others = (0..all).map(|n| (through + n) % all);
        let owner = self.number_of(Whom::Owner);
        let is_fit = |at: &usize| {
            Some(*at) != owner && self.nodes.get(*at).is_some_and(|n| n.process.is_some())
        };
        let Some(through) = others.into_iter().find(is_fit) else { return };
        let is_made = self.unwritten == Time::MAX;
        if !is_made && self.unread == Time::MAX {
            return; // nobody knows the key before the row is made
        }
        (self.late_write, self.writer) = (time, through);
        let until = self.now + time + 3_500 * MS;
        self.unwritten = if is_made { until } else { self.unwritten.max(until) };
        let client = self.oracle.writes(through, vec![0], false);
        let write = if is_made { Input::Make(client) } else { Input::Write(client, vec![0]) };
        self.input(through, write);
    }

    /// Two stay at least. Who has left is stopped some time later, and starts again.
    fn leave(&mut self, at: usize, back: u64) {
        let staying = self.nodes.iter().filter(|node| !node.leaves).count();
        if staying > 2 && self.nodes[at].process.is_some() {
            self.nodes[at].leaves = true;
            self.input(at, Input::Leave);
            self.push(self.now + back, SimEvent::Stop(at));
        }
    }

    /// A process that was told to leave ends, whether or not it has, and starts again.
    pub fn stop(&mut self, at: usize) {
        let back = self.random.pick(&[100, 1_000]) * MS;
        self.kill(at, back, Lost::Nothing);
    }

    /// A process stands still.
    pub fn pause(&mut self, at: usize, time: u64) {
        self.say(|| format!("m{at} stands still for {} ms", time / MS));
        let until = self.now + time;
        let node = &mut self.nodes[at];
        if node.process.is_some() {
            node.paused = node.paused.max(until);
            let until = node.paused;
            self.push(until, SimEvent::Resume(at));
        }
    }

    /// A process goes on: it sends what it was about to, and takes what has come meanwhile.
    pub fn resume(&mut self, at: usize) {
        if self.nodes[at].paused > self.now {
            return;
        }
        let unsent = std::mem::take(&mut self.nodes[at].unsent);
        self.send_all(at, unsent);
        // Which of its sources it looks at first is not known: its timer may be the last.
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

    /// A process dies, and comes back after a time.
    pub fn kill(&mut self, at: usize, back: u64, lost: Lost) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let Some(process) = node.process.take() else { return };
        node.machine.takes_turn(now);
        node.machine.crash(process);
        node.unsent.clear();
        node.inbox.clear();
        (node.paused, node.leaves) = (0, false);
        node.life += 1;
        node.back = Some((now + back, lost));
        self.oracle.died(at);
        self.say(|| format!("m{at} dies, back in {} ms, lost: {lost:?}", back / MS));
        self.push(now + back, SimEvent::Start(at));
    }

    /// A process starts.
    pub fn start(&mut self, at: usize) {
        let (now, config, catalog) = (self.now, self.config.clone(), self.catalog.clone());
        let node = &mut self.nodes[at];
        if node.process.is_some() || node.back.is_some_and(|(then, _)| then > now) {
            return;
        }
        let lost = node.back.take().map_or(Lost::Nothing, |(_, lost)| lost);
        node.life += 1;
        node.machine.takes_turn(now);
        node.process = Some(node.machine.start(&config, &catalog, lost));
        self.say(|| format!("m{at} starts"));
        self.input(at, Input::Tick);
    }

    /// All faults end.
    pub fn heal(&mut self) {
        self.say(|| "HEAL".to_owned());
        let now = self.now;
        self.cuts.clear();
        self.database_down = 0;
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            node.no_database = 0;
            if node.paused > now {
                node.paused = now;
                self.push(now, SimEvent::Resume(at));
            }
            if let Some((back, _)) = &mut self.nodes[at].back {
                *back = now;
                self.push(now, SimEvent::Start(at));
            }
        }
    }
}
