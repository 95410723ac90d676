//! The takeover of a silent member, in two steps: it is accused, and later its shards are taken.
//!
//! * Silence counts only while this member itself was running and asked.
//! * So is one that answers, and has not been confirmed by the database for long, while it confirms
//!   this member: it is about to lose its lease, and nobody could write its rows.
//! * A member may accuse another only if every map that the other may act on has the accuser's
//!   incarnation. That is so if the other has named such a version. It is also so T(1+2ρ) after the
//!   accuser's join was known to be applied.
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

#[derive(Debug, Default, Clone)]
pub struct Takeover {
    /// When each last answered, or was first asked.
    answered: BTreeMap<Identity, Time>,
    /// For how long each had not been confirmed when it last answered.
    blind: BTreeMap<Identity, Time>,
    /// The newest version of the map that each has named.
    named: BTreeMap<Identity, u64>,
    /// Since when each is known to be accused.
    accused: BTreeMap<Identity, Time>,
    /// Our incarnation, the version it came with, and since when that is known to be applied.
    joined: Option<(Identity, u64, Time)>,
    /// Permits that a member did not grant in time, one after the other.
    unanswered: BTreeMap<Identity, u32>,
    last_tick: Time,
    running_since: Time,
}

impl Takeover {
    /// Notes that time has passed.
    pub fn tick(&mut self, now: Time) {
        if now > self.last_tick + STOOD_STILL {
            self.running_since = now;
        }
        self.last_tick = now;
    }

    /// A member named the version of its map.
    pub fn named(&mut self, who: Identity, version: u64) {
        let named = self.named.entry(who).or_default();
        *named = version.max(*named);
    }

    /// A member answered a PING, and has not been confirmed for so long.
    pub fn answered(&mut self, who: Identity, blind: Time, now: Time) {
        self.answered.insert(who, now);
        self.blind.insert(who, blind);
    }

    /// Since when this process is known to be a member.
    pub fn joined_at(&self) -> Option<Time> {
        self.joined.map(|(.., now)| now)
    }

    /// A member answered a BEGIN, or did not in time.
    pub fn granted(&mut self, who: Identity, in_time: bool) {
        let unanswered = self.unanswered.entry(who).or_default();
        *unanswered = if in_time { 0 } else { *unanswered + 1 };
    }

    /// A newer map, in which we are `me`.
    pub fn adopted(&mut self, map: &Map, me: Option<Identity>, now: Time) {
        let known = |who: &Identity| map.entry(who.id).is_some_and(|m| m.identity == *who);
        self.answered.retain(|who, _| known(who));
        self.blind.retain(|who, _| known(who));
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
        }
    }

    /// Whom to accuse now: who is silent, has a clock that `drifts`, or has lost the database while
    /// we have it. `seen`: when the first and the last read were sent since which none has failed.
    pub fn to_accuse(
        &self,
        map: &Map,
        me: Identity,
        (now, seen, config): (Time, Option<(Time, Time)>, &Config),
        drifts: impl Fn(Identity) -> bool,
    ) -> Vec<Identity> {
        let Some((_, since, known)) = self.joined.filter(|_| map.is_active(me)) else {
            return Vec::new();
        };
        let settled = now >= known + config.stretched(config.confirm);
        let rank = map.active().take_while(|m| m.identity != me).count() as Time;
        let timeout =
            config.silence + config.rank_step * (rank.min(5) + self.minority(map, me, now, config));
        map.active()
            .map(|m| m.identity)
            .filter(|who| *who != me)
            .filter(|who| {
                let heard = self.answered.get(who).copied().unwrap_or(now);
                let hung = self.unanswered.get(who).is_some_and(|n| *n >= HUNG);
                let is_blind = self.is_blind(who, (now, seen, config));
                if is_blind {
                    coverage_mark!(AccusedBlind);
                }
                let silent = now >= heard.max(self.running_since) + timeout;
                silent || hung || is_blind || drifts(*who)
            })
            .filter(|who| {
                let knows_us = self.named.get(who).is_some_and(|version| *version >= since);
                if settled && !knows_us {
                    coverage_mark!(AccusedAfterConfirmation);
                }
                settled || knows_us
            })
            .collect()
    }

    /// Whether a member has lost the database while we have it. What its answer said counts while
    /// it is fresh, for we may have stood still since.
    fn is_blind(
        &self,
        who: &Identity,
        (now, seen, config): (Time, Option<(Time, Time)>, &Config),
    ) -> bool {
        let answer = self.answered.get(who).zip(self.blind.get(who));
        let Some(((heard, blind), (since, last))) = answer.zip(seen) else { return false };
        // Once the database is back for all, each has the time to read. It may be gone again: only
        // a fresh read counts.
        let sees = now >= since + config.confirm / 4 && now < last + 2 * config.transaction;
        // It may have read since it last answered, as we have.
        let (ours, theirs) = (last.min(*heard), heard.saturating_sub(*blind));
        sees && now < heard + config.silence && ours >= theirs + config.blind()
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
        let rank = map.active().take_while(|m| m.identity != me).count() as Time;
        let delay = config.stretched(config.lease);
        map.accused()
            .filter(|who| {
                let known = self.accused.get(who).copied().unwrap_or(now);
                let over = (known + delay).max(promises.end(*who, config));
                now >= over + config.rank_step * rank.min(5)
            })
            .map(|who| who.id)
            .collect()
    }
}
