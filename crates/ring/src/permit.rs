//! The permits that this member has granted: the intents of writes on their way.
//!
//! A permit is known by the process that asked and its number, so that a question that comes twice
//! closes its gates once, and an END that comes twice, or before its BEGIN, opens nothing of
//! another's.

use std::collections::BTreeMap;

use crate::config::Time;
use crate::gates::Gates;
use crate::identity::Identity;
use crate::message::{Outcome, Scope};

/// A write: the process that sends it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PermitKey {
    pub process: Identity,
    pub number: u64,
}

#[derive(Debug, Default, Clone)]
pub struct Permits {
    open: BTreeMap<PermitKey, Permit>,
    /// Those that have ended, and until when that must be remembered.
    ended: BTreeMap<PermitKey, Time>,
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
        if self.ended.contains_key(&key) {
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

    /// Ends a write. A scope whose write may still be applied, or be missed, is held until then.
    pub fn end(
        &mut self,
        key: PermitKey,
        outcome: Outcome,
        remember: Time,
        hold: Time,
        gates: &mut Gates,
    ) {
        self.ended.insert(key, remember);
        let Some(permit) = self.open.remove(&key) else { return };
        for scope in permit.scopes {
            if outcome != Outcome::Settled {
                gates.hold(scope, hold);
            }
            gates.open(scope);
        }
    }

    /// Lets go of writes that cannot be applied any more though nobody ended them.
    pub fn expire(&mut self, now: Time, gates: &mut Gates) {
        self.ended.retain(|_, until| *until > now);
        self.open.retain(|_, permit| {
            if permit.until > now {
                return true;
            }
            coverage_mark!(PermitExpired);
            permit.scopes.iter().for_each(|scope| gates.open(*scope));
            false
        });
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
        permits.end(key, Outcome::Settled, 100, 100, &mut gates);
        assert!(!permits.begin(key, &scopes, 100, &mut gates));
        assert!(gates.is_open(4, 1));
    }
}
