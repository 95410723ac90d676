//! The database answers reads of the map and refuses to change it, for a reason that stays: who
//! may not must not ask again and again.

use std::collections::BTreeMap;

use super::plot::MS;
use super::world::{Refusal, World};
use crate::config::Time;

/// How often a process may try at first, while it does not know yet that the reason stays. What it
/// had sent before may be answered meanwhile, so that it begins anew.
const AT_FIRST: u64 = 16;

impl World {
    /// The database refuses from now on, at most until the faults end.
    pub fn refuse(&mut self, time: Time) {
        let until = (self.now + time).min(self.plan.heal);
        self.refusal = Refusal { since: self.now, until, tried: BTreeMap::new() };
    }

    /// Whether a change of the map by this process is refused now. It is wrong that it tries so
    /// often.
    pub fn refuses(&mut self, at: usize, life: u64) -> bool {
        let Refusal { since, until, tried } = &mut self.refusal;
        if self.now >= *until {
            return false;
        }
        let tried = tried.entry((at, life)).or_default();
        *tried += 1;
        // Its clock may be faster by half.
        let most = AT_FIRST + 2 * (self.now - *since) / self.plan.config.transaction;
        if *tried > most {
            let (tried, time) = (*tried, (self.now - *since) / MS);
            self.wrong = Some(format!("m{at} has tried {tried} times in {time} ms of refusal"));
        }
        true
    }
}
