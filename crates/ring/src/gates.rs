//! Gates: which partitions may not be filled, and which writes a fill has missed.
//!
//! A write closes the gates of its scopes. They open when it ends, or stay closed for a hold. One
//! counter numbers all closings. A fill notes the counter when it begins. It may install its row
//! only if the gate is open, and its last closing has no higher number.
//!
//! After an outage of the database there may be hundreds of thousands of holds, for hours. So time
//! passes without a look at each: [`Gates::tidy`] looks at those that have opened since, and at
//! those whose holds end. A shard's gates lie side by side.

use std::collections::{BTreeMap, VecDeque};
use std::mem::{replace, take};

use crate::config::Time;
use crate::message::Scope;

#[derive(Debug, Default, Clone)]
pub struct Gates {
    closings: u64,
    gates: BTreeMap<Scope, Gate>,
    /// The highest number of a gate that was forgotten.
    forgotten: u64,
    /// Gates without a write, to be looked at next.
    opened: Vec<Scope>,
    /// Gates with a hold, and when to look at each. Nearly in that order, since most holds are of
    /// one length: a shorter one is forgotten somewhat late.
    held: VecDeque<(Time, Scope)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Gate {
    /// Writes under way.
    writes: u32,
    /// The number of the last closing.
    closed: u64,
    held: Time,
    /// It is in one of the two lists.
    listed: bool,
}

impl Gate {
    /// Notes that it is to be looked at, unless that is noted.
    fn list(&mut self, scope: Scope, opened: &mut Vec<Scope>) {
        if !replace(&mut self.listed, true) {
            opened.push(scope);
        }
    }
}

impl Gates {
    /// A write begins.
    pub fn close(&mut self, scope: Scope) {
        self.closed(scope).writes += 1;
    }

    /// A write has ended.
    pub fn open(&mut self, scope: Scope) {
        if let Some(gate) = self.gates.get_mut(&scope) {
            gate.writes = gate.writes.saturating_sub(1);
            gate.list(scope, &mut self.opened);
        }
    }

    /// No fill that has begun before now may install what this scope covers.
    pub fn overtake(&mut self, scope: Scope) {
        self.closed(scope);
    }

    /// No fill of this scope before `until`.
    pub fn hold(&mut self, scope: Scope, until: Time) {
        let gate = self.closed(scope);
        gate.held = gate.held.max(until);
    }

    /// The gate of that scope, with the number of a new closing. It is looked at next.
    fn closed(&mut self, scope: Scope) -> &mut Gate {
        self.closings += 1;
        let gate = self.gates.entry(scope).or_default();
        gate.closed = self.closings;
        gate.list(scope, &mut self.opened);
        gate
    }

    /// What a fill that begins now remembers.
    pub fn stamp(&self) -> u64 {
        self.closings
    }

    /// Whether a fill may begin.
    pub fn is_open(&self, token: i64, now: Time) -> bool {
        [Scope::Token(token), Scope::All].into_iter().all(|scope| self.is_open_for(scope, now))
    }

    /// Whether the gate of this scope alone is open.
    pub fn is_open_for(&self, scope: Scope, now: Time) -> bool {
        self.gates.get(&scope).is_none_or(|gate| gate.writes == 0 && gate.held <= now)
    }

    /// Whether no write has begun since the fill with this stamp.
    pub fn is_untouched(&self, token: i64, stamp: u64) -> bool {
        self.forgotten <= stamp
            && [Scope::Token(token), Scope::All]
                .iter()
                .filter_map(|scope| self.gates.get(scope))
                .all(|gate| gate.closed <= stamp)
    }

    /// What is not to be filled of these tokens, first and last, and until when.
    pub fn held(&self, (first, last): (i64, i64)) -> impl Iterator<Item = (Scope, Time)> {
        let tokens = self.gates.range(Scope::Token(first)..=Scope::Token(last));
        let all = self.gates.get_key_value(&Scope::All);
        tokens.chain(all).map(|(scope, gate)| (*scope, gate.held))
    }

    /// How many gates are known: of writes under way, and of holds.
    pub fn count(&self) -> usize {
        self.gates.len()
    }

    /// Forgets gates that are open.
    pub fn tidy(&mut self, now: Time) {
        for scope in take(&mut self.opened) {
            self.look_at(scope, now);
        }
        while let Some((_, scope)) = self.held.pop_front_if(|(until, _)| *until <= now) {
            self.look_at(scope, now);
        }
    }

    /// A listed gate: it is forgotten if it is open. If a write is under way, its end lists it.
    fn look_at(&mut self, scope: Scope, now: Time) {
        let Some(gate) = self.gates.get_mut(&scope) else { return };
        debug_assert!(gate.listed, "only listed gates are looked at");
        if gate.held > now {
            self.held.push_back((gate.held, scope));
        } else if gate.writes > 0 {
            gate.listed = false;
        } else {
            self.forgotten = gate.closed.max(self.forgotten);
            self.gates.remove(&scope);
        }
    }

    /// Ends all holds of single tokens, which then are the caller's to remember. Gates of writes
    /// under way stay closed, and so does that of everything.
    pub fn end_holds(&mut self, now: Time) -> Vec<(i64, Time)> {
        let mut ended = Vec::new();
        for (scope, gate) in &mut self.gates {
            if let Scope::Token(token) = scope
                && gate.held > now
            {
                ended.push((*token, take(&mut gate.held)));
            }
        }
        self.opened.extend(self.held.drain(..).map(|(_, scope)| scope));
        self.tidy(now);
        ended
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

    /// There may be hundreds of thousands, and time passes twenty times a second.
    #[test]
    fn holds_are_listed_once_and_forgotten_when_they_end() {
        let mut gates = Gates::default();
        let listed = |gates: &Gates| gates.opened.len() + gates.held.len();
        for round in 0..100 {
            for token in 0..10 {
                gates.hold(Scope::Token(token), 1_000 + round);
            }
            gates.tidy(round);
            assert_eq!((gates.count(), listed(&gates)), (10, 10));
        }
        // A write of one is under way when its hold ends.
        gates.close(Scope::Token(3));
        gates.tidy(2_000);
        assert_eq!((gates.count(), listed(&gates)), (1, 0));
        gates.open(Scope::Token(3));
        gates.tidy(2_000);
        assert_eq!((gates.count(), listed(&gates)), (0, 0));
    }

    #[test]
    fn the_holds_of_a_shard_are_those_of_its_tokens_and_of_everything() {
        let mut gates = Gates::default();
        for token in [i64::MIN, -1, 0, 9, 10, i64::MAX] {
            gates.hold(Scope::Token(token), 5);
        }
        let held = |gates: &Gates| gates.held((0, 9)).map(|(scope, _)| scope).collect::<Vec<_>>();
        assert_eq!(held(&gates), [Scope::Token(0), Scope::Token(9)]);
        gates.hold(Scope::All, 7);
        assert_eq!(held(&gates).last(), Some(&Scope::All));
    }

    #[test]
    fn holds_that_end_all_at_once_keep_the_gates_of_writes_closed() {
        let mut gates = Gates::default();
        gates.hold(Scope::Token(1), 50);
        gates.hold(Scope::Token(2), 60);
        gates.close(Scope::Token(2));
        gates.hold(Scope::All, 70);
        gates.tidy(5);
        assert_eq!(gates.end_holds(10), [(1, 50), (2, 60)]);
        assert_eq!(gates.count(), 2, "what is written, and everything");
        gates.tidy(70);
        assert!(gates.is_open(1, 70) && !gates.is_open(2, 70));
        gates.open(Scope::Token(2));
        assert!(gates.is_open(2, 70));
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
