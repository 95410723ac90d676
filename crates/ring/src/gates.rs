//! Gates: which partitions may not be filled, and which writes a fill has missed.
//!
//! A write closes the gates of its scopes. They open when it ends, or stay closed for a hold. One
//! counter numbers all closings. A fill notes the counter when it begins. It may install its row
//! only if the gate is open, and its last closing has no higher number.

use std::collections::BTreeMap;

use crate::config::Time;
use crate::message::Scope;

#[derive(Debug, Default, Clone)]
pub struct Gates {
    closings: u64,
    gates: BTreeMap<Scope, Gate>,
    /// The highest number of a gate that was forgotten.
    forgotten: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Gate {
    /// Writes under way.
    writes: u32,
    /// The number of the last closing.
    closed: u64,
    held: Time,
}

impl Gates {
    /// A write begins.
    pub fn close(&mut self, scope: Scope) {
        self.overtake(scope);
        self.gates.entry(scope).or_default().writes += 1;
    }

    /// A write has ended.
    pub fn open(&mut self, scope: Scope) {
        if let Some(gate) = self.gates.get_mut(&scope) {
            gate.writes = gate.writes.saturating_sub(1);
        }
    }

    /// No fill that has begun before now may install what this scope covers.
    pub fn overtake(&mut self, scope: Scope) {
        self.closings += 1;
        self.gates.entry(scope).or_default().closed = self.closings;
    }

    /// No fill of this scope before `until`.
    pub fn hold(&mut self, scope: Scope, until: Time) {
        self.overtake(scope);
        let gate = self.gates.entry(scope).or_default();
        gate.held = gate.held.max(until);
    }

    /// What a fill that begins now remembers.
    pub fn stamp(&self) -> u64 {
        self.closings
    }

    /// Whether a fill may begin.
    pub fn is_open(&self, token: i64, now: Time) -> bool {
        [Scope::Token(token), Scope::All]
            .iter()
            .filter_map(|scope| self.gates.get(scope))
            .all(|gate| gate.writes == 0 && gate.held <= now)
    }

    /// Whether no write has begun since the fill with this stamp.
    pub fn is_untouched(&self, token: i64, stamp: u64) -> bool {
        self.forgotten <= stamp
            && [Scope::Token(token), Scope::All]
                .iter()
                .filter_map(|scope| self.gates.get(scope))
                .all(|gate| gate.closed <= stamp)
    }

    /// What is not to be filled, and until when.
    pub fn held(&self) -> impl Iterator<Item = (Scope, Time)> {
        self.gates.iter().map(|(scope, gate)| (*scope, gate.held))
    }

    /// Forgets gates that are open.
    pub fn tidy(&mut self, now: Time) {
        let forgotten = &mut self.forgotten;
        self.gates.retain(|_, gate| {
            let keep = gate.writes > 0 || gate.held > now;
            if !keep {
                *forgotten = gate.closed.max(*forgotten);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_that_a_write_overtook_is_not_installed_even_when_the_gate_is_forgotten() {
        let mut gates = Gates::default();
        let before = gates.stamp();
        gates.close(Scope::Token(5));
        assert!(!gates.is_open(5, 0) && gates.is_open(6, 0));
        gates.open(Scope::Token(5));
        assert!(gates.is_open(5, 0) && !gates.is_untouched(5, before));
        gates.tidy(1);
        assert!(!gates.is_untouched(5, before) && gates.is_untouched(5, gates.stamp()));
    }

    #[test]
    fn gates_count_and_the_gate_of_everything_covers_each() {
        let mut gates = Gates::default();
        gates.close(Scope::All);
        gates.close(Scope::All);
        gates.open(Scope::All);
        assert!(!gates.is_open(1, 0));
        gates.open(Scope::All);
        gates.hold(Scope::Token(1), 10);
        assert!(!gates.is_open(1, 9) && gates.is_open(1, 10) && gates.is_open(2, 0));
    }
}
