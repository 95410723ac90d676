//! The one that owns all shards dies, in the calm, and all others are told to leave before anybody
//! has noticed. They own nothing, and must not leave the ring to the dead one: somebody stays until
//! it may be back.

use super::event::{Event, Input};
use super::plan::Plan;
use super::plot::{Fault, MS};
use super::random::SimRandom;
use super::world::World;
use crate::identity::MemberId;

/// Makes some of the runs longer in which one machine alone has a weight.
pub fn bereave_some(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0xbe4e);
    if !plan.judged || !plan.light || !random.permille(700) {
        return;
    }
    let config = &plan.config;
    let (confirm, hold) = (config.stretched(config.confirm), config.stretched(config.hold));
    plan.faults.push((plan.end, Fault::Bereave));
    plan.end += 2 * confirm + hold + 7_000 * MS;
}

impl World {
    /// The only owner dies for a while, and the others leave.
    pub fn bereave(&mut self) {
        let leading = self.leading();
        let shards = &self.database.map.shards;
        let Some(owner) = shards[0].owner.filter(|o| shards.iter().all(|s| s.owner == Some(*o)))
        else {
            return;
        };
        let at = owner.0 as usize;
        if !leading.contains(&at) || leading.len() < 2 {
            return;
        }
        let others: Vec<_> = self.running().map(|(other, _)| other).filter(|o| *o != at).collect();
        self.kill(at, Some(self.config.confirm), false);
        for other in others {
            self.nodes[other].gone = true;
            let (soon, life) = (self.random.below(self.config.silence), self.nodes[other].life);
            self.queue.push(self.now + soon, Event::Input(other, Some(life), Input::Leave));
        }
        // The last one stays for T/4 after it has put the dead one out. Its clock may be faster by
        // half.
        let least = (self.config.silence + self.config.confirm / 4) * 2 / 3;
        self.bereaved_until = self.now + least;
    }

    /// Somebody who lives is in the map.
    pub fn check_bereaved(&mut self) {
        if self.now >= self.bereaved_until {
            return;
        }
        let map = &self.database.map;
        let lives = |(at, _)| {
            map.entry(MemberId(at as u64)).is_some_and(|entry| map.is_active(entry.identity))
        };
        if !self.running().any(lives) {
            self.wrong = Some("all have left the ring to one that is dead".to_owned());
        }
    }
}
