//! What came out: a line per round and a closing table.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::{
    account::{Losses, Window},
    schedule::{EndKind, Place},
    warmth::{Kept, allowed},
};
use crate::history::Violation;

/// Milliseconds: a counters round in which the disk took longer for a small write says nothing
/// about warmth.
const DISK_STOOD_MS: u64 = 2_000;

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
    /// What the server counted as dropped or refused between the sample and the end.
    pub losses: Losses,
    /// How long the oldest object that was not on flash had waited just before the end, in seconds.
    pub unsaved_age: u64,
    /// What server and disk did while objects that were set once had time to reach flash.
    pub window: Option<Window>,
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
            losses: Losses::default(),
            unsaved_age: 0,
            window: None,
            stalled: false,
            ready_ms: None,
            warm_up_ms: 0,
            complaints: Vec::new(),
        }
    }

    /// Whether the disk took so long for a small write that nothing is said about what reaches it
    /// in time.
    pub(super) fn disk_stood(&self) -> bool {
        self.window.is_some_and(|window| window.slowest_write_ms > DISK_STOOD_MS)
    }

    /// Objects set once that were lost, and whose copy the server does not say that it refused.
    fn once_unnamed(&self) -> u64 {
        self.once_lost.saturating_sub(self.window.map_or(0, |window| window.copies_refused))
    }

    /// Whether everything held.
    pub fn passed(&self) -> bool {
        self.stale + self.wrong == 0
            && self.complaints.is_empty()
            && self.once_unnamed() <= allowed(self.once)
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
                if kept.unnamed > 0 && self.place.has_room() {
                    let (lost, losses) = (kept.unnamed, &self.losses);
                    let _ = write!(line, ", {lost} LOST THAT NO COUNTER NAMES (counted: {losses})");
                } else if kept.accounted > 0 {
                    let counted = match self.kind {
                        EndKind::Clean => self.losses.to_string(),
                        _ => "flash refused their copies".to_owned(),
                    };
                    let _ = write!(line, ", {} lost and counted ({counted})", kept.accounted);
                } else if kept.too_old > 0 && self.place.has_room() {
                    let _ = write!(line, ", {} TOO OLD TO BE MISSING", kept.too_old);
                }
            }
            None if self.stalled => line.push_str(", warmth not judged: this process was stopped"),
            None => {}
        }
        if self.disk_stood() {
            line.push_str(", objects set once not judged: the disk took no writes");
        }
        if self.once > 0 {
            let _ = write!(
                line,
                ", {} of {} set once lost beside the counters",
                self.once_lost, self.once
            );
            if let Some(window) = self.window.filter(|window| window.copies_refused > 0) {
                let _ = write!(line, " ({} copies refused)", window.copies_refused);
            }
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
        (warmth_was_judged && total.kept.on_flash == 0).then_some(
            "NOTHING PROVED: nothing that the cache served before it was ended had reached flash",
        )
    }

    /// Whether every bound held in every round and in all, and there was something for them to
    /// hold.
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
            if round.once_unnamed() > allowed(round.once) {
                let (lost, of) = (round.once_lost, round.once);
                let mut text = format!(
                    "  {lost} of {of} objects older than ten seconds were lost beside counters that never rest"
                );
                let why = round.window.map(|window| window.explain()).filter(|why| !why.is_empty());
                why.iter().for_each(|why| text.extend(["; ", why]));
                lines.push(text);
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
                if kept.unnamed > 0 {
                    let (lost, losses) = (kept.unnamed, &round.losses);
                    lines.push(format!(
                        "  {lost} of them no counter names: the server counted {losses}"
                    ));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_beside_counters(window: Window) -> KillReport {
        let mut round = Round::new(1, Place::Roomy, EndKind::Counters);
        (round.once, round.once_lost, round.window, round.dram_hits) =
            (2_000, 2_000, Some(window), 1);
        KillReport { rounds: vec![round], refused_starts: 0 }
    }

    #[test]
    fn a_copy_that_the_server_says_it_refused_may_be_lost_and_no_other() {
        let refused = |copies_refused| {
            let window =
                Window { unsaved_age: 3, write_errors: 0, copies_refused, slowest_write_ms: 40 };
            lost_beside_counters(window).passed()
        };
        assert!(refused(2_000) && !refused(1_000));
    }

    #[test]
    fn what_does_not_reach_flash_in_time_fails_with_what_the_server_says_of_it() {
        let late =
            Window { unsaved_age: 11, write_errors: 0, copies_refused: 0, slowest_write_ms: 40 };
        let report = lost_beside_counters(late);
        assert!(!report.passed() && !report.rounds[0].disk_stood());
        let words = report.explain().join("\n");
        assert!(words.contains("2000 of 2000") && words.contains("waited 11 s"), "{words}");
        let silent = lost_beside_counters(Window { unsaved_age: 3, ..late }).explain().join("\n");
        assert!(silent.contains("2000 of 2000") && !silent.contains("waited"), "{silent}");
    }

    #[test]
    fn a_disk_that_takes_no_writes_is_not_the_servers_fault() {
        let window = |slowest_write_ms| Window {
            unsaved_age: 11,
            write_errors: 0,
            copies_refused: 0,
            slowest_write_ms,
        };
        assert!(lost_beside_counters(window(2_001)).rounds[0].disk_stood());
        assert!(!lost_beside_counters(window(2_000)).rounds[0].disk_stood());
    }

    #[test]
    fn a_loss_that_no_counter_names_is_said_in_the_rounds_line() {
        let mut round = Round::new(1, Place::Roomy, EndKind::Clean);
        round.kept = Some(Kept { sampled: 400, too_old: 2, unnamed: 2, ..Kept::default() });
        let line = round.line(1);
        assert!(
            line.contains("2 LOST THAT NO COUNTER NAMES") && line.ends_with("FAILED"),
            "{line}"
        );
        round.kept = Some(Kept { sampled: 400, too_old: 2, accounted: 2, ..Kept::default() });
        assert!(
            round.line(1).contains("2 lost and counted") && round.passed(),
            "{}",
            round.line(1)
        );
    }
}
