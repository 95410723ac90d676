//! What came out: a line per round and a closing table.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::{EndKind, Kept, Place, warmth::allowed};
use crate::history::Violation;

/// What came out of a round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// From 1.
    pub number: u32,
    /// Where.
    pub place: Place,
    /// What.
    pub kind: EndKind,
    /// Details for people.
    pub note: Vec<String>,
    /// Operations of the load answered.
    pub operations: u64,
    /// Reads judged.
    pub reads: u64,
    /// Writes, ends of times to live included.
    pub writes: u64,
    /// Reads that returned an older value than they must.
    pub stale: u64,
    /// Reads that returned what nobody wrote.
    pub wrong: u64,
    /// What is wrong with them.
    pub violations: Vec<Violation>,
    /// Reads answered from DRAM.
    pub dram_hits: u64,
    /// Reads answered from flash.
    pub flash_hits: u64,
    /// Reads answered by the database.
    pub misses: u64,
    /// Reads, writes and flushes of the device that failed.
    pub device_errors: u64,
    /// What the restart kept; `None` where that cannot be told.
    pub kept: Option<Kept>,
    /// Objects that were set once, more than ten seconds before the end.
    pub once: u64,
    /// Those of them that were lost.
    pub once_lost: u64,
    /// This process was not let run for seconds, so nothing is said about warmth.
    pub stalled: bool,
    /// Milliseconds from the start to the first answer.
    pub ready_ms: Option<u64>,
    /// Milliseconds until reads were answered after that.
    pub warm_up_ms: u64,
    /// Answers that a server that is up must not give.
    pub complaints: Vec<String>,
}

impl Round {
    pub(super) fn new(number: u32, place: Place, kind: EndKind) -> Round {
        Round {
            number,
            place,
            kind,
            note: Vec::new(),
            operations: 0,
            reads: 0,
            writes: 0,
            stale: 0,
            wrong: 0,
            violations: Vec::new(),
            dram_hits: 0,
            flash_hits: 0,
            misses: 0,
            device_errors: 0,
            kept: None,
            once: 0,
            once_lost: 0,
            stalled: false,
            ready_ms: None,
            warm_up_ms: 0,
            complaints: Vec::new(),
        }
    }

    /// Whether everything held.
    pub fn passed(&self) -> bool {
        self.stale + self.wrong == 0
            && self.complaints.is_empty()
            && self.once_lost <= allowed(self.once)
            && self.kept.as_ref().is_none_or(|kept| self.holds(kept))
    }

    fn holds(&self, kept: &Kept) -> bool {
        kept.flash_holds() && (!self.place.has_room() || kept.window_holds())
    }

    /// The round in a line.
    pub fn line(&self, rounds: u32) -> String {
        let mut line = format!(
            "{:>4}/{rounds} {:<6} {:<10} {:>6} reads, {} stale, {} wrong",
            self.number,
            self.place.label(),
            self.kind.label(),
            self.reads,
            self.stale,
            self.wrong
        );
        if let Some(ready) = self.ready_ms {
            let _ = write!(line, ", ready in {ready} ms");
        }
        match &self.kept {
            Some(kept) => {
                let _ = write!(
                    line,
                    ", {}/{} on flash served, hottest {}/{}, new missing {} (oldest {:.1} s, {:.1} MiB)",
                    kept.on_flash_served,
                    kept.on_flash,
                    kept.hot_served,
                    kept.hot,
                    kept.new_missing,
                    kept.missing_age_ms as f64 / 1e3,
                    mebibytes(kept.missing_bytes)
                );
                if kept.too_old > 0 && self.place.has_room() {
                    let _ = write!(line, ", {} TOO OLD TO BE MISSING", kept.too_old);
                }
            }
            None if self.stalled => line.push_str(", warmth not judged: this process was stopped"),
            None => {}
        }
        if self.once > 0 {
            let _ = write!(line, ", {} of {} set once lost beside the counters", self.once_lost, self.once);
        }
        if self.device_errors > 0 {
            let _ = write!(line, ", {} device errors", self.device_errors);
        }
        if !self.note.is_empty() {
            let _ = write!(line, "; {}", self.note.join(", "));
        }
        if !self.passed() {
            line.push_str("  FAILED");
        }
        line
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What came out in all.
#[derive(Debug, Default, Serialize)]
pub struct KillReport {
    /// Round by round.
    pub rounds: Vec<Round>,
    /// Starts that had to be repeated.
    pub refused_starts: u32,
}

/// Rounds taken together.
#[derive(Default)]
struct Sum {
    rounds: u64,
    reads: u64,
    writes: u64,
    dram_hits: u64,
    flash_hits: u64,
    stale: u64,
    wrong: u64,
    kept: Kept,
    ready: Vec<u64>,
}

impl KillReport {
    /// What the run shows nothing about.
    fn unproved(&self) -> Option<&'static str> {
        let total = self.sum(|_| true);
        if total.dram_hits + total.flash_hits == 0 {
            return Some("NOTHING PROVED: no read was answered from the cache");
        }
        let warmth_was_judged = self.rounds.iter().any(|round| round.kept.is_some());
        (warmth_was_judged && total.kept.on_flash == 0)
            .then_some("NOTHING PROVED: nothing that the cache served before it was ended had reached flash")
    }

    /// Whether every bound held in every round and in all, and there was something for them to hold.
    pub fn passed(&self) -> bool {
        let total = self.sum(|_| true);
        let with_room = self.sum(|round| round.place.has_room());
        let warm = total.kept.flash_holds() && with_room.kept.window_holds();
        self.rounds.iter().all(Round::passed) && warm && self.unproved().is_none()
    }

    /// What was wrong, the first few of each kind.
    pub fn explain(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for round in self.rounds.iter().filter(|round| !round.passed()) {
            lines.push(format!("ROUND {} ({}) FAILED", round.number, round.kind.label()));
            let mut shown = HashMap::new();
            let violations = round.violations.iter().filter(|v| {
                let count = shown.entry(v.fault).or_insert(0);
                *count += 1;
                *count <= 5
            });
            if round.once_lost > allowed(round.once) {
                let (lost, of) = (round.once_lost, round.once);
                lines.push(format!("  {lost} of {of} objects older than ten seconds were lost beside counters that never rest"));
            }
            lines.extend(violations.map(|v| {
                format!(
                    "  {:?}: {:?}\n    should have seen {:?}; all events: history.jsonl",
                    v.fault, v.read, v.missed
                )
            }));
            let complaints = round.complaints.iter().take(5);
            lines.extend(complaints.map(|c| format!("  one of {}: {c}", round.complaints.len())));
            if let Some(kept) = round.kept.as_ref().filter(|kept| !round.holds(kept)) {
                lines.push(format!("  too much was missing after the restart: {kept:?}"));
            }
        }
        lines.extend(self.unproved().map(str::to_owned));
        lines
    }

    fn sum(&self, of: impl Fn(&Round) -> bool) -> Sum {
        let mut sum = Sum::default();
        for round in self.rounds.iter().filter(|round| of(round)) {
            sum.rounds += 1;
            sum.reads += round.reads;
            sum.writes += round.writes;
            sum.dram_hits += round.dram_hits;
            sum.flash_hits += round.flash_hits;
            sum.stale += round.stale;
            sum.wrong += round.wrong;
            if let Some(kept) = &round.kept {
                sum.kept.add(kept);
            }
            sum.ready.extend(round.ready_ms);
        }
        sum.ready.sort_unstable();
        sum
    }

    /// The closing table.
    pub fn table(&self) -> String {
        let mut out = String::from(
            "kind        rounds      reads     writes  DRAM hits flash hits  stale  wrong  on flash: served of           %  \
             hottest         new missing, oldest, MiB   ready ms: median, p99\n",
        );
        for kind in EndKind::ALL {
            let sum = self.sum(|round| round.kind == kind);
            if sum.rounds > 0 {
                row(kind.label(), &sum, &mut out);
            }
        }
        row("all", &self.sum(|_| true), &mut out);
        out
    }
}

fn row(name: &str, sum: &Sum, out: &mut String) {
    let kept = &sum.kept;
    let rank = |q: f64| match sum.ready.len() {
        0 => "-".to_owned(),
        n => sum.ready[((n as f64 * q).ceil() as usize).clamp(1, n) - 1].to_string(),
    };
    let _ = writeln!(
        out,
        "{name:<11} {:>6} {:>10} {:>10} {:>10} {:>10} {:>6} {:>6}  {:>9} of {:>9} {:>8.3}  {:>6}/{:<6}  {:>8} {:>7.1} s {:>6.1}   {:>6} {:>6}",
        sum.rounds,
        sum.reads,
        sum.writes,
        sum.dram_hits,
        sum.flash_hits,
        sum.stale,
        sum.wrong,
        kept.on_flash_served,
        kept.on_flash,
        100.0 * kept.share(),
        kept.hot_served,
        kept.hot,
        kept.new_missing,
        kept.missing_age_ms as f64 / 1e3,
        mebibytes(kept.missing_bytes),
        rank(0.5),
        rank(0.99),
    );
}
