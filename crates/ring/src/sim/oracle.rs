//! The oracle: what was written, acknowledged and read, and so what an answer may be.

use std::collections::BTreeMap;

use crate::config::Time;
use crate::identity::Incarnation;
use crate::map::{Map, Standing};

/// What a client's request is about.
#[derive(Debug, Clone)]
pub enum Request {
    Read {
        row: usize,
        /// The oldest writes that the database, or the cache, may answer with.
        database: u64,
        cache: u64,
        /// Whether it counts for warmth.
        quiet: bool,
        since: Time,
    },
    Write {
        rows: Vec<usize>,
        stamp: u64,
        weak: bool,
        settled: Time,
        /// It was sent before the keyspace had its other replicas.
        lacking: bool,
    },
}

/// What was acknowledged, by row.
#[derive(Debug, Default)]
pub struct Oracle {
    next: u64,
    requests: BTreeMap<u64, Request>,
    rows: Vec<Floor>,
    /// Whether what was read once must be read ever after: not where the hold is shorter than a
    /// write of unknown outcome may take.
    pub monotonic: bool,
    /// Every incarnation that ever came into the map.
    incarnations: std::collections::BTreeSet<Incarnation>,
    pub counts: Counts,
    /// Reads and hits of each row in the calm.
    pub quiet: Vec<(u64, u64)>,
}

#[derive(Debug, Default, Clone)]
struct Floor {
    /// What every quorum read sees.
    strong: u64,
    /// What the cache must not be older than.
    any: u64,
    /// Weak writes, and when every replica has them.
    weak: Vec<(Time, u64)>,
    /// What new replicas lack: not judged before they have it.
    lacking: u64,
}

/// What a run did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub events: u64,
    pub reads: u64,
    pub hits: u64,
    pub quiet: u64,
    pub quiet_hits: u64,
    pub writes: u64,
    pub acknowledged: u64,
    pub changes: u64,
}

impl Counts {
    pub fn and(self, other: Self) -> Self {
        Self {
            events: self.events + other.events,
            reads: self.reads + other.reads,
            hits: self.hits + other.hits,
            quiet: self.quiet + other.quiet,
            quiet_hits: self.quiet_hits + other.quiet_hits,
            writes: self.writes + other.writes,
            acknowledged: self.acknowledged + other.acknowledged,
            changes: self.changes + other.changes,
        }
    }
}

impl Oracle {
    pub fn new(rows: usize) -> Self {
        Self { rows: vec![Floor::default(); rows], quiet: vec![(0, 0); rows], ..Self::default() }
    }

    fn floor(&self, row: usize, now: Time) -> u64 {
        let floor = &self.rows[row];
        let weak = floor.weak.iter().filter(|(t, _)| *t <= now).map(|(_, s)| *s).max();
        floor.strong.max(weak.unwrap_or(0))
    }

    pub fn cache_floor(&self, row: usize) -> u64 {
        self.rows[row].any
    }

    pub fn read(&mut self, row: usize, quiet: bool, now: Time) -> u64 {
        self.next += 1;
        let (database, cache) = (self.floor(row, now), self.rows[row].any);
        self.requests.insert(self.next, Request::Read { row, database, cache, quiet, since: now });
        self.next
    }

    pub fn write(&mut self, rows: Vec<usize>, weak: bool) -> u64 {
        self.next += 1;
        self.counts.writes += 1;
        let (stamp, settled, lacking) = (0, 0, false);
        let request = Request::Write { rows, stamp, weak, settled, lacking };
        self.requests.insert(self.next, request);
        self.next
    }

    /// The write is sent to the database: what it is about, whether it is weak.
    pub fn sent(&mut self, client: u64, now_stamp: u64, all: Time) -> (Vec<usize>, bool) {
        match self.requests.get_mut(&client) {
            Some(Request::Write { rows, stamp, weak, settled, .. }) => {
                (*stamp, *settled) = (now_stamp, all);
                (rows.clone(), *weak)
            }
            other => panic!("a write that nobody wanted was sent: {client} {other:?}"),
        }
    }

    pub fn rows_of(&self, client: u64) -> (Vec<usize>, bool) {
        match self.requests.get(&client) {
            Some(Request::Write { rows, weak, .. }) => (rows.clone(), *weak),
            other => panic!("not a write: {client} {other:?}"),
        }
    }

    /// A read is answered; says what is wrong with it.
    pub fn answered(&mut self, client: u64, stamp: u64, cached: bool) -> Result<(), String> {
        let Some(Request::Read { row, database, cache, quiet, .. }) = self.requests.remove(&client)
        else {
            return Err(format!("request {client} was answered twice"));
        };
        self.counts.reads += 1;
        self.counts.hits += u64::from(cached);
        self.counts.quiet += u64::from(quiet);
        self.counts.quiet_hits += u64::from(quiet && cached);
        self.quiet[row].0 += u64::from(quiet);
        self.quiet[row].1 += u64::from(quiet && cached);
        let floor = if cached { cache } else { database };
        if stamp < floor {
            return Err(format!(
                "stale read of row {row}: write {stamp}, but {floor} was acknowledged or read \
                 before (cached: {cached})"
            ));
        }
        if self.monotonic {
            self.seen(row, stamp);
        }
        Ok(())
    }

    /// A write was read: nobody may read an older one after that.
    pub fn seen(&mut self, row: usize, stamp: u64) {
        let floor = &mut self.rows[row];
        floor.strong = floor.strong.max(stamp);
        floor.any = floor.any.max(stamp);
    }

    /// A write is acknowledged: the rows.
    pub fn acknowledged(&mut self, client: u64) -> Result<Vec<usize>, String> {
        let Some(Request::Write { rows, stamp, weak, settled, lacking }) =
            self.requests.remove(&client)
        else {
            return Err(format!("request {client} was answered twice"));
        };
        if stamp == 0 {
            return Err(format!("write {client} was acknowledged before it was sent"));
        }
        self.counts.acknowledged += 1;
        for row in &rows {
            let floor = &mut self.rows[*row];
            if lacking {
                floor.lacking = floor.lacking.max(stamp);
                continue;
            }
            floor.any = floor.any.max(stamp);
            if weak {
                floor.weak.push((settled, stamp));
            } else {
                floor.strong = floor.strong.max(stamp);
            }
        }
        Ok(rows)
    }

    /// The keyspace has more replicas, which have nothing yet: a quorum may miss all so far.
    pub fn lack(&mut self) {
        for floor in &mut self.rows {
            let weak = floor.weak.drain(..).map(|(_, stamp)| stamp).max();
            floor.lacking = floor.any.max(floor.strong).max(weak.unwrap_or(0));
            (floor.any, floor.strong) = (0, 0);
        }
        for request in self.requests.values_mut() {
            match request {
                Request::Read { database, cache, .. } => (*database, *cache) = (0, 0),
                Request::Write { stamp, lacking, .. } => *lacking = *stamp > 0,
            }
        }
    }

    /// They have all, and everything has ended that was cached before they had.
    pub fn lacks_nothing(&mut self) {
        for floor in &mut self.rows {
            floor.strong = floor.strong.max(floor.lacking);
            floor.any = floor.any.max(floor.lacking);
        }
        for request in self.requests.values_mut() {
            if let Request::Write { lacking, .. } = request {
                *lacking = false;
            }
        }
    }

    /// A map was applied; says what is wrong with the change.
    pub fn applied(&mut self, before: &Map, map: &Map) -> Result<(), String> {
        for (old, new) in before.shards.iter().zip(&map.shards) {
            let who = new.owner.filter(|who| old.owner != Some(*who));
            let entry = who.and_then(|who| map.entry(who));
            if entry.is_some_and(|m| m.standing == Standing::Accused) {
                return Err(format!("a shard was given to {who:?}, which is accused"));
            }
        }
        for member in map.members.iter().filter(|m| m.since == map.version) {
            if !self.incarnations.insert(member.identity.incarnation) {
                return Err(format!("{:?} came twice", member.identity));
            }
        }
        Ok(())
    }

    /// Whether a read that came before a time is still not answered.
    pub fn is_unanswered(&self, before: Time) -> bool {
        let reads = self.requests.values();
        reads.into_iter().any(|r| matches!(r, Request::Read { since, .. } if *since < before))
    }

    /// A request has failed, or its instance has died.
    pub fn failed(&mut self, client: u64) {
        self.requests.remove(&client);
    }
}
