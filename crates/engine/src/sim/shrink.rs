//! Shortens a run that fails. It leaves out steps as long as the run fails the same way, then
//! simplifies the rest. The algorithm is that of Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002.

use super::attempt::try_run;
use super::plan::{Plan, Race, What};

/// Runs at most.
const RUNS: u32 = 4_000;

/// The shortest run found that fails like `plan` does, and what it fails with.
pub fn shrink(plan: &Plan, message: &str) -> (Plan, String) {
    let mut shrinker =
        Shrinker { best: plan.clone(), message: message.to_owned(), kind: kind(message), runs: 0 };
    shrinker.leave_out_steps();
    shrinker.simplify();
    shrinker.leave_out_steps();
    (shrinker.best, shrinker.message)
}

/// What a failure is recognised by: where it was found, and its words without the numbers in them.
fn kind(message: &str) -> String {
    let line: String = message.chars().take_while(|c| *c != '{').collect();
    line.chars().filter(|c| c.is_alphabetic()).take(120).collect()
}

struct Shrinker {
    best: Plan,
    message: String,
    kind: String,
    runs: u32,
}

impl Shrinker {
    /// Takes `plan` if it fails like the first one.
    fn take_if_fails(&mut self, plan: Plan) -> bool {
        if self.runs >= RUNS {
            return false;
        }
        self.runs += 1;
        match try_run(&plan) {
            Err(message) if kind(&message) == self.kind => {
                (self.best, self.message) = (plan, message);
                true
            }
            _ => false,
        }
    }

    fn leave_out_steps(&mut self) {
        let mut size = self.best.steps.len().next_power_of_two() / 2;
        while size > 0 {
            let mut from = 0;
            while from < self.best.steps.len() {
                let mut shorter = self.best.clone();
                shorter.steps.drain(from..(from + size).min(self.best.steps.len()));
                if !self.take_if_fails(shorter) {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    fn simplify(&mut self) {
        for n in 0..self.best.steps.len() {
            for what in simpler(self.best.steps[n].what) {
                let mut plan = self.best.clone();
                plan.steps[n].what = what;
                self.take_if_fails(plan);
            }
        }
    }
}

/// Simpler forms of a step.
fn simpler(what: What) -> Vec<What> {
    match what {
        What::Put { key, len, .. } => {
            let expiry = super::plan::Expiry::Never;
            vec![What::Put { key, len, expiry, group: 0, slot: 0 }]
        }
        What::Read { key, .. } => vec![What::Read { key, race: Race::None }],
        What::PutIf { key, len, expect, .. } => {
            vec![What::PutIf { key, len, expect, race: Race::None }]
        }
        What::Idle { turns } => vec![What::Turn { ms: 0 }, What::Idle { turns: turns / 2 }],
        What::Turn { ms } if ms > 0 => vec![What::Turn { ms: 0 }],
        What::Crash { machine, check, .. } => {
            vec![What::Crash { machine, check, again: None, exchange: None }]
        }
        What::Close { machine, check, .. } => vec![What::Close { removes: 0, machine, check }],
        _ => Vec::new(),
    }
}
