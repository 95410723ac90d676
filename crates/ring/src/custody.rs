//! Custody: what an owner knows of its shards. It decides which cached rows may be served, which
//! rows may be filled, and which writes may be granted.
//!
//! * A row counts under the epoch it was cached in, or over a chain of clean epochs.
//! * Before a write is granted its gates are closed, its rows dropped, and its dirty bits set.
//! * A shard that came without its old owner's holds is not filled for the time of a hold. The old
//!   owner's writes are not known.
//! * A row that is pulled from the old owner is installed if no later epoch has its dirty bit set.
//! * All of this but the dirty bits survives the process. At the next start every write in flight
//!   has an unknown outcome. [`Durable`] is what is kept; a restart without it drops all rows.
//! * Or the gates are kept beside the rows, and [`Kept`] is what survives. A successor then knows
//!   neither the gates nor their holds: see `unseen.rs`.

mod moves;
mod moving;
mod time;

use std::collections::BTreeMap;
use std::mem::take;

use crate::config::{Config, Time};
use crate::dirty::DirtyBits;
use crate::gates::Gates;
use crate::identity::{MemberId, PermitKey, RingId};
use crate::io::{Rows, WriteBody};
use crate::map::{Map, Standing, shard_of};
use crate::message::{Outcome, RowKey, Scope, ShardState};
use crate::permit::Permits;
use crate::terms::{Carried, FillTerms, OlderRow};
use crate::unseen::{Unseen, hold_of, raise};

/// What an instance keeps across a crash of its process: intents, holds, dirty bits and which
/// epochs it holds.
#[derive(Debug, Default, Clone)]
pub struct Durable {
    custody: Custody,
    /// The gates are kept elsewhere, beside the rows: see [`Durable::keep`].
    beside_rows: bool,
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
    /// Snapshots of old owners before the moves of their shards, and at which version. A snapshot
    /// counts only if the very next version has the move. Otherwise the old owner may have gone on,
    /// granted writes and set more bits.
    received: BTreeMap<u16, Received>,
    /// Shards that are being handed over: the version at which that was said, and to whom.
    leaving: BTreeMap<u16, (u64, MemberId)>,
    unseen: Unseen,
    /// Rows of earlier epochs were distrusted, and the map was not read since. A move that is heard
    /// of now may be of before.
    is_before_distrust: bool,
    /// See [`Config::weak_fills`].
    weak_fills: bool,
    /// The ring that all of this is of, once a map was adopted.
    ring: Option<RingId>,
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
    /// The row may miss writes.
    pub weak: bool,
}

/// Shards that are held, each with its epoch and until when its rows are weak.
pub type KeptShards = Vec<(u16, u64, Time)>;

/// What the old owner of a shard has told, for a move that may not come.
#[derive(Debug, Clone)]
struct Received {
    /// Of the map.
    version: u64,
    at: Time,
    state: ShardState,
    /// Whether it has heard of the same changes of the schema. Otherwise its rows may miss writes.
    heard: bool,
}

/// What an instance keeps across a crash of its process whose intents and holds are kept elsewhere,
/// beside its rows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The ring that they are of. Epochs of another ring say nothing of the rows.
    pub ring: RingId,
    /// Its shards.
    pub shards: KeptShards,
}

impl Durable {
    /// The state of a process whose intents and holds are kept elsewhere, beside its rows. Its
    /// dirty bits are not kept: rows of older epochs do not count.
    #[must_use]
    pub fn keep(kept: Kept) -> Self {
        // A process that saw no ring has no state of it.
        let ring = Some(kept.ring).filter(|ring| *ring != RingId::default());
        let mut custody = Custody { begun: ring.is_some(), ring, ..Custody::default() };
        for (shard, epoch, weak) in kept.shards {
            custody.held.insert(shard, epoch);
            if weak > 0 {
                custody.weak.insert(shard, weak);
            }
        }
        Self { custody, beside_rows: true }
    }

    /// The state of a process that has ended, as its successor finds it.
    #[must_use]
    pub(crate) fn of(custody: Custody) -> Self {
        Self { custody, beside_rows: false }
    }
}

/// Whether the change of a shard's owner was a takeover. All permits of the old owner have ended
/// then.
fn is_takeover(old: &Map, map: &Map, shard: u16) -> bool {
    let owner = old.shards[usize::from(shard)].owner.and_then(|owner| old.entry(owner));
    old.version + 1 == map.version && owner.is_some_and(|entry| entry.standing == Standing::Accused)
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
        // The settings may have changed since, and others may have written past the ring.
        custody.distrust_older();
        let open: Vec<_> = custody.permits.open().map(|(_, scope, _)| scope).collect();
        let until = now + config.intent();
        custody.permits = Permits::default();
        for scope in open {
            custody.gates.hold(scope, until);
            custody.gates.open(scope);
        }
        if durable.beside_rows {
            custody.resume(now, config);
        }
        custody
    }

    /// The gates are kept beside the rows, and not known here. The next owner of a shard must not
    /// rely on them. Nor may a shard be filled while permits of the process before may be valid: a
    /// write of partitions that the database makes leaves no gate closed behind, and its writer may
    /// acknowledge it without a DROP until then.
    fn resume(&mut self, now: Time, config: &Config) {
        for shard in self.held.keys() {
            self.unseen.note(*shard, now + config.intent());
            self.unseen.close(*shard, now + config.stretched(config.lease));
        }
    }

    /// A newer map in place of `old`: shards that have come and gone. `stays`: this process was in
    /// the old map as it is in the new one. Only then no earlier process of this member can have
    /// granted writes under epochs that are new to us: their dirty bits begin clean.
    pub fn adopted(
        &mut self,
        (map, old, stays): (&Map, Option<&Map>, bool),
        me: MemberId,
        now: Time,
        config: &Config,
        rows: &mut dyn Rows,
    ) {
        self.weak_fills = config.weak_fills;
        if map.version == 0 {
            // Nobody has founded a ring yet, or somebody has emptied the row. What was held says
            // what to drop when there is a map again.
            self.begun = true;
            return;
        }
        // An older map than the process before this one has seen: see `MapLoss::Older`.
        let goes_back = self.held.iter().any(|(shard, epoch)| {
            map.shards.get(usize::from(*shard)).is_some_and(|now| now.epoch < *epoch)
        });
        self.enter_ring(map.ring, goes_back, rows);
        self.leaving.retain(|_, (version, _)| map.version <= *version);
        let lost = !std::mem::replace(&mut self.begun, true);
        // Only the version right after a snapshot may have its move.
        self.received.retain(|_, received| received.version + 1 >= map.version);
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
            if !lost && stays && !self.is_before_distrust {
                self.dirty.begin(number, shard.epoch);
                self.pulls.insert(number, now + config.pull);
            }
            let first = shard.epoch == 1 && !lost;
            match self.received.remove(&number) {
                Some(received) if received.state.epoch.checked_add(1) == Some(shard.epoch) => {
                    self.believe(number, &received, config);
                }
                _ if first => {}
                _ => {
                    coverage_mark!(TakenWeakly);
                    // Of all that came with it before it went, the weakness is longer.
                    self.permits.forget_brought(number, &mut self.gates);
                    if !lost && old.is_some_and(|old| is_takeover(old, map, number)) {
                        self.weak.insert(number, now + config.stretched(config.hold));
                    } else {
                        // Permits of the old owner may still be valid: it has left as the last
                        // member, a version was missed, or it was this member and lost its state.
                        self.weak.insert(number, now + config.intent());
                        self.unseen.close(number, now + config.stretched(config.lease));
                    }
                }
            }
            self.dirty.tidy(number, shard.epoch);
        }
    }

    /// Somebody may have emptied the ring's table, or put an older map there. Epochs come again
    /// then, and may be those of our rows. Writes that are under way stay so.
    fn enter_ring(&mut self, ring: RingId, goes_back: bool, rows: &mut dyn Rows) {
        if ring == RingId::default() {
            return; // only rings of tests have no number
        }
        if self.ring.replace(ring).is_some_and(|known| known != ring || goes_back) {
            self.begin_anew(rows);
        }
    }

    /// Nothing that was cached counts any more, as after a lost state.
    pub fn begin_anew(&mut self, rows: &mut dyn Rows) {
        rows.drop_all();
        let (gates, permits) = (take(&mut self.gates), take(&mut self.permits));
        let (ring, weak_fills) = (self.ring, self.weak_fills);
        let is_before_distrust = self.is_before_distrust;
        *self = Self { gates, permits, ring, weak_fills, is_before_distrust, ..Self::default() };
    }

    /// A ring is about to be founded after another one, whose writes may still be applied.
    pub fn follow_another(&mut self) {
        self.begun = false;
    }

    /// Whether this member answers for a token: it owns the shard and is not handing it over.
    fn answers_for(&self, map: &Map, me: MemberId, token: i64) -> bool {
        map.owner_of(token) == Some(me) && !self.leaving.contains_key(&(map.shard_of(token) as u16))
    }

    /// Whether this member answers for all of these. `All` needs the sender's version to be ours.
    /// Otherwise there may be owners that the sender does not know.
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
        (key, body): (PermitKey, WriteBody<'_>),
        until: Time,
        rows: &mut dyn Rows,
    ) -> bool {
        if !self.answers_for_all(map, me, version, body.scopes)
            || !self.permits.begin(key, body.scopes, until, &mut self.gates)
        {
            return false;
        }
        self.mark_dirty(map, body, rows);
        rows.begin(key, body);
        true
    }

    /// DROP, under a lease: the same for a write that is over. A weak one is held.
    pub fn forget(
        &mut self,
        map: &Map,
        me: MemberId,
        version: u64,
        (body, weak): (WriteBody<'_>, bool),
        (now, config): (Time, &Config),
        rows: &mut dyn Rows,
    ) -> bool {
        if !self.answers_for_all(map, me, version, body.scopes) {
            return false;
        }
        let hold = if weak { hold_of(Outcome::Weak, now, config) } else { None };
        if weak {
            self.note_weak(body.scopes, now, config);
        }
        for scope in body.scopes {
            self.gates.overtake(*scope);
            if let Some(until) = hold {
                self.gates.hold(*scope, until);
            }
        }
        self.mark_dirty(map, body, rows);
        rows.forget(body, weak);
        true
    }

    /// A weak write that is filled all the same: the rows know of it, the gates do not.
    pub fn note_weak(&mut self, scopes: &[Scope], now: Time, config: &Config) {
        if !config.weak_fills {
            return;
        }
        let until = now + config.stretched(config.hold);
        for scope in scopes {
            match scope {
                Scope::Token(token) => {
                    self.unseen.note(shard_of(*token, config.shards) as u16, until);
                }
                Scope::All => self.unseen.note_all(until),
            }
        }
    }

    fn mark_dirty(&mut self, map: &Map, body: WriteBody<'_>, rows: &dyn Rows) {
        for scope in body.scopes {
            match scope {
                Scope::Token(token) => {
                    let shard = map.shard_of(*token);
                    self.dirty.set(shard as u16, map.shards[shard].epoch, *token);
                }
                Scope::All => {
                    let makes = || rows.makes_rows(body.detail);
                    self.dirty.set_everywhere(&self.held, map.version, makes);
                }
            }
        }
    }

    /// END.
    pub fn end(
        &mut self,
        key: PermitKey,
        outcome: Outcome,
        (now, config): (Time, &Config),
        rows: &mut dyn Rows,
    ) {
        let hold = hold_of(outcome, now, config);
        if outcome == Outcome::Weak {
            let scopes = self.permits.scopes(key).to_vec();
            self.note_weak(&scopes, now, config);
        }
        for (shard, _) in self.permits.brought_with(key) {
            // The rows do not know of it, and may be filled with what was before it.
            if outcome == Outcome::Weak && config.weak_fills && self.held.contains_key(shard) {
                raise(&mut self.weak, *shard, now + config.stretched(config.hold));
            }
            if let Some(until) = hold {
                self.unseen.bring(*shard, until);
            }
        }
        // No writer asks for longer.
        let remember = now + config.stretched(config.write);
        if self.permits.end((key, outcome), remember, hold, &mut self.gates) {
            rows.end(key, outcome);
        }
    }

    /// Whether a write has been granted that has not ended.
    #[cfg(test)]
    pub fn has_granted(&self, key: PermitKey) -> bool {
        self.permits.is_open(key)
    }

    /// Whether a write that is over keeps this from being filled.
    #[cfg(test)]
    pub fn is_held(&self, scope: Scope, now: Time) -> bool {
        let came = |key| !self.permits.brought_with(key).is_empty();
        let all = (i64::MIN, i64::MAX);
        let held = self.gates.held(all).any(|(held, until)| held == scope && until > now);
        held || self.permits.open().any(|(key, open, _)| open == scope && came(key))
    }

    /// Whether a write of this is open, of a writer that may be dead.
    #[cfg(test)]
    pub fn is_written(&self, scope: Scope) -> bool {
        self.permits.open().any(|(_, open, _)| open == scope)
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
        if now >= lease || rows.is_idle() {
            return Look::Pass;
        }
        let shard = map.shard_of(key.token);
        let epoch = map.shards[shard].epoch;
        if let Some((cached, row)) = rows.get(key)
            && self.counts(shard as u16, OlderRow::of(key, cached, row.as_deref(), rows), epoch)
        {
            return Look::Hit(row);
        }
        if rows.is_held(key) {
            coverage_mark!(HeldBesideRows);
            return Look::Pass;
        }
        if !self.may_fill(shard as u16, key.token, now) {
            return Look::Pass;
        }
        let weak = self.is_weak(shard as u16, now);
        Look::Miss(Ticket { epoch, stamp: self.gates.stamp(), weak })
    }

    fn counts(&self, shard: u16, row: OlderRow, epoch: u64) -> bool {
        if row.epoch == epoch {
            return true;
        }
        let counts = row.epoch < epoch && self.dirty.is_clean(shard, row, epoch);
        if counts {
            coverage_mark!(CountsOverEpochs);
        }
        counts
    }

    fn is_weak(&self, shard: u16, now: Time) -> bool {
        self.weak.get(&shard).is_some_and(|until| *until > now)
    }

    /// Where gates are kept beside the rows, a write of everything closes those of the tables that
    /// it touches, and they know how long. The gate of everything here would close all tables: for
    /// a hold if the outcome is unknown, and for an intent if the writer is killed.
    fn may_fill(&self, shard: u16, token: i64, now: Time) -> bool {
        match self.weak_fills {
            true => {
                self.gates.is_open_for(Scope::Token(token), now)
                    && !self.unseen.is_closed(shard, now)
            }
            false => self.gates.is_open(token, now) && !self.is_weak(shard, now),
        }
    }

    /// Under which epoch a row that was missed may be filled now, and whether it may live for a
    /// short time only. `None`: it may not.
    pub fn fill_terms(&self, map: &Map, me: MemberId, token: i64, now: Time) -> Option<FillTerms> {
        let shard = map.shard_of(token);
        let weak = self.is_weak(shard as u16, now);
        let fills = self.answers_for(map, me, token) && self.may_fill(shard as u16, token, now);
        fills.then_some(FillTerms { epoch: map.shards[shard].epoch, weak })
    }

    /// The shards that this member answers for by this map, with their epochs.
    pub fn answered_for<'a>(
        &'a self,
        map: &'a Map,
        me: MemberId,
    ) -> impl Iterator<Item = (usize, u64)> + 'a {
        map.owned_by(me)
            .filter(|shard| !self.leaving.contains_key(&(*shard as u16)))
            .map(|shard| (shard, map.shards[shard].epoch))
    }

    /// What of this is worth a file, see [`Durable::keep`]: [`KeptShards`] one by one.
    pub fn kept(&self) -> impl Iterator<Item = (u16, u64, Time)> + '_ {
        let mut permits = BTreeMap::<u16, Time>::new();
        self.permits.brought().for_each(|(shard, until)| raise(&mut permits, shard, until));
        let weak = move |shard| {
            let weak = self.weak.get(shard).copied().unwrap_or(0);
            weak.max(self.unseen.brought(*shard)).max(permits.get(shard).copied().unwrap_or(0))
        };
        self.held.iter().map(move |(shard, epoch)| (*shard, *epoch, weak(shard)))
    }

    /// See [`Kept::ring`].
    pub fn ring(&self) -> RingId {
        self.ring.unwrap_or_default()
    }

    /// Whether a read that comes now may join the fill that began with this ticket.
    pub fn may_join(&self, map: &Map, ticket: Ticket, token: i64) -> bool {
        self.gates.is_untouched(token, ticket.stamp)
            && map.shards[map.shard_of(token)].epoch == ticket.epoch
    }

    /// The epoch under which a fill's row may be cached, if it may.
    pub fn may_install(
        &self,
        map: &Map,
        me: MemberId,
        ticket: Ticket,
        token: i64,
        now: Time,
    ) -> Option<u64> {
        let may = if self.weak_fills {
            // Such callers fill beside the member, and do not look at the map again.
            self.gates.is_untouched(token, ticket.stamp)
        } else {
            self.answers_for(map, me, token)
                && self.may_join(map, ticket, token)
                && self.may_fill(map.shard_of(token) as u16, token, now)
        };
        may.then_some(ticket.epoch)
    }

    /// Where a row that is missing may be found without the database; see [`Carried`].
    pub fn carried(&self, map: &Map, me: MemberId, token: i64, now: Time) -> Option<Carried> {
        let shard = map.shard_of(token);
        let epoch = map.shards[shard].epoch;
        let counts = |before| {
            self.dirty.is_clean(shard as u16, OlderRow { token, epoch: before, absent: 0 }, epoch)
        };
        let any = epoch.checked_sub(1).is_some_and(counts) && self.answers_for(map, me, token);
        any.then(|| Carried { shard, epoch, old_owner: self.pull_from(map, me, token, now) })
    }

    /// Rows were forgotten for a reason that no write of the ring has told: those that others still
    /// have of earlier epochs do not count.
    ///
    /// The database may have moved a shard to us of which we hear later. Its old owner was put out
    /// with rows that nothing has forgotten. So no move counts until a read of the map that is sent
    /// after this is answered, see [`Custody::saw_all_moves`].
    pub fn distrust_older(&mut self) {
        self.is_before_distrust = true;
        self.dirty = DirtyBits::default();
        self.received.values_mut().for_each(|received| received.state.dirty.clear());
    }

    /// Whether a move that is heard of now may be of before the last [`Custody::distrust_older`].
    pub fn is_before_distrust(&self) -> bool {
        self.is_before_distrust
    }

    /// All moves of before the last [`Custody::distrust_older`] are known.
    pub fn saw_all_moves(&mut self) {
        self.is_before_distrust = false;
    }

    /// No fill that is under way may be installed.
    pub fn overtake_fills(&mut self) {
        self.gates.overtake(Scope::All);
    }

    /// Whom to ask for a missing row before the database: the shard's old owner, for a time after
    /// the move. It may have left the ring, and run on.
    pub fn pull_from(&self, map: &Map, me: MemberId, token: i64, now: Time) -> Option<MemberId> {
        let number = map.shard_of(token);
        self.pulls.get(&(number as u16)).filter(|until| now < **until)?;
        let is_silent =
            |old: MemberId| map.entry(old).is_some_and(|entry| entry.standing == Standing::Accused);
        map.shards[number].previous.filter(|old| *old != me && !is_silent(*old))
    }

    /// Under which epoch a row that the old owner cached earlier may be installed, if it may. It
    /// must count as if it had been cached here. A later write has set its dirty bit.
    pub fn may_install_pulled(&self, map: &Map, me: MemberId, row: OlderRow) -> Option<u64> {
        let number = map.shard_of(row.token);
        let epoch = map.shards[number].epoch;
        let clean = row.epoch < epoch && self.dirty.is_clean(number as u16, row, epoch);
        (clean && self.answers_for(map, me, row.token)).then_some(epoch)
    }
}

#[cfg(test)]
#[path = "custody_tests.rs"]
mod tests;
