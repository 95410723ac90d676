//! The simulated database. The row of the map changes by linearisable compare-and-set. Rows of data
//! are on three replicas, whose writes come late or in part. In some runs they are on one at first;
//! the others lack what was written before they came, until a repair.

use std::collections::VecDeque;
use std::sync::Arc;

use super::random::SimRandom;
use crate::config::Time;
use crate::map::Map;

/// Replicas of a keyspace that has all.
const COPIES: usize = 3;

/// So many maps are remembered.
const MOST_BEFORE: usize = 6;

/// The copies of a row: what they hold now and what they will.
#[derive(Debug, Clone, Default)]
struct Replicas([Vec<(Time, u64)>; COPIES]);

#[derive(Debug)]
pub struct Database {
    pub map: Arc<Map>,
    /// The maps before it, the oldest first.
    before: VecDeque<Arc<Map>>,
    /// What nodes may show that have not heard that it was dropped, and until when.
    lagging: Option<(Arc<Map>, Time)>,
    rows: Vec<Replicas>,
    /// How many replicas the keyspace has.
    pub copies: usize,
    /// Changes with each change of the schema that touches rows of ours.
    pub schema: u128,
    /// How many changes it has that touch no row of ours.
    pub others: u128,
}

impl Database {
    pub fn new(shards: usize, rows: usize) -> Self {
        let map = Arc::new(Map::empty(shards));
        let (before, lagging) = (VecDeque::new(), None);
        let rows = vec![Replicas::default(); rows];
        Self { map, before, lagging, rows, copies: COPIES, schema: 1, others: 0 }
    }

    /// Compare-and-set of the map.
    pub fn transact(&mut self, map: &Arc<Map>) -> bool {
        let applies = map.version == self.map.version + 1;
        if applies {
            self.before.push_back(std::mem::replace(&mut self.map, map.clone()));
            if self.before.len() > MOST_BEFORE {
                self.before.pop_front();
            }
        }
        applies
    }

    /// Somebody puts an older map there.
    pub fn restore(&mut self) {
        self.map = self.before.pop_front().unwrap_or_else(|| self.map.clone());
    }

    /// Somebody empties the row.
    pub fn empty(&mut self, shards: usize) {
        self.map = Arc::new(Map::empty(shards));
    }

    /// Somebody drops its table. Some nodes hear of that later.
    pub fn drop_table(&mut self, shards: usize, heard: Time) {
        self.lagging = Some((self.map.clone(), heard));
        self.empty(shards);
    }

    /// The map, as the node that is asked knows it.
    pub fn read_map(&self, now: Time, random: &mut SimRandom) -> Arc<Map> {
        match &self.lagging {
            Some((map, heard)) if now < *heard && random.permille(500) => map.clone(),
            _ => self.map.clone(),
        }
    }

    /// A write arrives at each replica at a time of its own: when it is acknowledged.
    pub fn write(&mut self, row: usize, stamp: u64, times: [Time; COPIES], weak: bool) -> Time {
        let mut times = times[..self.copies].to_vec();
        for (replica, at) in self.rows[row].0.iter_mut().zip(&times) {
            replica.push((*at, stamp));
        }
        times.sort_unstable();
        times[if weak { 0 } else { self.copies / 2 }]
    }

    /// The keyspace gets its other replicas, which have nothing yet.
    pub fn grow(&mut self) {
        self.copies = COPIES;
        self.schema += 1;
    }

    /// Every replica has everything.
    pub fn repair(&mut self, now: Time) {
        for replicas in &mut self.rows {
            let all: Vec<_> = replicas.0.iter().flatten().copied().collect();
            let had = all.into_iter().map(|(at, stamp)| (at.max(now), stamp));
            let newest = had.max_by_key(|(_, stamp)| *stamp);
            replicas.0.iter_mut().for_each(|replica| replica.extend(newest));
        }
    }

    /// What two replicas hold at these times, and repairs them: the newest write.
    pub fn read(&mut self, row: usize, of: [(usize, Time); 2], now: Time) -> u64 {
        let of = if self.copies == 1 { [(0, of[0].1); 2] } else { of };
        let replicas = &mut self.rows[row].0;
        let newest = of.map(|(at, time)| {
            replicas[at].iter().filter(|(t, _)| *t <= time).map(|(_, s)| *s).max().unwrap_or(0)
        });
        let newest = newest[0].max(newest[1]);
        for (at, _) in of {
            if newest > 0 {
                replicas[at].push((now, newest));
            }
            // What is older than what every later read sees is forgotten.
            if replicas[at].len() > 12 {
                let settled = now.saturating_sub(4_000_000);
                let best =
                    replicas[at].iter().filter(|(t, _)| *t <= settled).map(|(_, s)| *s).max();
                replicas[at].retain(|(t, s)| *t > settled || Some(*s) == best);
            }
        }
        newest
    }

    /// Two different replicas.
    pub fn two(random: &mut SimRandom) -> [usize; 2] {
        let out = random.below(3) as usize;
        [(out + 1) % 3, (out + 2) % 3]
    }
}
