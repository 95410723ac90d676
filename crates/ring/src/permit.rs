//! The permits that this member has granted: the intents of writes on their way.
//!
//! A permit has the number that the asking process gave it. So a BEGIN that comes twice closes its
//! gates once. An END that comes twice, or before its BEGIN, opens no gate of another write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::Time;
use crate::gates::Gates;
use crate::identity::Identity;
use crate::message::Scope;

/// A write: the process that sends it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PermitKey {
    /// The process.
    pub process: Identity,
    /// Counted by it.
    pub number: u64,
}

#[derive(Debug, Default, Clone)]
pub struct Permits {
    open: BTreeMap<PermitKey, Permit>,
    /// Those that have ended a moment ago.
    ended: BTreeSet<PermitKey>,
    /// The same in the order in which they are forgotten, each with its time.
    forgotten: VecDeque<(Time, PermitKey)>,
}

#[derive(Debug, Clone)]
struct Permit {
    scopes: Vec<Scope>,
    /// When a write that was never ended cannot be applied any more.
    until: Time,
}

impl Permits {
    /// Notes the intent and closes the gates that this write has not closed yet. False when it has
    /// ended already.
    pub fn begin(
        &mut self,
        key: PermitKey,
        scopes: &[Scope],
        until: Time,
        gates: &mut Gates,
    ) -> bool {
        if self.ended.contains(&key) {
            coverage_mark!(BeginAfterEnd);
            return false;
        }
        let permit = self.open.entry(key).or_insert_with(|| Permit { scopes: Vec::new(), until });
        permit.until = until.max(permit.until);
        for scope in scopes {
            if permit.scopes.contains(scope) {
                coverage_mark!(BeginAgain);
                continue;
            }
            permit.scopes.push(*scope);
            gates.close(*scope);
        }
        true
    }

    /// Ends a write; false where it was not open. Its scopes are held until `hold`, if any: it may
    /// still be applied, or be missed. Until `remember` a BEGIN that comes late closes nothing.
    /// Later it closes gates that nobody opens before its intent has run out.
    pub fn end(
        &mut self,
        key: PermitKey,
        remember: Time,
        hold: Option<Time>,
        gates: &mut Gates,
    ) -> bool {
        if self.ended.insert(key) {
            self.forgotten.push_back((remember, key));
        }
        let Some(permit) = self.open.remove(&key) else { return false };
        for scope in permit.scopes {
            if let Some(hold) = hold {
                gates.hold(scope, hold);
            }
            gates.open(scope);
        }
        true
    }

    /// What an open write touches.
    pub fn scopes(&self, key: PermitKey) -> &[Scope] {
        self.open.get(&key).map_or(&[], |permit| &permit.scopes)
    }

    /// Forgets writes that nobody ended and that cannot be applied any more.
    pub fn expire(&mut self, now: Time, gates: &mut Gates) -> Vec<PermitKey> {
        while let Some((_, key)) = self.forgotten.pop_front_if(|(until, _)| *until <= now) {
            self.ended.remove(&key);
        }
        let expired = self.open.extract_if(.., |_, permit| permit.until <= now);
        expired
            .map(|(key, permit)| {
                coverage_mark!(PermitExpired);
                permit.scopes.iter().for_each(|scope| gates.open(*scope));
                key
            })
            .collect()
    }

    /// Whether a write is under way.
    #[cfg(test)]
    pub fn is_open(&self, key: PermitKey) -> bool {
        self.open.contains_key(&key)
    }

    /// What is under way, and until when it may be applied.
    pub fn open(&self) -> impl Iterator<Item = (Scope, Time)> {
        self.open.values().flat_map(|p| p.scopes.iter().map(|scope| (*scope, p.until)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Incarnation, MemberId};

    #[test]
    fn a_question_that_comes_after_its_end_closes_nothing() {
        let process = Identity { id: MemberId(1), incarnation: Incarnation(2) };
        let (key, scopes) = (PermitKey { process, number: 3 }, [Scope::Token(4)]);
        let (mut gates, mut permits) = (Gates::default(), Permits::default());
        assert!(permits.begin(key, &scopes, 100, &mut gates));
        assert!(permits.end(key, 100, None, &mut gates));
        assert!(!permits.begin(key, &scopes, 100, &mut gates));
        assert!(gates.is_open(4, 1));
    }

    /// An owner ends thousands of writes a second, and looks through all that it remembers with
    /// each tick.
    #[test]
    fn what_has_ended_is_remembered_for_a_moment_only() {
        let process = Identity { id: MemberId(1), incarnation: Incarnation(2) };
        let (mut gates, mut permits) = (Gates::default(), Permits::default());
        for number in 0..1_000 {
            let (key, now) = (PermitKey { process, number }, number);
            permits.begin(key, &[Scope::Token(4)], 1_000_000, &mut gates);
            permits.end(key, now + 10, None, &mut gates);
            permits.end(key, now + 10, None, &mut gates);
            permits.expire(now, &mut gates);
            assert!(permits.ended.len() <= 10 && permits.forgotten.len() <= 10);
        }
    }
}
