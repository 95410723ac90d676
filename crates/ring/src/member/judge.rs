//! Which transaction to begin, if any: the first of these that is called for.
//!
//! 1. Not in the map under an incarnation of this process: found the ring, restart or join.
//! 2. Accused: join again.
//! 3. Active: take the shards of who was accused for long enough; accuse who is silent; move
//!    shards that were handed over; settle one of unknown outcome; leave.

use std::sync::Arc;

use super::Member;
use crate::identity::{Identity, MemberId};
use crate::io::{Action, Io};
use crate::map::{Map, Standing};
use crate::placement;

impl Member {
    /// Begins the transaction that is called for. After one of unknown outcome the map is read
    /// first.
    pub(super) fn judge(&mut self, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else { return };
        let reading = self.transactions.is_unsettled() && self.reads.due <= io.now
            || self.transactions.is_unsettled() && self.reads.under_way.is_some();
        if self.transactions.is_busy() || reading {
            return;
        }
        let next = match self.me {
            Some(me) if map.is_active(me) => self.judge_as_member(&map, me, io),
            _ => self.judge_as_joiner(&map, io),
        };
        if let Some(next) = next {
            let next = Arc::new(next);
            let id = self.transactions.begin(next.clone(), io.now);
            io.actions.push(Action::Transact { id, map: next });
        }
    }

    fn judge_as_joiner(&mut self, map: &Map, io: &mut Io<'_>) -> Option<Map> {
        if self.leaving && map.entry(self.id).is_none() {
            return None;
        }
        let nobody = Identity { id: self.id, incarnation: self.life };
        let restart =
            self.me.is_none() && map.entry(self.id).is_some_and(|m| m.standing == Standing::Active);
        if !restart && !self.join.may_join(map, nobody, io.now, &self.config) {
            return None;
        }
        self.join.begin();
        // A fresh one for every attempt: an attempt of unknown outcome may still apply, and what
        // is known of that incarnation then must not be taken for what is true of this.
        let incarnation = io.incarnation();
        self.tried.push(incarnation);
        let mut next = map.next();
        next.put(self.id, incarnation, self.profile.clone());
        placement::give_away(&mut next, &[]);
        Some(next)
    }

    fn judge_as_member(&mut self, map: &Map, me: Identity, io: &mut Io<'_>) -> Option<Map> {
        let taken = self.takeover.to_take(map, me, &self.promises, io.now, &self.config);
        if !taken.is_empty() {
            coverage_mark!(TookShards);
            return Some(without(map, &taken));
        }
        let silent = self.takeover.to_accuse(map, me, io.now, &self.config);
        if !silent.is_empty() {
            coverage_mark!(AccusedSomebody);
            let mut next = map.next();
            for who in silent {
                self.promises.withhold(who, map.version);
                next.accuse(who);
            }
            return Some(next);
        }
        if let Some(next) = self.handover.moved(map, self.id) {
            coverage_mark!(Moved);
            return Some(next);
        }
        if self.transactions.is_unsettled() || self.waits_for_a_move(map, io) {
            coverage_mark!(MovedOn);
            return Some(map.next());
        }
        self.leave_if_empty(map, io)
    }

    /// Whether shards were handed over for this version so long ago that the move will not come.
    fn waits_for_a_move(&self, map: &Map, io: &Io<'_>) -> bool {
        let patience = self.config.transaction * 2;
        self.custody.leaving() == Some(map.version) && io.now >= self.handed + patience
    }

    /// A member that leaves wants no shards, and goes when it has none. The last member first stops
    /// to answer for its shards: nobody else's promise ends its lease.
    fn leave_if_empty(&mut self, map: &Map, io: &Io<'_>) -> Option<Map> {
        let entry = map.entry(self.id).filter(|_| self.leaving)?;
        let owned: Vec<_> = map.owned_by(self.id).map(|s| s as u16).collect();
        let last = map.members.len() == 1;
        if last || owned.is_empty() {
            coverage_mark!(Left);
            self.custody.hand_over(map, self.id, &owned, io.now);
            self.handed = io.now;
            return Some(without(map, &[self.id]));
        }
        if entry.profile.weight == 0 {
            return None;
        }
        let mut next = map.next();
        let at = next.members.iter().position(|m| m.identity.id == self.id)?;
        next.members[at].profile.weight = 0;
        Some(next)
    }
}

/// The next map without these members.
fn without(map: &Map, gone: &[MemberId]) -> Map {
    let mut next = map.next();
    let rest: Vec<_> = gone.to_vec();
    for id in &rest {
        if let Some(who) = map.entry(*id).map(|m| m.identity) {
            next.accuse(who);
        }
    }
    placement::give_away(&mut next, &rest);
    next.remove(&rest);
    next
}
