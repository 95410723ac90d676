//! The takeover of a silent member, in two steps: it is accused, and later its shards are taken.
//!
//! * Silence counts only while this member itself was running and asked.
//! * A member that answers may be at fault too: its clock drifts, or it has lost the database
//!   (`sight.rs`).
//! * A member may accuse another only if every map that the other may act on has the accuser's
//!   incarnation. That is so if the other has named such a version, or has joined after the
//!   accuser. It is also so T(1+2ρ) after the accuser's join was known to be applied.
//! * Shards are taken L(1+2ρ) after the accusation was known to be applied. All promises of this
//!   member to the accused must have ended too.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::identity::{Identity, MemberId};
use crate::map::{Map, Standing};
use crate::promise::Promises;

/// A tick that is late by so much shows that this process stood still.
const STOOD_STILL: Time = 300_000;

/// A member that did not grant so many permits in time, one after the other, counts as silent.
const HUNG: u32 = 8;

/// Why a member is accused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspicion {
    /// It answers no PING.
    Silent,
    /// It answers PINGs, but grants no write in time.
    GrantsNothing,
    /// Its clock does not run like those of most members.
    ClockDrifts,
    /// It has lost the database alone.
    NoDatabase,
}

#[derive(Debug, Default, Clone)]
pub struct Takeover {
    /// When each last answered, or was first asked.
    answered: BTreeMap<Identity, Time>,
    /// When the newest PING of ours was sent that each has answered.
    lived: BTreeMap<Identity, Time>,
    /// The newest version of the map that each has named.
    named: BTreeMap<Identity, u64>,
    /// Since when each is known to be accused.
    accused: BTreeMap<Identity, Time>,
    /// Our incarnation, the version it came with, and since when that is known to be applied.
    joined: Option<(Identity, u64, Time)>,
    /// Permits that a member did not grant in time, one after the other, and since when.
    unanswered: BTreeMap<Identity, (u32, Time)>,
    last_tick: Time,
    running_since: Time,
}

impl Takeover {
    /// Of a process that begins now.
    pub fn begin(now: Time) -> Self {
        Self { last_tick: now, running_since: now, ..Self::default() }
    }

    /// Whether time has not passed here for a while: the thread that lets it pass hangs, in a call
    /// of the system perhaps, while others bring messages.
    pub fn stands_still(&self, now: Time) -> bool {
        now > self.last_tick + STOOD_STILL
    }

    /// Notes that time has passed.
    pub fn tick(&mut self, now: Time) {
        if self.stands_still(now) {
            self.running_since = now;
        }
        self.last_tick = now;
    }

    /// A member named the version of its map. Once that has us we may accuse it, and its silence
    /// counts from then on: we may have joined while we reached nobody.
    pub fn named(&mut self, who: Identity, version: u64, now: Time) {
        let named = self.named.entry(who).or_default();
        let before = std::mem::replace(named, version.max(*named));
        if self.joined.is_some_and(|(_, since, _)| before < since && since <= version) {
            self.listen(who, now);
        }
    }

    /// The silence of a member counts from now on. What it has answered before, and what not, is
    /// too old to judge by.
    fn listen(&mut self, who: Identity, now: Time) {
        self.answered.insert(who, now);
        self.unanswered.remove(&who);
    }

    /// A member answered a PING that was sent then.
    pub fn answered(&mut self, who: Identity, sent: Time, now: Time) {
        self.answered.insert(who, now);
        let lived = self.lived.entry(who).or_insert(sent);
        *lived = sent.max(*lived);
    }

    /// The latest time at which a member is known to have lived: what is heard after it has died
    /// may have been sent before.
    pub fn lived(&self, who: Identity) -> Option<Time> {
        self.lived.get(&who).copied()
    }

    /// Since when this process is known to be a member.
    pub fn joined_at(&self) -> Option<Time> {
        self.joined.map(|(.., now)| now)
    }

    /// A member answered a BEGIN.
    pub fn granted(&mut self, who: Identity) {
        self.unanswered.remove(&who);
    }

    /// A member did not answer a BEGIN in time.
    pub fn not_granted(&mut self, who: Identity, now: Time) {
        self.unanswered.entry(who).or_insert((0, now)).0 += 1;
    }

    /// A newer map, in which we are `me`.
    pub fn adopted(&mut self, map: &Map, me: Option<Identity>, now: Time) {
        let known = |who: &Identity| map.has(*who);
        self.answered.retain(|who, _| known(who));
        self.lived.retain(|who, _| known(who));
        self.unanswered.retain(|who, _| known(who));
        self.named.retain(|who, _| known(who));
        self.accused.retain(|who, _| known(who));
        for member in &map.members {
            self.answered.entry(member.identity).or_insert(now);
            if member.standing == Standing::Accused {
                self.accused.entry(member.identity).or_insert(now);
            }
        }
        let entry = me.and_then(|me| map.entry(me.id));
        if self.joined.map(|(me, ..)| me) != me {
            self.joined = me.zip(entry).map(|(me, entry)| (me, entry.since, now));
            map.members.iter().for_each(|member| self.listen(member.identity, now));
        }
    }

    /// Whom to accuse now, and why: who is silent, or is at fault although it answers.
    pub fn to_accuse(
        &self,
        map: &Map,
        me: Identity,
        (now, config): (Time, &Config),
        at_fault: impl Fn(Identity) -> Option<Suspicion>,
    ) -> Vec<(Identity, Suspicion)> {
        let Some((_, since, known)) = self.joined.filter(|_| map.is_active(me)) else {
            return Vec::new();
        };
        let settled = now >= known + config.stretched(config.confirm);
        let ranks = map.rank(me) + self.minority(map, me, now, config);
        let timeout = config.silence + config.rank_step * ranks;
        let others = map.active().filter(|member| member.identity != me);
        others
            .filter_map(|member| {
                let who = &member.identity;
                let heard = self.answered.get(who).copied().unwrap_or(now);
                if now >= heard.max(self.running_since) + timeout {
                    return Some((member, Suspicion::Silent));
                }
                // Many writes that wait at one time say no more than one.
                let hangs = |(n, since): &(u32, Time)| *n >= HUNG && now >= since + config.silence;
                let hung = self.unanswered.get(who).is_some_and(hangs);
                let hung = hung.then_some(Suspicion::GrantsNothing);
                Some((member, hung.or_else(|| at_fault(*who))?))
            })
            .filter(|(member, _)| {
                // A member acts on no map before that of its join.
                let named = self.named.get(&member.identity).copied().unwrap_or_default();
                let knows_us = named.max(member.since) >= since;
                if settled && !knows_us {
                    coverage_mark!(AccusedAfterConfirmation);
                }
                settled || knows_us
            })
            .map(|(member, why)| (member.identity, why))
            .collect()
    }

    /// How many more ranks a member waits that reaches less than half of the members, itself among
    /// them: the others accuse it first, and most of them go on.
    fn minority(&self, map: &Map, me: Identity, now: Time, config: &Config) -> Time {
        // All links may fail at one time, and their last answers still differ by a PING and a tick.
        // Whom we have just accused counts still.
        let fresh = config.silence - config.ping - config.ping / 4;
        let is_reached = |who: &Identity| {
            *who == me || self.answered.get(who).is_none_or(|heard| now < heard + fresh)
        };
        let reached = map.active().filter(|member| is_reached(&member.identity)).count();
        if 2 * reached < map.members.len() { map.members.len().min(6) as Time } else { 0 }
    }

    /// Whose shards to take now.
    pub fn to_take(
        &self,
        map: &Map,
        me: Identity,
        promises: &Promises,
        now: Time,
        config: &Config,
    ) -> Vec<MemberId> {
        if !map.is_active(me) {
            return Vec::new();
        }
        let delay = config.stretched(config.lease);
        map.accused()
            .filter(|who| {
                let known = self.accused.get(who).copied().unwrap_or(now);
                let over = (known + delay).max(promises.end(*who, config));
                now >= over + config.rank_step * map.rank(me)
            })
            .map(|who| who.id)
            .collect()
    }
}

#[cfg(test)]
#[path = "takeover_tests.rs"]
mod tests;
