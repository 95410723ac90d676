//! What a run is: the size of the ring, how unreliable its world is, and a list of faults. Made
//! from a seed; a run that fails is made shorter by leaving faults out.

use super::plot::{Fault, MS};
use super::random::SimRandom;
use crate::config::{Config, Time};

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    /// Members at the beginning.
    pub members: usize,
    pub config: Config,
    pub tokens: Vec<i64>,
    /// In thousandths: messages that are lost, doubled, late; transactions that are lost, late;
    /// answers of the database that are late.
    pub rates: Rates,
    /// When faults and unreliability end.
    pub heal: Time,
    pub end: Time,
    pub faults: Vec<(Time, Fault)>,
    /// Whether messages go through their bytes.
    pub wire: bool,
    /// The latest that a write comes to a replica after it was sent.
    pub latest: Time,
    /// Whether the first row has most of the requests.
    pub hot: bool,
    /// Whether the run ends with a calm in which liveness is judged.
    pub judged: bool,
    /// Whether rows have one replica at first, and get more. What was not acknowledged is not
    /// judged then.
    pub grows: bool,
    /// All machines but the first have the weight 0.
    pub light: bool,
    /// The row whose key the database draws, if there is one.
    pub made: Option<usize>,
}

/// How often something goes wrong by itself, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    pub transaction: u64,
    pub row: u64,
    /// A process stands still or dies between two of its actions.
    pub split: u64,
    /// Writes at a level that a quorum read may miss.
    pub weak: u64,
    /// TRUNCATEs, among the writes.
    pub everything: u64,
    /// Writes, among the requests.
    pub writes: u64,
}

pub fn config(random: &mut SimRandom) -> Config {
    let (ping, silence) = random.pick(&[(100, 260), (200, 500)]);
    Config {
        confirm: random.pick(&[2_500, 4_000, 8_000]) * MS,
        lease: 1_000 * MS,
        rho: random.pick(&[1_000, 50_000, 200_000, 500_000]),
        ping: ping * MS,
        silence: silence * MS,
        rank_step: random.pick(&[20, 100]) * MS,
        hold: random.pick(&[5, 7_000]) * MS,
        holds: 1 << 18,
        probe: 400 * MS,
        deserted: 2_000 * MS,
        transaction: 900 * MS,
        retry: 150 * MS,
        get: 250 * MS,
        write: 2_500 * MS,
        stable: random.pick(&[500, 1_500]) * MS,
        pull: random.pick(&[0, 3_000, 3_000]) * MS,
        join_fill: 500 * MS,
        weak_fills: false,
        shards: random.pick(&[4, 8, 16]),
    }
}
