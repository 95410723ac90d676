//! The permits that this member has granted: the intents of writes on their way.
//!
//! A permit has the number that the asking process gave it. So a BEGIN that comes twice closes its
//! gates once. An END that comes twice, or before its BEGIN, opens no gate of another write.
//!
//! An END may be lost, with the link that it was sent on. So the writer of a permit that stays open
//! is asked for it: the row would be uncached until the permit runs out, hours later.
//!
//! A permit comes with a shard whose old owner has granted it. It keeps its number and ends as any
//! other: the old owner passes the END on.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::config::{Config, Time};
use crate::gates::Gates;
use crate::identity::PermitKey;
use crate::message::{Outcome, Scope};

/// The longest time between two questions for one END.
const MOST_PAUSE: Time = 60_000_000;

#[derive(Debug, Default, Clone)]
pub struct Permits {
    open: BTreeMap<PermitKey, Permit>,
    /// Those that have ended a moment ago, and how.
    ended: BTreeMap<PermitKey, Outcome>,
    /// The same in the order in which they are forgotten, each with its time.
    forgotten: VecDeque<(Time, PermitKey)>,
}

#[derive(Debug, Clone)]
struct Permit {
    scopes: Vec<Scope>,
    /// When a write that was never ended cannot be applied any more.
    until: Time,
    /// This member has granted it, and its rows know of it.
    granted: bool,
    /// The tokens that it has come with, each with its shard.
    brought: Vec<(u16, i64)>,
    /// When its writer was last asked how it has ended, or it was first seen; and how long after
    /// that it is asked next.
    asked: Option<(Time, Time)>,
}

impl Permit {
    fn new(until: Time) -> Self {
        Self { scopes: Vec::new(), until, granted: false, brought: Vec::new(), asked: None }
    }

    /// Closes the gate of a scope that it has not closed yet. Whether it had.
    fn close(&mut self, scope: Scope, gates: &mut Gates) -> bool {
        let again = self.scopes.contains(&scope);
        if !again {
            self.scopes.push(scope);
            gates.close(scope);
        }
        again
    }
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
        let permit = self.open.entry(key).or_insert_with(|| Permit::new(until));
        permit.until = until.max(permit.until);
        permit.granted = true;
        for scope in scopes {
            if permit.close(*scope, gates) {
                coverage_mark!(BeginAgain);
            }
        }
        true
    }

    /// A permit for a token has come with its shard, whose END may have been here before it. How
    /// the write has ended, if it has.
    pub fn bring(
        &mut self,
        key: PermitKey,
        (shard, token): (u16, i64),
        until: Time,
        gates: &mut Gates,
    ) -> Option<Outcome> {
        if let Some(outcome) = self.ended.get(&key) {
            coverage_mark!(EndedBeforeMove);
            return Some(*outcome);
        }
        coverage_mark!(PermitCame);
        let permit = self.open.entry(key).or_insert_with(|| Permit::new(until));
        permit.until = until.max(permit.until);
        if !permit.close(Scope::Token(token), gates) {
            permit.brought.push((shard, token));
        }
        None
    }

    /// Ends a write; false where this member has not granted it, or it has ended. Its scopes are
    /// held until `hold`, if any: it may still be applied, or be missed. Until `remember` a BEGIN
    /// that comes late closes nothing. Later it closes gates that nobody opens before its intent
    /// has run out.
    pub fn end(
        &mut self,
        (key, outcome): (PermitKey, Outcome),
        remember: Time,
        hold: Option<Time>,
        gates: &mut Gates,
    ) -> bool {
        if let Entry::Vacant(ended) = self.ended.entry(key) {
            ended.insert(outcome);
            self.forgotten.push_back((remember, key));
        }
        let Some(permit) = self.open.remove(&key) else { return false };
        for scope in permit.scopes {
            if let Some(hold) = hold {
                gates.hold(scope, hold);
            }
            gates.open(scope);
        }
        permit.granted
    }

    /// A shard has come again, and with it all that is known of its writes. What had come with it
    /// before is over.
    pub fn forget_brought(&mut self, shard: u16, gates: &mut Gates) {
        self.open.retain(|_, permit| {
            if permit.granted || permit.brought.is_empty() {
                return true;
            }
            for (_, token) in permit.brought.extract_if(.., |(of, _)| *of == shard) {
                coverage_mark!(PermitCameBefore);
                permit.scopes.retain(|scope| *scope != Scope::Token(token));
                gates.open(Scope::Token(token));
            }
            !permit.scopes.is_empty()
        });
    }

    /// The tokens with which an open permit has come, each with its shard.
    pub fn brought_with(&self, key: PermitKey) -> &[(u16, i64)] {
        self.open.get(&key).map_or(&[], |permit| &permit.brought)
    }

    /// The shards that have come with permits which are open, and until when those are.
    pub fn brought(&self) -> impl Iterator<Item = (u16, Time)> {
        self.open.values().flat_map(|p| p.brought.iter().map(|(shard, _)| (*shard, p.until)))
    }

    /// What an open write touches.
    pub fn scopes(&self, key: PermitKey) -> &[Scope] {
        self.open.get(&key).map_or(&[], |permit| &permit.scopes)
    }

    /// The writes whose writers are to be asked now how they have ended: each some time after it
    /// was first seen, and then ever more rarely.
    pub fn overdue(&mut self, now: Time, config: &Config) -> Vec<PermitKey> {
        let mut overdue = Vec::new();
        for (key, permit) in &mut self.open {
            let (asked, pause) = *permit.asked.get_or_insert((now, config.lease));
            if now >= asked + pause {
                coverage_mark!(EndAsked);
                permit.asked = Some((now, (2 * pause).min(MOST_PAUSE)));
                overdue.push(*key);
            }
        }
        overdue
    }

    /// Forgets writes that nobody ended and that cannot be applied any more. Returns those that
    /// this member has granted.
    pub fn expire(&mut self, now: Time, gates: &mut Gates) -> Vec<PermitKey> {
        while let Some((_, key)) = self.forgotten.pop_front_if(|(until, _)| *until <= now) {
            self.ended.remove(&key);
        }
        let expired = self.open.extract_if(.., |_, permit| permit.until <= now);
        expired
            .filter_map(|(key, permit)| {
                coverage_mark!(PermitExpired);
                permit.scopes.iter().for_each(|scope| gates.open(*scope));
                permit.granted.then_some(key)
            })
            .collect()
    }

    /// Whether a write is under way.
    #[cfg(test)]
    pub fn is_open(&self, key: PermitKey) -> bool {
        self.open.contains_key(&key)
    }

    /// What is under way, and until when it may be applied.
    pub fn open(&self) -> impl Iterator<Item = (PermitKey, Scope, Time)> {
        let all = self.open.iter();
        all.flat_map(|(key, p)| p.scopes.iter().map(|scope| (*key, *scope, p.until)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Identity, Incarnation, MemberId};

    #[test]
    fn a_question_that_comes_after_its_end_closes_nothing() {
        let process = Identity { id: MemberId(1), incarnation: Incarnation(2) };
        let (key, scopes) = (PermitKey { process, number: 3 }, [Scope::Token(4)]);
        let (mut gates, mut permits) = (Gates::default(), Permits::default());
        assert!(permits.begin(key, &scopes, 100, &mut gates));
        assert!(permits.end((key, Outcome::Settled), 100, None, &mut gates));
        assert!(!permits.begin(key, &scopes, 100, &mut gates));
        assert!(gates.is_open(4, 1));
    }

    /// The rows of this member know nothing of it.
    #[test]
    fn a_permit_that_came_with_a_shard_ends_as_the_old_owner_says_or_runs_out() {
        let process = Identity { id: MemberId(1), incarnation: Incarnation(2) };
        let key = |number| PermitKey { process, number };
        let (mut gates, mut permits) = (Gates::default(), Permits::default());
        for number in [1, 2] {
            assert_eq!(permits.bring(key(number), (0, 4), 100, &mut gates), None);
        }
        assert!(
            !permits.end((key(1), Outcome::Settled), 100, None, &mut gates) && !gates.is_open(4, 1)
        );
        assert_eq!(permits.brought().collect::<Vec<_>>(), [(0, 100)]);
        assert!(permits.expire(100, &mut gates).is_empty() && gates.is_open(4, 100));
        assert!(!permits.end((key(3), Outcome::Settled), 100, None, &mut gates));
        assert_eq!(permits.bring(key(3), (0, 4), 200, &mut gates), Some(Outcome::Settled));
        // The shard has gone and come again.
        assert_eq!(permits.bring(key(5), (0, 4), 100, &mut gates), None);
        assert_eq!(permits.bring(key(5), (1, 5), 100, &mut gates), None);
        permits.forget_brought(0, &mut gates);
        assert!(gates.is_open(4, 1) && !gates.is_open(5, 1) && permits.is_open(key(5)));
        permits.forget_brought(1, &mut gates);
        assert!(gates.is_open(5, 1) && !permits.is_open(key(5)));
        // Its writer may ask the new owner too.
        assert_eq!(permits.bring(key(4), (0, 4), 100, &mut gates), None);
        assert!(permits.begin(key(4), &[Scope::Token(4)], 200, &mut gates));
        assert!(
            permits.end((key(4), Outcome::Settled), 100, None, &mut gates) && gates.is_open(4, 1)
        );
    }

    /// Its writer may be dead, and the permit lasts for hours.
    #[test]
    fn a_writer_is_asked_ever_more_rarely_for_an_end_that_does_not_come() {
        let config = Config::default();
        let process = Identity { id: MemberId(1), incarnation: Incarnation(2) };
        let key = PermitKey { process, number: 3 };
        let (mut gates, mut permits) = (Gates::default(), Permits::default());
        permits.begin(key, &[Scope::Token(4)], Time::MAX, &mut gates);
        let start = 7_000_000;
        let mut asked = Vec::new();
        for now in (start..start + 3_600_000_000).step_by(50_000) {
            asked.extend(permits.overdue(now, &config).iter().map(|_| now - start));
        }
        assert_eq!(asked[..3], [1, 3, 7].map(|times| times * config.lease));
        assert!((60..80).contains(&asked.len()), "{} in an hour", asked.len());
        permits.end((key, Outcome::Settled), Time::MAX, None, &mut gates);
        assert!(permits.overdue(Time::MAX, &config).is_empty());
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
            permits.end((key, Outcome::Settled), now + 10, None, &mut gates);
            permits.end((key, Outcome::Settled), now + 10, None, &mut gates);
            permits.expire(now, &mut gates);
            assert!(permits.ended.len() <= 10 && permits.forgotten.len() <= 10);
        }
    }
}
