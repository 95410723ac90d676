//! Both sides of a move, as custody sees it.
//!
//! 1. The old owner does not answer for the shards any more ([`Custody::stop_answering`]).
//! 2. It waits a moment for the writes of these shards that it has granted: a write that is under
//!    way is a hold in the snapshot, as it may be applied that much later. Once it has ended it is
//!    nothing.
//! 3. It takes the snapshot ([`Custody::snapshot`]).
//! 4. The new owner keeps it ([`Custody::receive`]), and believes it once the shard has moved.

use crate::config::{Config, Time};
use crate::custody::{Custody, Received};
use crate::identity::MemberId;
use crate::map::Map;
use crate::message::{Scope, ShardState};

/// Whether that member owns the shard.
fn owns(map: &Map, me: MemberId, shard: u16) -> bool {
    map.shards.get(usize::from(shard)).is_some_and(|shard| shard.owner == Some(me))
}

impl Custody {
    /// The old owner's side. This member does not answer for these shards until the version has
    /// passed the present one. Shards that it does not own are left out. Whether it has answered
    /// for one of them until now.
    pub fn stop_answering(&mut self, map: &Map, me: MemberId, shards: &[u16]) -> bool {
        let mut answered = false;
        for shard in shards.iter().filter(|shard| owns(map, me, **shard)) {
            answered |= self.leaving.insert(*shard, map.version) != Some(map.version);
        }
        answered
    }

    /// Whether a write that may touch these shards is under way. One whose permit has ended is not
    /// waited for: its writer may be dead.
    pub fn are_written(&self, map: &Map, shards: &[u16], now: Time, config: &Config) -> bool {
        let is_valid = |until| until + config.lease > now + config.intent();
        self.permits.open().filter(|(_, until)| is_valid(*until)).any(|(scope, _)| match scope {
            Scope::All => true,
            Scope::Token(token) => shards.contains(&(map.shard_of(token) as u16)),
        })
    }

    /// What the new owner must know of these shards. This member does not answer for them any more.
    pub fn snapshot(&self, map: &Map, me: MemberId, shards: &[u16], now: Time) -> Vec<ShardState> {
        let own = shards.iter().filter(|shard| owns(map, me, **shard));
        own.map(|shard| self.state_of(map, *shard, now)).collect()
    }

    fn state_of(&self, map: &Map, number: u16, now: Time) -> ShardState {
        debug_assert_eq!(self.leaving.get(&number), Some(&map.version), "it may change still");
        let weak = self.weak.get(&number).copied().unwrap_or(0);
        let mut state = ShardState {
            shard: number,
            epoch: map.shards[usize::from(number)].epoch,
            weak: weak.max(self.unseen.noted(number)).saturating_sub(now),
            holds: Vec::new(),
            dirty: self.dirty.of(number),
        };
        for (scope, until) in self.gates.held().chain(self.permits.open()) {
            let left = until.saturating_sub(now);
            match scope {
                _ if left == 0 => {}
                Scope::All => state.weak = state.weak.max(left),
                Scope::Token(token) if map.shard_of(token) == usize::from(number) => {
                    state.holds.push((token, left));
                }
                Scope::Token(_) => {}
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
        self.leaving.values().copied().min()
    }

    /// The new owner's side: a snapshot, which counts from the move on. The newest one does.
    pub fn receive(&mut self, version: u64, states: Vec<ShardState>, at: Time) {
        for state in states {
            self.received.insert(state.shard, Received { version, at, state });
        }
    }

    /// The shard has moved: what its old owner has told is true, and what it told of moves that
    /// have failed is nothing.
    pub(super) fn believe(&mut self, shard: u16, received: &Received, config: &Config) {
        let Received { at, state, .. } = received;
        for (epoch, bits) in state.dirty.iter().filter(|(epoch, _)| *epoch <= state.epoch) {
            self.dirty.learn(shard, *epoch, bits);
        }
        for (token, left) in &state.holds {
            let until = at.saturating_add(config.stretched(*left));
            self.gates.hold(Scope::Token(*token), until);
            self.unseen.bring(shard, until);
        }
        if state.weak > 0 {
            let until = at.saturating_add(config.stretched(state.weak));
            let weak = self.weak.entry(shard).or_default();
            *weak = until.max(*weak);
            // One of the reasons may be a permit for everything.
            self.unseen.close(shard, at + config.stretched(config.lease));
        }
    }
}
