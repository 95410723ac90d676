//! What a run is: the size of the ring, how unreliable its world is, and a list of faults. Made
//! from a seed; a run that fails is made shorter by leaving faults out.

use afterglow_ring::{Config, Time};

use super::machine::Lost;
use super::random::SimRandom;

/// A millisecond.
pub const MS: Time = 1_000;
/// From its heal to its end a run is calm.
const CALM: Time = 13_000 * MS;

/// A run.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// What it is made from.
    pub seed: u64,
    /// Machines at the beginning.
    pub members: usize,
    /// The ring's durations.
    pub config: Config,
    /// How many rows there are. The first has half of the requests.
    pub rows: usize,
    /// How often something goes wrong by itself.
    pub rates: RunRates,
    /// When all faults end.
    pub heal: Time,
    /// When the run ends.
    pub end: Time,
    /// What goes wrong, and when.
    pub faults: Vec<(Time, Mishap)>,
    /// The latest that a write comes to a replica after it was sent.
    pub latest: Time,
    /// The database makes the key of the first row. The first late write makes it. Nobody else
    /// writes it before, and nobody reads it before that is sent.
    pub made: bool,
}

/// In thousandths.
#[derive(Debug, Clone, Copy)]
pub struct RunRates {
    /// Messages that are lost.
    pub lost: u64,
    /// Messages that come twice.
    pub doubled: u64,
    /// Messages that come late.
    pub late: u64,
    /// Transactions and reads of the map that are late; some are lost, some of unknown outcome.
    pub transaction: u64,
    /// Answers of the database about rows that are late; some are missing.
    pub row: u64,
    /// Fills that take seconds.
    pub slow: u64,
    /// A process stands still or dies between two of its messages.
    pub split: u64,
    /// Writes, among the requests.
    pub writes: u64,
    /// Writes that one replica acknowledges, among the writes.
    pub weak: u64,
}

/// What happens to machines and links.
#[derive(Debug, Clone, Copy)]
pub enum Mishap {
    /// A process dies, and comes back after a time.
    Kill(Whom, Time, Lost),
    /// A process stands still.
    Pause(Whom, Time),
    /// One does not reach the other for a time.
    Cut(usize, usize, Time),
    /// It reaches nobody, and nobody reaches it.
    Isolate(Whom, Time),
    /// It does not reach the database for its map.
    NoDatabase(Whom, Time),
    /// Nobody does.
    DatabaseDown(Time),
    /// It leaves, and starts again after a time.
    Leave(Whom, Time),
    /// A machine comes.
    Join,
    /// Its rows are forgotten.
    Forget(Whom),
    /// Somebody writes the first row through that machine, or another one if that owns it. The
    /// write comes to no replica before so long. Nobody else writes the row meanwhile.
    LateWrite(usize, Time),
    /// The first row is read through its owner. The replicas are read at once, and answer so much
    /// later. Nobody else asks for the row meanwhile.
    SlowFill(Time),
}

/// Which machine.
#[derive(Debug, Clone, Copy)]
pub enum Whom {
    /// That one.
    Number(usize),
    /// Who owns the first row then.
    Owner,
    /// Who has sent the last late write.
    Writer,
}

fn config(random: &mut SimRandom) -> Config {
    let (ping, silence) = random.pick(&[(100, 260), (200, 500)]);
    Config {
        confirm: random.pick(&[2_500, 4_000]) * MS,
        lease: 1_000 * MS,
        rho: random.pick(&[1_000, 50_000]),
        ping: ping * MS,
        silence: silence * MS,
        rank_step: random.pick(&[20, 100]) * MS,
        hold: random.pick(&[500, 2_000, 4_000]) * MS,
        probe: 400 * MS,
        deserted: 1_500 * MS,
        transaction: 900 * MS,
        retry: 150 * MS,
        get: 250 * MS,
        write: 2_500 * MS,
        stable: random.pick(&[300, 1_000]) * MS,
        pull: random.pick(&[0, 3_000, 3_000]) * MS,
        weak_fills: true,
        shards: random.pick(&[2, 4, 8]),
        ..Config::default()
    }
}

fn rates(random: &mut SimRandom) -> RunRates {
    let calm = random.permille(300);
    let mut rate = |of: &[u64]| if calm { 0 } else { random.pick(of) };
    RunRates {
        lost: rate(&[0, 10, 60]),
        doubled: rate(&[0, 10, 60]),
        late: rate(&[0, 20, 100]),
        transaction: rate(&[0, 50, 200]),
        row: rate(&[0, 50, 200]),
        slow: rate(&[0, 20, 100]),
        split: rate(&[0, 0, 2]),
        writes: 0,
        weak: rate(&[0, 0, 100]),
    }
}

fn fault(random: &mut SimRandom, members: usize) -> Mishap {
    let whom = match random.permille(500) {
        true => Whom::Owner,
        false => Whom::Number(random.below(members as u64 + 1) as usize),
    };
    let short = random.between(10, 2_500) * MS;
    let back = random.pick(&[5, 60, 300, 1_000, 2_500, 4_000]) * MS;
    match random.below(12) {
        0..=3 => {
            let nothing = [Lost::Nothing; 6];
            let lost = random.pick(&[&nothing[..], &[Lost::RingFile, Lost::All]].concat());
            Mishap::Kill(whom, back, lost)
        }
        4 | 5 => Mishap::Pause(whom, short),
        6 => {
            let (from, to) = (random.below(members as u64), random.below(members as u64));
            Mishap::Cut(from as usize, to as usize, short)
        }
        7 => Mishap::Isolate(whom, short),
        8 if random.permille(500) => Mishap::DatabaseDown(short),
        8 => Mishap::NoDatabase(whom, 2 * short),
        9 => Mishap::Leave(whom, 1_000 * MS + short),
        10 => Mishap::Join,
        _ => Mishap::Forget(whom),
    }
}

/// An owner grants a write that comes late, and then it is gone. What its heir fills meanwhile is
/// from before the write, which is answered when its permit has ended.
fn late_write(random: &mut SimRandom, (lease, latest): (Time, Time), through: usize) -> Scene {
    let gone = lease + random.between(800, 2_500) * MS;
    let goes = match random.below(3) {
        0 => Mishap::Pause(Whom::Owner, gone),
        1 => Mishap::Isolate(Whom::Owner, gone),
        _ => Mishap::Kill(Whom::Owner, gone, Lost::Nothing),
    };
    let late = random.between(latest / 2, latest - 10 * MS);
    let mut scene = vec![(0, Mishap::LateWrite(through, late)), (random.between(2, 12) * MS, goes)];
    if random.permille(400) {
        // The writer does not reach the heir either.
        scene.push((late.saturating_sub(50 * MS), Mishap::Isolate(Whom::Writer, 3_500 * MS)));
    }
    scene
}

/// A write is under way while its shard moves, or its owner starts again. Whoever is the owner then
/// has it from the one before alone.
fn moved_write(random: &mut SimRandom, (lease, latest): (Time, Time), through: usize) -> Scene {
    let late = random.between(400 * MS, lease - 50 * MS).min(latest - 10 * MS);
    let moves = match random.below(8) {
        0..=3 => Mishap::Leave(Whom::Owner, 3_000 * MS),
        4 => Mishap::Join,
        _ => Mishap::Kill(Whom::Owner, random.pick(&[5, 60]) * MS, Lost::Nothing),
    };
    vec![(0, Mishap::LateWrite(through, late)), (random.between(1, 50) * MS, moves)]
}

/// A fill lasts while its shard goes to another instance and comes back. Meanwhile the row is
/// written there.
fn slow_fill(random: &mut SimRandom) -> Scene {
    let gone = random.between(1_900, 2_300) * MS;
    let slow = random.between(3_600, 6_000) * MS;
    let through = random.below(4) as usize;
    vec![
        (0, Mishap::Forget(Whom::Owner)),
        (0, Mishap::SlowFill(slow)),
        (random.between(1, 100) * MS, Mishap::Isolate(Whom::Owner, gone)),
        (random.between(2_000, 2_400) * MS, Mishap::LateWrite(through, 0)),
    ]
}

/// What follows each other so soon.
type Scene = Vec<(Time, Mishap)>;

/// Which run a seed is.
pub fn plan_of(seed: u64) -> RunPlan {
    let random = &mut SimRandom::new(seed);
    let (config, members) = (config(random), random.pick(&[2, 3, 3, 4]));
    let mut rates = rates(random);
    rates.writes = random.pick(&[100, 250, 500]);
    let heal = random.between(6_000, 12_000) * MS;
    let count = random.between(1, 7);
    let mut faults: Vec<_> =
        (0..count).map(|_| (random.between(2_500 * MS, heal), fault(random, members))).collect();
    let latest = config.hold - 50 * MS;
    for _ in 0..random.below(3) {
        let begins = random.between(3_000 * MS, heal);
        let through = random.below(members as u64) as usize;
        let scene = match random.below(3) {
            0 => late_write(random, (config.lease, latest), through),
            1 => moved_write(random, (config.lease, latest), through),
            _ => slow_fill(random),
        };
        faults.extend(scene.into_iter().map(|(after, fault)| (begins + after, fault)));
    }
    let (rows, end) = (random.between(2, 5) as usize, heal + CALM);
    // Drawn apart, so that other seeds have the runs of before.
    let apart = &mut SimRandom::new(!seed);
    let made = apart.permille(150);
    if made {
        let begins = apart.between(3_000 * MS, heal);
        let through = apart.below(members as u64) as usize;
        let scene = moved_write(apart, (config.lease, latest), through);
        faults.extend(scene.into_iter().map(|(after, fault)| (begins + after, fault)));
    }
    faults.sort_by_key(|(at, _)| *at);
    RunPlan { seed, members, config, rows, rates, heal, end, faults, latest, made }
}
