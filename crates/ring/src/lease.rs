//! The lease: whether this member may serve its shards and grant writes. It needs both:
//!
//! 1. Confirmed: the map was read at SERIAL within T. T counts from before the read was sent.
//! 2. Promised: every other active member of the adopted map has promised not to accuse this
//!    incarnation. The promise counts for L, from before its PING was sent.
//!
//! A lease that lapses can come back; cached rows then count again. Only a change of a shard's
//! epoch breaks their claim.

use std::collections::BTreeMap;

use crate::config::{Config, Time};
use crate::identity::{Identity, MemberId};
use crate::map::Map;

#[derive(Debug, Default, Clone)]
pub struct Lease {
    /// When the last read that showed us as active was sent.
    confirmed: Option<Time>,
    /// Who promised, and when the PING was sent that it answered. Which incarnations they had does
    /// not matter: whoever takes shards first waits until all that came before has ended.
    promised: BTreeMap<MemberId, Time>,
    /// The end, as of the last change.
    end: Time,
}

impl Lease {
    /// A read of the map that was sent at `sent` showed this member as active.
    pub fn confirm(&mut self, sent: Time) {
        self.confirmed = self.confirmed.max(Some(sent));
    }

    /// What was read is not the map that this member has: no read before that counts any more.
    pub fn refute(&mut self) {
        self.confirmed = None;
    }

    /// When the last read that showed this member as active was sent; `None` before the first.
    pub fn confirmed(&self) -> Option<Time> {
        self.confirmed
    }

    /// A promise to this process, in answer to a PING that was sent at `sent`.
    pub fn promise(&mut self, by: MemberId, sent: Time) {
        let promised = self.promised.entry(by).or_insert(sent);
        *promised = sent.max(*promised);
    }

    /// When the newest PING was sent that this member has answered with a promise.
    pub fn promised(&self, by: MemberId) -> Option<Time> {
        self.promised.get(&by).copied()
    }

    /// Works the end out again, after a promise, a confirmation or a new map.
    pub fn reckon(&mut self, map: &Map, me: Option<Identity>, config: &Config) {
        let Some(me) = me.filter(|me| map.is_active(*me)) else {
            self.end = 0;
            return;
        };
        let promised = map
            .active()
            .filter(|m| m.identity.id != me.id)
            .map(|m| self.promised.get(&m.identity.id).map_or(0, |sent| sent + config.lease));
        let confirmed = self.confirmed.map_or(0, |sent| sent + config.confirm);
        self.end = promised.fold(confirmed, Time::min);
    }

    /// The lease counts before this time and not from it on.
    pub fn end(&self) -> Time {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Incarnation;
    use crate::map::Profile;

    const ME: Identity = Identity { id: MemberId(1), incarnation: Incarnation(1) };

    #[test]
    fn whoever_is_accused_has_no_lease_whatever_it_was_promised() {
        let (mut lease, config) = (Lease::default(), Config::default());
        let mut map = Map::empty(1);
        map.put(ME.id, ME.incarnation, Profile::default());
        map.put(MemberId(2), Incarnation(2), Profile::default());
        lease.confirm(1_000);
        lease.reckon(&map, Some(ME), &config);
        assert_eq!(lease.end(), 0, "the other has promised nothing");
        lease.promise(MemberId(2), 3_000);
        lease.reckon(&map, Some(ME), &config);
        assert_eq!(lease.end(), 3_000 + config.lease);
        map.accuse(ME);
        lease.reckon(&map, Some(ME), &config);
        assert_eq!(lease.end(), 0);
    }
}
