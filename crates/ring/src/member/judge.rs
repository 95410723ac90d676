//! Which transaction a member begins, if any.
//!
//! - Not in the map under an incarnation of this process: it founds the ring, restarts or joins,
//!   unless its clock does not run like those of most members.
//! - Accused: it joins again.
//! - Active: the first of these that is due.
//!   1. Take the shards of a member that was accused for long enough.
//!   2. Accuse a member that is silent, whose clock does not run like the others', or that has lost
//!      the database alone.
//!   3. Move shards that were handed over.
//!   4. Settle a transaction of unknown outcome.
//!   5. Say which settings it has now.
//!   6. Leave.
//!
//! After transactions of unknown outcome the next one waits ([`Transactions`]).
//!
//! [`Transactions`]: crate::transaction::Transactions

use std::sync::Arc;

use super::{Accusation, Member};
use crate::config::Time;
use crate::identity::{Identity, MemberId, RingId};
use crate::io::{Action, Io};
use crate::join::Founding;
use crate::map::{Map, Standing};
use crate::takeover::Suspicion;
use crate::{placement, settings};

/// An attempt to join that was made before so many others is not applied any more.
const MOST_TRIED: usize = 256;

impl Member {
    /// Begins the transaction that is called for. After one of unknown outcome the map is read
    /// first.
    pub(super) fn judge(&mut self, io: &mut Io<'_>) {
        let Some(map) = self.map.clone() else { return };
        let reading = self.transactions.is_unsettled() && self.reads.due <= io.now
            || self.transactions.is_unsettled() && self.reads.under_way.is_some();
        if self.transactions.is_busy() || reading || self.reads.loss.is_some() {
            return;
        }
        let next = match self.me {
            Some(me) if map.is_active(me) => self.judge_as_member(&map, me, io),
            _ => self.judge_as_joiner(&map, io),
        };
        if let Some(next) = next {
            self.transact(next, io);
        }
    }

    /// Asks the database to make this map of the version before it.
    pub(super) fn transact(&mut self, next: Map, io: &mut Io<'_>) {
        let next = Arc::new(next);
        let id = self.transactions.begin(next.clone(), self.id, io.now);
        io.actions.push(Action::Transact { id, map: next });
    }

    fn judge_as_joiner(&mut self, map: &Map, io: &mut Io<'_>) -> Option<Map> {
        if self.leaving && map.entry(self.id).is_none() || self.drifts.is_odd(map, self.id, io.now)
        {
            return None;
        }
        if map.version == 0 && !self.join.may_found(io.now, &self.config) {
            return None;
        }
        let nobody = Identity { id: self.id, incarnation: self.life };
        let restart =
            self.me.is_none() && map.entry(self.id).is_some_and(|m| m.standing == Standing::Active);
        let fits = settings::fits(map, self.id, &self.profile.settings);
        let restart = restart && fits;
        if !restart && !self.join.may_join(map, nobody, io.now, &self.config) {
            return None;
        }
        if !fits && !self.join.is_deserted(io.now, &self.config) {
            return None;
        }
        if self.transactions.backs_off(io.now, &self.config) {
            return None;
        }
        self.join.begin();
        // A fresh one for every attempt. An attempt of unknown outcome may still apply. What others
        // then know of its incarnation must not be taken for knowledge of this one.
        let incarnation = io.incarnation();
        if self.tried.len() == MOST_TRIED {
            self.tried.remove(0);
        }
        self.tried.push(incarnation);
        let mut next = map.next();
        if map.version == 0 {
            next.ring = RingId(incarnation.0);
            if self.join.founding == Founding::AfterLeases {
                self.custody.follow_another();
            }
        }
        next.put(self.id, incarnation, self.profile.clone());
        placement::give_away(&mut next, &[]);
        Some(next)
    }

    fn judge_as_member(&mut self, map: &Map, me: Identity, io: &mut Io<'_>) -> Option<Map> {
        let is_odd = self.drifts.is_odd(map, self.id, io.now);
        let drifts = |who: Identity| !is_odd && self.drifts.is_suspect(who.id, io.now);
        let is_blind = |who| {
            let last = self.reads.answered;
            last.is_some_and(|last| self.sight.is_blind(who, last, io.now, &self.config))
        };
        let at_fault = |who: Identity| match who {
            who if drifts(who) => Some(Suspicion::ClockDrifts),
            who if is_blind(who) => Some(Suspicion::NoDatabase),
            _ => None,
        };
        let at = (io.now, &*self.config);
        let suspects = self.takeover.to_accuse(map, me, at, at_fault);
        if suspects.is_empty() {
            self.suspecting = None;
            self.accusations.retain(|accusation| !accusation.told);
        }
        if self.transactions.backs_off(io.now, &self.config) {
            return None;
        }
        let taken = self.takeover.to_take(map, me, &self.promises, io.now, &self.config);
        if !taken.is_empty() {
            coverage_mark!(TookShards);
            return Some(without(map, &taken));
        }
        if !suspects.is_empty() {
            return self.accuse(map, &suspects, io);
        }
        if let Some(next) = self.handover.moved(map, self.id) {
            coverage_mark!(Moved);
            return Some(next);
        }
        if self.transactions.is_unsettled() || self.waits_for_a_move(map, io) {
            coverage_mark!(MovedOn);
            return Some(map.next());
        }
        self.tell_settings(map, me).or_else(|| self.leave_if_empty(map, io))
    }

    /// The map with these accused, if the database has answered a read since they are suspected.
    ///
    /// Whoever accuses withholds its promise until it knows the outcome. Without the database it
    /// would never know: the other one would go on without a lease, though it may be well again.
    fn accuse(
        &mut self,
        map: &Map,
        suspects: &[(Identity, Suspicion)],
        io: &mut Io<'_>,
    ) -> Option<Map> {
        let since = *self.suspecting.get_or_insert(io.now);
        let sees = |sent: Time| sent >= since && io.now < sent + self.config.transaction;
        if !self.reads.answered.is_some_and(sees) {
            if !self.reads.failed {
                self.reads.due = self.reads.due.min(io.now);
                self.read_map(io);
            }
            return None;
        }
        coverage_mark!(AccusedSomebody);
        let mut next = map.next();
        for (who, why) in suspects {
            self.promises.withhold(*who, map.version);
            next.accuse(*who);
            let (who, why) = (who.id, *why);
            if !self.accusations.iter().any(|known| (known.who, known.why) == (who, why)) {
                self.accusations.push(Accusation { who, why, told: false });
            }
        }
        Some(next)
    }

    /// The map has other settings of this member than it has now.
    fn tell_settings(&self, map: &Map, me: Identity) -> Option<Map> {
        let at = map.members.iter().position(|member| member.identity == me)?;
        if map.members[at].profile.settings == self.profile.settings {
            return None;
        }
        let mut next = map.next();
        next.members[at].profile.settings.clone_from(&self.profile.settings);
        Some(next)
    }

    /// Whether shards were handed over for this version so long ago that the move will not come.
    fn waits_for_a_move(&self, map: &Map, io: &Io<'_>) -> bool {
        let timeout = self.config.transaction * 2;
        self.custody.leaving() == Some(map.version) && io.now >= self.handed + timeout
    }

    /// A member that leaves wants no shards, and goes when it has none and another one is there.
    /// The last member first stops to answer for its shards: nobody else's promise ends its lease.
    /// Where it is the last because another one was put out, that may come back: it waits T/4, so
    /// that somebody owns the rows.
    fn leave_if_empty(&mut self, map: &Map, io: &Io<'_>) -> Option<Map> {
        let entry = map.entry(self.id).filter(|_| self.leaving)?;
        let owned: Vec<_> = map.owned_by(self.id).map(|s| s as u16).collect();
        let last = map.members.len() == 1;
        let has_accused = map.accused().next().is_some();
        let is_bereft = self.bereft.is_some_and(|at| io.now < at + self.config.confirm / 4);
        let waits = map.active().count() == 1 && (has_accused || is_bereft);
        let is_empty = owned.is_empty() && !last;
        if is_empty && !waits && !self.is_another_there(map, io.now) {
            return None;
        }
        if !waits && (last || is_empty) {
            coverage_mark!(Left);
            self.custody.stop_answering(map, self.id, (&owned, self.id));
            self.handed = io.now;
            return Some(without(map, &[self.id]));
        }
        if entry.leaving {
            return None;
        }
        let mut next = map.next();
        let at = next.members.iter().position(|m| m.identity.id == self.id)?;
        next.members[at].leaving = true;
        Some(next)
    }

    /// Whether another member has answered a PING that was sent since this one wants to go from
    /// this map. Who died a moment ago is in it still, and the ring must not be left to the dead.
    fn is_another_there(&mut self, map: &Map, now: Time) -> bool {
        let since = *self.going_since.get_or_insert(now);
        map.active().any(|other| {
            let lived = self.takeover.lived(other.identity);
            other.identity.id != self.id && lived.is_some_and(|lived| lived > since)
        })
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

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
