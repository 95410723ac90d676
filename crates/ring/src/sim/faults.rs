//! What goes wrong, and the other turns of a plot.

use super::event::Input;
use super::plot::{Fault, MS};
use super::world::World;

/// The most machines of a run beyond those it began with.
const JOINERS: usize = 3;

impl World {
    /// The machine that has this place in the cast.
    fn played_by(&self, place: usize) -> usize {
        self.cast.get(place).copied().unwrap_or(place)
    }

    /// The owner of the row comes first, the others follow in some order.
    fn give_parts(&mut self, row: usize) {
        let owner = self.database.map.owner_of(self.plan.tokens[row]).map_or(0, |o| o.0 as usize);
        let mut others: Vec<_> = (0..self.plan.members).filter(|at| *at != owner).collect();
        for last in (1..others.len()).rev() {
            others.swap(last, self.random.below(last as u64 + 1) as usize);
        }
        self.cast = std::iter::once(owner).chain(others).collect();
        let cast = self.cast.clone();
        self.say(|| format!("CAST {cast:?}"));
    }

    /// Something of the plan happens.
    pub fn happens(&mut self, fault: Fault) {
        self.say(|| format!("FAULT {fault:?}"));
        let now = self.now;
        self.cuts.retain(|(.., until)| *until > now);
        let all = self.nodes.len();
        let is_there = |at: usize| (at < all).then_some(at);
        match fault {
            Fault::Cast { row } => self.give_parts(row),
            Fault::Trap { node, deed, snare } => self.set_trap(self.played_by(node), deed, snare),
            Fault::Write { node, row, extent, weak } => {
                if let Some(at) = is_there(self.played_by(node)) {
                    self.client_write(at, row, extent, weak);
                }
            }
            Fault::Read { node, row } => {
                if let Some(at) = is_there(self.played_by(node)) {
                    self.client_read(at, row);
                }
            }
            Fault::Move { to, row } => {
                if let Some(at) = is_there(self.played_by(to)) {
                    let shard = self.database.map.shard_of(self.plan.tokens[row]);
                    self.input(at, Input::Want(shard));
                }
            }
            Fault::Bump => {
                let any = self.random.below(all as u64) as usize;
                self.input(any, Input::MoveOn);
            }
            Fault::Outsider { time } => self.outsider(time),
            Fault::Blind { time } => self.blind(time),
            Fault::Hang { time } => self.hang(time),
            Fault::Bereave => self.bereave(),
            Fault::StopAsking => self.stop_asking(),
            Fault::MoveWritten => self.move_written(),
            Fault::Forget => self.forget(),
            Fault::Hermit { time } => self.isolate(time),
            Fault::Outage { time } => self.outage(time),
            Fault::Join if all < self.plan.members + JOINERS => self.add(0),
            Fault::Cut { .. } | Fault::Isolate { .. } | Fault::Split { .. } => self.part(&fault),
            Fault::DatabaseDown { time } => self.database_down = now + time,
            Fault::DatabaseRefuses { time } => self.refuse(time),
            Fault::Policy { caches, spread } => self.set_policy(caches, spread),
            Fault::WritePast { row } => self.write_past(row),
            Fault::Grow => self.grow(),
            Fault::LeaveAll => self.leave_all(),
            Fault::Repair => self.repair(),
            Fault::OtherTable { distrusts } => self.other_table(distrusts),
            other => self.befalls(&other),
        }
    }

    /// What happens to one machine.
    fn befalls(&mut self, fault: &Fault) {
        let all = self.nodes.len();
        let node = match fault {
            Fault::Pause { node, .. }
            | Fault::Kill { node, .. }
            | Fault::NoDatabase { node, .. }
            | Fault::SlowMap { node, .. }
            | Fault::LateNews { node, .. }
            | Fault::Queue { node, .. }
            | Fault::Deaf { node, .. }
            | Fault::Stop { node, .. }
            | Fault::Leave { node } => self.played_by(*node),
            _ => return,
        };
        if node >= all {
            return;
        }
        let now = self.now;
        let staying = self.nodes.iter().filter(|n| !n.gone).count();
        // Where there is one alone, somebody comes after it.
        let enough = staying > 2 || self.plan.members == 1 && staying > 1;
        match *fault {
            Fault::Pause { time, .. } => self.pause(node, time),
            Fault::Kill { back: None, .. } if enough => self.kill(node, None, false),
            Fault::Kill { back: None, .. } => {}
            Fault::Kill { back, lost, .. } => self.kill(node, back, lost),
            Fault::Stop { back, .. } => self.stop(node, back),
            Fault::NoDatabase { time, .. } => self.nodes[node].no_database = now + time,
            Fault::SlowMap { time, .. } => self.nodes[node].slow_map = now + time,
            Fault::LateNews { time, .. } => self.nodes[node].late_news = now + time,
            Fault::Deaf { time, .. } => self.nodes[node].deaf = now + time,
            Fault::Queue { time, .. } => self.nodes[node].queued = now + time,
            Fault::Leave { .. } if enough => self.leave(node),
            _ => {}
        }
    }

    fn leave_all(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].member.is_some() {
                self.leave(node);
            }
        }
    }

    fn leave(&mut self, node: usize) {
        self.nodes[node].gone = true;
        self.input(node, Input::Leave);
    }

    /// Some do not reach some others.
    fn part(&mut self, fault: &Fault) {
        let (all, now) = (self.nodes.len(), self.now);
        let mut cuts = Vec::new();
        let mut cut = |from: usize, to: usize, both: bool, time| {
            cuts.push((self.played_by(from), self.played_by(to), now + time));
            if both {
                cuts.push((self.played_by(to), self.played_by(from), now + time));
            }
        };
        match *fault {
            Fault::Cut { from, to, both, time } => cut(from, to, both, time),
            Fault::Isolate { node, time } => {
                (0..all + 2).filter(|o| *o != node).for_each(|other| cut(node, other, true, time));
            }
            Fault::Split { at, time } => {
                for a in 0..at {
                    (at..all).for_each(|b| cut(a, b, true, time));
                }
            }
            _ => {}
        }
        self.cuts.extend(cuts);
    }

    /// A machine starts that reaches no member for a time.
    fn outsider(&mut self, time: u64) {
        let outsider = self.nodes.len();
        let until = self.now + time;
        let serve: Vec<_> = (0..outsider)
            .filter(|at| {
                let node = &self.nodes[*at];
                let now = node.clock(self.now);
                node.member.as_ref().is_some_and(|m| m.is_active() && m.lease_end() > now)
            })
            .collect();
        for other in 0..outsider {
            self.cuts.push((other, outsider, until));
            self.cuts.push((outsider, other, until));
        }
        self.add(0);
        self.untroubled = Some((until - 100 * MS, serve));
    }
}
