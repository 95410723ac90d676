//! A member stops while writes of its clients wait for their permits. Nothing of them was sent, and
//! their owners hear of that before the process ends: a moment later no gate of them is closed.

use super::event::{Event, Input};
use super::plan::Plan;
use super::plot::{Extent, Fault, MS};
use super::random::SimRandom;
use super::world::{RefusedWrites, World};
use crate::config::Time;
use crate::identity::PermitKey;

/// In the calm a message takes no longer than a millisecond.
const HEARS_WITHIN: Time = 10 * MS;

/// Has members of some runs stop at any time, and makes some of those longer that are judged. What
/// is drawn is drawn apart, so that other seeds have the runs of before.
pub fn stop_some(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0x5709);
    if random.permille(120) {
        let from = (2_000 * MS).min(plan.heal - 1);
        for _ in 0..random.between(1, 4) {
            let node = random.below(plan.members as u64) as usize;
            let back = random.pick(&[5, 500, 4_000]) * MS;
            let at = from + random.below(plan.heal - from);
            plan.faults.push((at, Fault::Stop { node, back }));
        }
    }
    if !plan.judged || plan.members < 2 || !random.permille(60) {
        return;
    }
    let config = &plan.config;
    let (confirm, hold) = (config.stretched(config.confirm), config.stretched(config.hold));
    plan.faults.push((plan.end, Fault::StopAsking));
    plan.end += confirm + hold + 7_000 * MS;
}

impl World {
    /// A member with a lease writes everything, and the grant of one other owner does not reach it.
    /// It stops before it gives up.
    pub fn stop_asking(&mut self) {
        let mut leading = self.leading();
        let owners = self.database.map.owners();
        if leading.len() < 2 {
            return;
        }
        let at = leading.swap_remove(self.random.below(leading.len() as u64) as usize);
        let Some(mute) = leading.into_iter().find(|o| owners.iter().any(|id| id.0 == *o as u64))
        else {
            return;
        };
        let soon = self.now + self.random.between(5, 150) * MS;
        self.cuts.push((mute, at, soon + MS));
        self.client_write(at, 0, Extent::All, false);
        self.queue.push(soon, Event::Stop(at, self.random.pick(&[5, 500, 2_000]) * MS));
    }

    /// A process stops: it refuses what waits, and ends. It is back after that time.
    pub fn stop(&mut self, at: usize, back: Time) {
        let node = &self.nodes[at];
        let Some(member) = node.member.as_ref().filter(|_| node.paused <= self.now) else { return };
        let (writes, life) = (member.asking(), node.life);
        self.input(at, Input::Refuse);
        let node = &self.nodes[at];
        if node.life != life || node.paused > self.now {
            return; // it stands still, or has died, before it has told all
        }
        self.kill(at, Some(back), false);
        if !self.unreliable() && !writes.is_empty() {
            self.refused_writes = RefusedWrites { heard: self.now + HEARS_WITHIN, writes };
        }
    }

    /// No owner keeps the gates of refused writes closed.
    pub fn check_refused(&mut self) {
        let RefusedWrites { heard, writes } = &self.refused_writes;
        if self.now < *heard {
            return;
        }
        let granted = |key: &PermitKey| {
            self.running().find(|(_, member)| member.custody().has_granted(*key)).map(|(at, _)| at)
        };
        let wrong = writes.iter().find_map(granted);
        let wrong = wrong.map(|at| format!("m{at} has the gates of a refused write closed"));
        self.refused_writes.writes.clear();
        self.wrong = self.wrong.take().or(wrong);
    }
}
