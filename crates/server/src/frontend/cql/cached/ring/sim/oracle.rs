//! What was acknowledged, and so what an answer may be.
//!
//! A read that begins after a write was acknowledged shows that write, or one with a higher number:
//! numbers are timestamps. Writes that one replica has acknowledged are not judged, as a quorum may
//! miss them. Nor are writes of unknown outcome.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use super::process::AnsweredBy;

/// What a client waits for.
enum Expected {
    /// A row that shows this write at least.
    Read { row: usize, floor: i32, quiet: bool },
    /// That rows are written: by which write, once it is sent.
    Write { rows: Vec<usize>, weak: bool, stamp: i32 },
}

/// What clients have asked for and heard.
pub struct Oracle {
    next: u64,
    requests: BTreeMap<u64, (usize, Expected)>,
    /// The newest acknowledged write of each row.
    floors: Vec<i32>,
    /// What the run did.
    pub counts: Counts,
}

/// What a run did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Events of the simulation.
    pub events: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Those from the cache of the instance that was asked.
    pub hits: u64,
    /// Those from another instance.
    pub from_owners: u64,
    /// Reads in the quiet end of a run.
    pub quiet: u64,
    /// Those that needed no database.
    pub quiet_hits: u64,
    /// Writes.
    pub writes: u64,
    /// Those that were acknowledged.
    pub acknowledged: u64,
    /// Rows of caches that were judged beside the reads.
    pub judged: u64,
    /// Rows of earlier epochs that still counted.
    pub carried: u64,
    /// Versions of the map.
    pub versions: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.reads += other.reads;
        self.hits += other.hits;
        self.from_owners += other.from_owners;
        self.quiet += other.quiet;
        self.quiet_hits += other.quiet_hits;
        self.writes += other.writes;
        self.acknowledged += other.acknowledged;
        self.judged += other.judged;
        self.carried += other.carried;
        self.versions += other.versions;
    }
}

impl Oracle {
    /// Nothing was asked for yet, of so many rows.
    pub fn new(rows: usize) -> Oracle {
        let (requests, counts) = (BTreeMap::new(), Counts::default());
        Oracle { next: 0, requests, floors: vec![0; rows], counts }
    }

    /// What nobody may read an older write than.
    pub fn floor(&self, row: usize) -> i32 {
        self.floors[row]
    }

    /// A client asks machine `at` for a row.
    pub fn reads(&mut self, at: usize, row: usize, quiet: bool) -> u64 {
        self.next += 1;
        let request = Expected::Read { row, floor: self.floors[row], quiet };
        self.requests.insert(self.next, (at, request));
        self.next
    }

    /// A client has machine `at` write rows.
    pub fn writes(&mut self, at: usize, rows: Vec<usize>, weak: bool) -> u64 {
        self.next += 1;
        self.counts.writes += 1;
        self.requests.insert(self.next, (at, Expected::Write { rows, weak, stamp: 0 }));
        self.next
    }

    /// A write is sent to the database, under this number. Whether one replica is to acknowledge
    /// it.
    pub fn sent(&mut self, client: u64, number: i32) -> bool {
        match self.requests.get_mut(&client) {
            Some((_, Expected::Write { stamp, weak, .. })) => {
                *stamp = number;
                *weak
            }
            _ => panic!("a write that nobody wants is sent: {client}"),
        }
    }

    /// A read is answered.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn answered(&mut self, client: u64, stamp: i32, by: AnsweredBy) -> Result<(), String> {
        let Some((at, Expected::Read { row, floor, quiet })) = self.requests.remove(&client) else {
            return Err(format!("request {client} is answered twice"));
        };
        let no_database = u64::from(by != AnsweredBy::Database);
        self.counts.reads += 1;
        self.counts.hits += u64::from(by == AnsweredBy::Cache);
        self.counts.from_owners += u64::from(by == AnsweredBy::Owner);
        self.counts.quiet += u64::from(quiet);
        self.counts.quiet_hits += u64::from(quiet) * no_database;
        match stamp < floor {
            true => Err(format!(
                "m{at} reads write {stamp} of row {row}, but {floor} was acknowledged before \
                 ({by:?})"
            )),
            false => Ok(()),
        }
    }

    /// A write is acknowledged.
    ///
    /// # Errors
    /// What is wrong with that.
    pub fn acknowledged(&mut self, client: u64) -> Result<(), String> {
        let Some((_, Expected::Write { rows, weak, stamp })) = self.requests.remove(&client) else {
            return Err(format!("request {client} is answered twice"));
        };
        if stamp == 0 {
            return Err(format!("write {client} is acknowledged before it is sent"));
        }
        self.counts.acknowledged += 1;
        for row in rows.into_iter().filter(|_| !weak) {
            self.floors[row] = self.floors[row].max(stamp);
        }
        Ok(())
    }

    /// A request has failed.
    pub fn failed(&mut self, client: u64) {
        self.requests.remove(&client);
    }

    /// The process that was asked has died.
    pub fn died(&mut self, at: usize) {
        self.requests.retain(|_, (by, _)| *by != at);
    }
}
