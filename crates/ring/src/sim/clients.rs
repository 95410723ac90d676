//! What clients do, and what goes wrong around them.

use super::event::{Event, Input};
use super::plan::{Fault, MS};
use super::world::World;
use crate::message::Scope;

/// The calm at the end of a run, in which hits are counted.
const CALM: u64 = 3_000 * MS;
/// The most machines of a run beyond those it began with.
const JOINERS: usize = 3;

impl World {
    /// One request, now and then two, at members of all states.
    pub fn client(&mut self) {
        let wait = self.random.between(2, if self.unreliable() { 60 } else { 120 });
        self.queue.push(self.now + wait * MS, Event::Client);
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let row = self.random.below(self.plan.tokens.len() as u64) as usize;
        let quiet = self.now + CALM > self.plan.end;
        if quiet || !self.random.permille(self.plan.rates.writes) {
            self.client_read(node, row);
            return;
        }
        let everything = self.random.permille(self.plan.rates.everything);
        let rows: Vec<usize> = if everything {
            (0..self.plan.tokens.len()).collect()
        } else if self.random.permille(150) {
            let other = self.random.below(self.plan.tokens.len() as u64) as usize;
            let mut rows = vec![row, other];
            rows.dedup();
            rows
        } else {
            vec![row]
        };
        let scopes = if everything {
            vec![Scope::All]
        } else {
            rows.iter().map(|row| Scope::Token(self.plan.tokens[*row])).collect()
        };
        let weak = self.unreliable() && self.random.permille(self.plan.rates.weak);
        let client = self.oracle.write(rows, weak);
        self.nodes[node].clients.push(client);
        self.input(node, Input::Write(client, scopes));
    }

    pub fn client_read(&mut self, node: usize, row: usize) {
        let quiet = self.now + CALM > self.plan.end;
        if self.nodes[node].member.is_none() {
            return;
        }
        let client = self.oracle.read(row, quiet, self.now);
        let key = self.key(row);
        self.nodes[node].clients.push(client);
        self.input(node, Input::Read(client, key));
    }

    /// Right after a write was acknowledged it is read everywhere.
    pub fn acknowledged(&mut self, rows: &[usize]) {
        self.check_rows(rows);
        for row in rows.iter().take(2) {
            for _ in 0..2 {
                let node = self.random.below(self.nodes.len() as u64) as usize;
                let soon = self.random.below(3) * MS;
                self.queue.push(self.now + soon, Event::ReadAt(node, *row));
            }
        }
    }

    pub fn fault(&mut self, fault: Fault) {
        self.say(|| format!("FAULT {fault:?}"));
        let all = self.nodes.len();
        let until = |time| self.now + time;
        match fault {
            Fault::Pause { node, time } if node < all => self.pause(node, time),
            Fault::Kill { node, back: None, .. } if node < all => {
                let running = self.nodes.iter().filter(|n| !n.gone).count();
                if running > 2 {
                    self.kill(node, None, false);
                }
            }
            Fault::Kill { node, back, lost } if node < all => self.kill(node, back, lost),
            Fault::Cut { from, to, both, time } => {
                self.cuts.push((from, to, until(time)));
                if both {
                    self.cuts.push((to, from, until(time)));
                }
            }
            Fault::Isolate { node, time } => {
                for other in (0..all + 2).filter(|other| *other != node) {
                    self.cuts.push((node, other, until(time)));
                    self.cuts.push((other, node, until(time)));
                }
            }
            Fault::Split { at, time } => {
                for a in 0..at {
                    for b in at..all {
                        self.cuts.push((a, b, until(time)));
                        self.cuts.push((b, a, until(time)));
                    }
                }
            }
            Fault::NoDatabase { node, time } if node < all => {
                self.nodes[node].no_database = until(time);
            }
            Fault::DatabaseDown { time } => self.database_down = until(time),
            Fault::Queue { node, time } if node < all => self.nodes[node].queued = until(time),
            Fault::Join if all < self.plan.members + JOINERS => self.add(0),
            Fault::Leave { node } if node < all => {
                let staying = self.nodes.iter().filter(|n| !n.gone).count();
                if staying > 2 {
                    self.nodes[node].gone = true;
                    self.input(node, Input::Leave);
                }
            }
            _ => {}
        }
        let now = self.now;
        self.cuts.retain(|(.., until)| *until > now);
    }

    /// From now on nothing goes wrong any more.
    pub fn heal(&mut self) {
        self.say(|| "HEAL".to_owned());
        self.cuts.clear();
        self.database_down = 0;
        for at in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[at];
            (node.no_database, node.queued) = (0, 0);
            if node.paused > now {
                node.paused = now;
                self.queue.push(now, Event::Resume(at));
            }
            if let Some((back, _)) = &mut node.back {
                *back = now;
                self.queue.push(now, Event::Restart(at));
            }
        }
    }
}
