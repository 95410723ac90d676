//! Makes a plan from a seed: set-up, faults, and one random step after the other. The random draws
//! and their order define what a seed means.

use super::plan::{
    Expect, Expiry, Fault, Key, ModifyKind, Options, Plan, Race, Setup, Size, Step, What,
    least_head,
};
use crate::device::sim::SimRandom;

/// One seed in so many has many segments and keys.
const WIDE: u64 = 20;
/// One seed in so many has two to four devices, each of which may be a home of checkpoints.
const SEVERAL: u64 = 16;
/// One seed in so many has small areas of checkpoints.
const SMALL_AREAS: u64 = 16;
/// KiB that the areas of a home may take an eighth of.
const ROOMY_HEAD: u64 = 768;
/// One step in so many is one of those histories that single steps hardly ever make.
const MOTIFS: f64 = 1.0 / 80.0;

/// Kinds of faults a seed has.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Weather {
    Fair,
    Slow,
    Foul,
}

pub(super) fn choose<T: Copy>(r: &mut SimRandom, from: &[T]) -> T {
    from[r.below(from.len() as u64) as usize]
}

impl Plan {
    /// The run of a seed: one in 64 is long.
    pub fn of(seed: u64) -> Self {
        let r = &mut SimRandom::new(seed ^ 0xa5a5_0000_5a5a);
        let mut setup = Setup::random(seed, r);
        // Not drawn, so that other seeds make the same runs as before.
        if seed % SEVERAL == 9 {
            setup.have_several(&mut SimRandom::new(seed ^ 0x5e7e));
        }
        if seed % SMALL_AREAS == 13 {
            setup.have_small_areas(&mut SimRandom::new(seed ^ 0xa4ea));
        }
        let weather = match r.below(20) {
            0..10 => Weather::Fair,
            10..12 => Weather::Slow,
            _ => Weather::Foul,
        };
        let mut maker = Maker {
            hot: 1 + setup.keys / 8,
            setup: &setup,
            weather,
            last: Key { ns: 0, n: 0 },
            steps: Vec::new(),
        };
        let long = seed % 64 == 63;
        let count = if long || seed % WIDE == WIDE - 1 { 2_000 } else { 80 + r.below(240) };
        // Half of the long ones read a few keys again and again: what has to go is then more
        // popular than what comes.
        let popular = long && r.chance(0.5);
        match weather {
            Weather::Fair => {}
            Weather::Slow => maker.push(r, What::Fault { fault: Fault::Slow, permille: 50 }),
            Weather::Foul => maker.foul(r),
        }
        if setup.block_lines.is_some() {
            maker.grow_index(r);
        }
        for _ in 0..count {
            if r.chance(MOTIFS) {
                maker.motif(r);
            }
            let what = if popular && r.chance(0.6) { maker.read_hot(r) } else { maker.any(r) };
            maker.push(r, what);
        }
        // Not drawn, so that other seeds make the same runs as before.
        if seed % 8 == 3 && weather == Weather::Fair {
            maker.older_directory(&mut SimRandom::new(seed ^ 0x01d));
        }
        if seed % 8 == 6 || seed % 32 == 9 || seed % 32 == 13 {
            maker.older_device(&mut SimRandom::new(seed ^ 0x01de));
        }
        if seed % 16 == 2 || seed % 32 == 25 || seed % 32 == 29 {
            maker.mute_over_crash(&mut SimRandom::new(seed ^ 0x3075));
        }
        if seed % 16 == 4 || seed % 64 == 41 {
            maker.other_places(&mut SimRandom::new(seed ^ 0x97ace));
        }
        maker.push(r, What::Rest);
        let machine = r.chance(0.3);
        let end = if r.chance(0.5) {
            What::Close { removes: 0, machine, check: true }
        } else {
            What::Crash { machine, check: true, again: None, exchange: None }
        };
        maker.push(r, end);
        let steps = maker.steps;
        let mut plan = Self { setup, steps };
        if plan.setup.block_lines.is_some() {
            plan.keep_to_small_areas();
        }
        plan
    }
}

impl Setup {
    fn random(seed: u64, r: &mut SimRandom) -> Self {
        let segment_kib = choose(r, &[16, 16, 16, 32, 64]);
        let devices = choose(r, &[1, 1, 2, 2, 3]);
        // Half of the caches are so small that something is always being reclaimed.
        let wide = seed % WIDE == WIDE - 1;
        let tight = r.chance(0.5) && !wide;
        let total = if tight {
            8 + r.below(3) as u32
        } else {
            11 + r.below(if segment_kib == 64 { 3 } else { 10 }) as u32
        };
        let total = if wide { 80 } else { total };
        let mut segments = vec![total / devices; devices as usize];
        segments[0] += total % devices;
        if devices > 1 {
            // Devices of unequal size.
            (segments[0], segments[1]) = (segments[0] + 1, segments[1] - 1);
        }
        Self {
            seed,
            segment_kib,
            segments,
            journal_kib: choose(r, &[8, 8, 12, 16, 32]) * if wide { 4 } else { 1 },
            size: Size::random(r).for_keys(if wide { 400 } else { 0 }),
            tag_bits: choose(r, &[16, 16, 16, 8, 5]),
            reinsertion: choose(
                r,
                if tight { &[0.15, 2.0, 2.0, 2.0] } else { &[0.0, 0.15, 0.5, 2.0] },
            ),
            write_budget: r.chance(0.1).then(|| 20 + r.below(100)),
            namespaces: (0..2 + r.below(3)).map(|_| Options::random(r)).collect(),
            keys: if wide { 400 } else { 12 + r.below(50) as u32 },
            admits_unproven: seed.is_multiple_of(2),
            // Not drawn, so that a seed makes the same run as before.
            contests: seed % 7 == 5,
            relieves_after: (seed / 2).is_multiple_of(2).then_some(seed / 4 % 4 * 200),
            moves_once: seed.is_multiple_of(3),
            compacts: [0, 3, 8, 40][(seed / 4 % 4) as usize],
            passes: [None, Some(2), Some(4)][(seed / 16 % 3) as usize],
            fixed_lives: if seed % 5 == 4 { 1 + seed / 5 % 3 } else { 0 },
            head_kib: least_head(),
            block_lines: None,
        }
    }

    /// Several devices, all of them large enough for checkpoints, and settings that are drawn one
    /// by one: in other seeds some of them never meet.
    fn have_several(&mut self, r: &mut SimRandom) {
        let devices = choose(r, &[2, 2, 3, 3, 4]);
        let total = self.segments.iter().sum::<u32>().max(4 * devices);
        self.segments = vec![total / devices; devices as usize];
        self.segments[0] += total % devices;
        let to = r.below(devices.into()) as usize;
        // Devices of unequal size, and any of them the largest.
        self.segments[(to + 1) % devices as usize] -= 1;
        self.segments[to] += 1;
        self.head_kib = ROOMY_HEAD;
        self.fixed_lives = 0;
        self.admits_unproven = r.chance(0.6);
        self.contests = r.chance(0.2);
        self.relieves_after = choose(r, &[None, Some(0), Some(0), Some(200), Some(600)]);
        self.moves_once = r.chance(0.4);
        self.compacts = choose(r, &[0, 3, 8, 40]);
        self.passes = choose(r, &[None, Some(2), Some(4)]);
    }
}

impl Options {
    fn random(r: &mut SimRandom) -> Self {
        Self { immutable: r.chance(0.25), clean_stop: r.chance(0.15), durability: r.below(3) as u8 }
    }
}

impl Size {
    pub fn random(r: &mut SimRandom) -> Self {
        let shards = choose(r, &[1, 2, 2, 4]);
        // Some 30 to 250 keys: with the smallest index most slots are fought for.
        let lines = choose(r, &[3, 5, 9, 30, 120]);
        Self { shards, lines: (lines / shards).max(1), dram: choose(r, &[1, 3, 8, 30, 60]) << 10 }
    }
}

impl Size {
    /// With an index that has room for so many keys.
    fn for_keys(self, keys: u32) -> Self {
        // Six slots a line hold when it is four fifths full.
        Self { lines: self.lines.max(keys / 5 / self.shards), ..self }
    }
}

/// Makes steps.
pub(super) struct Maker<'a> {
    pub setup: &'a Setup,
    pub weather: Weather,
    /// Half of the operations go to this many keys.
    pub hot: u32,
    /// The key chosen last: one in four is that one again.
    last: Key,
    steps: Vec<Step>,
}

impl Maker<'_> {
    pub fn push(&mut self, r: &mut SimRandom, what: What) {
        self.steps.push(Step { salt: r.next_u64() >> 32, what });
    }

    fn read_hot(&self, r: &mut SimRandom) -> What {
        let ns = r.below(self.setup.namespaces.len() as u64) as u8;
        What::Read { key: Key { ns, n: r.below(self.hot.into()) as u32 }, race: Race::None }
    }

    fn any(&mut self, r: &mut SimRandom) -> What {
        match r.below(1000) {
            0..370 => What::Put {
                key: self.key(r),
                len: self.len(r),
                expiry: match r.below(12) {
                    0 => Expiry::In(r.below(60) as u32),
                    1 => Expiry::In(5_000),
                    _ => Expiry::Never,
                },
                group: r.below(4) as u8,
                slot: r.below(8) as u8,
            },
            370..400 => What::PutIf {
                key: self.key(r),
                len: self.len(r),
                expect: choose(
                    r,
                    &[Expect::Current, Expect::Current, Expect::Nothing, Expect::Wrong],
                ),
                race: self.race(r),
            },
            400..440 => What::Modify {
                key: self.key(r),
                len: self.len(r),
                change: choose(
                    r,
                    &[
                        ModifyKind::Add,
                        ModifyKind::Put,
                        ModifyKind::Value,
                        ModifyKind::Value,
                        ModifyKind::Touch,
                        ModifyKind::Remove,
                    ],
                ),
                expiry: if r.chance(0.2) { Expiry::In(r.below(90) as u32) } else { Expiry::Never },
            },
            440..560 => What::Get { key: self.key(r) },
            560..640 => What::Finish { n: r.below(16) as u8 },
            640..700 => What::Read { key: self.key(r), race: self.race(r) },
            700..740 => What::Remove { key: self.key(r) },
            740..749 => self.kill(r),
            749..840 => What::Turn { ms: 0 },
            840..940 => What::Turn { ms: r.below(1500) as u32 },
            940..950 => What::Idle { turns: 5 + r.below(60) as u32 },
            950..957 => What::SetClock {
                by: if r.chance(0.3) { -(r.below(60) as i32) } else { r.below(60) as i32 },
            },
            957..961 => What::Sync,
            961..969 => self.end(r),
            969..977 => What::CutAfter { effects: r.below(60) as u32 },
            977..978 => What::StartClose,
            978..981 => What::Resize { size: Size::random(r) },
            981..983 => What::SetOptions {
                ns: r.below(self.setup.namespaces.len() as u64) as u8,
                options: Options::random(r),
            },
            983..995 if self.weather == Weather::Foul => {
                self.foul(r);
                What::Turn { ms: 0 }
            }
            995..997 => What::Rest,
            997 => self.mute(r),
            _ => What::Turn { ms: 100 },
        }
    }

    fn end(&self, r: &mut SimRandom) -> What {
        let machine = r.chance(0.35);
        if r.chance(0.35) {
            let removes = if r.chance(0.3) { 1 + r.below(3) as u8 } else { 0 };
            return What::Close { removes, machine, check: r.chance(0.6) };
        }
        let device = r.below(self.setup.segments.len() as u64) as u8;
        What::Crash {
            machine,
            check: r.chance(0.6),
            again: r.chance(0.25).then(|| r.below(12) as u8),
            exchange: (self.weather == Weather::Foul && r.chance(0.1)).then_some(device),
        }
    }

    /// A device answers nothing for a while. Sometimes a life ends meanwhile.
    fn mute(&mut self, r: &mut SimRandom) -> What {
        let device = r.below(self.setup.segments.len() as u64) as u8;
        if r.chance(0.3) {
            // While the index loads.
            let end = self.end(r);
            self.push(r, end);
        }
        self.push(r, What::Mute { device, mute: true });
        let devices = self.setup.segments.len() as u8;
        if self.setup.has_room_for_homes() && self.weather == Weather::Foul && r.chance(0.3) {
            // Another one goes meanwhile.
            self.push(r, What::Away { device: (device + 1) % devices, away: true });
        }
        for _ in 0..3 + r.below(30) {
            let what = match r.below(8) {
                0 => What::Read { key: self.key(r), race: Race::None },
                1..3 => What::Put {
                    key: self.key(r),
                    len: self.len(r),
                    expiry: Expiry::Never,
                    group: 0,
                    slot: 0,
                },
                3 => What::Checkpoint,
                _ => What::Idle { turns: 1 + r.below(12) as u32 },
            };
            self.push(r, what);
        }
        if r.chance(0.3) {
            return self.end(r);
        }
        What::Mute { device, mute: false }
    }

    fn kill(&self, r: &mut SimRandom) -> What {
        let ns = r.below(self.setup.namespaces.len() as u64) as u8;
        match r.below(8) {
            0 => What::Clear { ns },
            1..4 => What::BumpEpoch { ns, slot: r.below(8) as u8 },
            _ => What::RemoveGroup { ns, group: 1 + r.below(3) as u8 },
        }
    }

    /// Changes the faults.
    fn foul(&mut self, r: &mut SimRandom) {
        const FAULTS: [Fault; 13] = [
            Fault::Read,
            Fault::Write,
            Fault::Sync,
            Fault::NoSpace,
            Fault::ShortRead,
            Fault::FlipOnRead,
            Fault::FlipOnWrite,
            Fault::Misdirected,
            Fault::Lost,
            Fault::Slow,
            Fault::Media,
            Fault::Meta,
            Fault::Any,
        ];
        let device = r.below(self.setup.segments.len() as u64) as u8;
        let what = match r.below(10) {
            0 => What::Away { device, away: true },
            1 => What::Away { device, away: false },
            2 => What::Heal,
            3 => {
                let after = r.below(12) as u32;
                self.push(r, What::HangOpening { device, after });
                self.end(r)
            }
            _ => {
                let fault = choose(r, &FAULTS);
                let permille = match fault {
                    Fault::Media => 2,
                    Fault::Any => choose(r, &[5, 20]),
                    // A full disk, a dead device.
                    Fault::NoSpace | Fault::Write => choose(r, &[10, 100, 1000]),
                    _ => choose(r, &[10, 50, 200]),
                };
                What::Fault { fault, permille }
            }
        };
        self.push(r, what);
    }

    pub fn key(&mut self, r: &mut SimRandom) -> Key {
        if r.chance(0.75) {
            let range = if r.chance(0.5) { self.hot } else { self.setup.keys };
            let ns = r.below(self.setup.namespaces.len() as u64) as u8;
            self.last = Key { ns, n: r.below(range.into()) as u32 };
        }
        self.last
    }

    pub fn len(&self, r: &mut SimRandom) -> u32 {
        let most = u64::from(self.setup.segment_kib) << 8;
        let len = match r.below(20) {
            // Often just too large.
            0 => most - 300 + r.below(600),
            1..4 => most / 4 + r.below(most / 2),
            4 => r.below(9),
            _ => r.below(most / 3),
        };
        len as u32
    }

    pub fn race(&self, r: &mut SimRandom) -> Race {
        match r.below(4) {
            0 => Race::Put { len: self.len(r) },
            1 => Race::Remove,
            _ => Race::None,
        }
    }
}
