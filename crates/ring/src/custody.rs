//! What an owner has in custody: which rows count, which may be filled, and what writes are on
//! their way.
//!
//! * A row counts under the epoch it was cached in, or over a chain of clean epochs.
//! * A gate is closed, the rows are dropped and the dirty bits set before a write is granted.
//! * A shard that came without its old owner's holds is not filled for the time of a hold, because
//!   the writes of the old owner are not known.
//! * A row that is pulled from the old owner is installed where no later epoch has a dirty bit of
//!   it.
//! * All of this outlives the process: at the next start it is the same, with every write that was
//!   on its way of unknown outcome. A state that was lost is another matter: see [`Durable`].

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::dirty::DirtyBits;
use crate::gates::Gates;
use crate::identity::MemberId;
use crate::io::Rows;
use crate::map::Map;
use crate::message::{Outcome, RowKey, Scope, ShardState};
use crate::permit::{PermitKey, Permits};

/// What an instance keeps across a crash of its process: intents, holds, dirty bits and which
/// epochs it holds.
#[derive(Debug, Default, Clone)]
pub struct Durable {
    custody: Custody,
}

#[derive(Debug, Default, Clone)]
pub struct Custody {
    gates: Gates,
    permits: Permits,
    dirty: DirtyBits,
    /// The epoch under which each own shard is held.
    held: BTreeMap<u16, u64>,
    /// Until when the rows that own shards miss are pulled from their old owners.
    pulls: BTreeMap<u16, Time>,
    /// Own shards that are not to be filled yet.
    weak: BTreeMap<u16, Time>,
    /// What has come from old owners before the moves of their shards, and at which version. It
    /// counts only where the very next version has the move: in any other the old owner may have
    /// gone on, granted writes and set more bits.
    received: BTreeMap<u16, (u64, ShardState)>,
    /// Shards that are being handed over, and the version at which that was said.
    leaving: BTreeMap<u16, u64>,
    /// Whether a map was ever adopted with this state.
    begun: bool,
}

/// What an owner finds when it looks for a row.
#[derive(Debug, Clone)]
pub enum Look {
    NotOwner,
    Pass,
    Hit(Option<Vec<u8>>),
    Miss(Ticket),
}

/// What a fill remembers of its begin.
#[derive(Debug, Clone, Copy)]
pub struct Ticket {
    epoch: u64,
    stamp: u64,
}

impl Durable {
    /// The state of a process that has ended, as its successor finds it.
    #[must_use]
    pub(crate) fn of(custody: Custody) -> Self {
        Self { custody }
    }
}

impl Custody {
    /// Takes over what an earlier process left. The waits after a lost state are in it, so that a
    /// second crash does not cut them short.
    pub fn restore(durable: Durable, now: Time, config: &Config, rows: &mut dyn Rows) -> Self {
        let mut custody = durable.custody;
        if !custody.begun {
            rows.drop_all();
            return Self::default();
        }
        let open: Vec<_> = custody.permits.open().collect();
        let until = now + config.intent();
        custody.permits = Permits::default();
        for (scope, _) in open {
            custody.gates.hold(scope, until);
            custody.gates.open(scope);
        }
        custody
    }

    /// A newer map: shards that have come and gone.
    pub fn adopted(&mut self, map: &Map, me: MemberId, now: Time, config: &Config) {
        self.leaving.retain(|_, version| map.version <= *version);
        let lost = !std::mem::replace(&mut self.begun, true);
        let hold = now + if lost { config.intent() } else { config.stretched(config.hold) };
        // Only the version right after a snapshot may have its move.
        self.received.retain(|_, (at, _)| *at + 1 >= map.version);
        for (number, shard) in map.shards.iter().enumerate() {
            let number = number as u16;
            if shard.owner != Some(me) {
                if self.held.remove(&number).is_some() {
                    self.weak.remove(&number);
                }
                continue;
            }
            if self.held.insert(number, shard.epoch) == Some(shard.epoch) {
                continue;
            }
            if !lost {
                self.dirty.begin(number, shard.epoch);
                self.pulls.insert(number, now + config.pull);
            }
            let first = shard.epoch == 1 && !lost;
            match self.received.remove(&number) {
                Some((_, state)) if state.epoch + 1 == shard.epoch => {
                    for (epoch, bits) in &state.dirty {
                        self.dirty.learn(number, *epoch, bits);
                    }
                }
                _ if first => {}
                _ => {
                    coverage_mark!(TakenWeakly);
                    self.weak.insert(number, hold);
                }
            }
            self.dirty.tidy(number, shard.epoch);
        }
    }

    /// Whether this member answers for a token: it owns the shard and is not handing it over.
    fn answers_for(&self, map: &Map, me: MemberId, token: i64) -> bool {
        map.owner_of(token) == Some(me) && !self.leaving.contains_key(&(map.shard_of(token) as u16))
    }

    /// Whether this member answers for all of these. `All` needs the sender's version to be ours:
    /// otherwise there may be owners that the sender does not know of.
    fn answers_for_all(&self, map: &Map, me: MemberId, version: u64, scopes: &[Scope]) -> bool {
        scopes.iter().all(|scope| match scope {
            Scope::Token(token) => self.answers_for(map, me, *token),
            Scope::All => version == map.version && self.leaving.is_empty(),
        })
    }

    /// BEGIN, under a lease: notes the intent, closes the gates, drops the rows, sets dirty bits.
    /// False where it must be refused.
    pub fn begin(
        &mut self,
        map: &Map,
        me: MemberId,
        version: u64,
        (key, scopes): (PermitKey, &[Scope]),
        until: Time,
        rows: &mut dyn Rows,
    ) -> bool {
        if !self.answers_for_all(map, me, version, scopes)
            || !self.permits.begin(key, scopes, until, &mut self.gates)
        {
            return false;
        }
        self.touch(map, scopes, rows);
        true
    }

    /// DROP, under a lease: the same for a write that is over. A weak one is held.
    pub fn drop_rows(
        &mut self,
        map: &Map,
        me: MemberId,
        version: u64,
        scopes: &[Scope],
        hold: Option<Time>,
        rows: &mut dyn Rows,
    ) -> bool {
        if !self.answers_for_all(map, me, version, scopes) {
            return false;
        }
        for scope in scopes {
            self.gates.overtake(*scope);
            if let Some(until) = hold {
                self.gates.hold(*scope, until);
            }
        }
        self.touch(map, scopes, rows);
        true
    }

    fn touch(&mut self, map: &Map, scopes: &[Scope], rows: &mut dyn Rows) {
        for scope in scopes {
            match scope {
                Scope::Token(token) => {
                    let shard = map.shard_of(*token);
                    self.dirty.set(shard as u16, map.shards[shard].epoch, *token);
                    rows.drop_token(*token);
                }
                Scope::All => {
                    for (shard, epoch) in &self.held {
                        self.dirty.set_all(*shard, *epoch);
                    }
                    rows.drop_all();
                }
            }
        }
    }

    /// END.
    pub fn end(&mut self, key: PermitKey, outcome: Outcome, now: Time, config: &Config) {
        let hold = now + config.stretched(config.hold);
        self.permits.end(key, outcome, now + config.intent(), hold, &mut self.gates);
    }

    /// Looks for a row. `lease` is when the lease ends.
    pub fn look(
        &self,
        map: &Map,
        me: MemberId,
        key: &RowKey,
        (now, lease): (Time, Time),
        rows: &dyn Rows,
    ) -> Look {
        if !self.answers_for(map, me, key.token) {
            return Look::NotOwner;
        }
        if now >= lease {
            return Look::Pass;
        }
        let shard = map.shard_of(key.token);
        let epoch = map.shards[shard].epoch;
        if let Some((cached, row)) = rows.get(key)
            && self.counts(shard as u16, key.token, cached, epoch)
        {
            return Look::Hit(row);
        }
        if !self.may_fill(shard as u16, key.token, now) {
            return Look::Pass;
        }
        Look::Miss(Ticket { epoch, stamp: self.gates.stamp() })
    }

    fn counts(&self, shard: u16, token: i64, cached: u64, epoch: u64) -> bool {
        if cached == epoch {
            return true;
        }
        let counts = cached < epoch && self.dirty.is_clean(shard, token, cached, epoch);
        if counts {
            coverage_mark!(CountsOverEpochs);
        }
        counts
    }

    fn may_fill(&self, shard: u16, token: i64, now: Time) -> bool {
        self.gates.is_open(token, now) && self.weak.get(&shard).is_none_or(|until| *until <= now)
    }

    /// Whether a read that comes now may have what a fill that began with this ticket will find.
    pub fn may_join(&self, map: &Map, ticket: Ticket, token: i64) -> bool {
        self.gates.is_untouched(token, ticket.stamp)
            && map.shards[map.shard_of(token)].epoch == ticket.epoch
    }

    /// Whether what a fill has found may be cached, and under which epoch.
    pub fn may_install(
        &self,
        map: &Map,
        me: MemberId,
        ticket: Ticket,
        token: i64,
        now: Time,
    ) -> Option<u64> {
        let may = self.answers_for(map, me, token)
            && self.may_join(map, ticket, token)
            && self.may_fill(map.shard_of(token) as u16, token, now);
        may.then_some(ticket.epoch)
    }

    /// Whom to ask for a row that is missed here, before the database: the shard's old owner, for a
    /// time after the shard has come.
    pub fn pull_from(&self, map: &Map, me: MemberId, token: i64, now: Time) -> Option<MemberId> {
        let number = map.shard_of(token);
        self.pulls.get(&(number as u16)).filter(|until| now < **until)?;
        map.shards[number].previous.filter(|old| *old != me && map.entry(*old).is_some())
    }

    /// Whether a row that the old owner cached under an earlier epoch may be installed, and under
    /// which: where it would count had it been cached here. A write since has set its dirty bit.
    pub fn may_install_pulled(
        &self,
        map: &Map,
        me: MemberId,
        token: i64,
        cached: u64,
    ) -> Option<u64> {
        let number = map.shard_of(token);
        let epoch = map.shards[number].epoch;
        let clean = cached < epoch && self.dirty.is_clean(number as u16, token, cached, epoch);
        (clean && self.answers_for(map, me, token)).then_some(epoch)
    }

    /// Lets go of what is over.
    pub fn tick(&mut self, now: Time) {
        self.permits.expire(now, &mut self.gates);
        self.gates.tidy(now);
        self.weak.retain(|_, until| *until > now);
        self.pulls.retain(|_, until| *until > now);
    }

    /// The old owner's side of a move: from now on this member does not answer for these shards,
    /// until the version has passed the present one. Shards that it does not own are left out.
    pub fn hand_over(
        &mut self,
        map: &Map,
        me: MemberId,
        shards: &[u16],
        now: Time,
    ) -> Vec<ShardState> {
        let own = |s: &&u16| map.shards.get(usize::from(**s)).is_some_and(|s| s.owner == Some(me));
        let mut states = Vec::new();
        for number in shards.iter().filter(own) {
            self.leaving.insert(*number, map.version);
            let mut state = ShardState {
                shard: *number,
                epoch: map.shards[usize::from(*number)].epoch,
                weak: self.weak.get(number).map_or(0, |until| until.saturating_sub(now)),
                holds: Vec::new(),
                dirty: self.dirty.of(*number),
            };
            for (scope, until) in self.gates.held().chain(self.permits.open()) {
                let left = until.saturating_sub(now);
                match scope {
                    _ if left == 0 => {}
                    Scope::All => state.weak = state.weak.max(left),
                    Scope::Token(token) if map.shard_of(token) == usize::from(*number) => {
                        state.holds.push((token, left));
                    }
                    Scope::Token(_) => {}
                }
            }
            states.push(state);
        }
        states
    }

    /// The versions at which shards were handed over that have not moved yet.
    pub fn leaving(&self) -> Option<u64> {
        self.leaving.values().copied().min()
    }

    /// The new owner's side: notes the holds before the move. They cost nothing if it fails.
    pub fn receive(&mut self, version: u64, states: &[ShardState], now: Time, config: &Config) {
        for state in states {
            for (token, left) in &state.holds {
                self.gates.hold(Scope::Token(*token), now + config.stretched(*left));
            }
            if state.weak > 0 {
                let until = now + config.stretched(state.weak);
                let weak = self.weak.entry(state.shard).or_default();
                *weak = until.max(*weak);
            }
            self.received.insert(state.shard, (version, state.clone()));
        }
    }
}

#[cfg(test)]
impl Custody {
    /// For the oracles: whether a cached row could be served, were the lease valid.
    pub fn row_counts(&self, map: &Map, me: MemberId, token: i64, cached: u64) -> bool {
        let shard = map.shard_of(token);
        self.answers_for(map, me, token)
            && self.counts(shard as u16, token, cached, map.shards[shard].epoch)
    }

    /// For the oracles: whether a write to this token is known.
    pub fn knows_of_a_write(&self, map: &Map, token: i64, now: Time) -> bool {
        !self.may_fill(map.shard_of(token) as u16, token, now)
    }

    /// For the oracles: whether this member would serve the shard under a lease.
    pub fn serves(&self, map: &Map, me: MemberId, shard: usize) -> bool {
        map.shards[shard].owner == Some(me) && !self.leaving.contains_key(&(shard as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::map::Profile;

    const OLD: MemberId = MemberId(1);
    const NEW: MemberId = MemberId(2);
    const TOKEN: i64 = 7;

    fn map() -> Map {
        let mut map = Map { version: 1, ..Map::empty(1) };
        for id in [OLD, NEW] {
            map.put(id, Incarnation(id.0.into()), Profile::default());
        }
        map.give(0, Some(OLD));
        map
    }

    /// What the new owner has in custody, a snapshot received at version 1 and these maps adopted.
    fn after(maps: &[Map], config: &Config) -> Custody {
        let (first, scopes) = (map(), [Scope::Token(TOKEN)]);
        let (mut old, mut new) = (Custody::default(), Custody::default());
        old.begun = true;
        old.adopted(&first, OLD, 0, config);
        new.adopted(&first, NEW, 0, config);
        let states = old.hand_over(&first, OLD, &[0], 0);
        new.receive(1, &states, 0, config);
        // The old owner goes on, once the version has passed.
        let key = PermitKey {
            process: crate::identity::Identity { id: OLD, incarnation: Incarnation(9) },
            number: 1,
        };
        old.adopted(&first.next(), OLD, 0, config);
        assert!(old.begin(&first.next(), OLD, 2, (key, &scopes), 9, &mut crate::sim::rows()));
        maps.iter().for_each(|map| new.adopted(map, NEW, 0, config));
        new
    }

    #[test]
    fn a_snapshot_counts_for_its_own_move_and_not_for_a_later_takeover() {
        let config = Config { shards: 1, ..Config::default() };
        let mut moved = map().next();
        moved.give(0, Some(NEW));
        let new = after(std::slice::from_ref(&moved), &config);
        assert!(new.may_fill(0, TOKEN, 0) && new.row_counts(&moved, NEW, TOKEN, 0));

        let stayed = map().next();
        let mut taken = stayed.next();
        taken.give(0, Some(NEW));
        for maps in [vec![stayed, taken.clone()], vec![taken.clone()]] {
            let new = after(&maps, &config);
            assert!(!new.may_fill(0, TOKEN, 0) && !new.row_counts(&taken, NEW, TOKEN, 0));
        }
    }
}
