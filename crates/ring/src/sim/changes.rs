//! What changes around a ring: the settings of its members, by an operator, and the schema, of
//! which each member hears at its own time.
//!
//! * The operator turns caching off on all members, has rows written past the ring, and turns it on
//!   again. As the guide says, nobody writes past the ring before each member's entry in the map
//!   says that nothing is cached. A machine that is away has what the operator said last when it
//!   starts. Two changes may overtake each other on their way: members differ until the calm, in
//!   which the operator says the last one again.
//! * The keyspace has one replica at first, and gets three. The new ones lack all rows until a
//!   repair. Rows that are filled meanwhile may be stale, but not for good.
//! * A process that has not heard of the change when it ends begins without its data directory, as
//!   the guide says.

use super::event::{Event, Input};
use super::node::{WEAK, settings};
use super::plot::MS;
use super::world::World;
use crate::config::Time;
use crate::schema::SchemaVersion;

/// How far apart members hear of a change of the schema.
const SPREAD: Time = 1_500 * MS;

impl World {
    /// The operator changes a setting of all members, one after the other.
    pub fn set_policy(&mut self, caches: bool, spread: Time) {
        if caches && self.changes.past > 0 {
            // Those who write past the ring have stopped, and wait for their last answers.
            let again = super::plot::Fault::Policy { caches, spread };
            self.queue.push(self.now + 50 * MS, Event::Fault(again));
            return;
        }
        self.changes.off = !caches;
        for at in 0..self.nodes.len() {
            let life = self.nodes[at].life;
            let then = self.now + self.random.below(spread);
            self.queue.push(then, Event::Input(at, Some(life), Input::Policy(caches)));
        }
    }

    /// Whether a process that starts now is to cache.
    pub fn caches(&self) -> bool {
        !self.changes.off
    }

    /// Whether a running process has another setting than the operator said last.
    pub fn policies_differ(&self) -> bool {
        let caches = self.caches();
        self.nodes.iter().any(|node| node.member.is_some() && node.caches != caches)
    }

    /// Whether somebody may write past the ring: no member caches, by the map and by itself.
    fn may_write_past(&self) -> bool {
        let map = &self.database.map;
        let is_member = |at: usize| map.members.iter().any(|m| m.identity.id.0 == at as u64);
        self.changes.off
            && map.members.iter().all(|member| member.profile.settings == settings(false))
            && self.nodes.iter().enumerate().all(|(at, node)| {
                let stands_still = node.paused > self.now && !is_member(at);
                node.member.is_none() || !node.caches || stands_still
            })
    }

    /// Somebody writes past the ring, if that is allowed.
    pub fn write_past(&mut self, row: usize) {
        if !self.may_write_past() {
            return;
        }
        coverage_mark!(WrittenPast);
        self.stamp += 1;
        self.changes.past += 1;
        let client = self.oracle.write(vec![row], false);
        self.oracle.sent(client, self.stamp, self.now + self.plan.latest);
        let times = [0; 3].map(|_| self.now + self.random.between(300, 9_000));
        let answered = self.database.write(row, self.stamp, times, false);
        self.queue.push(answered, Event::WrittenPast(client));
    }

    pub fn written_past(&mut self, client: u64) {
        self.changes.past -= 1;
        match self.oracle.acknowledged(client) {
            Ok(rows) => self.acknowledged(&rows),
            Err(wrong) => self.wrong = Some(wrong),
        }
    }

    /// The keyspace gets more replicas.
    pub fn grow(&mut self) {
        if !self.plan.grows || self.database.copies > 1 {
            return;
        }
        self.database.grow();
        self.oracle.lack();
        let schema = self.database.schema;
        for at in 0..self.nodes.len() {
            let soon = self.random.below(SPREAD);
            let (life, deaf) = (self.nodes[at].life, self.nodes[at].deaf);
            let then = (self.now + soon).max(deaf);
            self.queue.push(then, Event::Input(at, Some(life), Input::Heard(schema)));
        }
    }

    pub fn repair(&mut self) {
        if self.database.copies > 1 {
            self.database.repair(self.now);
            self.changes.repaired = self.changes.repaired.or(Some(self.now));
        }
    }

    /// What was cached before a repair, and before everybody knew why, has ended some time later.
    /// So have the fills that reads may join.
    pub fn check_repair(&mut self) {
        if self.changes.repaired.is_none() || self.changes.over {
            return;
        }
        let schema = self.database.schema;
        let all = self.nodes.iter().all(|node| node.member.is_none() || node.heard == schema);
        let known = *self.changes.known.get_or_insert(self.now);
        if !all {
            self.changes.known = None;
        } else if self.now
            > known + self.config.stretched(WEAK.max(self.config.join_fill)) + 50 * MS
        {
            coverage_mark!(LacksNothing);
            self.changes.over = true;
            self.oracle.lacks_nothing();
        }
    }

    /// The operator has changed what a running process caches. Nothing that it has cached before
    /// counts any more.
    pub fn policy_changes(&mut self, at: usize, caches: bool) {
        let is_taken_back = self.now >= self.plan.heal && caches != self.caches();
        if is_taken_back || self.nodes[at].caches == caches {
            return;
        }
        self.put_policy(at, caches);
        self.with(at, |member, _| {
            if let Some(member) = member {
                member.set_settings(settings(caches));
            }
        });
    }

    /// The rows of a machine under another policy: those of before do not count any more.
    pub fn put_policy(&mut self, at: usize, caches: bool) {
        let node = &mut self.nodes[at];
        if node.caches != caches {
            node.caches = caches;
            node.rows.rows.clear();
            node.archive.clear();
        }
        node.rows.idle = true;
    }

    /// A process hears that the keyspace has more replicas. It forgets its rows, and for the time
    /// of a hold it believes no fill for long.
    pub fn hears(&mut self, at: usize, schema: u128) {
        let hold = self.config.hold;
        self.nodes[at].heard = schema;
        self.with(at, |member, io| {
            if let Some(member) = member {
                member.weaken(io.now);
                member.distrust_older();
                member.set_schema(SchemaVersion::default());
            }
        });
        self.reads_schema(at);
        let rows = &mut self.nodes[at].rows;
        rows.rows.clear();
        rows.weak_until = rows.now + hold;
    }

    /// A process starts, and knows the schema. Whether one that ran before has missed a change.
    pub fn begins_to_hear(&mut self, at: usize) -> bool {
        let schema = self.database.schema;
        self.nodes[at].others = self.database.others;
        let before = std::mem::replace(&mut self.nodes[at].heard, schema);
        before != 0 && before != schema
    }
}
