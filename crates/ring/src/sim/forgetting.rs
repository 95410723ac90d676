//! The database loses the ring's map, in the calm: somebody empties its row, puts an older map
//! there, as a restore does, or drops the keyspace.
//!
//! After the first some members are started again, or new ones are. They found another ring as soon
//! as old leases have ended, and its map comes to the version of the one before. The others go on
//! with the old map, and must have no lease by it: no two serve a shard, and nothing stale is read.
//!
//! A DROP takes the lease's row along, so whoever comes founds a ring at once. Members hear of the
//! DROP, and of the table that is made anew, before that:
//!
//! ```text
//! DROP ──── members hear ──── all nodes have heard ── table made anew ── members hear ── founding
//!      └─ nodes that lag show the old map ─┘
//! ```

use super::event::{Event, Input};
use super::plan::Plan;
use super::plot::{Fault, MS};
use super::random::SimRandom;
use super::world::{Forgotten, World};
use crate::config::Time;
use crate::join::Founding;

/// So many machines are new.
const NEW: usize = 2;
/// A member hears of a change of the schema so long after the node that it listens to.
const HEARD_WITHIN: Time = 40 * MS;

/// Makes some of the runs longer that are judged. What is drawn for it is drawn apart, so that
/// seeds of before have the runs of before up to here.
pub fn forget_some(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0xf049);
    if !plan.judged || plan.members < 2 || !random.permille(80) {
        return;
    }
    let config = &plan.config;
    let (confirm, hold) = (config.stretched(config.confirm), config.stretched(config.hold));
    plan.faults.push((plan.end, Fault::Forget));
    plan.end += 4 * confirm + hold + 12_000 * MS;
}

impl World {
    /// The row is empty, has an older map, or is gone with its table. From then on liveness is not
    /// judged.
    pub fn forget(&mut self) {
        let running: Vec<_> = self.running().map(|(at, _)| at).collect();
        if running.len() < 2 {
            return;
        }
        self.plan.judged = false;
        let version = self.database.map.version;
        let is_dropped = SimRandom::new(self.plan.seed ^ 0xd209).permille(400);
        let founding = if is_dropped { Founding::AtOnce } else { Founding::AfterLeases };
        self.forgotten = Some(Forgotten { version, founding });
        if is_dropped {
            let made = self.drop_map(&running);
            return self.come_or_come_back(running, made + HEARD_WITHIN);
        }
        if self.random.permille(300) {
            return self.database.restore();
        }
        self.database.empty(self.plan.config.shards);
        self.come_or_come_back(running, self.now);
    }

    /// Drops the map's table and makes it anew: returns when. Members hear of both. Some of them
    /// cannot read the map for a while then.
    fn drop_map(&mut self, running: &[usize]) -> Time {
        let heard = self.now + self.random.between(0, 400) * MS;
        let later = heard + self.random.between(0, 600) * MS;
        let mut apart = SimRandom::new(self.plan.seed ^ 0xc4ea7e);
        let is_quick = apart.permille(300);
        let made = if is_quick { self.now + apart.below(heard - self.now + 1) } else { later };
        // Where both come close together, the wait of members is all that keeps them from what
        // nodes show that lag. It is as long as they lag, less what a slow clock adds.
        let first = if is_quick { heard.saturating_sub(self.config.retry / 2) } else { 0 };
        self.database.drop_table(self.plan.config.shards, heard);
        for at in running {
            let life = Some(self.nodes[*at].life);
            let gone = self.random.between(self.now, heard) + self.random.below(HEARD_WITHIN);
            let gone = gone.max(first);
            let anew = gone.max(made + self.random.below(HEARD_WITHIN));
            if self.random.permille(300) {
                self.nodes[*at].no_database = gone + self.plan.config.confirm;
            }
            self.queue.push(gone, Event::Input(*at, life, Input::Doubt(true)));
            self.queue.push(anew, Event::Input(*at, life, Input::Doubt(false)));
        }
        // Nobody founds a ring of nodes that have not heard.
        made.max(heard)
    }

    /// New machines start at that time, or some that ran do so again.
    fn come_or_come_back(&mut self, running: Vec<usize>, from: Time) {
        let wait = from - self.now;
        if self.random.permille(500) {
            (0..NEW).for_each(|_| self.add(wait));
            return;
        }
        let again = self.random.between(1, running.len() as u64 - 1) as usize;
        for at in running.into_iter().take(again) {
            let back = wait + self.random.between(20, 500) * MS;
            self.kill(at, Some(back), false);
        }
    }

    /// The map of the next ring goes on until it has the version of the one before. It waits there.
    pub fn come_to_the_version(&mut self) {
        let Some(version) = self.forgotten.as_ref().map(|forgotten| forgotten.version) else {
            return;
        };
        if (1..version).contains(&self.database.map.version) {
            let any = self.random.below(self.nodes.len() as u64) as usize;
            self.input(any, Input::MoveOn);
        }
    }
}
