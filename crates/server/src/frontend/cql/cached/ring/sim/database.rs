//! The simulated database. The map changes by linearisable compare-and-set. Each row is on three
//! replicas, to which a write comes at times of their own; a read takes the newest of two.

use std::sync::Arc;

use afterglow_ring::{Map, Time};

use super::random::SimRandom;

/// Replicas of a row.
pub const COPIES: usize = 3;
/// A replica remembers more writes only if they are younger than this.
const SETTLED: Time = 8_000_000;
const MANY: usize = 16;

/// The map and the rows.
pub struct SimDatabase {
    /// The map.
    pub map: Arc<Map>,
    /// What the replicas of each row have, and from when on.
    rows: Vec<[Vec<(Time, i32)>; COPIES]>,
}

impl SimDatabase {
    /// Without a ring, and with nothing in so many rows.
    pub fn new(shards: usize, rows: usize) -> Self {
        let replicas = || std::array::from_fn(|_| Vec::new());
        Self { map: Arc::new(Map::empty(shards)), rows: (0..rows).map(|_| replicas()).collect() }
    }

    /// Compare-and-set of the map.
    pub fn transact(&mut self, map: &Arc<Map>) -> bool {
        let applies = map.version == self.map.version + 1;
        if applies {
            self.map = map.clone();
        }
        applies
    }

    /// A write comes to each replica at a time of its own. When a quorum has it, or one replica if
    /// it is `weak`.
    pub fn write(&mut self, row: usize, stamp: i32, times: [Time; COPIES], weak: bool) -> Time {
        for (replica, at) in self.rows[row].iter_mut().zip(times) {
            replica.push((at, stamp));
        }
        let mut times = times;
        times.sort_unstable();
        times[if weak { 0 } else { COPIES / 2 }]
    }

    /// The newest write that two replicas have at these times. It comes to both.
    pub fn read(&mut self, row: usize, of: [(usize, Time); 2], now: Time) -> i32 {
        let replicas = &mut self.rows[row];
        let newest = of.map(|(at, time)| {
            let there = replicas[at].iter().filter(|(since, _)| *since <= time);
            there.map(|(_, stamp)| *stamp).max().unwrap_or(0)
        });
        let newest = newest[0].max(newest[1]);
        for (at, _) in of {
            let replica = &mut replicas[at];
            if newest > 0 {
                replica.push((now, newest));
            }
            if replica.len() > MANY {
                let old = now.saturating_sub(SETTLED);
                let settled = replica.iter().filter(|(since, _)| *since <= old);
                let best = settled.map(|(_, stamp)| *stamp).max();
                replica.retain(|(since, stamp)| *since > old || Some(*stamp) == best);
            }
        }
        newest
    }

    /// Two different replicas.
    pub fn two(random: &mut SimRandom) -> [usize; 2] {
        let out = random.below(COPIES as u64) as usize;
        [(out + 1) % COPIES, (out + 2) % COPIES]
    }
}
