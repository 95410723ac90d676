//! A row moves while it is written, in the calm. Its new owner has no hold of it when the write is
//! over: a row that is written all the time would be uncached for that long after each move. Some
//! writes take longer than a move waits for them, and what is said of the end of some is lost.

use super::event::{Event, Input};
use super::plan::Plan;
use super::plot::{Extent, Fault, MS};
use super::random::SimRandom;
use super::world::World;
use crate::config::Time;
use crate::message::Scope;

/// The row that moves.
const HOT: usize = 0;
/// The database takes so long for a write at most.
const SLOWEST: Time = 900 * MS;
/// For so long what is said of ends is lost. Then nobody has asked for one yet.
const LOST: Time = 950 * MS;
/// By then the write has ended, and the map has changed or not.
const SETTLED: Time = 2_500 * MS;

/// Makes some of the runs longer that are judged. What is drawn is drawn apart, so that other seeds
/// have the runs of before. A write of everything may wait for others while the shard waits for it:
/// the shard is weak then.
pub fn move_some(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0x4071);
    let may = plan.judged && plan.members >= 2 && plan.rates.everything == 0;
    if may && random.permille(300) {
        plan.faults.push((plan.end, Fault::MoveWritten));
        plan.end += 2 * SETTLED;
    }
}

impl World {
    /// A member with a lease asks for the shard of a row while some member writes the row.
    pub fn move_written(&mut self) {
        let leading = self.leading();
        let token = self.plan.tokens[HOT];
        let shard = self.database.map.shard_of(token);
        let owner = self.database.map.shards[shard].owner.map(|owner| owner.0 as usize);
        let takers: Vec<_> = leading.iter().copied().filter(|at| Some(*at) != owner).collect();
        let is_touched = self.is_held(HOT) || self.is_written(HOT);
        if takers.is_empty() || takers.len() == leading.len() || is_touched {
            return;
        }
        let writer = self.random.pick(&leading);
        let taker = self.random.pick(&takers);
        if self.random.permille(500) {
            self.slow_write = self.random.below(SLOWEST);
        }
        if self.random.permille(300) {
            self.lost_ends = self.now + LOST;
        }
        self.client_write(writer, HOT, Extent::One, false);
        let (soon, life) = (self.random.below(6 * MS), self.nodes[taker].life);
        let wants = Input::Want(shard);
        self.queue.push(self.now + soon, Event::Input(taker, Some(life), wants));
        self.moved_written = (self.now + SETTLED, self.database.map.shards[shard].epoch);
    }

    /// Nobody holds the row that was written while it moved. If it moved on at once, its writes are
    /// asked for from the beginning, later than this looks.
    pub fn check_moved(&mut self) {
        let (settled, before) = self.moved_written;
        if settled == 0 || self.now < settled {
            return;
        }
        self.moved_written = (0, 0);
        let map = &self.database.map;
        let moves = map.shards[map.shard_of(self.plan.tokens[HOT])].epoch.saturating_sub(before);
        let wrong = self.holder(HOT).filter(|_| !self.unreliable() && moves <= 1);
        let wrong = wrong.map(|at| format!("m{at} holds a row that was written while it moved"));
        self.wrong = self.wrong.take().or(wrong);
    }

    /// Whether a write of the row is open somewhere. Its writer may be dead: then it is a hold.
    fn is_written(&self, row: usize) -> bool {
        let scope = Scope::Token(self.plan.tokens[row]);
        self.running().any(|(_, member)| member.custody().is_written(scope))
    }

    /// Whether a member does not fill the row because of a write that is over. Who had its shard
    /// before may have a hold that ends later on its clock, and the shard may come back to it.
    fn is_held(&self, row: usize) -> bool {
        let scope = Scope::Token(self.plan.tokens[row]);
        self.running()
            .any(|(at, member)| member.custody().is_held(scope, self.nodes[at].clock(self.now)))
    }

    /// The row's owner, if it does not fill the row because of a write that is over.
    fn holder(&self, row: usize) -> Option<usize> {
        let scope = Scope::Token(self.plan.tokens[row]);
        let owner = self.database.map.owner_of(self.plan.tokens[row])?;
        let (at, member) = self.running().find(|(at, _)| *at == owner.0 as usize)?;
        member.custody().is_held(scope, self.nodes[at].clock(self.now)).then_some(at)
    }
}
