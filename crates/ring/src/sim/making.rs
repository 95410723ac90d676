//! The database draws the key of one row. Owners are asked as for everything, and the write changes
//! no row that is there.
//!
//! 1. Clients read the row and find none, and owners cache that. Nobody else writes it.
//! 2. Its shard moves, or its owner goes away.
//! 3. One write makes the row. Members that had the shard before still have that there is none.
//! 4. Its shard goes back.

use super::plan::Plan;
use super::plot::{Extent, Fault, MS};
use super::random::SimRandom;
use super::world::World;
use crate::config::Time;

/// The owner before, and the one after.
const OWNER: usize = 0;
const OTHER: usize = 1;

/// Gives some of the runs such a row. What is drawn is drawn apart, so that other seeds have the
/// runs of before.
pub fn make_some(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0x3a4e);
    if plan.grows || plan.members < 2 || !random.permille(200) {
        return;
    }
    let row = plan.tokens.len();
    plan.tokens.push(random.next() as i64);
    plan.made = Some(row);
    let begins = random.between(2_000 * MS, plan.heal.max(2_001 * MS));
    let leaves: Time = random.between(10, 300) * MS;
    let makes: Time = leaves + random.between(0, 2_500) * MS;
    let returns: Time = makes + random.between(0, 1_500) * MS;
    let mut scene = vec![(0, Fault::Cast { row }), (0, Fault::Read { node: OWNER, row })];
    if random.permille(500) {
        scene.push((leaves, Fault::Move { to: OTHER, row }));
        scene.push((returns, Fault::Move { to: OWNER, row }));
    } else {
        let back = Some(random.between(50, 4_000) * MS);
        scene.push((leaves, Fault::Kill { node: OWNER, back, lost: false }));
    }
    let node = random.below(plan.members as u64) as usize;
    scene.push((makes, Fault::Write { node, row, extent: Extent::Made, weak: false }));
    for after in [20, 400, 1_600] {
        let node = random.below(plan.members as u64) as usize;
        scene.push((returns + after * MS, Fault::Read { node, row }));
    }
    let at = |(after, fault)| (begins + after, fault);
    plan.faults.extend(scene.into_iter().map(at).filter(|(at, _)| *at < plan.heal));
    plan.faults.sort_by_key(|(at, _)| *at);
}

impl World {
    /// Of these rows those that a client may write: not the one that is still to be made.
    pub fn written_rows(&self, mut rows: Vec<usize>) -> Vec<usize> {
        rows.retain(|row| self.unmade != Some(*row));
        rows
    }

    /// The write that makes the row. There is one: whether a first one will be applied may be
    /// unknown.
    pub fn makes(&mut self, row: usize) -> Vec<usize> {
        let is_first = self.unmade == Some(row) && !std::mem::replace(&mut self.making, true);
        if is_first { vec![row] } else { Vec::new() }
    }

    /// Rows were acknowledged. Once the made one is, clients write it as any other.
    pub fn is_made(&mut self, rows: &[usize]) {
        if self.unmade.is_some_and(|row| rows.contains(&row)) {
            self.unmade = None;
        }
    }
}
