//! Runs in which settings and the schema change, see [`changes`](super::changes).

use super::plan::{Plan, Rates, config};
use super::plot::{Deed, Extent, Fault, MS, Snare};
use super::random::SimRandom;
use crate::config::Time;

const OWNER: usize = 0;
const WRITER: usize = 1;
const HEIR: usize = 2;

/// A run of one to three changes.
pub fn changing(seed: u64) -> Plan {
    let mut random = SimRandom::new(seed);
    let members = random.pick(&[2, 2, 3, 3, 3, 4]);
    let grows = random.permille(500);
    let mut config = config(&mut random);
    config.rho = random.pick(&[1_000, 50_000]);
    config.shards = random.pick(&[2, 4]);
    config.stable = random.pick(&[500, 60_000, 60_000]) * MS;
    config.pull = 3_000 * MS;
    if grows {
        // A repair is over before a hold is.
        config.hold = 7_000 * MS;
    }
    let tokens = (0..random.between(2, 4)).map(|_| random.next() as i64).collect();
    let noise = random.permille(300);
    let mut rates = Rates {
        lost: if noise { random.below(20) } else { 0 },
        doubled: if noise { random.below(60) } else { 0 },
        late: if noise { random.below(40) } else { 0 },
        transaction: if noise { random.below(200) } else { 0 },
        row: random.pick(&[0, 0, 60]),
        everything: if grows { 0 } else { random.pick(&[0, 100]) },
        // What is written again is not lacking any more.
        writes: if grows { random.pick(&[0, 2, 10]) } else { random.pick(&[5, 30, 100]) },
        ..Rates::default()
    };
    // Drawn apart, so that runs without it are those of before.
    let apart = SimRandom::new(seed ^ 0x51_0d);
    let mut script = Script { random, apart, at: 2_500 * MS, members, faults: Vec::new() };
    let slow = !grows && script.apart.permille(150);
    let scenes = script.random.between(1, 2);
    let grown = script.random.below(scenes);
    for scene in 0..scenes {
        if grows && scene == grown { script.more_replicas() } else { script.off_and_on(slow) }
    }
    let Script { at: heal, faults, mut random, .. } = script;
    if slow {
        rates.transaction = 300;
    }
    let judged = random.permille(150);
    let calm = config.stretched(config.confirm) + config.stretched(config.hold) + 7_000 * MS;
    let end = heal + if judged { calm } else { 200 * MS };
    Plan {
        seed,
        members,
        config,
        tokens,
        rates,
        heal,
        end,
        faults,
        wire: random.permille(100),
        latest: 1_200 * MS,
        hot: true,
        judged,
        grows,
        light: false,
        made: None,
    }
}

struct Script {
    random: SimRandom,
    apart: SimRandom,
    at: Time,
    members: usize,
    faults: Vec<(Time, Fault)>,
}

impl Script {
    fn after(&mut self, low: u64, high: u64, fault: Fault) {
        let at = self.at + self.random.between(low, high) * MS;
        self.faults.push((at, fault));
    }

    fn anyone(&mut self) -> usize {
        self.random.below(self.members as u64 + 1) as usize
    }

    fn reads(&mut self, low: u64, high: u64, node: usize) {
        for _ in 0..4 {
            self.after(low, high, Fault::Read { node, row: 0 });
        }
    }

    /// Somebody is away for a while.
    fn goes(&mut self, low: u64, high: u64, node: usize, time: Time) {
        match self.random.below(5) {
            0 => self.after(low, high, Fault::Pause { node, time }),
            1 => {
                self.after(low, low, Fault::Isolate { node, time });
                self.after(low, high, Fault::NoDatabase { node, time });
            }
            _ => {
                let lost = self.random.permille(100);
                self.after(low, high, Fault::Kill { node, back: Some(time), lost });
            }
        }
    }

    fn goes_on(&mut self, time: u64) {
        self.at += (time + self.random.between(500, 2_000)) * MS;
    }

    /// The operator turns caching off, others write past the ring, and caching is on again. A
    /// member may be away meanwhile, a shard may move, and others may die. Where all is `slow`, the
    /// others hear only then that they have its shards.
    fn off_and_on(&mut self, slow: bool) {
        self.faults.push((self.at, Fault::Cast { row: 0 }));
        if self.random.permille(200) {
            return self.off_and_on_during_a_fill();
        }
        self.reads(0, 200, OWNER);
        let away = self.random.permille(700);
        let (off, on) = (self.random.between(300, 2_500), self.random.between(3_500, 5_500));
        let back = match self.random.below(3) {
            0 => self.random.between(on - 1_000, on + 1_500),
            _ => self.random.between(on + 10, on + 600),
        };
        if away {
            let gone = self.random.between(210, 300);
            let who = self.random.pick(&[OWNER, OWNER, WRITER]);
            self.goes(gone, gone, who, (back - gone) * MS);
        } else {
            let to = self.anyone();
            self.after(200, on, Fault::Move { to, row: 0 });
        }
        for node in 0..self.members * usize::from(slow) {
            let from = self.apart.between(off, on);
            let time = (on + 1_000 - from) * MS;
            self.faults.push((self.at + from * MS, Fault::SlowMap { node, time }));
        }
        let spread = self.random.pick(&[50, 300, 1_500]) * MS;
        self.after(off, off, Fault::Policy { caches: false, spread });
        for _ in 0..self.random.between(6, 14) {
            self.after(off + 200, on, Fault::WritePast { row: 0 });
        }
        let spread = self.random.pick(&[300, 1_500, 4_000]) * MS;
        self.after(on, on, Fault::Policy { caches: true, spread });
        for _ in 0..self.random.between(1, 6) {
            let to = self.random.pick(&[OWNER, OWNER, WRITER, HEIR]);
            self.after(on, on + 3_500, Fault::Move { to, row: 0 });
        }
        if self.random.permille(300) {
            // A fill begins before a change and ends after it.
            let node = self.anyone();
            let snare = Snare::Late(self.random.between(500, 2_800) * MS);
            let deed = self.random.pick(&[Deed::ReadRow, Deed::Handover, Deed::Pulled]);
            self.after(off - 200, on, Fault::Trap { node, deed, snare });
        }
        if self.random.permille(200) {
            self.any_fault(off, on + 2_000);
        }
        self.reads(on + 500, on + 4_500, OWNER);
        self.goes_on(on + 4_000);
    }

    /// The database answers a fill after all that.
    fn off_and_on_during_a_fill(&mut self) {
        let on = self.random.between(1_700, 2_600);
        let (node, deed) = (OWNER, Deed::ReadRow);
        let snare = Snare::Late((on - 500 + self.random.between(0, 900)) * MS);
        let (extent, weak) = (Extent::One, false);
        self.after(0, 0, Fault::Write { node, row: 0, extent, weak });
        self.after(200, 300, Fault::Trap { node, deed, snare });
        self.reads(301, 450, OWNER);
        let spread = self.random.pick(&[50, 300]) * MS;
        self.after(460, 500, Fault::Policy { caches: false, spread });
        for _ in 0..10 {
            self.after(700, on, Fault::WritePast { row: 0 });
        }
        self.after(on, on, Fault::Policy { caches: true, spread });
        self.reads(on + 300, on + 2_000, OWNER);
        self.goes_on(on + 1_500);
    }

    /// The keyspace gets more replicas. Some hear of it late, others come after it. Shards move
    /// before the repair, and rows are filled that the new replicas lack.
    fn more_replicas(&mut self) {
        self.faults.push((self.at, Fault::Cast { row: 0 }));
        let writer = self.random.pick(&[OWNER, WRITER]);
        let (extent, weak) = (Extent::All, false);
        self.after(0, 200, Fault::Write { node: writer, row: 0, extent, weak });
        if self.random.permille(600) {
            let node = self.random.pick(&[OWNER, OWNER, WRITER, HEIR]);
            let time = self.random.between(1_000, 5_000) * MS;
            self.after(200, 280, Fault::Deaf { node, time });
        }
        self.after(300, 600, Fault::Grow);
        for _ in 0..self.random.between(1, 2) {
            self.after(0, 2_500, Fault::Join);
        }
        for _ in 0..self.random.between(2, 6) {
            let to = self.random.pick(&[HEIR, self.members, self.members + 1]);
            self.after(600, 4_500, Fault::Move { to, row: 0 });
        }
        for _ in 0..6 {
            let node = self.anyone();
            self.after(700, 4_500, Fault::Read { node, row: 0 });
        }
        if self.random.permille(300) {
            let (node, time) = (self.anyone(), self.random.between(20, 3_000) * MS);
            self.goes(300, 3_000, node, time);
        }
        if self.random.permille(200) {
            self.any_fault(300, 4_000);
        }
        self.after(4_000, 5_000, Fault::Repair);
        self.goes_on(8_500);
    }

    fn any_fault(&mut self, low: u64, high: u64) {
        let (node, time) = (self.anyone(), self.random.between(100, 2_500) * MS);
        let fault = match self.random.below(4) {
            0 => Fault::Pause { node, time },
            1 => Fault::Isolate { node, time },
            2 => Fault::Kill { node, back: Some(time), lost: self.random.permille(300) },
            _ => Fault::Leave { node },
        };
        self.after(low, high, fault);
    }
}
