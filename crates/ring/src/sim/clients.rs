//! The clients of a run: which reads and writes they send, and when.

use super::event::{Event, Input};
use super::node::makes;
use super::plot::{Extent, MS};
use super::world::World;
use crate::message::{Detail, Scope};

/// The calm at the end of a run, in which hits are counted.
const CALM: u64 = 3_000 * MS;

impl World {
    fn quiet(&self) -> bool {
        self.plan.judged && self.now + CALM > self.plan.end
    }

    /// One request, now and then two, at members of all states.
    pub fn client(&mut self) {
        let wait = self.random.between(2, if self.unreliable() { 60 } else { 120 });
        self.queue.push(self.now + wait * MS, Event::Client);
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let hot = self.plan.hot && self.random.permille(500);
        let row = if hot { 0 } else { self.random.below(self.plan.tokens.len() as u64) as usize };
        let quiet = self.quiet();
        if quiet || !self.random.permille(self.plan.rates.writes) {
            self.client_read(node, row);
            return;
        }
        let extent = if self.random.permille(self.plan.rates.everything) {
            Extent::All
        } else if self.random.permille(150) {
            Extent::Both
        } else {
            Extent::One
        };
        let weak = self.unreliable() && self.random.permille(self.plan.rates.weak);
        self.client_write(node, row, extent, weak);
    }

    pub fn client_write(&mut self, node: usize, row: usize, extent: Extent, weak: bool) {
        let all = self.plan.tokens.len();
        let mut rows = match extent {
            Extent::One => vec![row],
            Extent::Both => vec![row, (row + 1) % all],
            Extent::All => (0..all).collect(),
            Extent::Made => self.makes(row),
        };
        rows.dedup();
        if extent != Extent::Made {
            rows = self.written_rows(rows);
        }
        if rows.is_empty() {
            return;
        }
        let scopes = match extent {
            Extent::All | Extent::Made => vec![Scope::All],
            Extent::One | Extent::Both => {
                rows.iter().map(|row| Scope::Token(self.plan.tokens[*row])).collect()
            }
        };
        let detail = match extent {
            Extent::Made => makes(self.plan.tokens[row]),
            _ => Detail::from([]),
        };
        let client = self.oracle.write(rows, weak);
        self.nodes[node].clients.push(client);
        self.input(node, Input::Write(client, scopes, detail));
    }

    pub fn client_read(&mut self, node: usize, row: usize) {
        let quiet = self.quiet();
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
        self.is_made(rows);
        self.check_rows(rows);
        for row in rows.iter().take(2) {
            for _ in 0..2 {
                let node = self.random.below(self.nodes.len() as u64) as usize;
                let soon = self.random.below(3) * MS;
                self.queue.push(self.now + soon, Event::ReadAt(node, *row));
            }
        }
    }

    /// From now on nothing goes wrong any more.
    pub fn heal(&mut self) {
        self.say(|| "HEAL".to_owned());
        self.cuts.clear();
        self.database_down = 0;
        if !self.caches() || self.policies_differ() {
            self.set_policy(true, 0);
        }
        for at in 0..self.nodes.len() {
            let now = self.now;
            let node = &mut self.nodes[at];
            (node.no_database, node.queued) = (0, 0);
            (node.slow_map, node.late_news) = (0, 0);
            node.deaf = 0;
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
