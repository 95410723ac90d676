//! Trouble in the calm, from which all members but one must be spared:
//!
//! - One loses the database for longer than its lease lasts. Others must own its shards before:
//!   nobody can write the rows of an owner without a lease. Where there are two, the other may
//!   stand still for a moment. The one without the database must not try to put it out.
//! - One loses all other members, is put out, and joins again alone.
//! - The keeper of one hangs: no time passes for it, while messages to it are still handled.
//! - All lose the database, for about as long as a lease lasts, or once more. Nobody is put out.
//!
//! The others are never put out, then or when the trouble is over. Where one alone is in trouble,
//! each shard has an owner with a lease all the time, but for moves.

use super::event::Event;
use super::plan::Plan;
use super::plot::{Fault, MS};
use super::random::SimRandom;
use super::world::{Spared, TICK, World};
use crate::config::{Config, Time};
use crate::identity::MemberId;
use crate::member::Member;

/// A shard may have no owner with a lease for so long, while it goes to another.
const MOVES_WITHIN: Time = 5_000 * MS;

/// Makes some of the runs longer that are judged: the trouble comes at the end of the calm, and a
/// second calm after it. What is drawn for it is drawn apart, so that seeds of before have the runs
/// of before up to here.
pub fn lengthen_some(plan: &mut Plan, permille: u64) {
    let mut random = SimRandom::new(plan.seed ^ 0xb11d);
    if !plan.judged || !random.permille(permille) {
        return;
    }
    let config = &plan.config;
    let (confirm, hold) = (config.stretched(config.confirm), config.stretched(config.hold));
    let (fault, time) = match random.below(4) {
        0 | 1 if plan.members > 2 && most_win(config) => {
            let time = random.between(500, 9_000) * MS;
            (Fault::Hermit { time }, time)
        }
        0 => {
            let time = random.between(0, confirm / MS) * MS;
            (Fault::Outage { time }, time)
        }
        _ if random.permille(300) => {
            let time = random.between(500, 9_000) * MS;
            (Fault::Hang { time }, time)
        }
        _ => (Fault::Blind { time: 2 * confirm }, 2 * confirm),
    };
    plan.faults.push((plan.end, fault));
    plan.end += time + confirm + hold + 7_000 * MS;
}

/// Whether those who reach most are sure to accuse first: one of three waits two ranks longer than
/// the first of the others. It may have lost them so much earlier than they lost it, as answers to
/// PINGs and ticks differ by. Clocks that differ much may take it away too.
fn most_win(config: &Config) -> bool {
    config.rho <= 1_000 && 2 * config.rank_step >= config.ping + TICK
}

impl World {
    /// A member with a lease loses the database.
    pub fn blind(&mut self, time: Time) {
        // It is put out no earlier than it may have the database again.
        let within = MOVES_WITHIN + self.plan.config.recovers();
        let Some(alone) = self.spare_others(2, time, within) else { return };
        self.nodes[alone].no_database = self.now + time;
        let Some(spared) = &mut self.spared else { return };
        let &[other] = &spared.others[..] else { return };
        let pause = 2 * self.config.silence;
        spared.lapses = Some((pause + 1_000 * MS, None));
        let at = self.now + self.random.below(1_000) * MS;
        self.queue.push(at, Event::Faint(other, pause));
    }

    /// A member with a lease loses all others, who are two at least.
    pub fn isolate(&mut self, time: Time) {
        if let Some(alone) = self.spare_others(3, time, MOVES_WITHIN) {
            let until = self.now + time;
            for other in (0..self.nodes.len()).filter(|other| *other != alone) {
                self.cuts.extend([(alone, other, until), (other, alone, until)]);
            }
        }
    }

    /// The keeper of a member with a lease hangs.
    pub fn hang(&mut self, time: Time) {
        if let Some(alone) = self.spare_others(2, time, MOVES_WITHIN) {
            self.nodes[alone].hangs = self.now + time;
        }
    }

    /// All lose the database. It may be there for a moment and go again.
    pub fn outage(&mut self, time: Time) {
        let mut until = self.now + time;
        self.database_down = until;
        if self.random.permille(500) {
            let back = until + self.random.between(5, 400) * MS;
            let time = self.random.between(1_000, 4_000) * MS;
            self.queue.push(back, Event::Fault(Fault::DatabaseDown { time }));
            until = back + time;
        }
        let others = self.leading();
        let until = until + MOVES_WITHIN;
        let within = MOVES_WITHIN;
        self.spared = Some(Spared { until, others, since: Vec::new(), within, lapses: None });
    }

    /// The members that have a lease and stay.
    pub fn leading(&self) -> Vec<usize> {
        let leading = self.with_lease().map(|(at, _)| at);
        leading.filter(|at| !self.nodes[*at].gone).collect()
    }

    /// The members that have a lease, those that are told to leave too.
    fn with_lease(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.running().filter(|(at, member)| self.nodes[*at].clock(self.now) < member.lease_end())
    }

    /// Who is to be in trouble, if there are so many with a lease. From now on the others are
    /// looked at: `within` that time each shard has an owner with a lease again.
    fn spare_others(&mut self, least: usize, time: Time, within: Time) -> Option<usize> {
        let mut others = self.leading();
        if others.len() < least {
            return None;
        }
        let alone = others.swap_remove(self.random.below(others.len() as u64) as usize);
        self.say(|| format!("m{alone} is alone in trouble"));
        let until = self.now + time + MOVES_WITHIN;
        let since = vec![None; self.plan.config.shards];
        self.spared = Some(Spared { until, others, since, within, lapses: None });
        Some(alone)
    }

    /// The members that serve each shard now.
    pub fn servers(&self) -> Vec<Vec<usize>> {
        let mut served = vec![Vec::new(); self.plan.config.shards];
        for (at, member) in self.with_lease() {
            let Some(map) = member.map() else { continue };
            for (shard, by) in served.iter_mut().enumerate() {
                if member.custody().serves(map, MemberId(at as u64), shard) {
                    by.push(at);
                }
            }
        }
        served
    }

    /// While one is alone in trouble no other is put out, and no shard is without an owner that has
    /// a lease for long.
    pub fn check_spared(&mut self) {
        let is_over = |spared: &Spared| self.now >= spared.until;
        if self.spared.as_ref().is_none_or(is_over) {
            return;
        }
        let (now, servers, map) = (self.now, self.servers(), self.database.map.clone());
        let leading = self.leading();
        let Some(spared) = &mut self.spared else { return };
        let is_out = |at: &&usize| {
            map.entry(MemberId(**at as u64)).is_none_or(|m| !map.is_active(m.identity))
        };
        if let Some(at) = spared.others.iter().find(is_out) {
            self.wrong = Some(format!("m{at} is put out, while another one is in trouble"));
        }
        if let Some((longest, since)) = &mut spared.lapses {
            let lapsed = !leading.contains(&spared.others[0]);
            *since = lapsed.then(|| since.unwrap_or(now));
            if since.is_some_and(|since| now > since + *longest) {
                self.wrong = Some("one without the database keeps the other's lease down".into());
            }
        }
        for (shard, (since, by)) in spared.since.iter_mut().zip(&servers).enumerate() {
            let began = *since.get_or_insert(now);
            if !by.is_empty() {
                *since = None;
            } else if now >= began + spared.within {
                self.wrong = Some(format!("nobody serves shard {shard}, as one is in trouble"));
            }
        }
    }
}
