//! The database loses the ring's map, in the calm: somebody empties its row, or puts an older map
//! there, as a restore does.
//!
//! After the first some members are started again, or new ones are. They found another ring as soon
//! as old leases have ended, and its map comes to the version of the one before. The others go on
//! with the old map, and must have no lease by it: no two serve a shard, and nothing stale is read.

use super::event::Input;
use super::plan::Plan;
use super::plot::{Fault, MS};
use super::random::SimRandom;
use super::world::World;

/// So many machines are new.
const NEW: usize = 2;

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
    /// The row is empty, or has an older map. From then on liveness is not judged.
    pub fn forget(&mut self) {
        let running: Vec<_> = self.running().map(|(at, _)| at).collect();
        if running.len() < 2 {
            return;
        }
        self.plan.judged = false;
        let version = self.database.map.version;
        self.forgotten = Some(version);
        if self.random.permille(300) {
            self.database.restore();
            return;
        }
        self.database.empty(self.plan.config.shards);
        if self.random.permille(500) {
            (0..NEW).for_each(|_| self.add(0));
            return;
        }
        let again = self.random.between(1, running.len() as u64 - 1) as usize;
        for at in running.into_iter().take(again) {
            let back = self.random.between(20, 500) * MS;
            self.kill(at, Some(back), false);
        }
    }

    /// The map of the next ring goes on until it has the version of the one before. It waits there.
    pub fn come_to_the_version(&mut self) {
        let Some(version) = self.forgotten else { return };
        if (1..version).contains(&self.database.map.version) {
            let any = self.random.below(self.nodes.len() as u64) as usize;
            self.input(any, Input::MoveOn);
        }
    }
}
