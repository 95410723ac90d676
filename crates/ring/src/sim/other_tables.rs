//! Changes of the schema that touch no row of ours: a table is made, or one of others is dropped.
//!
//! 1. Each member hears of it at its own time. Until it has read the version, it vouches for
//!    nothing.
//! 2. Some changes have members distrust rows of before, as a changed type has, or a dropped table.
//! 3. They come alone, or many within a second, as an application makes its tables.

use super::event::{Event, Input};
use super::plan::Plan;
use super::plot::{Fault, MS};
use super::random::SimRandom;
use super::world::World;
use crate::schema::SchemaVersion;

/// Larger rings take too long for what they would add.
const MOST: usize = 30;

/// Has the schema change in some runs. What is drawn is drawn apart, so that other seeds have the
/// runs of before.
pub fn make_others(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0x07ab1e);
    let (from, permille) = (500 * MS, if plan.seed % 8 == 6 { 250 } else { 80 });
    if plan.members > MOST || plan.heal <= from || !random.permille(permille) {
        return;
    }
    let bursts = random.between(1, 4);
    for _ in 0..bursts {
        let begins = from + random.below(plan.heal - from);
        let distrusts = random.permille(400);
        for _ in 0..random.pick(&[1, 1, 1, 3, 12]) {
            let at = begins + random.below(1_000) * MS;
            plan.faults.push((at.min(plan.heal), Fault::OtherTable { distrusts }));
        }
    }
}

impl World {
    /// The schema changes. Members hear of it, most of them at once.
    pub fn other_table(&mut self, distrusts: bool) {
        self.database.others += 1;
        let others = self.database.others;
        for at in 0..self.nodes.len() {
            let spread = if self.random.permille(200) { 1_500 } else { 40 };
            let soon = self.random.below(spread * MS);
            let (life, deaf) = (self.nodes[at].life, self.nodes[at].deaf);
            let then = (self.now + soon).max(deaf);
            let told = Input::HeardOther { others, distrusts };
            self.queue.push(then, Event::Input(at, Some(life), told));
        }
    }

    /// A process hears of it.
    pub fn hears_other(&mut self, at: usize, others: u128, distrusts: bool) {
        let node = &mut self.nodes[at];
        node.others = node.others.max(others);
        self.with(at, |member, _| {
            if let Some(member) = member {
                if distrusts {
                    member.distrust_older();
                }
                member.set_schema(SchemaVersion::default());
            }
        });
        self.reads_schema(at);
    }

    /// A process that has heard of a change reads the schema. If it hears of more meanwhile, it
    /// reads again.
    pub fn reads_schema(&mut self, at: usize) {
        let (life, version) = (self.nodes[at].life, self.nodes[at].version());
        let reads = self.random.below(1_500) * MS;
        self.queue.push(self.now + reads, Event::Input(at, Some(life), Input::Noted(version)));
    }
}
