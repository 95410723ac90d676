//! A database that is slow to say what the map is. In some runs more goes wrong than a scene has:
//!
//! - Members read the map, and hear of newer ones, late. What they know of their ring is old.
//! - In runs whose settings change, what wild runs have happens too.
//! - In wild runs the settings change and change back, and others write past the ring between.
//! - Caching is on for a moment only. A member that caches by then dies before the map says so.

use super::plan::Plan;
use super::plot::{Fault, MS};
use super::random::SimRandom;
use super::wild::motif;
use crate::config::Time;

/// Larger rings take too long for what they would add.
const MOST: usize = 30;

/// Makes the database of some runs slow. What is drawn is drawn apart, so that other seeds have the
/// runs of before.
pub fn slow_some(plan: &mut Plan) {
    let mut random = SimRandom::new(plan.seed ^ 0x510e);
    let from = 2_500 * MS;
    if plan.members > MOST || plan.heal <= from + 1_000 * MS || !random.permille(150) {
        return;
    }
    let mut times = SimRandom::new(plan.seed ^ 0x71e5);
    let mut some_time = || from + times.below(plan.heal - from);
    let mut faults = Vec::new();
    for _ in 0..random.between(1, 4) {
        let node = random.below(plan.members as u64 + 1) as usize;
        let time = random.between(500, 5_000) * MS;
        let fault = match random.below(3) {
            0 => Fault::LateNews { node, time },
            _ => Fault::SlowMap { node, time },
        };
        faults.push((some_time(), fault));
    }
    let changes = plan.seed % 8 == 6;
    if changes && random.permille(500) {
        for _ in 0..random.between(1, 3) {
            motif(&mut random, plan.members, some_time(), &mut faults);
        }
    }
    let is_wild = !changes && plan.seed % 3 == 2;
    match random.below(10) {
        0..3 if is_wild || changes => {
            on_for_a_moment(&mut random, plan.members, some_time(), &mut faults);
        }
        3.. if is_wild => off_and_on(&mut random, some_time(), &mut faults),
        _ => {}
    }
    plan.faults.extend(faults.into_iter().filter(|(at, _)| *at < plan.heal));
}

/// Off, on, off, and on again. Somebody or all die while it is on, and come back at the end.
fn on_for_a_moment(
    random: &mut SimRandom,
    members: usize,
    at: Time,
    faults: &mut Vec<(Time, Fault)>,
) {
    // The owner of the row, where there is a cast.
    let anyone = random.below(members as u64) as usize;
    let who = random.pick(&[0, 0, 0, anyone]);
    let all = random.permille(300);
    let on = at + random.between(300, 1_500) * MS;
    let dies = on + random.between(50, 900) * MS;
    let off = dies + random.between(10, 500) * MS;
    let again = off + random.between(200, 1_500) * MS;
    let mut policy = |at, caches| {
        let spread = random.pick(&[20, 50, 300]) * MS;
        faults.push((at, Fault::Policy { caches, spread }));
    };
    for (at, caches) in [(at, false), (on, true), (off, false), (again, true)] {
        policy(at, caches);
    }
    if random.permille(700) {
        // What it says of its settings does not get into the map.
        let from = on - random.below(100) * MS;
        faults.push((from, Fault::NoDatabase { node: who, time: dies - from }));
    }
    for node in (0..members).filter(|node| all || *node == who) {
        for _ in 0..3 {
            let then = on + random.below(dies - on);
            faults.push((then, Fault::Read { node, row: 0 }));
        }
        let back = again + random.below(300) * MS;
        let back = (back - dies).min(random.between(500, 5_000) * MS);
        faults.push((dies, Fault::Kill { node, back: Some(back), lost: false }));
    }
    for _ in 0..random.between(4, 10) {
        let then = off + random.below(again - off);
        faults.push((then, Fault::WritePast { row: 0 }));
    }
}

/// The operator turns caching off and on, and others write past the ring while all members say off.
fn off_and_on(random: &mut SimRandom, at: Time, faults: &mut Vec<(Time, Fault)>) {
    let spread = random.pick(&[50, 300, 1_500]) * MS;
    let on = at + random.between(1_000, 5_000) * MS;
    faults.push((at, Fault::Policy { caches: false, spread }));
    for _ in 0..random.between(6, 14) {
        let then = at + random.below(on - at);
        faults.push((then, Fault::WritePast { row: 0 }));
    }
    faults.push((on, Fault::Policy { caches: true, spread }));
}
