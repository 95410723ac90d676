//! Both sides of a move, as custody sees it.
//!
//! 1. The old owner does not answer for the shards any more ([`Custody::stop_answering`]).
//! 2. It waits a moment for the writes of these shards that it has granted: then nobody need be
//!    told how they end.
//! 3. It takes the snapshot ([`Custody::snapshot`]). Writes that are still under way are in it.
//! 4. The new owner keeps it ([`Custody::receive`]), and believes it once the shard has moved.
//! 5. A write ends that was under way. The new owner hears of it from the writer, and from the old
//!    owner ([`Custody::heirs`]): the writer may not know that the shard has moved. If neither
//!    does, it asks the writer.
//!
//! What travels from 3 and from 5 may come in any order. How a write has ended is remembered for a
//! moment, so that the end may come first.

use crate::config::{Config, Time};
use crate::custody::{Custody, Received};
use crate::identity::{MemberId, PermitKey};
use crate::map::Map;
use crate::message::{Outcome, Scope, ShardState};
use crate::unseen::raise;

/// Whether that member owns the shard.
fn owns(map: &Map, me: MemberId, shard: u16) -> bool {
    map.shards.get(usize::from(shard)).is_some_and(|shard| shard.owner == Some(me))
}

impl Custody {
    /// The old owner's side. This member does not answer for these shards until the version has
    /// passed the present one. Shards that it does not own are left out. Whether it has answered
    /// for one of them until now.
    pub fn stop_answering(
        &mut self,
        map: &Map,
        me: MemberId,
        (shards, to): (&[u16], MemberId),
    ) -> bool {
        let mut answered = false;
        for shard in shards.iter().filter(|shard| owns(map, me, **shard)) {
            let before = self.leaving.insert(*shard, (map.version, to));
            answered |= before.is_none_or(|(version, _)| version != map.version);
        }
        answered
    }

    /// To whom this member has handed shards over, or is about to, that a write under way touches.
    pub fn heirs(&self, map: &Map, me: MemberId, write: PermitKey) -> Vec<MemberId> {
        let heir = |scope: &Scope| {
            let Scope::Token(token) = scope else { return None };
            let shard = map.shard_of(*token);
            let leaving = self.leaving.get(&(shard as u16)).map(|(_, to)| *to);
            leaving.or(map.shards[shard].owner).filter(|heir| *heir != me)
        };
        let mut heirs: Vec<_> = self.permits.scopes(write).iter().filter_map(heir).collect();
        heirs.sort_unstable();
        heirs.dedup();
        heirs
    }

    /// Whether a write that may touch these shards is under way. One whose permit has ended is not
    /// waited for: its writer may be dead.
    pub fn are_written(&self, map: &Map, shards: &[u16], now: Time, config: &Config) -> bool {
        let is_valid = |until: Time| until.saturating_add(config.lease) > now + config.intent();
        let touches = |scope| match scope {
            Scope::All => true,
            Scope::Token(token) => shards.contains(&(map.shard_of(token) as u16)),
        };
        self.permits.open().any(|(_, scope, until)| is_valid(until) && touches(scope))
    }

    /// What the new owner must know of these shards. This member does not answer for them any more.
    pub fn snapshot(&self, map: &Map, me: MemberId, shards: &[u16], now: Time) -> Vec<ShardState> {
        let own = shards.iter().filter(|shard| owns(map, me, **shard));
        own.map(|shard| self.state_of(map, *shard, now)).collect()
    }

    fn state_of(&self, map: &Map, number: u16, now: Time) -> ShardState {
        debug_assert!(
            self.leaving.get(&number).is_some_and(|(version, _)| *version == map.version),
            "it may change still"
        );
        let weak = self.weak.get(&number).copied().unwrap_or(0);
        let mut state = ShardState {
            shard: number,
            epoch: map.shards[usize::from(number)].epoch,
            weak: weak.max(self.unseen.noted(number)).saturating_sub(now),
            holds: Vec::new(),
            writes: Vec::new(),
            dirty: self.dirty.of(number),
        };
        let tokens = map.tokens_of(usize::from(number));
        let held = self.gates.held(tokens).map(|(scope, until)| (None, scope, until));
        let written = self.permits.open().map(|(key, scope, until)| (Some(key), scope, until));
        for (write, scope, until) in held.chain(written).filter(|(.., until)| *until > now) {
            let left = until - now;
            match (scope, write) {
                (Scope::All, _) => state.weak = state.weak.max(left),
                (Scope::Token(token), _) if map.shard_of(token) != usize::from(number) => {}
                (Scope::Token(token), None) => state.holds.push((token, left)),
                (Scope::Token(token), Some(write)) => state.writes.push((write, token, left)),
            }
        }
        state
    }

    /// How many shards are being handed over.
    pub fn leaving_count(&self) -> usize {
        self.leaving.len()
    }

    /// The versions at which shards were handed over that have not moved yet.
    pub fn leaving(&self) -> Option<u64> {
        self.leaving.values().map(|(version, _)| *version).min()
    }

    /// The new owner's side: a snapshot, which counts from the move on. The newest one does.
    /// `heard`: the old owner has heard of the same changes of the schema. Otherwise it is asked
    /// for no rows: it may go on filling them from replicas that lack them.
    pub fn receive(&mut self, version: u64, states: Vec<ShardState>, (at, heard): (Time, bool)) {
        for state in states {
            self.received.insert(state.shard, Received { version, at, state, heard });
        }
    }

    /// A change of the schema was heard of. What a snapshot of before says stays true, and this
    /// member knows of the change itself. But its sender may go on filling rows and not know.
    pub fn heard_more(&mut self) {
        self.received.values_mut().for_each(|received| received.heard = false);
    }

    /// The shard has moved: what its old owner has told is true, and what it told of moves that
    /// have failed is nothing.
    pub(super) fn believe(&mut self, shard: u16, received: &Received, config: &Config) {
        let Received { at, state, heard, .. } = received;
        if !heard {
            self.pulls.remove(&shard);
        }
        for (epoch, bits) in state.dirty.iter().filter(|(epoch, _)| *epoch <= state.epoch) {
            self.dirty.learn(shard, *epoch, bits);
        }
        for (token, left) in &state.holds {
            let until = at.saturating_add(config.stretched(*left));
            self.gates.hold(Scope::Token(*token), until);
            self.unseen.bring(shard, until);
        }
        self.permits.forget_brought(shard, &mut self.gates);
        for (write, token, left) in &state.writes {
            let until = at.saturating_add(config.stretched(*left));
            match self.permits.bring(*write, (shard, *token), until, &mut self.gates) {
                None | Some(Outcome::Settled | Outcome::Refused) => {}
                Some(Outcome::Weak) if config.weak_fills => raise(&mut self.weak, shard, until),
                // It may still be applied, or be missed.
                Some(Outcome::Weak | Outcome::Unknown | Outcome::Decided) => {
                    self.gates.hold(Scope::Token(*token), until);
                    self.unseen.bring(shard, until);
                }
            }
        }
        if state.weak > 0 {
            let until = at.saturating_add(config.stretched(state.weak));
            raise(&mut self.weak, shard, until);
            // One of the reasons may be a permit for everything.
            self.unseen.close(shard, at + config.stretched(config.lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::map::Profile;

    const OLD: MemberId = MemberId(1);
    const NEW: MemberId = MemberId(2);

    /// The old owner may not have heard of it, and its move comes only now.
    #[test]
    fn who_gave_a_snapshot_before_a_change_that_was_heard_of_since_is_asked_for_no_rows() {
        let config = Config { shards: 1, weak_fills: true, ..Config::default() };
        let mut before = Map { version: 1, ..Map::empty(1) };
        for id in [OLD, NEW] {
            before.put(id, Incarnation(id.0.into()), Profile::default());
        }
        before.give(0, Some(OLD));
        let mut moved = before.next();
        moved.give(0, Some(NEW));
        for hears in [false, true] {
            let mut new = Custody { begun: true, ..Custody::default() };
            let adopt = |new: &mut Custody, map, old| {
                new.adopted((map, old, true), NEW, 0, &config, &mut crate::sim::rows());
            };
            adopt(&mut new, &before, None);
            let state = ShardState { epoch: 1, ..ShardState::default() };
            new.receive(1, vec![state], (0, true));
            if hears {
                new.heard_more();
            }
            adopt(&mut new, &moved, Some(&before));
            let terms = new.fill_terms(&moved, NEW, 7, 0);
            assert!(!terms.expect("it may be filled").weak, "we know of the change ourselves");
            assert_eq!(new.pull_from(&moved, NEW, 7, 0), (!hears).then_some(OLD));
        }
    }
}
