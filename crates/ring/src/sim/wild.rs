//! Wild runs: rings of all sizes, where anything may go wrong at any time.

use super::plan::{Plan, Rates, config};
use super::plot::{Fault, MS};
use super::random::SimRandom;
use crate::config::Time;

/// A ring of more takes longer than a run until all have joined: liveness is not judged.
const JUDGED: usize = 30;

/// A run of this seed.
pub fn wild(seed: u64) -> Plan {
    let mut random = SimRandom::new(seed);
    let members = match seed % 256 {
        255 if seed % 4_096 == 4_095 => 200,
        127 | 255 => 8 + random.below(23) as usize,
        n if n % 16 == 5 => 1 + random.below(2) as usize,
        _ => 3 + random.below(5) as usize,
    };
    let config = config(&mut random);
    let tokens = (0..random.between(3, 7)).map(|_| random.next() as i64).collect();
    let calm = random.permille(150);
    let short = config.hold < config.lease;
    let rate = |random: &mut SimRandom, most: u64| {
        if calm || random.permille(400) { 0 } else { random.below(most) }
    };
    let rates = Rates {
        lost: rate(&mut random, 40),
        doubled: rate(&mut random, 100),
        late: rate(&mut random, 60),
        transaction: rate(&mut random, 500),
        row: if random.permille(300) { 400 } else { rate(&mut random, 150) },
        split: rate(&mut random, 6),
        weak: if short { 0 } else { rate(&mut random, 300) },
        everything: rate(&mut random, 60),
        writes: random.pick(&[15, 60, 350, 350]),
    };
    let heal = random.between(6_000, 16_000) * MS;
    let mut faults = Vec::new();
    let mut at = 2_000 * MS;
    let pace = random.between(300, 2_500) * MS;
    while at < heal {
        at += random.below(pace) + 10 * MS;
        let together = if random.permille(150) { 2 } else { 1 };
        for _ in 0..together {
            faults.push((at, fault(&mut random, members)));
        }
        if random.permille(250) {
            motif(&mut random, members, at, &mut faults);
        }
    }
    faults.retain(|(at, _)| *at < heal);
    // Drawn apart, so that seeds of before have the runs of before.
    let mut apart = SimRandom::new(!seed);
    let light = apart.permille(60);
    rarely(&mut apart, heal, &mut faults);
    let wire = random.permille(100);
    // Time for the longest wait of the protocol, of a joiner whose members are all gone.
    let calm_time = config.stretched(config.confirm) + config.stretched(config.hold) + 7_000 * MS;
    let (end, latest) = (heal + calm_time, 1_200 * MS);
    Plan {
        seed,
        members,
        config,
        tokens,
        rates,
        heal,
        end,
        faults,
        wire,
        latest,
        hot: false,
        judged: members <= JUDGED,
        grows: false,
        light,
        made: None,
    }
}

/// What few runs have.
fn rarely(random: &mut SimRandom, heal: Time, faults: &mut Vec<(Time, Fault)>) {
    let from = 2_000 * MS;
    if random.permille(60) {
        faults.push((from + random.below(heal - from), Fault::LeaveAll));
    }
    if random.permille(100) {
        let time = random.between(2_000, 8_000) * MS;
        faults.push((from + random.below(heal - from), Fault::DatabaseRefuses { time }));
    }
}

fn fault(random: &mut SimRandom, members: usize) -> Fault {
    // Members that join later have places too.
    let node = random.below(members as u64 + 1) as usize;
    let other = random.below(members as u64 + 1) as usize;
    let time = random.between(20, 2_500) * MS;
    match random.below(22) {
        0..=4 => Fault::Pause { node, time: random.between(5, 2_500) * MS },
        5..=7 => Fault::Kill {
            node,
            back: Some(random.pick(&[5, 50, 300, 1_500, 4_000]) * MS),
            lost: random.permille(350),
        },
        8 => Fault::Kill { node, back: None, lost: false },
        9..=11 => Fault::Cut { from: node, to: other, both: random.permille(500), time },
        12 | 13 => Fault::Isolate { node, time },
        14 => Fault::Split { at: node.max(1), time },
        15 => Fault::NoDatabase { node, time: time * 2 },
        16 => Fault::DatabaseDown { time },
        17 | 18 => Fault::Join,
        19 => Fault::Leave { node },
        _ => Fault::Queue { node, time: time * 2 },
    }
}

/// Short histories in which what must be in order comes into disorder.
pub fn motif(random: &mut SimRandom, members: usize, at: Time, faults: &mut Vec<(Time, Fault)>) {
    let node = random.below(members as u64) as usize;
    let others = members.saturating_sub(1).max(1) as u64;
    let other = (node + 1 + random.below(others) as usize) % members.max(2);
    let soon = |random: &mut SimRandom| at + random.between(100, 1_800) * MS;
    let time = random.between(600, 2_500) * MS;
    match random.below(9) {
        // An accusation waits in the database while the link is whole again.
        0 => {
            faults.push((at, Fault::Queue { node, time: random.between(1_000, 5_000) * MS }));
            faults.push((at, Fault::Cut { from: node, to: other, both: true, time: 900 * MS }));
        }
        // A joiner that the others cannot hear of, or that hears nothing.
        1 => {
            faults.push((at, Fault::Join));
            faults.push((soon(random), Fault::NoDatabase { node, time }));
            faults.push((soon(random), Fault::Isolate { node: members, time }));
        }
        // State lost, then a restart within the wait.
        2 => {
            faults.push((at, Fault::Kill { node, back: Some(20 * MS), lost: true }));
            faults.push((soon(random), Fault::Kill { node, back: Some(20 * MS), lost: false }));
        }
        // A member moves its shards while it is slow.
        3 => {
            faults.push((at, Fault::Leave { node }));
            faults.push((soon(random), Fault::Queue { node: other, time: time * 2 }));
            faults.push((soon(random), Fault::Pause { node, time }));
        }
        // A member restarts, is not known to another, and they lose each other.
        4 => {
            faults.push((at, Fault::NoDatabase { node: other, time: time * 2 }));
            faults.push((at, Fault::Isolate { node: other, time: time / 2 }));
            let back = Some(20 * MS);
            faults.push((at + 50 * MS, Fault::Kill { node, back, lost: false }));
            faults.push((at + 60 * MS, Fault::Cut { from: other, to: node, both: true, time }));
        }
        // A member loses everything and everybody for long; somebody joins meanwhile.
        7 => {
            let time = random.between(4_000, 14_000) * MS;
            faults.push((at, Fault::Isolate { node, time }));
            faults.push((at, Fault::NoDatabase { node, time }));
            faults.push((at, Fault::Join));
        }
        // A member comes back with another that wants its shards, and goes on the way.
        8 => {
            faults.push((at, Fault::Kill { node, back: Some(1_200 * MS), lost: false }));
            let then = at + random.between(2_000, 5_000) * MS;
            faults.push((then, Fault::Queue { node, time: time * 2 }));
            let later = then + random.between(500, 3_000) * MS;
            let back = random.pick(&[None, Some(50 * MS), Some(3_000 * MS)]);
            let lost = random.permille(400);
            faults.push((later, Fault::Kill { node: random.pick(&[node, other]), back, lost }));
        }
        // Two are silent together.
        5 => {
            faults.push((at, Fault::Pause { node, time }));
            faults.push((at, Fault::Pause { node: other, time }));
        }
        _ => {
            faults.push((at, Fault::Kill { node, back: Some(2_500 * MS), lost: false }));
            faults.push((soon(random), Fault::Kill { node: other, back: Some(time), lost: false }));
        }
    }
}
