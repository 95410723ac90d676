//! When an instance may join: once it reaches all active members, and they reach it. Otherwise they
//! would lack its promises, and every lease would lapse.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::identity::Identity;
use crate::map::Map;

/// When a ring may be founded that has no map in the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Founding {
    /// At once: no member of an earlier ring of its name can have a lease.
    #[default]
    AtOnce,
    /// Not for now: whether there was one is not known.
    NotYet,
    /// There was one, and somebody has emptied its row. Its members may not know that, and have
    /// their leases until T after they last read it.
    AfterLeases,
}

#[derive(Debug, Default, Clone)]
pub struct Join {
    /// When a ring may be founded.
    pub founding: Founding,
    /// Since when every read of the map has found none.
    empty: Option<Time>,
    /// Since when we try, without having stood still or lost a member.
    since: Option<Time>,
    /// When each last answered.
    answered: BTreeMap<Identity, Time>,
    /// When any member last answered or refused us, or we began.
    heard: Time,
    last: Time,
}

impl Join {
    /// A read of the map was answered, with none or with one.
    pub fn read(&mut self, is_empty: bool, now: Time) {
        self.empty = self.empty.or(Some(now)).filter(|_| is_empty);
    }

    /// Whether a ring may be founded now, where the map is empty.
    pub fn may_found(&self, now: Time, config: &Config) -> bool {
        let leases = config.stretched(config.confirm);
        match self.founding {
            Founding::AtOnce => true,
            Founding::NotYet => false,
            Founding::AfterLeases => self.empty.is_some_and(|since| now >= since + leases),
        }
    }

    /// A member answered our PING.
    pub fn answered(&mut self, who: Identity, now: Time) {
        self.answered.insert(who, now);
    }

    /// A member is there and refuses us, because we have not its secret: it lives.
    pub fn refused(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    /// Whether to join now: all active members have answered for long enough, or none of them
    /// has for so long that all must be gone.
    pub fn may_join(&mut self, map: &Map, me: Identity, now: Time, config: &Config) -> bool {
        if self.since.is_none() || now > self.last + config.silence {
            self.since = Some(now);
            self.heard = now;
        }
        self.last = now;
        // Only members count: an instance that has lost its place answers too.
        let heard = map.active().filter_map(|m| self.answered.get(&m.identity)).max();
        self.heard = self.heard.max(heard.copied().unwrap_or(0));
        let mut others = map.active().map(|m| m.identity).filter(|who| who.id != me.id).peekable();
        let alone = others.peek().is_none();
        let all =
            others.all(|who| self.answered.get(&who).is_some_and(|t| t + config.silence > now));
        let since = self.since.unwrap_or(now);
        if all {
            return alone || now >= since + config.probe;
        }
        if self.is_deserted(now, config) {
            coverage_mark!(JoinedDeserted);
            return true;
        }
        false
    }

    /// Whether no member has answered or refused us for so long that all must be gone. To be asked
    /// after [`Join::may_join`].
    pub fn is_deserted(&self, now: Time, config: &Config) -> bool {
        now >= self.heard + config.deserted
    }

    /// Begins anew, after an attempt.
    pub fn begin(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Incarnation, MemberId};
    use crate::map::Profile;

    #[test]
    fn who_is_refused_does_not_take_the_members_for_dead() {
        let mut map = Map::empty(1);
        map.put(MemberId(1), Incarnation(1), Profile::default());
        let me = Identity { id: MemberId(9), incarnation: Incarnation(9) };
        let (mut join, config) = (Join::default(), Config::default());
        let step = config.silence / 2;
        for now in (0..10 * config.deserted).step_by(step as usize) {
            join.refused(now);
            assert!(!join.may_join(&map, me, now, &config) && !join.is_deserted(now, &config));
        }
        let mut nows = (10 * config.deserted..20 * config.deserted).step_by(step as usize);
        let end = nows.find(|now| join.may_join(&map, me, *now, &config));
        let soon = |end: Time| end < 11 * config.deserted + 2 * step;
        assert!(end.is_some_and(soon), "then they are gone");
    }

    #[test]
    fn an_instance_that_has_lost_its_place_keeps_no_joiner_out() {
        let who =
            |id, incarnation| Identity { id: MemberId(id), incarnation: Incarnation(incarnation) };
        let mut map = Map::empty(1);
        map.put(MemberId(1), Incarnation(1), Profile::default());
        let (mut join, config) = (Join::default(), Config::default());
        let step = config.silence / 2;
        let mut now = 0;
        while !join.may_join(&map, who(9, 9), now, &config) {
            // The member is dead; what answers has another incarnation, or is no member.
            join.answered(who(1, 7), now);
            join.answered(who(2, 2), now);
            now += step;
            assert!(now <= config.deserted + step, "it waits for ever");
        }
        assert!(now >= config.deserted);
    }

    /// Every member needs its promises from then on.
    #[test]
    fn an_instance_joins_once_all_members_have_answered_for_a_while() {
        let who = |id: u64| Identity { id: MemberId(id), incarnation: Incarnation(id.into()) };
        let mut map = Map::empty(1);
        [1, 2]
            .into_iter()
            .for_each(|id| map.put(MemberId(id), Incarnation(id.into()), Profile::default()));
        let config = Config::default();
        // Until when each of them answers, and whether it joins.
        let joins = |ends: [Time; 2]| {
            let mut join = Join::default();
            let mut nows = (0..config.probe + 3 * config.ping).step_by(config.ping as usize);
            nows.find(|now| {
                let answering = (1..).zip(ends).filter(|(_, end)| now < end);
                answering.for_each(|(id, _)| join.answered(who(id), *now));
                join.may_join(&map, who(9), *now, &config)
            })
        };
        let always = Time::MAX;
        assert_eq!(joins([always, always]), Some(config.probe));
        assert_eq!(joins([always, 0]), None, "one has never answered");
        assert_eq!(joins([always, config.ping * 2]), None, "one has stopped to answer");
    }
}
