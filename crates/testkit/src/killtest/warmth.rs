//! What a crash may cost (G3), judged from outside.
//!
//! Just before the end of a life some hundreds of rows are read: what the cache serves then is the
//! *sample*. When the process is dead, the flash is searched for the values of the sample, byte by
//! byte. A value in a segment that the cache has not given up *had reached flash*: it must be
//! served after the start. Another value may be missing if it is new. Whether the cache served a
//! read is seen by the database, which was not asked.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
    sync::Mutex,
    thread,
    time::Duration,
};

use serde::Serialize;

use super::{
    account::Losses,
    database_reads::{DatabaseReads, RowReads},
    load::Load,
    rows::{self, Rows},
    scan,
    segments::Segments,
};
use afterglow_loadgen::rng::Rng;

/// How many of the hottest rows that nobody writes are in every sample.
pub(super) const HOT: u64 = 100;
/// Objects that are newer may be missing.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// How often a read is asked again that the database was asked for without a look into the cache.
const TRIES: u32 = 40;
/// Pause between.
const PAUSE: Duration = Duration::from_millis(25);

/// A row that the cache served just before the end of a life.
struct Sampled {
    key: u64,
    number: u64,
    writes: u32,
    asked: RowReads,
    hot: bool,
}

/// What the cache served just before the end of a life, and what of it is on flash.
pub(super) struct Sample {
    rows: Vec<Sampled>,
    on_flash: scan::Found,
    ended: Duration,
    window: Duration,
    fills: Vec<u32>,
    bytes: u64,
}

/// A row that had reached flash and was not served.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lost {
    /// Its key.
    pub key: u64,
    /// Age at the end of the life in milliseconds.
    pub age_ms: u64,
    /// Offset of its value in the flash file.
    pub at: u64,
}

/// A row that was not served, had not reached flash, and was too old to be missing.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TooOld {
    /// Its key.
    pub key: u64,
    /// Age at the end of the life in milliseconds.
    pub age_ms: u64,
    /// How often it was read from the database to be kept.
    pub fills: u32,
}

/// What a restart kept of a sample.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Kept {
    /// Rows of the sample that nobody wrote meanwhile, in partitions without a write of unknown
    /// outcome.
    pub sampled: u64,
    /// Those of them that had reached flash.
    pub on_flash: u64,
    /// Those of them that were served.
    pub on_flash_served: u64,
    /// Rows that had not reached flash and were not served.
    pub new_missing: u64,
    /// Age of the oldest of them, in milliseconds.
    pub missing_age_ms: u64,
    /// Bytes that came into the cache after the oldest of them: what may be missing in all.
    pub missing_bytes: u64,
    /// Rows that had not reached flash, were not served, and were older than the window: any, after
    /// a clean stop.
    pub too_old: u64,
    /// Those of them that the server has accounted for. A clean stop may lose what its counters
    /// name as dropped. A crash may lose as many as only DRAM had, and nothing else.
    pub accounted: u64,
    /// Those after a clean stop that no counter names.
    pub unnamed: u64,
    /// The hottest rows of the sample older than the window.
    pub hot: u64,
    /// Those of them that were served.
    pub hot_served: u64,
    /// Rows that were first asked of the database without a look into the cache, just after the
    /// start, and asked again.
    pub passed_on: u64,
    /// What had reached flash and was not served.
    pub lost: Vec<Lost>,
    /// What was too old to be missing, accounted for or not.
    pub old: Vec<TooOld>,
}

impl Kept {
    /// Adds another round.
    pub fn add(&mut self, other: &Kept) {
        self.sampled += other.sampled;
        self.on_flash += other.on_flash;
        self.on_flash_served += other.on_flash_served;
        self.new_missing += other.new_missing;
        self.missing_age_ms = self.missing_age_ms.max(other.missing_age_ms);
        self.missing_bytes = self.missing_bytes.max(other.missing_bytes);
        self.too_old += other.too_old;
        self.accounted += other.accounted;
        self.unnamed += other.unnamed;
        self.hot += other.hot;
        self.hot_served += other.hot_served;
        self.passed_on += other.passed_on;
        self.lost.extend(&other.lost);
        self.old.extend(&other.old);
    }

    /// Share of what had reached flash that was served; 1 where there was nothing.
    pub fn share(&self) -> f64 {
        if self.on_flash == 0 { 1.0 } else { self.on_flash_served as f64 / self.on_flash as f64 }
    }

    /// Whether at least 99.9 % of what had reached flash was served. One row may always be missing:
    /// samples are small.
    pub fn flash_holds(&self) -> bool {
        self.on_flash - self.on_flash_served <= allowed(self.on_flash)
    }

    /// Whether nothing but new objects, and what was accounted for, was missing, the hottest
    /// included. The cache promises that where it has room.
    pub fn window_holds(&self) -> bool {
        let (too_old, hot) = (self.too_old - self.accounted, self.hot - self.hot_served);
        self.unnamed == 0
            && too_old <= allowed(self.sampled)
            && hot <= allowed(self.hot) + self.accounted
    }

    /// Compares what a clean stop has lost with what the server says that it lost.
    pub(super) fn account_for(&mut self, losses: &Losses) {
        self.unnamed = losses.unnamed(self.too_old);
        self.accounted = self.too_old - self.unnamed;
    }

    /// A crash may cost, of whatever age, the objects that the server says DRAM alone had.
    pub(super) fn account_for_crash(&mut self, in_dram_alone: u64) {
        self.accounted = self.too_old.min(in_dram_alone);
    }

    /// Segments were reclaimed between the last look at the counters and the end: nobody could ask
    /// how many objects these took from flash. DRAM alone may have had any.
    pub(super) fn account_for_reclaims(&mut self) {
        self.accounted = self.too_old;
    }
}

/// How many of so many may be missing: one in a thousand, and one always.
pub(super) fn allowed(of: u64) -> u64 {
    (of / 1_000).max(1)
}

impl Sample {
    /// Draws the rows of a sample, the hottest first. Rows that a delete of another partition may
    /// take away are not among them.
    pub(super) fn draw(rows: Rows, size: u64, rng: &mut Rng) -> Vec<u64> {
        let sharing = rows.sharing_an_epoch();
        let is_alone = |key: &u64| !sharing.contains(&(key / rows::PARTITION));
        let still = (0..rows.keys).filter(|key| Rows::is_still(*key));
        let hot = still.filter(is_alone).take(HOT as usize);
        let mut keys: Vec<u64> = hot.collect();
        let mut seen: HashSet<u64> = keys.iter().copied().collect();
        while (keys.len() as u64) < size.min(rows.keys / 2) {
            let key = rng.below(rows.keys);
            if is_alone(&key) && seen.insert(key) {
                keys.push(key);
            }
        }
        keys
    }

    /// Reads `keys` and keeps those that the cache served.
    pub(super) fn read(load: &Load, db_reads: &DatabaseReads, keys: &[u64]) -> Sample {
        let found = Mutex::new(HashMap::new());
        let shared = load.shared();
        shared.forget_doubts();
        load.for_all(keys, |client, key| {
            let (writes, before) = (shared.begun(key), db_reads.row(key));
            // The first read may join a fill that the database was asked for before, and that a
            // write keeps out of the cache. Only the second shows that the row is there.
            client.read(key)?;
            let value = client.read(key)?;
            let asked = db_reads.row(key);
            let lasting = value.filter(|number| !rows::expires(*number));
            let served = asked.reads == before.reads && asked.number == value;
            if let Some(number) = lasting.filter(|_| served) {
                let sampled = Sampled { key, number, writes, asked, hot: false };
                found.lock().expect("no client panics").insert(key, sampled);
            }
            Ok(())
        });
        let mut rows: Vec<Sampled> =
            found.into_inner().expect("no client panics").into_values().collect();
        let hot: HashSet<u64> = keys.iter().take(HOT as usize).copied().collect();
        rows.iter_mut().for_each(|row| row.hot = hot.contains(&row.key));
        let (ended, window) = (Duration::ZERO, WINDOW);
        Sample { rows, on_flash: scan::Found::new(), ended, window, fills: Vec::new(), bytes: 0 }
    }

    /// The life has ended at `ended`, clean or not: what of the sample is in the file `flash`?
    pub(super) fn search(
        &mut self,
        flash: &Path,
        rows: Rows,
        db_reads: &DatabaseReads,
        segments: &mut Segments,
        (ended, clean): (Duration, bool),
    ) -> io::Result<()> {
        self.ended = ended;
        self.window = if clean { Duration::ZERO } else { WINDOW };
        (self.fills, self.bytes) = db_reads.fills();
        // What was read to be kept more than once may stand there from the first time, and have
        // been dropped since.
        let once = self.rows.iter().filter(|row| row.asked.times == 1);
        let wanted = once.map(|row| (row.key, row.number)).collect();
        self.on_flash = scan::find(flash, &wanted, rows.largest)?;
        self.forget_given_up(segments)
    }

    /// Flash that was given up holds values that nobody promises.
    fn forget_given_up(&mut self, segments: &mut Segments) -> io::Result<()> {
        segments.update()?;
        let since: HashMap<u64, Duration> =
            self.rows.iter().map(|row| (row.key, row.asked.kept_unix)).collect();
        self.on_flash.retain(|(key, _), places| {
            places.retain(|at| !segments.is_given_up(*at, since[key]));
            !places.is_empty()
        });
        Ok(())
    }

    /// Reads the sample again in the next life, beside the load.
    pub(super) fn judge(
        &mut self,
        load: &Load,
        db_reads: &DatabaseReads,
        segments: &mut Segments,
    ) -> io::Result<Kept> {
        let order: HashMap<u64, &Sampled> = self.rows.iter().map(|row| (row.key, row)).collect();
        // What must be there first: every miss brings something new into the cache, for which
        // something else may have to go.
        let (first, then): (Vec<_>, Vec<_>) =
            self.rows.iter().partition(|row| self.on_flash.contains_key(&(row.key, row.number)));
        let keys: Vec<u64> = first.iter().chain(&then).map(|row| row.key).collect();
        let shared = load.shared();
        let answers = Mutex::new(Vec::new());
        load.for_all(&keys, |client, key| {
            let row = order[&key];
            if shared.begun(key) != row.writes || shared.is_doubted(key) {
                return Ok(());
            }
            let mut tries = 0;
            let (value, served) = loop {
                let before = db_reads.row(key).reads;
                let value = client.read(key)?;
                let asked = db_reads.row(key);
                let filled = asked.fills != self.fills[key as usize];
                // Read from the database without a cache lookup: the lease is not ours again
                // yet, or nobody has confirmed the statement.
                let passed_on = !filled && asked.reads != before;
                tries += u32::from(passed_on);
                if !passed_on || tries == TRIES {
                    break (value, !filled && !passed_on);
                }
                thread::sleep(PAUSE);
            };
            if shared.begun(key) == row.writes && value == Some(row.number) {
                answers.lock().expect("no client panics").push((key, served, tries));
            }
            Ok(())
        });
        let mut kept = Kept::default();
        let had_reached: HashSet<_> = self.on_flash.keys().copied().collect();
        // The load may have driven something out before it was looked at.
        self.forget_given_up(segments)?;
        let order: HashMap<u64, &Sampled> = self.rows.iter().map(|row| (row.key, row)).collect();
        for (key, served, tries) in answers.into_inner().expect("no client panics") {
            let row = order[&key];
            kept.passed_on += u64::from(tries > 0);
            let name = (row.key, row.number);
            let driven_out =
                !served && had_reached.contains(&name) && !self.on_flash.contains_key(&name);
            if !driven_out {
                self.note(row, served, &mut kept);
            }
        }
        Ok(kept)
    }

    fn note(&self, row: &Sampled, served: bool, kept: &mut Kept) {
        let age = self.ended.saturating_sub(row.asked.kept_at);
        let after = self.bytes - row.asked.bytes;
        kept.sampled += 1;
        if let Some(at) = self.on_flash.get(&(row.key, row.number)) {
            kept.on_flash += 1;
            kept.on_flash_served += u64::from(served);
            if !served {
                let (key, age_ms, at) = (row.key, age.as_millis() as u64, at[0]);
                kept.lost.push(Lost { key, age_ms, at });
            }
        } else if !served {
            kept.new_missing += 1;
            kept.missing_age_ms = kept.missing_age_ms.max(age.as_millis() as u64);
            kept.missing_bytes = kept.missing_bytes.max(after);
            if age > self.window {
                kept.too_old += 1;
                let (key, age_ms, fills) = (row.key, age.as_millis() as u64, row.asked.times);
                kept.old.push(TooOld { key, age_ms, fills });
            }
        }
        if row.hot && age > self.window {
            kept.hot += 1;
            kept.hot_served += u64::from(served);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::killtest::account::Account;

    #[test]
    fn a_clean_stop_may_lose_what_its_counters_name_and_nothing_else() {
        let log = "x ended dropped=queue_full:2 refused=nothing\n";
        let losses = Account::read_end(log).unwrap().losses_since(&Account::default());
        let kept = |too_old| {
            let mut kept = Kept { sampled: 400, too_old, new_missing: too_old, ..Kept::default() };
            kept.account_for(&losses);
            kept
        };
        assert!(kept(2).window_holds(), "{:?}", kept(2));
        assert!(!kept(3).window_holds() && kept(3).unnamed == 1, "{:?}", kept(3));
        let nothing = Losses::default();
        let mut one = Kept { sampled: 400, too_old: 1, ..Kept::default() };
        one.account_for(&nothing);
        assert!(!one.window_holds(), "no counter names it");
        let mut crashed = Kept { sampled: 400, too_old: 1, ..Kept::default() };
        assert!(crashed.window_holds(), "samples of a crash are small");
        crashed.too_old = 3;
        assert!(!crashed.window_holds());
        crashed.account_for_crash(2);
        assert!(crashed.window_holds(), "flash refused two copies: {crashed:?}");
        let mut all = kept(2);
        all.add(&crashed);
        assert!(all.window_holds(), "{all:?}");
    }
}
